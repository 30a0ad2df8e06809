//! What can be chosen about a recording.

use crate::quota::Quota;
use formats::tape::Codec;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use wire::area::{Header, OVERFLOW_BOUNDED, OVERFLOW_DROP, OVERFLOW_WAIT};
use wire::area::{Layout, Params};
pub use wire::area::{STACKS_CALLER, STACKS_FULL};
use wire::limits;

/// Everything that a person can choose.
#[derive(Clone, Debug)]
pub struct Options {
    /// What a thread does when its ring is full.
    pub overflow: Overflow,
    /// One of wire's `STACKS_` values.
    pub stacks: u32,
    /// Most frames of a stack.
    pub max_frames: u32,
    /// Whether frees carry stacks too.
    pub free_stacks: bool,
    /// Mean bytes between samples; 0 records every event.
    pub sample_bytes: u64,
    /// Bytes of a thread's ring.
    pub ring_bytes: u64,
    /// Most threads at once.
    pub slots: u32,
    /// How trace and columns are stored.
    pub codec: Codec,
    /// The codec's level; 0 is its fast default.
    pub level: i32,
    /// Free text for the tape.
    pub label: String,
    /// Whether processes other than the first are recorded.
    pub children: bool,
    /// Names of programs that are recorded, the first apart; empty: all.
    pub only: Vec<String>,
    /// Names of programs that are not, the first apart.
    pub skip: Vec<String>,
    /// What is kept.
    pub mode: Mode,
    /// Time between a profile's snapshots.
    pub snapshot: Duration,
    /// What a flight keeps.
    pub window: Window,
    /// Whether parts that end add to the sums of their program, and a profile that ends leaves no
    /// files of its own.
    pub folds: bool,
    /// Who may read the files besides their owner.
    pub reader: Option<u32>,
    /// Disk space that the files share with others of their user.
    pub quota: Option<Arc<Quota>>,
}

/// What a thread does when its ring is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// Waits as long as the recorder shows life, and [`limits::WAIT_MS`] in all while it does not.
    #[default]
    Wait,
    /// Waits for at most this time, whether or not the recorder shows life. After a wait without
    /// success the process drops events until the recorder has caught up.
    WaitAtMost(Duration),
    /// Counts the event as lost.
    Drop,
}

impl Overflow {
    /// Writes this choice into a process's header. Threads read it when their ring is full. A
    /// process that has given up waiting may wait again.
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

/// What is kept of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Nothing: the process is dormant until it is wanted.
    Off,
    /// The live set and the sums of call sites, in memory, and snapshots of them in files; no
    /// events.
    Profile,
    /// Every event.
    #[default]
    Trace,
    /// Every event of the last while.
    Flight,
}

impl Mode {
    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Mode::Off => "off",
            Mode::Profile => "profile",
            Mode::Trace => "trace",
            Mode::Flight => "flight",
        }
    }

    /// Whether events are written.
    pub const fn has_events(self) -> bool {
        matches!(self, Mode::Trace | Mode::Flight)
    }
}

/// The past that a flight keeps: at least this time or this many bytes, whichever is less, and a
/// quarter more at times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Time.
    pub time: Duration,
    /// Plain bytes of events.
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
            codec: Codec::Zstd,
            level: LEVEL,
            label: String::new(),
            children: true,
            only: Vec::new(),
            skip: Vec::new(),
            mode: Mode::Trace,
            snapshot: Duration::from_secs(30),
            window: Window::default(),
            folds: false,
            reader: None,
            quota: None,
        }
    }
}

/// Default level of the compression. Trace and columns by `examples/stages.rs`, a machine at full
/// load, ns and bytes an event: level 1 takes 48 ns for 7.1 bytes (random), 44 for 4.1 (bulk);
/// level -1 45 for 8.3 and 43 for 4.9; level 3 92 for 6.7 and 73 for 4.1; LZ4 31 for 10.0 and 24
/// for 7.5.
pub const LEVEL: i32 = 1;

impl Options {
    /// Sizes of an area for a process whose limit leaves it so much address space, and whose
    /// control group has such a limit on memory; `None` when what it would need for a recording
    /// could be missed by the program. What is private to the library comes to about a fifth of the
    /// smallest area.
    pub fn params(&self, address_space: u64, memory_limit: Option<u64>) -> Option<Params> {
        /// The rings of 200 threads take 8 % of a limit of 100 MB then, and all of 1 MiB are left
        /// alone from 256 MiB on.
        const RING_SHARE: u64 = 256;
        const LEAST: u64 = 64 << 10;
        let most = memory_limit.map_or(u64::MAX, |limit| (limit / RING_SHARE).max(LEAST));
        let ring_bytes = if self.ring_bytes > most { 1 << most.ilog2() } else { self.ring_bytes };
        let params = Params { ring_bytes, slots: self.slots, ..Params::default() };
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
        let ring = |limit| Options::default().params(u64::MAX, limit).map(|params| params.ring_bytes);
        assert_eq!((ring(None), ring(Some(256 << 20))), (Some(1 << 20), Some(1 << 20)));
        assert_eq!((ring(Some(100_000_000)), ring(Some(1))), (Some(256 << 10), Some(64 << 10)));
    }
}
