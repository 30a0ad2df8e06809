//! Stacks that end before the program's entry, or before a thread's or coroutine's start, because
//! the callers could not be found. Stacks at the depth limit do not count.

use crate::stacks::Stacks;
use crate::text::{count, counted, percent};
use heaptape_formats::tape::{SITE_GUESSED, SITE_LOST, SiteSums};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// Stacks that end early, by where and why, with the most frequent ones first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EarlyEnds {
    /// Number of allocations and reallocations with such a stack.
    pub allocations: u64,
    /// Number of all of them.
    pub of: u64,
    /// Where these stacks end.
    pub modules: Vec<EarlyEnd>,
}

/// A module in which stacks end early, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EarlyEnd {
    /// Path of the module; empty for code that is in none.
    pub module: String,
    /// Why its callers are not known.
    pub why: &'static str,
    /// Number of allocations and reallocations.
    pub allocations: u64,
}

/// Maximum number of modules that a sentence names.
const MAX_NAMED: usize = 3;

impl EarlyEnds {
    /// Counts the stacks of a process.
    pub fn of(stacks: &Stacks, sites: &[SiteSums]) -> EarlyEnds {
        let mut modules: BTreeMap<(u32, bool), u64> = BTreeMap::new();
        let mut of = 0u64;
        for sums in sites {
            of = of.saturating_add(sums.allocs);
            let Some((_, outermost)) = stacks.stack(sums.site).last() else { continue };
            if outermost.flags & SITE_LOST != 0 {
                let entry = (outermost.module, outermost.flags & SITE_GUESSED != 0);
                let sum = modules.entry(entry).or_default();
                *sum = sum.saturating_add(sums.allocs);
            }
        }
        let mut modules: Vec<EarlyEnd> =
            modules.into_iter().map(|(entry, sum)| EarlyEnd::at(stacks, entry, sum)).collect();
        modules
            .sort_by(|one, other| other.allocations.cmp(&one.allocations).then_with(|| one.module.cmp(&other.module)));
        modules.dedup_by(|next, kept| {
            let is_same = (&next.module, next.why) == (&kept.module, kept.why);
            kept.allocations += if is_same { next.allocations } else { 0 };
            is_same
        });
        EarlyEnds {
            allocations: modules.iter().map(|entry| entry.allocations).fold(0, u64::saturating_add),
            of,
            modules,
        }
    }

    /// Returns whether the recording is not complete because of them: they are more than one in a
    /// hundred.
    pub(crate) const fn are_many(&self) -> bool {
        self.allocations > self.of / 100
    }

    /// Returns whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.allocations == 0
    }
}

impl EarlyEnd {
    fn at(stacks: &Stacks, (module, is_guess): (u32, bool), allocations: u64) -> EarlyEnd {
        let module = (module as usize).checked_sub(1).and_then(|index| stacks.modules.get(index));
        let why = match module {
            _ if !is_guess => "its stack cannot be read, or its unwind data needs another register",
            Some(_) => "it has no unwind data there",
            None => "generated code without frame pointers",
        };
        let module = module.map(|module| String::from_utf8_lossy(&module.path).into_owned()).unwrap_or_default();
        EarlyEnd { module, why, allocations }
    }
}

impl fmt::Display for EarlyEnds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (some, all) = (count(self.allocations), counted(self.of, "allocation"));
        write!(f, "the stacks of {some} of {all} ({}) end early: ", percent(self.allocations, self.of))?;
        for (index, entry) in self.modules.iter().take(MAX_NAMED).enumerate() {
            let name = match entry.module.rsplit('/').next().unwrap_or_default() {
                "" => "no module",
                name => name,
            };
            let comma = if index > 0 { "; " } else { "" };
            write!(f, "{comma}{} in {name} ({})", count(entry.allocations), entry.why)?;
        }
        match self.modules.len().saturating_sub(MAX_NAMED) {
            0 => Ok(()),
            more => write!(f, "; {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stacks::Site;
    use heaptape_formats::tape::SITE_TRUNCATED;

    #[test]
    fn early_ends_are_counted_by_module_without_the_depth_limit() {
        let mut stacks = Stacks::default();
        let mut site = |parent, flags| stacks.push(Site { parent, flags, address: 0x1000, ..Site::default() });
        let (limit, whole) = (site(0, SITE_TRUNCATED | SITE_GUESSED), site(0, 0));
        let generated = site(0, SITE_TRUNCATED | SITE_LOST | SITE_GUESSED);
        let inner = site(generated, SITE_GUESSED);
        let unreadable = site(0, SITE_TRUNCATED | SITE_LOST);
        let sums = |site, allocs| SiteSums { site, allocs, ..SiteSums::default() };
        let rows = [sums(limit, 500), sums(whole, 470), sums(inner, 11), sums(generated, 9), sums(unreadable, 10)];
        let found = EarlyEnds::of(&stacks, &rows);
        assert_eq!((found.allocations, found.of, found.are_many()), (30, 1_000, true));
        let expected = "the stacks of 30 of 1,000 allocations (3.0%) end early: 20 in no module (generated code without \
            frame pointers); 10 in no module (its stack cannot be read, or its unwind data needs another \
            register)";
        assert_eq!(found.to_string(), expected);
        let few = EarlyEnds::of(&stacks, &[sums(whole, 990), sums(generated, 10)]);
        assert!(!few.are_many() && !few.is_empty());
        assert!(EarlyEnds::of(&stacks, &[sums(limit, 5)]).is_empty() && !EarlyEnds::default().are_many());
    }
}
