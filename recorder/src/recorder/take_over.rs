//! Going on with a recording whose recorder was killed, and what a process is recorded under.

use super::{Recorder, Running, text};
use crate::clock;
use crate::code::{self, PerfMap};
use crate::drain::Command;
use crate::handover::{About, Handover, Held};
use crate::journal_files::JournalFiles;
use crate::module_files::ModuleFiles;
use crate::options::Options;
use crate::process::{self, Process};
use crate::release;
use crate::session::{Session, Stats};
use crate::sys::Mapping;
use crate::tree;
use formats::pattern::Pattern;
use formats::recording::{ProcessInfo, RECORDING, Recording};
use formats::tape::{self, field::Text, journal};
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;

impl Recorder {
    /// Goes on with a recording whose recorder was killed.
    ///
    /// # Errors
    /// When it cannot be read, or has its end already.
    pub fn resume(dir: &Path, socket: &Path, options: Options) -> io::Result<Recorder> {
        let recording: Recording = serde_json::from_slice(&std::fs::read(dir.join(RECORDING))?)?;
        if recording.ended_unix_ns.is_some() {
            return Err(io::Error::other("the recording has its end"));
        }
        let first_pid = recording.images.first().map(|process_info| process_info.pid);
        let mut recorder = Recorder::with(dir, socket, options, recording)?;
        recorder.first_pid = first_pid;
        Ok(recorder)
    }

    /// Returns the messages for the command about recorded processes.
    pub fn handovers(&mut self) -> &mut Vec<Handover> {
        &mut self.handovers
    }

    /// Goes on with a process that a killed recorder had, in another folder. What lived before is
    /// not known any more: its frees are of unknown blocks.
    pub fn take_over(&mut self, held: Held) {
        let Held { about: About { info, hello_pid, uid }, area, process: end } = held;
        let pid = info.pid;
        let name = process::sanitized_name(&Process::read(pid).comm);
        let stem = info.folder.trim_end_matches(|character: char| character.is_ascii_digit()).trim_end_matches('.');
        let name = if name.is_empty() { stem.to_owned() } else { format!("{pid}.{name}") };
        let adopted = Mapping::adopt(&area).and_then(|mapping| Ok((mapping, self.make_folder(&name)?)));
        let (mapping, folder) = match adopted {
            Ok(adopted) => adopted,
            Err(error) => {
                self.errors.push(format!("process {pid} is not recorded any more: {error}"));
                return;
            }
        };
        release::resume(&mapping, &journal::positions(&self.dir.join(&info.folder)));
        if !self.recording.images.iter().any(|process_info| process_info.folder == info.folder) {
            self.recording.images.push(info.clone());
        }
        self.first_pid.get_or_insert(pid);
        let ticks_per_second = *self.ticks_per_second.get_or_insert_with(|| self.clock.ticks_per_second());
        let start_unix_ns = clock::unix_ns();
        let began_unix_ns = if info.began_unix_ns == 0 { info.started_unix_ns } else { info.began_unix_ns };
        let id = self.next;
        self.next += 1;
        let worker = id as usize % self.stages.workers;
        let session = Arc::new(Session {
            id,
            mapping: Arc::new(mapping),
            process: tape::Process {
                pid,
                ppid: info.ppid,
                uid,
                origin: 3,
                ticks_per_second,
                start_tick: self.clock.now(),
                start_unix_ns,
                page_size: wire::area::PAGE as u32,
                exe: Text(info.exe.clone().into_bytes()),
                cwd: Text(Process::read(pid).cwd),
                argv: info.argv.iter().map(|argument| Text(argument.clone().into_bytes())).collect(),
                label: Text(self.options.label.clone().into_bytes()),
                recorder: env!("CARGO_PKG_VERSION").into(),
                sample_bytes: self.options.sample_bytes,
                free_sites: self.options.free_stacks,
            },
            folder: self.dir.join(&folder),
            clock: self.clock,
            options: Arc::clone(&self.options),
            forked: None,
            is_namespaced: hello_pid != pid,
            stats: Arc::new(Stats { live_since_unix_ns: start_unix_ns.into(), ..Stats::default() }),
            limit: Arc::default(),
            resumed: true,
            began_unix_ns,
            carried_over: None,
            journal_files: JournalFiles::default(),
            code: Arc::new(PerfMap::of(pid, hello_pid, uid, code::MAX_MAP_BYTES)),
            files: Arc::new(ModuleFiles::of(pid, self.saver.clone())),
        });
        let (exit, accounting) = (None, None);
        let origin = "attach".to_owned();
        let process_info =
            ProcessInfo { folder, origin, started_unix_ns: start_unix_ns, began_unix_ns, exit, accounting, ..info };
        let _ = self.stages.commands.send(Command::Start(Arc::clone(&session), worker));
        if let Ok(process) = end.try_clone() {
            self.handovers.push(Handover::Begun(Box::new(Held {
                about: About { info: process_info.clone(), hello_pid, uid },
                area,
                process,
            })));
        }
        let index = self.recording.images.len();
        self.running.push(Running {
            session,
            process: end,
            hello_pid,
            worker,
            image: index,
            program: tree::program(pid),
        });
        self.unwritten.insert(id, index);
        self.recording.images.push(process_info);
        self.dirty = true;
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
