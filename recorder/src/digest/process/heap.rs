//! The heap of a process: its live blocks, the sums of its sites, and the amounts that its sampled
//! blocks represent. Calls are collected and applied together; what they do is added to the trace.

use super::sample_weights::{self, SampleWeights};
use crate::heap::index::{Block, Index, Location};
use crate::heap::live::{BlocksAt, Call, Done, Effect, Inheritance, Kind, Live, Renumbered, entry};
use crate::heap::profile::{Amount, CountedBlock, Profile};
use crate::heap::thread_number::ThreadNumber;
use crate::session::options::Options;
use crate::store::trace::Trace;
use formats::resident::Covered;
use formats::tape::{Summary, Totals};

/// Number of calls that are processed together: their memory is prefetched, and their data stays in
/// the nearest cache.
const BATCH_CALLS: usize = 64;
/// Maximum number of children for which blocks are kept at once. Those of a child that never
/// attaches are dropped by later ones.
const MAX_INHERITANCES: usize = 16;

/// A live block that the next segment starts with.
#[derive(Debug)]
pub(crate) struct CarriedBlock {
    pub address: u64,
    /// The block with its new index.
    pub block: Block,
    pub amount: Amount,
}

#[derive(Debug)]
pub(super) struct Heap {
    live: Live,
    profile: Profile,
    /// The amounts that sampled blocks represent; `None` while every event is recorded.
    sample_weights: Option<SampleWeights>,
    /// The calls that were read and not applied yet.
    calls: Vec<(Call, Location)>,
    /// The effects that were not added to profile and trace yet.
    effects: Vec<Effect>,
    /// Blocks for forked children that have not attached yet, by the tick of the fork.
    inheritances: Vec<(u64, Inheritance)>,
}

/// Adds the record of an effect. The block before it counted for this many bytes.
fn add_to_trace(trace: &mut Trace, effect: &Effect, was: u64) {
    let Effect { kind, entry, index, old, ref call } = *effect;
    match kind {
        Kind::Alloc | Kind::Inherited => trace.alloc(call, entry, index),
        Kind::Resize => trace.resize(call, entry, index, Some((old.site, was))),
        Kind::ResizeUnknown => trace.resize(call, entry, index, None),
        Kind::Free | Kind::Implied => trace.free(call, entry, index, Some((old.site, was))),
        Kind::FreeUnknown => trace.free(call, entry, index, None),
        Kind::Unmatched => trace.unmatched(call, entry),
    }
}

impl Heap {
    /// Creates the heap of a process with these options.
    pub(super) fn new(options: &Options) -> Heap {
        Heap {
            live: Live::default(),
            profile: Profile::default(),
            sample_weights: SampleWeights::of(options),
            calls: Vec::with_capacity(BATCH_CALLS),
            effects: Vec::with_capacity(2 * BATCH_CALLS),
            inheritances: Vec::new(),
        }
    }

    /// Returns the sums of the sites.
    pub(super) fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Returns the live blocks of this process, without those whose resize is open.
    pub(super) fn index(&self) -> &Index {
        self.live.index()
    }

    /// Returns whether blocks are sampled.
    #[inline(always)]
    pub(super) fn is_sampled(&self) -> bool {
        self.sample_weights.is_some()
    }

    /// Returns the standard error of the live bytes of a site; 0 if blocks are not sampled.
    pub(super) fn error(&self, site: u32) -> u64 {
        self.sample_weights.as_ref().map_or(0, |sample_weights| sample_weights.error(site))
    }

    /// Returns the estimated number of live blocks, where the sums count sampled blocks only.
    pub(crate) fn estimated_blocks(&self) -> Option<u64> {
        self.sample_weights.as_ref().and_then(SampleWeights::estimated_blocks)
    }

    /// Returns the estimated number of allocations of the segment, where the sums count sampled
    /// blocks only.
    pub(crate) fn estimated_allocs(&self) -> Option<u64> {
        self.sample_weights.as_ref().and_then(SampleWeights::estimated_allocs)
    }

    /// Returns whether a block of this process is live at an address.
    pub(super) fn knows(&self, address: u64) -> bool {
        self.live.knows(address)
    }

    /// Returns the amount that a block counts for.
    pub(super) fn amount(&self, block: &Block) -> Amount {
        let known = self.sample_weights.as_ref().and_then(|sample_weights| sample_weights.get(block.index));
        known.unwrap_or(Amount { blocks: 1, bytes: block.size })
    }

