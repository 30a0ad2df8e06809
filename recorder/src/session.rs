//! One process image from hello to goodbye: what all stages know of it.

use crate::clock::Clock;
use crate::code::CodeMap;
use crate::module_files::ModuleFiles;
use crate::options::Options;
use crate::sys::Mapping;
use formats::recording::Exit;
use formats::tape::{self, END_EXEC, END_EXITED, END_GONE, END_RUNNING, END_SIGNALLED};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of a session within this recorder.
pub type SessionId = u32;

/// One process image.
#[derive(Debug)]
pub struct Session {
    /// Its number.
    pub id: SessionId,
    /// Its area.
    pub mapping: Arc<Mapping>,
    /// The tape's first record.
    pub process: tape::Process,
    /// Its folder.
    pub folder: PathBuf,
    /// Its clock.
    pub clock: Clock,
    /// What was chosen.
    pub options: Arc<Options>,
    /// The image that it was forked from: session, folder name and tick of the fork (0: not known).
    pub forked: Option<(SessionId, String, u64)>,
    /// Whether its thread ids are those of another pid namespace.
    pub is_namespaced: bool,
    /// What the stages tell of it; common to all its parts.
    pub stats: Arc<Stats>,
    /// How much of it may be drained.
    pub limit: Arc<Limit>,
    /// Whether another recorder had its area before.
    pub resumed: bool,
    /// When the process began, nanoseconds since 1970, if it had run for a while before this part;
    /// else 0.
    pub began_unix_ns: u64,
    /// The file of its live blocks, from one daemon to the next.
    pub carried: Option<PathBuf>,
    /// Where it tells what code it makes.
    pub code: Arc<CodeMap>,
    /// The files of its modules.
    pub files: Arc<ModuleFiles>,
}

/// A bound on what one process may send.
#[derive(Debug, Default)]
pub struct Limit {
    /// Records a second; 0 for no bound.
    pub records: AtomicU64,
    /// How often the drain left a ring alone because of it.
    pub hits: AtomicU64,
}

impl Session {
    /// The same process, written on to another folder with other options. With `starts` the part
    /// counts its time from there: tick and wall clock.
    pub fn part(&self, folder: PathBuf, options: Arc<Options>, starts: Option<(u64, u64)>) -> Session {
        let (mut process, mut began_unix_ns) = (self.process.clone(), self.began_unix_ns);
        process.sample_bytes = options.sample_bytes;
        process.free_sites = options.free_stacks;
        if let Some((tick, unix_ns)) = starts {
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
            carried: self.carried.clone(),
            code: Arc::clone(&self.code),
            files: Arc::clone(&self.files),
        }
    }
}

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What the digest last knew of a process: written by it, read by anybody.
        #[derive(Debug, Default)]
        pub struct Stats {
            $($(#[$doc])* pub $name: AtomicU64,)*
            /// Events that were taken in and could not be written; the store counts them.
            pub unwritten: AtomicU64,
            /// Nanoseconds since 1970 from which its live blocks are known; 0 if all of them are.
            /// What was allocated before is in no count of live blocks.
            pub live_since_unix_ns: AtomicU64,
        }

        /// The same at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Now { $($(#[$doc])* pub $name: u64,)* }

        impl Stats {
            /// Reads them. Events that could not be written are lost.
            pub fn now(&self) -> Now {
                let mut now = Now { $($name: self.$name.load(Relaxed),)* };
                now.lost = now.lost.saturating_add(self.unwritten.load(Relaxed));
                now
            }

            /// Writes them.
            pub fn set(&self, now: &Now) {
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
    /// The most live bytes.
    peak_bytes,
    /// Allocations.
    allocs,
    /// Frees.
    frees,
    /// Bytes ever allocated.
    bytes,
    /// Events that were taken in, of all parts.
    recorded,
    /// Events that found no room, likewise.
    lost,
    /// Events passed over by sampling, likewise.
    sampled_out,
    /// Call sites, their callers among them.
    sites,
    /// Sites that held more at the last full minute than at the one before.
    growing,
    /// Threads seen.
    threads,
    /// Bytes of the digest's own memory, estimated.
    memory,
}

/// How an image ended: one of the tape's `END_` numbers, and the code or signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// One of the `END_` numbers.
    pub reason: u8,
    /// Exit code or signal number.
    pub status: u32,
}

impl End {
    /// It was still running.
    pub const RUNNING: End = End { reason: END_RUNNING, status: 0 };
    /// It went on with another program.
    pub const EXEC: End = End { reason: END_EXEC, status: 0 };
    /// It is gone; how is not known.
    pub const GONE: End = End { reason: END_GONE, status: 0 };

    /// From what `wait` says.
    pub fn of_status(status: i32) -> End {
        let (code, signal) = (status >> 8 & 0xff, status & 0x7f);
        if signal == 0 {
            End { reason: END_EXITED, status: code as u32 }
        } else {
            End { reason: END_SIGNALLED, status: signal as u32 }
        }
    }

    /// For `recording.json`.
    pub fn exit(self) -> Exit {
        match self.reason {
            END_EXITED => Exit::Code(self.status),
            END_SIGNALLED => Exit::Signal(self.status),
            END_EXEC => Exit::Exec,
            END_RUNNING => Exit::Running,
            _ => Exit::Unknown,
        }
    }
}
