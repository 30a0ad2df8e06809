//! Replays the events of a process: keeps the set of live blocks, and passes each event with its
//! block on to the models. Events are replayed in order; this is the only module that needs it.

use crate::event::{Event, Kind, Span};
use crate::load::{Process, RecordedEvents, StartPoint};
use crate::missing::Missing;
use crate::model::Model;
use crate::model::address::AddressHistory;
use crate::model::addresses::Addresses;
use crate::model::call_sites::CallSites;
use crate::model::crossings::Crossings;
use crate::model::free_sites::FreeSites;
use crate::model::leaks::Leaks;
use crate::model::lifetimes::Lifetimes;
use crate::model::live_set::{Block, LiveSet};
use crate::model::peak::Peak;
use crate::model::resizes::Resizes;
use crate::model::sizes::Sizes;
use crate::model::temporary::Temporary;
use crate::model::threads::Threads;
use crate::model::timeline::Timeline;
use crate::model::totals::Totals;
use crate::progress::Progress;
use heaptape_formats::tape::Entry;

/// The result of a replay, besides the models.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Live blocks at the end of the span.
    pub live: LiveSet,
    /// Errors that were found while the events were read.
    pub missing: Vec<Missing>,
    /// Number of events that contradict the live set: they free or reallocate a block that is not
    /// live, or allocate one that is.
    pub inconsistent: u64,
    /// Number of unmatched events.
    pub unmatched: u64,
    /// Number of events of the program, by thread.
    pub recorded: RecordedEvents,
}

/// Number of events whose blocks are looked up at once. The blocks are far apart in memory, and
/// waiting for all cache misses at once takes little longer than for one.
const PREFETCH_BATCH: usize = 32;

/// Replays every event of a span to the models.
///
/// # Examples
///
/// ```
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/tape/v1/trace");
/// use heaptape_analyzer::event::{Event, Span};
/// use heaptape_analyzer::model::{Model, live_set::Block};
/// use heaptape_analyzer::{Progress, open, replay};
///
/// /// The largest block.
/// struct Largest(u64);
///
/// impl Model for Largest {
///     fn alloc(&mut self, _: &Event, block: &Block) {
///         self.0 = self.0.max(block.size);
///     }
/// }
///
/// let recording = open(path.as_ref())?;
/// let mut largest = Largest(0);
/// replay(&recording.processes[0], Span::ALL, &Progress::new("replaying"), &mut largest);
/// assert_eq!(largest.0, 1000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn replay(process: &Process, span: Span, progress: &Progress, models: &mut impl Model) -> Outcome {
    replay_from(process, None, span, progress, models)
}

/// Models whose replay is compiled in this crate.
///
/// [`replay`] is generic, so each crate that calls it compiles it again; this trait's function is
/// compiled once, here.
pub trait Replay: Model {
    /// Replays the events of a span, see [`replay_from`].
    fn replay_from(
        &mut self,
        process: &Process,
        start: Option<&StartPoint>,
        span: Span,
        progress: &Progress,
    ) -> Outcome;
}

macro_rules! replayed {
    ($($models:ty;)*) => {$(
        impl $crate::replay::Replay for $models {
            fn replay_from(
                &mut self,
                process: &$crate::load::Process,
                start: Option<&$crate::load::StartPoint>,
                span: $crate::event::Span,
                progress: &$crate::progress::Progress,
            ) -> $crate::replay::Outcome {
                $crate::replay::replay_from(process, start, span, progress, self)
            }
        }
    )*};
}
pub(crate) use replayed;

// The models of the reports.
replayed! {
    ();
    AddressHistory;
    Addresses;
    FreeSites;
    Leaks;
    (&mut Leaks, &mut Crossings);
    Lifetimes;
    Peak;
    (&mut Peak, &mut Peak);
    Resizes;
    Sizes;
    Temporary;
    Threads;
    Timeline;
    (&mut Totals, &mut CallSites, &mut Peak);
}

/// Replays every event of a process. The result has the blocks that are live at its end.
pub fn replay_all(process: &Process, progress: &Progress) -> Outcome {
    replay(process, Span::ALL, progress, &mut ())
}

