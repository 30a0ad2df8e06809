//! References that a command asks for while a process of `record` or `attach` runs: `holds --live`.

use super::super::Recorder;
use super::living::take_references;
use crate::digest::process::ProcessCommand;
use crate::os::{crash, sys};
use crate::pipeline::drain::Command;
use crate::session::socket_dir;
use crate::store::writer::Callback;
use crate::target::proc;
use crossbeam_channel::bounded;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, getsockopt, recv, send, socket, sockopt,
};
use nix::unistd::geteuid;
use serde::{Deserialize, Serialize};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::hello::{Hello, ORIGIN_REFERENCES};
use wire::limits::ENV_SOCKET;

/// Maximum length of an answer, in bytes.
const MAX_ANSWER: usize = 64 << 10;
/// How long the command waits for the files to be written: a full disk may never take them.
const WRITE_LIMIT: Duration = Duration::from_secs(10);
/// How long it asks again while they are read for somebody else.
const BUSY_LIMIT: Duration = Duration::from_secs(10);

/// The answer of a recorder that records the process.
#[derive(Debug, Serialize, Deserialize)]
pub struct Answer {
    /// Folder of the recording.
    pub dir: PathBuf,
    /// Why the references could not be read, if they could not.
    pub error: Option<String>,
    /// They are being read for somebody else.
    is_busy: bool,
}

impl Answer {
    /// Asks the recorders of this user to read the references of a process. Returns `None` if none of
    /// them records it.
    pub fn ask(pid: u32) -> Option<Answer> {
        const PAUSE: Duration = Duration::from_millis(50);
        let until = Instant::now() + BUSY_LIMIT;
        loop {
            let named = proc::variable(pid, &[ENV_SOCKET]).into_iter().flatten().map(PathBuf::from);
            // An attached process does not have the variable.
            let answer = named.chain(socket_dir::own_sockets()).find_map(|path| ask_at(&path, pid))?;
            if !answer.is_busy || Instant::now() > until {
                return Some(answer);
            }
            std::thread::sleep(PAUSE);
        }
    }
}

fn ask_at(path: &Path, pid: u32) -> Option<Answer> {
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).ok()?;
    connect(socket.as_raw_fd(), &UnixAddr::new(path).ok()?).ok()?;
    // Whoever made the environment of the process has chosen the path.
    getsockopt(&socket, sockopt::PeerCredentials).ok().filter(|peer| peer.uid() == geteuid().as_raw())?;
    let request = Hello { pid, origin: ORIGIN_REFERENCES, ..Hello::default() }.encode();
    send(socket.as_raw_fd(), &request, MsgFlags::MSG_NOSIGNAL).ok()?;
    let mut bytes = vec![0; MAX_ANSWER];
    loop {
        match recv(socket.as_raw_fd(), &mut bytes, MsgFlags::empty()) {
            Err(Errno::EINTR) => {}
            Ok(count) if count > 0 => return serde_json::from_slice(&bytes[..count]).ok(),
            _ => return None,
        }
    }
}

impl Recorder {
    /// Reads the references of a process that runs on, beside us, if a command of our own user asks for
    /// them. Others, also recorded processes that have changed their user, get no answer.
    pub(in super::super) fn references_asked(&mut self, pid: u32, uid: u32, socket: OwnedFd) {
        // The answer is for somebody who reads the recording: that has to name the process.
        if self.dirty {
            self.write_or_note();
        }
        let running = self.running.iter().find(|running| running.session.process.pid == pid);
        let Some(running) = running.filter(|_| uid == geteuid().as_raw()) else { return };
        let dir = std::path::absolute(&self.dir).unwrap_or_else(|_| self.dir.clone());
        let answer = Answer { dir, error: None, is_busy: false };
        self.readings.retain(|reading| !reading.is_finished());
        if !self.readings.is_empty() {
            let error = Some("they are being read already".into());
            return reply(&socket, Answer { error, is_busy: true, ..answer });
        }
        let (session, commands) = (Arc::clone(&running.session), self.stages.commands.clone());
        let reading = crash::spawn("reads references", move || {
            let result = take_references(&session, &commands);
            // The reader needs the events up to here.
            let (done, written) = bounded::<()>(0);
            let write = ProcessCommand::Snapshot(Callback::new(move || drop(done)));
            if result.is_ok() && commands.send(Command::Process(session.id, write)).is_ok() {
                let _ = written.recv_timeout(WRITE_LIMIT);
            }
            reply(&socket, Answer { error: result.as_ref().err().cloned(), ..answer });
            result
        });
        self.readings.extend(reading.ok());
    }
}

fn reply(socket: &OwnedFd, answer: Answer) {
    let _ = serde_json::to_vec(&answer).map(|bytes| sys::send_with(sys::fd(socket), &bytes, None));
}
