//! A trace or a profile that a client sends is taken in, checked and stored: by a thread of its own, piece by piece, in memory that does not
//! grow with it. Whatever ends it, what came before can be read.
//!
//! A client sends messages (the socket keeps them apart), which are pieces of the file; their borders mean nothing. A message of no byte,
//! and closing, end it.

use super::archive::Disk;
use crate::process::{let_read, make_folder};
use formats::recording::{PROFILE, TRACE};
use formats::{Ending, Failure, Format, Walked, mptl, mtrc};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{self, MsgFlags};
use serde_json::{Value, json};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A message has at most so many bytes.
pub const MESSAGE: usize = 256 << 10;
/// A profile of at most so many bytes is looked at as a whole, one at a time: callers that form a loop are only seen so.
const WHOLE: u64 = 16 << 20;
/// The file's name while it comes.
const COMING: &str = "coming";

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
}

/// A stream to be taken in.
#[derive(Debug)]
pub struct Job {
    /// Its number.
    pub id: u64,
    /// Where it comes from.
    pub socket: Arc<OwnedFd>,
    /// Where it is put; a new folder.
    pub folder: PathBuf,
    /// Who may read that.
    pub reader: Option<u32>,
    /// What it may take.
    pub bounds: Bounds,
    /// What others see of it.
    pub seen: Arc<Seen>,
    /// Whether there is room.
    pub disk: Arc<Disk>,
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
    /// Why no more is taken.
    why: Option<String>,
    hit: Option<&'static str>,
}

impl Pieces<'_> {
    fn stop(&mut self, why: impl Into<String>) -> usize {
        self.why = Some(why.into());
        0
    }

    /// The next message; 0 bytes at the end.
    fn next(&mut self) -> usize {
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
            // With MSG_TRUNC the length is the message's, also where that is more than there is room for.
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC;
            match socket::recv(job.socket.as_raw_fd(), &mut self.message, flags) {
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Ok(0) | Err(_) if job.seen.is_stopped.load(Relaxed) => return self.stop("the daemon ended"),
                Ok(0) | Err(_) => return 0,
                Ok(count) if count > MESSAGE => {
                    return self.stop(format!("a message of {count} bytes: at most {MESSAGE} make one"));
                }
                Ok(count) => return self.within(count),
            }
        }
    }

    /// As much of a message as its budgets allow, stored.
    fn within(&mut self, count: usize) -> usize {
        let Bounds { bytes, user: (taken, most), .. } = &self.job.bounds;
        let own = (count as u64).min(bytes.saturating_sub(self.job.seen.bytes.load(Relaxed)));
        let room = own.min(most.saturating_sub(taken.fetch_add(own, Relaxed)));
        if room < count as u64 {
            let (hit, most) = if room == own { ("stream-bytes", bytes) } else { ("user-stream-bytes", most) };
            self.hit = Some(hit);
            self.stop(format!("its budget ({hit}) of {most} bytes is used up"));
        }
        if self.job.disk.is_full.load(Relaxed) {
            self.hit = Some("disk");
            return self.stop("the daemon's disk budget is used up");
        }
        let count = room as usize;
        if let Err(error) = self.file.write_all(&self.message[..count]) {
            return self.stop(format!("it cannot be stored: {error}"));
        }
        self.job.seen.bytes.fetch_add(count as u64, Relaxed);
        count
    }
}

impl Read for Pieces<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.from == self.to && self.why.is_none() {
            (self.from, self.to) = (0, self.next());
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
    let (message, from, to, why, hit) = (vec![0; MESSAGE], 0, 0, None, None);
    let mut pieces = Pieces { job, file: &file, message, from, to, why, hit };
    let walked = walk(&mut pieces);
    let (why, hit) = (pieces.why, pieces.hit);
    finish(job.id, &job.folder, &file, job.reader, walked, why, hit)
}

/// What a killed daemon had of a stream.
pub fn salvage(id: u64, folder: &Path, reader: Option<u32>) -> Received {
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

fn walk(mut from: impl Read) -> (Option<Format>, Result<Walked, Failure>) {
    let mut start = Vec::new();
    if let Err(error) = from.by_ref().take(mtrc::layout::MAGIC.len() as u64).read_to_end(&mut start) {
        return (None, Err(error.into()));
    }
    let all = (&start[..]).chain(from);
    if start == mptl::layout::MAGIC {
        (Some(Format::Mptl), mptl::walk(all))
    } else {
        // What begins as neither gets the trace's error.
        (Some(Format::Mtrc), mtrc::walk(all))
    }
}

fn finish(
    id: u64,
    folder: &Path,
    file: &File,
    reader: Option<u32>,
    (format, walked): (Option<Format>, Result<Walked, Failure>),
    why: Option<String>,
    hit: Option<&'static str>,
) -> Received {
    let kept = || {
        let (format, Walked { mut ending, mut bytes }) =
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
                Ok(Ending::Cut { offset, field }) => {
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
    let bytes = serde_json::to_vec(value).unwrap_or_default();
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    let _ = socket::send(socket.as_raw_fd(), &bytes, flags);
    // What lay unread would make the kernel tell the client of a broken connection instead.
    let _ = socket::shutdown(socket.as_raw_fd(), socket::Shutdown::Read);
    while socket::recv(socket.as_raw_fd(), &mut [0], MsgFlags::MSG_DONTWAIT).is_ok_and(|count| count > 0) {}
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
