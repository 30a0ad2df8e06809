//! The file by which the next daemon knows what the program has mapped. It is beside the one with
//! the live blocks, since earlier versions know only that. While no daemon runs, calls are not
//! recorded: what the kernel does not list any more is dropped.

use super::ProcessRecording;
use crate::os::replace_file::{Durability, replace_file};
use crate::target::maps::{self, NamedRange, named_ranges};
use formats::tape::codec::checksum;
use formats::tape::{MAPPING_EVENT_MAP, MAPPING_FLAG_CARRIED, MAPPING_FLAG_INHERITED, MappingEvent};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// The first bytes of the file. Eight bytes follow, the mark of the live blocks that the daemon
/// wrote at the same time, and then the ranges.
const MAGIC: &[u8; 8] = b"HTMAPS1\0";
/// Length of a range in bytes: start, end, tick of the call, node, flags.
const RANGE: usize = 32;
/// Maximum number of ranges in the file.
const MAX_RANGES: usize = 1 << 16;

/// Returns the path of the file, by that of the live blocks.
pub fn path_of(live_blocks: &Path) -> PathBuf {
    live_blocks.with_extension("mapped")
}

/// Returns a mark of live blocks, so that ranges of an earlier daemon are not mistaken for those of
/// the last one.
fn mark_of(blocks: &[u8]) -> u64 {
    let last = &blocks[blocks.len().saturating_sub(1 << 16)..];
    (blocks.len() as u64) << 32 | u64::from(checksum(last))
}

/// A range with the name of its file.
type Named = (MappingEvent, String);

/// Returns the ranges of the file that the kernel still lists, with the node of each as its site.
fn parse(bytes: &[u8], blocks: &[u8], maps: &str) -> Option<Vec<Named>> {
    let (mark, ranges) = bytes.strip_prefix(MAGIC)?.split_first_chunk::<8>()?;
    if u64::from_le_bytes(*mark) != mark_of(blocks) || !ranges.len().is_multiple_of(RANGE) {
        return None;
    }
    let known = named_ranges(maps);
    let mut found = Vec::new();
    for range in ranges.chunks_exact(RANGE).take(MAX_RANGES) {
        let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| range[at + byte]));
        let (start, end, tick, rest) = (number(0), number(8), number(16), number(24));
        let (site, flags) = (rest as u32, (rest >> 32) as u32 | MAPPING_FLAG_CARRIED);
        let first = known.partition_point(|range| range.end <= start);
        for NamedRange { start: from, end: to, name } in known[first..].iter().take_while(|range| range.start < end) {
            let (address, end) = (start.max(*from), end.min(*to));
            let size = end.saturating_sub(address);
            let event =
                MappingEvent { tick, kind: MAPPING_EVENT_MAP, address, size, site, flags, ..Default::default() };
            found.push((event, (*name).to_owned()));
        }
    }
    Some(found)
}

impl ProcessRecording {
    /// Writes what the program has mapped for the next daemon.
    pub(super) fn hand_over_mappings(&self, live_blocks: &Path, blocks: &[u8], nodes: &HashMap<u32, u32>) {
        let path = path_of(live_blocks);
        let mut bytes = [*MAGIC, mark_of(blocks).to_le_bytes()].concat();
        for range in self.mappings.ranges().iter().take(MAX_RANGES) {
            let node = nodes.get(&range.by.site).copied().unwrap_or(0);
            for number in [range.start, range.end, range.by.tick, u64::from(node) | u64::from(range.by.flags) << 32] {
                bytes.extend(number.to_le_bytes());
            }
        }
        if let Err(error) = replace_file(&path, &bytes, None, Durability::BeforeRename) {
            tracing::warn!("{}: the next daemon will not know what is mapped: {error}", path.display());
        }
    }

    /// Starts with what the program had mapped under the last daemon. Returns whether that is
    /// known: a daemon of an earlier version did not write it.
    pub(super) fn resume_mappings(&mut self, live_blocks: &Path, blocks: &[u8]) -> bool {
        let path = path_of(live_blocks);
        let read = std::fs::read(&path);
        let _ = std::fs::remove_file(&path);
        let maps = maps::read_aside(self.session.owner());
        let Some(known) = read.ok().and_then(|bytes| parse(&bytes, blocks, &String::from_utf8_lossy(&maps))) else {
            return false;
        };
        for (event, name) in known {
            // What came from the parent has no call site.
            let has_site = event.flags & MAPPING_FLAG_INHERITED == 0;
            let site = if has_site { self.stacks.site(event.site, self.output.records()) } else { 0 };
            self.mappings.carry(MappingEvent { site, ..event }, &name);
        }
        self.push_mappings();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_are_not_mapped_any_more_are_dropped() {
        let mut bytes = [*MAGIC, mark_of(b"blocks").to_le_bytes()].concat();
        for number in [0x2000u64, 0x8000, 77, 5 | 3 << 32, 0x20000, 0x21000, 78, 6 | 3 << 32] {
            bytes.extend(number.to_le_bytes());
        }
        let maps = "\
1000-3000 rw-p 00000000 00:00 0 
5000-6000 r--p 00000000 fe:00 18504                      /a file
7000-9000 rw-p 00000000 00:00 0 
";
        let found = parse(&bytes, b"blocks", maps).expect("the format");
        let rows: Vec<_> = found.iter().map(|(event, name)| (event.address, event.size, &**name)).collect();
        assert_eq!(rows, [(0x2000, 0x1000, ""), (0x5000, 0x1000, "/a file"), (0x7000, 0x1000, "")]);
        let (first, _) = &found[0];
        assert_eq!((first.tick, first.site, first.flags), (77, 5, 3 | MAPPING_FLAG_CARRIED));
        assert_eq!(parse(&bytes[..bytes.len() - 1], b"blocks", maps), None, "a file that is truncated");
        assert_eq!(parse(&bytes, b"others", maps), None, "those of an earlier daemon");
        assert_eq!(parse(b"HTLIVE2\0", b"blocks", maps), None);
    }
}
