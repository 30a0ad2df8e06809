//! Events -> models, in order: the only place where order matters. The replay keeps the live set
//! and tells each model what happened to which block; models keep sums.

use crate::event::{Event, Kind, Span};
use crate::load::{Image, Recorded, Start};
use crate::missing::Missing;
use crate::model::live_set::{Block, LiveSet};
use crate::progress::Progress;
use heaptape_formats::tape::Entry;

/// Something that learns from events. `old` is the block before the event; none when it is not one
/// of this image's own (inherited by fork) or not known (born before the span, or in a part that is
/// torn).
pub trait Model {
    /// A block is born. `block` is what the live set holds now.
    fn alloc(&mut self, event: &Event, block: &Block) {
        let _ = (event, block);
    }
    /// A block got a new size or address.
    fn resize(&mut self, event: &Event, old: Option<&Block>, block: &Block) {
        let _ = (event, old, block);
    }
    /// A block died. `event` may be the alloc that proves that its free was not seen (`event.kind`
    /// tells).
    fn free(&mut self, event: &Event, old: Option<&Block>) {
        let _ = (event, old);
    }
    /// A free or resize of an unknown address.
    fn unmatched(&mut self, event: &Event) {
        let _ = event;
    }
    /// A block of the parent is met (`gone` none), or is gone: freed, or resized and so the image's
    /// own. The recorder writes it only when the image frees or resizes it; one of size 0 that is
    /// resized is of unknown origin.
    fn inherited(&mut self, block: &Block, gone: Option<Kind>) {
        let _ = (block, gone);
    }
    /// A block of this site will be allocated soon, or one will be `freed`. A model that keeps much
    /// of a site may read it, so that the processor has it at hand then.
    fn soon(&self, site: u32, freed: bool) {
        let _ = (site, freed);
    }
}

impl Model for () {}

macro_rules! tuple {
    ($($name:ident)*) => {
        #[allow(non_snake_case)]
        impl<$($name: Model),*> Model for ($(&mut $name,)*) {
            #[inline]
            fn alloc(&mut self, event: &Event, block: &Block) {
                let ($($name,)*) = self;
                $($name.alloc(event, block);)*
            }
            #[inline]
            fn resize(&mut self, event: &Event, old: Option<&Block>, block: &Block) {
                let ($($name,)*) = self;
                $($name.resize(event, old, block);)*
            }
            #[inline]
            fn free(&mut self, event: &Event, old: Option<&Block>) {
                let ($($name,)*) = self;
                $($name.free(event, old);)*
            }
            #[inline]
            fn unmatched(&mut self, event: &Event) {
                let ($($name,)*) = self;
                $($name.unmatched(event);)*
            }
            #[inline]
            fn inherited(&mut self, block: &Block, gone: Option<Kind>) {
                let ($($name,)*) = self;
                $($name.inherited(block, gone);)*
            }
            #[inline]
            fn soon(&self, site: u32, freed: bool) {
                let ($($name,)*) = self;
                $($name.soon(site, freed);)*
            }
        }
    };
}
tuple!(A);
tuple!(A B);
tuple!(A B C);
tuple!(A B C D);

/// What a replay leaves behind, beside its models.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What is alive at the end of the span.
    pub live: LiveSet,
    /// What could not be read, found on the way.
    pub missing: Vec<Missing>,
    /// Frees and resizes of allocations that are not known to live.
    pub strange: u64,
    /// Unmatched events.
    pub unmatched: u64,
    /// Events of the program, by thread.
    pub recorded: Recorded,
}

/// Events whose blocks are looked up ahead: their places in memory are far apart, and waiting for
/// all at once takes little longer than for one.
const AHEAD: usize = 32;

/// Gives every event of a span to the models.
pub fn replay(image: &Image, span: Span, progress: &Progress, models: &mut impl Model) -> Outcome {
    replay_from(image, None, span, progress, models)
}

/// The same from a place on, to models that know what was before it. Of blocks that are older only
/// site and bytes are known, and what lives at the end without having been touched is not in
/// [`Outcome::live`].
pub fn replay_from(
    image: &Image,
    start: Option<&Start>,
    span: Span,
    progress: &Progress,
    models: &mut impl Model,
) -> Outcome {
    let mut outcome = Outcome::default();
    let missing = image.for_each_from(start.map(|start| start.place), span, progress, &mut |events| {
        for events in events.chunks(AHEAD) {
            let mut indexes = [u64::MAX; AHEAD];
            for (index, event) in indexes.iter_mut().zip(events) {
                if matches!(event.kind, Kind::Resize | Kind::Free) {
                    *index = event.index;
                }
            }
            let held = outcome.live.glance(&indexes);
            for (event, held) in events.iter().zip(held) {
                if event.kind != Kind::Free {
                    models.soon(event.site, false);
                }
                if event.kind != Kind::Alloc {
                    models.soon(held, true);
                }
            }
            for event in events {
                step(&mut outcome, event, models);
            }
        }
    });
    outcome.missing = missing;
    // Behind the start of a span, or behind a tear, allocations are unknown by nature.
    let explained = start.is_some()
        || span.first > 0
        || span.first_tick > 0
        || image.missing.iter().chain(&outcome.missing).any(Missing::hides_events);
    if outcome.strange > 0 && !explained {
        outcome.missing.push(Missing::Strange { events: outcome.strange });
    }
    outcome
}

#[inline]
fn own(block: &Block) -> Option<&Block> {
    if block.inherited { None } else { Some(block) }
}

/// The block as the event leaves it.
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
    }
}

#[inline]
fn step(outcome: &mut Outcome, event: &Event, models: &mut impl Model) {
    outcome.recorded.add(event);
    let live = &mut outcome.live;
    match event.kind {
        Kind::Alloc => {
            let inherited = event.entry == Entry::Inherited as u8;
            let block = Block { inherited, ..block_of(event, 0) };
            if let Some(doubled) = live.insert(event.index, block) {
                outcome.strange += 1;
                models.free(event, own(&doubled));
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
                // Identity, and so birth, survives a resize.
                let resized = block_of(event, old.resizes.saturating_add(1));
                *block = Block { tick: old.tick, number: old.number, ..resized };
                if old.inherited {
                    models.inherited(&old, Some(event.kind));
                }
                models.resize(event, own(&old), block);
            }
            None => {
                outcome.strange += 1;
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
                models.free(event, own(&old));
            }
            None => {
                outcome.strange += 1;
                models.free(event, None);
            }
        },
        Kind::Unmatched => {
            outcome.unmatched += 1;
            models.unmatched(event);
        }
        Kind::Known => {
            if live.get_mut(event.index).is_none() {
                live.insert(event.index, block_of(event, 0));
            }
        }
    }
}
