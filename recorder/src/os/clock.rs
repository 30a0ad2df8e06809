//! The recorder's clock, and the conversion of its ticks to time.
//!
//! The CPU's timestamp counter is used where it runs at a constant rate in all states and on all
//! cores (x86-64's with `constant_tsc` and `nonstop_tsc`, and on aarch64 the one that the kernel has
//! chosen for its own clock), otherwise nanoseconds of `CLOCK_MONOTONIC`. The rate
//! of the counter is measured against `CLOCK_MONOTONIC_RAW` from the first anchor on, so it gets
//! more precise during the recording. The anchors are stored in the tape.

use crate::os::processor;
use nix::time::{ClockId, clock_gettime};
use std::sync::Once;
use std::time::Duration;
use wire::area::{CLOCK_MONOTONIC, CLOCK_TSC};

/// The counter from which ticks are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// One of wire's `CLOCK_` values.
    kind: u32,
    first: Anchor,
}

/// One point in time on all clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// Ticks of the recorder's clock.
    pub tick: u64,
    /// Wall-clock time, in nanoseconds since 1970.
    pub unix_ns: u64,
    /// Time of `CLOCK_MONOTONIC`, in nanoseconds.
    pub monotonic_ns: u64,
    raw_ns: u64,
}

fn nanoseconds(clock: ClockId) -> u64 {
    clock_gettime(clock).map_or(0, |time| Duration::from(time).as_nanos() as u64)
}

/// Returns the CPU time of the calling thread.
pub(crate) fn thread_time() -> Duration {
    Duration::from_nanos(nanoseconds(ClockId::CLOCK_THREAD_CPUTIME_ID))
}

/// Returns the time since the boot, in nanoseconds.
pub fn monotonic_ns() -> u64 {
    nanoseconds(ClockId::CLOCK_MONOTONIC)
}

/// Returns the time since the boot with that in which the machine slept, by which the kernel dates
/// processes.
pub(crate) fn since_boot() -> Duration {
    Duration::from_nanos(nanoseconds(ClockId::CLOCK_BOOTTIME))
}

/// Returns the wall-clock time, in nanoseconds since 1970.
pub fn unix_ns() -> u64 {
    nanoseconds(ClockId::CLOCK_REALTIME)
}

/// Returns the beginning of a file of the kernel; nothing if it cannot be read.
fn told_in(path: &str) -> String {
    let mut start = String::new();
    if let Ok(file) = std::fs::File::open(path) {
        let _ = std::io::Read::read_to_string(&mut std::io::Read::take(file, 1 << 14), &mut start);
    }
    start
}

#[cfg(target_arch = "x86_64")]
fn has_constant_counter() -> bool {
    has_constant_tsc(&told_in("/proc/cpuinfo"))
}

/// A kernel that works around a processor's counter takes another clock, or reads this one for the
/// programs, which is slow but right. A frequency of zero is what some firmware leaves behind.
#[cfg(target_arch = "aarch64")]
fn has_constant_counter() -> bool {
    let clock = told_in("/sys/devices/system/clocksource/clocksource0/current_clocksource");
    clock.trim_end() == "arch_sys_counter" && (1 << 20..1 << 31).contains(&processor::counter_frequency())
}

#[cfg(target_arch = "x86_64")]
fn has_constant_tsc(cpuinfo: &str) -> bool {
    let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
    ["constant_tsc", "nonstop_tsc"].iter().all(|flag| flags.split(' ').any(|f| f == *flag))
}

/// A point in time, in ticks and in nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    pub tick: u64,
    pub unix_ns: u64,
}

impl Moment {
    pub fn now(clock: &Clock) -> Moment {
        let Anchor { tick, unix_ns, .. } = clock.anchor();
        Moment { tick, unix_ns }
    }

    /// Returns a tick that was not long ago with its time on the wall clock.
    pub fn of(tick: u64, clock: &Clock, ticks_per_second: u64) -> Moment {
        let now = Moment::now(clock);
        let ticks = u128::from(now.tick.saturating_sub(tick));
        let ns = (ticks * 1_000_000_000 / u128::from(ticks_per_second.max(1))).min(u64::MAX.into()) as u64;
        Moment { tick, unix_ns: now.unix_ns.saturating_sub(ns) }
    }
}

