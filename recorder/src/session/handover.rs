//! What a command holds of the processes that its survivor process records, so that another one can
//! continue with them when that one is killed.

use formats::recording::ProcessInfo;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

/// A process that is recorded.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct About {
    /// The entry of the process in `recording.json`.
    pub info: ProcessInfo,
    /// Process id in the process's own pid namespace.
    pub hello_pid: u32,
    /// User id of the process.
    pub uid: u32,
}

/// A recorded process with its descriptors.
#[derive(Debug)]
pub struct Held {
    pub about: About,
    /// Descriptor of its shared memory.
    pub area: OwnedFd,
    pub process: OwnedFd,
}

/// What a command must know of the recorded processes.
#[derive(Debug)]
pub enum Handover {
    /// A process is recorded.
    Begun(Box<Held>),
    /// The segment of a process in this folder has ended.
    Over(String),
}

#[derive(Debug)]
pub struct CommandLink {
    pub channel: OwnedFd,
    /// Sends a handover. Returns false when the channel is full.
    pub send: fn(&OwnedFd, &Handover) -> bool,
}

/// The handovers to the command, in order. Without a command they are dropped.
#[derive(Debug, Default)]
pub struct HandoverQueue {
    link: Option<CommandLink>,
    waiting: VecDeque<Handover>,
}

impl HandoverQueue {
    pub fn connect(&mut self, link: CommandLink) {
        self.link = Some(link);
    }

    /// Sends a handover now, or when the channel has space again.
    pub fn push(&mut self, handover: Handover) {
        if self.link.is_some() {
            self.waiting.push_back(handover);
            self.send();
        }
    }

    /// Sends the handovers for which the channel had no space.
    pub fn send(&mut self) {
        let Some(link) = &self.link else { return };
        while self.waiting.front().is_some_and(|handover| (link.send)(&link.channel, handover)) {
            self.waiting.pop_front();
        }
    }
}
