//! Dump of a profile: one record per line.

use super::layout::{Profile, Sums};
use crate::Ending;
use std::io::{self, Write};

/// Prints every table of a file, and how it ended. Bins that counted nothing are left out.
///
/// # Errors
/// When `out` fails. An error in the bytes is printed as the only line.
pub fn dump(bytes: &[u8], out: &mut dyn Write) -> io::Result<()> {
    let (profile, ending) = match Profile::read(bytes) {
        Ok(read) => read,
        Err(error) => return writeln!(out, "error {error}"),
    };
    writeln!(out, "mptl {} version {}", profile.abi.name(), profile.version)?;
    let [small, medium, large] = profile.bounds;
    writeln!(out, "bounds {small} {medium} {large}")?;
    let bins = &profile.bins;
    writeln!(out, "bins {} big allocated {} freed {}", bins.allocated.len(), bins.allocated_big, bins.freed_big)?;
    for (index, (allocated, freed)) in bins.allocated.iter().zip(&bins.freed).enumerate() {
        if (*allocated, *freed) != (0, 0) {
            writeln!(out, "bin {} allocated {allocated} freed {freed}", index + 1)?;
        }
    }
    for data in &profile.data {
        write!(out, "data {} allocated", data.index)?;
        sums(&data.allocated, out)?;
        write!(out, " freed")?;
        sums(&data.freed, out)?;
        writeln!(out)?;
    }
    for site in &profile.sites {
        write!(out, "site {} parent {} address {:#x} symbol {}", site.index, site.parent, site.address, site.symbol)?;
        if let Some(name) = profile.name(site.name) {
            write!(out, " name {} \"{}\"", site.name, name.escape_ascii())?;
        }
        writeln!(out, " data {}", site.data)?;
    }
    for (index, start) in profile.symbols.iter().enumerate() {
        writeln!(out, "symbol {} start {start:#x}", index + 1)?;
    }
    writeln!(out, "strings {}", profile.strings.len())?;
    match ending {
        Ending::Truncated { offset, field } => writeln!(out, "cut at {offset} in {field}"),
        Ending::Complete => writeln!(out, "end"),
    }
}

/// Prints count and bytes of each size class.
fn sums(sums: &Sums, out: &mut dyn Write) -> io::Result<()> {
    sums.counts.iter().zip(&sums.totals).try_for_each(|(count, total)| write!(out, " {count}/{total}"))
}
