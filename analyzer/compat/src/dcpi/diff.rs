//! `dcpidiff`: compares two sets of profiles by procedure, or one procedure by source line or
//! address. The greatest difference comes first.
//!
//! The measure is the normalized range: the difference of the two counts divided by their sum. It
//! is 0 for equal counts and 100 percent if one count is 0.

use super::Result;
use super::list::find;
use super::prof::{NO_SYMBOLS, UNKNOWN, total_line};
use super::set::Set;
use super::text::{Table, percent, share};
use heaptape_analyzer::text::clean_columns;
use std::collections::BTreeMap;
use std::io::Write;

/// The unit of comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum By {
    /// Procedures. If a procedure is named, its addresses, or its source lines if its images
    /// differ.
    #[default]
    Auto,
    /// A row for each source line.
    Lines,
    /// A row for each image.
    Images,
}

/// The options of `dcpidiff`.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Compares the inside of this procedure: a name or an address.
    pub procedure: Option<String>,
    /// The unit of comparison.
    pub by: By,
    /// Compares only this event.
    pub event: Option<String>,
    /// Omits lines whose range is less than this, in percent.
    pub range: Option<f64>,
    /// Stops when the lines sum up to this percentage of both sets together.
    pub keep: Option<f64>,
    /// Whether to omit the heading.
    pub no_header: bool,
    /// Whether to print comma-separated lists.
    pub comma_separated: bool,
}

/// Prints a comparison for each event of either set.
///
/// # Errors
/// Returns an error if the requested event or procedure is in neither set, or if writing to `out`
/// fails.
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
    for (index, event) in events.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        // A procedure that is missing in one set counts 0 there. If it is missing in both sets,
        // that is an error.
        let entries = match (counts(first, event, second, options), counts(second, event, first, options)) {
            (Err(error), Err(_)) => return Err(error),
            (one, other) => merge(one.unwrap_or_default(), other.unwrap_or_default()),
        };
        if !options.no_header && !options.comma_separated {
            for (name, set) in [("first", first), ("second", second)] {
                let total = set.events.iter().find(|other| other.name == *event).map(total_line);
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

/// Returns the counts of an event in `set`, by the name of the compared unit. `other` is the other
/// set. Addresses are compared only if both sets have the same image.
fn counts(set: &Set, event: &str, other: &Set, options: &Options) -> Result<BTreeMap<String, u64>> {
    let mut sums = BTreeMap::new();
    let events = set.events.len();
    let Some(event) = set.events.iter().position(|other| other.name == event) else { return Ok(sums) };
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
            let name = if options.by == By::Auto && is_same_image {
                format!("{address:#x} +{:#x}", address - listing.procedure.start)
            } else {
                let line = listing.elf.source_line(*address);
                line.map_or(UNKNOWN.to_string(), |line| format!("{}:{}", line.file, line.line))
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
                    let line = image.elf.as_ref().and_then(|elf| elf.source_line(address.wrapping_add(shift)));
                    let name = line.map(|line| format!("{}:{}", line.file, line.line));
                    add(name.unwrap_or_else(|| format!("{UNKNOWN} {}", image.name())), row[event]);
                }
            }
            By::Auto => {
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

/// Joins the counts of both sets by name and sorts them by descending range.
fn merge(first: BTreeMap<String, u64>, second: BTreeMap<String, u64>) -> Vec<(String, u64, u64)> {
    let mut both: BTreeMap<String, (u64, u64)> = first.into_iter().map(|(name, count)| (name, (count, 0))).collect();
    for (name, count) in second {
        both.entry(name).or_default().1 = count;
    }
    let mut entries: Vec<(String, u64, u64)> = both.into_iter().map(|(name, (a, b))| (name, a, b)).collect();
    entries.retain(|&(_, a, b)| a != 0 || b != 0);
    // Compares |a-b|/(a+b) with |c-d|/(c+d) exactly, without division. Then the greater difference
    // wins.
    let range = |&(_, a, b): &(String, u64, u64)| (u128::from(a.abs_diff(b)), u128::from(a) + u128::from(b));
    entries.sort_by(|one, other| {
        let ((d1, s1), (d2, s2)) = (range(one), range(other));
        compare(d2, s2, d1, s1).then(d2.cmp(&d1)).then_with(|| one.0.cmp(&other.0))
    });
    entries
}

/// Compares `a/b` with `c/d`. Numerators are at most 2^64 and denominators less than 2^65, so a
/// product may exceed 128 bits.
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
        (By::Auto, None) => "procedure",
        (By::Auto, Some(_)) => "place",
    };
    let event = clean_columns(event);
    let heading = ["range%", &format!("{event} 1"), &format!("{event} 2"), "difference", "cum%", kind];
    let mut table = Table::new(heading.map(String::from).to_vec(), 1);
    let all = entries.iter().fold(0u64, |sum, &(_, a, b)| sum.saturating_add(a).saturating_add(b));
    let mut cumulative = 0u64;
    for (name, a, b) in entries {
        let sum = a.saturating_add(b);
        if options.keep.is_some_and(|keep| share(cumulative, all) >= keep) {
            break;
        }
        if options.range.is_some_and(|range| share(a.abs_diff(b), sum) < range) {
            continue;
        }
        cumulative = cumulative.saturating_add(sum);
        let sign = if b >= a { "+" } else { "-" };
        let difference = format!("{sign}{}", a.abs_diff(b));
        let cells = [percent(a.abs_diff(b), sum), a.to_string(), b.to_string(), difference, percent(cumulative, all)];
        table.row(cells.into_iter().chain([clean_columns(&name)]).collect());
    }
    table
}
