//! The entries of the leak report in text: one for each bug. Leaks of one function with the same
//! verdict are one entry, also when several processes of a program have them.

use super::totals::VerdictTotal;
use super::{Leak, Options};
use crate::model::verdict::{FLOOR_BYTES, Verdict};
use crate::report::frames::{SourceLines, call_site};
use crate::symbols::Symbolizer;
use rustc_hash::FxHashMap;

/// Leaks that are listed as one.
pub(super) struct Entry<'a> {
    /// The leaks, largest first. There is at least one.
    pub leaks: Vec<&'a Leak<'a>>,
    /// Number of bytes never freed.
    pub bytes: u64,
    /// Number of blocks never freed.
    pub blocks: u64,
    /// Number of stacks that allocated them.
    pub stacks: u64,
    /// Sum of the peaks of what was freed at exit; 0 for other leaks.
    pub grown: u64,
    /// The lines of the blamed function.
    pub lines: SourceLines,
}

/// The properties by which leaks of several processes are grouped.
#[derive(PartialEq, Eq, Hash)]
struct Key {
    program: String,
    function: Vec<String>,
    verdict: Verdict,
    released: bool,
}

impl<'a> Entry<'a> {
    fn of(leak: &'a Leak<'a>) -> Entry<'a> {
        let &Leak { bytes, blocks, grown, ref lines, .. } = leak;
        Entry { leaks: vec![leak], bytes, blocks, stacks: leak.stacks(), grown, lines: lines.clone() }
    }

    fn add(&mut self, leak: &'a Leak<'a>) {
        self.bytes = self.bytes.saturating_add(leak.bytes);
        self.grown = self.grown.saturating_add(leak.grown);
        (self.blocks, self.stacks) = (self.blocks + leak.blocks, self.stacks + leak.stacks());
        self.lines.merge(&leak.lines);
        self.leaks.push(leak);
    }

    /// Returns the leak that is shown for all: the largest.
    pub(super) fn largest(&self) -> &'a Leak<'a> {
        self.leaks[0]
    }

    /// Returns the verdict, which all leaks share.
    pub(super) fn verdict(&self) -> Verdict {
        self.largest().verdict
    }

    /// Returns whether the entry is listed only on demand: it is not a leak by its verdict, or it
    /// was freed at exit and is small. What nothing holds is a leak, whatever it did before.
    fn is_hidden(&self, is_harmless: bool) -> bool {
        let unheld = self.leaks.iter().map(|leak| leak.unheld_bytes()).fold(0, u64::saturating_add);
        let is_unheld = unheld >= FLOOR_BYTES || (unheld > 0 && unheld >= self.bytes / 2);
        !is_unheld && (is_harmless || (self.verdict() == Verdict::FreedAtExit && self.grown < FLOOR_BYTES))
    }
}

pub(super) struct Entries<'a> {
    /// The entries that are listed, worst first.
    pub listed: Vec<Entry<'a>>,
    /// Number of entries that are hidden.
    pub hidden: u64,
    /// Names of the verdicts of the hidden entries, worst first.
    pub hidden_names: Vec<&'static str>,
}

/// Returns the entries of a report with these totals.
pub(super) fn entries<'a>(totals: &[VerdictTotal<'a>], options: &Options, symbols: &mut Symbolizer) -> Entries<'a> {
    let mut found = Entries { listed: Vec::new(), hidden: 0, hidden_names: Vec::new() };
    for total in totals {
        let (mut own, mut known): (Vec<Entry>, FxHashMap<Key, usize>) = Default::default();
        for leak in &total.leaks {
            let next = own.len();
            let index = match options.by_function {
                false => next,
                true => {
                    let function = call_site(symbols, leak.process.stacks(), leak.site, 1).names;
                    let (program, released) = (leak.process.name(), leak.is_released_by_exec());
                    *known.entry(Key { program, function, verdict: leak.verdict, released }).or_insert(next)
                }
            };
            match own.get_mut(index) {
                Some(entry) => entry.add(leak),
                None => own.push(Entry::of(leak)),
            }
        }
        let before = found.hidden;
        for entry in own {
            if !options.all && entry.is_hidden(total.is_harmless) {
                found.hidden += 1;
            } else {
                found.listed.push(entry);
            }
        }
        if found.hidden > before {
            found.hidden_names.push(total.name);
        }
    }
    let weight = |entry: &Entry| entry.bytes.max(entry.grown).saturating_mul(entry.largest().weight());
    let lost = |entry: &Entry| entry.leaks.iter().map(|leak| leak.lost_in_core()).sum::<u64>();
    found
        .listed
        .sort_by_key(|entry| (std::cmp::Reverse(lost(entry)), std::cmp::Reverse(weight(entry)), entry.largest().site));
    found
}
