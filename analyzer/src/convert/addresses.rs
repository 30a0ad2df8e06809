//! Amounts at addresses that may lie anywhere, as DCPI profiles: one for each 4 GiB, since offsets have 32 bits.

use super::Converted;
use crate::export::Error;
use heaptape_formats::dcpi::{Builder, Head};
use std::collections::BTreeMap;

/// Bytes that one file spans at most.
const SPAN: u64 = 1 << 32;

/// Adds files for the amounts of one event. Nothing is known of the image.
///
/// # Errors
/// When the event's name cannot stand in a header.
pub fn profiles(
    event: &str,
    amounts: &BTreeMap<u64, u64>,
    further: &[(&str, &str)],
    stride: u32,
    made: &mut Converted,
) -> Result<(), Error> {
    let mut rest = amounts.iter().peekable();
    let mut first_of_all = true;
    while let Some(first) = rest.peek().map(|(first, _)| **first) {
        let tstart = first & !0xfff;
        let mut part: Vec<(u64, u64)> = Vec::new();
        while let Some((address, amount)) = rest.next_if(|(address, _)| **address - tstart < SPAN) {
            part.push((*address, *amount));
        }
        let last = part.last().map_or(first, |(address, _)| *address);
        let failed = |error| Error::Format(event.to_string(), error);
        let head = Head {
            image: "0",
            platform: "unknown",
            event,
            tstart,
            tsize: last - tstart + 1,
            further,
            ..Head::default()
        };
        let mut builder = Builder::new(&head).map_err(failed)?.stride(stride);
        part.iter().for_each(|&(address, amount)| builder.add(address, amount));
        let built = builder.finish().map_err(failed)?;
        if built.period > 1 {
            made.notes.push(format!("{event}: in units of {}, as counts have 32 bits", built.period));
        }
        let name = if first_of_all { format!("{event}.dcpi") } else { format!("{event}-{tstart:x}.dcpi") };
        made.files.push((name, built.bytes));
        first_of_all = false;
    }
    Ok(())
}
