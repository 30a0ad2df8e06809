//! A thread of its own receives, checks and stores a trace or a profile that a client sends, block
//! by block, in memory of fixed size. When the reception ends early, the data that arrived before
//! can be read.
//!
//! A client sends messages, or bytes over a stream socket; the boundaries of messages have no
//! meaning. An empty message, or closing the socket, ends the file. A line of JSON may precede the
//! file and describe it ([`FileInfo`]).

use formats::recording::{PROFILE, TRACE};
use formats::{Ending, Format, ReadError, Validation, mptl, mtrc};
use heaptape_recorder::os::permissions::{let_read, make_folder};
use heaptape_recorder::session::Quota;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{self, MsgFlags, SockType};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// Maximum length of a message, in bytes.
pub(crate) const MAX_MESSAGE_LEN: usize = 256 << 10;
/// Maximum size of a profile that is checked as a whole, in bytes. Only such a check detects
/// callers that form a loop. One profile is checked at a time.
const MAX_CHECKED_PROFILE: u64 = 16 << 20;
/// Name of the file while it is being received.
const INCOMPLETE: &str = "coming";
/// Name of the file with the description, until the reception is complete.
const FILE_INFO: &str = "about";
/// Maximum length of the line that describes a file, in bytes.
const MAX_FILE_INFO: usize = 4096;

/// A sender's description of a file: names under which it is stored, and that have no other effect.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct FileInfo {
    /// The program that the file describes: a name or a path.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub label: String,
}

impl FileInfo {
    fn parse(line: &[u8]) -> Result<FileInfo, String> {
        serde_json::from_slice(line).map_err(|error| format!("the line that describes the file: {error}"))
    }

    fn read(folder: &Path) -> Option<FileInfo> {
        let mut bytes = Vec::new();
        File::open(folder.join(FILE_INFO)).ok()?.take(MAX_FILE_INFO as u64).read_to_end(&mut bytes).ok()?;
        FileInfo::parse(&bytes).ok()
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Maximum size, in bytes.
    pub bytes: u64,
    /// Maximum time without a byte.
    pub idle: Duration,
    /// Number of bytes of all streams of its user in this epoch, and the maximum of that.
    pub user: (Arc<AtomicU64>, u64),
}

/// The state of a stream that other threads can see while it is received.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Number of bytes received so far.
    pub bytes: AtomicU64,
    /// Set when the daemon ends the reception.
    pub is_stopped: AtomicBool,
    /// The description of the file, if the sender has sent one.
    pub info: OnceLock<FileInfo>,
}

/// A stream to be received.
#[derive(Debug)]
pub(crate) struct Job {
    /// Number of the stream.
    pub id: u64,
    /// Socket from which the stream is received.
    pub socket: Arc<OwnedFd>,
    /// Whether the socket is a stream socket.
    pub is_stream: bool,
    /// Folder for the file, which is created.
    pub folder: PathBuf,
    /// User who may read the folder, besides the daemon's own user.
    pub reader: Option<u32>,
    pub limits: Limits,
    /// The state of the stream that other threads can see.
    pub progress: Arc<Progress>,
    /// Disk quota that the stream shares with all other files of its user.
    pub quota: Arc<Quota>,
}

/// The outcome of the reception of a stream.
#[derive(Debug)]
pub(crate) struct Received {
    /// Number of the stream.
    pub id: u64,
    /// Folder and format of the stored file; `None` when nothing of it can be read.
    pub kept: Option<(PathBuf, Format)>,
    /// Number of bytes that are stored.
    pub bytes: u64,
    /// Number of bytes that had arrived after the end mark, and are not stored.
    pub dropped: u64,
    /// Why the file is incomplete; `None` if it is complete.
    pub why: Option<String>,
    /// Whether the file is corrupt, and not merely truncated.
    pub is_corrupt: bool,
    /// The limit that ended the reception, if any.
    pub hit: Option<&'static str>,
}

/// The messages of a stream as one file to read. All data that is read is also stored.
struct StreamReader<'a> {
    job: &'a Job,
    file: &'a File,
    message: Vec<u8>,
    /// Range of the message that was not read yet.
    from: usize,
    to: usize,
    /// The part of the line that describes the file which has arrived; `None` once the file has
    /// started.
    line: Option<Vec<u8>>,
    /// Why the reception was ended.
    why: Option<String>,
    hit: Option<&'static str>,
}

