//! The continuation of a recording whose recorder was killed, and the selection and the folders of
//! processes.

use super::{Recorder, Running, text};
use crate::inject::patch::Plan;
use crate::os::sys::{self, Mapping};
use crate::rings::ring_space;
use crate::session::handover::{About, CommandLink, Handover, Held};
use crate::session::listener::Client;
use crate::session::options::Options;
use crate::session::traced_process::{Attached, Ids};
use crate::target::jit_names;
use crate::target::proc::{self, Process};
use crate::target::untraced;
use formats::pattern::Pattern;
use formats::recording::{ProcessInfo, RECORDING, Recording};
use formats::tape::{Origin, journal};
use std::fs::DirBuilder;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::atomic::Ordering::Acquire;
use std::time::{Duration, Instant};

/// Why a process is not recorded whose recorder was killed before the process had its area.
pub const KILLED: &str = "its recorder was killed while the process attached";
/// Time in which an adopted process must start to use its area.
const ADOPT_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval of the checks whether an adopted process uses its area.
pub(super) const ADOPT_INTERVAL: Duration = Duration::from_millis(10);

/// A process of a killed recorder that may not use its area yet.
#[derive(Debug)]
pub(super) struct Adopted {
    held: Held,
    mapping: Mapping,
    until: Instant,
}

impl Adopted {
    /// Ends the wait for the process.
    pub(super) fn expire(&mut self) {
        self.until = Instant::now();
    }
}

impl Recorder {
    /// Continues a recording whose recorder was killed.
    ///
    /// # Errors
    /// When the recording cannot be read, or has its end already.
    pub fn resume(dir: &Path, socket: &Path, options: Options) -> io::Result<Recorder> {
        let recording: Recording = serde_json::from_slice(&std::fs::read(dir.join(RECORDING))?)?;
        if recording.ended_unix_ns.is_some() {
            return Err(io::Error::other("the recording has its end"));
        }
        let first_pid = recording.processes.first().map(|process_info| process_info.pid);
        let mut recorder = Recorder::with(dir, socket, options, recording)?;
        recorder.first_pid = first_pid;
        Ok(recorder)
    }

    /// Connects the recorder to the command, which gets the descriptors of each process.
    pub fn connect_command(&mut self, link: CommandLink) {
        self.handovers.connect(link);
    }

    /// Passes the descriptors of a process to the command.
    pub(super) fn hand_over(&mut self, client: &Client, info: ProcessInfo, area: &OwnedFd) {
        let about = About { info, hello_pid: client.hello.pid, uid: client.uid };
        if let (Ok(area), Ok(process)) = (area.try_clone(), client.process.try_clone()) {
            self.handovers.push(Handover::Begun(Box::new(Held { about, area, process })));
        }
    }

    /// Continues with a process of a killed recorder, as soon as the process uses its area.
    pub fn take_over(&mut self, held: Held) {
        match Mapping::adopt(&held.area) {
            Ok(mapping) => self.adopted.push(Adopted { held, mapping, until: Instant::now() + ADOPT_TIMEOUT }),
            Err(error) => {
                self.errors.push(format!("process {} is not recorded any more: {error}", held.about.info.pid));
            }
        }
        self.start_adopted();
    }

    /// Starts the sessions of adopted processes that use their areas, and names those that never
    /// will.
    pub(super) fn start_adopted(&mut self) {
        for adopted in std::mem::take(&mut self.adopted) {
            // In this order: a process sets its flag before it ends.
            let has_ended = sys::is_readable(sys::fd(&adopted.held.process));
            if adopted.mapping.header().attached.load(Acquire) != 0 {
                self.continue_process(adopted);
            } else if has_ended || Instant::now() >= adopted.until {
                let info = adopted.held.about.info;
                let _ = std::fs::remove_dir(self.dir.join(&info.folder));
                self.handovers.push(Handover::Over(info.folder));
                self.not_traced(info.pid, info.exe, KILLED.into());
            } else {
                self.adopted.push(adopted);
            }
        }
    }

