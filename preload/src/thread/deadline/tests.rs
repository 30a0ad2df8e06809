use super::*;
use std::process::{Child, Command};
use std::string::ToString;
use std::time::{Duration, Instant};

/// A process that sleeps, in place of a recorder, and the header that names it.
struct Standin {
    child: Child,
    header: Header,
}

impl Standin {
    fn new(program: &str) -> Standin {
        let child = Command::new("sh").args(["-c", program]).spawn().expect("a shell");
        let header = Header::default();
        header.overflow.store(OVERFLOW_WAIT, Relaxed);
        header.wait_ms.store(20, Relaxed);
        header.recorder.0.thread.store(child.id(), Relaxed);
        header.recorder.0.start.store(sys::start_of(child.id()).expect("its start"), Relaxed);
        Standin { child, header }
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().expect("kill").success());
    }

    /// Waits for at most half a second. Returns whether the wait was over before.
    fn gives_up(&self) -> bool {
        let (mut deadline, start) = (Deadline::new(&self.header), Instant::now());
        while start.elapsed() < Duration::from_millis(500) {
            std::thread::sleep(Duration::from_millis(5));
            if deadline.is_over(&self.header) {
                return true;
            }
        }
        false
    }
}

impl Drop for Standin {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn silent_recorder_is_awaited_while_it_can_run() {
    let busy = Standin::new("while :; do :; done");
    assert!(!busy.gives_up(), "it only gets no processor");
    busy.signal("-STOP");
    assert!(busy.gives_up(), "it is stopped");
    busy.signal("-CONT");
    assert!(!busy.gives_up(), "it continues");
    busy.signal("-KILL");
    assert!(busy.gives_up(), "it is gone");
}

#[test]
fn silent_recorder_that_sleeps_is_awaited() {
    let asleep = Standin::new("exec sleep 100");
    assert!(!asleep.gives_up());
    asleep.header.breaker.store(1, Relaxed);
    assert!(asleep.gives_up(), "another thread has given up");
}

#[test]
fn silent_recorder_that_cannot_be_seen_is_awaited_for_the_bound() {
    let other = Standin::new("exec sleep 100");
    // The pid was used again, or it is that of another namespace.
    other.header.recorder.0.start.fetch_add(1, Relaxed);
    assert!(other.gives_up());
    other.header.recorder.0.thread.store(0, Relaxed);
    assert!(other.gives_up());
    other.header.overflow.store(OVERFLOW_DROP, Relaxed);
    assert!(Deadline::new(&other.header).is_over(&other.header));
}

#[test]
fn time_in_which_the_process_was_stopped_is_not_counted() {
    let header = Header::default();
    header.wait_ms.store(2_000, Relaxed);
    let mut deadline = Deadline::new(&header);
    // The process was stopped for a minute.
    deadline.last = deadline.last.saturating_sub(60_000 * NS_PER_MS);
    assert!(!deadline.is_over(&header));
    header.overflow.store(OVERFLOW_BOUNDED, Relaxed);
    deadline.last = deadline.last.saturating_sub(60_000 * NS_PER_MS);
    assert!(deadline.is_over(&header), "a bound of time is one in any case");
}

#[test]
fn recorder_without_progress_is_awaited_for_half_a_minute() {
    let header = Header::default();
    header.wait_ms.store(2_000, Relaxed);
    let mut deadline = Deadline::new(&header);
    let looks = |deadline: &mut Deadline, progresses: bool| {
        (1..1000).find(|_| {
            header.heartbeat.0.fetch_add(1, Relaxed);
            header.recorder.0.progress.fetch_add(progresses.into(), Relaxed);
            deadline.last = deadline.last.saturating_sub(100 * NS_PER_MS);
            deadline.is_over(&header)
        })
    };
    assert_eq!(looks(&mut deadline, true), None, "it writes what it has read");
    assert!(looks(&mut deadline, false).is_some_and(|looks| (250..=301).contains(&looks)));
}
