//! Measures: what can be counted at a call site.

use super::{Error, Out, Source, Totals};
use crate::export::Impossible;
use crate::text::clean;
use heaptape_formats::tape::SiteSums;
use std::str::FromStr;

macro_rules! measures {
    ($($variant:ident $name:literal $help:literal ($row:ident, $ended:ident) $value:expr;)*) => {
        /// A quantity that is counted at call sites.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Measure { $($variant),* }

        impl Measure {
            /// All measures in the order of the help.
            pub const ALL: &[Measure] = &[$(Measure::$variant),*];

            /// Returns the name on the command line, which is also the name of the DCPI event.
            pub const fn name(self) -> &'static str {
                match self { $(Measure::$variant => $name),* }
            }

            /// Returns the explanation for the help.
            pub const fn help(self) -> &'static str {
                match self { $(Measure::$variant => $help),* }
            }

            /// Returns the amount at a site. `ended` is true if the process is known to have ended.
            pub fn of(self, sums: &SiteSums, ended: bool) -> u64 {
                match self { $(Measure::$variant => { let ($row, $ended) = (sums, ended); let _ = $ended; $value }),* }
            }
        }
    };
}

measures! {
    AllocBytes "alloc-bytes" "bytes allocated, new sizes of resizes included" (row, ended) row.bytes;
    AllocCount "alloc-count" "blocks allocated, resizes included" (row, ended) row.allocs;
    FreeBytes "free-bytes" "of the bytes allocated here, those freed or resized away" (row, ended) row.freed_bytes;
    FreeCount "free-count" "of the blocks allocated here, those freed or resized away" (row, ended) row.frees;
    LiveBytes "live-bytes" "bytes alive at the end" (row, ended) row.bytes.saturating_sub(row.freed_bytes);
    LiveCount "live-count" "blocks alive at the end" (row, ended) row.allocs.saturating_sub(row.frees);
    PeakBytes "peak-bytes" "bytes alive when the process held most" (row, ended) row.peak_bytes;
    PeakCount "peak-count" "blocks alive when the process held most bytes" (row, ended) row.peak_blocks;
    LeakBytes "leak-bytes" "bytes alive when the process was over; none while it ran" (row, ended)
        if ended { row.bytes.saturating_sub(row.freed_bytes) } else { 0 };
    LeakCount "leak-count" "blocks alive when the process was over; none while it ran" (row, ended)
        if ended { row.allocs.saturating_sub(row.frees) } else { 0 };
}

impl Measure {
    /// Returns whether the measure is about the peak of live bytes.
    pub(crate) const fn is_of_peak(self) -> bool {
        matches!(self, Measure::PeakBytes | Measure::PeakCount)
    }

    /// Returns whether it counts bytes, not blocks.
    pub const fn is_bytes(self) -> bool {
        matches!(
            self,
            Measure::AllocBytes | Measure::FreeBytes | Measure::LiveBytes | Measure::PeakBytes | Measure::LeakBytes
        )
    }
}

/// No measure has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is none of {names}", names = Measure::ALL.iter().map(|measure| measure.name()).collect::<Vec<_>>().join(", "))]
pub struct UnknownMeasure(pub String);

impl FromStr for Measure {
    type Err = UnknownMeasure;

    fn from_str(text: &str) -> Result<Self, UnknownMeasure> {
        let found = Measure::ALL.iter().copied().find(|measure| measure.name() == text);
        found.ok_or_else(|| UnknownMeasure(text.to_string()))
    }
}

/// Returns the measure of a format that holds one number for each stack: the requested one, or else
/// the allocated bytes.
///
/// # Errors
/// Returns an error when several measures are requested, or one that is unknown for the recording.
pub(crate) fn one(source: &mut Source<'_>, out: &mut Out) -> Result<Measure, Error> {
    let what = match &source.options.what[..] {
        [] => {
            let others: Vec<&str> = Measure::ALL[1..].iter().map(|what| what.name()).collect();
            out.note(format!(
                "{}: {}; --what chooses {}",
                Measure::ALL[0].name(),
                Measure::ALL[0].help(),
                others.join(", ")
            ));
            Measure::ALL[0]
        }
        &[what] => what,
        _ => {
            return Err(Impossible::SeveralMeasures.into());
        }
    };
    if what.is_of_peak() && !has_peak(source) {
        return Err(Impossible::NoPeak.into());
    }
    Ok(what)
}

/// Returns the default measure that [`one`] uses.
pub(crate) fn usual(source: &Source<'_>) -> Measure {
    source.options.what.first().copied().unwrap_or(Measure::ALL[0])
}

/// Returns the measures of a format that holds several: the requested ones, or else all that are
/// known.
pub(crate) fn all(source: &mut Source<'_>, out: &mut Out) -> Vec<Measure> {
    let measures = known(source, Measure::ALL);
    let requested = if source.options.what.is_empty() { Measure::ALL } else { &source.options.what[..] };
    if measures.len() < requested.len() {
        out.note("the file does not contain the live bytes of call sites at the peak: their measures are left out");
    }
    measures
}

/// Returns the requested measures, or else `usual`, without those of the peak if it is unknown.
pub(crate) fn known(source: &mut Source<'_>, usual: &[Measure]) -> Vec<Measure> {
    let requested = if source.options.what.is_empty() { usual.to_vec() } else { source.options.what.clone() };
    let has_peak = !requested.iter().any(|what| what.is_of_peak()) || has_peak(source);
    requested.into_iter().filter(|what| has_peak || !what.is_of_peak()).collect()
}

/// Returns whether all selected processes have a known peak.
fn has_peak(source: &mut Source<'_>) -> bool {
    source.processes.clone().into_iter().all(|process| source.sums(process).has_peak)
}

/// Returns the sums of the selected processes.
///
/// # Errors
/// Never returns an error; the type is that of [`super::Exporter::totals`].
pub(crate) fn totals(source: &mut Source<'_>, measures: &[Measure]) -> Result<Totals, Error> {
    let mut totals = Totals::default();
    for process in source.processes.clone() {
        let (sums, ended) = (source.sums(process), process.has_ended());
        for what in measures {
            totals.add(what.name(), sums.sites.iter().map(|row| u128::from(what.of(row, ended))).sum());
        }
    }
    Ok(totals)
}

/// Returns the recorded command line, or else the name of the first process, on one line.
pub(crate) fn title(source: &Source<'_>) -> String {
    let command = source.about.map(|about| about.command.join(" ")).filter(|command| !command.is_empty());
    let argv = || source.processes.first().map(|process| process.about.argv.join(" ")).filter(|argv| !argv.is_empty());
    let name = || source.processes.first().map(|process| process.name()).unwrap_or_default();
    clean(&command.or_else(argv).unwrap_or_else(name)).into_owned()
}
