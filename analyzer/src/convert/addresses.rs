//! Writes amounts at arbitrary addresses as DCPI profiles. Each file spans at most 4 GiB, because
//! offsets have 32 bits.

use super::Converted;
use crate::export::Error;
use heaptape_formats::dcpi::{Builder, HeaderFields};
use std::collections::BTreeMap;

/// Maximum number of bytes that one file spans.
const MAX_SPAN: u64 = 1 << 32;

/// Adds files with the amounts of one event to `converted`. The image is unknown. `extra_fields`
/// are added to the headers.
///
/// # Errors
/// Returns an error if the name of the event is not valid in a header.
pub(super) fn profiles(
    event: &str,
    amounts: &BTreeMap<u64, u64>,
    extra_fields: &[(&str, &str)],
    stride: u32,
    converted: &mut Converted,
) -> Result<(), Error> {
    let mut rest = amounts.iter().peekable();
    let mut is_first_file = true;
    while let Some(first) = rest.peek().map(|(first, _)| **first) {
        let tstart = first & !0xfff;
        let mut samples: Vec<(u64, u64)> = Vec::new();
        while let Some((address, amount)) = rest.next_if(|(address, _)| **address - tstart < MAX_SPAN) {
            samples.push((*address, *amount));
        }
        let last = samples.last().map_or(first, |(address, _)| *address);
        let failed = |error| Error::Format(event.to_string(), error);
        let head = HeaderFields {
            image: "0",
            platform: "unknown",
            event,
            tstart,
            tsize: last - tstart + 1,
            further: extra_fields,
            ..HeaderFields::default()
        };
        let mut builder = Builder::new(&head).map_err(failed)?.stride(stride);
        samples.iter().for_each(|&(address, amount)| builder.add(address, amount));
        let built = builder.finish().map_err(failed)?;
        if built.period > 1 {
            converted.notes.push(format!("{event}: in units of {}, because counts have 32 bits", built.period));
        }
        let name = if is_first_file { format!("{event}.dcpi") } else { format!("{event}-{tstart:x}.dcpi") };
        converted.files.push((name, built.bytes));
        is_first_file = false;
    }
    Ok(())
}
