//! The code of an object.

use super::object::{Object, bias_and_name};
use super::tables::Tables;
use super::{header, program};

/// Returns whether an address is in code of the object that holds it. What hides its headers counts
/// as code.
///
/// # Safety
/// The object must be mapped and its `link_map` be the loader's.
pub(crate) unsafe fn is_code(object: &Object, address: u64) -> bool {
    if object.is_program {
        return program::is_code(address);
    }
    // SAFETY: as the caller ensures.
    let (bias, _) = unsafe { bias_and_name(object) };
    let number = |offset: u64, size: u64| Tables::new(object, object.start.wrapping_add(offset)).number(size);
    let mut has_any = false;
    for segment in header::segments(number).filter(|segment| segment.kind == libc::PT_LOAD) {
        has_any = true;
        if address.wrapping_sub(bias.wrapping_add(segment.address)) < segment.memory_bytes {
            return segment.is_code;
        }
    }
    !has_any
}

/// Copies the bytes of an object before an address, as many as there are. Returns false if they
/// cannot be read.
pub(crate) fn bytes_before(object: &Object, address: u64, out: &mut [u8]) -> bool {
    let mut tables = Tables::new(object, address.saturating_sub(out.len() as u64));
    out.iter_mut().all(|byte| tables.byte().map(|found| *byte = found).is_some())
}
