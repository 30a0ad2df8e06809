//! Imports DHAT files: the total, live and peak sums of each program point.

use super::frame_text::parse;
use super::{ReadResult, Sites, split_command};
use heaptape_formats::dhat::File;
use heaptape_formats::{Error, Format, Kind};

/// Modes in which blocks of the heap are counted. Files of the first version name none.
const HEAP_MODES: [&str; 3] = ["heap", "rust-heap", ""];

/// Parses a DHAT file.
///
/// # Errors
/// Returns an error if the bytes are not a DHAT file.
pub(super) fn read(bytes: &[u8]) -> ReadResult {
    let (file, ending) = File::read(bytes)?;
    if !HEAP_MODES.contains(&&*file.mode) {
        let (mode, verb) = (file.mode.escape_default(), file.verb.escape_default());
        let what = format!("not a heap profile: mode {mode} counts \"{verb}\"; run DHAT without --mode");
        return Err(Error { format: Format::Dhat, offset: 0, field: "mode", kind: Kind::Text(what) });
    }
    let mut sites = Sites::default();
    let frames: Vec<_> = file.ftbl.iter().map(|text| parse(text)).collect();
    for point in &file.pps {
        let mut site = 0;
        // Index 0 is the root, which is not a frame.
        for &frame in point.fs.iter().rev().filter(|&&frame| frame != 0) {
            let (address, named) = match frames.get(frame as usize) {
                Some((address, named)) => (*address, named.clone()),
                // The table is truncated.
                None => parse(&format!("frame {frame}")),
            };
            site = sites.named(site, address, named);
        }
        let sums = sites.sums(site);
        // Without lifetimes the live sums are unknown and count as 0.
        let (live, blocks) = (point.eb.unwrap_or(0), point.ebk.unwrap_or(0));
        sums.bytes = sums.bytes.saturating_add(point.tb);
        sums.allocs = sums.allocs.saturating_add(point.tbk);
        sums.freed_bytes = sums.freed_bytes.saturating_add(point.tb.saturating_sub(live));
        sums.frees = sums.frees.saturating_add(point.tbk.saturating_sub(blocks));
        sums.peak_bytes = sums.peak_bytes.saturating_add(point.gb.unwrap_or(0));
        sums.peak_blocks = sums.peak_blocks.saturating_add(point.gbk.unwrap_or(0));
    }
    let mut imported = sites.finish(file.bklt);
    imported.pid = u32::try_from(file.pid).unwrap_or(0);
    imported.argv = split_command(&file.cmd);
    if file.tu == "µs" {
        imported.duration_ns = file.te.saturating_mul(1000);
        imported.totals.peak_tick = file.tg.unwrap_or(0).saturating_mul(1000);
    }
    Ok((imported, ending))
}
