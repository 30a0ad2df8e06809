//! The build-id of an object.

use super::object::Object;
use super::tables::{PAGE, Tables};
use super::{header, program_headers};

/// A build-id and its length in bytes.
pub(crate) type BuildId = ([u8; heaptape_wire::modules::MAX_BUILD_ID], usize);

/// Returns the build-id of an object, which is found through its program headers. The length is 0
/// if there is none, or if the headers cannot be read: a program may hide them.
pub(crate) fn build_id(object: &Object, bias: u64) -> BuildId {
    find_build_id(object, bias).unwrap_or_default()
}

fn find_build_id(object: &Object, bias: u64) -> Option<BuildId> {
    if object.is_program {
        return among(program_headers::segments(), program_headers::address(), object, bias);
    }
    // The program may have hidden the headers since they were read last.
    let _ = Tables::new(object, object.start).recheck();
    let number = |offset: u64, size: u64| Tables::new(object, object.start.wrapping_add(offset)).number(size);
    among(header::segments(number), object.start, object, bias)
}

/// Finds the build-id among the segments that the headers at an address describe.
fn among(segments: impl Iterator<Item = header::Segment>, headers: u64, object: &Object, bias: u64) -> Option<BuildId> {
    const NT_GNU_BUILD_ID: u64 = 3;
    const GNU: u64 = u32::from_le_bytes(*b"GNU\0") as u64;
    for segment in segments.filter(|segment| segment.kind == libc::PT_NOTE) {
        let first = bias.wrapping_add(segment.address);
        let mut note = Tables::new(object, first).until(first.saturating_add(segment.file_bytes));
        // The note is nearly always in the page of the headers.
        if first / PAGE != headers / PAGE {
            note = note.recheck();
        }
        while let (Some(name), Some(length), Some(kind)) = (note.number(4), note.number(4), note.number(4)) {
            let text = note.at.saturating_add(name.next_multiple_of(4));
            if kind == NT_GNU_BUILD_ID && name == 4 && note.number(4)? == GNU {
                let (mut id, _) = BuildId::default();
                let length = (length as usize).min(id.len());
                for byte in &mut id[..length] {
                    *byte = note.byte()?;
                }
                return Some((id, length));
            }
            note.at = text.saturating_add(length.next_multiple_of(4));
        }
    }
    None
}
