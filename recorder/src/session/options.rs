//! The options of a recording.

use crate::inject::patch::{OwnAllocator, Planner};
use crate::os::compression::Compression;
use crate::session::disk_quota::Quota;
use crate::session::name_store::NameStore;
use formats::pattern::Pattern;
use formats::quantity::Time;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use wire::MINOR_FIRST_RING;
use wire::area::{ANNOUNCE_LARGE, ANNOUNCE_PAGES, ANNOUNCE_REFERENCES};
use wire::area::{Header, OVERFLOW_BOUNDED, OVERFLOW_DROP, OVERFLOW_WAIT};
use wire::area::{Layout, PAGE, Params};
pub use wire::area::{STACKS_CALLER, STACKS_FULL};
use wire::limits;

/// The options of a recording, for each of its processes.
#[derive(Clone, Debug)]
pub struct Options {
    /// What a thread does when its ring is full.
    pub overflow: Overflow,
    /// One of wire's `STACKS_` values.
    pub stacks: u32,
    /// Maximum number of frames of a stack.
    pub max_frames: u32,
    /// Whether the stacks of frees are recorded too.
    pub free_stacks: bool,
    /// Mean bytes between samples; 0 records every event.
    pub sample_bytes: u64,
    /// Size of the ring of each thread, in bytes.
    pub ring_bytes: u64,
    /// Maximum number of threads at once.
    pub slots: u32,
    /// Compression of the trace and of the tape's columns.
    pub compression: Compression,
    /// Label that is stored in the tape.
    pub label: String,
    /// Whether processes other than the first are recorded.
    pub children: bool,
    /// Names of the programs that are recorded, besides the first; empty for all.
    pub only: Vec<Pattern>,
    /// Names of the programs that are not recorded; the first one always is.
    pub skip: Vec<Pattern>,
    /// Which data of a process is recorded.
    pub mode: Mode,
    /// Time between a profile's snapshots.
    pub snapshot: Duration,
    /// How much of the past a flight recording keeps.
    pub window: Window,
    /// Whether segments that end are added to the sums of their program. A profile that ends then
    /// leaves no files of its own.
    pub folds: bool,
    /// Further allocators inside programs.
    pub allocators: Vec<OwnAllocator>,
    /// Whether it is read at the end of a process which block holds which.
    pub references: bool,
    /// Live bytes of a process from which on that is read once, while it runs, instead of at its end; 0 for
    /// never.
    pub references_at: u64,
    /// Folder in which the symbols of large files are stored, so that they are searched once.
    pub found_symbols: Option<PathBuf>,
    /// How long the start of a program may wait for the search of its symbols, instead of the
    /// default.
    pub search_limit: Option<Duration>,
    /// The file of the standalone library, for static programs. If it is empty, static programs are
    /// not recorded.
    pub standalone: &'static [u8],
    /// User who may read the files besides their owner.
    pub reader: Option<u32>,
    /// Disk quota that the files share with other files of their user.
    pub quota: Option<Arc<Quota>>,
    /// Store of the names of all programs of the user.
    pub names: Option<Arc<NameStore>>,
}

/// What a thread does when its ring is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// Waits as long as the recorder lives, and [`limits::WAIT_MS`] for one that is stopped or
    /// gone.
    #[default]
    Wait,
    /// Waits for at most this time, even if the heartbeat changes. After a wait without success the
    /// process drops events until the recorder has caught up.
    WaitAtMost(Duration),
    /// Counts the event as lost.
    Drop,
}

impl Overflow {
    /// Writes this option into the header of a process. Threads read it when their ring is full. A
    /// process that has stopped waiting may wait again.
    pub fn set(self, header: &Header) {
        let (overflow, wait_ms) = match self {
            Overflow::Wait => (OVERFLOW_WAIT, limits::WAIT_MS),
            Overflow::WaitAtMost(time) => (OVERFLOW_BOUNDED, u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
            Overflow::Drop => (OVERFLOW_DROP, limits::WAIT_MS),
        };
        header.wait_ms.store(wait_ms, Relaxed);
        header.overflow.store(overflow, Relaxed);
        header.breaker.store(0, Relaxed);
    }
}

/// The longest wait for space in a ring that can be configured.
const MAX_WAIT: Duration = Duration::from_secs(30);

impl fmt::Display for Overflow {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Overflow::Wait => out.write_str("wait"),
            Overflow::WaitAtMost(time) if time.subsec_millis() == 0 => write!(out, "wait:{}s", time.as_secs()),
            Overflow::WaitAtMost(time) => write!(out, "wait:{}ms", time.as_millis()),
            Overflow::Drop => out.write_str("drop"),
        }
    }
}

/// Programs of a daemon wait for a limited time or not at all.
impl FromStr for Overflow {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || format!("invalid overflow '{text}': must be drop, or wait:TIME with a time from 1ms to 30s");
        if text == "drop" {
            return Ok(Overflow::Drop);
        }
        let time = text.strip_prefix("wait:").ok_or_else(invalid)?.parse::<Time>().map_err(|_| invalid())?.0;
        (time > Duration::ZERO && time <= MAX_WAIT).then_some(Overflow::WaitAtMost(time)).ok_or_else(invalid)
    }
}

/// Which data of a process is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Nothing: the process is dormant until its mode changes.
    Off,
    /// The live blocks and the sums of call sites, in memory and as snapshots in files; no events.
    Profile,
    /// Every event of the process.
    #[default]
    Trace,
    /// Every event of the most recent time window.
    Flight,
}

