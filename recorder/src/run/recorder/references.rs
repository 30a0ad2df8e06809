//! Reads the references of a process that waits at its end, in a thread of its own. Its other
//! threads are stopped meanwhile: they go on when ours ends, since the kernel then lets go of what it
//! traced.

use super::Recorder;
use crate::digest::process::ProcessCommand;
use crate::os::crash;
use crate::os::registers::user_regs_struct;
use crate::pipeline::drain::Command;
use crate::pipeline::residency;
use crate::references::{Snapshot, StoppedThread, take};
use crate::run::running_process::threads;
use crate::session::traced_process::{Session, SessionId};
use crate::target::maps;
use crossbeam_channel::{Sender, bounded};
use formats::tape::RESIDENCY_EXIT;

use nix::unistd::Pid;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use wire::area::ANNOUNCE_REFERENCES;

/// How long a thread may take to stop.
const STOP_LIMIT: Duration = Duration::from_millis(20);
/// How long the digest may take to answer: its queue may be full.
const DIGEST_LIMIT: Duration = Duration::from_secs(10);
/// Maximum number of threads that are stopped.
const MAX_THREADS: usize = 4096;

impl Recorder {
    /// Reads the memory of a process that is about to end, which waits until the socket is closed.
    pub(super) fn about_to_exit(&mut self, pid: u32, is_before: bool, socket: OwnedFd) {
        let running = self.running.iter_mut().find(|running| running.session.process.pid == pid);
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
        if let Err(why) = read(&session, &commands, since) {
            tracing::debug!(pid = session.process.pid, "references: {why}");
            let text = format!("which block holds which could not be read: {why}");
            let _ = commands.send(Command::Process(session.id, ProcessCommand::Note(text)));
        }
        drop(commands);
        let pid = session.process.pid;
        if let Some(pages) = pages {
            let _ = pages.send(residency::Request::Exit { pid, socket });
        }
    }
}

/// Reads the references of a process.
///
/// # Errors
/// Why there are none.
fn read(session: &Session, commands: &Sender<Command>, since: Instant) -> Result<(), String> {
    let (threads, thread_count) = stop(session.process.pid);
    let blocks = live_blocks(commands, session.id).ok_or("the live blocks are not known")?;
    let (session, cause) = (session, RESIDENCY_EXIT);
    take(Snapshot { session, blocks, threads: &threads, thread_count, cause, since }).map_err(|error| error.to_string())
}

/// Returns the live blocks once all events so far are known.
fn live_blocks(commands: &Sender<Command>, id: SessionId) -> Option<crate::heap::live::BlocksAt> {
    let (reply, answer) = bounded(1);
    commands.send(Command::ProcessSettled(id, ProcessCommand::LiveBlocks(reply))).ok()?;
    answer.recv_timeout(DIGEST_LIMIT).ok().flatten()
}

/// Stops all threads that can be stopped. Returns what they refer to, and the number of threads. The
/// one that waits for us is not stopped: what it refers to is on its stack.
fn stop(pid: u32) -> (Vec<StoppedThread>, u32) {
    let mut known: Vec<Pid> = Vec::new();
    let mut stopped = Vec::new();
    let main_stack = main_stack(pid);
    // Threads that run may make others meanwhile.
    loop {
        let new: Vec<Pid> = threads::list(pid).into_iter().filter(|tid| !known.contains(tid)).collect();
        if new.is_empty() || known.len() >= MAX_THREADS {
            return (stopped, known.len() as u32);
        }
        for tid in new {
            known.push(tid);
            let number = tid.as_raw().cast_unsigned();
            if number != pid && waits_on(pid, number, &main_stack) {
                continue;
            }
            if let Some(registers) = threads::stop_briefly(pid, tid, STOP_LIMIT) {
                stopped.push(thread(number, &registers));
            } else if let Some(stack_pointer) = waiting_at(pid, number) {
                stopped.push(StoppedThread { tid: number, stack_pointer, ..StoppedThread::default() });
            }
        }
    }
}

/// Returns the range of the main thread's stack; an empty one if it is not known.
fn main_stack(pid: u32) -> Range<u64> {
    let text = maps::read(pid);
    let text = String::from_utf8_lossy(&text);
    let stack = text.lines().filter_map(maps::parse).find(|line| line.name == "[stack]");
    stack.map_or(0..0, |line| line.start..line.end)
}

/// Returns whether a thread waits in a system call that was given an address in a range (proc(5),
/// `syscall`). A stop makes the kernel begin the call again, and it looks at that memory once more.
/// `main` may have returned, and other functions have its frame by now: glibc ends a program whose
/// barrier holds anything else.
fn waits_on(pid: u32, tid: u32, range: &Range<u64>) -> bool {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).unwrap_or_default();
    // The number of the call, six arguments, the stack pointer, the instruction.
    let arguments = text.split_whitespace().skip(1).take(6);
    arguments
        .filter_map(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok())
        .any(|word| range.contains(&word))
}

fn thread(tid: u32, own: &user_regs_struct) -> StoppedThread {
    let registers = vec![
        own.rax, own.rbx, own.rcx, own.rdx, own.rsi, own.rdi, own.rbp, own.rsp, own.r8, own.r9, own.r10, own.r11,
        own.r12, own.r13, own.r14, own.r15,
    ];
    StoppedThread { tid, stack_pointer: own.rsp, thread_pointer: own.fs_base, registers }
}

/// Returns the stack pointer of a thread that waits in a system call (proc(5), `syscall`).
fn waiting_at(pid: u32, tid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/syscall")).ok()?;
    let mut fields = text.split_whitespace().rev();
    let stack_pointer = fields.nth(1)?;
    u64::from_str_radix(stack_pointer.strip_prefix("0x")?, 16).ok()
}
