//! Signals that reach the command are forwarded to the program, once.
//!
//! The command blocks every signal and reads it from a descriptor. A signal to its process group
//! (Ctrl-C, `kill 0`, `kill -- -PGID`) has reached the program too and is dropped; a signal to the
//! command alone is forwarded. The kernel does not report which of the two it was. So a third
//! process of the same group, which blocks all signals and does nothing, is the witness: a signal
//! that is pending there too was sent to the group.

use crate::os::spawn::{self, Mask};
use crate::os::sys;
use nix::libc;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Bytes of `struct signalfd_siginfo`.
const SIGINFO_BYTES: usize = 128;

/// All signals, blocked for this thread and the processes that it starts.
#[derive(Debug)]
pub(crate) struct Signals {
    file: OwnedFd,
    /// The signal mask with which this process was started.
    pub mask: Mask,
    /// Whether this process was started with SIGCHLD ignored.
    pub ignores_child: bool,
    /// Pids of the witness processes, the newest last. An older one stays until the signals that
    /// came before its successor have been read. Without a witness a signal of the kernel counts as
    /// sent to the group, any other as sent to the command.
    witnesses: Vec<u32>,
    /// Signals that were pending in the newest witness before, because no successor could be
    /// started.
    stale: Mask,
}

/// A signal as it was sent.
#[derive(Clone, Copy, Debug)]
struct ReceivedSignal {
    signal: i32,
    code: i32,
    pid: u32,
    uid: u32,
    value: u64,
}

impl ReceivedSignal {
    fn decode(bytes: &[u8; SIGINFO_BYTES]) -> ReceivedSignal {
        let field = |at: usize, size: usize| {
            bytes[at..at + size].iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte))
        };
        ReceivedSignal {
            signal: field(0, 4) as i32,
            code: field(8, 4) as u32 as i32,
            pid: field(12, 4) as u32,
            uid: field(16, 4) as u32,
            value: field(48, 8),
        }
    }

    /// Returns whether the kernel reports with it that a child has ended, stopped or continued.
    fn is_about_child(&self) -> bool {
        self.signal == libc::SIGCHLD && self.code > 0
    }

    /// Forwards the signal. A signal of `sigqueue` keeps its sender and value; for other signals
    /// the kernel does not allow to name a sender.
    fn send(&self, process: BorrowedFd<'_>) {
        if self.code != libc::SI_QUEUE {
            return spawn::send(process, self.signal, None);
        }
        let mut information = [0; SIGINFO_BYTES];
        let fields = [(0, self.signal as u32), (8, self.code as u32), (16, self.pid), (20, self.uid)];
        for (at, field) in fields {
            information[at..at + 4].copy_from_slice(&field.to_le_bytes());
        }
        information[24..32].copy_from_slice(&self.value.to_le_bytes());
        spawn::send(process, self.signal, Some(&information));
    }
}

impl Signals {
    /// Blocks all signals. SIGCHLD is no longer ignored, since a parent that ignores it does not
    /// receive the wait status of its children.
    pub(crate) fn block_all() -> io::Result<Signals> {
        let mask = spawn::swap_mask(spawn::ALL_SIGNALS);
        // A fault of this process ends it all the same: the kernel doesn't keep such a signal pending.
        let ignores_child = spawn::is_ignored(libc::SIGCHLD);
        spawn::set_ignored(libc::SIGCHLD, false);
        let file = spawn::signal_file(spawn::ALL_SIGNALS)?;
        Ok(Signals { file, mask, ignores_child, witnesses: Vec::new(), stale: 0 })
    }

