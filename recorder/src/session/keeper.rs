//! What outlives a recorder. The descriptors of each recorded process are with a *keeper*, so that
//! another recorder continues with the process when this one ends or is killed. The command keeps
//! them for its survivor process, the fd store (or systemd) for a daemon.
//!
//! A process has three: its area, itself (a pidfd), and a file in memory with what the recorder
//! knows [`About`] it. The keeper never reads that file, so the recorder changes it without a word,
//! and no limit of a message applies to it: a command line may have 2 MiB.

use crate::inject::patch::Noted;
use crate::os::sys;
use formats::recording::ProcessInfo;
use nix::fcntl::{FcntlArg, fcntl};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// Number of descriptors of a process.
pub const FILES: usize = 3;

/// What the next recorder must know of a process, and cannot read from the kernel.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct About<N> {
    /// The process as this recorder lists it.
    pub info: ProcessInfo,
    /// The kernel's name of it (`comm`).
    pub name: String,
    /// Process id in the process's own pid namespace.
    pub hello_pid: u32,
    pub uid: u32,
    /// What is hooked inside the program.
    pub hooks: Noted,
    /// What only recorders of this kind know.
    pub note: N,
}

/// The file in memory with the [`About`] of a process.
///
/// It begins with the offset and the length of the current text. A new text is written beside that,
/// and then the first 16 bytes, which lie in one page: a SIGKILL leaves the old text or the new one.
#[derive(Debug)]
pub struct AboutFile(File);

/// Length of the offset and the length.
const HEAD: u64 = 16;

impl AsFd for AboutFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AboutFile {
    /// # Errors
    /// No memory or descriptor is left.
    pub fn new() -> io::Result<AboutFile> {
        Ok(AboutFile(File::from(sys::memory_file(&[0; HEAD as usize])?)))
    }

    fn head(&self) -> io::Result<(u64, u64)> {
        let mut head = [0; HEAD as usize];
        self.0.read_exact_at(&mut head, 0)?;
        let (offset, length) = head.split_at(8);
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
        Ok((number(offset), number(length)))
    }

    pub fn write<N: Serialize>(&self, about: &About<N>) -> io::Result<()> {
        let text = serde_json::to_vec(about)?;
        let length = text.len() as u64;
        let (offset, old) = self.head()?;
        let offset = if HEAD + length <= offset { HEAD } else { HEAD.max(offset + old) };
        self.0.write_all_at(&text, offset)?;
        self.0.write_all_at(&[offset.to_le_bytes(), length.to_le_bytes()].concat(), 0)
    }

    pub fn read<N: DeserializeOwned>(&self) -> io::Result<About<N>> {
        let (offset, length) = self.head()?;
        let end = offset.checked_add(length).filter(|end| self.0.metadata().is_ok_and(|file| *end <= file.len()));
        let length = end.and_then(|_| usize::try_from(length).ok()).ok_or(io::ErrorKind::InvalidData)?;
        let mut text = vec![0; length];
        self.0.read_exact_at(&mut text, offset)?;
        Ok(serde_json::from_slice(&text)?)
    }
}

/// A recorder's entry of a process with the keeper.
#[derive(Debug)]
pub struct Entry {
    pub key: String,
    pub about: AboutFile,
}

/// A process that another recorder left, from the keeper.
#[derive(Debug)]
pub struct Held<N> {
    pub entry: Entry,
    pub about: About<N>,
    pub area: OwnedFd,
    pub process: OwnedFd,
}

/// What a recorder asks of a keeper. The descriptors of a process come with its entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Keep these descriptors under this key.
    Keep(String),
    /// Close those of this key.
    Release(String),
}

/// The recorder's way to its keeper.
pub trait Keeper {
    /// Returns whether there is one.
    fn is_there(&self) -> bool;

