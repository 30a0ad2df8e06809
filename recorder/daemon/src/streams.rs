//! Traces and profiles that clients send through the programs' socket: which clients are permitted,
//! how many at once, and where they are stored. A thread receives each one ([`receive`]). When it
//! is complete its folder moves to the current epoch, and is a process like any other.

use super::budget::Budgets;
use super::config::{Budget, Config};
use super::control::Wake;
use super::epochs::Epochs;
use super::protocol;
use super::receive::{self, Job, Limits, Progress, Received};
use crossbeam_channel::{Receiver, Sender, unbounded};
use formats::recording::{ProcessInfo, STREAM};
use heaptape_recorder::os::aside::{self, Owner};
use heaptape_recorder::os::clock;
use heaptape_recorder::os::crash;
use heaptape_recorder::os::permissions::make_folder;
use heaptape_recorder::os::sys;
use heaptape_recorder::session::listener::Sender as FileSender;
use heaptape_recorder::session::options::Mode;
use heaptape_recorder::store::writer::Callback;
use heaptape_recorder::target::proc::{self, Process, sanitized_name};
use nix::sys::socket;
use serde_json::json;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Maximum number of streams of one user at once.
const MAX_STREAMS_OF_USER: usize = 16;
/// Maximum number of streams of all users at once.
const MAX_STREAMS: usize = 64;
/// Name of the folder of streams that are being received, next to the folders of users.
const INCOMING: &str = "streams";
/// Time in which all streams must end when the daemon ends.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// Size of the stack of a thread that receives a stream, in bytes.
const STACK_BYTES: usize = 512 << 10;

/// A stream that is being received.
#[derive(Debug)]
struct Incoming {
    id: u64,
    uid: u32,
    name: String,
    process_info: ProcessInfo,
    /// Socket of the sender; `None` for a stream of an earlier daemon.
    socket: Option<Arc<OwnedFd>>,
    progress: Arc<Progress>,
    since: Instant,
}

impl Incoming {
    /// Returns the name and the process under which the stream is stored: those of the program that
    /// its sender names, otherwise those of the sender itself.
    fn attributed(&self) -> (String, ProcessInfo) {
        let (mut name, mut process_info) = (self.name.clone(), self.process_info.clone());
        if let Some(info) = self.progress.info.get() {
            if !info.name.is_empty() {
                info.name.rsplit('/').next().unwrap_or_default().clone_into(&mut name);
                (process_info.exe, process_info.argv) = (info.name.clone(), vec![info.name.clone()]);
            }
            if !info.label.is_empty() {
                process_info.label = info.label.chars().take(200).collect();
            }
        }
        (name, process_info)
    }
}

/// Counts of streams since the start of the daemon.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    /// Number of streams that are stored.
    pub kept: u64,
    /// Number of stored streams that are incomplete.
    pub incomplete: u64,
    /// Number of streams of which nothing is stored.
    pub refused: u64,
    /// Number of bytes of the stored streams.
    pub bytes: u64,
}

#[derive(Debug)]
pub(crate) struct Streams {
    /// Folder of the streams that are being received.
    folder: PathBuf,
    serves_all: bool,
    wake: Wake,
    incoming: Vec<Incoming>,
    last_id: u64,
    counters: Counters,
    ended: Receiver<(u32, Received)>,
    ends: Sender<(u32, Received)>,
}

impl Streams {
    /// Creates the folder of streams, and completes those that a killed daemon had received in
    /// part. `wake` is notified at the end of each.
    ///
    /// # Errors
    /// The error of the folder, or of the thread that completes them.
    pub(crate) fn start(config: &Config, wake: Wake) -> io::Result<Streams> {
        let (ends, ended) = unbounded();
        let mut streams = Streams {
            folder: config.state.join(INCOMING),
            serves_all: config.serves_all,
            wake,
            incoming: Vec::new(),
            last_id: 0,
            counters: Counters::default(),
            ended,
            ends,
        };
        streams.recover()?;
        Ok(streams)
    }

    /// Returns the counts since the start of the daemon.
    pub(crate) fn counters(&self) -> Counters {
        self.counters
    }

    /// Returns the number of streams that are being received.
    pub(crate) fn count(&self) -> usize {
        self.incoming.len()
    }

    /// Returns the entries of the answer to `list`.
    pub(crate) fn describe(&self) -> impl Iterator<Item = protocol::Stream> {
        self.incoming.iter().map(|one| {
            let (name, process_info) = one.attributed();
            protocol::Stream {
                pid: one.process_info.pid,
                uid: one.uid,
                name,
                label: process_info.label,
                exe: process_info.exe,
                mode: STREAM.into(),
                seconds: one.since.elapsed().as_secs(),
                received: one.progress.bytes.load(Relaxed),
            }
        })
    }

