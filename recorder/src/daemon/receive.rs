//! A trace or a profile that a client sends is taken in, checked and stored: by a thread of its
//! own, piece by piece, in memory that does not grow with it. Whatever ends it, what came before
//! can be read.
//!
//! A client sends messages, or bytes over a stream socket; borders of messages mean nothing. A
//! message of no byte, and closing, end it. A line of JSON may stand before the file and say what
//! the file is of ([`About`]).

use crate::process::{let_read, make_folder};
use crate::quota::Quota;
use formats::recording::{PROFILE, TRACE};
use formats::{Ending, Format, ReadError, Validation, mptl, mtrc};
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

/// A message has at most so many bytes.
pub const MESSAGE: usize = 256 << 10;
/// A profile of at most this size is checked as a whole, one at a time: callers that form a
/// loop are only seen so.
const WHOLE: u64 = 16 << 20;
/// The file's name while it comes.
const COMING: &str = "coming";
/// The name of what was said about it, until it has come.
const ABOUT: &str = "about";
/// The line about a file has at most so many bytes.
const MOST_ABOUT: usize = 4096;

/// What a sender says of a file: words to file it under, which decide nothing else.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct About {
    /// The program that it is of: a name or a path.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Its label.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub label: String,
}

impl About {
    fn parse(line: &[u8]) -> Result<About, String> {
        serde_json::from_slice(line).map_err(|error| format!("the line about the file: {error}"))
    }

    fn read(folder: &Path) -> Option<About> {
        let mut bytes = Vec::new();
        File::open(folder.join(ABOUT)).ok()?.take(MOST_ABOUT as u64).read_to_end(&mut bytes).ok()?;
        About::parse(&bytes).ok()
    }
}

/// What one stream may take.
#[derive(Clone, Debug)]
pub struct Bounds {
    /// Its bytes.
    pub bytes: u64,
    /// Time without a byte.
    pub idle: Duration,
    /// Bytes of all streams of its user in this epoch, and what those may be.
    pub user: (Arc<AtomicU64>, u64),
}

/// What is seen of a stream while it comes.
#[derive(Debug, Default)]
pub struct Seen {
    /// Bytes so far.
    pub bytes: AtomicU64,
    /// Set when the daemon ends it.
    pub is_stopped: AtomicBool,
    /// What its sender says of it, if anything.
    pub about: OnceLock<About>,
}

/// A stream to be taken in.
#[derive(Debug)]
pub struct Job {
    /// Its number.
    pub id: u64,
    /// Where it comes from.
    pub socket: Arc<OwnedFd>,
    /// Whether that is a stream socket.
    pub is_stream: bool,
    /// Where it is put; a new folder.
    pub folder: PathBuf,
    /// Who may read that.
    pub reader: Option<u32>,
    /// What it may take.
    pub bounds: Bounds,
    /// What others see of it.
    pub seen: Arc<Seen>,
    /// The disk space that it shares with everything else of its user.
    pub quota: Arc<Quota>,
}

/// What became of it.
#[derive(Debug)]
pub struct Received {
    /// Its number.
    pub id: u64,
    /// Where it lies; none when nothing of it can be read.
    pub kept: Option<(PathBuf, Format)>,
    /// Bytes that are kept.
    pub bytes: u64,
    /// Why it is not whole.
    pub why: Option<String>,
    /// Whether that is more than an end before the end mark.
    pub is_wrong: bool,
    /// The budget that ended it.
    pub hit: Option<&'static str>,
}

/// The messages of a stream, as one file to read; what is read is also stored.
struct Pieces<'a> {
    job: &'a Job,
    file: &'a File,
    message: Vec<u8>,
    /// What of the message was not read yet.
    from: usize,
    to: usize,
    /// The line about the file as far as it has come; none once the file has begun.
    line: Option<Vec<u8>>,
    /// Why no more is taken.
    why: Option<String>,
    hit: Option<&'static str>,
}

