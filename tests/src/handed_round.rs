//! The order of the events that `programs/hands_round.c` makes, compared with the real one.

use crate::Recording;
use heaptape_analyzer::event::{Event, Kind, Span};
use heaptape_analyzer::{Process, Progress};
use std::collections::HashMap;

/// Number of ticks within which the timestamps of two threads do not decide the order
/// (ARCHITECTURE.md, "Order").
const WINDOW: u64 = 4096;
/// Distance of two passed addresses.
const STEP: u64 = 4096;
/// Requested size of the first allocation of an address. Each one is a byte larger than the one
/// before.
const FIRST_SIZE: u64 = 64;
/// Number of sizes, after which they begin again.
const SIZES: u64 = 1 << 19;
/// Number of positions that a free is searched in, before and after its own.
const NEAR: usize = 8;

/// What [`check`] has found.
#[derive(Clone, Copy, Debug, Default)]
pub struct HandedRound {
    /// Number of allocations and frees of the passed addresses.
    pub events: u64,
    /// Number of these that are at the position of another one, whose timestamp does not decide.
    pub exchanged: u64,
}

/// The recorded events of a passed address, in their order. Allocations and frees alternate.
#[derive(Debug, Default)]
struct Passed {
    allocations: Vec<Event>,
    frees: Vec<Event>,
}

/// Asserts that each allocation and each free of `programs/hands_round.c` is in the recording, that
/// allocations and frees of an address alternate, that each is by the thread that made it, and that
/// all are in their real order, except where timestamps within the window do not decide it.
#[track_caller]
pub fn check(recording: &Recording, threads: u64, rounds: u64) -> HandedRound {
    let passed = passed(recording);
    // The thread that makes a step of an address, in the numbers of the recording.
    let mut numbers = HashMap::<u64, u32>::new();
    let mut found = HandedRound::default();
    for (address, Passed { allocations, .. }) in &passed {
        for (position, event) in allocations.iter().enumerate() {
            let real = real_position(event, position as u64);
            let known = *numbers.entry((2 * real + address) % threads).or_insert(event.thread);
            assert_eq!(known, event.thread, "allocation {real} of address {address}, by {numbers:?}: {event:?}");
            if real != position as u64 {
                let there = usize::try_from(real).ok().and_then(|real| allocations.get(real));
                let distance = there.map(|there| there.tick.abs_diff(event.tick));
                assert!(
                    distance.is_some_and(|distance| distance <= WINDOW),
                    "allocation {real} of address {address} is recorded as number {position}, {distance:?} ticks away"
                );
                found.exchanged += 1;
            }
        }
    }
    for (address, Passed { allocations, frees }) in &passed {
        assert_eq!([allocations.len(), frees.len()].map(|count| count as u64), [rounds; 2], "address {address}");
        for (position, event) in frees.iter().enumerate() {
            // A free has no number, so that any near one by the same thread may be the real one.
            let mut is_by = |position: usize| {
                let thread = (2 * position as u64 + 1 + address) % threads;
                *numbers.entry(thread).or_insert(event.thread) == event.thread
            };
            if is_by(position) {
                continue;
            }
            let near = position.saturating_sub(NEAR)..frees.len().min(position + NEAR + 1);
            let is_possible = near.clone().any(|near| is_by(near) && frees[near].tick.abs_diff(event.tick) <= WINDOW);
            assert!(is_possible, "free {position} of address {address}, by {numbers:?}: {:?}", &frees[near]);
            found.exchanged += 1;
        }
        found.events += (allocations.len() + frees.len()) as u64;
    }
    found
}

/// Returns the events of each passed address, by its number. Asserts that allocations and frees
/// alternate.
#[track_caller]
fn passed(recording: &Recording) -> HashMap<u64, Passed> {
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
    passed
}

/// Returns the number of an allocation of its address, the one nearest to `position` that its size
/// allows.
fn real_position(event: &Event, position: u64) -> u64 {
    let ahead = (event.size - FIRST_SIZE + SIZES - position % SIZES) % SIZES;
    if ahead <= SIZES / 2 { position + ahead } else { (position + ahead).saturating_sub(SIZES) }
}
