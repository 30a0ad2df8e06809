//! The start of a session: from what a recorder learns of a process to the state that all stages
//! share.

use super::{Fork, Session, SessionId, Stats};
use crate::inject::patch::Plan;
use crate::os::clock::{Clock, Moment};
use crate::os::processor::page_bytes;
use crate::os::sys::Mapping;
use crate::session::event_rate::Limit;
use crate::session::journal_files::JournalFiles;
use crate::session::options::Options;
use crate::target::jit_names::PerfMap;
use crate::target::module_files::ModuleFiles;
use crate::target::proc::Process;
use formats::tape::{self, Origin, field::Text};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// What a recorder knows of a process that attaches, or that it takes over from another recorder.
#[derive(Debug)]
pub(crate) struct Attached {
    pub ids: Ids,
    /// How its recording begins.
    pub origin: Origin,
    /// Size of its memory pages in bytes.
    pub page_size: u32,
    pub start_tick: u64,
    /// Information about the process from `/proc`.
    pub process: Process,
    /// Shared memory area of the process.
    pub mapping: Mapping,
    /// The perf map in which it names the code that it generates.
    pub code: PerfMap,
    /// The open files of its modules.
    pub files: ModuleFiles,
}

#[derive(Clone, Copy, Debug)]
pub struct Ids {
    /// Process id in the recorder's pid namespace.
    pub pid: u32,
    /// Process id in the process's own pid namespace.
    pub hello_pid: u32,
    /// User id of the process.
    pub uid: u32,
}

impl Attached {
    /// Describes a process that another recorder recorded until now.
    pub(crate) fn taken_over(
        ids: Ids,
        process: Process,
        mapping: Mapping,
        start_tick: u64,
        code: PerfMap,
        files: ModuleFiles,
    ) -> Attached {
        Attached {
            ids,
            origin: Origin::Attach,
            page_size: page_bytes() as u32,
            start_tick,
            process,
            mapping,
            code,
            files,
        }
    }
}

/// A session that is about to start: of an unrelated process, unless its methods say otherwise.
#[derive(Debug)]
pub(crate) struct SessionBuilder {
    session: Session,
}

impl SessionBuilder {
    /// Creates the session of a process that is recorded in a folder from now on.
    pub(crate) fn new(
        id: SessionId,
        attached: Attached,
        folder: PathBuf,
        options: Arc<Options>,
        clock: Clock,
        ticks_per_second: u64,
    ) -> SessionBuilder {
        let Attached { ids, origin, page_size, start_tick, process, mapping, code, files } = attached;
        let Ids { pid, hello_pid, uid } = ids;
        let start_ticks = process.start_ticks;
        let process = tape::Process {
            pid,
            ppid: process.ppid,
            uid,
            origin: origin.number(),
            ticks_per_second,
            start_tick,
            start_unix_ns: Moment::of(start_tick, &clock, ticks_per_second).unix_ns,
            page_size,
            exe: Text(process.exe),
            cwd: Text(process.cwd),
            argv: process.argv.into_iter().map(Text).collect(),
            label: options.label.as_str().into(),
            recorder: env!("CARGO_PKG_VERSION").into(),
            sample_bytes: options.sample_bytes,
            free_sites: options.free_stacks,
        };
        let session = Session {
            id,
            mapping: Arc::new(mapping),
            process,
            folder,
            clock,
            options,
            forked: None,
            is_namespaced: hello_pid != pid,
            stats: Arc::new(Stats::default()),
            limit: Arc::new(Limit::default()),
            resumed: false,
            began_unix_ns: 0,
            start_ticks,
            carried_over: None,
            earlier: Vec::new(),
            code: Arc::new(code),
            files: Arc::new(files),
            hooks: Arc::new(Plan::default()),
            malloc: Arc::default(),
            journal_files: JournalFiles::default(),
        };
        SessionBuilder { session }
    }

    /// Creates the session of this process, that writes nothing.
    #[cfg(test)]
    pub(crate) fn of_this_process(id: SessionId, mapping: Mapping) -> Arc<Session> {
        let pid = std::process::id();
        let clock = Clock::choose();
        let owner = crate::os::aside::Owner { pid, uid: 0 };
        let attached = Attached {
            ids: Ids { pid, hello_pid: pid, uid: 0 },
            origin: Origin::Start,
            page_size: page_bytes() as u32,
            start_tick: clock.now(),
            process: Process::read(pid),
            mapping,
            code: PerfMap::of(pid, pid, 0, 0, 0),
            files: ModuleFiles::of(owner, None, &[]),
        };
        let folder = std::env::temp_dir().join("nothing-is-written");
        SessionBuilder::new(id, attached, folder, Arc::default(), clock, 1_000_000_000).build()
    }

    /// Names the fork from which the process comes.
    #[must_use]
    pub(crate) fn forked(mut self, fork: Option<Fork>) -> SessionBuilder {
        self.session.forked = fork;
        self
    }

    /// Continues the session of another recorder, which began at this time in nanoseconds since
    /// 1970. The live blocks are not known until what that recorder wrote about them is read.
    #[must_use]
    pub(crate) fn resumed(mut self, began_unix_ns: u64) -> SessionBuilder {
        self.session.stats.live_since_unix_ns.store(self.session.process.start_unix_ns, Relaxed);
        (self.session.resumed, self.session.began_unix_ns) = (true, began_unix_ns);
        self
    }

    /// Sets the file that hands its live blocks over from one recorder to the next.
    #[must_use]
    pub(crate) fn carried_over(mut self, path: Option<PathBuf>) -> SessionBuilder {
        self.session.carried_over = path;
        self
    }

    /// Sets the folders of its flight recording that the last daemon wrote, oldest first.
    #[must_use]
    pub(crate) fn earlier(mut self, folders: Vec<PathBuf>) -> SessionBuilder {
        self.session.earlier = folders;
        self
    }

    /// Sets the limit of the records that it may send.
    #[must_use]
    pub(crate) fn limit(mut self, limit: Limit) -> SessionBuilder {
        self.session.limit = Arc::new(limit);
        self
    }

    /// Sets the hooks of allocators inside the program.
    #[must_use]
    pub(crate) fn hooks(mut self, plan: Plan) -> SessionBuilder {
        self.session.hooks = Arc::new(plan);
        self
    }

    /// Returns the session, ready to be started.
    #[must_use]
    pub(crate) fn build(self) -> Arc<Session> {
        Arc::new(self.session)
    }
}
