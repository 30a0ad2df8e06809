//! The recorder as its owner holds it: takes processes in, follows them to their end, keeps `recording.json`, runs the stages.

use crate::attach::{Client, Door};
use crate::clock::{self, Clock};
use crate::drain::Command;
use crate::options::Options;
use crate::process::{self, Process, sanitised};
use crate::session::{End, Session, SessionId};
use crate::stages::Stages;
use crate::store::Sums;
use crate::sys::{self, Mapping};
use formats::recording::{Image, NotTraced, RECORDING, Recording};
use formats::tape::{self, field::Text};
use nix::poll::{PollFd, PollFlags, PollTimeout};
use std::collections::HashMap;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::hello::{Hello, ORIGIN_FORK, REFUSED_FILTER, REFUSED_FULL};

/// Sessions at once.
const MOST_SESSIONS: usize = 4096;
/// `recording.json` is not written more often, the end apart.
const REWRITE: Duration = Duration::from_millis(250);

/// A session that runs.
#[derive(Debug)]
struct Running {
    session: Arc<Session>,
    process: OwnedFd,
    hello_pid: u32,
    worker: usize,
    /// Its place in the recording's images.
    image: usize,
}

/// A recorder at work.
#[derive(Debug)]
pub struct Recorder {
    dir: PathBuf,
    recording: Recording,
    written: Option<Instant>,
    dirty: bool,
    clock: Clock,
    ticks_per_second: Option<u64>,
    options: Arc<Options>,
    door: Door,
    running: Vec<Running>,
    /// Sessions that ended not long ago, for children that name them as parents: id, pid, folder, worker.
    ended: Vec<(SessionId, u32, String, usize)>,
    folders: HashMap<String, u32>,
    next: SessionId,
    stages: Stages,
    errors: Vec<String>,
    sums: Sums,
}

/// What came of a recording.
#[derive(Debug)]
pub struct Outcome {
    /// What `recording.json` says.
    pub recording: Recording,
    /// What could not be written.
    pub errors: Vec<String>,
    /// Events of all processes.
    pub sums: Sums,
}

impl Recorder {
    /// Starts recording into a folder that exists, for programs that find `socket`.
    pub fn start(dir: &Path, socket: &Path, options: Options, command: Vec<String>) -> io::Result<Recorder> {
        let door = Door::open(socket)?;
        let clock = Clock::choose();
        let stages = Stages::start(clock)?;
        let recording = Recording {
            format: "heaptape recording".into(),
            version: 1,
            heaptape: env!("CARGO_PKG_VERSION").into(),
            command,
            cwd: std::env::current_dir().map(|cwd| cwd.to_string_lossy().into_owned()).unwrap_or_default(),
            host: nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
            started_unix_ns: clock::unix_ns(),
            ..Recording::default()
        };
        let mut recorder = Recorder {
            dir: dir.to_owned(),
            recording,
            written: None,
            dirty: true,
            clock,
            ticks_per_second: None,
            options: Arc::new(options),
            door,
            running: Vec::new(),
            ended: Vec::new(),
            folders: HashMap::new(),
            next: 1,
            stages,
            errors: Vec::new(),
            sums: Sums::default(),
        };
        recorder.write_recording()?;
        Ok(recorder)
    }

    /// The folder got another name.
    pub fn moved(&mut self, dir: &Path) {
        dir.clone_into(&mut self.dir);
    }

    /// Processes taken in so far.
    pub fn images(&self) -> &[Image] {
        &self.recording.images
    }

    /// A process that runs without being recorded, and why.
    pub fn not_traced(&mut self, pid: u32, exe: String, why: String) {
        self.recording.not_traced.push(NotTraced { pid, exe, why });
        self.dirty = true;
    }

    /// Whether it is known that this process runs unrecorded, and why.
    pub fn knows_untraced(&self, pid: u32) -> bool {
        self.recording.not_traced.iter().any(|process| process.pid == pid)
    }

