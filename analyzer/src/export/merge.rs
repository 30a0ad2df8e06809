//! Merges MPTL profiles by adding the sums of equal call stacks.

use super::Error;
use crate::export::Impossible;
use heaptape_formats::mptl::{Bins, Builder, Profile, Sums, Symbol};
use std::collections::HashMap;

/// Merges profiles. Call stacks with equal addresses and functions become one. A single profile is
/// returned unchanged.
///
/// # Errors
/// Returns an error if the size classes of the profiles differ, or if there is no profile.
pub(crate) fn profiles(mut profiles: Vec<Profile>) -> Result<Profile, Error> {
    let first = match &profiles[..] {
        [] => return Err(Impossible::NoProfile.into()),
        [_] => return Ok(profiles.remove(0)),
        [first, ..] => first.clone(),
    };
    if profiles.iter().any(|profile| profile.bounds != first.bounds) {
        return Err(Impossible::SizeClasses.into());
    }
    let mut merger = Merger { builder: Builder::new(first.bounds, sum_bins(&profiles)), ..Merger::default() };
    for profile in &profiles {
        merger.add(profile);
    }
    for (&site, &(allocated, freed)) in &merger.sums {
        merger.builder.sums(site, allocated, freed);
    }
    Ok(Profile { abi: first.abi, version: first.version, ..merger.builder.build() })
}

/// Returns whether a profile has numbers of more than 32 bits.
pub(crate) fn is_wide(profile: &Profile) -> bool {
    let wide = |value: &u64| *value > u64::from(u32::MAX);
    let sums = |sums: &Sums| sums.counts.iter().chain(&sums.totals).any(wide);
    let bins = &profile.bins;
    bins.allocated.iter().chain(&bins.freed).chain([&bins.allocated_big, &bins.freed_big]).any(wide)
        || profile.data.iter().any(|data| sums(&data.allocated) || sums(&data.freed))
        || profile.sites.iter().any(|site| wide(&site.address))
        || profile.symbols.iter().any(wide)
}

/// Returns the sums of the bins. The result has as many bins as the profile with the fewest. Its
/// last bin contains all larger sizes.
fn sum_bins(profiles: &[Profile]) -> Bins {
    let count = profiles.iter().map(|profile| profile.bins.allocated.len()).min().unwrap_or(0);
    let mut sum = Bins::new(count);
    for bins in profiles.iter().map(|profile| &profile.bins) {
        fold(&mut sum.allocated, &mut sum.allocated_big, &bins.allocated, bins.allocated_big);
        fold(&mut sum.freed, &mut sum.freed_big, &bins.freed, bins.freed_big);
    }
    sum
}

/// Adds the bins `counts` and the bytes of their last bin to the possibly shorter bins `sum`.
fn fold(sum: &mut [u64], sum_big: &mut u64, counts: &[u64], big: u64) {
    let Some(last) = sum.len().checked_sub(1) else { return };
    for (index, (&count, size)) in counts.iter().zip(1u64..).enumerate() {
        let into = &mut sum[index.min(last)];
        *into = into.wrapping_add(count);
        if index >= last && index + 1 < counts.len() {
            *sum_big = sum_big.wrapping_add(count.wrapping_mul(size));
        }
    }
    *sum_big = sum_big.wrapping_add(big);
}

/// The identity of a call site.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct SiteKey<'p> {
    parent: u64,
    address: u64,
    function_start: u64,
    function_name: Option<&'p [u8]>,
}

struct Merger<'p> {
    builder: Builder,
    known: HashMap<SiteKey<'p>, u64>,
    symbols: HashMap<(u64, Option<&'p [u8]>), Symbol>,
    sums: std::collections::BTreeMap<u64, (Sums, Sums)>,
}

impl Default for Merger<'_> {
    fn default() -> Self {
        let builder = Builder::new([0; 3], Bins::default());
        Merger { builder, known: HashMap::new(), symbols: HashMap::new(), sums: Default::default() }
    }
}

impl<'p> Merger<'p> {
    /// Adds the sums of all call sites of a profile.
    fn add(&mut self, profile: &'p Profile) {
        let (site_indexes, data) = (profile.site_positions(), profile.data_positions());
        let mut numbers = vec![0u64; site_indexes.len()];
        for number in 1..=site_indexes.len() {
            // The number of a caller may be greater than that of the site. Callers form no cycle.
            let mut pending = vec![number];
            while let Some(&current) = pending.last() {
                let Some(site) = site_indexes.get(current - 1).and_then(|&index| profile.sites.get(index)) else {
                    break;
                };
                let parent = usize::try_from(site.parent).unwrap_or(0);
                match numbers.get(parent.wrapping_sub(1)) {
                    _ if numbers[current - 1] != 0 => drop(pending.pop()),
                    Some(0) => pending.push(parent),
                    known => {
                        numbers[current - 1] = self.site(profile, site, known.copied().unwrap_or(0));
                        pending.pop();
                    }
                }
            }
        }
        for (number, index) in numbers.iter().zip(&site_indexes) {
            let Some(site) = profile.sites.get(*index) else { continue };
            let row = usize::try_from(site.data).ok().and_then(|index| data.get(index.wrapping_sub(1)));
            let Some(row) = row.and_then(|&index| profile.data.get(index)) else { continue };
            let (allocated, freed) = self.sums.entry(*number).or_default();
            add_sums(allocated, &row.allocated);
            add_sums(freed, &row.freed);
        }
    }

    /// Returns the number of a call site in the result. Adds the site if it is new.
    fn site(&mut self, profile: &'p Profile, site: &heaptape_formats::mptl::Site, parent: u64) -> u64 {
        let name = profile.name(site.name);
        let start = profile.symbol(site.symbol);
        let key = SiteKey { parent, address: site.address, function_start: start.unwrap_or(0), function_name: name };
        if let Some(&known) = self.known.get(&key) {
            return known;
        }
        let symbol = start.map(|start| {
            let builder = &mut self.builder;
            *self.symbols.entry((start, name)).or_insert_with(|| builder.symbol(start, name.unwrap_or_default()))
        });
        let number = self.builder.site(parent, site.address, symbol);
        self.known.insert(key, number);
        number
    }
}

/// Adds the counts and totals of `other` to `sum`.
fn add_sums(sum: &mut Sums, other: &Sums) {
    for (sum, count) in sum.counts.iter_mut().zip(other.counts).chain(sum.totals.iter_mut().zip(other.totals)) {
        *sum = sum.wrapping_add(count);
    }
}