impl Pieces<'_> {
    fn stop(&mut self, why: impl Into<String>) -> usize {
        self.why = Some(why.into());
        0
    }

    /// The next bytes of the file: their place in the message, which is empty at the end.
    fn next(&mut self) -> (usize, usize) {
        loop {
            let count = self.message();
            let Some(line) = &mut self.line else { return (0, self.within(0, count)) };
            if line.is_empty() && self.message[..count].first() != Some(&b'{') {
                self.line = None;
                return (0, self.within(0, count));
            }
            let end = self.message[..count].iter().position(|byte| *byte == b'\n');
            line.extend(&self.message[..end.unwrap_or(count)]);
            if line.len() > MOST_ABOUT {
                return (0, self.stop(format!("the line about the file: at most {MOST_ABOUT} bytes")));
            }
            match end {
                Some(end) => {
                    let said = About::parse(line);
                    self.line = None;
                    if let Err(why) = said.and_then(|about| self.note(about)) {
                        return (0, self.stop(why));
                    }
                    if end + 1 < count {
                        return (end + 1, self.within(end + 1, count));
                    }
                }
                None if count == 0 && self.why.is_some() => return (0, 0),
                None if count == 0 => return (0, self.stop("the line about the file: it has no end")),
                None => {}
            }
        }
    }

    /// Keeps what is said of the file, also for the next daemon.
    fn note(&self, about: About) -> Result<(), String> {
        let stored = serde_json::to_vec(&about).map_err(io::Error::from);
        stored
            .and_then(|bytes| std::fs::write(self.job.folder.join(ABOUT), bytes))
            .map_err(|error| error.to_string())?;
        let _ = self.job.seen.about.set(about);
        Ok(())
    }

    /// The next message; 0 bytes at the end.
    fn message(&mut self) -> usize {
        let job = self.job;
        loop {
            let mut wait = [PollFd::new(job.socket.as_fd(), PollFlags::POLLIN)];
            let idle = PollTimeout::try_from(job.bounds.idle).unwrap_or(PollTimeout::MAX);
            match nix::poll::poll(&mut wait, idle) {
                Ok(0) => {
                    self.hit = Some("stream-idle");
                    return self.stop(format!("no byte came for {:?}", job.bounds.idle));
                }
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return self.stop(error.to_string()),
            }
            // With MSG_TRUNC the length is the message's, also where that is more than there is
            // room for.
            let whole = if job.is_stream { MsgFlags::empty() } else { MsgFlags::MSG_TRUNC };
            let flags = MsgFlags::MSG_DONTWAIT | whole;
            match socket::recv(job.socket.as_raw_fd(), &mut self.message, flags) {
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Ok(0) | Err(_) if job.seen.is_stopped.load(Relaxed) => return self.stop("the daemon ended"),
                Ok(0) | Err(_) => return 0,
                Ok(count) if count > MESSAGE => {
                    return self.stop(format!("a message of {count} bytes: at most {MESSAGE} make one"));
                }
                Ok(count) => return count,
            }
        }
    }

    /// Stores as much of a message as its budgets allow, and returns where that ends.
    fn within(&mut self, from: usize, to: usize) -> usize {
        if from == to {
            return from;
        }
        let count = to - from;
        let Bounds { bytes, user: (taken, most), .. } = &self.job.bounds;
        let own = (count as u64).min(bytes.saturating_sub(self.job.seen.bytes.load(Relaxed)));
        let room = own.min(most.saturating_sub(taken.fetch_add(own, Relaxed)));
        if room < count as u64 {
            let (hit, most) = if room == own { ("stream-bytes", bytes) } else { ("user-stream-bytes", most) };
            self.hit = Some(hit);
            self.stop(format!("its budget ({hit}) of {most} bytes is used up"));
        }
        if !self.job.quota.admits() {
            self.hit = Some("disk");
            self.stop("its user's share of the daemon's disk is used up");
            return from;
        }
        let count = room as usize;
        if let Err(error) = self.file.write_all(&self.message[from..from + count]) {
            self.stop(format!("it cannot be stored: {error}"));
            return from;
        }
        self.job.seen.bytes.fetch_add(count as u64, Relaxed);
        self.job.quota.count(count as u64);
        from + count
    }
}

impl Read for Pieces<'_> {
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

/// Takes a stream in to its end.
pub fn receive(job: &Job) -> Received {
    let nothing =
        |why: String| Received { id: job.id, kept: None, bytes: 0, why: Some(why), is_wrong: true, hit: None };
    let path = job.folder.join(COMING);
    let file = make_folder(&job.folder, None)
        .and_then(|()| OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path));
    let file = match file {
        Ok(file) => file,
        Err(error) => return nothing(format!("it cannot be stored: {error}")),
    };
    let (message, from, to, line, why, hit) = (vec![0; MESSAGE], 0, 0, Some(Vec::new()), None, None);
    let mut pieces = Pieces { job, file: &file, message, from, to, line, why, hit };
    let walked = walk(&mut pieces);
    let (why, hit) = (pieces.why, pieces.hit);
    finish(job.id, &job.folder, &file, job.reader, walked, why, hit)
}

/// What a killed daemon had of a stream.
pub fn salvage(id: u64, folder: &Path, reader: Option<u32>, seen: &Seen) -> Received {
    About::read(folder).map(|about| seen.about.set(about));
    let path = [COMING, TRACE, PROFILE].map(|name| folder.join(name)).into_iter().find(|path| path.is_file());
    let file = path.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound)).and_then(|path| {
        let file = OpenOptions::new().read(true).write(true).open(&path)?;
        std::fs::rename(path, folder.join(COMING))?;
        Ok(file)
    });
    match file {
        Ok(file) => {
            let walked = walk(&file);
            finish(id, folder, &file, reader, walked, Some("the daemon was killed while it came".into()), None)
        }
        Err(error) => {
            let _ = std::fs::remove_dir_all(folder);
            Received { id, kept: None, bytes: 0, why: Some(error.to_string()), is_wrong: true, hit: None }
        }
    }
}

