//! Massif's snapshots: who held what at the peak, and what was live at the end. What was allocated in all is not in such a file: its sums
//! count what was live at the end.

use super::frame_text::parse;
use super::{ReadResult, Sites, split_command};
use heaptape_formats::massif::{Reader, Snapshot, TreeKind};

/// ReadFn a file.
pub fn read(bytes: &[u8]) -> ReadResult {
    let mut reader = Reader::new(bytes)?;
    let (mut peak, mut last): (Option<Snapshot>, Option<Snapshot>) = (None, None);
    // The latest tree, for the end.
    let mut most = 0;
    while let Some(snapshot) = reader.next()? {
        most = most.max(snapshot.heap);
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
    imported.totals.peak_bytes = imported.totals.peak_bytes.max(most);
    imported.argv = split_command(&reader.head().cmd);
    if reader.head().time_unit == "ms" {
        imported.duration_ns = time.saturating_mul(1_000_000);
        imported.totals.peak_tick = peak_time.saturating_mul(1_000_000);
    }
    Ok((imported, reader.ending().unwrap_or(heaptape_formats::Ending::Complete)))
}

/// What each stack of a tree holds: a node's bytes without those of its callers.
fn leaves(snapshot: &Snapshot, sites: &mut Sites, mut each: impl FnMut(&mut Sites, u32, u64)) {
    let tree = &snapshot.tree;
    // Innermost first, as the tree has them.
    let mut path: Vec<&str> = Vec::new();
    for (at, node) in tree.iter().enumerate() {
        path.truncate(node.depth.saturating_sub(1));
        if node.depth > 0 {
            path.push(&node.text);
        }
        let below = tree[at + 1..].iter().take_while(|below| below.depth > node.depth);
        let callers = below.filter(|below| below.depth == node.depth + 1).map(|below| below.bytes);
        let own = node.bytes.saturating_sub(callers.fold(0, u64::saturating_add));
        if own == 0 {
            continue;
        }
        let mut site = 0;
        for text in path.iter().rev() {
            // "in 3 places, all below …" is no frame.
            if text.starts_with("0x") || text.contains('(') && !text.starts_with("in ") {
                let (address, named) = parse(text);
                site = sites.named(site, address, named);
            }
        }
        each(sites, site, own);
    }
}
