//! The leak table of random profiles, beside a plain model of mprof's own algorithm: two nested
//! loops, and a walk up both stacks for each pair. With the path of mpatrol's own mprof in
//! `HEAPTAPE_MPROF`, it prints the same profiles, too.

use super::*;
use heaptape_formats::mptl::{Bins, Data, Profile, Site};

/// A generator of random numbers (Knuth's MMIX).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// Returns a profile with a random tree of calls. Functions occur at all depths, so stacks of each
/// length end in each of them; some frames have no symbol.
fn profile(random: &mut Random) -> Profile {
    let mut profile = Profile::default();
    let (sites, functions) = (3 + random.below(40), 1 + random.below(4));
    for index in 1..=sites {
        let parent = if random.below(4) == 0 { 0 } else { random.below(index) };
        let symbol = random.below(functions + 1);
        let address = 0x1000 * (symbol + 1) + random.below(12);
        // The name of symbol 1 is at offset 1, of 2 at 4, and so on.
        let name = if symbol == 0 { 0 } else { 3 * symbol - 2 };
        let mut site = Site { index, parent, address, symbol, name, ..Site::default() };
        if random.below(3) > 0 {
            let mut data = Data { index: profile.data.len() as u64 + 1, ..Data::default() };
            (data.allocated.counts[0], data.allocated.totals[0]) = (2, 2 * (1 + random.below(99)));
            if random.below(3) == 0 {
                (data.freed.counts[0], data.freed.totals[0]) = (1, data.allocated.totals[0] / 2);
            }
            site.data = data.index;
            profile.data.push(data);
        }
        profile.sites.push(site);
    }
    profile.symbols = (1..=functions).map(|symbol| 0x1000 * (symbol + 1)).collect();
    profile.strings = (1..=functions).flat_map(|symbol| [0, b'f', b'0' + symbol as u8]).chain([0]).collect();
    profile.bins = Bins::new(1);
    for data in &profile.data {
        profile.bins.allocated[0] += data.allocated.counts[0];
        profile.bins.allocated_big += data.allocated.totals[0];
        profile.bins.freed[0] += data.freed.counts[0];
        profile.bins.freed_big += data.freed.totals[0];
    }
    // Files have the sites by address; a caller may come after its callee.
    profile.sites.sort_by_key(|site| site.address);
    profile
}

/// Returns the symbols of a site and its callers, innermost first; addresses where there is none.
fn stack(profile: &Profile, site: &Site, addresses: bool) -> Vec<(bool, u64)> {
    let (mut stack, mut next) = (Vec::new(), Some(site));
    while let Some(site) = next {
        let by_symbol = site.symbol != 0 && !addresses;
        stack.push((by_symbol, if by_symbol { site.symbol } else { site.address }));
        next = profile.sites.iter().find(|caller| caller.index == site.parent && site.parent != 0);
    }
    stack
}

/// mprof's `comparestack`: both walk up together, at most to frame `depth`.
fn are_equal(one: &[(bool, u64)], other: &[(bool, u64)], depth: usize) -> bool {
    let mut at = 0;
    loop {
        match (one.get(at), other.get(at)) {
            _ if depth != 0 && at == depth => return true,
            (None, None) => return true,
            (Some(a), Some(b)) if a == b => at += 1,
            _ => return false,
        }
    }
}

/// mprof's table: each site with data takes up those after it, as long as the function is the same.
fn model(profile: &Profile, depth: usize, addresses: bool) -> Vec<(u64, i128, i128)> {
    let stacks: Vec<_> = profile.sites.iter().map(|site| stack(profile, site, addresses)).collect();
    let data = |site: &Site| profile.data.iter().find(|data| data.index == site.data);
    let (mut taken, mut rows) = (vec![false; profile.sites.len()], Vec::new());
    for first in 0..profile.sites.len() {
        let (mut allocated, mut unfreed) = (0, 0);
        if taken[first] || data(&profile.sites[first]).is_none() {
            continue;
        }
        for next in first..profile.sites.len() {
            if stacks[next][0] != stacks[first][0] {
                break;
            }
            let Some(data) = data(&profile.sites[next]).filter(|_| !taken[next]) else { continue };
            if are_equal(&stacks[first], &stacks[next], depth) {
                taken[next] = true;
                allocated += i128::from(data.allocated.totals[0]);
                unfreed += i128::from(data.allocated.totals[0]) - i128::from(data.freed.totals[0]);
            }
        }
        rows.push((profile.sites[first].index, allocated, unfreed));
    }
    rows
}

#[test]
fn leak_tables_of_random_profiles_are_those_of_mprofs_algorithm() {
    let mut random = Random(0x5eed);
    let mut merged = 0;
    for round in 0..3000 {
        let profile = profile(&mut random);
        let addresses = round % 5 == 0;
        let sites = Sites::new(&profile, addresses);
        for depth in [1, 2, 3, 4, 7, 0] {
            let expected = model(&profile, depth, addresses);
            let row = |(index, figures): (usize, Figures)| {
                (sites.site(index).index, figures.allocated.all().bytes, figures.unfreed.all().bytes)
            };
            let found: Vec<_> = rows(&sites, depth).into_iter().map(row).collect();
            assert_eq!(found, expected, "depth {depth}, round {round}: {:?}", profile.sites);
            merged += usize::from(found.len() < profile.data.len());
        }
    }
    assert!(merged > 1000, "{merged} tables had stacks to sum up");
}

#[test]
fn tables_of_random_profiles_are_those_of_mprof() {
    let Some(mprof) = std::env::var_os("HEAPTAPE_MPROF") else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("mpatrol.out");
    let mut random = Random(0xfeed);
    for round in 0..1000 {
        let (profile, mut bytes) = (profile(&mut random), Vec::new());
        profile.write(&mut bytes);
        std::fs::write(&path, bytes).expect("a profile");
        let depth = [1, 2, 3, 4, 7, 0][round % 6];
        for (flags, addresses, counts) in [("-v", false, false), ("-va", true, false), ("-vc", false, true)] {
            let arguments = [flags, "-n", &depth.to_string()];
            let theirs = std::process::Command::new(&mprof).args(arguments).arg(&path).output().expect("it runs");
            let options = Options { addresses, counts, stack_depth: depth, call_graph: true, ..Options::default() };
            let mut ours = Vec::new();
            super::super::view(&profile, &options, &mut ours).expect("a table");
            let (ours, theirs) = (String::from_utf8_lossy(&ours), String::from_utf8_lossy(&theirs.stdout).into_owned());
            assert!(ours == theirs, "round {round}, {arguments:?}:\n{theirs}\n--- ours\n{ours}\n{:?}", profile.sites);
        }
    }
}