fn walk(mut from: impl Read) -> (Option<Format>, Result<Validation, ReadError>) {
    let mut start = Vec::new();
    if let Err(error) = from.by_ref().take(mtrc::layout::MAGIC.len() as u64).read_to_end(&mut start) {
        return (None, Err(error.into()));
    }
    let all = (&start[..]).chain(from);
    if start == mptl::layout::MAGIC {
        (Some(Format::Mptl), mptl::validate(all))
    } else {
        // What begins as neither gets the trace's error.
        (Some(Format::Mtrc), mtrc::validate(all))
    }
}

fn finish(
    id: u64,
    folder: &Path,
    file: &File,
    reader: Option<u32>,
    (format, walked): (Option<Format>, Result<Validation, ReadError>),
    why: Option<String>,
    hit: Option<&'static str>,
) -> Received {
    let kept = || {
        let (format, Validation { mut ending, mut bytes }) =
            (format.ok_or("nothing came")?, walked.map_err(|error| error.to_string())?);
        file.set_len(bytes).map_err(|error| error.to_string())?;
        if format == Format::Mptl && ending.as_ref().is_ok_and(|ending| ending.is_complete()) && bytes <= WHOLE {
            (ending, bytes) = look_through(file, bytes).map_err(|error| error.to_string())?;
        }
        let name = if format == Format::Mptl { PROFILE } else { TRACE };
        let_read(file, reader)
            .and_then(|()| let_read(&File::open(folder)?, reader))
            .and_then(|()| file.sync_data())
            .and_then(|()| std::fs::rename(folder.join(COMING), folder.join(name)))
            .map(|()| drop(std::fs::remove_file(folder.join(ABOUT))))
            .map_err(|error| format!("it cannot be stored: {error}"))?;
        Ok::<_, String>((format, ending, bytes))
    };
    match kept() {
        Ok((format, ending, bytes)) => {
            let is_whole = ending.as_ref().is_ok_and(|ending| ending.is_complete());
            let is_wrong = !is_whole && (ending.is_err() || why.is_some());
            let hit = hit.filter(|_| !is_whole);
            let said = match ending {
                Ok(Ending::Complete) => None,
                Ok(Ending::Truncated { offset, field }) => {
                    let cut = format!("{format}: offset {offset}: {field}: it ends here");
                    Some(why.map_or_else(|| cut.clone(), |why| format!("{cut}: {why}")))
                }
                Err(error) => Some(error.to_string()),
            };
            Received { id, kept: Some((folder.to_owned(), format)), bytes, why: said, is_wrong, hit }
        }
        Err(error) => {
            let _ = std::fs::remove_dir_all(folder);
            Received { id, kept: None, bytes: 0, why: Some(why.unwrap_or(error)), is_wrong: true, hit }
        }
    }
}

/// Looks at a profile as a whole; cuts it before what is wrong in it.
fn look_through(file: &File, bytes: u64) -> io::Result<(formats::Result<Ending>, u64)> {
    use std::os::unix::fs::FileExt;
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock();
    let mut all = vec![0; bytes as usize];
    file.read_exact_at(&mut all, 0)?;
    let mut wrong = None;
    // Each cut is before the last; a file made to need many is worth no more.
    for _ in 0..8 {
        match mptl::Profile::read(&all) {
            Ok(_) => {
                file.set_len(all.len() as u64)?;
                return Ok((wrong.map_or(Ok(Ending::Complete), Err), all.len() as u64));
            }
            Err(error) => {
                all.truncate(error.offset as usize);
                wrong.get_or_insert(error);
            }
        }
    }
    Err(io::Error::other(wrong.map(|error| error.to_string()).unwrap_or_default()))
}

/// Tells a client what became of its stream. Nobody waits for one that does not listen.
pub fn answer(socket: &OwnedFd, value: &Value) {
    let mut bytes = serde_json::to_vec(value).unwrap_or_default();
    if socket::getsockopt(socket, socket::sockopt::SockType) == Ok(SockType::Stream) {
        bytes.push(b'\n');
    }
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let _ = socket::send(socket.as_raw_fd(), &bytes, flags);
    // What lay unread would make the kernel tell the client of a broken connection instead.
    let _ = socket::shutdown(socket.as_raw_fd(), socket::Shutdown::Read);
    let mut rest = [0; 4096];
    while socket::recv(socket.as_raw_fd(), &mut rest, MsgFlags::MSG_DONTWAIT).is_ok_and(|count| count > 0) {}
}

impl Received {
    /// The answer to whoever sent it: where it lies, or why it does not.
    pub fn json(&self, place: Option<&Path>) -> Value {
        match (&self.kept, place) {
            (Some((_, format)), Some(place)) => json!({
                "bytes": self.bytes, "format": format.name(), "whole": self.why.is_none(), "why": self.why,
                "folder": place.display().to_string(),
            }),
            _ => json!({ "error": self.why.as_deref().unwrap_or("it cannot be stored") }),
        }
    }
}
