//! A flame graph of one event: images, their procedures, and the source lines in these. It is what
//! dcpi2ps drew for paper.

use super::prof::{NO_SYMBOLS, UNKNOWN};
use super::{Result, Set};
use heaptape_analyzer::export::svg::{Graph, draw};
use heaptape_analyzer::text::{clean, count};
use std::collections::BTreeMap;

/// Draws the event of this name, else `cycles`, else the first one.
///
/// # Errors
/// Returns an error if the event does not exist, or has no counts.
pub fn draw_event(set: &Set, event: Option<&str>) -> Result<Vec<u8>> {
    let event = set.sort_event(event)?;
    let mut stacks: BTreeMap<Vec<String>, u64> = BTreeMap::new();
    for image in &set.images {
        for (address, row) in image.rows(set.events.len()).filter(|(_, row)| row[event] > 0) {
            let place = address.wrapping_add(image.shift());
            let procedure = match (&image.elf, image.procedure(address)) {
                (_, Some(procedure)) => procedure.name(),
                (Some(_), None) => UNKNOWN.to_owned(),
                (None, None) => NO_SYMBOLS.to_owned(),
            };
            let line = image.elf.as_ref().and_then(|elf| elf.source_line(place));
            let line = line.map(|line| format!("{}:{}", line.file.rsplit('/').next().unwrap_or_default(), line.line));
            let stack = [image.name().to_owned(), procedure].into_iter().chain(line);
            let sum = stacks.entry(stack.collect()).or_default();
            *sum = sum.saturating_add(row[event]);
        }
    }
    // Semicolons separate frames.
    let frame = |name: &String| clean(&name.replace(';', ":")).into_owned();
    let folded = |(stack, count): (&Vec<String>, &u64)| {
        format!("{} {count}", stack.iter().map(frame).collect::<Vec<_>>().join(";"))
    };
    let lines: Vec<String> = stacks.iter().map(folded).collect();
    let found = &set.events[event];
    let unit = if found.is_scaled { "events" } else { "samples" };
    let title = clean(&found.name).into_owned();
    let subtitle = format!("{} {unit}", count(found.total));
    Ok(draw(&lines, Graph { title, subtitle, count_name: unit, differs: false })?)
}
