//! The boards of sessions ([`wire::board`]): what processes say that cannot reach the socket.

use crate::session::{Session, SessionId};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Ended sessions whose boards are read: children that share a board may outlive the process that
/// it belongs to.
const MOST_ENDED: usize = 64;
/// How often boards are read after something was found, and for how long.
const OFTEN: Duration = Duration::from_millis(20);
const BUSY: Duration = Duration::from_secs(1);

/// A session and its process, as that sees itself.
pub type Owner = (Arc<Session>, u32);

/// Boards of ended sessions, and how often boards are to be read.
#[derive(Debug, Default)]
pub struct Boards {
    ended: Vec<Owner>,
    found: Option<Instant>,
}

/// A process that is not recorded.
#[derive(Debug)]
pub struct Found {
    /// Process id, as the recorder knows it.
    pub pid: u32,
    /// Whether it is the board's own process, which goes on with another program.
    pub is_owner: bool,
    /// Path of its program.
    pub exe: String,
    /// Why it is not recorded.
    pub why: String,
}

impl Boards {
    /// A session has ended.
    pub fn keep(&mut self, owner: Owner) {
        self.ended.push(owner);
        let old = self.ended.len().saturating_sub(MOST_ENDED);
        self.ended.drain(..old);
    }

    /// All events of a session are stored: nobody reads the rest of its memory any more.
    pub fn stored(&self, id: SessionId) {
        self.ended.iter().filter(|(session, _)| session.id == id).for_each(|(session, _)| session.mapping.empty());
    }

    /// Longest time until boards are to be read again.
    pub fn deadline(&self) -> Option<Duration> {
        self.found.filter(|found| found.elapsed() < BUSY).map(|_| OFTEN)
    }

    /// Reads the boards of these sessions and of those that have ended.
    pub fn read(&mut self, running: impl Iterator<Item = Owner>) -> Vec<Found> {
        let mut all = Vec::new();
        for (session, own_pid) in running.chain(self.ended.iter().cloned()) {
            let process = &session.process;
            let exe = || process.exe.lossy().into_owned();
            let missed = session.mapping.header().board.0.drain(|posted| {
                let is_owner = posted.pid == own_pid;
                all.push(Found {
                    pid: if is_owner { process.pid } else { posted.pid },
                    is_owner,
                    exe: match posted.path() {
                        b"" => exe(),
                        path => String::from_utf8_lossy(path).into_owned(),
                    },
                    why: posted.reason.text().into(),
                });
            });
            if missed > 0 {
                let why = format!("{missed} more processes that it started cannot reach the recorder");
                all.push(Found { pid: process.pid, is_owner: false, exe: exe(), why });
            }
        }
        if !all.is_empty() {
            self.found = Some(Instant::now());
        }
        all
    }
}
