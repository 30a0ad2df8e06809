//! Totals and sums by site of an image, the cheapest way that gives them: the tape's own summary, a profile's, or a replay.

use crate::event::{Range, Span};
use crate::load::Image;
use crate::missing::Missing;
use crate::model::call_sites::CallSites;
use crate::model::peak::Peak;
use crate::model::totals::Totals;
use crate::progress::Progress;
use crate::replay::replay;
use heaptape_formats::tape::{self, SiteSums};

/// What most reports begin with.
#[derive(Clone, Debug, Default)]
pub struct Sums {
    /// Totals of the image.
    pub totals: tape::Totals,
    /// A row for each site with allocations.
    pub sites: Vec<SiteSums>,
    /// Whether the peak is known (a profile knows none).
    pub has_peak: bool,
    /// What is missing: of the image, and what was found on the way.
    pub missing: Vec<Missing>,
}

/// The sums of a whole image.
pub fn sums(image: &Image, progress: &Progress) -> Sums {
    let missing = image.missing.clone();
    match image.ready_sums() {
        Some(ready) => {
            let has_peak = image.knows_peak();
            Sums { totals: ready.totals, sites: ready.sites, has_peak, missing }
        }
        None => within(image, &Range::ALL, progress),
    }
}

/// The sums of a part of an image: what was allocated in it, and how much of that was freed in it.
pub fn within(image: &Image, range: &Range, progress: &Progress) -> Sums {
    let span = image.span(range);
    let (mut totals, mut sites, mut peak) = (Totals::default(), CallSites::default(), Peak::within(Span::ALL));
    let outcome = replay(image, span, progress, &mut (&mut totals, &mut sites, &mut peak));
    let mut missing = image.missing.clone();
    missing.extend(outcome.missing);
    let inherited = if range.is_all() { image.tape.inherited.as_ref() } else { None };
    let mut rows = sites.sums();
    for row in &mut rows {
        let held = peak.at_peak(row.site);
        (row.peak_blocks, row.peak_bytes) = (held.blocks, held.bytes);
    }
    // A trace whose stacks are known only from the profile beside it.
    let (sites, has_peak) = match &image.sums {
        Some((_, profile)) if range.is_all() => (profile.clone(), false),
        _ => (rows, true),
    };
    Sums { totals: totals.finish(inherited), sites, has_peak, missing }
}
