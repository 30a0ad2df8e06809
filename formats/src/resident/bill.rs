//! What resident memory is used for, and what it is computed from: live blocks and mappings.

use crate::tape::{Bill, Mapping};

/// A block that is live at the snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LiveBlock {
    /// Address of the first byte.
    pub address: u64,
    /// Requested size in bytes.
    pub size: u64,
    /// Tick of its allocation.
    pub tick: u64,
    /// Number of its call site.
    pub site: u32,
}

/// Names of the uses of resident memory in JSON and metrics, in the order of [`Bill::parts`].
pub const PART_NAMES: [&str; 11] = [
    "live",
    "slack",
    "held_free",
    "free_pages",
    "never_block",
    "undivided",
    "files",
    "shared",
    "stacks",
    "heaptape",
    "unlisted",
];

/// Returns a short name of a part for people.
pub fn short_name(part: &str) -> &str {
    match part {
        "held_free" => "free beside live blocks",
        "free_pages" => "free pages",
        "never_block" => "never a block",
        "undivided" => "not divided",
        other => other,
    }
}

impl Bill {
    /// Returns the bytes of each use. Their sum is the resident memory.
    pub const fn parts(&self) -> [u64; PART_NAMES.len()] {
        let Bill {
            live,
            slack,
            held,
            free_pages,
            never_block,
            undivided,
            files,
            shared,
            stacks,
            heaptape,
            unlisted,
            ..
        } = *self;
        [live, slack, held, free_pages, never_block, undivided, files, shared, stacks, heaptape, unlisted]
    }

    /// Returns the sum of all bytes.
    pub fn sum(&self) -> u64 {
        self.parts().iter().sum()
    }
}

/// A mapping with its addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct MappedRange {
    /// First address of the mapping.
    pub(super) start: u64,
    /// First address after it.
    pub(super) end: u64,
    /// One of the `MAPPING_` numbers.
    pub(super) kind: u8,
}

/// The mappings with their addresses.
#[derive(Debug, Default)]
pub struct Ranges(Vec<MappedRange>);

impl Ranges {
    /// Computes the addresses of mappings.
    pub fn of(mappings: &[Mapping]) -> Ranges {
        let mut at = 0_u64;
        let range = |mapping: &Mapping| {
            let start = at.saturating_add(mapping.gap);
            at = start.saturating_add(mapping.length);
            MappedRange { start, end: at, kind: mapping.kind }
        };
        Ranges(mappings.iter().map(range).collect())
    }

    /// Returns the mapping of an address; its kind is 0 if there is none.
    pub(super) fn at(&self, address: u64) -> MappedRange {
        let next = self.0.partition_point(|range| range.start <= address);
        let until = self.0.get(next).map_or(u64::MAX, |range| range.start);
        match next.checked_sub(1).and_then(|index| self.0.get(index)) {
            Some(range) if address < range.end => MappedRange { end: range.end.min(until), ..*range },
            _ => MappedRange { start: address, end: until, kind: 0 },
        }
    }
}
