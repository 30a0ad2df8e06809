//! The second axis of the leak report: who holds the blocks of a leak at the end, where
//! `record --references` has noted it.

use super::Leak;
use crate::load::Process;
use crate::report::holders::{Amount, Holders};
use crate::report::lost::{self, Lost};
use crate::symbols::Symbolizer;
use crate::text::bytes;
use heaptape_formats::tape::ReferenceBlock;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::Serialize;

/// What holds some blocks of a leak.
#[derive(Clone, Debug, Serialize)]
pub struct Holder {
    /// E.g. `global cache`.
    pub name: String,
    pub blocks: u64,
    pub bytes: u64,
    /// Number of the processes in which it does.
    #[serde(skip)]
    processes: usize,
}

/// Who holds the blocks of a leak.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Held {
    /// The nearest roots, those of most bytes first.
    pub by: Vec<Holder>,
    pub lost_blocks: u64,
    pub lost_bytes: u64,
    /// Blocks in cycles that nothing else holds, or that only these hold.
    pub cycle_blocks: u64,
    pub cycle_bytes: u64,
}

impl Held {
    /// Returns who holds the blocks of several leaks, such as those of one function in several
    /// processes.
    pub(super) fn of_all(leaks: &[&Leak<'_>]) -> Option<Held> {
        let mut sums = Sums::default();
        let mut processes: FxHashMap<&str, FxHashSet<*const Process>> = FxHashMap::default();
        for (leak, held) in leaks.iter().filter_map(|leak| Some((leak, leak.held.as_ref()?))) {
            sums.add_held(held);
            for holder in &held.by {
                processes.entry(&holder.name).or_default().insert(leak.process);
            }
        }
        let mut held = sums.held()?;
        for holder in &mut held.by {
            holder.processes = processes.get(&*holder.name).map_or(1, FxHashSet::len);
        }
        Some(held)
    }

    /// Returns who holds most of it, as the end of a sentence about the blocks.
    pub(super) fn most(&self) -> Option<String> {
        let most = self.by.first().filter(|most| most.bytes >= self.lost_bytes.max(self.cycle_bytes));
        match most {
            Some(most) => Some(format!("held by {}", most.name)),
            None if self.cycle_bytes > self.lost_bytes => Some("held by their own cycle".into()),
            None if self.lost_bytes > 0 => Some("lost".into()),
            None => None,
        }
    }

    /// Returns all of it on one line.
    pub(super) fn text(&self) -> String {
        /// Roots that are named.
        const SHOWN: usize = 2;
        let of_root = |holder: &Holder| {
            let of = if holder.processes > 1 { format!(" of {} processes", holder.processes) } else { String::new() };
            format!("held by {}{of}: {}", holder.name, bytes(holder.bytes))
        };
        let mut parts: Vec<String> = self.by.iter().take(SHOWN).map(of_root).collect();
        let rest: u64 = self.by.iter().skip(SHOWN).map(|holder| holder.bytes).sum();
        let others = [
            ("held by others", rest),
            ("lost", self.lost_bytes),
            ("in cycles that nothing else holds", self.cycle_bytes),
        ];
        parts.extend(
            others.iter().filter(|(_, amount)| *amount > 0).map(|(name, amount)| format!("{name}: {}", bytes(*amount))),
        );
        parts.join("; ")
    }
}

/// Sums of the blocks of a site, or of a function.
#[derive(Default)]
struct Sums {
    by: FxHashMap<String, Amount>,
    lost: Amount,
    cycles: Amount,
}

impl Sums {
    fn add(&mut self, fate: &Fate, block: &ReferenceBlock) {
        match fate {
            Fate::Root(name) => self.by.entry(name.clone()).or_default().add(block),
            Fate::Lost => self.lost.add(block),
            Fate::Cycle => self.cycles.add(block),
        }
    }

    fn merge(&mut self, other: &Sums) {
        for (name, amount) in &other.by {
            self.by.entry(name.clone()).or_default().join(*amount);
        }
        self.lost.join(other.lost);
        self.cycles.join(other.cycles);
    }

    fn add_held(&mut self, held: &Held) {
        let amount = |blocks, bytes| Amount { blocks, bytes };
        for holder in &held.by {
            self.by.entry(holder.name.clone()).or_default().join(amount(holder.blocks, holder.bytes));
        }
        self.lost.join(amount(held.lost_blocks, held.lost_bytes));
        self.cycles.join(amount(held.cycle_blocks, held.cycle_bytes));
    }

    fn held(&self) -> Option<Held> {
        let holder = |(name, amount): (&String, &Amount)| Holder {
            name: name.clone(),
            blocks: amount.blocks,
            bytes: amount.bytes,
            processes: 1,
        };
        let mut by: Vec<Holder> = self.by.iter().map(holder).collect();
        by.sort_by(|a, b| (b.bytes, &a.name).cmp(&(a.bytes, &b.name)));
        let Sums { lost, cycles, .. } = self;
        let is_known = !by.is_empty() || lost.blocks + cycles.blocks > 0;
        is_known.then_some(Held {
            by,
            lost_blocks: lost.blocks,
            lost_bytes: lost.bytes,
            cycle_blocks: cycles.blocks,
            cycle_bytes: cycles.bytes,
        })
    }
}

enum Fate {
    Root(String),
    Lost,
    Cycle,
}

/// Who holds the blocks of each call site of a process.
pub(crate) struct BySite(FxHashMap<u32, Sums>);

impl BySite {
    pub(crate) fn of(holders: &Holders<'_>, lost: &Lost) -> BySite {
        let mut fates: FxHashMap<u32, bool> = FxHashMap::default();
        for group in &lost.groups {
            fates.extend(group.members.iter().map(|block| (*block, group.is_cycle)));
        }
        let mut of_site: FxHashMap<u32, Sums> = FxHashMap::default();
        for (number, block) in (0..).zip(&holders.snapshot.graph.blocks) {
            let fate = match (holders.group(number), fates.get(&number)) {
                (Some(root), _) => Fate::Root(root.name.clone()),
                (None, Some(true)) => Fate::Cycle,
                (None, Some(false)) => Fate::Lost,
                // Nothing is known of it.
                (None, None) => continue,
            };
            of_site.entry(block.site).or_default().add(&fate, block);
        }
        BySite(of_site)
    }

    /// Returns who holds the blocks of some sites.
    pub(crate) fn held(&self, sites: &[u32]) -> Option<Held> {
        let mut sums = Sums::default();
        sites.iter().filter_map(|site| self.0.get(site)).for_each(|of_site| sums.merge(of_site));
        sums.held()
    }
}

/// Adds to the leaks of a process who holds them.
pub(super) fn add(process: &Process, leaks: Vec<&mut Leak>, symbols: &mut Symbolizer) {
    // A file that cannot be read is a matter of `holds`.
    let Ok(Some(holders)) = Holders::of(process, symbols) else { return };
    let by_site = BySite::of(&holders, &lost::find(&holders));
    leaks.into_iter().for_each(|leak| leak.held = by_site.held(&leak.sites));
}
