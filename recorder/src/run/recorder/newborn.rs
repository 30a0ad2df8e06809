//! Processes that were born a moment ago. A child that executes a program without the library may
//! live for a few milliseconds, and then nobody can say any more what it was.
//!
//! Where the kernel tells of every program ([`super::census`]), we look at what was executed. Otherwise
//! it tells in one short line which process number it gave last (proc_loadavg(5)). So we read
//! that line every 10 to 50 ms, and look at the new numbers only, not at all of `/proc`.

use super::Recorder;
use super::descendants::{Unseen, YOUTH};
use crate::target::proc::{self, Kin};
use nix::time::{ClockId, clock_gettime};
use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// Interval of the looks while processes are born.
const INTERVAL: Duration = Duration::from_millis(10);
/// Interval of the looks when none was born for a second.
const QUIET_INTERVAL: Duration = Duration::from_millis(50);
const QUIET_AFTER: Duration = Duration::from_secs(1);
/// Looks may take one part in this many of a processor.
const MOST_TIME: u32 = 100;
/// The search of all processes comes this often anyway.
const LONGEST_INTERVAL: Duration = Duration::from_millis(500);
/// Maximum number of new processes of one look. More are left to the search of all processes.
const MAX_BIRTHS: u32 = 512;
/// Maximum number of processes that are looked at.
const MAX_YOUNG: usize = 256;
/// The first number that the kernel gives again when it has given all.
const FIRST_REUSED_PID: u32 = 300;

#[derive(Debug, Default)]
pub(super) struct Newborn {
    next: Option<Instant>,
    /// The number that the kernel gave last.
    last_pid: Option<u32>,
    last_birth: Option<Instant>,
    young: Vec<Young>,
    found: Vec<Found>,
}

/// A descendant of a recorded process that has not attached.
#[derive(Debug)]
struct Young {
    pid: u32,
    start_ticks: u64,
    /// What it runs as long as it runs the program of its parent.
    inherited_image: [u64; 5],
    since: Instant,
}

/// A process that runs a program without the library. Whoever started it may have reported it by a
/// message that is still to be read, so it is named at the next look.
#[derive(Debug)]
struct Found {
    pid: u32,
    parent: u32,
    exe: String,
    why: String,
}

impl Newborn {
    pub(super) fn new() -> Newborn {
        Newborn { last_pid: proc::last_pid(), ..Newborn::default() }
    }

    /// Returns the time until the next look.
    pub(super) fn deadline(&self) -> Duration {
        self.next.map_or(Duration::ZERO, |next| next.saturating_duration_since(Instant::now()))
    }

    /// Returns the numbers that the kernel gave since the last call; none if they are too many.
    fn births(&mut self) -> impl Iterator<Item = u32> + use<> {
        let (last, now) = (self.last_pid, proc::last_pid());
        self.last_pid = now;
        let given = match (last, now) {
            (Some(last), Some(now)) => given_between(last, now, proc::most_pids),
            _ => [None, None],
        };
        if given.iter().any(Option::is_some) {
            self.last_birth = Some(Instant::now());
        }
        let count: u32 = given.iter().flatten().map(|range| range.end() - range.start() + 1).sum();
        given.into_iter().flatten().filter(move |_| count <= MAX_BIRTHS).flatten()
    }

    /// Determines when the next look is due, after one that took this much of a processor.
    fn plan(&mut self, cost: Duration) {
        let is_quiet = self.young.is_empty() && self.last_birth.is_none_or(|last| last.elapsed() >= QUIET_AFTER);
        let interval = if is_quiet { QUIET_INTERVAL } else { INTERVAL };
        self.next = Some(Instant::now() + interval.max(cost * MOST_TIME).min(LONGEST_INTERVAL));
    }
}

/// Returns the process numbers that were given after `last`, up to `now`: the kernel counts up to
/// the highest number and begins again.
fn given_between(last: u32, now: u32, most: impl Fn() -> u32) -> [Option<RangeInclusive<u32>>; 2] {
    let range = |from: u32, to: u32| (from <= to).then_some(from..=to);
    match now < last {
        false => [range(last + 1, now), None],
        true => [range(last + 1, most().saturating_sub(1)), range(FIRST_REUSED_PID, now)],
    }
}

/// Returns the processor time of this thread. Of a busy machine's time, most is not ours.
fn processor_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Into::into)
}

/// The processes that are known at a look.
struct Family {
    recorded: HashSet<u32>,
    /// Those that are recorded, will be, or have the library in them.
    known: HashSet<u32>,
    kin: HashMap<u32, Option<Kin>>,
}

impl Family {
    fn kin(&mut self, pid: u32) -> Option<Kin> {
        *self.kin.entry(pid).or_insert_with(|| proc::kin(pid))
    }

