//! Joins the segments of a process to one process, so that every report counts a block once,
//! however many folders of the process are given.

use super::joined::{Joined, Segment};
use super::mappings::TapeMappings;
use super::segments::{Begins, Chains, Index, chains};
use super::tape::{PageSnapshot, Tape};
use super::{Events, Process, Recording};
use crate::missing::Missing;
use crate::saved_names::SavedNames;
use crate::stacks::{Module, Named, Site, Stacks};
use heaptape_formats::tape::{Account, History, Loss, SiteHistory, SiteSums, Summary, Thread, Totals};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Joins the segments of each process. The joined process is where its last segment was.
pub(super) fn join(recordings: &mut [Recording]) {
    let all: Vec<Vec<Process>> =
        recordings.iter_mut().map(|recording| std::mem::take(&mut recording.processes)).collect();
    let Chains { chains, twice } = chains(&all);
    let mut all: Vec<Vec<Option<Process>>> =
        all.into_iter().map(|processes| processes.into_iter().map(Some).collect()).collect();
    for Index { recording, process } in twice {
        all[recording][process] = None;
    }
    for chain in chains {
        let segments = chain.iter().filter_map(|index| all[index.recording][index.process].take()).collect();
        if let Some(last) = chain.last() {
            all[last.recording][last.process] = of_segments(segments);
        }
    }
    for (recording, processes) in recordings.iter_mut().zip(all) {
        recording.processes = processes.into_iter().flatten().collect();
    }
}

/// Returns the process of some segments, oldest first. Those before a change of mode are left out.
fn of_segments(mut segments: Vec<Process>) -> Option<Process> {
    let last = segments.iter().rev().find(|segment| !is_lost(segment)).or(segments.last())?;
    let (has_events, is_sampled) = (last.has_events(), last.tape.process.sample_bytes != 0);
    let mut first = segments.len() - 1;
    let (mut superseded, mut left_out) = (Vec::new(), Vec::new());
    while first > 0 {
        let (before, begins) = (&segments[first - 1], begins(&segments[first], &segments[first - 1]));
        if begins == Begins::Sums {
            superseded.push(segments.remove(first - 1));
            first -= 1;
            continue;
        }
        if is_lost(before) {
            first -= 1;
            continue;
        }
        // The blocks of a segment in another mode were carried over without their history.
        if before.has_events() != has_events || (before.tape.process.sample_bytes != 0) != is_sampled {
            left_out = segments.drain(..first).collect();
            break;
        }
        first -= 1;
    }
    let folders = |processes: &[Process]| processes.iter().map(|process| process.about.folder.clone()).collect();
    let (mut left_out, superseded): (Vec<String>, Vec<String>) = (folders(&left_out), folders(&superseded));
    let names: Vec<String> = folders(&segments);
    let mut joined = match segments.len() {
        1 => segments.pop()?,
        _ if has_events => with_events(segments),
        _ => with_sums(segments),
    };
    joined.segments = superseded.into_iter().rev().chain(names).collect();
    joined.left_out.append(&mut left_out);
    Some(joined)
}

/// Returns whether all events of a segment are lost, as on a full disk. It may lack the files of
/// its mode, and has only the counts of what it lost.
fn is_lost(segment: &Process) -> bool {
    let accounts = &segment.tape.accounts;
    let has_lost = accounts.iter().any(|account| account.lost > 0);
    !segment.has_events() && has_lost && accounts.iter().all(|account| account.recorded == 0)
}

/// Returns how a segment begins after another one. A profile of an old recorder does not state
/// that it continues the sums.
fn begins(segment: &Process, before: &Process) -> Begins {
    let goes_on = segment.tape.segment.is_none() && !segment.has_events() && segment.clock == before.clock;
    if goes_on { Begins::Sums } else { segment.begins() }
}

