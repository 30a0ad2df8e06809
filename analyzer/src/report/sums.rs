//! Totals and sums by site of an image, the cheapest way that gives them: the tape's own summary, a
//! profile's, or a replay.

use super::Error;
use super::questions::Query;
use crate::event::{Range, Span};
use crate::load::{Accounting, Image, StartPoint};
use crate::missing::Missing;
use crate::model::call_sites::CallSites;
use crate::model::peak::Peak;
use crate::model::totals::Totals;
use crate::progress::Progress;
use crate::replay::{self, replay_from};
use crate::symbols::Symbolizer;
use heaptape_formats::tape::{self, Inherited, SiteSums};

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
    /// What became of its events: of the whole image, also where the sums are of a part of it.
    pub accounting: Accounting,
}

impl Sums {
    /// Whether they say what was freed.
    ///
    /// # Errors
    /// When they hold only bytes that were alive at the peak and at some other moment, as Massif's
    /// do.
    pub(super) fn needs_frees(&self, image: &Image) -> Result<(), Error> {
        if self.totals.allocs > 0 || self.sites.iter().all(|row| row.peak_bytes == 0) {
            return Ok(());
        }
        let why = "the file counts no allocations: it says what was alive at some moments (peak), not what was freed";
        Err(Error::Unanswerable(format!("{}: {why}", image.path.display())))
    }
}

/// The sums of a whole image.
pub fn sums(image: &Image, progress: &Progress) -> Sums {
    match image.ready_sums() {
        Some(ready) => of_ready(image, ready, image.unusable_chunks()),
        None => replayed(image, progress),
    }
}

/// The same for an image that was written a moment ago: its trace is not read to see whether it is
/// whole.
pub fn sums_of_new(image: &Image, progress: &Progress) -> Sums {
    match image.ready_sums() {
        Some(ready) => of_ready(image, ready, Vec::new()),
        None => replayed(image, progress),
    }
}

fn of_ready(image: &Image, ready: tape::Summary, damage: Vec<Missing>) -> Sums {
    let tape::Summary { totals, sites } = ready;
    let missing = [image.missing.clone(), damage].concat();
    let accounting = Accounting::of(image, &totals, &missing, None);
    Sums { totals, sites, has_peak: image.knows_peak(), missing, accounting }
}

/// The sums of a whole image by a pass over its events.
fn replayed(image: &Image, progress: &Progress) -> Sums {
    let mut sums = within(image, &Range::ALL, progress);
    // A trace whose stacks are known only from the profile beside it.
    if let Some((_, profile)) = &image.sums {
        (sums.sites, sums.has_peak) = (profile.clone(), false);
    }
    sums
}

/// The sums of a part of an image: what was allocated in it, and how much of that was freed in it.
pub fn within(image: &Image, range: &Range, progress: &Progress) -> Sums {
    let inherited = if range.is_all() { image.tape.inherited.as_ref() } else { None };
    let span = image.span(range);
    // Sums since the start go on from the last summary before the end.
    let start = match range {
        Range { from: None, to: Some(_) } => image.start_before_end(span),
        _ => None,
    };
    let mut replay_all = |models: &mut Models| replay_from(image, start.as_ref(), span, progress, models);
    by_replay(image, inherited, start.as_ref(), range.is_all(), &mut replay_all)
}

/// The sums of what was asked about.
pub(super) fn of_asked(image: &Image, query: &Query, symbols: &mut Symbolizer, progress: &Progress) -> Sums {
    let span = image.span(&query.range);
    by_replay(image, None, None, false, &mut |models| query.replay(image, span, symbols, progress, models))
}

type Models<'a> = (&'a mut Totals, &'a mut CallSites, &'a mut Peak);

fn by_replay(
    image: &Image,
    inherited: Option<&Inherited>,
    start: Option<&StartPoint>,
    is_whole: bool,
    replay: &mut dyn FnMut(&mut Models) -> replay::Outcome,
) -> Sums {
    let (mut totals, mut sites, mut peak) = (Totals::default(), CallSites::default(), Peak::within(Span::ALL));
    if let Some(summary) = start.and_then(|start| start.summary.as_ref()) {
        totals.begin(&summary.totals);
        sites.begin(&summary.sites);
        peak.begin(summary);
    }
    let outcome = replay(&mut (&mut totals, &mut sites, &mut peak));
    let mut missing = image.missing.clone();
    missing.extend(outcome.missing);
    let mut rows = sites.sums();
    for row in &mut rows {
        let held = peak.at_peak(row.site);
        (row.peak_blocks, row.peak_bytes) = (held.blocks, held.bytes);
    }
    let totals = totals.finish(inherited);
    let accounting = Accounting::of(image, &totals, &missing, is_whole.then_some(&outcome.recorded));
    Sums { totals, sites: rows, has_peak: true, missing, accounting }
}
