//! What the tape says of code that no file describes.

use super::Image;
use crate::code::{Named, name_vdso};
use crate::modules::is_virtual;
use formats::perf_map::Unnamed;
use formats::tape::{Code, Record as TapeRecord};

/// Ranges of a record: 4 MiB with the longest names.
const RANGES_A_RECORD: usize = 4096;
/// Ranges of an image; sites of more stay without names.
const MOST_RANGES: usize = 1 << 17;

impl Image {
    /// Names of the sites that no file names, as their process tells them now; strongest first.
    pub(super) fn named_code(&self) -> Vec<Named> {
        let (mut unnamed, mut named): (Unnamed, _) = (self.stacks.unplaced().iter().copied().collect(), Vec::new());
        let modules = self.stacks.announced().iter().filter_map(|(_, record)| match record {
            TapeRecord::Module(module) if is_virtual(module) => Some(module.bias),
            _ => None,
        });
        modules.for_each(|bias| name_vdso(bias, &mut unnamed, &mut named));
        self.session.code.name(&mut unnamed, &mut named);
        named.truncate(MOST_RANGES);
        named
    }

    /// The same for the tape, where later ranges hold.
    pub(super) fn code(&self) -> Vec<TapeRecord> {
        let ranges: Vec<_> = self.named_code().into_iter().rev().map(|(range, _)| range).collect();
        ranges.chunks(RANGES_A_RECORD).map(|ranges| TapeRecord::Code(Code { ranges: ranges.to_vec() })).collect()
    }
}
