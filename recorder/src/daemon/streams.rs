//! Traces and profiles that clients send through the programs' socket: who may, how many at once,
//! and what becomes of them. A thread takes each in ([`receive`]); once it is over its folder moves
//! to the epoch of that moment, and is an image like any other.

use super::archive::Told;
use super::config::Budget;
use super::receive::{self, Bounds, Job, Received, Seen};
use super::service::Service;
use crate::attach::Sender as Caller;
use crate::clock;
use crate::crash;
use crate::options::Mode;
use crate::process::{self, Process, make_folder, sanitised};
use crate::store::Then;
use crate::sys;
use crossbeam_channel::{Receiver, Sender, unbounded};
use formats::recording::{ProcessInfo, STREAM};
use nix::sys::socket;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Streams at once: of one user, and of all.
const OF_USER: usize = 16;
const MOST: usize = 64;
/// Name of the folder of what is coming, beside the users'.
const COMING: &str = "streams";
/// Time for all of them to end with the daemon.
const ENDED: Duration = Duration::from_secs(5);
/// Stack of a thread that takes one in.
const STACK: usize = 512 << 10;

/// A stream that is coming.
#[derive(Debug)]
struct Coming {
    id: u64,
    uid: u32,
    name: String,
    image: ProcessInfo,
    /// None when an earlier daemon had it.
    socket: Option<Arc<OwnedFd>>,
    seen: Arc<Seen>,
    since: Instant,
}

impl Coming {
    /// The name and the image that it is filed under: those of the program that its sender names,
    /// else the sender's own.
    fn filed(&self) -> (String, ProcessInfo) {
        let (mut name, mut image) = (self.name.clone(), self.image.clone());
        if let Some(about) = self.seen.about.get() {
            if !about.name.is_empty() {
                about.name.rsplit('/').next().unwrap_or_default().clone_into(&mut name);
                (image.exe, image.argv) = (about.name.clone(), vec![about.name.clone()]);
            }
            if !about.label.is_empty() {
                image.label = about.label.chars().take(200).collect();
            }
        }
        (name, image)
    }
}

/// What became of streams since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    /// Streams that are kept.
    pub kept: u64,
    /// Those of them that are not whole.
    pub incomplete: u64,
    /// Streams of which nothing is kept.
    pub refused: u64,
    /// Bytes of those that are kept.
    pub bytes: u64,
}

/// All of them.
#[derive(Debug)]
pub(super) struct Streams {
    coming: Vec<Coming>,
    next: u64,
    pub(super) counters: Counters,
    ended: Receiver<(u32, Received)>,
    ends: Sender<(u32, Received)>,
}

impl Default for Streams {
    fn default() -> Self {
        let (ends, ended) = unbounded();
        Streams { coming: Vec::new(), next: 1, counters: Counters::default(), ended, ends }
    }
}

impl Streams {
    /// How many are coming.
    pub fn count(&self) -> usize {
        self.coming.len()
    }

    /// For `list`: as a process that holds nothing.
    pub fn json(&self) -> impl Iterator<Item = Value> {
        self.coming.iter().map(|one| {
            let (name, image) = one.filed();
            json!({
                "pid": one.image.pid, "uid": one.uid, "name": name, "label": image.label, "exe": image.exe, "mode": STREAM,
                "seconds": one.since.elapsed().as_secs(), "received": one.seen.bytes.load(Relaxed),
            })
        })
    }
}

impl Service {
    fn coming(&self) -> PathBuf {
        self.config.state.join(COMING)
    }

    /// Begins to take a stream in.
    pub(super) fn take_stream(&mut self, caller: Caller) {
        let Caller { socket, pid, uid, is_stream } = caller;
        let socket = Arc::new(socket);
        if let Err(why) = self.may_send(uid).and_then(|()| self.begin_stream(&socket, pid, uid, is_stream)) {
            self.streams.counters.refused += 1;
            tracing::debug!("process {pid} of user {uid} sends what is not kept: {why}");
            receive::answer(&socket, &json!({ "error": why }));
        }
    }

