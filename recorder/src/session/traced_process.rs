//! One process from its hello to its end. All stages of the pipeline share this.

mod builder;

use crate::inject::maps::{CodeMapping, Maps};
use crate::inject::patch::{self, Plan};
use crate::os::aside::Owner;
use crate::os::clock::{Clock, Moment};
use crate::os::sys::Mapping;
use crate::session::event_rate::Limit;
use crate::session::journal_files::JournalFiles;
use crate::session::options::Options;
use crate::target::jit_names::PerfMap;
use crate::target::maps;
use crate::target::module_files::ModuleFiles;
pub use builder::Ids;
pub(crate) use builder::{Attached, SessionBuilder};
use formats::recording::{Allocator, ProcessInfo, RAN_ALREADY};
use formats::resident::Bill;
use formats::tape::{self, Division, Origin, field::Text};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// Number of a session, unique in this recorder.
pub type SessionId = u32;

/// A process that is recorded.
#[derive(Debug)]
pub struct Session {
    pub id: SessionId,
    /// Shared memory area of the process.
    pub mapping: Arc<Mapping>,
    /// First record of the tape.
    pub process: tape::Process,
    /// Folder of the recording of the process.
    pub folder: PathBuf,
    pub clock: Clock,
    /// How the process is recorded.
    pub options: Arc<Options>,
    /// The fork from which the process comes, if its parent is recorded too.
    pub forked: Option<Fork>,
    /// Whether its thread ids are those of another pid namespace.
    pub is_namespaced: bool,
    /// Counters that the stages publish, shared by all its segments.
    pub stats: Arc<Stats>,
    /// Limit of the records that may be drained.
    pub limit: Arc<Limit>,
    /// Whether another recorder used the area before.
    pub resumed: bool,
    /// Start of the process, in nanoseconds since 1970, if it had run for a while before this
    /// segment; otherwise 0.
    pub began_unix_ns: u64,
    /// Start of the process in clock ticks after the boot.
    pub start_ticks: u64,
    /// The file that hands its live blocks over from one daemon to the next.
    pub carried_over: Option<PathBuf>,
    /// Folders of its flight recording that the last daemon wrote, oldest first.
    pub earlier: Vec<PathBuf>,
    /// The perf map in which it names the code that it generates.
    pub code: Arc<PerfMap>,
    /// The open files of its modules.
    pub files: Arc<ModuleFiles>,
    /// The hooks of allocators inside the program.
    pub hooks: Arc<Plan>,
    /// Path of the library whose `malloc` the process calls, once it was looked up.
    pub malloc: Arc<OnceLock<String>>,
    pub journal_files: JournalFiles,
}

/// The fork from which a process comes.
#[derive(Clone, Debug)]
pub struct Fork {
    pub parent: SessionId,
    /// Name of the folder of the parent.
    pub folder: String,
    /// Tick of the fork; 0 if it is not known.
    pub tick: u64,
    /// Whether all blocks of the parent were known then.
    pub knows_all_blocks: bool,
}

/// What is known of the allocators of a process. All of it is known once the process uses its area.
#[derive(Clone, Debug, Default)]
pub struct KnownAllocators {
    /// The allocators inside the program, with what the library has hooked of them.
    pub inside: Vec<Allocator>,
    /// Whether the program has its own `malloc`, which is not recorded.
    pub own_malloc: bool,
    /// Path of the library whose `malloc` the process calls; empty if it is not known.
    pub malloc: String,
}

impl KnownAllocators {
    /// Notes it in what `recording.json` lists of the process.
    pub fn note_in(self, info: &mut ProcessInfo) {
        let KnownAllocators { inside, own_malloc, malloc } = self;
        (info.allocators, info.own_malloc) = (inside, own_malloc);
        if !malloc.is_empty() {
            info.malloc = malloc;
        }
    }
}

/// Minimum lifetime of a process that the daemon keeps in a folder of its own however it ended.
pub const SHORT_LIFE: Duration = Duration::from_secs(60);

impl Session {
    /// Tells the process which ends it announces: for the references if they are wanted, and with
    /// `has_pages` for a last snapshot of its pages.
    pub fn announce_exit(&self, has_pages: bool) {
        self.mapping.header().announce_exit.store(self.options.announcements(has_pages), Relaxed);
    }

    /// Returns the process, for whom its files and its memory are read.
    pub fn owner(&self) -> Owner {
        Owner { pid: self.process.pid, uid: self.process.uid }
    }

    /// Returns whether no block of the process is older than the recording of it, and of those that it
    /// was forked from.
    pub fn knows_all_blocks(&self) -> bool {
        self.hooks.unseen_mappings() != RAN_ALREADY
            && self.stats.live_since_unix_ns.load(Relaxed) == 0
            && self.forked.as_ref().is_none_or(|fork| fork.knows_all_blocks)
    }

    /// Returns for how long the process has been recorded.
    pub fn lived(&self) -> Duration {
        let ticks = self.clock.now().saturating_sub(self.process.start_tick);
        Duration::from_secs(ticks / self.process.ticks_per_second.max(1))
    }

    /// Returns the process as `recording.json` lists it.
    pub fn info(&self) -> ProcessInfo {
        let process = &self.process;
        let text = |text: &Text| text.lossy().into_owned();
        let mut info = ProcessInfo {
            folder: self.folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            pid: process.pid,
            ppid: process.ppid,
            origin: Origin::of_number(process.origin).map(Origin::name).unwrap_or_default().into(),
            parent: self.forked.as_ref().map(|fork| fork.folder.clone()),
            exe: text(&process.exe),
            argv: process.argv.iter().map(text).collect(),
            started_unix_ns: process.start_unix_ns,
            began_unix_ns: self.began_unix_ns,
            unseen_mappings: self.hooks.unseen_mappings().to_owned(),
            ..ProcessInfo::default()
        };
        self.allocators().note_in(&mut info);
        info
    }

