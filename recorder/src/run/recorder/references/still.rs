//! The other threads of a process that ends stand still while its memory is read.
//!
//! Those that run are stopped. Most of the others wait in a system call, and a stop makes the kernel
//! begin that call again: it then looks once more at what the call was given. `main` may have
//! returned, or freed what a thread waits for: glibc ends a program whose barrier holds anything
//! else, and `poll` returns for a descriptor that is none. So a thread that waits is stopped only if
//! its call finds what it found before. Of any other one we know where its stack ends, and the
//! arguments of its call, but not its other registers.

use crate::references::{Memory, StoppedThread, stopped_thread};
use crate::run::running_process::threads::{self, Brief, Requested};
use crate::session::traced_process::Session;
use crate::target::maps;
use crate::target::waiting::{Call, Doing, doing};
use formats::references::Memory as _;
use nix::libc;
use nix::unistd::Pid;
use std::ops::Range;
use std::time::{Duration, Instant};

/// How long a thread may take to stop: it has to get a processor for that.
const STOP_LIMIT: Duration = Duration::from_millis(200);
/// How long all of them may take.
const ALL_LIMIT: Duration = Duration::from_secs(5);
/// How long one may take that waits in the kernel, e.g. for a page: it goes on at once.
const KERNEL_LIMIT: Duration = Duration::from_millis(50);
/// How long those that were asleep are waited for, until they are again.
const ASLEEP_LIMIT: Duration = Duration::from_secs(2);

/// System calls that look at nothing but descriptors and numbers when they begin.
const BLIND: &[i64] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_pause,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
    libc::SYS_read,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_recvfrom,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_flock,
    // The kernel keeps the time until which they sleep.
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
];

/// System calls that wait in the kernel for a child that has not executed its program.
const STARTS: &[i64] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_vfork,
    libc::SYS_clone,
    libc::SYS_clone3,
];

/// The threads of a process.
#[derive(Debug)]
pub(crate) struct Still {
    pid: u32,
    /// A thread by which the memory of the process can be read: the first one may have ended.
    pub reader_tid: u32,
    /// Those that do not run.
    pub threads: Vec<StoppedThread>,
    pub count: u32,
    /// Those that were stopped in a system call.
    woken: Vec<u32>,
    /// Those that have not stopped in time.
    late: Vec<Requested>,
    /// Where the code of the library is.
    library: Vec<Range<u64>>,
}

impl Still {
    /// Stops what may be stopped, until the calling thread ends. Those that wait for us are not
    /// stopped: what they refer to is on their stacks.
    pub(super) fn stop(session: &Session, since: Instant) -> Still {
        let pid = session.process.pid;
        let (threads, woken, late, library) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut still = Still { pid, reader_tid: pid, threads, count: 0, woken, late, library };
        let mut known: Vec<Pid> = Vec::new();
        // Threads that run may make others meanwhile.
        loop {
            let new: Vec<Pid> = threads::list(pid).into_iter().filter(|tid| !known.contains(tid)).collect();
            if new.is_empty() {
                return still;
            }
            for tid in new {
                known.push(tid);
                if threads::is_ended(pid, tid) {
                    continue;
                }
                let number = tid.as_raw().cast_unsigned();
                if still.count == 0 {
                    still.reader_tid = number;
                    still.library = code_of_library(number);
                }
                still.count += 1;
                if since.elapsed() < ALL_LIMIT {
                    let thread = still.one(session, tid, number);
                    still.threads.extend(thread);
                }
            }
        }
    }

    fn one(&mut self, session: &Session, tid: Pid, number: u32) -> Option<StoppedThread> {
        let waits =
            |stack_pointer, registers| StoppedThread { tid: number, stack_pointer, registers, thread_pointer: 0 };
        let doing = self.doing(tid, number);
        if let Doing::Calls(call) = &doing {
            let is_in_library = self.library.iter().any(|code| code.contains(&call.next));
            // It waits for space in its ring or for another thread, looks again, and would run on.
            let looks_again = is_in_library && matches!(call.number, libc::SYS_futex | libc::SYS_nanosleep);
            // `vfork`, by which a thread waits for the one that has told us of the end, and that one.
            if !looks_again && (is_in_library || threads::is_in_kernel(self.pid, tid)) {
                return Some(waits(call.stack_pointer, Vec::new()));
            }
            if !looks_again && !self.finds_the_same(session, call) {
                return Some(waits(call.stack_pointer, call.arguments.to_vec()));
            }
            if !looks_again {
                self.woken.push(number);
            }
        }
        let brief = threads::stop_briefly(self.pid, tid, STOP_LIMIT);
        match (brief, doing) {
            (Brief::Stopped(registers), _) => return Some(stopped_thread(tid, &registers)),
            (Brief::Late(requested), _) => self.late.push(requested),
            // E.g. a debugger has stopped it.
            (Brief::No, Doing::Calls(call)) => return Some(waits(call.stack_pointer, call.arguments.to_vec())),
            (Brief::No, Doing::WaitsOutside { stack_pointer }) => return Some(waits(stack_pointer, vec![0; 6])),
            (Brief::No, Doing::Runs) => {}
        }
        None
    }

    /// Returns what a thread does that nothing in the kernel holds for a moment.
    fn doing(&self, tid: Pid, number: u32) -> Doing {
        let until = Instant::now() + KERNEL_LIMIT;
        loop {
            let doing = doing(self.pid, number);
            let waits_for_child = matches!(&doing, Doing::Calls(call) if STARTS.contains(&call.number));
            if waits_for_child || !threads::is_in_kernel(self.pid, tid) || Instant::now() > until {
                return doing;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Returns whether a call that begins again does what it did before.
    fn finds_the_same(&self, session: &Session, call: &Call) -> bool {
        let [address, operation, value, ..] = call.arguments;
        match call.number {
            libc::SYS_epoll_pwait => call.arguments[4] == 0,
            // `pause` where there is no such call: no descriptors, no time, no signals.
            libc::SYS_ppoll => call.arguments[1..4] == [0; 3],
            libc::SYS_futex => {
                let is_wait =
                    matches!((operation as i32) & libc::FUTEX_CMD_MASK, libc::FUTEX_WAIT | libc::FUTEX_WAIT_BITSET);
                let mut word = [0; 4];
                let memory = Memory::of(self.reader_tid, u64::from(session.process.page_size));
                is_wait && memory.read(address, &mut word) == 4 && u32::from_le_bytes(word) == value as u32
            }
            number => BLIND.contains(&number),
        }
    }

    /// Waits for the threads that have not stopped in time: before the calling thread ends.
    pub(super) fn settle(&self) {
        let deadline = Instant::now() + ASLEEP_LIMIT;
        for requested in &self.late {
            let _ = threads::settle(requested, deadline);
        }
    }

    /// Waits until the threads that were asleep are so again. What they look at before may be gone
    /// soon.
    pub(crate) fn wait_until_asleep(&self) {
        let deadline = Instant::now() + ASLEEP_LIMIT;
        for tid in &self.woken {
            while doing(self.pid, *tid) == Doing::Runs
                && !threads::is_ended(self.pid, Pid::from_raw(tid.cast_signed()))
                && Instant::now() < deadline
            {
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }
}

fn code_of_library(tid: u32) -> Vec<Range<u64>> {
    let text = maps::read(tid);
    let text = String::from_utf8_lossy(&text);
    let code = text.lines().filter_map(maps::parse).filter(|line| line.is_executable() && maps::is_library(line.name));
    code.map(|line| line.start..line.end).collect()
}
