//! Call sites as rows: stacks whose shown frames are the same are one row, as in `peak`. A
//! container allocates by many stacks, and its frames aren't shown.

use heaptape_daemon::protocol::CallSite;
use std::collections::HashMap;

/// Sums up call sites with the same label. Each has the stack of its largest, and the smallest of
/// their numbers, which stays the same as the others come and go.
pub(super) fn merge(sites: Vec<CallSite>, mut label: impl FnMut(&CallSite) -> String) -> Vec<CallSite> {
    let mut rows: Vec<CallSite> = Vec::new();
    let mut largest: Vec<u64> = Vec::new();
    let mut known: HashMap<String, usize> = HashMap::new();
    for site in sites {
        let row = *known.entry(label(&site)).or_insert(rows.len());
        let Some(sum) = rows.get_mut(row) else {
            largest.push(site.live_bytes);
            rows.push(site);
            continue;
        };
        sum.site = sum.site.min(site.site);
        sum.live_bytes = sum.live_bytes.saturating_add(site.live_bytes);
        sum.live_blocks += site.live_blocks;
        sum.allocs += site.allocs;
        sum.bytes = sum.bytes.saturating_add(site.bytes);
        sum.growth = sum.growth.zip(site.growth).map(|(a, b)| a.saturating_add(b));
        if site.live_bytes > largest[row] {
            (largest[row], sum.stack) = (site.live_bytes, site.stack);
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_that_look_the_same_are_one_row() {
        let site = |site, live_bytes, growth| CallSite {
            site,
            live_bytes,
            live_blocks: 1,
            allocs: 2,
            bytes: live_bytes * 2,
            growth,
            ..CallSite::default()
        };
        let sites = vec![site(9, 100, Some(7)), site(4, 50, Some(1)), site(5, 500, None), site(8, 300, Some(-2))];
        let label = |site: &CallSite| if site.site == 5 { "other" } else { "same" }.to_owned();
        let rows = merge(sites, label);
        let shown: Vec<_> = rows.iter().map(|row| (row.site, row.live_bytes, row.live_blocks, row.growth)).collect();
        assert_eq!(shown, [(4, 450, 3, Some(6)), (5, 500, 1, None)]);
        assert_eq!((rows[0].allocs, rows[0].bytes), (6, 900));
    }
}