    fn may_send(&mut self, uid: u32) -> Result<(), String> {
        if !self.config.serves_all && uid != nix::unistd::geteuid().as_raw() {
            return Err("this daemon serves its own user".into());
        }
        if self.disk.is_full(uid) {
            self.guard.hit("disk", &format!("user {uid}: a stream is not kept"));
            return Err("its user's share of the daemon's disk is used up".into());
        }
        let Budget { streams, user_stream_bytes, .. } = self.config.budget;
        let (begun, bytes) = self.epochs.get(&uid).map_or((0, 0), |now| (now.streams, now.streamed.load(Relaxed)));
        let of_user = self.streams.coming.iter().filter(|one| one.uid == uid).count();
        let (what, why) = if of_user >= OF_USER || self.streams.coming.len() >= MOST {
            ("streams", "too many streams at once".into())
        } else if begun >= streams {
            ("streams", format!("its user has sent {begun} streams in this epoch"))
        } else if bytes >= user_stream_bytes {
            ("user-stream-bytes", format!("its user has sent {bytes} bytes in this epoch"))
        } else {
            return Ok(());
        };
        self.guard.hit(what, &format!("user {uid}: {why}"));
        Err(why)
    }

    fn begin_stream(&mut self, socket: &Arc<OwnedFd>, pid: u32, uid: u32, is_stream: bool) -> Result<(), String> {
        let epoch = self.epoch(uid).map_err(|error| error.to_string())?;
        let Budget { stream_bytes, user_stream_bytes, stream_idle, .. } = self.config.budget;
        let Some(current) = self.epochs.get_mut(&uid) else { return Err("no epoch".into()) };
        current.streams += 1;
        let user = (Arc::clone(&current.streamed), user_stream_bytes);
        let bounds = Bounds { bytes: stream_bytes, idle: stream_idle, user };
        // What is read is this process's as long as it has not ended behind it.
        let end = sys::process_of_peer(sys::fd(&**socket), pid);
        let (process, label) = (Process::read(pid), process::variable(pid, &["HEAPTAPE_LABEL"]).pop().flatten());
        let (_, unit) = process::control_group(pid);
        let lives = end.is_ok_and(|end| !sys::is_readable(sys::fd(&end)));
        let (process, label) = if lives { (process, label.or(unit)) } else { Default::default() };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let name = if process.comm.is_empty() { STREAM.to_owned() } else { text(&process.comm) };
        let started_unix_ns = clock::unix_ns();
        let image = ProcessInfo {
            pid,
            ppid: process.ppid,
            origin: STREAM.into(),
            exe: text(&process.exe),
            argv: process.argv.iter().map(|argument| text(argument)).collect(),
            label: label.unwrap_or_default().chars().take(200).collect(),
            started_unix_ns,
            ..ProcessInfo::default()
        };
        let id = self.streams.next;
        self.streams.next += 1;
        let seen = Arc::new(Seen::default());
        let folder = self.coming().join(format!("{uid}-{pid}.{}@{started_unix_ns}-{id}", sanitised(name.as_bytes())));
        let (quota, reader) = (self.quota(uid), epoch.reader);
        let (seen_by_job, socket_of_job) = (Arc::clone(&seen), Arc::clone(socket));
        let job = Job { id, socket: socket_of_job, is_stream, folder, reader, bounds, seen: seen_by_job, quota };
        let (ends, wake) = (self.streams.ends.clone(), Arc::clone(&self.wake));
        let take = move || {
            let _ = ends.send((uid, receive::receive(&job)));
            let _ = wake.as_ref().write(&[1]);
        };
        let thread = crash::spawn_in(std::thread::Builder::new().name(STREAM.into()).stack_size(STACK), take);
        thread.map_err(|error| error.to_string())?;
        let (socket, since) = (Some(Arc::clone(socket)), Instant::now());
        self.streams.coming.push(Coming { id, uid, name, image, socket, seen, since });
        Ok(())
    }