/// Call sites of several segments as those of one process.
#[derive(Default)]
struct Merged {
    stacks: Stacks,
    known: FxHashMap<Site, u32>,
    named: FxHashMap<Named, u32>,
    saved: Vec<Arc<SavedNames>>,
}

impl Merged {
    /// Adds the sites of a segment. Returns their numbers here, by those in the segment.
    fn add(&mut self, of: &Stacks) -> Vec<u32> {
        let modules: Vec<u32> = of.modules.iter().map(|module| self.module(module)).collect();
        let named: Vec<u32> = of.named.iter().map(|named| self.named(named)).collect();
        let moved = |list: &[u32], number: u32| {
            (number as usize).checked_sub(1).and_then(|index| list.get(index)).copied().unwrap_or(0)
        };
        let mut numbers = vec![0];
        for number in 1..=of.len() as u32 {
            let site = of.site(number);
            let parent = if site.parent < number { numbers[site.parent as usize] } else { 0 };
            let (module, named) = (moved(&modules, site.module), moved(&named, site.named));
            let site = Site { parent, module, named, ..site };
            let stacks = &mut self.stacks;
            numbers.push(*self.known.entry(site).or_insert_with(|| stacks.push(site)));
        }
        numbers
    }

    /// Returns the index plus 1 of a module.
    fn module(&mut self, module: &Module) -> u32 {
        let is_same = |known: &&mut Module| {
            (known.start, known.end, known.bias) == (module.start, module.end, module.bias)
                && (&known.path, &known.build_id, &known.file) == (&module.path, &module.build_id, &module.file)
        };
        if let Some(saved) = &module.saved
            && !self.saved.iter().any(|known| Arc::ptr_eq(known, saved))
        {
            self.saved.push(Arc::clone(saved));
        }
        let modules = &mut self.stacks.modules;
        if let Some(index) = modules.iter_mut().position(|known| is_same(&known)) {
            return index as u32 + 1;
        }
        modules.push(module.clone());
        modules.len() as u32
    }

    fn named(&mut self, named: &Named) -> u32 {
        let all = &mut self.stacks.named;
        let next = all.len() as u32 + 1;
        *self.named.entry(named.clone()).or_insert_with(|| {
            all.push(named.clone());
            next
        })
    }

    /// Returns the sites with the names that any of the segments has.
    fn finish(mut self) -> Stacks {
        if let Some(saved) = SavedNames::joined(self.saved).map(Arc::new) {
            self.stacks.modules.iter_mut().for_each(|module| module.saved = Some(saved.clone()));
        }
        self.stacks
    }
}

/// Returns what segments have in common: the process from its first segment on, without events.
fn base(segments: &[Process]) -> Option<Process> {
    let (first, last) = (segments.first()?, segments.last()?);
    let mut about = last.about.clone();
    about.origin.clone_from(&first.about.origin);
    about.parent.clone_from(&first.about.parent);
    (about.ppid, about.began_unix_ns) = (first.about.ppid, first.about.began_unix_ns);
    about.started_unix_ns = first.about.started_unix_ns;
    about.own_malloc = segments.iter().any(|segment| segment.about.own_malloc);
    about.accounting = None;
    let notes = segments.iter().flat_map(|segment| segment.tape.notes.clone());
    let mut missing: Vec<Missing> = Vec::new();
    segments.iter().flat_map(|segment| &segment.missing).for_each(|one| {
        if !missing.contains(one) {
            missing.push(one.clone());
        }
    });
    let snapshots = segments.iter().enumerate().flat_map(|(segment, process)| {
        process.tape.snapshots.iter().map(move |snapshot| PageSnapshot { segment, ..snapshot.clone() })
    });
    let tape = Tape {
        process: first.tape.process.clone(),
        inherited: first.tape.inherited.clone(),
        notes: notes.collect(),
        marks: segments.iter().flat_map(|segment| segment.tape.marks.clone()).collect(),
        snapshots: snapshots.collect(),
        end: last.tape.end.clone(),
        segment: first.tape.segment.clone(),
        last_tick: segments.iter().map(|segment| segment.tape.last_tick).max().unwrap_or(0),
        accounts_are_final: segments.iter().all(|segment| segment.tape.has_final_accounts()),
        ..Tape::default()
    };
    Some(Process { about, path: last.path.clone(), clock: first.clock, tape, missing, ..Process::nothing() })
}