impl Clock {
    /// Chooses the counter for this machine and reads the first anchor.
    pub fn choose() -> Clock {
        Clock::of(if has_constant_counter() { CLOCK_TSC } else { CLOCK_MONOTONIC })
    }

    /// Uses the given counter: one of wire's `CLOCK_` values.
    pub fn of(kind: u32) -> Clock {
        let first = Anchor { tick: 0, unix_ns: 0, monotonic_ns: 0, raw_ns: 0 };
        let clock = Clock { kind, first };
        Clock { kind, first: clock.anchor() }
    }

    /// One of wire's `CLOCK_` values.
    pub fn kind(&self) -> u32 {
        self.kind
    }

    /// Returns the current tick.
    pub fn now(&self) -> u64 {
        if self.kind == CLOCK_TSC { processor::tsc() } else { nanoseconds(ClockId::CLOCK_MONOTONIC) }
    }

    /// Reads all clocks at one point in time: the narrowest of three tries.
    pub fn anchor(&self) -> Anchor {
        let tries = (0..3).map(|_| {
            let before = self.now();
            let raw_ns = nanoseconds(ClockId::CLOCK_MONOTONIC_RAW);
            let (unix_ns, monotonic_ns) = (unix_ns(), nanoseconds(ClockId::CLOCK_MONOTONIC));
            let after = self.now();
            let tick = before + after.saturating_sub(before) / 2;
            (after.saturating_sub(before), Anchor { tick, unix_ns, monotonic_ns, raw_ns })
        });
        tries.min_by_key(|(width, _)| *width).map_or(self.first, |(_, anchor)| anchor)
    }

    /// Returns the ticks of one second, measured since the first anchor. Waits until two
    /// milliseconds have passed since then (30 ppm).
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

    /// Returns the speed of the CPUs in MHz; 0 where the ticks do not show it.
    pub fn megahertz(&self) -> u64 {
        let is_speed = cfg!(target_arch = "x86_64") && self.kind == CLOCK_TSC;
        if is_speed { self.ticks_per_second() / 1_000_000 } else { 0 }
    }

    /// Waits until all stores that other CPUs made before the call are visible: two microseconds, and a
    /// barrier where that time is no bound.
    pub(crate) fn wait_for_stores(&self) {
        static REFUSED: Once = Once::new();
        if !processor::store_barrier() {
            REFUSED.call_once(|| {
                tracing::warn!("the kernel refuses membarrier: events of different threads may be shown out of order");
            });
        }
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
            let (start, start_time) = (clock.now(), std::time::Instant::now());
            std::thread::sleep(Duration::from_millis(20));
            let (ticks, real) = (clock.now() - start, start_time.elapsed().as_secs_f64());
            let measured = ticks as f64 / clock.ticks_per_second() as f64;
            assert!((measured / real - 1.0).abs() < 0.02, "{measured} s by ticks, {real} s");
        }
    }

    #[test]
    fn a_past_tick_has_its_own_time() {
        for clock in [Clock::choose(), Clock::of(CLOCK_MONOTONIC)] {
            let rate = clock.ticks_per_second();
            let (before, tick, after) = (unix_ns(), clock.now(), unix_ns());
            std::thread::sleep(Duration::from_millis(300));
            let moment = Moment::of(tick, &clock, rate);
            assert_eq!(moment.tick, tick);
            // The rate is measured in two milliseconds.
            let tolerance = 10_000_000;
            assert!((before - tolerance..after + tolerance).contains(&moment.unix_ns), "{before} {moment:?} {after}");
        }
    }

    #[test]
    fn kernel_accepts_the_barrier() {
        assert!(processor::store_barrier());
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn flags_are_compared_completely() {
        let good = "processor : 0\nflags\t\t: fpu tsc constant_tsc nonstop_tsc\n";
        assert!(has_constant_tsc(good));
        assert!(!has_constant_tsc("flags : constant_tsc nonstop_tsc_s3\n"));
        assert!(!has_constant_tsc(""));
    }
}