    /// Lists what has ended meanwhile.
    pub(super) fn take_streams(&mut self) {
        while let Ok((uid, received)) = self.streams.ended.try_recv() {
            self.stream_ended(uid, received);
        }
    }

    fn stream_ended(&mut self, uid: u32, received: Received) {
        let Some(place) = self.streams.coming.iter().position(|one| one.id == received.id) else { return };
        let coming = self.streams.coming.swap_remove(place);
        let ((name, mut image), socket) = (coming.filed(), coming.socket);
        if let Some(hit) = received.hit {
            self.guard.hit(hit, &format!("user {uid}: a stream of process {} was ended", image.pid));
        }
        let why = received.why.clone().unwrap_or_else(|| "whole".into());
        tracing::debug!("stream of {} ({}), {} bytes: {why}", name.escape_debug(), image.pid, received.bytes);
        let kept = received.kept.as_ref().map(|(folder, _)| folder.clone());
        let epoch = kept.is_some().then(|| self.epoch(uid).ok()).flatten();
        let (Some(from), Some(epoch)) = (kept, epoch) else {
            self.streams.counters.refused += 1;
            return socket.iter().for_each(|socket| receive::answer(socket, &received.json(None)));
        };
        let counters = &mut self.streams.counters;
        counters.kept += 1;
        counters.bytes += received.bytes;
        counters.incomplete += u64::from(received.why.is_some());
        image.ended_unix_ns = Some(clock::unix_ns());
        image.lacks = received.why.clone().filter(|_| received.is_wrong);
        let to = self.folder(uid, &epoch, Mode::Profile, image.pid, &name);
        image.folder = to.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let done = Then::new(move || {
            let place = to.is_dir().then_some(to.as_path());
            socket.iter().for_each(|socket| receive::answer(socket, &received.json(place)));
        });
        let _ = self.archive.send(Told::Stream(epoch, from, image, done));
    }

    /// Ends all of them, for the daemon ends.
    pub(super) fn end_streams(&mut self) {
        for one in &self.streams.coming {
            one.seen.is_stopped.store(true, Relaxed);
            if let Some(socket) = &one.socket {
                let _ = socket::shutdown(socket.as_raw_fd(), socket::Shutdown::Read);
            }
        }
        let until = Instant::now() + ENDED;
        while self.streams.count() > 0
            && let Ok((uid, received)) = self.streams.ended.recv_deadline(until)
        {
            self.stream_ended(uid, received);
        }
    }

    /// Goes on with what a killed daemon left of its streams.
    pub(super) fn find_streams(&mut self) -> io::Result<()> {
        let coming = self.coming();
        make_folder(&coming, None)?;
        let mut left = Vec::new();
        for entry in std::fs::read_dir(&coming)?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let (from, name) = name.split_once('-').unwrap_or_default();
            let (pid, name) = name.split_once('.').unwrap_or_default();
            let (Ok(uid), Ok(pid), Some((name, _))) = (from.parse(), pid.parse(), name.split_once('@')) else {
                std::fs::remove_dir_all(entry.path())?;
                continue;
            };
            let image =
                ProcessInfo { pid, origin: STREAM.into(), started_unix_ns: clock::unix_ns(), ..ProcessInfo::default() };
            let id = self.streams.next;
            self.streams.next += 1;
            let (name, seen, since) = (name.to_owned(), Arc::new(Seen::default()), Instant::now());
            let seen_by_job = Arc::clone(&seen);
            self.streams.coming.push(Coming { id, uid, name, image, socket: None, seen, since });
            let reader = (uid != nix::unistd::geteuid().as_raw()).then_some(uid);
            left.push((id, uid, entry.path(), reader, seen_by_job));
        }
        let (ends, wake) = (self.streams.ends.clone(), Arc::clone(&self.wake));
        let look = move || {
            for (id, uid, folder, reader, seen) in left {
                let _ = ends.send((uid, receive::salvage(id, &folder, reader, &seen)));
                let _ = wake.as_ref().write(&[1]);
            }
        };
        crash::spawn(STREAM, look).map(drop)
    }
}
