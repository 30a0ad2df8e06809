//! Reads the references of a process that waits at its end, in threads of our own. Its other threads
//! stand still meanwhile (`still`).

mod ask;
mod living;
mod requested;
mod still;

use super::Recorder;
use crate::digest::process::ProcessCommand;
use crate::heap::live::LiveMemory;
use crate::os::crash;
use crate::pipeline::drain::Command;
use crate::pipeline::residency;
use crate::references::{Snapshot, take};
use crate::session::traced_process::{Session, SessionId};
pub use ask::{Answer, Question, Silence};
use crossbeam_channel::{Sender, bounded};
use formats::tape::RESIDENCY_EXIT;
pub use living::take_references;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use still::Still;
use wire::area::ANNOUNCE_REFERENCES;

/// How long the digest may take to answer: its queue may be full.
const DIGEST_LIMIT: Duration = Duration::from_secs(10);

/// How often the live bytes of processes are compared with the limit from which on we read.
pub(super) const AT_INTERVAL: Duration = Duration::from_millis(50);

/// A process whose references are read while it runs.
pub(super) type Reading = JoinHandle<Result<Duration, String>>;

impl Recorder {
    /// Returns whether a process may still reach the live bytes at which its references are read.
    pub(super) fn watches_live_bytes(&self) -> bool {
        self.options.references_at > 0 && self.running.iter().any(|running| !running.has_references)
    }

    /// Reads the references of processes whose live bytes have reached the limit, beside us.
    pub(super) fn look_at_live_bytes(&mut self) {
        let limit = self.options.references_at;
        if limit == 0 {
            return;
        }
        self.readings.retain(|reading| !reading.is_finished());
        for running in &mut self.running {
            if !running.has_references && running.session.stats.now().live_bytes >= limit {
                running.has_references = true;
                let (session, commands) = (Arc::clone(&running.session), self.stages.commands.clone());
                self.readings.extend(read_beside_it(session, commands).ok());
            }
        }
    }

    /// Waits until what is being read of running processes is read.
    pub(super) fn finish_readings(&mut self) {
        self.readings.drain(..).for_each(|reading| drop(reading.join()));
    }

    /// Reads the references of the processes that run, but for those of which they were read. Returns for how
    /// long the last one stood still, or why they could not be read; `None` if all were read before.
    pub fn read_references(&mut self) -> Option<Result<Duration, String>> {
        self.finish_readings();
        let mut result = None;
        for running in self.running.iter_mut().filter(|running| !running.has_references) {
            running.has_references = true;
            let reading = read_beside_it(Arc::clone(&running.session), self.stages.commands.clone());
            let joined = reading
                .map_err(|error| error.to_string())
                .and_then(|reading| reading.join().unwrap_or_else(|_| Err("the thread that read it ended".into())));
            result = Some(joined);
        }
        result
    }

    /// Reads the memory of a process that is about to end, which waits until the socket is closed.
    pub(super) fn about_to_exit(&mut self, pid: u32, is_before: bool, socket: OwnedFd) {
        let running = self.running.iter_mut().find(|running| running.session.process.pid == pid);
        if let (Some(running), false) = (&running, is_before) {
            running.session.stats.says_end(&running.session.clock);
        }
        let Some(running) = running.filter(|running| !running.has_references) else {
            return self.stages.read_pages_at_exit(pid, socket);
        };
        let is_wanted = running.session.mapping.header().announce_exit.load(Relaxed) & ANNOUNCE_REFERENCES != 0;
        if !is_wanted {
            return self.stages.read_pages_at_exit(pid, socket);
        }
        running.has_references = true;
        let task = Task {
            session: Arc::clone(&running.session),
            commands: self.stages.commands.clone(),
            pages: (!is_before).then(|| self.stages.pages()),
            socket,
            since: Instant::now(),
        };
        // Without a thread the socket is closed, and the process goes on.
        let _ = crash::spawn("references", move || task.run());
    }
}

/// Reads the references of a process that runs on, in a thread that does nothing else.
fn read_beside_it(session: Arc<Session>, commands: Sender<Command>) -> io::Result<Reading> {
    crash::spawn("reads references", move || {
        take_references(&session, &commands).inspect_err(|why| note(&session, &commands, why))
    })
}

/// Notes in the recording why there are no references.
fn note(session: &Session, commands: &Sender<Command>, why: &str) {
    tracing::debug!(pid = session.process.pid, "references: {why}");
    let text = format!("which block holds which could not be read: {why}");
    let _ = commands.send(Command::Process(session.id, ProcessCommand::Note(text)));
}

/// What the thread does.
struct Task {
    session: Arc<Session>,
    commands: Sender<Command>,
    /// Where the pages are requested afterwards, at the last announcement.
    pages: Option<Sender<residency::Request>>,
    socket: OwnedFd,
    since: Instant,
}

impl Task {
    fn run(self) {
        let Task { session, commands, pages, socket, since } = self;
        if let Err(why) = read_beside(&session, &commands, since) {
            note(&session, &commands, &why);
        }
        drop(commands);
        let pid = session.process.pid;
        if let Some(pages) = pages {
            let _ = pages.send(residency::Request::Exit { pid, socket });
        }
    }
}

/// Reads the references of a process, and returns once its threads are as they were: the end of the
/// thread that has stopped them lets go of them, before the one that ends the process goes on.
fn read_beside(session: &Arc<Session>, commands: &Sender<Command>, since: Instant) -> Result<(), String> {
    let (its_session, its_commands) = (Arc::clone(session), commands.clone());
    let reader = crash::spawn("reads references", move || {
        let still = Still::stop(&its_session, since);
        let result = read(&its_session, &its_commands, &still, since);
        still.settle();
        (result, still)
    });
    let joined = reader.map_err(|error| error.to_string())?.join();
    let (result, still) = joined.map_err(|_| "the thread that read it ended")?;
    still.wait_until_asleep();
    result
}

/// Reads the references of a process whose threads stand still.
fn read(session: &Session, commands: &Sender<Command>, still: &Still, since: Instant) -> Result<(), String> {
    let live = live_blocks(commands, session.id, Command::ProcessStill, DIGEST_LIMIT)
        .ok_or("the live blocks are not known")?;
    let tick = session.clock.now();
    let Still { reader_tid, ref threads, count: thread_count, .. } = *still;
    let cause = RESIDENCY_EXIT;
    let snapshot = Snapshot { session, reader_tid, is_copy: false, tick, live, threads, thread_count, cause, since };
    take(snapshot).map_err(|error| error.to_string())
}

/// Returns the live blocks once all events so far are known: `once` says when that is.
fn live_blocks(
    commands: &Sender<Command>,
    id: SessionId,
    once: fn(SessionId, ProcessCommand) -> Command,
    limit: Duration,
) -> Option<LiveMemory> {
    let (reply, answer) = bounded(1);
    commands.send(once(id, ProcessCommand::LiveBlocks(reply))).ok()?;
    answer.recv_timeout(limit).ok().flatten()
}