impl StreamReader<'_> {
    fn stop(&mut self, why: impl Into<String>) -> usize {
        self.why = Some(why.into());
        0
    }

    /// Returns the range of the next bytes of the file in the message; it is empty at the end.
    fn next(&mut self) -> (usize, usize) {
        loop {
            let count = self.message();
            let Some(line) = &mut self.line else { return (0, self.store_within_limits(0, count)) };
            if line.is_empty() && self.message[..count].first() != Some(&b'{') {
                self.line = None;
                return (0, self.store_within_limits(0, count));
            }
            let end = self.message[..count].iter().position(|byte| *byte == b'\n');
            line.extend(&self.message[..end.unwrap_or(count)]);
            if line.len() > MAX_FILE_INFO {
                return (0, self.stop(format!("the line that describes the file: at most {MAX_FILE_INFO} bytes")));
            }
            match end {
                Some(end) => {
                    let parsed = FileInfo::parse(line);
                    self.line = None;
                    if let Err(why) = parsed.and_then(|info| self.store_info(info)) {
                        return (0, self.stop(why));
                    }
                    if end + 1 < count {
                        return (end + 1, self.store_within_limits(end + 1, count));
                    }
                }
                None if count == 0 && self.why.is_some() => return (0, 0),
                None if count == 0 => return (0, self.stop("the line that describes the file: it has no end")),
                None => {}
            }
        }
    }

    /// Stores the description of the file, also for the next daemon.
    fn store_info(&self, info: FileInfo) -> Result<(), String> {
        let stored = serde_json::to_vec(&info).map_err(io::Error::from);
        stored
            .and_then(|bytes| std::fs::write(self.job.folder.join(FILE_INFO), bytes))
            .map_err(|error| error.to_string())?;
        let _ = self.job.progress.info.set(info);
        Ok(())
    }

    /// Receives the next message and returns its length; 0 at the end.
    fn message(&mut self) -> usize {
        let job = self.job;
        loop {
            let mut wait = [PollFd::new(job.socket.as_fd(), PollFlags::POLLIN)];
            let idle = PollTimeout::try_from(job.limits.idle).unwrap_or(PollTimeout::MAX);
            match nix::poll::poll(&mut wait, idle) {
                Ok(0) => {
                    self.hit = Some("stream-idle");
                    return self.stop(format!("no byte arrived for {:?}", job.limits.idle));
                }
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return self.stop(error.to_string()),
            }
            // With MSG_TRUNC the length of the whole message is returned, even if it is longer than
            // the buffer.
            let truncation = if job.is_stream { MsgFlags::empty() } else { MsgFlags::MSG_TRUNC };
            let flags = MsgFlags::MSG_DONTWAIT | truncation;
            match socket::recv(job.socket.as_raw_fd(), &mut self.message, flags) {
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Ok(0) | Err(_) if job.progress.is_stopped.load(Relaxed) => return self.stop("the daemon ended"),
                Ok(0) | Err(_) => return 0,
                Ok(count) if count > MAX_MESSAGE_LEN => {
                    return self.stop(format!("a message of {count} bytes: at most {MAX_MESSAGE_LEN} are allowed"));
                }
                Ok(count) => return count,
            }
        }
    }

    /// Stores as much of a message as the limits permit, and returns the end of the stored range.
    fn store_within_limits(&mut self, from: usize, to: usize) -> usize {
        if from == to {
            return from;
        }
        let count = to - from;
        let Limits { bytes, user: (taken, most), .. } = &self.job.limits;
        let within_stream = (count as u64).min(bytes.saturating_sub(self.job.progress.bytes.load(Relaxed)));
        let permitted = within_stream.min(most.saturating_sub(taken.fetch_add(within_stream, Relaxed)));
        if permitted < count as u64 {
            let (hit, most) =
                if permitted == within_stream { ("stream-bytes", bytes) } else { ("user-stream-bytes", most) };
            self.hit = Some(hit);
            self.stop(format!("its budget ({hit}) of {most} bytes is used up"));
        }
        if !self.job.quota.admits() {
            self.hit = Some("disk");
            self.stop("its user's share of the daemon's disk is used up");
            return from;
        }
        let count = permitted as usize;
        if let Err(error) = self.file.write_all(&self.message[from..from + count]) {
            self.stop(format!("it cannot be stored: {error}"));
            return from;
        }
        self.job.progress.bytes.fetch_add(count as u64, Relaxed);
        self.job.quota.count(count as u64);
        from + count
    }
}

