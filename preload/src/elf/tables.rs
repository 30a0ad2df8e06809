//! Bounded reading of an object's unwind tables in memory. Every read is inside the object that the
//! loader named, in a page that can be read. An object has holes, and a program may hide parts of
//! it.

use super::object::Object;
use crate::probe;
use crate::sys::Need;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Size of a page in bytes.
pub(crate) const PAGE: u64 = 4096;

// Encodings of pointers in `.eh_frame` (Linux Standard Base, section 10.5.1): the format in the low
// four bits, the base in the next three.
const DW_EH_PE_ABSPTR: u8 = 0x00;
const DW_EH_PE_ULEB128: u8 = 0x01;
const DW_EH_PE_UDATA2: u8 = 0x02;
const DW_EH_PE_UDATA4: u8 = 0x03;
const DW_EH_PE_UDATA8: u8 = 0x04;
const DW_EH_PE_SLEB128: u8 = 0x09;
const DW_EH_PE_SDATA2: u8 = 0x0a;
const DW_EH_PE_SDATA4: u8 = 0x0b;
const DW_EH_PE_SDATA8: u8 = 0x0c;
const DW_EH_PE_PCREL: u8 = 0x10;
const DW_EH_PE_DATAREL: u8 = 0x30;
const DW_EH_PE_INDIRECT: u8 = 0x80;
const DW_EH_PE_OMIT: u8 = 0xff;
/// The encoding of the sorted table in `.eh_frame_hdr` that every linker writes: four bytes,
/// signed, relative to the header.
pub(crate) const DW_EH_PE_TABLE: u8 = DW_EH_PE_DATAREL | DW_EH_PE_SDATA4;
/// The bits of an encoding without the indirection.
pub(crate) const DW_EH_PE_DIRECT: u8 = !DW_EH_PE_INDIRECT;
/// The bits of an encoding for the format.
pub(crate) const DW_EH_PE_FORMAT: u8 = 0x0f;
/// The bits of an encoding for the base.
const DW_EH_PE_BASE: u8 = 0x70;

/// Number of pages whose bits share a word of [`READABLE`].
const GROUP: u64 = 32;

/// Pages that could be read. Each word has a bit for each page of a group, and the number of the
/// group above the bits. Neighboring groups have neighboring words, so that the pages of one
/// object of up to 512 MiB, or of libraries that were loaded together, do not displace each other.
static READABLE: [AtomicU64; 4096] = [const { AtomicU64::new(0) }; 4096];

/// Returns the word of a page's group, the value of that word without any bits, and the page's bit.
const fn group_of(page: u64) -> (&'static AtomicU64, u64, u64) {
    let group = page / GROUP;
    (&READABLE[group as usize % READABLE.len()], group << GROUP, 1 << (page % GROUP))
}

/// A page that can be read.
fn note(page: u64, is_readable: bool) {
    let (word, group, bit) = group_of(page);
    let old = word.load(Relaxed);
    let bits = if old >> GROUP == group >> GROUP { old } else { group };
    let new = if is_readable { bits | bit } else { bits & !bit };
    let _ = word.compare_exchange(old, new, Relaxed, Relaxed);
}

/// Returns whether a page of an object can be read. If the system call for that is not allowed, or
/// the program has not begun, the page counts as readable, since the loader mapped the object.
#[inline(never)]
fn is_readable(page: u64) -> bool {
    let (word, group, bit) = group_of(page);
    let known = word.load(Relaxed);
    if (known >> GROUP == group >> GROUP && known & bit != 0) || !Need::PROBE.and(Need::LATER).is_allowed() {
        return true;
    }
    // Tables span many pages, so those after this one are checked at once.
    let count = probe::readable_pages((page * PAGE) as usize, usize::MAX) as u64;
    (page..page + count).for_each(|page| note(page, true));
    count != 0
}

/// Forgets all pages after a library was unmapped, since other memory may be there.
pub(crate) fn forget_pages() {
    READABLE.iter().filter(|known| known.load(Relaxed) != 0).for_each(|known| known.store(0, Relaxed));
}

/// A position in the tables, with the bounds of the object.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tables {
    start: u64,
    end: u64,
    /// The address of the next byte.
    pub at: u64,
    /// A page that can be read.
    page: u64,
}

impl Tables {
    /// Returns a reader that starts at the address `at`.
    pub(crate) fn new(object: &Object, at: u64) -> Tables {
        let (start, end) = object.bounds();
        Tables::between(start, end, at)
    }

    /// Returns a reader of the bytes from `start` to `end` that starts at the address `at`.
    pub(crate) const fn between(start: u64, end: u64, at: u64) -> Tables {
        Tables { start, end, at, page: 0 }
    }

