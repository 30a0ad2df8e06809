//! The command's side of a question about a process that `record` or `attach` records.
//!
//! Nobody has a list of all recorders, so all that may record the process are asked at once. The right
//! one says at once that it has begun. Any other one closes the connection, and one that is stopped
//! says nothing: it delays nobody but who asks for its own processes.

use crate::os::{poll, sys};
use crate::session::{listener, socket_dir};
use crate::target::{maps, proc};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, SockType, getsockopt, recv, send, sockopt};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use wire::hello::{Hello, ORIGIN_REFERENCES, ORIGIN_SNAPSHOT};
use wire::limits::ENV_SOCKET;

/// Maximum length of a message, in bytes.
const MAX_MESSAGE: usize = 64 << 10;
/// How long a recorder may take to say that it has begun: it may be busy with the start of programs.
const BEGIN_LIMIT: Duration = Duration::from_secs(20);
/// How long one that is stopped is waited for: a debugger stops it for a moment.
const STOPPED_LIMIT: Duration = Duration::from_secs(1);
/// How long we ask again while the references are read for somebody else.
const BUSY_LIMIT: Duration = Duration::from_secs(60);
/// Interval of the looks at recorders that say nothing.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// What a recorder is asked about a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// To write what is known of it.
    Snapshot,
    /// To read and write which block holds which, too.
    References,
}

/// What a recorder that records the process says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Message {
    pub dir: PathBuf,
    pub folder: PathBuf,
    /// Why the references could not be read, if they could not.
    pub error: Option<String>,
    pub progress: Progress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Progress {
    /// The last message follows.
    Begun,
    /// The references are being read for somebody else.
    Busy,
    Done,
}

/// The answer of a recorder that records the process.
#[derive(Debug)]
pub struct Answer {
    /// Folder of the recording.
    pub dir: PathBuf,
    /// Folder of the process in it.
    pub folder: PathBuf,
    /// Why the references could not be read, if they could not.
    pub error: Option<String>,
}

/// A recorder that may record the process, and says nothing.
#[derive(Debug)]
pub struct Silence {
    /// Its pid, if its queue of connections is not full.
    recorder: Option<u32>,
    is_stopped: bool,
}

