//! Every model against a plain replay of the same steps, for random programs, chunk sizes and
//! codecs.

use crate::made;

use heaptape_analyzer::event::{Bound, Range, Span};
use heaptape_analyzer::model::axis::Axis;
use heaptape_analyzer::model::axis::SLICES;
use heaptape_analyzer::model::call_sites::CallSites;
use heaptape_analyzer::model::leaks::Leaks;
use heaptape_analyzer::model::lifetimes::Lifetimes;
use heaptape_analyzer::model::peak::Peak;
use heaptape_analyzer::model::sizes::{Sizes, class};
use heaptape_analyzer::model::temporary::Temporary;
use heaptape_analyzer::model::threads::Threads;
use heaptape_analyzer::model::timeline::Timeline;
use heaptape_analyzer::model::totals::Totals;
use heaptape_analyzer::{Progress, open, replay};
use heaptape_formats::tape::{Codec, SiteSums};
use made::{Options, Step, program, truth};
use proptest::prelude::*;
use std::collections::HashMap;

fn rolls() -> impl Strategy<Value = Vec<(u8, u16, u8, u8, u8)>> {
    // A thread has no two equal timestamps: events with such a tick are interpolated.
    let later = |(what, size, site, thread, wait): (u8, u16, u8, u8, u8)| (what, size, site, thread, wait.max(1));
    prop::collection::vec(any::<(u8, u16, u8, u8, u8)>().prop_map(later), 0..400)
}

fn options(chunk: usize, codec: u8) -> Options {
    let codec = [Codec::Plain, Codec::Lz4, Codec::Zstd][usize::from(codec) % 3];
    Options { chunk_events: chunk, codec, ..Options::default() }
}