impl Read for StreamReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.from == self.to && self.why.is_none() {
            (self.from, self.to) = self.next();
        }
        let there = &self.message[self.from..self.to];
        let count = there.len().min(into.len());
        into[..count].copy_from_slice(&there[..count]);
        self.from += count;
        Ok(count)
    }
}

/// Receives a stream to its end.
pub(crate) fn receive(job: &Job) -> Received {
    let nothing = |why: String| Received {
        id: job.id,
        kept: None,
        bytes: 0,
        dropped: 0,
        why: Some(why),
        is_corrupt: true,
        hit: None,
    };
    let path = job.folder.join(INCOMPLETE);
    let file = make_folder(&job.folder, None)
        .and_then(|()| OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path));
    let file = match file {
        Ok(file) => file,
        Err(error) => return nothing(format!("it cannot be stored: {error}")),
    };
    let (message, from, to, line, why, hit) = (vec![0; MAX_MESSAGE_LEN], 0, 0, Some(Vec::new()), None, None);
    let mut reader = StreamReader { job, file: &file, message, from, to, line, why, hit };
    let validated = validate(&mut reader);
    let (why, hit) = (reader.why, reader.hit);
    finish(job.id, &job.folder, &file, job.reader, validated, why, hit)
}

/// Completes a stream that a killed daemon had received in part.
pub(crate) fn recover(id: u64, folder: &Path, reader: Option<u32>, progress: &Progress) -> Received {
    FileInfo::read(folder).map(|info| progress.info.set(info));
    let path = [INCOMPLETE, TRACE, PROFILE].map(|name| folder.join(name)).into_iter().find(|path| path.is_file());
    let file = path.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound)).and_then(|path| {
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        std::fs::rename(path, folder.join(INCOMPLETE))?;
        Ok(file)
    });
    match file {
        Ok(file) => {
            let validated = validate(&file);
            finish(
                id,
                folder,
                &file,
                reader,
                validated,
                Some("the daemon was killed during the reception".into()),
                None,
            )
        }
        Err(error) => {
            let _ = std::fs::remove_dir_all(folder);
            Received { id, kept: None, bytes: 0, dropped: 0, why: Some(error.to_string()), is_corrupt: true, hit: None }
        }
    }
}

fn validate(mut from: impl Read) -> (Option<Format>, Result<Validation, ReadError>) {
    let mut start = Vec::new();
    if let Err(error) = from.by_ref().take(mtrc::layout::MAGIC.len() as u64).read_to_end(&mut start) {
        return (None, Err(error.into()));
    }
    if start.len() < mtrc::layout::MAGIC.len() {
        let why = match start.is_empty() {
            true => "no data arrived",
            false => "it ends within its first four bytes, which tell a trace from a profile",
        };
        return (None, Err(io::Error::other(why).into()));
    }
    let contents = (&start[..]).chain(from);
    if start == mptl::layout::MAGIC {
        (Some(Format::Mptl), mptl::validate(contents))
    } else {
        // Data that begins like neither format gets the error of the trace.
        (Some(Format::Mtrc), mtrc::validate(contents))
    }
}