/// Adds the threads, accounts and gaps of a segment. Returns the threads with another number.
fn add_threads(into: &mut Tape, from: &Tape, accounts: &mut BTreeMap<u32, Account>) -> FxHashMap<u32, u32> {
    let mut moved = FxHashMap::default();
    for (number, thread) in &from.threads {
        let is_same = |known: &Thread| known.tid == thread.tid;
        let joined = match into.threads.get(number) {
            Some(known) if !is_same(known) => {
                let found = into.threads.iter().find(|(_, known)| is_same(known)).map(|(number, _)| *number);
                let after = into.threads.last_key_value().map_or(0, |(last, _)| last.saturating_add(1));
                found.unwrap_or(after)
            }
            _ => *number,
        };
        if joined != *number {
            moved.insert(*number, joined);
        }
        let first_tick = into.threads.get(&joined).map_or(thread.first_tick, |known| known.first_tick);
        into.threads.insert(joined, Thread { number: joined, first_tick, ..thread.clone() });
    }
    let number = |thread: u32| moved.get(&thread).copied().unwrap_or(thread);
    for account in &from.accounts {
        let thread = number(account.thread);
        let sum = accounts.entry(thread).or_insert_with(|| Account { thread, ..Account::default() });
        sum.emitted = sum.emitted.saturating_add(account.emitted);
        sum.recorded = sum.recorded.saturating_add(account.recorded);
        sum.lost = sum.lost.saturating_add(account.lost);
        sum.sampled_out = sum.sampled_out.saturating_add(account.sampled_out);
    }
    into.losses.extend(from.losses.iter().map(|loss| Loss { thread: number(loss.thread), ..loss.clone() }));
    moved
}

/// Joins the mappings of segments. What is mapped at the end is in the last one.
fn join_mappings(segments: &[Segment]) -> TapeMappings {
    let mut joined = TapeMappings::default();
    for Segment { process, sites, .. } in segments {
        let TapeMappings { offsets, names, ranges, .. } = &process.tape.mappings;
        let names_before = joined.names.len() as u32;
        joined.offsets.extend(offsets);
        joined.names.extend(names.iter().cloned());
        joined.ranges = ranges.clone();
        joined.ranges.for_each_call(|by| {
            by.site = sites.get(by.site as usize).copied().unwrap_or(0);
            by.name = if by.name == 0 { 0 } else { by.name.saturating_add(names_before) };
        });
    }
    joined.sums = TapeMappings::joined(segments.iter().map(|segment| &segment.process.tape.mappings));
    joined
}

fn with_events(segments: Vec<Process>) -> Process {
    let Some(mut joined) = base(&segments) else { return Process::nothing() };
    let (mut merged, mut accounts, mut list) = (Merged::default(), BTreeMap::new(), Vec::new());
    for process in segments {
        let sites = merged.add(process.stacks());
        let threads = add_threads(&mut joined.tape, &process.tape, &mut accounts);
        if !process.has_events() {
            continue;
        }
        let carried = if list.is_empty() { 0 } else { process.carried() };
        let own = process.tape.events.saturating_sub(carried);
        joined.tape.events = joined.tape.events.saturating_add(own);
        let begins = process.begins();
        list.push(Segment { process, begins, sites, threads });
    }
    joined.tape.stacks = merged.finish();
    joined.tape.mappings = join_mappings(&list);
    joined.tape.accounts = accounts.into_values().collect();
    joined.events = Events::Joined(Box::new(Joined { segments: list }));
    joined
}

