//! The boards of sessions ([`wire::board`]), on which processes report that they cannot reach the
//! socket.

use crate::os::sys::Mapping;
use crate::session::traced_process::{Session, SessionId};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::hello::UNKNOWN_CHILD;

/// Maximum number of ended sessions whose boards are still read: children that share a board may
/// outlive its process.
const MAX_ENDED: usize = 64;
/// Interval of reading boards shortly after a report was found.
const READ_INTERVAL: Duration = Duration::from_millis(20);
/// How long boards are read at this interval after a report.
const BUSY_PERIOD: Duration = Duration::from_secs(1);

/// A session, and the pid of its process in the process's own pid namespace.
pub(crate) type Owner = (Arc<Session>, u32);

/// The boards of ended sessions, and when the last report was found.
#[derive(Debug, Default)]
pub struct Boards {
    ended: Vec<Owner>,
    last_report: Option<Instant>,
}

/// A process that reported that it is not recorded.
#[derive(Debug)]
pub struct Found {
    /// Session whose board the process shares.
    pub session: SessionId,
    /// Process id in the recorder's pid namespace; 0 if it is a child that was about to start.
    pub pid: u32,
    /// Whether it is the process of the session, which continues with another program.
    pub is_owner: bool,
    /// Path of the program.
    pub exe: String,
    /// Why the process is not recorded.
    pub why: String,
}

/// Returns why a process that was sent its area does not use it. One that posts no reason has ended,
/// or stopped waiting, or the kernel refused to map the area, or dropped its descriptor, since the
/// numbers were used up.
pub(crate) fn why_unused(mapping: &Mapping) -> &'static str {
    let mut why = "it ended meanwhile, or no longer waited for the recorder, which was busy (HEAPTAPE_ATTACH_MS), or the system refused it a descriptor or memory";
    mapping.header().board.0.drain(|posted| why = posted.reason.text());
    why
}

impl Boards {
    /// Keeps the board of a session that has ended.
    pub fn keep(&mut self, owner: Owner) {
        self.ended.push(owner);
        let old = self.ended.len().saturating_sub(MAX_ENDED);
        self.ended.drain(..old);
    }

    /// Frees the memory of a session all of whose events are stored.
    pub fn stored(&self, id: SessionId) {
        self.ended.iter().filter(|(session, _)| session.id == id).for_each(|(session, _)| session.mapping.empty());
    }

    /// Returns the maximum time until boards are to be read again.
    pub fn deadline(&self) -> Option<Duration> {
        self.last_report.filter(|last_report| last_report.elapsed() < BUSY_PERIOD).map(|_| READ_INTERVAL)
    }

    /// Reads the boards of these sessions and of those that have ended. Returns the processes that
    /// were reported since the last time.
    pub fn read(&mut self, running: impl Iterator<Item = Owner>) -> Vec<Found> {
        let mut all = Vec::new();
        for (session, own_pid) in running.chain(self.ended.iter().cloned()) {
            let process = &session.process;
            let exe = || process.exe.lossy().into_owned();
            let dropped = session.mapping.header().board.0.drain(|posted| {
                let is_owner = posted.pid == own_pid;
                all.push(Found {
                    session: session.id,
                    pid: match posted.pid {
                        UNKNOWN_CHILD => 0,
                        _ if is_owner => process.pid,
                        pid => pid,
                    },
                    is_owner,
                    exe: match posted.path() {
                        b"" => exe(),
                        path => String::from_utf8_lossy(path).into_owned(),
                    },
                    why: posted.reason.text().into(),
                });
            });
            if dropped > 0 {
                let why = format!("{dropped} more processes that it started cannot reach the recorder");
                all.push(Found { session: session.id, pid: process.pid, is_owner: false, exe: exe(), why });
            }
        }
        if !all.is_empty() {
            self.last_report = Some(Instant::now());
        }
        all
    }
}
