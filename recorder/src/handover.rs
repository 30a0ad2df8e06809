//! What a command holds of the processes that its survivor process records, so that another one can
//! go on with them when that one is killed.

use formats::recording::ProcessInfo;
use serde::{Deserialize, Serialize};
use std::os::fd::OwnedFd;

/// A process that is recorded.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct About {
    /// What the recording says of it.
    pub info: ProcessInfo,
    /// Process id in the process's own pid namespace.
    pub hello_pid: u32,
    /// User id of the process.
    pub uid: u32,
}

/// A recorded process with its descriptors.
#[derive(Debug)]
pub struct Held {
    /// Which process it is.
    pub about: About,
    /// Descriptor of its shared memory.
    pub area: OwnedFd,
    /// Descriptor of the process.
    pub process: OwnedFd,
}

/// What a command must know of the recorded processes.
#[derive(Debug)]
pub enum Handover {
    /// A process is recorded.
    Begun(Box<Held>),
    /// The part of a process in this folder is over.
    Over(String),
}