    pub fn allocators(&self) -> KnownAllocators {
        let mut inside = self.hooks.outcome(&self.mapping);
        self.hooks.set_events(&mut inside);
        let own_malloc = self.mapping.has_own_malloc() && !patch::hooks_own_malloc(&inside);
        KnownAllocators { inside, own_malloc, malloc: self.malloc().to_owned() }
    }

    /// Returns the path of the library whose `malloc` the process calls; empty if it is not known.
    fn malloc(&self) -> &str {
        match self.mapping.header().next_malloc.load(Relaxed) {
            0 => "",
            address => self.malloc.get_or_init(|| {
                let contains = |code: &CodeMapping| (code.start..code.end).contains(&address);
                // A process that has ended has no map any more.
                let maps = || Maps::parse(&String::from_utf8_lossy(&maps::read_aside(self.owner())));
                let mapped = || maps().code.into_iter().find(contains).map(|code| code.path);
                self.hooks.path_at(address).or_else(mapped).unwrap_or_default()
            }),
        }
    }

    /// Returns a session for the next segment of the process, in another folder with other options.
    /// With `starts`, the segment counts its time from there.
    pub fn next_segment(&self, folder: PathBuf, options: Arc<Options>, starts: Option<Moment>) -> Session {
        let (mut process, mut began_unix_ns) = (self.process.clone(), self.began_unix_ns);
        process.sample_bytes = options.sample_bytes;
        process.free_sites = options.free_stacks;
        if let Some(Moment { tick, unix_ns }) = starts {
            if began_unix_ns == 0 {
                began_unix_ns = process.start_unix_ns;
            }
            (process.start_tick, process.start_unix_ns) = (tick, unix_ns);
        }
        let mapping = Arc::clone(&self.mapping);
        let (stats, limit) = (Arc::clone(&self.stats), Arc::clone(&self.limit));
        let (id, clock, is_namespaced) = (self.id, self.clock, self.is_namespaced);
        Session {
            id,
            mapping,
            process,
            folder,
            clock,
            options,
            forked: None,
            is_namespaced,
            stats,
            limit,
            resumed: self.resumed,
            began_unix_ns,
            start_ticks: self.start_ticks,
            carried_over: self.carried_over.clone(),
            earlier: Vec::new(),
            code: Arc::clone(&self.code),
            files: Arc::clone(&self.files),
            hooks: Arc::new(self.hooks.for_next_segment()),
            malloc: Arc::clone(&self.malloc),
            journal_files: JournalFiles::default(),
        }
    }
}

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of a process, which the digest publishes for other threads.
        #[derive(Debug, Default)]
        pub struct Stats {
            $($(#[$doc])* pub $name: AtomicU64,)*
            /// Events that were recorded and could not be written; counted by the store.
            pub unwritten: AtomicU64,
            /// Time from which its live blocks are known, in nanoseconds since 1970; 0 if all of
            /// them are. Blocks that were allocated before are in no count of live blocks.
            pub live_since_unix_ns: AtomicU64,
            /// When it said that it ends, and began to wait for us.
            said_end: OnceLock<Moment>,
            /// The resident memory by use at the last snapshot, if the recorder divided it.
            divided: Mutex<Option<Bill>>,
        }

        /// The counters of a process at one point in time.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct StatsSnapshot { $($(#[$doc])* pub $name: u64,)* }

        impl Stats {
            /// Reads the counters. Events that could not be written count as lost.
            pub fn now(&self) -> StatsSnapshot {
                let mut now = StatsSnapshot { $($name: self.$name.load(Relaxed),)* };
                now.lost = now.lost.saturating_add(self.unwritten.load(Relaxed));
                now
            }

            /// Returns the resident memory by use at the last snapshot, if the recorder divided
            /// it.
            pub fn divided(&self) -> Option<Bill> {
                *self.divided.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
            }

            /// Notes that the process ends now, and waits for us.
            pub(crate) fn says_end(&self, clock: &Clock) {
                self.said_end.get_or_init(|| Moment::now(clock));
            }

            /// Returns when the process said that it ends, if it did.
            pub(crate) fn said_end(&self) -> Option<Moment> {
                self.said_end.get().copied()
            }

            /// Publishes the resident memory by use.
            pub(crate) fn set_divided(&self, division: &Division) {
                let bill = division.lacks.0.is_empty().then_some(division.uses.bill);
                *self.divided.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = bill;
            }

            /// Publishes the counters for other threads.
            pub fn set(&self, now: &StatsSnapshot) {
                $(self.$name.store(now.$name, Relaxed);)*
            }
        }
    };
}

stats! {
    /// Bytes allocated and not freed.
    live_bytes,
    /// Blocks allocated and not freed.
    live_blocks,
    /// Maximum of the live bytes.
    peak_bytes,
    /// Number of allocations so far.
    allocs,
    /// Number of frees so far.
    frees,
    /// Number of bytes allocated since the attach.
    bytes,
    /// Recorded events, of all segments.
    recorded,
    /// Lost events, of all segments.
    lost,
    /// Events skipped by sampling, of all segments.
    sampled_out,
    /// Number of call sites, including their callers.
    sites,
    /// Number of sites that held more at the last full minute than at the one before.
    growing,
    /// Number of threads seen.
    threads,
    /// Bytes that the program has mapped itself and may use, with those of its parent.
    mapped,
    /// Bytes of addresses that it has only reserved.
    reserved,
    /// Estimated memory of the digest for this process, in bytes.
    memory,
}
