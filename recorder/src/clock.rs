//! The clock that ticks are read from, and how ticks become time.
//!
//! The processor's counter is used where it runs evenly through all states and cores
//! (`constant_tsc` and `nonstop_tsc`), else nanoseconds of `CLOCK_MONOTONIC`. A counter's rate is
//! measured against `CLOCK_MONOTONIC_RAW` from a first anchor on, so it gets better as the
//! recording goes on; the anchors stand in the tape.

use crate::sys;
use nix::time::{ClockId, clock_gettime};
use std::time::Duration;
use wire::area::{CLOCK_MONOTONIC, CLOCK_TSC};

/// Which counter gives the ticks: one of wire's `CLOCK_` values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    kind: u32,
    first: Anchor,
}

/// One moment, read on all clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// Ticks.
    pub tick: u64,
    /// Nanoseconds since 1970.
    pub unix_ns: u64,
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    pub monotonic_ns: u64,
    raw_ns: u64,
}

fn nanoseconds(clock: ClockId) -> u64 {
    clock_gettime(clock).map_or(0, |time| Duration::from(time).as_nanos() as u64)
}

/// Processor time of the calling thread.
pub fn thread_time() -> Duration {
    Duration::from_nanos(nanoseconds(ClockId::CLOCK_THREAD_CPUTIME_ID))
}

/// Nanoseconds since 1970.
pub fn unix_ns() -> u64 {
    nanoseconds(ClockId::CLOCK_REALTIME)
}

fn counter_is_even(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    cfg!(target_arch = "x86_64")
        && ["constant_tsc", "nonstop_tsc"].iter().all(|flag| flags.split(' ').any(|f| f == *flag))
}

impl Clock {
    /// Chooses the counter of this machine and takes the first anchor.
    pub fn choose() -> Clock {
        let mut start = String::new();
        if let Ok(file) = std::fs::File::open("/proc/cpuinfo") {
            let _ = std::io::Read::read_to_string(&mut std::io::Read::take(file, 1 << 14), &mut start);
        }
        Clock::of(if counter_is_even(&start) { CLOCK_TSC } else { CLOCK_MONOTONIC })
    }

    /// The given counter.
    pub fn of(kind: u32) -> Clock {
        let first = Anchor { tick: 0, unix_ns: 0, monotonic_ns: 0, raw_ns: 0 };
        let clock = Clock { kind, first };
        Clock { kind, first: clock.anchor() }
    }

    /// One of wire's `CLOCK_` values.
    pub fn kind(&self) -> u32 {
        self.kind
    }

    /// The tick of now.
    pub fn now(&self) -> u64 {
        if self.kind == CLOCK_TSC { sys::tsc() } else { nanoseconds(ClockId::CLOCK_MONOTONIC) }
    }

    /// Reads all clocks at one moment: the closest of three tries.
    pub fn anchor(&self) -> Anchor {
        let tries = (0..3).map(|_| {
            let before = self.now();
            let raw_ns = nanoseconds(ClockId::CLOCK_MONOTONIC_RAW);
            let after = self.now();
            let (unix_ns, monotonic_ns) = (unix_ns(), nanoseconds(ClockId::CLOCK_MONOTONIC));
            let tick = before + after.saturating_sub(before) / 2;
            (after.saturating_sub(before), Anchor { tick, unix_ns, monotonic_ns, raw_ns })
        });
        tries.min_by_key(|(width, _)| *width).map_or(self.first, |(_, anchor)| anchor)
    }

    /// Ticks of one second, measured since the first anchor; waits until two milliseconds have gone
    /// by since (30 ppm).
    pub fn ticks_per_second(&self) -> u64 {
        if self.kind != CLOCK_TSC {
            return 1_000_000_000;
        }
        loop {
            let now = self.anchor();
            let ns = now.raw_ns.saturating_sub(self.first.raw_ns);
            if ns >= 2_000_000 {
                return (u128::from(now.tick - self.first.tick) * 1_000_000_000 / u128::from(ns)) as u64;
            }
            std::thread::sleep(Duration::from_nanos(2_000_000 - ns));
        }
    }

    /// The processors' speed; 0 where the ticks say nothing about it.
    pub fn megahertz(&self) -> u64 {
        if self.kind == CLOCK_TSC { self.ticks_per_second() / 1_000_000 } else { 0 }
    }

    /// Waits until the stores that other processors made before now are seen by all: two
    /// microseconds.
    pub fn grace(&self) {
        let start = nanoseconds(ClockId::CLOCK_MONOTONIC);
        while nanoseconds(ClockId::CLOCK_MONOTONIC).saturating_sub(start) < 2_000 {
            std::hint::spin_loop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_counters_measure_a_pause() {
        for clock in [Clock::choose(), Clock::of(CLOCK_MONOTONIC)] {
            let (start, begun) = (clock.now(), std::time::Instant::now());
            std::thread::sleep(Duration::from_millis(20));
            let (ticks, real) = (clock.now() - start, begun.elapsed().as_secs_f64());
            let measured = ticks as f64 / clock.ticks_per_second() as f64;
            assert!((measured / real - 1.0).abs() < 0.02, "{measured} s by ticks, {real} s");
        }
    }

    #[test]
    fn flags_are_read_as_whole_words() {
        let good = "processor : 0\nflags\t\t: fpu tsc constant_tsc nonstop_tsc\n";
        assert_eq!(counter_is_even(good), cfg!(target_arch = "x86_64"));
        assert!(!counter_is_even("flags : constant_tsc nonstop_tsc_s3\n"));
        assert!(!counter_is_even(""));
    }
}