fn finish(
    id: u64,
    folder: &Path,
    file: &File,
    reader: Option<u32>,
    (format, validated): (Option<Format>, Result<Validation, ReadError>),
    why: Option<String>,
    hit: Option<&'static str>,
) -> Received {
    let kept = || {
        let Validation { mut ending, mut bytes } = validated.map_err(|error| error.to_string())?;
        let format = format.ok_or("no data arrived")?;
        let arrived = file.metadata().map_err(|error| error.to_string())?.len();
        let is_whole = ending.as_ref().is_ok_and(|ending| ending.is_complete());
        let dropped = if is_whole { arrived.saturating_sub(bytes) } else { 0 };
        file.set_len(bytes).map_err(|error| error.to_string())?;
        if format == Format::Mptl && is_whole && bytes <= MAX_CHECKED_PROFILE {
            (ending, bytes) = check_profile(file, bytes).map_err(|error| error.to_string())?;
        }
        let name = if format == Format::Mptl { PROFILE } else { TRACE };
        let_read(file, reader)
            .and_then(|()| let_read(&File::open(folder)?, reader))
            .and_then(|()| file.sync_data())
            .and_then(|()| std::fs::rename(folder.join(INCOMPLETE), folder.join(name)))
            .map(|()| drop(std::fs::remove_file(folder.join(FILE_INFO))))
            .map_err(|error| format!("it cannot be stored: {error}"))?;
        Ok::<_, String>((format, ending, bytes, dropped))
    };
    match kept() {
        Ok((format, ending, bytes, dropped)) => {
            let is_complete = ending.as_ref().is_ok_and(|ending| ending.is_complete());
            let is_corrupt = !is_complete && (ending.is_err() || why.is_some());
            let hit = hit.filter(|_| !is_complete);
            let parsed = match ending {
                Ok(Ending::Complete) => None,
                Ok(Ending::Truncated { offset, field }) => {
                    let cut = format!("{format}: offset {offset}: {field}: it ends here");
                    Some(why.map_or_else(|| cut.clone(), |why| format!("{cut}: {why}")))
                }
                Err(error) => Some(error.to_string()),
            };
            Received { id, kept: Some((folder.to_owned(), format)), bytes, dropped, why: parsed, is_corrupt, hit }
        }
        Err(error) => {
            let _ = std::fs::remove_dir_all(folder);
            Received { id, kept: None, bytes: 0, dropped: 0, why: Some(why.unwrap_or(error)), is_corrupt: true, hit }
        }
    }
}

/// Checks a profile as a whole, and truncates it before the first error.
fn check_profile(file: &File, bytes: u64) -> io::Result<(formats::Result<Ending>, u64)> {
    use std::os::unix::fs::FileExt;
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock();
    let mut contents = vec![0; bytes as usize];
    file.read_exact_at(&mut contents, 0)?;
    let mut first_error = None;
    // Each truncation is before the previous one. A file that needs many is hostile and is given
    // up.
    for _ in 0..8 {
        match mptl::Profile::read(&contents) {
            Ok(_) => {
                file.set_len(contents.len() as u64)?;
                return Ok((first_error.map_or(Ok(Ending::Complete), Err), contents.len() as u64));
            }
            Err(error) => {
                contents.truncate(error.offset as usize);
                first_error.get_or_insert(error);
            }
        }
    }
    Err(io::Error::other(first_error.map(|error| error.to_string()).unwrap_or_default()))
}

/// Sends the outcome to the client of a stream. Does not wait for a client that does not read.
pub(crate) fn answer(socket: &OwnedFd, value: &Value) {
    let mut bytes = serde_json::to_vec(value).unwrap_or_default();
    if socket::getsockopt(socket, socket::sockopt::SockType) == Ok(SockType::Stream) {
        bytes.push(b'\n');
    }
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let _ = socket::send(socket.as_raw_fd(), &bytes, flags);
    // Unread data would make the kernel report a broken connection to the client.
    let _ = socket::shutdown(socket.as_raw_fd(), socket::Shutdown::Read);
    let mut rest = [0; 4096];
    while socket::recv(socket.as_raw_fd(), &mut rest, MsgFlags::MSG_DONTWAIT).is_ok_and(|count| count > 0) {}
}

impl Received {
    /// Returns the answer to the sender: the folder of the file, or why it is not stored.
    pub(crate) fn json(&self, folder: Option<&Path>) -> Value {
        match (&self.kept, folder) {
            (Some((_, format)), Some(folder)) => json!({
                "bytes": self.bytes, "dropped": self.dropped, "format": format.name(), "whole": self.why.is_none(),
                "why": self.why, "folder": folder.display().to_string(),
            }),
            _ => json!({ "error": self.why.as_deref().unwrap_or("it cannot be stored") }),
        }
    }
}