impl Mode {
    /// Returns the name of the mode, as in options and files.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Off => "off",
            Mode::Profile => "profile",
            Mode::Trace => "trace",
            Mode::Flight => "flight",
        }
    }

    /// Returns which calls that map memory are recorded in this mode, as the header of the area
    /// says it ([`wire::Header::record_mappings`]).
    pub(crate) const fn mapping_calls(self) -> u32 {
        if matches!(self, Mode::Off) { 0 } else { wire::mapping::RECORD_ALL }
    }

    /// Returns whether events are written in this mode.
    pub const fn has_events(self) -> bool {
        matches!(self, Mode::Trace | Mode::Flight)
    }
}

/// The most recent period that a flight recording keeps: at least this time or this number of
/// bytes, the smaller of the two, and temporarily a quarter more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Length of the window in time.
    pub time: Duration,
    /// Length of the window in uncompressed bytes of events.
    pub bytes: u64,
}

impl Default for Window {
    fn default() -> Self {
        Window { time: Duration::from_secs(600), bytes: 256 << 20 }
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            overflow: Overflow::Wait,
            stacks: STACKS_FULL,
            max_frames: limits::MAX_FRAMES as u32,
            free_stacks: false,
            sample_bytes: 0,
            ring_bytes: limits::RING_BYTES,
            slots: limits::SLOTS,
            compression: Compression::COLUMNS,
            label: String::new(),
            children: true,
            only: Vec::new(),
            skip: Vec::new(),
            mode: Mode::Trace,
            snapshot: Duration::from_secs(30),
            window: Window::default(),
            folds: false,
            allocators: Vec::new(),
            references: false,
            references_at: 0,
            found_symbols: None,
            search_limit: None,
            standalone: &[],
            reader: None,
            quota: None,
            names: None,
        }
    }
}

/// Largest mean number of bytes between samples.
pub const MAX_INTERVAL: u64 = 64 << 20;

/// What [`is_ring`] accepts, as the end of an error message.
pub const RING_SIZES: &str = if PAGE == 4 << 10 {
    "must be a power of two from 4KiB to 1GiB"
} else {
    "must be a power of two from 64KiB to 1GiB"
};

/// Returns whether a number of bytes is a possible size of a ring.
pub fn is_ring(bytes: u64) -> bool {
    bytes.is_power_of_two() && (PAGE..=1 << 30).contains(&bytes)
}

impl Options {
    /// Returns which ends a process announces: a sum of wire's `ANNOUNCE_` values.
    pub(crate) fn announcements(&self, has_pages: bool) -> u32 {
        let is_exact = self.mode == Mode::Trace && self.sample_bytes == 0;
        let pages = match has_pages {
            true => ANNOUNCE_PAGES,
            // It may end before its first snapshot.
            false if self.mode == Mode::Trace => ANNOUNCE_LARGE,
            false => 0,
        };
        pages + u32::from(self.references && is_exact) * ANNOUNCE_REFERENCES
    }

    /// Returns a planner of the hooks of allocators inside programs.
    pub fn planner(&self) -> Planner {
        Planner::new(&self.allocators).stored_in(self.found_symbols.as_deref()).limited_to(self.search_limit)
    }

    /// Returns the sizes of the area of a process, given its free address space, the memory limit
    /// of its control group, and the minor version of its protocol; `None` when the area would
    /// take address space that the program may need. The private memory of the library is about a
    /// fifth of the smallest area. The ring of the first thread is larger only by default: rings
    /// of a requested size have that size.
    pub fn params(&self, address_space: u64, memory_limit: Option<u64>, minor: u16) -> Option<Params> {
        /// With this divisor the rings of 200 threads take 8 % of a limit of 100 MB, and rings of 1
        /// MiB are not reduced from 256 MiB on.
        const RING_DIVISOR: u64 = 256;
        const MIN_RING_BYTES: u64 = 64 << 10;
        let max_ring = memory_limit.map_or(u64::MAX, |limit| (limit / RING_DIVISOR).max(MIN_RING_BYTES));
        let ring_bytes = if self.ring_bytes > max_ring { 1 << max_ring.ilog2() } else { self.ring_bytes };
        let doubled = limits::RING_BYTES << limits::FIRST_RING_SHIFT;
        let is_larger = ring_bytes == limits::RING_BYTES && doubled <= max_ring && minor >= MINOR_FIRST_RING;
        let first_ring_shift = if is_larger { limits::FIRST_RING_SHIFT } else { 0 };
        let params = Params { ring_bytes, first_ring_shift, slots: self.slots, ..Params::default() };
        if address_space == u64::MAX {
            return Some(params);
        }
        let params = params.fit_into(address_space / 8);
        (Layout::new(params).total <= address_space / 2).then_some(params)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_are_smaller_in_a_small_control_group() {
        let rings = |limit, minor| {
            let params = Options::default().params(u64::MAX, limit, minor).expect("there is no limit");
            let layout = Layout::new(params);
            [0, 1].map(|slot| layout.ring(slot).map_or(0, |(_, bytes)| bytes >> 10))
        };
        assert_eq!((rings(None, MINOR_FIRST_RING), rings(None, 1)), ([2048, 1024], [1024, 1024]));
        assert_eq!(rings(Some(512 << 20), MINOR_FIRST_RING), [2048, 1024]);
        assert_eq!(rings(Some(256 << 20), MINOR_FIRST_RING), [1024, 1024]);
        assert_eq!(rings(Some(100_000_000), MINOR_FIRST_RING), [256, 256]);
        assert_eq!(rings(Some(1), MINOR_FIRST_RING), [64, 64]);
        let requested = Options { ring_bytes: 1 << 22, ..Options::default() };
        assert_eq!(requested.params(u64::MAX, None, MINOR_FIRST_RING).map(|params| params.first_ring_shift), Some(0));
    }
}