    fn new_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    /// Starts the reception of a stream.
    pub(crate) fn take(&mut self, caller: FileSender, epochs: &mut Epochs, budgets: &mut Budgets) {
        let FileSender { socket, pid, uid, is_stream } = caller;
        let socket = Arc::new(socket);
        let permitted = self.check_permission(uid, epochs, budgets);
        let limits = *budgets.limits();
        if let Err(why) = permitted.and_then(|()| self.begin(&socket, pid, uid, is_stream, epochs, limits)) {
            self.counters.refused += 1;
            tracing::debug!("a stream of process {pid} of user {uid} is not stored: {why}");
            receive::answer(&socket, &json!({ "error": why }));
        }
    }

    fn check_permission(&self, uid: u32, epochs: &Epochs, budgets: &mut Budgets) -> Result<(), String> {
        if !self.serves_all && uid != nix::unistd::geteuid().as_raw() {
            return Err("this daemon serves only its own user".into());
        }
        if epochs.disk().is_full(uid) {
            budgets.hit("disk", &format!("user {uid}: a stream is not stored"));
            return Err("its user's share of the daemon's disk is used up".into());
        }
        let Budget { streams, user_stream_bytes, .. } = *budgets.limits();
        let sent = epochs.streams(uid);
        let (begun, bytes) = (sent.begun, sent.bytes.load(Relaxed));
        let of_user = self.incoming.iter().filter(|one| one.uid == uid).count();
        let (what, why) = if of_user >= MAX_STREAMS_OF_USER || self.incoming.len() >= MAX_STREAMS {
            ("streams", "too many streams at once".into())
        } else if begun >= streams {
            ("streams", format!("its user has sent {begun} streams in this epoch"))
        } else if bytes >= user_stream_bytes {
            ("user-stream-bytes", format!("its user has sent {bytes} bytes in this epoch"))
        } else {
            return Ok(());
        };
        budgets.hit(what, &format!("user {uid}: {why}"));
        Err(why)
    }

    fn begin(
        &mut self,
        socket: &Arc<OwnedFd>,
        pid: u32,
        uid: u32,
        is_stream: bool,
        epochs: &mut Epochs,
        limits: Budget,
    ) -> Result<(), String> {
        let epoch = epochs.of_user(uid).map_err(|error| error.to_string())?;
        let Budget { stream_bytes, user_stream_bytes, stream_idle, .. } = limits;
        epochs.count_stream(uid);
        let user = (epochs.streams(uid).bytes, user_stream_bytes);
        let limits = Limits { bytes: stream_bytes, idle: stream_idle, user };
        // The data that is read belongs to this process if it has not ended in the meantime.
        let end = sys::process_of_peer(sys::fd(&**socket), pid);
        let read = move || (Process::read(pid), proc::variable(pid, &["HEAPTAPE_LABEL"]).pop().flatten());
        let (process, label) = aside::call(Owner { pid, uid }, read).unwrap_or_default();
        let (_, unit) = proc::control_group(pid);
        let lives = end.is_ok_and(|end| !sys::is_readable(sys::fd(&end)));
        let (process, label) = if lives { (process, label.or(unit)) } else { Default::default() };
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let name = if process.comm.is_empty() { STREAM.to_owned() } else { text(&process.comm) };
        let started_unix_ns = clock::unix_ns();
        let process_info = ProcessInfo {
            pid,
            ppid: process.ppid,
            origin: STREAM.into(),
            exe: text(&process.exe),
            argv: process.argv.iter().map(|argument| text(argument)).collect(),
            label: label.unwrap_or_default().chars().take(200).collect(),
            started_unix_ns,
            ..ProcessInfo::default()
        };
        let id = self.new_id();
        let progress = Arc::new(Progress::default());
        let folder =
            self.folder.join(format!("{uid}-{pid}.{}@{started_unix_ns}-{id}", sanitized_name(name.as_bytes())));
        let (quota, reader) = (epochs.quota(uid), epoch.reader);
        let (job_progress, socket_of_job) = (Arc::clone(&progress), Arc::clone(socket));
        let job = Job { id, socket: socket_of_job, is_stream, folder, reader, limits, progress: job_progress, quota };
        let (ends, wake) = (self.ends.clone(), Arc::clone(&self.wake));
        let take = move || {
            let _ = ends.send((uid, receive::receive(&job)));
            let _ = wake.as_ref().write(&[1]);
        };
        let thread = std::thread::Builder::new().name(STREAM.into()).stack_size(STACK_BYTES).spawn(take);
        thread.map_err(|error| error.to_string())?;
        let (socket, since) = (Some(Arc::clone(socket)), Instant::now());
        self.incoming.push(Incoming { id, uid, name, process_info, socket, progress, since });
        Ok(())
    }