/// Joins sums. Each segment counts the blocks that were live before it as allocated, which they
/// were in the segment before.
fn with_sums(segments: Vec<Process>) -> Process {
    let (Some(mut joined), Some(last)) = (base(&segments), segments.last()) else { return Process::nothing() };
    // Only the last folder is at hand later.
    joined.tape.snapshots.retain(|snapshot| snapshot.segment + 1 == segments.len());
    let (mut merged, mut accounts) = (Merged::default(), BTreeMap::new());
    let mut totals = Totals::default();
    let mut rows: BTreeMap<u32, SiteSums> = BTreeMap::new();
    let mut history = History::default();
    for process in &segments {
        let numbers = merged.add(process.stacks());
        let site = |number: u32| numbers.get(number as usize).copied().unwrap_or(0);
        if std::ptr::eq(process, last) {
            joined.tape.snapshots.iter_mut().for_each(|snapshot| snapshot.renumber_sites(site));
        }
        add_threads(&mut joined.tape, &process.tape, &mut accounts);
        let Some(Summary { totals: added, sites }) = process.ready_sums() else { continue };
        let before: BTreeMap<u32, SiteSums> = std::mem::take(&mut rows);
        let mut carried = Totals::default();
        for row in sites {
            let sum = rows.entry(site(row.site)).or_default();
            sum.allocs = sum.allocs.saturating_add(row.allocs);
            sum.bytes = sum.bytes.saturating_add(row.bytes);
            sum.frees = sum.frees.saturating_add(row.frees);
            sum.freed_bytes = sum.freed_bytes.saturating_add(row.freed_bytes);
        }
        for (number, old) in before {
            let sum = rows.entry(number).or_default();
            let (live_blocks, live_bytes) =
                (old.allocs.saturating_sub(old.frees), old.bytes.saturating_sub(old.freed_bytes));
            carried.live_blocks = carried.live_blocks.saturating_add(live_blocks);
            carried.live_bytes = carried.live_bytes.saturating_add(live_bytes);
            // What the segment does not hold of them was freed between the two.
            let gone = (live_blocks.saturating_sub(sum.allocs), live_bytes.saturating_sub(sum.bytes));
            sum.allocs = sum.allocs.saturating_add(old.allocs).saturating_sub(live_blocks - gone.0);
            sum.bytes = sum.bytes.saturating_add(old.bytes).saturating_sub(live_bytes - gone.1);
            sum.frees = sum.frees.saturating_add(old.frees).saturating_add(gone.0);
            sum.freed_bytes = sum.freed_bytes.saturating_add(old.freed_bytes).saturating_add(gone.1);
        }
        rows.iter_mut().for_each(|(number, row)| row.site = *number);
        add_history(&mut history, &process.tape.history, &site, &rows);
        totals = Totals {
            allocs: totals.allocs.saturating_add(added.allocs).saturating_sub(carried.live_blocks),
            resizes: totals.resizes.saturating_add(added.resizes),
            frees: totals.frees.saturating_add(added.frees),
            bytes_allocated: totals
                .bytes_allocated
                .saturating_add(added.bytes_allocated)
                .saturating_sub(carried.live_bytes),
            peak_bytes: totals.peak_bytes.max(added.peak_bytes),
            peak_blocks: totals.peak_blocks.max(added.peak_blocks),
            peak_tick: if totals.peak_bytes > added.peak_bytes { totals.peak_tick } else { added.peak_tick },
            unknown_frees: totals.unknown_frees.saturating_add(added.unknown_frees),
            implied_frees: totals.implied_frees.saturating_add(added.implied_frees),
            ..added
        };
    }
    let tape = &mut joined.tape;
    (tape.stacks, tape.accounts) = (merged.finish(), accounts.into_values().collect());
    (tape.history, tape.summary_is_last) = (history, true);
    tape.summary = Some(Summary { totals, sites: rows.into_values().collect() });
    joined.events = Events::Sums;
    joined
}

