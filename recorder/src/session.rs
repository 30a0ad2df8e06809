//! One process image from hello to goodbye: what all stages know of it.

use crate::clock::Clock;
use crate::options::Options;
use crate::sys::Mapping;
use formats::recording::Exit;
use formats::tape::{self, END_EXEC, END_EXITED, END_GONE, END_RUNNING, END_SIGNALLED};
use std::path::PathBuf;
use std::sync::Arc;

/// Number of a session within this recorder.
pub type SessionId = u32;

/// One process image.
#[derive(Debug)]
pub struct Session {
    /// Its number.
    pub id: SessionId,
    /// Its area.
    pub mapping: Arc<Mapping>,
    /// The tape's first record.
    pub process: tape::Process,
    /// Its folder.
    pub folder: PathBuf,
    /// Its clock.
    pub clock: Clock,
    /// What was chosen.
    pub options: Arc<Options>,
    /// The image that it was forked from: session, folder name and tick of the fork (0: not known).
    pub forked: Option<(SessionId, String, u64)>,
    /// Whether its thread ids are those of another pid namespace.
    pub is_namespaced: bool,
}

/// How an image ended: one of the tape's `END_` numbers, and the code or signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// One of the `END_` numbers.
    pub reason: u8,
    /// Exit code or signal number.
    pub status: u32,
}

impl End {
    /// It was still running.
    pub const RUNNING: End = End { reason: END_RUNNING, status: 0 };
    /// It went on with another program.
    pub const EXEC: End = End { reason: END_EXEC, status: 0 };
    /// It is gone; how is not known.
    pub const GONE: End = End { reason: END_GONE, status: 0 };

    /// From what `wait` says.
    pub fn of_status(status: i32) -> End {
        let (code, signal) = (status >> 8 & 0xff, status & 0x7f);
        if signal == 0 {
            End { reason: END_EXITED, status: code as u32 }
        } else {
            End { reason: END_SIGNALLED, status: signal as u32 }
        }
    }

    /// For `recording.json`.
    pub fn exit(self) -> Exit {
        match self.reason {
            END_EXITED => Exit::Code(self.status),
            END_SIGNALLED => Exit::Signal(self.status),
            END_EXEC => Exit::Exec,
            END_RUNNING => Exit::Running,
            _ => Exit::Unknown,
        }
    }
}
