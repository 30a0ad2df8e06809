//! A hash of the first bytes of an object, by which objects without build-id are distinguished.

use super::header;
use super::object::Object;
use super::tables::{PAGE, Tables};

/// Returns the hash that `formats::tape::head` computes from the object's file; 0 if it cannot be
/// read, or if the object does not start with its headers.
pub(crate) fn head(object: &Object) -> u32 {
    find_head(object).unwrap_or(0)
}

fn find_head(object: &Object) -> Option<u32> {
    let number = |offset: u64, size: u64| Tables::new(object, object.start.wrapping_add(offset)).number(size);
    let table = header::table(&number)?;
    let headers = table.offset.checked_add(table.size.checked_mul(table.count)?).filter(|end| *end <= PAGE)?;
    let first = header::segments_in(table, number).find(|segment| segment.kind == libc::PT_LOAD)?;
    // Code may have been patched, and data written, since the file was mapped.
    let is_as_in_file = !first.is_code && !first.is_writable;
    let end = if is_as_in_file { first.file_bytes.min(PAGE) } else { headers };
    let mut bytes = Tables::new(object, object.start);
    let mut hash = (first.offset == 0).then_some(0xcbf2_9ce4_8422_2325_u64)?;
    for _ in 0..end / 8 {
        hash = (hash ^ bytes.number(8)?).wrapping_mul(0x0100_0000_01b3);
    }
    Some((hash ^ hash >> 32) as u32)
}