    /// Returns a reader of the object's `.eh_frame_hdr` that starts at the address `at`.
    #[cfg(not(feature = "standalone"))]
    pub(crate) fn of_header(object: &Object, at: u64) -> Tables {
        Tables::new(object, at)
    }

    /// Returns a reader of the object's `.eh_frame_hdr` that starts at the address `at`. If the
    /// linker made none, the recorder has put one elsewhere.
    #[cfg(feature = "standalone")]
    pub(crate) fn of_header(object: &Object, at: u64) -> Tables {
        let program = super::program::loaded();
        if object.is_program && program.start != 0 {
            return Tables::between(program.unwind_header, program.unwind_header_end, at);
        }
        Tables::new(object, at)
    }

    /// Returns the same reader, after forgetting whether the page at `at` can be read. A program
    /// may hide parts of an object at any time.
    pub(crate) fn recheck(self) -> Tables {
        note(self.at / PAGE, false);
        self
    }

    /// Returns the same reader, ending at `end` if that is nearer.
    pub(crate) fn until(mut self, end: u64) -> Tables {
        self.end = self.end.min(end);
        self
    }

    /// Returns whether the reader is at its end.
    pub(crate) const fn is_done(&self) -> bool {
        self.at >= self.end
    }

    /// Reads an unsigned little-endian number of `size` bytes. It is not inlined, since it is in
    /// each of 60 places.
    #[inline(never)]
    pub(crate) fn number(&mut self, size: u64) -> Option<u64> {
        let end = self.at.checked_add(size)?;
        if self.at < self.start || end > self.end {
            return None;
        }
        let (first, last) = (self.at / PAGE, (end - 1) / PAGE);
        if first != self.page || last != self.page {
            (is_readable(first) && (first == last || is_readable(last))).then_some(())?;
            self.page = last;
        }
        let mut value = 0;
        for index in (0..size).rev() {
            // SAFETY: inside the object between its first and last address, in a page that could be
            // read; the loader keeps it.
            let byte = unsafe { ((self.at + index) as *const u8).read() };
            value = value << 8 | u64::from(byte);
        }
        self.at = end;
        Some(value)
    }

    /// Reads the next byte.
    pub(crate) fn byte(&mut self) -> Option<u8> {
        self.number(1).map(|value| value as u8)
    }

    /// Reads a signed little-endian number of `size` bytes.
    pub(crate) fn signed(&mut self, size: u64) -> Option<i64> {
        let shift = 64 - 8 * size as u32;
        self.number(size).map(|value| ((value << shift) as i64) >> shift)
    }

    /// Reads an unsigned number in LEB128. It is not inlined, since that takes 150 bytes in each of
    /// 27 functions.
    #[inline(never)]
    pub(crate) fn uleb(&mut self) -> Option<u64> {
        let (mut value, mut shift) = (0u64, 0u32);
        loop {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            shift += 7;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
    }

    /// Reads a signed number in LEB128.
    pub(crate) fn sleb(&mut self) -> Option<i64> {
        let (mut value, mut shift) = (0i64, 0u32);
        loop {
            let byte = self.byte()?;
            value |= i64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
            shift += 7;
            if byte & 0x80 == 0 {
                if shift < 64 && byte & 0x40 != 0 {
                    value |= -1 << shift;
                }
                return Some(value);
            }
        }
    }

    /// Reads a pointer in one of the encodings of `.eh_frame` (`DW_EH_PE_…`). `data` is the base of
    /// data-relative ones.
    pub(crate) fn pointer(&mut self, encoding: u8, data: u64) -> Option<u64> {
        let start = self.at;
        if encoding == DW_EH_PE_OMIT {
            return None;
        }
        let value = match encoding & DW_EH_PE_FORMAT {
            DW_EH_PE_ABSPTR | DW_EH_PE_UDATA8 | DW_EH_PE_SDATA8 => self.number(8)?,
            DW_EH_PE_ULEB128 => self.uleb()?,
            DW_EH_PE_UDATA2 => self.number(2)?,
            DW_EH_PE_UDATA4 => self.number(4)?,
            DW_EH_PE_SLEB128 => self.sleb()? as u64,
            DW_EH_PE_SDATA2 => self.signed(2)? as u64,
            DW_EH_PE_SDATA4 => self.signed(4)? as u64,
            _ => return None,
        };
        let base = match encoding & DW_EH_PE_BASE {
            DW_EH_PE_ABSPTR => 0,
            DW_EH_PE_PCREL => start,
            DW_EH_PE_DATAREL => data,
            _ => return None,
        };
        let value = base.wrapping_add(value);
        if encoding & DW_EH_PE_INDIRECT == 0 {
            return Some(value);
        }
        Tables { at: value, ..*self }.number(8)
    }
}
