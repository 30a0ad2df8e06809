//! The events of a process with several segments, as those of one run. Each segment numbers its
//! call sites, threads and allocations anew, and begins with the blocks that were live. Such a
//! block is the one of the segment before at the same address, and keeps its index and its time.

use super::Process;
use super::segments::Begins;
use crate::event::{Event, Kind, Position, Span};
use crate::missing::Missing;
use crate::model::live_set::{Block, LiveSet};
use crate::progress::Progress;
use heaptape_formats::tape::Entry;
use rustc_hash::{FxHashMap, FxHashSet};

/// A segment of a joined process.
#[derive(Debug)]
pub struct Segment {
    /// The segment as a process of its own.
    pub process: Process,
    /// How the segment begins.
    pub(super) begins: Begins,
    /// Site numbers of the joined process, by those of the segment.
    pub(super) sites: Vec<u32>,
    /// Thread numbers of the joined process that differ from those of the segment.
    pub(super) threads: FxHashMap<u32, u32>,
}

/// The events of a joined process.
#[derive(Debug)]
pub struct Joined {
    /// The segments, oldest first.
    pub segments: Vec<Segment>,
}

/// A block that was live at the end of a segment.
#[derive(Clone, Copy)]
struct Known {
    index: u64,
    bytes: u64,
    site: u32,
}

/// State of a pass over the events.
#[derive(Default)]
struct Pass {
    /// Live blocks, by the indexes of the joined process.
    live: LiveSet,
    /// Blocks of earlier segments that this one has not mentioned yet, by address.
    before: FxHashMap<u64, Known>,
    /// Indexes of the blocks that the recorder did not know since it was killed. No segment carries
    /// them over, and they live until the events free them.
    unknown: FxHashSet<u64>,
    /// Indexes in the joined process of carried blocks, by that in the segment.
    carried: FxHashMap<u64, u64>,
    /// The last index that is used, and what is added to those of this segment.
    last_index: u64,
    offset: u64,
    /// Number of events so far.
    number: u64,
    /// Tick of the last event.
    tick: u64,
    /// Whether the blocks that were carried over are complete.
    is_settled: bool,
    out: Vec<Event>,
}

impl Joined {
    /// Calls `each` for batches of the events of a span, in order. Returns the errors that were
    /// found.
    pub(super) fn for_each(&self, span: Span, progress: &Progress, each: &mut dyn FnMut(&[Event])) -> Vec<Missing> {
        let (mut pass, mut missing) = (Pass::default(), Vec::new());
        for (number, segment) in self.segments.iter().enumerate() {
            let next = Position { number: pass.number, tick: segment.process.clock.start_tick.max(pass.tick) };
            if span.is_past(next) {
                break;
            }
            pass.begin(segment, number == 0);
            let mut pass_on = |pass: &mut Pass| {
                let from = pass.out.partition_point(|event| span.is_before(event.position()));
                let to = pass.out.partition_point(|event| !span.is_past(event.position()));
                if from < to {
                    each(&pass.out[from..to]);
                }
            };
            missing.extend(segment.process.for_each(Span::ALL, progress, &mut |events| {
                pass.out.clear();
                events.iter().for_each(|event| pass.step(segment, event));
                pass_on(&mut pass);
            }));
            pass.out.clear();
            pass.settle();
            pass_on(&mut pass);
        }
        missing
    }

    /// Returns the position of the allocation at a percentage of all allocations.
    pub(super) fn allocation_at(&self, per_cent: u64) -> Option<Position> {
        let counts: Vec<u64> = self.segments.iter().enumerate().map(|(number, segment)| segment.own(number)).collect();
        let all = counts.iter().fold(0u64, |sum, count| sum.saturating_add(*count));
        let mut wanted = (u128::from(all.checked_sub(1)?) * u128::from(per_cent.min(100)) / 100) as u64;
        let mut before = 0u64;
        for (number, segment) in self.segments.iter().enumerate() {
            let carried = if number == 0 { 0 } else { segment.process.carried() };
            if wanted < counts[number] {
                let found = segment.process.allocation_by_rank(wanted.saturating_add(carried).saturating_add(1))?;
                let number = before.saturating_add(found.number.saturating_sub(carried));
                return Some(Position { number, ..found });
            }
            wanted -= counts[number];
            before = before.saturating_add(segment.process.tape.events.saturating_sub(carried));
        }
        None
    }
}

