//! Makes the search tables ([`wire::search_tables`]) for the objects of a process whose linker made
//! none. Without one the library finds no frame description, and stacks end in such an object.
//!
//! Only the objects that are mapped when the process attaches get one. What is opened later does
//! not: stacks that end there are counted.

use super::frames::{self, Description, read_array};
use super::maps::CodeMapping;
use crate::os::processor::page_bytes;
use nix::sys::stat::fstat;
use object::elf::{self, FileHeader64, ProgramHeader64};
use object::endian::LittleEndian;
use std::collections::VecDeque;
use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};
use wire::search_tables::{ENTRY_BYTES, MAX_BYTES, ROW_BYTES};

const ORDER: LittleEndian = LittleEndian;
/// Maximum number of files whose descriptions are remembered.
const MAX_KNOWN: usize = 64;

/// The rows of an object's table.
type Rows = Vec<[u32; 2]>;
/// The identity of a file: device, inode, size, and time of the last change.
type Key = (u64, u64, i64, i64, i64);

/// The rows of files, the file that was read last first.
type KnownFiles = VecDeque<(Key, Arc<Rows>)>;

/// The files without a table, and their rows.
#[derive(Clone, Debug, Default)]
pub(super) struct Known(Arc<Mutex<KnownFiles>>);

#[derive(Clone, Debug)]
pub(crate) struct ObjectTable {
    /// The lowest address of the object.
    start: u64,
    rows: Arc<Rows>,
}

impl Known {
    /// Returns the table of the object that a file is mapped as, if its linker made none.
    pub(super) fn of(&self, file: &File, mapping: &CodeMapping) -> Option<ObjectTable> {
        let head = read_array::<FileHeader64<LittleEndian>>(file, 0, 1)?;
        let head = head.first().filter(|head| head.e_ident.magic == elf::ELFMAG)?;
        let segments: Vec<ProgramHeader64<LittleEndian>> =
            read_array(file, head.e_phoff.get(ORDER), usize::from(head.e_phnum.get(ORDER)))?;
        if segments.iter().any(|segment| segment.p_type.get(ORDER) == elf::PT_GNU_EH_FRAME) {
            return None;
        }
        let loads = || segments.iter().filter(|segment| segment.p_type.get(ORDER) == elf::PT_LOAD);
        let bytes = page_bytes();
        let page = |number: u64| number / bytes * bytes;
        let lowest = loads().map(|segment| page(segment.p_vaddr.get(ORDER))).min()?;
        let is_mapped = |segment: &&ProgramHeader64<LittleEndian>| {
            segment.p_flags.get(ORDER).0 & elf::PF_X.0 != 0 && page(segment.p_offset.get(ORDER)) == mapping.offset
        };
        let code = page(loads().find(is_mapped)?.p_vaddr.get(ORDER));
        let start = mapping.start.checked_sub(code.checked_sub(lowest)?)?;
        let status = fstat(file).ok()?;
        let key = (status.st_dev, status.st_ino, status.st_size, status.st_ctime, status.st_ctime_nsec);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.iter().find(|(other, _)| *other == key).map(|(_, rows)| Arc::clone(rows));
        let rows = found.unwrap_or_else(|| {
            let rows = Arc::new(rows(&frames::of_file(file, head).unwrap_or_default(), lowest));
            known.truncate(MAX_KNOWN - 1);
            known.push_front((key, Arc::clone(&rows)));
            rows
        });
        (!rows.is_empty()).then_some(ObjectTable { start, rows })
    }
}

/// Returns the rows of an object with this lowest address, before relocation. Descriptions that are
/// too far away are left out.
fn rows(descriptions: &[Description], lowest: u64) -> Rows {
    let distance = |address: u64| u32::try_from(address.checked_sub(lowest)?).ok();
    descriptions.iter().filter_map(|one| Some([distance(one.first)?, distance(one.address)?])).collect()
}

/// Returns the tables as they are in the file of the area; empty if there are none.
pub(super) fn encode(tables: &[ObjectTable]) -> Vec<u8> {
    let (mut directory, mut rows) = (Vec::new(), Vec::new());
    let first = (tables.len() + 1) * ENTRY_BYTES;
    for ObjectTable { start, rows: of_object } in tables {
        let offset = first + rows.len();
        if offset + of_object.len() * ROW_BYTES > MAX_BYTES {
            continue;
        }
        directory.extend(start.to_le_bytes());
        directory.extend((offset as u32).to_le_bytes());
        directory.extend((of_object.len() as u32).to_le_bytes());
        of_object.iter().flatten().for_each(|number| rows.extend(number.to_le_bytes()));
    }
    if directory.is_empty() {
        return directory;
    }
    directory.resize(first, 0);
    directory.extend(rows);
    directory
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_relative_to_their_objects() {
        let descriptions = [
            Description { first: 0x40_1000, address: 0x40_5000 },
            Description { first: 0x40_1010, address: 0x40_5020 },
            Description { first: 1 << 40, address: 0x40_5040 },
            Description { first: 0x10, address: 0x40_5060 },
        ];
        let rows = Arc::new(rows(&descriptions, 0x40_0000));
        assert_eq!(*rows, [[0x1000, 0x5000], [0x1010, 0x5020]], "what is too far away, or below, is left out");
        let table = |start: u64| ObjectTable { start, rows: Arc::clone(&rows) };
        let bytes = encode(&[table(0x40_0000), table(7 << 40)]);
        let number =
            |at: usize, size: usize| bytes[at..at + size].iter().rev().fold(0, |all, byte| all << 8 | u64::from(*byte));
        assert_eq!((number(0, 8), number(8, 4), number(12, 4)), (0x40_0000, 48, 2));
        assert_eq!((number(16, 8), number(24, 4), number(28, 4)), (7 << 40, 64, 2));
        assert_eq!((number(32, 8), number(48, 4), number(52, 4), bytes.len()), (0, 0x1000, 0x5000, 80));
        assert!(encode(&[]).is_empty());
    }
}
