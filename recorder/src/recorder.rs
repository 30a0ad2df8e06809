//! The recorder as its owner holds it: takes processes in, follows them to their end, keeps
//! `recording.json`, runs the stages.

use crate::attach::{Client, Door, Visit};
use crate::boards::{Boards, Found};
use crate::clock::{self, Clock};
use crate::code::{self, CodeMap};
use crate::drain::Command;
use crate::module_files::ModuleFiles;
use crate::options::Options;
use crate::process::{self, Process, sanitised};
use crate::session::{End, Session, SessionId};
use crate::stages::Stages;
use crate::store::Sums;
use crate::symbols::Saver;
use crate::sync;
use crate::sys::{self, Mapping};
use crate::tree::{self, Change, Watch};
use crossbeam_channel::bounded;
use formats::recording::{NotTraced, ProcessInfo, RECORDING, RESERVE, Recording};
use formats::tape::{self, field::Text};
use nix::poll::{PollFd, PollFlags, PollTimeout};
use std::collections::HashMap;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Acquire;
use std::time::{Duration, Instant};
use wire::hello::{Hello, ORIGIN_FORK, REFUSED_FILTER, REFUSED_FULL, UntracedReason};

/// Sessions at once.
const MOST_SESSIONS: usize = 4096;
/// Time from the hand-over of an area to its use.
const SETTLING: Duration = Duration::from_secs(10);
/// Time for the parent's state at a fork that was not seen.
const UNSEEN: Duration = Duration::from_millis(100);
/// See [`RESERVE`].
const RESERVE_BYTES: i64 = 256 << 10;
/// Processes that run unrecorded, by name and reason; more are counted with the last.
const MOST_NOT_TRACED: usize = 10_000;
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
    /// The file that it runs.
    program: Option<(u64, u64)>,
}

/// A process that was given its area and has not yet said that it uses it: it may have given up
/// waiting.
#[derive(Debug)]
struct Handed {
    client: Client,
    process: Process,
    program: Option<(u64, u64)>,
    code: CodeMap,
    files: ModuleFiles,
    folder: String,
    mapping: Mapping,
    start_tick: u64,
    since: Instant,
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
    handed: Vec<Handed>,
    running: Vec<Running>,
    watch: Watch,
    /// The process that was recorded first.
    first: Option<u32>,
    /// Sessions that ended not long ago, for children that name them as parents: id, pid, folder,
    /// worker.
    ended: Vec<(SessionId, u32, String, usize)>,
    boards: Boards,
    folders: HashMap<String, u32>,
    next: SessionId,
    /// The images of sessions that are not written yet, by their place in the recording.
    unwritten: HashMap<SessionId, usize>,
    stages: Stages,
    errors: Vec<String>,
    sums: Sums,
    saver: Option<Arc<Saver>>,
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
    /// Recorded processes that were still running: pid and name.
    pub still_running: Vec<(u32, String)>,
}