    /// Stores the streams that have ended.
    pub(crate) fn store_ended(&mut self, epochs: &mut Epochs, budgets: &mut Budgets) {
        while let Ok((uid, received)) = self.ended.try_recv() {
            self.end(uid, received, epochs, budgets);
        }
    }

    fn end(&mut self, uid: u32, received: Received, epochs: &mut Epochs, budgets: &mut Budgets) {
        let Some(index) = self.incoming.iter().position(|one| one.id == received.id) else { return };
        let incoming = self.incoming.swap_remove(index);
        let ((name, mut process_info), socket) = (incoming.attributed(), incoming.socket);
        if let Some(hit) = received.hit {
            budgets.hit(hit, &format!("user {uid}: a stream of process {} was ended", process_info.pid));
        }
        let why = received.why.clone().unwrap_or_else(|| "complete".into());
        tracing::debug!("stream of {} ({}), {} bytes: {why}", name.escape_debug(), process_info.pid, received.bytes);
        let kept = received.kept.as_ref().map(|(folder, _)| folder.clone());
        let epoch = kept.is_some().then(|| epochs.of_user(uid).ok()).flatten();
        let (Some(from), Some(epoch)) = (kept, epoch) else {
            self.counters.refused += 1;
            return socket.iter().for_each(|socket| receive::answer(socket, &received.json(None)));
        };
        let counters = &mut self.counters;
        counters.kept += 1;
        counters.bytes += received.bytes;
        counters.incomplete += u64::from(received.why.is_some());
        process_info.ended_unix_ns = Some(clock::unix_ns());
        process_info.lacks = received.why.clone().filter(|_| received.is_corrupt);
        let to = epochs.folder(uid, &epoch, Mode::Profile, process_info.pid, &name);
        process_info.folder = to.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let done = Callback::new(move || {
            let folder = to.is_dir().then_some(to.as_path());
            socket.iter().for_each(|socket| receive::answer(socket, &received.json(folder)));
        });
        epochs.add_stream(epoch, from, process_info, done);
    }

    /// Ends all streams, since the daemon ends.
    pub(crate) fn finish(&mut self, epochs: &mut Epochs, budgets: &mut Budgets) {
        for one in &self.incoming {
            one.progress.is_stopped.store(true, Relaxed);
            if let Some(socket) = &one.socket {
                let _ = socket::shutdown(socket.as_raw_fd(), socket::Shutdown::Read);
            }
        }
        let until = Instant::now() + END_TIMEOUT;
        while self.count() > 0
            && let Ok((uid, received)) = self.ended.recv_deadline(until)
        {
            self.end(uid, received, epochs, budgets);
        }
    }

    /// Completes the streams that a killed daemon had received in part.
    fn recover(&mut self) -> io::Result<()> {
        make_folder(&self.folder, None)?;
        let mut unfinished = Vec::new();
        for entry in std::fs::read_dir(&self.folder)?.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            let (from, name) = name.split_once('-').unwrap_or_default();
            let (pid, name) = name.split_once('.').unwrap_or_default();
            let (Ok(uid), Ok(pid), Some((name, _))) = (from.parse(), pid.parse(), name.split_once('@')) else {
                std::fs::remove_dir_all(entry.path())?;
                continue;
            };
            let process_info =
                ProcessInfo { pid, origin: STREAM.into(), started_unix_ns: clock::unix_ns(), ..ProcessInfo::default() };
            let id = self.new_id();
            let (name, progress, since) = (name.to_owned(), Arc::new(Progress::default()), Instant::now());
            let job_progress = Arc::clone(&progress);
            self.incoming.push(Incoming { id, uid, name, process_info, socket: None, progress, since });
            let reader = (uid != nix::unistd::geteuid().as_raw()).then_some(uid);
            unfinished.push((id, uid, entry.path(), reader, job_progress));
        }
        let (ends, wake) = (self.ends.clone(), Arc::clone(&self.wake));
        let recover_all = move || {
            for (id, uid, folder, reader, progress) in unfinished {
                let _ = ends.send((uid, receive::recover(id, &folder, reader, &progress)));
                let _ = wake.as_ref().write(&[1]);
            }
        };
        crash::spawn(STREAM, recover_all).map(drop)
    }
}
