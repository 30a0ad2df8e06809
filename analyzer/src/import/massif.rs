//! Imports Massif files: live memory at the peak and at the end, by call stack. The files do not
//! have the total of allocations, so the imported sums count the memory that was live at the end.

use super::frame_text::parse;
use super::{ReadResult, Sites, split_command};
use heaptape_formats::massif::{Reader, Snapshot, TreeKind};

/// Parses a Massif file.
///
/// # Errors
/// Returns an error if the bytes are not a Massif file.
pub(super) fn read(bytes: &[u8]) -> ReadResult {
    let mut reader = Reader::new(bytes)?;
    let (mut peak, mut last): (Option<Snapshot>, Option<Snapshot>) = (None, None);
    let (mut max_heap, mut max_stacks) = (0, 0);
    while let Some(snapshot) = reader.next()? {
        max_heap = max_heap.max(snapshot.heap);
        max_stacks = max_stacks.max(snapshot.stacks);
        let is_peak = match (&peak, snapshot.kind) {
            (_, TreeKind::Empty) => false,
            (Some(before), TreeKind::Detailed) => before.kind != TreeKind::Peak && snapshot.heap > before.heap,
            _ => true,
        };
        if is_peak {
            peak = Some(snapshot.clone());
        }
        last = Some(snapshot);
    }
    let mut sites = Sites::default();
    let mut peak_time = 0;
    if let Some(snapshot) = &peak {
        peak_time = snapshot.time;
        leaves(snapshot, &mut sites, |sites, site, bytes| {
            let sums = sites.sums(site);
            sums.peak_bytes = sums.peak_bytes.saturating_add(bytes);
        });
    }
    let mut time = 0;
    if let Some(snapshot) = &last {
        time = snapshot.time;
        let live = |sites: &mut Sites, site, bytes| {
            let sums = sites.sums(site);
            sums.bytes = sums.bytes.saturating_add(bytes);
        };
        match snapshot.kind {
            TreeKind::Empty => live(&mut sites, 0, snapshot.heap),
            _ => leaves(snapshot, &mut sites, live),
        }
    }
    let mut imported = sites.finish(peak.is_some());
    imported.totals.peak_bytes = imported.totals.peak_bytes.max(max_heap);
    if reader.head().desc.contains("--pages-as-heap=yes") {
        let what = "massif counted pages (--pages-as-heap=yes): bytes are those of all mapped memory, code and stacks included";
        imported.notes.push(what.into());
    }
    if max_stacks > 0 {
        let most = crate::text::bytes(max_stacks);
        imported
            .notes
            .push(format!("massif measured stacks, too (--stacks=yes), {most} at most: they are not in these bytes"));
    }
    imported.argv = split_command(&reader.head().cmd);
    if reader.head().time_unit == "ms" {
        imported.duration_ns = time.saturating_mul(1_000_000);
        imported.totals.peak_tick = peak_time.saturating_mul(1_000_000);
    }
    Ok((imported, reader.ending().unwrap_or(heaptape_formats::Ending::Complete)))
}

/// Calls `each` with the site and bytes of each stack of a tree: the bytes of a node minus those of
/// its callers.
fn leaves(snapshot: &Snapshot, sites: &mut Sites, mut each: impl FnMut(&mut Sites, u32, u64)) {
    let tree = &snapshot.tree;
    // Innermost frame first, as in the tree.
    let mut path: Vec<&str> = Vec::new();
    for (index, node) in tree.iter().enumerate() {
        path.truncate(node.depth.saturating_sub(1));
        if node.depth > 0 {
            path.push(&node.text);
        }
        let below = tree[index + 1..].iter().take_while(|below| below.depth > node.depth);
        let callers = below.filter(|below| below.depth == node.depth + 1).map(|below| below.bytes);
        let self_bytes = node.bytes.saturating_sub(callers.fold(0, u64::saturating_add));
        if self_bytes == 0 {
            continue;
        }
        let mut site = 0;
        for text in path.iter().rev() {
            // A text such as "in 3 places, all below …" is not a frame.
            if text.starts_with("0x") || text.contains('(') && !text.starts_with("in ") {
                let (address, named) = parse(text);
                site = sites.named(site, address, named);
            }
        }
        each(sites, site, self_bytes);
    }
}