    /// Continues with a process of a killed recorder, in another folder. The blocks that were live
    /// before are not known any more: their frees are of unknown blocks.
    fn continue_process(&mut self, Adopted { held, mapping, .. }: Adopted) {
        let Held { about: About { info, hello_pid, uid }, area, process: end } = held;
        let pid = info.pid;
        let name = proc::sanitized_name(&Process::read(pid).comm);
        let stem = info.folder.trim_end_matches(|character: char| character.is_ascii_digit()).trim_end_matches('.');
        let name = if name.is_empty() { stem.to_owned() } else { format!("{pid}.{name}") };
        let folder = match self.make_folder(&name) {
            Ok(folder) => folder,
            Err(error) => {
                self.errors.push(format!("process {pid} is not recorded any more: {error}"));
                return;
            }
        };
        ring_space::resume(&mapping, &journal::positions(&self.dir.join(&info.folder)));
        if !self.recording.processes.iter().any(|process_info| process_info.folder == info.folder) {
            self.recording.processes.push(info.clone());
            // Before the command holds the next part instead of this one.
            if let Err(error) = self.write_recording() {
                self.errors.push(format!("{}: {error}", self.dir.join(RECORDING).display()));
            }
        }
        self.first_pid.get_or_insert(pid);
        let began_unix_ns = if info.began_unix_ns == 0 { info.started_unix_ns } else { info.began_unix_ns };
        let process = Process {
            ppid: info.ppid,
            exe: info.exe.clone().into_bytes(),
            argv: info.argv.iter().map(|argument| argument.clone().into_bytes()).collect(),
            ..Process::read(pid)
        };
        let (id, child_faults, comm) = (self.new_id(), process.child_faults, process.comm.clone());
        let (ids, start_tick, saver) = (Ids { pid, hello_pid, uid }, self.clock.now(), self.saver.clone());
        let attached = Attached::taken_over(ids, process, mapping, start_tick, jit_names::MAX_MAP_BYTES, saver);
        let session = self.session(id, attached, &folder).resumed(began_unix_ns);
        let session = session.hooks(Plan::inherited(&info)).build();
        let process_info = ProcessInfo {
            folder,
            origin: Origin::Attach.name().into(),
            started_unix_ns: session.process.start_unix_ns,
            began_unix_ns,
            exit: None,
            accounting: None,
            ..info
        };
        if let Ok(process) = end.try_clone() {
            let about = About { info: process_info.clone(), hello_pid, uid };
            self.handovers.push(Handover::Begun(Box::new(Held { about, area, process })));
        }
        let (worker, index) = (id as usize % self.stages.workers, self.recording.processes.len());
        let (process, program, has_references) = (end, untraced::program(pid), false);
        let running =
            Running { session, process, hello_pid, worker, index, program, child_faults, comm, has_references };
        self.begin(running, process_info);
    }

    /// Returns whether a program is selected, by the name of its file or of its script.
    pub(super) fn is_selected(&self, process: &Process) -> bool {
        let exe = text(&process.exe);
        let names = [exe.rsplit('/').next().unwrap_or_default().to_owned(), text(&process.comm)];
        let among =
            |patterns: &[Pattern]| patterns.iter().any(|pattern| names.iter().any(|name| pattern.matches(name)));
        (self.options.only.is_empty() || among(&self.options.only)) && !among(&self.options.skip)
    }

    pub(super) fn make_folder(&mut self, name: &str) -> io::Result<String> {
        loop {
            let count = self.folders.entry(name.to_owned()).or_insert(0);
            *count += 1;
            let folder = if *count == 1 { name.to_owned() } else { format!("{name}.{count}") };
            match DirBuilder::new().mode(0o700).create(self.dir.join(&folder)) {
                Ok(()) => return Ok(folder),
                // Of a recorder that was killed.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
    }
}
