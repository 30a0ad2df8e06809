//! Signals of the command: whatever reaches it reaches the program instead, once.
//!
//! The command blocks every signal and reads it from a descriptor. A signal to its process group
//! (Ctrl-C, `kill 0`, `kill -- -PGID`) has reached the program too and is dropped; one to the
//! command alone is sent on. The kernel does not say which of the two it was. So a third process of
//! the same group, which blocks all signals and does nothing, is looked at: a signal that is
//! pending there too was for the group.

use crate::crash;
use crate::spawn::{self, Mask};
use crate::sys;
use nix::libc;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

/// Bytes of `struct signalfd_siginfo`.
const RECORD: usize = 128;

/// All signals, held back from this thread and what it starts.
#[derive(Debug)]
pub struct Signals {
    file: OwnedFd,
    /// The mask that this process was started with.
    pub mask: Mask,
    /// Whether it was started with SIGCHLD ignored.
    pub ignores_child: bool,
    /// Pids of the processes that show what was sent to the group, the newest last. An older one
    /// stays until the signals that came before its successor are read. Without one a signal of the
    /// kernel counts as the group's, any other as our own.
    witnesses: Vec<u32>,
    /// Signals that are pending in the newest witness from before, because no successor could be
    /// started.
    stale: Mask,
}

/// A signal as it was sent.
#[derive(Clone, Copy, Debug)]
struct Received {
    signal: i32,
    code: i32,
    pid: u32,
    uid: u32,
    value: u64,
}

impl Received {
    fn decode(bytes: &[u8; RECORD]) -> Received {
        let number = |at: usize, size: usize| {
            bytes[at..at + size].iter().rev().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte))
        };
        Received {
            signal: number(0, 4) as i32,
            code: number(8, 4) as u32 as i32,
            pid: number(12, 4) as u32,
            uid: number(16, 4) as u32,
            value: number(48, 8),
        }
    }

    /// Whether the kernel says with it that a child has ended, stopped or gone on.
    fn is_of_children(&self) -> bool {
        self.signal == libc::SIGCHLD && self.code > 0
    }

    /// Sends it on. What `sigqueue` sent keeps its sender and value; of other signals the kernel
    /// lets nobody say who sent them.
    fn send(&self, process: BorrowedFd<'_>) {
        if self.code != libc::SI_QUEUE {
            return spawn::send(process, self.signal, None);
        }
        let mut information = [0; RECORD];
        let fields = [(0, self.signal as u32), (8, self.code as u32), (16, self.pid), (20, self.uid)];
        for (at, field) in fields {
            information[at..at + 4].copy_from_slice(&field.to_le_bytes());
        }
        information[24..32].copy_from_slice(&self.value.to_le_bytes());
        spawn::send(process, self.signal, Some(&information));
    }
}

impl Signals {
    /// Blocks all signals. SIGCHLD is no longer ignored, since a parent that ignores it learns
    /// nothing of its children's ends.
    pub fn hold() -> io::Result<Signals> {
        let mask = spawn::swap_mask(spawn::ALL);
        // Faults of this process must reach their handler, which leaves those that were sent
        // pending.
        crash::forward_faults(true);
        crash::unblock_faults();
        let ignores_child = spawn::is_ignored(libc::SIGCHLD);
        spawn::set_ignored(libc::SIGCHLD, false);
        let file = spawn::signal_file(spawn::ALL)?;
        Ok(Signals { file, mask, ignores_child, witnesses: Vec::new(), stale: 0 })
    }

    /// Becomes readable when a signal has come.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        sys::fd(&self.file)
    }

    fn read(&self) -> Option<Received> {
        let mut bytes = [0; RECORD];
        let count = nix::unistd::read(&self.file, &mut bytes).ok()?;
        (count == RECORD).then(|| Received::decode(&bytes))
    }

    /// Sends on what was pending before the program's process was forked, and begins to tell the
    /// group's signals from those to this process. The program's process blocks all signals so far:
    /// what it has got itself stays one signal.
    pub fn start(&mut self, process: BorrowedFd<'_>) {
        loop {
            // A witness that has seen one of these signals would take the next one of its kind for
            // the group's.
            self.witnesses.drain(..).for_each(end);
            self.witnesses.extend(spawn::idle_child());
            let mut is_clean = true;
            while let Some(received) = self.read() {
                if !received.is_of_children() {
                    received.send(process);
                    is_clean = false;
                }
            }
            if is_clean {
                break;
            }
        }
    }

    /// Sends on what has come for the program. `program` is its pid, `survivor process` that of the
    /// process that may wake this one.
    pub fn pass_on(&mut self, process: BorrowedFd<'_>, program: u32, survivor: Option<u32>) {
        while let Some(received) = self.read() {
            let Received { signal, code, pid, .. } = received;
            // What the kernel says of our children, our own limit on file sizes, and what the
            // survivor process woke us with.
            let is_own = received.is_of_children()
                || (code <= 0 && pid == std::process::id())
                || (signal == libc::SIGCONT && survivor == Some(pid));
            if is_own || self.was_for_group(&received) {
                continue;
            }
            if pid == program && code <= 0 {
                // What the program sends to its parent is meant for ours.
                spawn::send_to(nix::unistd::getppid().as_raw() as u32, signal);
            } else {
                received.send(process);
            }
        }
        // Everything that came before the newest witness was started has been read.
        let old = self.witnesses.len().saturating_sub(1);
        self.witnesses.drain(..old).for_each(end);
        crash::unblock_faults();
    }

    /// Whether a signal has come that asks a program to end. Stop signals stop the command.
    pub fn asks_for_end(&self) -> bool {
        let mut asks = false;
        while let Some(received) = self.read() {
            match received.signal {
                libc::SIGHUP | libc::SIGINT | libc::SIGQUIT | libc::SIGTERM | libc::SIGALRM => asks = true,
                libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU => spawn::stop(received.signal),
                _ => {}
            }
        }
        asks
    }

    fn was_for_group(&mut self, received: &Received) -> bool {
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

/// Signals pending for a process, as the kernel says.
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
        crash::forward_faults(false);
        while self.read().is_some() {}
        self.witnesses.drain(..).for_each(end);
        // The program's file size limit is not to end the command while it writes about the
        // program.
        spawn::swap_mask(self.mask | spawn::bit(libc::SIGXFSZ));
    }
}