    /// Waits until something happens, at most so long, and does what is to be done. `others` are descriptors of the caller's; gives
    /// which of them are readable.
    pub fn serve(&mut self, others: &[BorrowedFd<'_>], most: Duration) -> io::Result<Vec<bool>> {
        let most = self.door.deadline().map_or(most, |deadline| deadline.min(most));
        let most = if self.dirty { most.min(REWRITE) } else { most };
        let processes = self.running.iter().map(|running| sys::fd(&running.process));
        let all = others.iter().copied().chain(processes).chain(self.door.descriptors());
        let mut polls: Vec<PollFd<'_>> = all.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        let timeout = PollTimeout::try_from(most.as_millis().max(1) as i32).unwrap_or(PollTimeout::MAX);
        match nix::poll::poll(&mut polls, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let ready: Vec<bool> = polls.iter().map(|poll| poll.any().unwrap_or(false)).collect();
        drop(polls);
        let (others_ready, rest) = ready.split_at(others.len());
        let (processes_ready, door_ready) = rest.split_at(self.running.len());
        let gone: Vec<SessionId> =
            self.running.iter().zip(processes_ready).filter(|(_, ready)| **ready).map(|(r, _)| r.session.id).collect();
        if door_ready.contains(&true) || self.door.deadline().is_some() {
            for client in self.door.clients() {
                self.take_in(client);
            }
        }
        for id in gone {
            self.gone(id);
        }
        self.take_stored();
        if self.dirty && self.written.is_none_or(|written| written.elapsed() >= REWRITE) {
            self.write_recording()?;
        }
        Ok(others_ready.to_vec())
    }

    fn take_stored(&mut self) {
        while let Ok(stored) = self.stages.stored.try_recv() {
            self.errors.extend(stored.error);
            self.sums.add(stored.sums);
        }
    }

    fn gone(&mut self, id: SessionId) {
        if let Some(place) = self.running.iter().position(|running| running.session.id == id) {
            let running = &self.running[place];
            let end = process::end(running.session.process.pid, sys::fd(&running.process));
            self.end(place, end);
        }
    }

    /// A process whose end the caller knows better.
    pub fn process_ended(&mut self, pid: u32, end: End) {
        while let Some(place) = self.running.iter().position(|running| running.session.process.pid == pid) {
            self.end(place, end);
        }
    }

    fn end(&mut self, place: usize, end: End) {
        let running = self.running.swap_remove(place);
        let _ = self.stages.commands.send(Command::End(running.session.id, end));
        if let Some(image) = self.recording.images.get_mut(running.image) {
            image.exit = Some(end.exit());
            image.ended_unix_ns = Some(clock::unix_ns());
            self.ended.push((running.session.id, running.session.process.pid, image.folder.clone(), running.worker));
            let old = self.ended.len().saturating_sub(64);
            self.ended.drain(..old);
        }
        self.dirty = true;
    }

    fn take_in(&mut self, client: Client) {
        let is_child =
            !self.recording.images.is_empty() && !self.recording.images.iter().any(|image| image.pid == client.pid);
        if !self.options.children && is_child {
            return client.refuse(REFUSED_FILTER);
        }
        if self.running.len() >= MOST_SESSIONS {
            let process = Process::read(client.pid);
            self.not_traced(client.pid, text(&process.exe), "too many processes at once".into());
            return client.refuse(REFUSED_FULL);
        }
        let start_tick = self.clock.now();
        let process = Process::read(client.pid);
        let (mapping, file) = match client.area(&self.options, self.clock) {
            Ok(area) => area,
            Err(error) => {
                let why = format!("no memory for its rings: {error}");
                tracing::warn!("{} ({}) runs unrecorded: {why}", text(&process.comm), client.pid);
                self.not_traced(client.pid, text(&process.exe), why);
                return client.refuse(REFUSED_FULL);
            }
        };
        let folder = match self.make_folder(&format!("{}.{}", client.pid, sanitised(&process.comm))) {
            Ok(folder) => folder,
            Err(error) => {
                self.errors.push(format!("{}: {error}", self.dir.display()));
                tracing::error!("{}: {error}", self.dir.display());
                return client.refuse(REFUSED_FULL);
            }
        };
        // The same process again: it went on with another program, and its old area has all that it published.
        self.process_ended(client.pid, End::EXEC);
        if client.accept(&mapping, &file) {
            self.begin(client, &process, folder, mapping, start_tick);
        } else {
            let _ = std::fs::remove_dir(self.dir.join(folder));
        }
    }

    /// The image that a new one was forked from, or went on from: session, folder, worker.
    fn parent(&self, client: &Client, ppid: u32) -> Option<(SessionId, String, usize)> {
        let folder = |running: &Running| self.recording.images[running.image].folder.clone();
        let Hello { origin, parent_pid: named, fork_tick, .. } = client.hello;
        if origin == ORIGIN_FORK {
            // An image that began after the fork is another program in the parent's process.
            let is_old = |running: &&Running| fork_tick == 0 || running.session.process.start_tick <= fork_tick;
            let by_name = self.running.iter().filter(is_old).find(|running| running.hello_pid == named);
            let by_kernel = || self.running.iter().filter(is_old).find(|running| running.session.process.pid == ppid);
            let past = || self.ended.iter().rev().find(|(_, pid, _, _)| *pid == named);
            return match by_name.or_else(by_kernel) {
                Some(running) => Some((running.session.id, folder(running), running.worker)),
                None => past().map(|(id, _, folder, worker)| (*id, folder.clone(), *worker)),
            };
        }
        // Its process had another image before, or was forked and has called nothing of ours in between.
        let before = self.ended.iter().rev().find(|(_, pid, _, _)| *pid == client.pid);
        let maker = || self.running.iter().find(|running| running.session.process.pid == ppid);
        let before = before.map(|(id, _, folder, worker)| (*id, folder.clone(), *worker));
        before.or_else(|| maker().map(|running| (running.session.id, folder(running), running.worker)))
    }

    fn begin(&mut self, client: Client, process: &Process, folder: String, mapping: Mapping, start_tick: u64) {
        let (pid, hello) = (client.pid, client.hello);
        let is_fork = hello.origin == ORIGIN_FORK;
        let parent = self.parent(&client, process.ppid);
        let origin = match (is_fork, &parent) {
            (true, _) => 1,
            (false, Some(_)) => 2,
            (false, None) if self.recording.images.is_empty() && !self.recording.command.is_empty() => 0,
            (false, None) => 3,
        };
        let ticks_per_second = *self.ticks_per_second.get_or_insert_with(|| self.clock.ticks_per_second());
        let unix_ns = clock::unix_ns();
        let image = Image {
            folder: folder.clone(),
            pid,
            ppid: process.ppid,
            origin: ["start", "fork", "exec", "attach"][origin as usize].into(),
            parent: parent.as_ref().map(|(_, folder, _)| folder.clone()),
            exe: text(&process.exe),
            argv: process.argv.iter().map(|argument| text(argument)).collect(),
            started_unix_ns: unix_ns,
            ..Image::default()
        };
        let id = self.next;
        self.next += 1;
        let worker = match &parent {
            Some((_, _, worker)) if is_fork => *worker,
            _ => id as usize % self.stages.workers,
        };
        let session = Arc::new(Session {
            id,
            mapping: Arc::new(mapping),
            process: tape::Process {
                pid,
                ppid: process.ppid,
                uid: client.uid,
                origin,
                ticks_per_second,
                start_tick,
                start_unix_ns: unix_ns,
                page_size: hello.page_size,
                exe: Text(process.exe.clone()),
                cwd: Text(process.cwd.clone()),
                argv: process.argv.iter().map(|argument| Text(argument.clone())).collect(),
                label: Text(self.options.label.clone().into_bytes()),
                recorder: env!("CARGO_PKG_VERSION").into(),
                sample_bytes: self.options.sample_bytes,
                free_sites: self.options.free_stacks,
            },
            folder: self.dir.join(&folder),
            clock: self.clock,
            options: Arc::clone(&self.options),
            forked: parent.filter(|_| is_fork).map(|(parent, folder, _)| (parent, folder, hello.fork_tick)),
            is_namespaced: hello.pid != pid,
            stats: Arc::default(),
            limit: Arc::default(),
            resumed: false,
        });
        let _ = self.stages.commands.send(Command::Start(Arc::clone(&session), worker));
        let image_place = self.recording.images.len();
        self.running.push(Running {
            session,
            process: client.process,
            hello_pid: hello.pid,
            worker,
            image: image_place,
        });
        self.recording.images.push(image);
        self.dirty = true;
    }

    fn make_folder(&mut self, name: &str) -> io::Result<String> {
        let count = self.folders.entry(name.to_owned()).or_insert(0);
        *count += 1;
        let folder = if *count == 1 { name.to_owned() } else { format!("{name}.{count}") };
        DirBuilder::new().mode(0o700).create(self.dir.join(&folder))?;
        Ok(folder)
    }

    fn write_recording(&mut self) -> io::Result<()> {
        let path = self.dir.join(RECORDING);
        let temporary = self.dir.join(format!("{RECORDING}.tmp"));
        let mut bytes = serde_json::to_vec_pretty(&self.recording)?;
        bytes.push(b'\n');
        let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(&bytes)?;
        std::fs::rename(&temporary, &path)?;
        (self.written, self.dirty) = (Some(Instant::now()), false);
        Ok(())
    }

    /// Ends the recording: whatever is over is drained, what still runs is left alone from here on.
    pub fn finish(mut self) -> Outcome {
        let _ = self.serve(&[], Duration::ZERO);
        while !self.running.is_empty() {
            self.end(0, End::RUNNING);
        }
        self.stages.stop();
        self.take_stored();
        self.recording.ended_unix_ns = Some(clock::unix_ns());
        if let Err(error) = self.write_recording() {
            self.errors.push(format!("{}: {error}", self.dir.join(RECORDING).display()));
        }
        Outcome { recording: self.recording, errors: self.errors, sums: self.sums }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
