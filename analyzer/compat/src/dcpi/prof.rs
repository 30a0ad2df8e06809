//! `dcpiprof`: prints the samples by procedure or by image.

use super::Result;
use super::set::{Event, Set, add_row};
use super::text::{Table, percent, share};
use heaptape_analyzer::text::clean_columns;
use std::io::Write;

/// Label of addresses outside all procedures.
pub(super) const UNKNOWN: &str = "(unknown)";
/// Label of all addresses of an image whose ELF file is missing or has no symbols.
pub(super) const NO_SYMBOLS: &str = "(no symbols)";

/// The options of `dcpiprof`.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Prints one line per image instead of per procedure.
    pub by_image: bool,
    pub sort: Option<String>,
    /// Stops when the lines sum up to this percentage of the event to sort by.
    pub keep: Option<f64>,
    /// Whether to print comma-separated lists.
    pub comma_separated: bool,
    /// Whether to omit the heading.
    pub no_header: bool,
    /// Adds columns for first address, size in bytes and image identity.
    pub full: bool,
}

/// A line of the table.
struct Entry {
    name: String,
    image: String,
    /// First address, size in bytes, and identity of the image.
    full: [String; 3],
    counts: Vec<u64>,
}

/// Prints the counts by procedure or image in descending order.
///
/// # Errors
/// Returns an error if the event to sort by does not exist, or if writing to `out` fails.
pub fn print(set: &Set, options: &Options, out: &mut dyn Write) -> Result<()> {
    let sort = set.sort_event(options.sort.as_deref())?;
    let mut entries = if options.by_image { by_image(set) } else { by_procedure(set) };
    entries.sort_by(|a, b| {
        b.counts[sort].cmp(&a.counts[sort]).then_with(|| (&a.name, &a.image).cmp(&(&b.name, &b.image)))
    });
    let order = columns(set, sort);
    if !options.no_header && !options.comma_separated {
        heading(set, &order, out)?;
    }
    let table = table(set, &order, &entries, options);
    if options.comma_separated {
        table.comma_separated(!options.no_header, out)?;
    } else {
        table.aligned(!options.no_header, out)?;
    }
    Ok(())
}

fn by_image(set: &Set) -> Vec<Entry> {
    let events = set.events.len();
    let entry = |image: &super::Image| {
        let mut counts = vec![0; events];
        for (_, row) in image.rows(events) {
            add_row(&mut counts, &row);
        }
        let full = [format!("{:#x}", image.tstart), image.tsize.to_string(), image.identity.clone()];
        Entry { name: clean_columns(image.name()), image: clean_columns(image.long_name()), full, counts }
    };
    set.images.iter().map(entry).collect()
}

fn by_procedure(set: &Set) -> Vec<Entry> {
    let mut entries = Vec::new();
    for image in &set.images {
        let name = clean_columns(image.long_name());
        for (start, counts) in image.by_procedure(set.events.len()) {
            let procedure = start.and_then(|start| image.elf.as_ref()?.procedure(start));
            let (label, first, size) = match procedure {
                Some(procedure) => (
                    clean_columns(&procedure.name()),
                    format!("{:#x}", procedure.start),
                    procedure.end - procedure.start,
                ),
                None if image.elf.is_some() => (UNKNOWN.to_string(), "-".to_string(), 0),
                None => (NO_SYMBOLS.to_string(), "-".to_string(), 0),
            };
            let full = [first, size.to_string(), image.identity.clone()];
            entries.push(Entry { name: label, image: name.clone(), full, counts });
        }
    }
    entries
}

/// Returns the events in the order of their columns. The event to sort by comes first.
fn columns(set: &Set, sort: usize) -> Vec<usize> {
    std::iter::once(sort).chain((0..set.events.len()).filter(|&event| event != sort)).collect()
}

fn heading(set: &Set, order: &[usize], out: &mut dyn Write) -> Result<()> {
    for &event in order {
        writeln!(out, "{}", total_line(&set.events[event]))?;
    }
    writeln!(out)?;
    Ok(())
}

/// Returns the line with the total of an event, its unit and its periods.
pub(super) fn total_line(event: &Event) -> String {
    let Event { name, periods, is_scaled, total } = event;
    let periods: Vec<String> = periods.iter().map(u64::to_string).collect();
    let unit = if *is_scaled { "samples times period" } else { "samples" };
    format!("total of {}: {total} {unit}, period {}", clean_columns(name), periods.join(" and "))
}

fn table(set: &Set, order: &[usize], entries: &[Entry], options: &Options) -> Table {
    let mut names: Vec<String> = if options.by_image { vec![] } else { vec!["procedure".into()] };
    names.push("image".into());
    if options.full {
        names.extend(["address", "size", "identity"].map(String::from));
    }
    let mut heading = Vec::new();
    for (column, &event) in order.iter().enumerate() {
        heading.extend([clean_columns(&set.events[event].name), "%".into()]);
        heading.extend((column == 0).then(|| "cum%".into()));
    }
    let name_columns = names.len();
    heading.extend(names);
    let mut table = Table::new(heading, name_columns);
    let mut cumulative = 0u64;
    for entry in entries {
        let total = set.events[order[0]].total;
        if options.keep.is_some_and(|keep| share(cumulative, total) >= keep) {
            break;
        }
        cumulative = cumulative.saturating_add(entry.counts[order[0]]);
        let mut row = Vec::new();
        for (column, &event) in order.iter().enumerate() {
            row.extend([entry.counts[event].to_string(), percent(entry.counts[event], set.events[event].total)]);
            row.extend((column == 0).then(|| percent(cumulative, total)));
        }
        row.extend((!options.by_image).then(|| entry.name.clone()));
        row.push(entry.image.clone());
        if options.full {
            row.extend(entry.full.clone());
        }
        table.row(row);
    }
    table
}
