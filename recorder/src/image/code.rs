//! What is known of code that no file describes: what the tape says of it, and live views.

use super::Image;
use crate::code::{Named, Stamp};
use crate::vdso;
use formats::perf_map::UnnamedAddresses;
use formats::tape::{Code, Record as TapeRecord, is_virtual};

/// Ranges of a record: 4 MiB with the longest names.
const RANGES_A_RECORD: usize = 4096;
/// Ranges of an image; sites of more stay without names.
const MOST_RANGES: usize = 1 << 17;

/// The names at the last look; strongest first.
#[derive(Debug, Default)]
pub(super) struct Names {
    named: Vec<Named>,
    /// How the maps stood then.
    stamp: Stamp,
    /// How many sites had no file then, and when the tape was last told.
    unplaced: usize,
    told: usize,
}

impl Names {
    /// What was found at the last look.
    pub(super) fn named(&self) -> &[Named] {
        &self.named
    }
}

impl Image {
    /// Names of the sites that no file names, as their process tells them now.
    pub(super) fn named_code(&mut self) -> &[Named] {
        let unplaced = self.stacks.unplaced();
        let stamp = if unplaced.is_empty() { Stamp::new() } else { self.session.code.stamp() };
        if self.names.unplaced == unplaced.len() && self.names.stamp == stamp {
            return &self.names.named;
        }
        let (mut unnamed, mut named): (UnnamedAddresses, _) = (unplaced.iter().copied().collect(), Vec::new());
        let modules = self.stacks.announced().iter().filter_map(|(_, record)| match record {
            TapeRecord::Module(module) if is_virtual(&module.path.0) => Some(module.bias),
            _ => None,
        });
        modules.for_each(|bias| vdso::name(bias, &mut unnamed, &mut named));
        self.session.code.name(&mut unnamed, &mut named);
        named.truncate(MOST_RANGES);
        let (unplaced, told) = (unplaced.len(), self.names.told);
        self.names = Names { named, stamp, unplaced, told };
        &self.names.named
    }

    /// The same for the tape, where later ranges hold.
    pub(super) fn code(&mut self) -> Vec<TapeRecord> {
        let ranges: Vec<_> = self.named_code().iter().rev().map(|(range, _)| range.clone()).collect();
        self.names.told = self.names.unplaced;
        ranges.chunks(RANGES_A_RECORD).map(|ranges| TapeRecord::Code(Code { ranges: ranges.to_vec() })).collect()
    }

    /// What is worth telling before the end, should that never come: each time that such sites are
    /// an eighth more.
    pub(super) fn code_so_far(&mut self) -> Vec<TapeRecord> {
        let is_due = self.stacks.unplaced().len() > self.names.told + self.names.told / 8;
        if is_due { self.code() } else { Vec::new() }
    }
}
