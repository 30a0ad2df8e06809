//! What recorders decide on their own about the processes that they admit.

use super::{Admissions, Offer, Who};
use crate::inject::patch::Plan;
use crate::os::sys::Mapping;
use crate::pipeline::stages::Stages;
use crate::session::event_rate::Limit;
use crate::session::keeper::{About, Entry, Keeper};
use crate::session::listener::Client;
use crate::session::options::Options;
use crate::session::traced_process::{Ids, Session, SessionId};
use crate::target::proc::Process;
use formats::recording::ProcessInfo;
use formats::tape::Origin;
use formats::tape::journal::Position;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How a process is recorded.
#[derive(Debug)]
pub struct Terms<D> {
    pub options: Arc<Options>,
    pub limit: Limit,
    /// The file that hands its live blocks over to the next recorder.
    pub carried_over: Option<PathBuf>,
    /// Folders of its flight recording that the last recorder wrote, oldest first.
    pub earlier: Vec<PathBuf>,
    /// Folder of its parent in the same recording, if another recorder left the process.
    pub parent: Option<String>,
    /// What the policy itself needs at the start.
    pub decision: D,
}

impl<D> Terms<D> {
    /// Returns terms without a limit or a past.
    pub fn new(options: Arc<Options>, decision: D) -> Terms<D> {
        Terms { options, limit: Limit::default(), carried_over: None, earlier: Vec::new(), parent: None, decision }
    }
}

/// The process that another one was forked from, or that started it.
#[derive(Clone, Debug)]
pub struct Parent {
    pub id: SessionId,
    /// Name of its folder.
    pub folder: String,
    pub worker: usize,
    /// Its session, if it has not ended.
    pub session: Option<Arc<Session>>,
    /// Whether all of its blocks are known.
    pub knows_all_blocks: bool,
}

impl Parent {
    pub fn running(session: &Arc<Session>, worker: usize) -> Parent {
        let folder = session.folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let knows_all_blocks = session.knows_all_blocks();
        Parent { id: session.id, folder, worker, session: Some(Arc::clone(session)), knows_all_blocks }
    }
}

/// What failed in an admission.
#[derive(Debug)]
pub enum Failure {
    /// The memory of its rings.
    Area(io::Error),
    Folder(io::Error),
}

/// A process whose session starts.
#[derive(Debug)]
pub struct Started<D> {
    pub session: Arc<Session>,
    /// The process as a recorder lists it.
    pub info: ProcessInfo,
    pub decision: D,
    /// Descriptor that becomes readable when the process ends.
    pub process: OwnedFd,
    /// Its entry with the keeper.
    pub entry: Option<Entry>,
    pub ids: Ids,
    pub worker: usize,
    /// The program that it executes: device and inode.
    pub program: Option<(u64, u64)>,
    /// Page faults of its children before it attached.
    pub child_faults: u64,
    /// The kernel's name of it (`comm`).
    pub comm: Vec<u8>,
}

/// What a recorder decides, and what it is told.
pub trait Policy: Sized {
    /// What it keeps of its decision until the start.
    type Decision: std::fmt::Debug;
    /// What it leaves to the next recorder besides what all of them do.
    type Note: Serialize + DeserializeOwned + std::fmt::Debug;

    /// Maximum number of bytes of a perf map that are read.
    const MAX_MAP_BYTES: u64;
    /// Variables of a process's environment that decide.
    const VARIABLES: &'static [&'static str];

    fn admissions(&mut self) -> &mut Admissions<Self::Decision, Self::Note>;
    fn stages(&self) -> &Stages;
    fn keeper(&mut self) -> &mut dyn Keeper;

    /// Decides how a program is recorded that waits, or refuses it with one of wire's `REFUSED_`
    /// values. Why, the policy itself notes.
    fn decide(&mut self, client: &Client, who: &Who) -> Result<Terms<Self::Decision>, u32>;
    /// Decides how to continue with a process of another recorder.
    fn decide_again(&mut self, about: &About<Self::Note>, process: &Process) -> io::Result<Terms<Self::Decision>>;
    fn folder(&mut self, decision: &Self::Decision, pid: u32, comm: &[u8]) -> io::Result<PathBuf>;
    /// Returns the recorded process from which a new one comes.
    fn parent(&self, client: &Client, ppid: u32) -> Option<Parent>;
    /// Returns the hooks that a child has from a parent that has ended.
    fn inherited(&self, parent: &Parent) -> Plan;
    fn origin(&self, client: &Client, has_parent: bool) -> Origin;
    /// Returns the time that the search for allocators may take.
    fn search_budget(&self) -> Duration;
    /// Changes an area before its process gets it.
    fn prepare(&self, decision: &Self::Decision, mapping: &Mapping);
    /// Returns what the next recorder is to know of the decision.
    fn note(&self, decision: &Self::Decision) -> Self::Note;
    /// Returns how far the journal of another recorder says that the rings of a process were read.
    fn positions(&self, about: &About<Self::Note>) -> Vec<Position>;

    /// The process asks again, so it executes another program: its old area has all that it
    /// published.
    fn executes(&mut self, pid: u32);
    fn failed(&mut self, client: &Client, process: &Process, failure: Failure);
    /// A process runs unrecorded that did not wait for its area, or could not use it.
    fn gave_up(&mut self, offer: Offer<Self::Decision>);
    /// Another recorder's process is recorded no more: it never had its area, or the error says why.
    fn lost(&mut self, about: About<Self::Note>, error: Option<io::Error>);
    /// Lists a process, before anything of it is written. Returns a note for its recording.
    fn started(&mut self, started: Started<Self::Decision>) -> Option<String>;
}