fn progress() -> Progress {
    Progress::silent("test")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn totals_sites_and_peak(rolls in rolls(), chunk in 1usize..90, codec in 0u8..3) {
        let steps = program(&rolls);
        let (_dir, path) = made::recording(&steps, &options(chunk, codec));
        let recording = open(&path).unwrap();
        prop_assert!(recording.is_complete(), "{:?}", recording.processes[0].missing);
        let process = &recording.processes[0];
        let expected = truth(&steps);
        let ready = process.ready_sums().unwrap();
        prop_assert_eq!(&ready.totals, &expected.totals);
        let (mut totals, mut sites, mut peak) = (Totals::default(), CallSites::default(), Peak::within(Span::ALL));
        let outcome = replay(process, Span::ALL, &progress(), &mut (&mut totals, &mut sites, &mut peak));
        prop_assert!(outcome.missing.is_empty(), "{:?}", outcome.missing);
        prop_assert_eq!(totals.finish(None), expected.totals.clone());
        let held = peak.peak().0;
        prop_assert_eq!((held.bytes, peak.peak_blocks()), (expected.totals.peak_bytes, expected.totals.peak_blocks));
        let rows: Vec<SiteSums> = sites.sums().into_iter().map(|row| {
            let share = peak.at_peak(row.site);
            SiteSums { peak_blocks: share.blocks, peak_bytes: share.bytes, ..row }
        }).collect();
        prop_assert_eq!(rows, expected.sites);
        let mut live: Vec<(u64, u64, u32, u32, u64)> = outcome.live.iter().filter(|(_, block)| !block.inherited)
            .map(|(index, block)| (index, block.size, block.site, block.thread, block.tick)).collect();
        live.sort_unstable();
        let mut plain: Vec<_> = expected.live.iter().map(|(index, block)| (*index, block.0, block.1, block.2, block.3)).collect();
        plain.sort_unstable();
        prop_assert_eq!(live, plain);
    }

    /// The peak in a time range equals that of a search through all events of the range.
    #[test]
    fn peak_in_a_time_range_is_the_maximum(rolls in rolls(), chunk in 1usize..90, from in 0u64..300, length in 1u64..300) {
        let steps = program(&rolls);
        let (_dir, path) = made::recording(&steps, &options(chunk, 0));
        let recording = open(&path).unwrap();
        let process = &recording.processes[0];
        let span = Span { first: from, end: from + length, ..Span::ALL };
        let mut peak = Peak::within(span);
        replay(process, span.with_history(), &progress(), &mut peak);
        let (mut number, mut most, mut shares) = (0, None, HashMap::new());
        for at in 0..steps.len() {
            let counts = !matches!(steps[at], Step::Unmatched { .. });
            if counts && number >= from && number < from + length {
                let moments = [&steps[..at], &steps[..at + 1]];
                for moment in if most.is_none() { &moments[..] } else { &moments[1..] } {
                    let truth = truth(moment);
                    if most.is_none_or(|most| truth.totals.live_bytes > most) {
                        most = Some(truth.totals.live_bytes);
                        shares.clear();
                        for block in truth.live.values() {
                            *shares.entry(block.1).or_insert(0) += block.0;
                        }
                    }
                }
            }
            number += u64::from(counts);
        }
        if let Some(most) = most {
            prop_assert_eq!(peak.peak().0.bytes, most);
            for (site, bytes) in shares {
                prop_assert_eq!(peak.at_peak(site).bytes, bytes);
            }
        }
    }

    #[test]
    fn sizes_threads_lifetimes_and_temporary(rolls in rolls(), chunk in 1usize..90, between in 0usize..4) {
        let steps = program(&rolls);
        let (_dir, path) = made::recording(&steps, &options(chunk, 0));
        let recording = open(&path).unwrap();
        let process = &recording.processes[0];
        let (mut sizes, mut threads, mut lifetimes, mut temporary) =
            (Sizes::default(), Threads::default(), Lifetimes::new(1_000_000_000), Temporary::within(between));
        let models = &mut (&mut sizes, &mut threads, &mut lifetimes, &mut temporary);
        let outcome = replay(process, Span::ALL, &progress(), models);
        prop_assert!(outcome.missing.is_empty());

        let mut classes: HashMap<usize, (u64, u64)> = HashMap::new();
        let mut by_thread: HashMap<u32, (u64, u64, u64, u64)> = HashMap::new();
        let (mut died, mut sum, mut longest) = (0u64, 0u64, 0u64);
        let mut temporaries = 0;
        let mut born: HashMap<u64, (u64, u32, bool)> = HashMap::new();
        let mut made: HashMap<u32, u64> = HashMap::new();
        let mut owner: HashMap<u64, (u32, u64)> = HashMap::new();
        for step in &steps {
            let mut end = |index: u64, thread: u32, now: u64| {
                if let Some((at, owner, own)) = born.remove(&index)
                    && owner == thread && own && now - at <= between as u64 {
                    temporaries += 1;
                }
            };
            match *step {
                Step::Alloc { index, size, thread, tick, .. } => {
                    let row = classes.entry(class(size)).or_default();
                    *row = (row.0 + 1, row.1 + size);
                    by_thread.entry(thread).or_default().0 += 1;
                    let now = made.entry(thread).or_default();
                    born.insert(index, (*now + 1, thread, true));
                    *now += 1;
                    owner.insert(index, (thread, tick));
                }
                Step::Resize { index, size, thread, tick, .. } => {
                    let row = classes.entry(class(size)).or_default();
                    *row = (row.0 + 1, row.1 + size);
                    by_thread.entry(thread).or_default().1 += 1;
                    let now = made.entry(thread).or_default();
                    end(index, thread, *now);
                    born.insert(index, (*now + 1, thread, true));
                    *now += 1;
                    let birth = owner.get(&index).map_or(tick, |known| known.1);
                    owner.insert(index, (thread, birth));
                }
                Step::Implied { index, .. } => {
                    owner.remove(&index);
                    born.remove(&index);
                }
                Step::Free { index, thread, tick } => {
                    let row = by_thread.entry(thread).or_default();
                    row.2 += 1;
                    let now = made.entry(thread).or_default();
                    end(index, thread, *now);
                    *now += 1;
                    if let Some((of, birth)) = owner.remove(&index) {
                        row.3 += u64::from(of != thread);
                        died += 1;
                        sum += tick - birth;
                        longest = longest.max(tick - birth);
                    }
                }
                Step::Inherited { .. } => {}
                Step::Unmatched { thread, .. } => by_thread.entry(thread).or_default().2 += 1,
            }
        }
        for (class, (allocs, bytes)) in classes {
            prop_assert_eq!((sizes.classes[class].allocs, sizes.classes[class].bytes), (allocs, bytes));
        }
        for (thread, (allocs, resizes, frees, others)) in by_thread {
            let row = threads.rows[&thread];
            prop_assert_eq!((row.allocs, row.resizes, row.frees, row.frees_of_others), (allocs, resizes, frees, others));
        }
        prop_assert_eq!((lifetimes.all.freed, lifetimes.all.sum, lifetimes.all.longest), (died, sum, longest));
        prop_assert_eq!(temporary.rows.iter().map(|row| row.blocks).sum::<u64>(), temporaries);
    }

    /// Slices of the timeline, and the series of each site, hold what a plain replay holds at their
    /// ends.
    #[test]
    fn timeline_and_series(rolls in rolls(), chunk in 1usize..90, slices in 1usize..30) {
        let steps = program(&rolls);
        let (_dir, path) = made::recording(&steps, &options(chunk, 0));
        let recording = open(&path).unwrap();
        let process = &recording.processes[0];
        let (start, end) = (process.clock.start_tick, process.tape.last_tick);
        let from = heaptape_analyzer::event::Position { number: 0, tick: start };
        let to = heaptape_analyzer::event::Position { number: u64::MAX, tick: end + 1 };
        let mut timeline = Timeline::new(from, to, true, slices);
        let mut leaks = Leaks::new(Axis::plain(true, start, end), false);
        let outcome = replay(process, Span::ALL, &progress(), &mut (&mut timeline, &mut leaks));
        timeline.finish();
        let survivors = leaks.survivors(&outcome.live, Span::ALL);
        for slice in 0..slices {
            let until = timeline.start_of(slice + 1);
            let past: Vec<Step> = steps.iter().copied().take_while(|step| step.tick() < until).collect();
            prop_assert_eq!(timeline.slices[slice].live_bytes, truth(&past).totals.live_bytes);
        }
        let width = (end - start) / SLICES as u64 + 1;
        for slice in [0, 5, SLICES - 1] {
            let until = if slice == SLICES - 1 { u64::MAX } else { start + width * (slice as u64 + 1) };
            let past: Vec<Step> = steps.iter().copied().take_while(|step| step.tick() < until).collect();
            let live = truth(&past).live;
            for (site, row) in leaks.histories() {
                let plain: u64 = live.values().filter(|block| block.1 == site).map(|block| block.0).sum();
                prop_assert_eq!(row.series[slice], plain, "site {} slice {}", site, slice);
            }
        }
        let expected = truth(&steps);
        for ((site, inherited), survivors) in survivors {
            prop_assert!(!inherited);
            let blocks: Vec<_> = expected.live.values().filter(|block| block.1 == site).collect();
            prop_assert_eq!(survivors.blocks, blocks.len() as u64);
            prop_assert_eq!(survivors.bytes, blocks.iter().map(|block| block.0).sum::<u64>());
            prop_assert_eq!(survivors.first.tick, blocks.iter().map(|block| block.3).min().unwrap());
            prop_assert_eq!(survivors.allocs_by_slice.iter().sum::<u64>(), survivors.blocks);
        }
    }

    /// A range of event numbers yields exactly the events of the range.
    #[test]
    fn ranges_of_event_numbers(rolls in rolls(), chunk in 1usize..60, a in 0u64..400, b in 0u64..400) {
        let steps = program(&rolls);
        let (_dir, path) = made::recording(&steps, &options(chunk, 1));
        let recording = open(&path).unwrap();
        let process = &recording.processes[0];
        let (from, to) = (a.min(b), a.max(b));
        let range = Range { from: Some(Bound::Number(from)), to: Some(Bound::Number(to)) };
        let mut found = Vec::new();
        process.for_each(process.span(&range), &progress(), &mut |events| found.extend_from_slice(events));
        let mut number = 0;
        let mut expected = Vec::new();
        for step in &steps {
            if number >= from && number < to {
                expected.push((number, step.tick(), step.thread()));
            }
            number += u64::from(!matches!(step, Step::Unmatched { .. }));
        }
        let found: Vec<_> = found.iter().map(|event| (event.number, event.tick, event.thread)).collect();
        prop_assert_eq!(found, expected);
    }
}
