//! `dcpidiff`: two sets of profiles, by procedure, or one procedure by source line or address, those first that differ most.
//!
//! The measure is the normalised range: what the two counts differ by, as a share of their sum. It is 0 for equal counts
//! and 100 per cent where one set has none.

use super::Result;
use super::list::find;
use super::prof::{NO_SYMBOLS, UNKNOWN, total_line};
use super::set::Set;
use super::text::{Table, percent, share};
use crate::text::clean_columns;
use std::collections::BTreeMap;
use std::io::Write;

/// What the lines of the comparison stand for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum By {
    /// Source lines of a procedure that is named, if its images are not the same; else its addresses. Procedures if none
    /// is named.
    #[default]
    Fitting,
    /// Source lines.
    Lines,
    /// Images.
    Images,
}

/// The options of `dcpidiff`.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Compare the inside of this procedure: a name or an address.
    pub procedure: Option<String>,
    /// What the lines stand for.
    pub by: By,
    /// Only this event.
    pub event: Option<String>,
    /// Leave out what differs by less than this, in per cent of the sum.
    pub range: Option<f64>,
    /// Stop when the lines hold this many per cent of both sets together.
    pub keep: Option<f64>,
    /// No heading.
    pub no_header: bool,
    /// Comma-separated lists.
    pub comma_separated: bool,
}

/// Prints a comparison for each event that one of the sets has.
pub fn print(first: &Set, second: &Set, options: &Options, out: &mut dyn Write) -> Result<()> {
    let mut events: Vec<&str> = first.events.iter().chain(&second.events).map(|event| event.name.as_str()).collect();
    let mut seen = std::collections::BTreeSet::new();
    events.retain(|event| seen.insert(*event));
    if let Some(wanted) = &options.event {
        if !events.contains(&wanted.as_str()) {
            first.sort_event(Some(wanted))?;
        }
        events.retain(|event| event == wanted);
    }
    for (place, event) in events.iter().enumerate() {
        if place > 0 {
            writeln!(out)?;
        }
        // A procedure that one build does not have has no counts there; one that neither has is an error.
        let entries = match (counts(first, event, second, options), counts(second, event, first, options)) {
            (Err(error), Err(_)) => return Err(error),
            (one, other) => merge(one.unwrap_or_default(), other.unwrap_or_default()),
        };
        if !options.no_header && !options.comma_separated {
            for (name, set) in [("first", first), ("second", second)] {
                let total = set.events.iter().find(|own| own.name == *event).map(total_line);
                let total = total.unwrap_or_else(|| format!("total of {}: none", clean_columns(event)));
                writeln!(out, "{name} set: {total}")?;
            }
            writeln!(out)?;
        }
        let table = table(event, entries, options);
        if options.comma_separated {
            table.comma_separated(!options.no_header, out)?;
        } else {
            table.aligned(!options.no_header, out)?;
        }
    }
    Ok(())
}

/// One set's counts of an event by name. `other` decides whether addresses mean the same in both.
fn counts(set: &Set, event: &str, other: &Set, options: &Options) -> Result<BTreeMap<String, u64>> {
    let mut sums = BTreeMap::new();
    let events = set.events.len();
    let Some(event) = set.events.iter().position(|own| own.name == event) else { return Ok(sums) };
    let mut add = |name: String, count: u64| {
        let sum: &mut u64 = sums.entry(name).or_default();
        *sum = sum.saturating_add(count);
    };
    if let Some(procedure) = &options.procedure {
        let listing = find(set, procedure)?;
        let is_same_image = other
            .images
            .iter()
            .any(|image| image.identity == listing.image.identity && image.tstart == listing.image.tstart);
        for (address, row) in &listing.rows {
            let name = if options.by == By::Fitting && is_same_image {
                format!("{address:#x} +{:#x}", address - listing.procedure.start)
            } else {
                let place = listing.elf.place(*address);
                place.map_or(UNKNOWN.to_string(), |place| format!("{}:{}", place.file, place.line))
            };
            add(name, row[event]);
        }
        return Ok(sums);
    }
    for image in &set.images {
        match options.by {
            By::Images => add(
                image.name().to_string(),
                image.rows(events).fold(0, |sum: u64, (_, row)| sum.saturating_add(row[event])),
            ),
            By::Lines => {
                let shift = image.shift();
                for (address, row) in image.rows(events) {
                    let place = image.elf.as_ref().and_then(|elf| elf.place(address.wrapping_add(shift)));
                    let name = place.map(|place| format!("{}:{}", place.file, place.line));
                    add(name.unwrap_or_else(|| format!("{UNKNOWN} {}", image.name())), row[event]);
                }
            }
            By::Fitting => {
                for (start, row) in image.by_procedure(events) {
                    let procedure = start.and_then(|start| image.elf.as_ref()?.procedure(start));
                    let label = if image.elf.is_some() { UNKNOWN } else { NO_SYMBOLS };
                    let name = procedure.map_or(label.to_string(), |procedure| procedure.name());
                    add(format!("{name}  {}", image.name()), row[event]);
                }
            }
        }
    }
    Ok(sums)
}