    /// Returns whether a recorded process is an ancestor, or made the group or the session.
    fn has(&mut self, kin: Kin) -> bool {
        const GENERATIONS: usize = 32;
        if self.recorded.contains(&kin.group) || self.recorded.contains(&kin.session) {
            return true;
        }
        let mut above = Some(kin);
        for _ in 0..GENERATIONS {
            let Some(parent) = above.map(|kin| kin.parent).filter(|parent| *parent > 1) else { return false };
            if self.recorded.contains(&parent) {
                return true;
            }
            above = self.kin(parent);
        }
        false
    }
}

impl Recorder {
    /// Looks at the processes that were born, if it is time.
    pub(super) fn look_at_newborn(&mut self) {
        self.census.read();
        if !self.options.children || self.running.is_empty() || !self.newborn.deadline().is_zero() {
            return;
        }
        let began = processor_time();
        self.name_found();
        let recorded: HashSet<u32> = self.running.iter().map(|running| running.session.process.pid).collect();
        let offers = self.admissions.offers().map(|offer| offer.client.pid);
        let loaded = self.loaded.iter().map(|loaded| loaded.pid);
        let known = recorded.iter().copied().chain(offers).chain(loaded).collect();
        let mut family = Family { recorded, known, kin: HashMap::new() };
        if self.census.is_whole() {
            self.note_members(&family);
            self.look_at_young(&family);
        } else {
            for pid in self.newborn.births() {
                self.note_birth(pid, &mut family);
            }
            self.look_at_young(&family);
            self.compare_children();
        }
        self.newborn.plan(processor_time().saturating_sub(began));
    }

    /// Notes the members of the tree that have executed a program since the last look.
    fn note_members(&mut self, family: &Family) {
        let (executed, has_births) = self.census.news();
        if has_births {
            self.newborn.last_birth = Some(Instant::now());
        }
        for pid in executed.into_iter().filter(|pid| !family.known.contains(pid)) {
            if self.newborn.young.len() < MAX_YOUNG
                && let Some(start_ticks) = proc::start_ticks(pid)
            {
                let (inherited_image, since) = ([0; 5], Instant::now());
                self.newborn.young.push(Young { pid, start_ticks, inherited_image, since });
            }
        }
    }

    /// Notes a new process, if it is a descendant of a recorded one.
    fn note_birth(&mut self, pid: u32, family: &mut Family) {
        let Some(kin) = proc::kin(pid).filter(|_| !family.known.contains(&pid)) else { return };
        if self.newborn.young.len() < MAX_YOUNG && family.has(kin) && proc::is_process(pid) {
            let inherited_image = family.kin(kin.parent).map_or([0; 5], |parent| parent.image);
            let (start_ticks, since) = (kin.start_ticks, Instant::now());
            self.newborn.young.push(Young { pid, start_ticks, inherited_image, since });
        }
    }

    /// Finds those that run a program without the library by now.
    fn look_at_young(&mut self, family: &Family) {
        let mut young = std::mem::take(&mut self.newborn.young);
        young.retain(|one| {
            let is_known = family.known.contains(&one.pid) || self.knows_untraced(one.pid);
            let kin = proc::kin(one.pid).filter(|kin| !is_known && kin.start_ticks == one.start_ticks);
            let Some(kin) = kin else { return false };
            if kin.image == one.inherited_image {
                return one.since.elapsed() < YOUTH;
            }
            match self.unseen(one.pid, kin.parent) {
                // It may be about to execute a program.
                None => one.since.elapsed() < YOUTH,
                // The search of all processes waits for it.
                Some(Unseen { why: None, .. }) => false,
                Some(Unseen { exe, why: Some(why) }) => {
                    let why = self.unrecorded_ancestor(one.pid).unwrap_or(why);
                    self.newborn.found.push(Found { pid: one.pid, parent: kin.parent, exe, why });
                    false
                }
            }
        });
        self.newborn.young = young;
    }

    /// Names what the last look has found, unless it is known by now.
    pub(super) fn name_found(&mut self) {
        for Found { pid, parent, exe, why } in std::mem::take(&mut self.newborn.found) {
            if !self.knows_untraced(pid) && !self.running.iter().any(|running| running.session.process.pid == pid) {
                self.name_unseen(pid, parent, exe, why);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_between_two_looks_are_those_that_were_given() {
        let given = |last, now| given_between(last, now, || 1000).into_iter().flatten().flatten().collect::<Vec<_>>();
        assert_eq!(given(7, 7), [0; 0]);
        assert_eq!(given(7, 10), [8, 9, 10]);
        assert_eq!(given(997, 302), [998, 999, 300, 301, 302]);
        assert_eq!(given(999, 300), [300]);
        assert_eq!(given(999, 20), [0; 0]);
    }

    #[test]
    fn births_are_seen() {
        let mut newborn = Newborn::new();
        let mut child = std::process::Command::new("true").spawn().expect("a child");
        assert!(newborn.births().any(|pid| pid == child.id()), "{newborn:?}");
        let _ = child.wait();
        newborn.plan(Duration::ZERO);
        assert!(newborn.deadline() <= INTERVAL);
        newborn.plan(Duration::from_secs(1));
        assert!(newborn.deadline() > INTERVAL && newborn.deadline() <= LONGEST_INTERVAL);
    }
}