    /// Returns the descriptor that becomes readable when a signal has arrived.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        sys::fd(&self.file)
    }

    fn read(&self) -> Option<ReceivedSignal> {
        let mut bytes = [0; SIGINFO_BYTES];
        let count = nix::unistd::read(&self.file, &mut bytes).ok()?;
        (count == SIGINFO_BYTES).then(|| ReceivedSignal::decode(&bytes))
    }

    /// Forwards the signals that were pending before the program's process was forked, and starts
    /// to distinguish signals to the group from those to this process. The program's process still
    /// blocks all signals: a signal that it has received itself stays one signal.
    pub(crate) fn start(&mut self, process: BorrowedFd<'_>) {
        loop {
            // A witness that has received one of these signals would make the next one of its kind
            // look like one to the group.
            self.witnesses.drain(..).for_each(end);
            self.witnesses.extend(spawn::idle_child());
            let mut is_clean = true;
            while let Some(received) = self.read() {
                if !received.is_about_child() {
                    received.send(process);
                    is_clean = false;
                }
            }
            if is_clean {
                break;
            }
        }
    }

    /// Forwards the signals that have arrived for the program. `program` is its pid, `survivor`
    /// that of the process that may continue this one.
    pub(crate) fn forward(&mut self, process: BorrowedFd<'_>, program: u32, survivor: Option<u32>) {
        while let Some(received) = self.read() {
            let ReceivedSignal { signal, code, pid, .. } = received;
            // Not forwarded: reports of the kernel about children, the file size limit of this
            // process, and the signal with which the survivor process continued it.
            let is_own = received.is_about_child()
                || (code <= 0 && pid == std::process::id())
                || (signal == libc::SIGCONT && survivor == Some(pid));
            if is_own || self.was_sent_to_group(&received) {
                continue;
            }
            if pid == program && code <= 0 {
                // A signal of the program to its parent is meant for the parent of this process.
                spawn::send_to(nix::unistd::getppid().as_raw() as u32, signal);
            } else {
                received.send(process);
            }
        }
        // Every signal that came before the newest witness was started has been read.
        let old = self.witnesses.len().saturating_sub(1);
        self.witnesses.drain(..old).for_each(end);
    }

    /// Notes that the program has ended: nothing is forwarded from now on. The witnesses end
    /// meanwhile, so that nobody waits for that later.
    pub(crate) fn program_ended(&self) {
        self.witnesses.iter().for_each(|witness| spawn::send_to(*witness, libc::SIGKILL));
    }

    /// Returns whether a signal has arrived that requests the end of a program. Stop signals stop
    /// the command.
    pub(crate) fn has_end_request(&self) -> bool {
        let mut is_requested = false;
        while let Some(received) = self.read() {
            match received.signal {
                libc::SIGHUP | libc::SIGINT | libc::SIGQUIT | libc::SIGTERM | libc::SIGALRM => is_requested = true,
                libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU => spawn::stop(received.signal),
                _ => {}
            }
        }
        is_requested
    }

    fn was_sent_to_group(&mut self, received: &ReceivedSignal) -> bool {
        let bit = spawn::bit(received.signal);
        let Some(newest) = self.witnesses.last() else { return received.code > 0 };
        spawn::wait_for_group_signals();
        let Some(pending) = pending_of(*newest).filter(|_| self.stale & bit == 0) else { return received.code > 0 };
        if pending & bit == 0 {
            let older = &self.witnesses[..self.witnesses.len() - 1];
            return older.iter().any(|witness| pending_of(*witness).is_some_and(|mask| mask & bit != 0));
        }
        // A pending signal stays pending: the next one of its kind needs a new witness.
        match spawn::idle_child() {
            Ok(child) => {
                self.witnesses.push(child);
                self.stale = 0;
            }
            Err(_) => self.stale |= bit,
        }
        true
    }
}

/// Returns the signals that are pending for a process, from the kernel.
fn pending_of(pid: u32) -> Option<Mask> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"))?;
    Mask::from_str_radix(line.trim(), 16).ok()
}

fn end(witness: u32) {
    spawn::send_to(witness, libc::SIGKILL);
    spawn::reap(witness);
}

impl Drop for Signals {
    fn drop(&mut self) {
        while self.read().is_some() {}
        self.witnesses.drain(..).for_each(end);
        // The program's file size limit must not end the command while it writes its summary.
        spawn::swap_mask(self.mask | spawn::bit(libc::SIGXFSZ));
    }
}