    /// Sends a request.
    ///
    /// # Errors
    /// It cannot be sent, also not later.
    fn send(&mut self, request: Request, files: &[BorrowedFd<'_>]) -> io::Result<()>;
}

/// Makes the entry of a process. Without a keeper there is none.
pub fn keep<N: Serialize>(
    keeper: &mut dyn Keeper,
    key: String,
    about: &About<N>,
    area: &OwnedFd,
    process: &OwnedFd,
) -> Option<Entry> {
    if !keeper.is_there() {
        return None;
    }
    let kept = AboutFile::new().and_then(|file| {
        file.write(about)?;
        let files = [area.as_fd(), process.as_fd(), file.as_fd()];
        keeper.send(Request::Keep(key.clone()), &files)?;
        Ok(Entry { key, about: file })
    });
    kept.inspect_err(|error| tracing::warn!("process {} is lost with this recorder: {error}", about.info.pid)).ok()
}

/// Removes the entry of a process that is recorded no more.
pub fn release(keeper: &mut dyn Keeper, entry: &Entry) {
    let _ = keeper.send(Request::Release(entry.key.clone()), &[]);
}

#[derive(Debug, Default)]
pub struct Store(pub BTreeMap<String, Vec<OwnedFd>>);

impl Store {
    /// Does what the recorder asks.
    pub fn obey(&mut self, request: Request, files: Vec<OwnedFd>) {
        match request {
            Request::Keep(key) => drop(self.0.insert(key, files)),
            Request::Release(key) => drop(self.0.remove(&key)),
        }
    }

    /// Returns the processes, for the next recorder.
    pub fn into_held<N: DeserializeOwned>(self) -> Vec<Held<N>> {
        self.0.into_iter().filter_map(|(key, files)| held(key, files)).collect()
    }
}

/// Returns the process of these descriptors, in any order: systemd keeps none. Only a pidfd has no
/// seals, and only an [`AboutFile`] says something.
pub fn held<N: DeserializeOwned>(key: String, files: Vec<OwnedFd>) -> Option<Held<N>> {
    let has_seals = |file: &OwnedFd| fcntl(file, FcntlArg::F_GET_SEALS).is_ok();
    let (sealed, others): (Vec<_>, Vec<_>) = files.into_iter().partition(has_seals);
    let (mut area, mut found) = (None, None);
    for file in sealed {
        let file = AboutFile(File::from(file));
        match file.read() {
            Ok(about) => found = Some((file, about)),
            Err(_) => area = Some(OwnedFd::from(file.0)),
        }
    }
    let (file, about) = found?;
    Some(Held { entry: Entry { key, about: file }, about, area: area?, process: others.into_iter().next()? })
}

/// The command's end of a channel, for its survivor process.
#[derive(Debug)]
pub struct CommandLink {
    pub channel: OwnedFd,
    /// Sends a request without waiting. Returns false when the channel is full.
    pub send: fn(&OwnedFd, &Request, &[BorrowedFd<'_>]) -> bool,
}

/// The command as the keeper of its survivor process, which must not wait for it: it may be stopped.
/// What the channel has no space for waits here.
#[derive(Debug, Default)]
pub(crate) struct CommandKeeper {
    link: Option<CommandLink>,
    waiting: VecDeque<(Request, Vec<OwnedFd>)>,
}

impl CommandKeeper {
    pub(crate) fn connect(&mut self, link: CommandLink) {
        self.link = Some(link);
    }

    pub(crate) fn send_waiting(&mut self) {
        let Some(link) = &self.link else { return };
        let send = |(request, files): &(Request, Vec<OwnedFd>)| {
            (link.send)(&link.channel, request, &files.iter().map(AsFd::as_fd).collect::<Vec<_>>())
        };
        while self.waiting.front().is_some_and(send) {
            self.waiting.pop_front();
        }
    }
}

impl Keeper for CommandKeeper {
    fn is_there(&self) -> bool {
        self.link.is_some()
    }

    fn send(&mut self, request: Request, files: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_waiting();
        let Some(link) = &self.link else { return Ok(()) };
        if !self.waiting.is_empty() || !(link.send)(&link.channel, &request, files) {
            let files = files.iter().map(BorrowedFd::try_clone_to_owned).collect::<io::Result<_>>()?;
            self.waiting.push_back((request, files));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::sys::Mapping;

    fn about(pid: u32, argument: &str) -> About<String> {
        let info = ProcessInfo { pid, argv: vec![argument.into()], ..ProcessInfo::default() };
        let (name, hooks, note) = (String::new(), Noted::default(), "trace".to_owned());
        About { info, name, hello_pid: pid, uid: 0, hooks, note }
    }

    #[test]
    fn descriptors_of_a_process_are_told_apart_in_any_order() {
        let process = || sys::process(std::process::id()).unwrap_or_else(|error| panic!("{error}"));
        let params = wire::area::Params { ring_bytes: 4096, first_ring_shift: 0, slots: 1, nodes: 16 };
        let area = || Mapping::create(params).unwrap_or_else(|error| panic!("{error}")).1;
        let file = || {
            let file = AboutFile::new().unwrap_or_else(|error| panic!("{error}"));
            file.write(&about(7, "")).unwrap_or_else(|error| panic!("{error}"));
            OwnedFd::from(file.0)
        };
        let sealed = area();
        sys::seal(&sealed);
        for files in [vec![sealed, process(), file()], vec![file(), area(), process()], vec![process(), file(), area()]]
        {
            let held = held::<String>("7-0".into(), files).unwrap_or_else(|| panic!("no process was found"));
            assert!(Mapping::of(&held.area, params).is_ok());
            assert!(fcntl(&held.process, FcntlArg::F_GET_SEALS).is_err());
            assert_eq!((held.about.info.pid, &*held.about.note, &*held.entry.key), (7, "trace", "7-0"));
        }
        assert!(held::<String>("7-0".into(), vec![process(), area()]).is_none());
        assert!(held::<String>("7-0".into(), vec![process(), process(), file()]).is_none());
    }

    #[test]
    fn last_text_is_read_and_the_file_stays_small() {
        let file = AboutFile::new().unwrap_or_else(|error| panic!("{error}"));
        assert!(file.read::<String>().is_err(), "it says nothing yet");
        for round in 0..100 {
            let argument = "x".repeat(70_000 + round % 7);
            file.write(&about(round as u32, &argument)).unwrap_or_else(|error| panic!("{error}"));
            let read = file.read::<String>().unwrap_or_else(|error| panic!("{error}"));
            assert_eq!((read.info.pid, read.info.argv), (round as u32, vec![argument]));
        }
        assert!(file.0.metadata().is_ok_and(|metadata| metadata.len() < 4 * 71_000));
    }
}
