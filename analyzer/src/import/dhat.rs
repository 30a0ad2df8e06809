//! DHAT's points: sums in all, at the end and at the peak.

use super::frame_text::parse;
use super::{ReadResult, Sites, split_command};
use heaptape_formats::dhat::File;

/// ReadFn a file.
pub fn read(bytes: &[u8]) -> ReadResult {
    let (file, ending) = File::read(bytes)?;
    let mut sites = Sites::default();
    let frames: Vec<_> = file.ftbl.iter().map(|text| parse(text)).collect();
    for point in &file.pps {
        let mut site = 0;
        // Place 0 is the root, which is no frame.
        for &frame in point.fs.iter().rev().filter(|&&frame| frame != 0) {
            let (address, named) = match frames.get(frame as usize) {
                Some((address, named)) => (*address, named.clone()),
                // The table was cut.
                None => parse(&format!("frame {frame}")),
            };
            site = sites.named(site, address, named);
        }
        let sums = sites.sums(site);
        // Without lifetimes nothing is known to live on.
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