impl Segment {
    /// Returns the number of blocks that the segment itself allocated. Those that were carried to
    /// the first segment count.
    fn own(&self, number: usize) -> u64 {
        let carried = if number == 0 { 0 } else { self.process.carried() };
        self.process.last_allocation().unwrap_or(0).saturating_sub(carried)
    }

    /// Returns the site of the joined process for one of the segment.
    pub(super) fn site(&self, site: u32) -> u32 {
        self.sites.get(site as usize).copied().unwrap_or(0)
    }
}

impl Pass {
    /// Begins a segment with the blocks that are live.
    fn begin(&mut self, segment: &Segment, is_first: bool) {
        self.carried.clear();
        self.offset = self.last_index;
        self.is_settled = is_first || segment.begins != Begins::Carried;
        self.tick = self.tick.max(segment.process.clock.start_tick);
        let known =
            |(index, block): (u64, Block)| (block.address, Known { index, bytes: block.size, site: block.site });
        self.before = self.live.iter().map(known).collect();
        let live = self.before.values().map(|known| known.index);
        if segment.begins == Begins::Unknown {
            self.unknown = live.collect();
        } else if !self.unknown.is_empty() {
            let live: FxHashSet<u64> = live.collect();
            self.unknown.retain(|index| live.contains(index));
        }
    }

    /// Ends the blocks that were live before and were not carried over, though the recorder knew
    /// them.
    fn settle(&mut self) {
        if std::mem::replace(&mut self.is_settled, true) {
            return;
        }
        let unknown = &self.unknown;
        let mut gone = Vec::new();
        self.before.retain(|_, known| {
            let stays = unknown.contains(&known.index);
            if !stays {
                gone.push(known.index);
            }
            stays
        });
        gone.sort_unstable();
        gone.into_iter().for_each(|index| self.implied(index));
    }

    /// Adds the free of a block that was not recorded.
    fn implied(&mut self, index: u64) {
        self.live.remove(index);
        let entry = Entry::Implied as u8;
        let (tick, number) = (self.tick, self.number);
        self.push(Event { entry, number, index, tick, ..Event::of(Kind::Free) });
    }

    fn push(&mut self, event: Event) {
        self.tick = event.tick.max(self.tick);
        self.out.push(Event { number: self.number, tick: self.tick, ..event });
        self.number += u64::from(event.kind != Kind::Unmatched);
    }

    /// Returns the index in the joined process.
    fn index(&mut self, index: u64) -> u64 {
        if let Some(known) = self.carried.get(&index) {
            return *known;
        }
        let joined = self.offset.saturating_add(index);
        self.last_index = self.last_index.max(joined);
        joined
    }

    fn step(&mut self, segment: &Segment, event: &Event) {
        let thread = segment.threads.get(&event.thread).copied().unwrap_or(event.thread);
        let mut event = Event { site: segment.site(event.site), thread, ..*event };
        let is_carried = event.kind == Kind::Alloc && event.entry == Entry::Carried as u8;
        if is_carried && let Some(known) = self.before.get(&event.address).copied() {
            self.before.remove(&event.address);
            if known.bytes == event.bytes() && known.site == event.site {
                self.carried.insert(event.index, known.index);
                return;
            }
            self.implied(known.index);
        }
        if !is_carried && !self.is_settled {
            self.settle();
        }
        match event.kind {
            Kind::Alloc | Kind::Resize => {
                // A block cannot be where another one is.
                if let Some(known) = self.before.remove(&event.address) {
                    self.implied(known.index);
                }
                event.index = self.index(event.index);
                let address = event.address;
                self.live
                    .insert(event.index, Block { address, size: event.bytes(), site: event.site, ..Block::default() });
            }
            Kind::Free => {
                event.index = self.index(event.index);
                self.live.remove(event.index);
            }
            Kind::Unmatched => {
                if let Some(known) = self.before.remove(&event.address) {
                    self.live.remove(known.index);
                    (event.kind, event.index, event.address) = (Kind::Free, known.index, 0);
                }
            }
            Kind::Previous => return,
        }
        self.push(event);
    }
}