    /// Returns the calls that wait until they are legal.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Call> {
        self.live.waiting()
    }

    /// Returns whether enough calls were collected.
    #[inline(always)]
    pub(super) fn is_full(&self) -> bool {
        self.calls.len() >= BATCH_CALLS
    }

    /// Returns how many more calls are to be collected.
    #[inline(always)]
    pub(super) fn space(&self) -> usize {
        BATCH_CALLS.saturating_sub(self.calls.len())
    }

    /// Collects a call, and prefetches the memory of its block and its site.
    #[inline(always)]
    pub(super) fn push(&mut self, call: Call) {
        self.profile.prefetch(call.site);
        self.calls.push((call, self.live.location(call.address)));
    }

    /// Returns whether calls were collected.
    pub(crate) fn has_calls(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Makes the profile large enough for the sites up to this one.
    pub(super) fn grow(&mut self, last_site: u32) {
        self.profile.grow(last_site);
    }

    /// Starts the count of the peak of a chunk. Returns the number of live blocks, and of their
    /// bytes.
    pub(crate) fn start_peak(&mut self) -> (u64, u64) {
        let totals = self.profile.totals();
        let size = (totals.live_blocks, totals.live_bytes);
        self.profile.most_bytes = size.1;
        size
    }

    /// Returns the maximum of the live bytes since the count of the peak was started.
    pub(super) fn peak_bytes(&self) -> u64 {
        self.profile.most_bytes
    }

    /// Applies the collected calls to the live blocks, the profile and the trace, if there is one.
    pub(crate) fn process_calls(&mut self, mut trace: Option<&mut Trace>, many_threads: bool) {
        let calls = std::mem::take(&mut self.calls);
        for (call, location) in &calls {
            let done = self.live.apply(call, *location, many_threads, &mut self.effects);
            if self.sample_weights.is_some() {
                self.effects.extend(done.effect(call));
                self.add_effects(trace.as_deref_mut());
                continue;
            }
            match done {
                Done::Alloc(index) => {
                    self.profile.alloc(CountedBlock::whole(call.site, call.size), call.tick);
                    if let Some(trace) = &mut trace {
                        trace.alloc(call, entry(call.op), index);
                    }
                }
                Done::Free(old) => {
                    self.profile.free(CountedBlock::whole(old.site, old.size));
                    if let Some(trace) = &mut trace {
                        trace.free(call, entry(call.op), old.index, Some((old.site, old.size)));
                    }
                }
                Done::Resize(old) => {
                    let was = CountedBlock::whole(old.site, old.size);
                    self.profile.resize(was, CountedBlock::whole(call.site, call.size), call.tick);
                    if let Some(trace) = &mut trace {
                        trace.resize(call, entry(call.op), old.index, Some((old.site, old.size)));
                    }
                }
                Done::Else => self.add_effects(trace.as_deref_mut()),
            }
        }
        self.calls = calls;
        self.calls.clear();
    }

    /// Adds the collected effects to the profile, and to the trace, if there is one.
    pub(crate) fn add_effects(&mut self, mut trace: Option<&mut Trace>) {
        for effect in self.effects.drain(..) {
            let Effect { kind, index, old, call, .. } = effect;
            let profile = &mut self.profile;
            let was = match kind {
                Kind::Free | Kind::Resize | Kind::Implied => {
                    sample_weights::block_freed(&mut self.sample_weights, &old)
                }
                _ => Amount::default(),
            };
            let now = match kind {
                Kind::Alloc | Kind::Resize | Kind::ResizeUnknown => {
                    sample_weights::block_allocated(&mut self.sample_weights, index, &call)
                }
                _ => Amount::default(),
            };
            let old_block = CountedBlock { site: old.site, size: old.size, amount: was };
            let new_block = CountedBlock { site: call.site, size: call.size, amount: now };
            match kind {
                Kind::Alloc => profile.alloc(new_block, call.tick),
                Kind::Free => profile.free(old_block),
                Kind::Resize => profile.resize(old_block, new_block, call.tick),
                Kind::ResizeUnknown => profile.resize_unknown(new_block, call.tick),
                Kind::FreeUnknown | Kind::Unmatched => profile.free_unknown(),
                Kind::Implied => profile.free_implied(old_block),
                Kind::Inherited => {}
            }
            if let Some(trace) = &mut trace {
                add_to_trace(trace, &effect, was.bytes);
            }
        }
    }

    /// Adds what the waiting calls do if nothing follows to a trace of them alone. Returns the
    /// maximum of the live bytes.
    pub(crate) fn preview(&self, trace: &mut Trace) -> u64 {
        let mut live = self.profile.totals().live_bytes;
        let mut most = live;
        for effect in self.live.preview() {
            let was = if effect.old.index == 0 { 0 } else { self.amount(&effect.old).bytes };
            add_to_trace(trace, &effect, was);
            let now = match effect.kind {
                Kind::Alloc | Kind::Resize | Kind::ResizeUnknown => effect.call.weight,
                _ => 0,
            };
            live = live.saturating_sub(was).saturating_add(now);
            most = most.max(live);
        }
        most
    }

    /// Collects the effects of calls that need not wait any more, since all future calls are after
    /// `tick`. Returns whether there are any.
    pub(super) fn settle(&mut self, tick: u64) -> bool {
        self.live.settle(tick, &mut self.effects)
    }

    /// Collects the effects of the calls that wait for the end of a resize.
    pub(crate) fn end_resizes_early(&mut self) {
        self.live.end_resizes_early(&mut self.effects);
    }

    /// Collects the effects of the calls that a thread has begun and will not end.
    pub(crate) fn end_thread(&mut self, thread: ThreadNumber, tick: u64) {
        self.live.end_thread(thread, tick, &mut self.effects);
    }

    /// Collects the effects of everything that waits, since no events follow.
    pub(super) fn finish(&mut self, tick: u64) {
        self.live.finish(tick, &mut self.effects);
    }

    /// Adds a block that lives from before the recording.
    pub(crate) fn add_carried(&mut self, call: &Call, entry: u8, trace: Option<&mut Trace>) {
        let done = self.live.apply(call, self.live.location(call.address), false, &mut self.effects);
        self.effects.extend(done.effect(call));
        self.effects.iter_mut().for_each(|effect| effect.entry = entry);
        self.add_effects(trace);
    }

    /// Counts a block that the next segment starts with.
    pub(crate) fn count_carried(&mut self, carried: &CarriedBlock, tick: u64) {
        let CarriedBlock { block, amount, .. } = carried;
        self.profile.alloc(CountedBlock { site: block.site, size: block.size, amount: *amount }, tick);
    }

    /// Forgets all blocks and sums.
    pub(super) fn clear(&mut self, options: &Options) {
        self.live = Live::default();
        self.sample_weights = SampleWeights::of(options);
        self.profile = Profile::default();
    }

    /// Assigns new indexes to the live blocks, and resets the sums, which are to be computed from
    /// these blocks.
    pub(super) fn renumber(&mut self, options: &Options, last_site: u32) -> Vec<CarriedBlock> {
        let blocks = self.live.renumber();
        // These belong to the sums.
        (self.live.unknown, self.live.excused, self.live.inherited_implied) = (0, 0, 0);
        if let Some(sample_weights) = self.sample_weights.take() {
            self.sample_weights = Some(sample_weights.renumbered(options, &blocks));
        }
        self.profile = Profile::default();
        self.profile.grow(last_site);
        let carried = |Renumbered { address, block, .. }| CarriedBlock { address, block, amount: self.amount(&block) };
        blocks.into_iter().map(carried).collect()
    }

    /// Returns the pages on which blocks were freed.
    pub(super) fn freed(&mut self) -> &mut Option<Covered> {
        self.live.freed()
    }

    /// Returns the blocks, and what leads back to those at `tick`.
    pub(crate) fn blocks_at(&mut self, tick: u64) -> BlocksAt {
        self.live.blocks_at(tick)
    }

    /// Returns the blocks at `tick` (0: now), which a child forked then inherits.
    pub(crate) fn inheritance_at(&mut self, tick: u64) -> Inheritance {
        self.live.inheritance_at(tick)
    }

    /// Removes the blocks that were kept for a child forked at `tick`.
    pub(crate) fn take_inheritance(&mut self, tick: u64) -> Option<Inheritance> {
        let index = self.inheritances.iter().position(|(kept, _)| *kept == tick)?;
        Some(self.inheritances.swap_remove(index).1)
    }

    /// Keeps the blocks that a child forked at `tick` inherits.
    pub(crate) fn store_inheritance(&mut self, tick: u64, inheritance: Inheritance) {
        if self.inheritances.len() >= MAX_INHERITANCES {
            self.inheritances.remove(0);
        }
        self.inheritances.push((tick, inheritance));
    }

    /// Adds the blocks that this process inherited as a forked child.
    pub(super) fn inherit(&mut self, inheritance: Inheritance) {
        self.live.inherit(inheritance);
    }

    /// Returns the totals of the process.
    pub(super) fn totals(&self) -> Totals {
        let (excused, implied) = (self.live.excused, self.live.inherited_implied);
        let mut totals = self.profile.totals().clone();
        totals.unknown_frees = self.live.unknown;
        totals.frees += excused;
        totals.implied_frees = totals.implied_frees - excused + implied;
        (totals.inherited_blocks, totals.inherited_bytes) = self.live.inherited();
        totals
    }

    /// Returns the totals and the sums of all sites.
    pub(super) fn summary(&self) -> Summary {
        Summary { totals: self.totals(), sites: self.profile.site_sums() }
    }
}