/// Replays the events of a span from a start point in the middle of the run. The models must have
/// been initialized with the sums up to there. Of older blocks only site and bytes are known, and
/// those without an event after the start are not in [`Outcome::live`].
pub fn replay_from(
    process: &Process,
    start: Option<&StartPoint>,
    span: Span,
    progress: &Progress,
    models: &mut impl Model,
) -> Outcome {
    let mut outcome = Outcome::default();
    let missing = process.for_each_from(start.map(|start| start.range_index), span, progress, &mut |events| {
        for events in events.chunks(PREFETCH_BATCH) {
            let mut indexes = [u64::MAX; PREFETCH_BATCH];
            for (index, event) in indexes.iter_mut().zip(events) {
                if matches!(event.kind, Kind::Resize | Kind::Free) {
                    *index = event.index;
                }
            }
            let sites = outcome.live.prefetch(&indexes);
            for (event, site) in events.iter().zip(sites) {
                if event.kind != Kind::Free {
                    models.prefetch(event.site, false);
                }
                if event.kind != Kind::Alloc {
                    models.prefetch(site, true);
                }
            }
            for event in events {
                while event.tick > models.next_stop() {
                    models.stop(&outcome.live);
                }
                step(&mut outcome, event, models);
            }
        }
    });
    while models.next_stop() < span.end_tick {
        models.stop(&outcome.live);
    }
    outcome.missing = missing;
    // After the start of a span, or after damage, unknown allocations are expected.
    let is_expected = start.is_some()
        || span.first > 0
        || span.first_tick > 0
        || process.missing.iter().chain(&outcome.missing).any(Missing::hides_events);
    if outcome.inconsistent > 0 && !is_expected {
        outcome.missing.push(Missing::Inconsistent { events: outcome.inconsistent });
    }
    outcome
}

/// Returns the block, unless it is inherited.
#[inline]
fn not_inherited(block: &Block) -> Option<&Block> {
    if block.inherited { None } else { Some(block) }
}

/// Returns the block after an event.
#[inline]
const fn block_of(event: &Event, resizes: u32) -> Block {
    Block {
        address: event.address,
        size: event.bytes(),
        tick: event.tick,
        number: event.number,
        site: event.site,
        thread: event.thread,
        resizes,
        entry: event.entry,
        inherited: false,
        tick_error: event.tick_error,
    }
}

/// Applies one event to the live set and passes it on to the models.
#[inline]
fn step(outcome: &mut Outcome, event: &Event, models: &mut impl Model) {
    outcome.recorded.add(event);
    let live = &mut outcome.live;
    match event.kind {
        Kind::Alloc => {
            let inherited = [Entry::Inherited, Entry::InheritedEmpty].iter().any(|entry| event.entry == *entry as u8);
            let block = Block { inherited, ..block_of(event, 0) };
            if let Some(replaced) = live.insert(event.index, block) {
                outcome.inconsistent += 1;
                models.free(event, not_inherited(&replaced));
            }
            if inherited {
                models.inherited(&block, None);
            } else {
                models.alloc(event, &block);
            }
        }
        Kind::Resize => match live.get_mut(event.index) {
            Some(block) => {
                let old = *block;
                // A reallocated block keeps the time of its allocation.
                let resized = block_of(event, old.resizes.saturating_add(1));
                *block = Block { tick: old.tick, number: old.number, tick_error: old.tick_error, ..resized };
                if old.inherited {
                    models.inherited(&old, Some(event.kind));
                }
                models.resize(event, not_inherited(&old), block);
            }
            None => {
                outcome.inconsistent += 1;
                let block = block_of(event, 1);
                live.insert(event.index, block);
                models.resize(event, None, &block);
            }
        },
        Kind::Free => match live.remove(event.index) {
            Some(old) => {
                if old.inherited {
                    models.inherited(&old, Some(event.kind));
                }
                models.free(event, not_inherited(&old));
            }
            None => {
                outcome.inconsistent += 1;
                models.free(event, None);
            }
        },
        Kind::Unmatched => {
            outcome.unmatched += 1;
            models.unmatched(event);
        }
        Kind::Previous => {
            if live.get_mut(event.index).is_none() {
                live.insert(event.index, block_of(event, 0));
            }
        }
    }
}
