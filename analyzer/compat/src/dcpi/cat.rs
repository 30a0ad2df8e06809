//! `dcpicat`: prints profiles as plain text, with a header and the counts of each image.

use super::set::{Image, Set};
use super::{Error, Result};
use heaptape_analyzer::text::clean_columns;
use heaptape_analyzer::unpack;
use heaptape_formats::dcpi;
use std::io::Write;
use std::path::PathBuf;

/// Prints each image: the header fields, a line `event` for each event, then each address with a
/// count for each event.
///
/// # Errors
/// Returns an error if writing to `out` fails.
pub fn print(set: &Set, out: &mut dyn Write) -> Result<()> {
    for (index, image) in set.images.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        print_image(set, image, out)?;
    }
    Ok(())
}

fn print_image(set: &Set, image: &Image, out: &mut dyn Write) -> Result<()> {
    let events = set.events.len();
    let mut totals = vec![0; events];
    for (_, row) in image.rows(events) {
        super::set::add_row(&mut totals, &row);
    }
    let mut line = |keyword: &str, value: &str| writeln!(out, "{keyword:<20} {}", clean_columns(value));
    line("name", image.name())?;
    line("image", &image.identity)?;
    for label in &image.labels {
        line("label", label)?;
    }
    if let Some(path) = &image.path {
        line("path", path)?;
    }
    for epoch in &image.epochs {
        line("epoch", epoch)?;
    }
    for platform in &image.platforms {
        line("platform", platform)?;
    }
    line("text_start", &format!("{:#014x}", image.tstart))?;
    line("text_size", &format!("{:#014x}", image.tsize))?;
    for &event in &image.events {
        let periods: Vec<String> = set.events[event].periods.iter().map(u64::to_string).collect();
        line("event", &format!("{} {}:{}", totals[event], set.events[event].name, periods.join(",")))?;
    }
    for (address, row) in image.rows(events) {
        write!(out, "{address:#014x}")?;
        for &event in &image.events {
            write!(out, " {:>7}", row[event])?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Prints each file separately, record by record. Returns the faults of the files.
///
/// # Errors
/// Returns an error if a file cannot be opened, or if writing to `out` fails.
pub fn print_raw(paths: &[PathBuf], stride: Option<u32>, out: &mut dyn Write) -> Result<Vec<String>> {
    let mut faults = Vec::new();
    for path in paths {
        let opened = unpack::open(path)?;
        if let Some(damage) = &opened.damage {
            faults.push(format!("{}: {damage}", opened.name));
        }
        let mut out = &mut *out;
        let file_faults = dcpi::dump(&opened.bytes, stride, &mut out).map_err(Error::Write)?;
        faults.extend(file_faults.iter().map(|fault| format!("{}: {fault}", opened.name)));
    }
    Ok(faults)
}
