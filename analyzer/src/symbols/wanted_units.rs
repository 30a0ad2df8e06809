//! The units of `.debug_info` in which given addresses are. libc has 2,000 units and a program calls
//! functions of twenty, but addr2line reads the abbreviations of all, which takes as long as all else
//! that the names of libc need.

use super::scopes::Slice;
use gimli::{DW_FORM_implicit_const, DW_FORM_indirect, DW_FORM_ref_addr, Dwarf, Reader, Section, UnitHeader};
use rustc_hash::FxHashMap;
use std::sync::Arc;

/// Returns the units that may contain the sorted addresses, or `None` if `.debug_aranges` does not
/// tell, or if a unit refers to others.
pub(super) fn of(dwarf: &Dwarf<Slice>, addresses: &[u64]) -> Option<Slice> {
    let listed = listed(dwarf, addresses).ok()?;
    let all = dwarf.debug_info.reader();
    let mut wanted = Vec::new();
    let mut units = dwarf.units();
    while let Some(unit) = units.next().ok()? {
        let start = unit.debug_info_offset()?.0;
        // A unit that is not listed may have any address.
        if listed.get(&start) == Some(&false) {
            continue;
        }
        if refers_to_others(dwarf, &unit).ok()? {
            return None;
        }
        wanted.extend_from_slice(all.get(start..start.checked_add(unit.length_including_self())?)?);
    }
    // One that lists most units saves nothing.
    (wanted.len() < all.len() / 2).then(|| Slice::new(Arc::from(wanted), all.endian()))
}

/// Returns the offsets of the units that `.debug_aranges` lists, each with whether one of the
/// addresses is in it.
fn listed(dwarf: &Dwarf<Slice>, addresses: &[u64]) -> gimli::Result<FxHashMap<usize, bool>> {
    let mut listed: FxHashMap<usize, bool> = FxHashMap::default();
    let mut headers = dwarf.debug_aranges.headers();
    while let Some(header) = headers.next()? {
        let is_wanted = listed.entry(header.debug_info_offset().0).or_default();
        let mut ranges = header.entries();
        while let Some(entry) = ranges.next()? {
            let range = entry.range();
            let first = addresses.partition_point(|address| *address < range.begin);
            *is_wanted |= addresses.get(first).is_some_and(|address| *address < range.end);
        }
    }
    Ok(listed)
}

/// Returns whether an entry of a unit may refer to another unit, as those of the link-time optimizer
/// and of dwz do.
fn refers_to_others(dwarf: &Dwarf<Slice>, unit: &UnitHeader<Slice>) -> gimli::Result<bool> {
    let mut bytes = dwarf.debug_abbrev.reader().clone();
    bytes.skip(unit.debug_abbrev_offset().0)?;
    while bytes.read_uleb128()? != 0 {
        let _tag = bytes.read_uleb128()?;
        let _has_children = bytes.read_u8()?;
        loop {
            let (name, form) = (bytes.read_uleb128()?, bytes.read_uleb128()?);
            if (name, form) == (0, 0) {
                break;
            }
            if form == u64::from(DW_FORM_implicit_const.0) {
                bytes.read_sleb128()?;
            }
            if [DW_FORM_ref_addr, DW_FORM_indirect].iter().any(|other| u64::from(other.0) == form) {
                return Ok(true);
            }
        }
    }
    Ok(false)
}