/// Adds the history of a segment. A history has only the sites that grew: one that a part lacks had
/// about as much as now in all of it.
fn add_history(into: &mut History, from: &History, site: &dyn Fn(u32) -> u32, now: &BTreeMap<u32, SiteSums>) {
    let (old, new) = (into.ticks.len(), from.ticks.len());
    into.ticks.extend(&from.ticks);
    // Without one of them the sums of all sites are not known.
    for (into, from) in [(&mut into.live_blocks.0, &from.live_blocks.0), (&mut into.live_bytes.0, &from.live_bytes.0)] {
        if into.len() == old && from.len() == new {
            into.extend(from);
        } else {
            into.clear();
        }
    }
    let mut rows: BTreeMap<u32, SiteHistory> =
        std::mem::take(&mut into.sites).into_iter().map(|row| (row.site, row)).collect();
    let mut added: BTreeMap<u32, &SiteHistory> = from.sites.iter().map(|row| (site(row.site), row)).collect();
    let held = |number: u32| {
        let row = now.get(&number).cloned().unwrap_or_default();
        (row.allocs.saturating_sub(row.frees), row.bytes.saturating_sub(row.freed_bytes))
    };
    for (number, row) in &mut rows {
        let (blocks, bytes) = held(*number);
        match added.remove(number) {
            Some(more) => {
                row.blocks.extend(&more.blocks);
                row.bytes.extend(&more.bytes);
            }
            None => {
                row.blocks.resize(old + new, blocks);
                row.bytes.resize(old + new, bytes);
            }
        }
    }
    for (number, row) in added {
        let first = |values: &[u64]| values.first().copied().unwrap_or(0);
        let before = |values: &[u64]| {
            let mut all = vec![first(values); old];
            all.extend(values);
            all
        };
        let (blocks, bytes) = (before(&row.blocks), before(&row.bytes));
        rows.insert(number, SiteHistory { site: number, blocks, bytes });
    }
    into.sites = rows.into_values().collect();
}

#[cfg(test)]
mod tests {
    use super::*;
    use heaptape_formats::tape::{SEGMENT_CARRIED, Segment as Identified};
    use std::path::Path;

    fn trace() -> Process {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/tape/v1/trace");
        let mut recording = crate::load::open(&path).expect("the golden recording");
        recording.processes.swap_remove(0)
    }

    /// A segment that a full disk has left: counts of lost events, and no file of events.
    fn lost(from: &Process) -> Process {
        let account = Account { thread: 1, emitted: 70, lost: 70, ..Account::default() };
        let segment = Some(Identified { begins: SEGMENT_CARRIED, ..Identified::default() });
        let tape = Tape { process: from.tape.process.clone(), accounts: vec![account], segment, ..Tape::default() };
        Process { about: from.about.clone(), clock: from.clock, tape, ..Process::nothing() }
    }

    #[test]
    fn segment_of_a_full_disk_keeps_its_lost_events_and_the_events_of_others() {
        let (own, events) = (trace().tape.accounts, trace().tape.events);
        let lost_before = own.iter().map(|account| account.lost).sum::<u64>();
        let emitted_before = own.iter().map(|account| account.emitted).sum::<u64>();
        for is_first in [true, false] {
            let (trace, lost) = (trace(), lost(&trace()));
            let segments = if is_first { vec![lost, trace] } else { vec![trace, lost] };
            let joined = of_segments(segments).expect("a process");
            assert!(joined.has_events() && joined.left_out.is_empty(), "{is_first}: {:?}", joined.left_out);
            assert_eq!(joined.tape.events, events, "{is_first}");
            let sum = |of: fn(&Account) -> u64| joined.tape.accounts.iter().map(of).sum::<u64>();
            assert_eq!(sum(|account| account.lost), lost_before + 70, "{is_first}");
            assert_eq!(sum(|account| account.emitted), emitted_before + 70, "{is_first}");
        }
    }
}
