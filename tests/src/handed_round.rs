//! The order of the events that `programs/hands_round.c` makes, compared with the real one.

use crate::Recording;
use heaptape_analyzer::event::{Event, Kind, Span};
use heaptape_analyzer::{Process, Progress};
use std::collections::HashMap;
use std::path::Path;

/// Distance of two passed addresses.
const STEP: u64 = 4096;
/// Requested size of the first allocation of an address. Each one is a byte larger than the one
/// before.
const FIRST_SIZE: u64 = 64;
/// Number of sizes, after which they begin again.
const SIZES: u64 = 1 << 19;
/// Number of positions of frees, and of allocations, by which an event may be too early.
const NEAR: usize = 8;

/// What [`check`] has found.
#[derive(Clone, Copy, Debug, Default)]
pub struct HandedRound {
    /// Number of allocations and frees of the passed addresses.
    pub events: u64,
    /// Number of these that are at the position of another one, because of a wrong timestamp.
    pub exchanged: u64,
}

/// The recorded events of a passed address, in their order. Allocations and frees alternate.
#[derive(Debug, Default)]
struct Passed {
    allocations: Vec<Event>,
    frees: Vec<Event>,
}

/// The times of the steps of an address, by the counter of the CPU; none if that is not the clock
/// of the recording.
#[derive(Clone, Copy, Debug)]
struct Times<'a>(Option<&'a [u64]>);

impl Times<'_> {
    /// Returns whether the timestamp of a step is before the step that is two before it. Then it is
    /// too early by the time in which the address was passed on twice, and an order that is
    /// legal and wrong may result (ARCHITECTURE.md, "Possible is not true").
    fn are_after(self, tick: u64, step: usize) -> bool {
        let before = self.0.zip(step.checked_sub(2));
        before.and_then(|(times, step)| times.get(step)).is_some_and(|time| tick < *time)
    }
}

/// An event at the position of another one.
#[derive(Clone, Copy, Debug)]
struct Exchanged {
    step: usize,
    is_too_early: bool,
    event: Event,
}

/// Asserts that each allocation and each free of `programs/hands_round.c` is in the recording, that
/// allocations and frees of an address alternate, that each is by the thread that made it, and that
/// all are in their real order, except beside an event whose timestamp is provably too early to
/// find that order. `times` is the program's file of times.
#[track_caller]
pub fn check(recording: &Recording, threads: u64, rounds: u64, times: &Path) -> HandedRound {
    let (passed, is_counter) = passed(recording);
    let times = std::fs::read(times).expect("the times");
    let times: Vec<u64> = times.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
    let steps = 2 * rounds as usize;
    // The thread that makes a step of an address, in the numbers of the recording.
    let mut numbers = HashMap::<u64, u32>::new();
    let mut found = HandedRound::default();
    let mut exchanged = HashMap::<u64, Vec<Exchanged>>::new();
    for (address, Passed { allocations, frees }) in &passed {
        assert_eq!([allocations.len(), frees.len()].map(|count| 2 * count), [steps; 2], "address {address}");
        found.events += steps as u64;
        let times = Times(is_counter.then(|| &times[*address as usize * steps..][..steps]));
        for (position, event) in allocations.iter().enumerate() {
            let real = real_position(event, position as u64);
            let known = *numbers.entry((2 * real + address) % threads).or_insert(event.thread);
            assert_eq!(known, event.thread, "allocation {real} of address {address}, by {numbers:?}: {event:?}");
            if real != position as u64 {
                let real = real as usize;
                let is_too_early = real > position && times.are_after(event.tick, 2 * real);
                let one = Exchanged { step: 2 * position, is_too_early, event: *event };
                exchanged.entry(*address).or_default().push(one);
            }
        }
    }
    for (address, Passed { frees, .. }) in &passed {
        let times = Times(is_counter.then(|| &times[*address as usize * steps..][..steps]));
        for (position, event) in frees.iter().enumerate() {
            // A free has no number, so that any later one by the same thread may be the real one.
            let mut is_by = |position: usize| {
                let thread = (2 * position as u64 + 1 + address) % threads;
                *numbers.entry(thread).or_insert(event.thread) == event.thread
            };
            if !is_by(position) {
                let mut later = position + 1..=position + NEAR;
                let is_too_early = later.any(|real| is_by(real) && times.are_after(event.tick, 2 * real + 1));
                let one = Exchanged { step: 2 * position + 1, is_too_early, event: *event };
                exchanged.entry(*address).or_default().push(one);
            }
        }
    }
    for (address, all) in &exchanged {
        for one in all {
            let near: Vec<_> = all.iter().filter(|other| one.step.abs_diff(other.step) <= 2 * NEAR).collect();
            let described: Vec<_> = near.iter().map(|one| (one.step, one.event.thread, one.event.tick)).collect();
            let is_explained = near.iter().any(|other| other.is_too_early);
            assert!(is_explained, "address {address}, by {numbers:?}: (step, thread, tick) are others: {described:?}");
        }
        found.exchanged += all.len() as u64;
    }
    found
}

/// Returns the events of each passed address, by its number, and whether their ticks are those of
/// the CPU's counter. Asserts that allocations and frees alternate.
#[track_caller]
fn passed(recording: &Recording) -> (HashMap<u64, Passed>, bool) {
    /// Ticks per second of the clock that is used where the counter cannot be.
    const NANOSECONDS: u64 = 1_000_000_000;
    let folders = recording.about().processes;
    assert_eq!(folders.len(), 1, "one process was expected");
    let process = Process::open(&recording.folder.join(&folders[0].folder), None).expect("a process");
    let mut passed = HashMap::<u64, Passed>::new();
    // The number of the address of each live allocation, by index.
    let (mut pool, mut live) = (None, HashMap::<u64, u64>::new());
    let missing = process.for_each(Span::ALL, &Progress::silent("test"), &mut |batch| {
        for event in batch {
            match event.kind {
                Kind::Alloc if event.address % STEP == 0 && event.size >= FIRST_SIZE => {
                    // The first allocation of the program is that of address 0.
                    let pool = *pool.get_or_insert(event.address - event.address % (8 * STEP));
                    let address = (event.address - pool) / STEP;
                    let passed = passed.entry(address).or_default();
                    assert_eq!(passed.allocations.len(), passed.frees.len(), "address {address}: {event:?}");
                    passed.allocations.push(*event);
                    live.insert(event.index, address);
                }
                Kind::Free => {
                    let Some(address) = live.remove(&event.index) else { continue };
                    passed.entry(address).or_default().frees.push(*event);
                }
                _ => {}
            }
        }
    });
    assert!(missing.is_empty(), "{missing:?}");
    (passed, process.clock.ticks_per_second != NANOSECONDS)
}

/// Returns the number of an allocation of its address, the one nearest to `position` that its size
/// allows.
fn real_position(event: &Event, position: u64) -> u64 {
    let ahead = (event.size - FIRST_SIZE + SIZES - position % SIZES) % SIZES;
    if ahead <= SIZES / 2 { position + ahead } else { (position + ahead).saturating_sub(SIZES) }
}