fn merge(first: BTreeMap<String, u64>, second: BTreeMap<String, u64>) -> Vec<(String, u64, u64)> {
    let mut both: BTreeMap<String, (u64, u64)> = first.into_iter().map(|(name, count)| (name, (count, 0))).collect();
    for (name, count) in second {
        both.entry(name).or_default().1 = count;
    }
    let mut entries: Vec<(String, u64, u64)> = both.into_iter().map(|(name, (a, b))| (name, a, b)).collect();
    entries.retain(|&(_, a, b)| a != 0 || b != 0);
    // Exactly, without division: |a-b|/(a+b) against |c-d|/(c+d); then the greater difference.
    let range = |&(_, a, b): &(String, u64, u64)| (u128::from(a.abs_diff(b)), u128::from(a) + u128::from(b));
    entries.sort_by(|one, other| {
        let ((d1, s1), (d2, s2)) = (range(one), range(other));
        compare(d2, s2, d1, s1).then(d2.cmp(&d1)).then_with(|| one.0.cmp(&other.0))
    });
    entries
}

/// Compares `a/b` with `c/d`; numerators are at most 2^64 and denominators below 2^65, so a product may pass 128 bits.
fn compare(a: u128, b: u128, c: u128, d: u128) -> std::cmp::Ordering {
    match (a.checked_mul(d), c.checked_mul(b)) {
        (Some(left), Some(right)) => left.cmp(&right),
        _ => (a as f64 / b as f64).total_cmp(&(c as f64 / d as f64)),
    }
}

fn table(event: &str, entries: Vec<(String, u64, u64)>, options: &Options) -> Table {
    let kind = match (options.by, &options.procedure) {
        (By::Images, _) => "image",
        (By::Lines, _) => "line",
        (By::Fitting, None) => "procedure",
        (By::Fitting, Some(_)) => "place",
    };
    let event = clean_columns(event);
    let heading = ["range%", &format!("{event} 1"), &format!("{event} 2"), "difference", "cum%", kind];
    let mut table = Table::new(heading.map(String::from).to_vec(), 1);
    let all = entries.iter().fold(0u64, |sum, &(_, a, b)| sum.saturating_add(a).saturating_add(b));
    let mut cumulated = 0u64;
    for (name, a, b) in entries {
        let sum = a.saturating_add(b);
        if options.keep.is_some_and(|keep| share(cumulated, all) >= keep) {
            break;
        }
        if options.range.is_some_and(|range| share(a.abs_diff(b), sum) < range) {
            continue;
        }
        cumulated = cumulated.saturating_add(sum);
        let sign = if b >= a { "+" } else { "-" };
        let difference = format!("{sign}{}", a.abs_diff(b));
        let cells = [percent(a.abs_diff(b), sum), a.to_string(), b.to_string(), difference, percent(cumulated, all)];
        table.row(cells.into_iter().chain([clean_columns(&name)]).collect());
    }
    table
}
