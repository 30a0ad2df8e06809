//! Several profiles as one: MPTL's sums are added stack by stack.

use crate::export::Error;
use heaptape_formats::mptl::{Bins, Builder, Profile, Sums, Symbol};
use std::collections::HashMap;

/// Adds profiles. One alone stays as it is; of several, stacks of equal addresses and functions become one.
///
/// # Errors
/// When their size classes differ, or there is none.
pub fn profiles(mut profiles: Vec<Profile>) -> Result<Profile, Error> {
    let first = match &profiles[..] {
        [] => return Err(Error::Impossible("there is no profile to add up".into())),
        [_] => return Ok(profiles.remove(0)),
        [first, ..] => first.clone(),
    };
    if profiles.iter().any(|profile| profile.bounds != first.bounds) {
        return Err(Error::Impossible("profiles whose size classes differ cannot be added up".into()));
    }
    let mut adder = Adder { builder: Builder::new(first.bounds, bins(&profiles)), ..Adder::default() };
    for profile in &profiles {
        adder.add(profile);
    }
    for (&site, &(allocated, freed)) in &adder.sums {
        adder.builder.sums(site, allocated, freed);
    }
    Ok(Profile { flavour: first.flavour, version: first.version, ..adder.builder.build() })
}

/// Whether a profile has numbers of more than 32 bits.
pub fn is_wide(profile: &Profile) -> bool {
    let wide = |value: &u64| *value > u64::from(u32::MAX);
    let sums = |sums: &Sums| sums.counts.iter().chain(&sums.totals).any(wide);
    let bins = &profile.bins;
    bins.allocated.iter().chain(&bins.freed).chain([&bins.allocated_big, &bins.freed_big]).any(wide)
        || profile.data.iter().any(|data| sums(&data.allocated) || sums(&data.freed))
        || profile.sites.iter().any(|site| wide(&site.address))
        || profile.symbols.iter().any(wide)
}

/// The sums of all bins: as many as the profile with the fewest has, whose last one holds all larger sizes.
fn bins(profiles: &[Profile]) -> Bins {
    let count = profiles.iter().map(|profile| profile.bins.allocated.len()).min().unwrap_or(0);
    let mut sum = Bins::new(count);
    for bins in profiles.iter().map(|profile| &profile.bins) {
        fold(&mut sum.allocated, &mut sum.allocated_big, &bins.allocated, bins.allocated_big);
        fold(&mut sum.freed, &mut sum.freed_big, &bins.freed, bins.freed_big);
    }
    sum
}

fn fold(sum: &mut [u64], sum_big: &mut u64, counts: &[u64], big: u64) {
    let Some(last) = sum.len().checked_sub(1) else { return };
    for (at, (&count, size)) in counts.iter().zip(1u64..).enumerate() {
        let into = &mut sum[at.min(last)];
        *into = into.wrapping_add(count);
        if at >= last && at + 1 < counts.len() {
            *sum_big = sum_big.wrapping_add(count.wrapping_mul(size));
        }
    }
    *sum_big = sum_big.wrapping_add(big);
}

/// What tells a site from others: its caller, its address, start and name of its function.
type Key<'p> = (u64, u64, u64, Option<&'p [u8]>);

struct Adder<'p> {
    builder: Builder,
    known: HashMap<Key<'p>, u64>,
    symbols: HashMap<(u64, Option<&'p [u8]>), Symbol>,
    sums: std::collections::BTreeMap<u64, (Sums, Sums)>,
}

impl Default for Adder<'_> {
    fn default() -> Self {
        let builder = Builder::new([0; 3], Bins::default());
        Adder { builder, known: HashMap::new(), symbols: HashMap::new(), sums: Default::default() }
    }
}

impl<'p> Adder<'p> {
    fn add(&mut self, profile: &'p Profile) {
        let (places, data) = (profile.site_places(), profile.data_places());
        let mut numbers = vec![0u64; places.len()];
        for number in 1..=places.len() {
            // A caller's number may be greater than the site's own; callers form no loop.
            let mut waiting = vec![number];
            while let Some(&at) = waiting.last() {
                let Some(site) = places.get(at - 1).and_then(|&place| profile.sites.get(place)) else { break };
                let parent = usize::try_from(site.parent).unwrap_or(0);
                match numbers.get(parent.wrapping_sub(1)) {
                    _ if numbers[at - 1] != 0 => drop(waiting.pop()),
                    Some(0) => waiting.push(parent),
                    known => {
                        numbers[at - 1] = self.site(profile, site, known.copied().unwrap_or(0));
                        waiting.pop();
                    }
                }
            }
        }
        for (number, place) in numbers.iter().zip(&places) {
            let Some(site) = profile.sites.get(*place) else { continue };
            let row = usize::try_from(site.data).ok().and_then(|index| data.get(index.wrapping_sub(1)));
            let Some(row) = row.and_then(|&place| profile.data.get(place)) else { continue };
            let (allocated, freed) = self.sums.entry(*number).or_default();
            plus(allocated, &row.allocated);
            plus(freed, &row.freed);
        }
    }

    fn site(&mut self, profile: &'p Profile, site: &heaptape_formats::mptl::Site, parent: u64) -> u64 {
        let name = profile.name(site.name);
        let start = profile.symbol(site.symbol);
        let key = (parent, site.address, start.unwrap_or(0), name);
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

fn plus(sum: &mut Sums, other: &Sums) {
    for (sum, count) in sum.counts.iter_mut().zip(other.counts).chain(sum.totals.iter_mut().zip(other.totals)) {
        *sum = sum.wrapping_add(count);
    }
}