impl fmt::Display for Silence {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.recorder {
            Some(pid) => write!(out, "the recorder (pid {pid}) does not answer")?,
            None => write!(out, "a recorder does not answer, and its queue is full")?,
        }
        match self.recorder {
            Some(pid) if self.is_stopped => write!(out, ": it is stopped; 'kill -CONT {pid}' lets it go on"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for Silence {}

impl Answer {
    /// Asks the recorder of a process. Returns `None` if none that we believe records it.
    ///
    /// # Errors
    /// No recorder has said that it records the process, and one says nothing at all.
    pub fn ask(pid: u32, question: Question) -> Result<Option<Answer>, Silence> {
        let until = Instant::now() + BUSY_LIMIT;
        loop {
            let asker = Asker::new(pid, question);
            let found = match asker.wait_for(asker.ask_all()) {
                // Whoever is stopped has nothing to do with this process.
                Err(_) if !Answer::may_be(pid) => None,
                found => found?,
            };
            let is_busy = found.as_ref().is_some_and(|message| message.progress == Progress::Busy);
            if !is_busy || Instant::now() > until {
                return Ok(found.map(|Message { dir, folder, error, .. }| Answer { dir, folder, error }));
            }
            std::thread::sleep(LOOK_INTERVAL);
        }
    }

    /// Returns whether a process has our library in it; `None` if we may not look at it.
    pub fn is_expected(pid: u32) -> Option<bool> {
        let text = maps::read(pid);
        let text = String::from_utf8_lossy(&text);
        let is_library = |line: &str| maps::parse(line).is_some_and(|line| maps::is_library(line.name));
        (!text.is_empty()).then(|| text.lines().any(is_library))
    }

    /// Returns whether a process runs that may be recorded.
    fn may_be(pid: u32) -> bool {
        proc::owner(pid).is_some() && Answer::is_expected(pid).unwrap_or(true)
    }
}

/// Who asks what.
struct Asker {
    pid: u32,
    question: Question,
    /// The users whose recorders we believe: root reads the recordings of all, but the recorder of a
    /// process is its own user's.
    users: Vec<u32>,
}

/// A recorder that was asked.
struct Asked {
    path: PathBuf,
    /// None while its queue of connections is full.
    connection: Option<Connection>,
}

struct Connection {
    socket: OwnedFd,
    recorder: u32,
    user: u32,
}

impl Asker {
    fn new(pid: u32, question: Question) -> Asker {
        let own = geteuid();
        let other = proc::effective_user(pid).filter(|user| own.is_root() && *user != 0);
        Asker { pid, question, users: other.into_iter().chain([own.as_raw()]).collect() }
    }

    fn ask_all(&self) -> Vec<Asked> {
        let named = proc::variable(self.pid, &[ENV_SOCKET]).into_iter().flatten().map(PathBuf::from);
        // An attached process does not have the variable.
        let mut paths: Vec<PathBuf> = named.chain(socket_dir::sockets_of(&self.users)).collect();
        paths.sort_unstable();
        paths.dedup();
        let mut all: Vec<Asked> = paths.into_iter().map(|path| Asked { path, connection: None }).collect();
        all.retain_mut(|one| self.connect(one));
        all
    }

    /// Connects and asks without waiting. Returns whether somebody whom we believe may listen there.
    fn connect(&self, asked: &mut Asked) -> bool {
        if asked.connection.is_none() {
            asked.connection = match listener::probe(&asked.path, SockType::SeqPacket) {
                Err(Errno::EAGAIN) => return true,
                socket => socket.ok().and_then(|socket| self.send(socket)),
            };
        }
        asked.connection.is_some()
    }

    fn send(&self, socket: OwnedFd) -> Option<Connection> {
        // Whoever made the environment of the process has chosen the path.
        let peer = getsockopt(&socket, sockopt::PeerCredentials).ok()?;
        let (user, recorder) = (peer.uid(), peer.pid().cast_unsigned());
        let origin = if self.question == Question::References { ORIGIN_REFERENCES } else { ORIGIN_SNAPSHOT };
        let request = Hello { pid: self.pid, origin, ..Hello::default() }.encode();
        let is_sent = self.users.contains(&user) && send(socket.as_raw_fd(), &request, MsgFlags::MSG_NOSIGNAL).is_ok();
        is_sent.then_some(Connection { socket, recorder, user })
    }

    /// Waits for the last message of the one that has begun, or until all others have closed the
    /// connection.
    fn wait_for(&self, mut asked: Vec<Asked>) -> Result<Option<Message>, Silence> {
        let mut begun = None;
        let (since, mut ran) = (Instant::now(), Instant::now());
        while !asked.is_empty() {
            let connected = asked.iter().filter_map(|one| one.connection.as_ref());
            let _ = poll::wait(connected.map(|one| sys::fd(&one.socket)), LOOK_INTERVAL);
            asked.retain_mut(|one| self.connect(one));
            let mut index = 0;
            while let Some(one) = asked.get(index) {
                match one.connection.as_ref().map_or(Received::Nothing, Connection::received) {
                    Received::Nothing => index += 1,
                    Received::End => drop(asked.remove(index)),
                    Received::Message(message) if message.progress == Progress::Begun => {
                        // The others have nothing to say any more.
                        asked = vec![asked.swap_remove(index)];
                        (begun, index) = (Some(message), 0);
                    }
                    Received::Message(message) => return Ok(Some(message)),
                }
            }
            if !asked.iter().all(Asked::is_stopped) {
                ran = Instant::now();
            }
            let is_late = begun.is_none() && since.elapsed() > BEGIN_LIMIT;
            // Others may only be slow, and have nothing to do with this process.
            let silent = asked.iter().find(|one| one.is_stopped()).or(asked.first());
            if let Some(one) = silent.filter(|_| is_late || ran.elapsed() > STOPPED_LIMIT) {
                let recorder = one.connection.as_ref().map(|one| one.recorder);
                return Err(Silence { recorder, is_stopped: one.is_stopped() });
            }
        }
        // The recorder, or its process, has ended meanwhile: what is recorded until then is written.
        let error = (self.question == Question::References).then(|| "the process or its recorder ended".to_owned());
        Ok(begun.map(|message| Message { error, ..message }))
    }
}

impl Asked {
    fn is_stopped(&self) -> bool {
        self.connection.as_ref().is_some_and(|one| proc::is_stopped(one.recorder))
    }
}

enum Received {
    Message(Message),
    Nothing,
    End,
}

impl Connection {
    fn received(&self) -> Received {
        let mut bytes = vec![0; MAX_MESSAGE];
        match recv(self.socket.as_raw_fd(), &mut bytes, MsgFlags::MSG_DONTWAIT) {
            Err(Errno::EAGAIN | Errno::EINTR) => Received::Nothing,
            Ok(count) if count > 0 => match serde_json::from_slice(&bytes[..count]) {
                Ok(message) if self.may_name(&message) => Received::Message(message),
                _ => Received::End,
            },
            _ => Received::End,
        }
    }

    /// Another user's recorder must not make root read anything but a recording of that user.
    fn may_name(&self, message: &Message) -> bool {
        let is_theirs = |path: &Path| std::fs::metadata(path).is_ok_and(|found| found.uid() == self.user);
        self.user == geteuid().as_raw() || (is_theirs(&message.dir) && is_theirs(&message.folder))
    }
}
