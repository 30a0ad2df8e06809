//! The second axis of the leak report: who holds the blocks of a leak at the end, where
//! `record --references` has noted it.

use super::Leak;
use crate::load::Process;
use crate::report::PointInTime;
use crate::report::frames::call_site;
use crate::report::holders::{Amount, Holders};
use crate::report::lost::{self, Lost};
use crate::symbols::Symbolizer;
use crate::text::{bytes, counted, percent};
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

impl Holder {
    fn name_in_processes(&self) -> String {
        match self.processes {
            0 | 1 => self.name.clone(),
            several => format!("{} of {several} processes", self.name),
        }
    }
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
    /// Returns who holds the blocks of a leak, and of the same one in other processes: that of the
    /// function with the same verdict.
    pub(super) fn in_processes(leak: &Leak<'_>, all: &[Leak<'_>], symbols: &mut Symbolizer) -> Option<Held> {
        leak.held.as_ref()?;
        let mut function = |leak: &Leak<'_>| call_site(symbols, leak.process.stacks(), leak.site, 1).names;
        let own = function(leak);
        let mut same: Vec<&Leak<'_>> = vec![leak];
        same.extend(all.iter().filter(|other| {
            let is_other = !std::ptr::eq(other.process, leak.process) && other.process.name() == leak.process.name();
            is_other && other.verdict == leak.verdict && other.held.is_some() && function(other) == own
        }));
        Held::of_all(&same)
    }

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

    /// Returns who holds most of it, as the end of a sentence about the blocks. Who holds less than
    /// half of it is not the holder, and less than a tenth is not worth a name there.
    pub(super) fn most(&self) -> Option<String> {
        let all = self.by.iter().map(|holder| holder.bytes).sum::<u64>() + self.lost_bytes + self.cycle_bytes;
        let most = self.by.first().filter(|_| !self.is_mostly_unheld());
        match most {
            Some(most) if 10 * most.bytes < all => Some(format!("held by {}", counted(self.by.len() as u64, "root"))),
            Some(most) if 2 * most.bytes < all => {
                Some(format!("{} held by {}", percent(most.bytes, all), most.name_in_processes()))
            }
            Some(most) => Some(format!("held by {}", most.name_in_processes())),
            None if self.cycle_bytes > self.lost_bytes => Some("held by their own cycle".into()),
            None if self.lost_bytes > 0 => Some("lost".into()),
            None => None,
        }
    }

    /// Returns whether [`Held::most`] says that nothing holds it.
    pub(super) fn is_mostly_unheld(&self) -> bool {
        self.by.first().is_none_or(|most| most.bytes < self.lost_bytes.max(self.cycle_bytes))
    }

    pub(super) const fn unheld_bytes(&self) -> u64 {
        self.lost_bytes.saturating_add(self.cycle_bytes)
    }

    /// Returns what it is about first.
    pub(super) fn fate(&self) -> Fate {
        match () {
            () if self.lost_blocks > 0 => Fate::Lost,
            () if self.cycle_blocks > 0 => Fate::Cycle,
            () if !self.by.is_empty() => Fate::Held,
            () => Fate::Unknown,
        }
    }

    /// Returns the word for blocks of so many bytes of which a core is all that is known: it has no
    /// times, so that nothing can be said of growth.
    pub(super) fn word(&self, all: u64) -> String {
        match self.fate() {
            Fate::Lost | Fate::Cycle if self.lost_bytes + self.cycle_bytes < all => "lost in part".into(),
            Fate::Held => self.most().unwrap_or_default(),
            fate => fate.word().into(),
        }
    }

    /// Returns whether there is more to say than [`Held::word`] does.
    pub(super) fn is_divided(&self) -> bool {
        self.by.len() + usize::from(self.lost_blocks > 0) + usize::from(self.cycle_blocks > 0) > 1
    }

    /// Returns how much nothing holds, as the end of a sentence about the blocks.
    pub(super) fn unheld(&self) -> Option<String> {
        let parts = [("lost", self.lost_bytes), ("in cycles that nothing else holds", self.cycle_bytes)];
        let parts: Vec<String> =
            parts.iter().filter(|part| part.1 > 0).map(|(name, amount)| format!("{} {name}", bytes(*amount))).collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }

    /// Returns all of it on one line.
    pub(super) fn text(&self) -> String {
        /// Roots that are named.
        const SHOWN: usize = 2;
        let of_root = |holder: &Holder| format!("held by {}: {}", holder.name_in_processes(), bytes(holder.bytes));
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
    fn add(&mut self, fate: &BlockFate, block: &ReferenceBlock) {
        match fate {
            BlockFate::Root(name) => self.by.entry(name.clone()).or_default().add(block),
            BlockFate::Lost => self.lost.add(block),
            BlockFate::Cycle => self.cycles.add(block),
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

enum BlockFate {
    Root(String),
    Lost,
    Cycle,
}

/// What becomes of the blocks of a size in a core, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Lost,
    Cycle,
    /// What is not held may be lost or not: the core lacks memory.
    Unknown,
    Held,
}

impl Fate {
    pub(super) const WORST_FIRST: [Fate; 4] = [Fate::Lost, Fate::Cycle, Fate::Unknown, Fate::Held];

    pub(super) const fn word(self) -> &'static str {
        match self {
            Fate::Lost => "lost",
            Fate::Cycle => "in a cycle",
            Fate::Unknown => "not judged",
            Fate::Held => "held",
        }
    }

    /// Returns the bytes and blocks of a leak of which this becomes.
    pub(super) fn amount(self, leak: &Leak<'_>) -> (u64, u64) {
        let none = Held::default();
        let held = leak.held.as_ref().unwrap_or(&none);
        let by = held.by.iter().fold((0, 0), |(bytes, blocks), one| (bytes + one.bytes, blocks + one.blocks));
        let rest = |all: u64, known: [u64; 3]| all.saturating_sub(known.iter().sum());
        match self {
            Fate::Lost => (held.lost_bytes, held.lost_blocks),
            Fate::Cycle => (held.cycle_bytes, held.cycle_blocks),
            Fate::Held => by,
            Fate::Unknown => (
                rest(leak.bytes, [held.lost_bytes, held.cycle_bytes, by.0]),
                rest(leak.blocks, [held.lost_blocks, held.cycle_blocks, by.1]),
            ),
        }
    }
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
        for (number, block) in (0..).zip(holders.snapshot.graph.blocks.iter()) {
            let fate = match (holders.group(number), fates.get(&number)) {
                (Some(root), _) => BlockFate::Root(root.name.clone()),
                (None, Some(true)) => BlockFate::Cycle,
                (None, Some(false)) => BlockFate::Lost,
                // Nothing is known of it.
                (None, None) => continue,
            };
            of_site.entry(block.site).or_default().add(&fate, &block);
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

/// Adds to the leaks of a process who holds them. Returns what is said where that was read before the end,
/// or not at all although it was asked for.
pub(super) fn add(process: &Process, leaks: Vec<&mut Leak>, symbols: &mut Symbolizer) -> Option<String> {
    // A file that cannot be read is a matter of `holds`.
    let Ok(Some(mut holders)) = Holders::of(process, symbols) else {
        let is_told = process.about.lacks_references && !leaks.is_empty();
        return is_told
            .then(|| format!("who holds what in {} could not be read: heaptape holds says why", process.name()));
    };
    // The blocks of another time are others.
    let shows_end = process.core.is_some() || holders.snapshot.shows_end_of(process);
    if shows_end {
        let lost = lost::find(&mut holders);
        let by_site = BySite::of(&holders, &lost);
        leaks.into_iter().for_each(|leak| leak.held = by_site.held(&leak.sites));
    }
    if process.core.is_some() || holders.snapshot.is_of_end() {
        return None;
    }
    let when = PointInTime::at(process, holders.snapshot.head.tick, None).text();
    Some(match shows_end {
        true => format!("who holds what was read {when}, shortly before the end"),
        false => format!("who holds what was read {when}, not at the end: heaptape holds shows it"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_less_than_half_is_not_the_holder() {
        let holder = |name: &str, bytes, processes| Holder { name: name.into(), blocks: 1, bytes, processes };
        let most = |by: Vec<Holder>, lost_bytes| Held { by, lost_bytes, ..Held::default() }.most();
        let cache = || holder("global cache", 60, 1);
        assert_eq!(most(vec![cache(), holder("global index", 40, 1)], 0).unwrap(), "held by global cache");
        assert_eq!(most(vec![holder("global cache", 60, 3)], 1).unwrap(), "held by global cache of 3 processes");
        let three = ["a", "b", "c"].map(|name| holder(name, 30, 1));
        assert_eq!(most(three.to_vec(), 0).unwrap(), "33.3% held by a");
        let many = (0..20).map(|number| holder(&number.to_string(), 10, 1)).collect();
        assert_eq!(most(many, 0).unwrap(), "held by 20 roots");
        assert_eq!(most(vec![cache()], 61).unwrap(), "lost");
        assert_eq!(most(Vec::new(), 0), None);
    }
}