impl Recorder {
    /// Starts recording into a folder that exists, for programs that find `socket`.
    pub fn start(dir: &Path, socket: &Path, options: Options, command: Vec<String>) -> io::Result<Recorder> {
        let door = Door::open_unlisted(socket)?;
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
            handed: Vec::new(),
            running: Vec::new(),
            watch: Watch::default(),
            first: None,
            ended: Vec::new(),
            boards: Boards::default(),
            folders: HashMap::new(),
            next: 1,
            unwritten: HashMap::new(),
            stages,
            errors: Vec::new(),
            sums: Sums::default(),
            saver: None,
        };
        recorder.write_recording()?;
        recorder.set_room_aside();
        Ok(recorder)
    }

    /// Room for what must be said when the disk is full. Without it the recording may end without
    /// its ending.
    fn set_room_aside(&self) {
        let path = self.dir.join(RESERVE);
        if let Ok(file) = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)
            && nix::fcntl::posix_fallocate(&file, 0, RESERVE_BYTES).is_err()
        {
            let _ = file.set_len(0);
        }
    }

    /// From here on the recording keeps the names of its modules.
    pub fn save_names(&mut self, saver: Arc<Saver>) {
        self.saver = Some(saver);
    }

    /// Processes taken in so far.
    pub fn images(&self) -> &[ProcessInfo] {
        &self.recording.images
    }

    /// Whether anybody is recorded, or about to be.
    pub fn is_busy(&self) -> bool {
        !self.running.is_empty() || !self.handed.is_empty()
    }

    /// A process that runs without being recorded, and why.
    pub fn not_traced(&mut self, pid: u32, exe: String, why: String) {
        tracing::debug!("{exe} ({pid}) runs unrecorded: {why}");
        if self.recording.not_traced.len() >= MOST_NOT_TRACED {
            return;
        }
        self.recording.not_traced.push(NotTraced { pid, exe, why });
        self.dirty = true;
    }

    /// Whether it is known that this process runs unrecorded, and why.
    pub fn knows_untraced(&self, pid: u32) -> bool {
        self.recording.not_traced.iter().any(|process| process.pid == pid)
    }

    /// Waits until something happens, at most so long, and does what is to be done. `others` are
    /// descriptors of the caller's; gives which of them are readable.
    pub fn serve(&mut self, others: &[BorrowedFd<'_>], most: Duration) -> io::Result<Vec<bool>> {
        let most = self.door.deadline().map_or(most, |deadline| deadline.min(most));
        let most = self.watch.deadline().map_or(most, |deadline| deadline.min(most));
        let most = if self.dirty { most.min(REWRITE) } else { most };
        let most = self.boards.deadline().map_or(most, |deadline| deadline.min(most));
        let processes = self.running.iter().map(|running| sys::fd(&running.process));
        let all = others.iter().copied().chain(processes).chain(self.door.descriptors());
        let all = all.chain(self.handed.iter().map(|handed| handed.client.descriptor()));
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
        self.settle();
        if door_ready.contains(&true) || self.door.deadline().is_some() {
            for visit in self.door.visits() {
                match visit {
                    Visit::Hello(client) => self.take_in(client),
                    // A recording of a program is of that program alone.
                    Visit::File(_) | Visit::Unheard(..) => {}
                    Visit::Notice { from, pid, why, path } => self.noticed(from, pid, why, &path),
                }
            }
        }
        // Before the ends: who says that it goes on with another program ends by that.
        self.read_boards();
        for id in gone {
            self.gone(id);
        }
        self.look_for_leavers();
        self.take_stored();
        if self.dirty && self.written.is_none_or(|written| written.elapsed() >= REWRITE) {
            self.write_recording()?;
        }
        Ok(others_ready.to_vec())
    }

    /// Sessions begin when their processes use their areas. Those that do not have given up.
    fn settle(&mut self) {
        for handed in std::mem::take(&mut self.handed) {
            let is_attached = |handed: &Handed| handed.mapping.header().attached.load(Acquire) != 0;
            // In this order: whoever attached said so before it left.
            let has_left = handed.client.has_left();
            if is_attached(&handed) {
                self.begin(handed);
            } else if has_left || handed.since.elapsed() > SETTLING {
                self.gave_up(&handed.client, &handed.process, &handed.folder);
            } else {
                self.handed.push(handed);
            }
        }
    }

    fn gave_up(&mut self, client: &Client, process: &Process, folder: &str) {
        self.not_traced(client.pid, text(&process.exe), UntracedReason::Busy.text().into());
        let _ = std::fs::remove_dir(self.dir.join(folder));
    }

    /// The library in a process saw that another program will not be recorded.
    fn noticed(&mut self, from: u32, pid: u32, why: UntracedReason, path: &[u8]) {
        if pid == 0 && self.running.iter().any(|running| running.session.process.pid == from) {
            self.watch.leaves(from);
        }
        self.not_traced(if pid == 0 { from } else { pid }, text(path), why.text().into());
    }

    /// Takes in what processes say that cannot reach the socket.
    fn read_boards(&mut self) {
        let running = self.running.iter().map(|running| (Arc::clone(&running.session), running.hello_pid));
        for Found { pid, is_owner, exe, why } in self.boards.read(running) {
            if is_owner && self.running.iter().any(|running| running.session.process.pid == pid) {
                self.watch.leaves(pid);
            }
            self.not_traced(pid, exe, why);
        }
    }

    /// Processes that went on with a program that is not recorded.
    fn look_for_leavers(&mut self) {
        let running = self.running.iter().map(|running| (running.session.process.pid, running.program));
        for (pid, change) in self.watch.look(running) {
            match change {
                Change::Stayed => {
                    let last = self.recording.not_traced.iter().rposition(|process| process.pid == pid);
                    last.map(|place| self.recording.not_traced.remove(place));
                }
                Change::Left => {
                    if !self.knows_untraced(pid) {
                        let exe = format!("/proc/{pid}/exe");
                        let why = tree::why_not(Path::new(&exe)).unwrap_or_else(|| tree::NOT_LOADED.into());
                        self.not_traced(pid, text(&Process::read(pid).exe), why);
                    }
                    self.process_ended(pid, End::EXEC);
                }
            }
            self.dirty = true;
        }
    }

    fn take_stored(&mut self) {
        while let Ok(stored) = self.stages.stored.try_recv() {
            self.errors.extend(stored.error);
            self.sums.add(stored.sums);
            self.boards.stored(stored.session);
            let image = self.unwritten.remove(&stored.session).and_then(|place| self.recording.images.get_mut(place));
            if let Some(image) = image {
                image.accounting = Some(stored.sums);
                self.dirty = true;
            }
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
        let left = self.watch.forget(running.session.process.pid);
        let end = if left { End::EXEC } else { end };
        let _ = self.stages.commands.send(Command::End(running.session.id, end));
        if let Some(image) = self.recording.images.get_mut(running.image) {
            image.exit = Some(end.exit());
            image.ended_unix_ns = Some(clock::unix_ns());
            self.boards.keep((Arc::clone(&running.session), running.hello_pid));
            self.ended.push((running.session.id, running.session.process.pid, image.folder.clone(), running.worker));
            let old = self.ended.len().saturating_sub(64);
            self.ended.drain(..old);
        }
        self.dirty = true;
    }

    fn take_in(&mut self, mut client: Client) {
        let (process, program) = (Process::read(client.pid), tree::program(client.pid));
        // The program that was launched is always recorded; what it goes on with by exec is chosen
        // by name, as children are.
        let is_launched = self.first.is_none();
        let is_child = *self.first.get_or_insert(client.pid) != client.pid;
        if (is_child && !self.options.children) || (!is_launched && !self.is_wanted(&process)) {
            return client.refuse(REFUSED_FILTER);
        }
        if self.running.len() + self.handed.len() >= MOST_SESSIONS {
            self.not_traced(client.pid, text(&process.exe), "too many processes at once".into());
            return client.refuse(REFUSED_FULL);
        }
        let start_tick = self.clock.now();
        let (mapping, file) = match client.area(&self.options, self.clock) {
            Ok(area) => area,
            Err(error) => {
                self.not_traced(client.pid, text(&process.exe), format!("no memory for its rings: {error}"));
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
        // The same process again: it went on with another program, and its old area has all that it
        // published.
        self.process_ended(client.pid, End::EXEC);
        if client.hello.fork_age != 0 {
            self.bequeath_unseen(&mut client, process.ppid);
        }
        let code = CodeMap::of(client.pid, client.hello.pid, client.uid, code::ALONE);
        // While it waits for its answer it cannot be gone.
        let files = ModuleFiles::of(client.pid, self.saver.clone());
        if client.accept(&mapping, &file) {
            let since = Instant::now();
            self.handed.push(Handed { client, process, program, code, files, folder, mapping, start_tick, since });
        } else {
            self.gave_up(&client, &process, &folder);
        }
    }

    /// A child of a fork that the library did not see (a system call of the program's own): it
    /// knows its age. While it waits for its answer its parent's state is fixed.
    fn bequeath_unseen(&mut self, client: &mut Client, ppid: u32) {
        let ticks_per_second = *self.ticks_per_second.get_or_insert_with(|| self.clock.ticks_per_second());
        let tick = client.hello.fork_tick.saturating_sub(ticks_of(client.hello.fork_age, ticks_per_second));
        (client.hello.fork_tick, client.hello.fork_age) = (tick.max(1), 0);
        if let Some((parent, ..)) = self.parent(client, ppid) {
            let (done, is_done) = bounded(1);
            let _ = self.stages.commands.send(Command::Bequeath(parent, tick.max(1), done));
            let _ = is_done.recv_timeout(UNSEEN);
        }
    }

    /// Whether a program is among those that were chosen, by the name of its file or of its script.
    fn is_wanted(&self, process: &Process) -> bool {
        let exe = text(&process.exe);
        let names = [exe.rsplit('/').next().unwrap_or_default().to_owned(), text(&process.comm)];
        let among =
            |patterns: &[String]| patterns.iter().any(|pattern| names.iter().any(|name| tree::matches(pattern, name)));
        (self.options.only.is_empty() || among(&self.options.only)) && !among(&self.options.skip)
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
        // Its process had another image before, or was made by one, or by a process that called
        // nothing of ours in between.
        let ended = |pid: u32| {
            let last = self.ended.iter().rev().find(|(_, ended, _, _)| *ended == pid);
            last.map(|(id, _, folder, worker)| (*id, folder.clone(), *worker))
        };
        let alive = |pid: u32| self.running.iter().find(|running| running.session.process.pid == pid);
        let known =
            |pid: u32| alive(pid).map(|maker| (maker.session.id, folder(maker), maker.worker)).or_else(|| ended(pid));
        ended(client.pid).or_else(|| known(ppid)).or_else(|| tree::ancestors(client.pid).find_map(known))
    }

    fn begin(&mut self, handed: Handed) {
        let Handed { client, process, program, code, files, folder, mapping, start_tick, .. } = handed;
        let (pid, hello) = (client.pid, client.hello);
        let is_fork = hello.origin == ORIGIN_FORK;
        let parent = self.parent(&client, process.ppid);
        // Whoever knows the socket of a command's recorder got it from the command's first process.
        let (is_ours, is_first) = (!self.recording.command.is_empty(), self.first == Some(pid));
        let origin = match (is_fork, &parent) {
            (true, _) => 1,
            (false, Some(_)) => 2,
            (false, None) if is_ours && is_first => 0,
            (false, None) => {
                if is_ours {
                    2
                } else {
                    3
                }
            }
        };
        let ticks_per_second = *self.ticks_per_second.get_or_insert_with(|| self.clock.ticks_per_second());
        let unix_ns = clock::unix_ns();
        let image = ProcessInfo {
            folder: folder.clone(),
            pid,
            ppid: process.ppid,
            origin: ["start", "fork", "exec", "attach"][origin as usize].into(),
            parent: parent.as_ref().map(|(_, folder, _)| folder.clone()),
            exe: text(&process.exe),
            argv: process.argv.iter().map(|argument| text(argument)).collect(),
            started_unix_ns: unix_ns,
            own_malloc: mapping.has_own_malloc(),
            ..ProcessInfo::default()
        };
        let id = self.next;
        self.next += 1;
        let worker = match &parent {
            Some((_, _, worker)) if is_fork => *worker,
            _ => id as usize % self.stages.workers,
        };
        let maker = parent.as_ref().filter(|_| is_fork).map(|(id, _, _)| *id);
        let maker = self.running.iter().find(|running| Some(running.session.id) == maker);
        let session = Arc::new(Session {
            id,
            files: Arc::new(files),
            code: Arc::new(match maker {
                Some(maker) => code.forked_from(&maker.session.code),
                None => code,
            }),
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
            began_unix_ns: 0,
            carried: None,
        });
        let _ = self.stages.commands.send(Command::Start(Arc::clone(&session), worker));
        let image_place = self.recording.images.len();
        self.running.push(Running {
            session,
            process: client.process,
            hello_pid: hello.pid,
            worker,
            image: image_place,
            program,
        });
        self.unwritten.insert(id, image_place);
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
        sync::wrote(&mut 0, bytes.len(), std::iter::once(&file));
        (self.written, self.dirty) = (Some(Instant::now()), false);
        Ok(())
    }

    /// Ends the recording: whatever is over is drained, what still runs is left alone from here on.
    pub fn finish(mut self) -> Outcome {
        let _ = self.serve(&[], Duration::ZERO);
        self.settle();
        self.read_boards();
        let has_ended = |running: &&Running| sys::is_readable(sys::fd(&running.process));
        let ended: Vec<SessionId> = self.running.iter().filter(has_ended).map(|running| running.session.id).collect();
        ended.into_iter().for_each(|id| self.gone(id));
        let name = |running: &Running| {
            let process = &running.session.process;
            (process.pid, process.exe.lossy().rsplit('/').next().unwrap_or_default().to_owned())
        };
        let still_running = self.running.iter().map(name).collect();
        while !self.running.is_empty() {
            self.end(0, End::RUNNING);
        }
        self.stages.stop();
        self.take_stored();
        self.recording.ended_unix_ns = Some(clock::unix_ns());
        let _ = std::fs::remove_file(self.dir.join(RESERVE));
        if let Err(error) = self.write_recording() {
            self.errors.push(format!("{}: {error}", self.dir.join(RECORDING).display()));
        }
        sync::finish();
        Outcome { recording: self.recording, errors: self.errors, sums: self.sums, still_running }
    }
}

/// Ticks of a duration.
pub(crate) fn ticks_of(nanoseconds: u64, ticks_per_second: u64) -> u64 {
    (u128::from(nanoseconds) * u128::from(ticks_per_second) / 1_000_000_000) as u64
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
