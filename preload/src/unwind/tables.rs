//! Bounded reading of an object's unwind tables in memory: every read lies inside the object that
//! the loader named, in a page that can be read. An object has holes, and a program may hide parts
//! of it.

use super::objects::Object;
use crate::{sandbox, sys};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// Pages whose bits share a word of [`READABLE`].
const GROUP: u64 = 32;

/// Pages that could be read: a bit for each page of a group, and the number of the group above
/// them. Neighboring groups have neighboring words, so that the pages of one object, or of
/// libraries that were loaded together, do not take each other's place.
static READABLE: [AtomicU64; 512] = [const { AtomicU64::new(0) }; 512];

/// The word that a page belongs to, what the word holds when it is about the page's group alone,
/// and the page's bit.
const fn group_of(page: u64) -> (&'static AtomicU64, u64, u64) {
    let group = page / GROUP;
    (&READABLE[group as usize % READABLE.len()], group << GROUP, 1 << (page % GROUP))
}

/// Notes that a page can be read, or must be asked about again. Where two threads do so at once,
/// one of them may be in vain.
fn note(page: u64, is_readable: bool) {
    let (word, group, bit) = group_of(page);
    let old = word.load(Relaxed);
    let bits = if old >> GROUP == group >> GROUP { old } else { group };
    let new = if is_readable { bits | bit } else { bits & !bit };
    let _ = word.compare_exchange(old, new, Relaxed, Relaxed);
}

/// Whether a page of an object can be read. Where that may not be asked, the loader's word counts,
/// which mapped it.
fn can_be_read(page: u64) -> bool {
    let (word, group, bit) = group_of(page);
    let known = word.load(Relaxed);
    if (known >> GROUP == group >> GROUP && known & bit != 0) || !sandbox::allows(sandbox::PROBE) {
        return true;
    }
    // Tables take many pages: those behind this one are asked for at once.
    let count = sys::readable_pages((page * PAGE) as usize, usize::MAX) as u64;
    (page..page + count).for_each(|page| note(page, true));
    count != 0
}

/// After a library went: other memory may be there.
pub fn forget_pages() {
    READABLE.iter().for_each(|known| known.store(0, Relaxed));
}

/// A place in the tables.
#[derive(Clone, Copy, Debug)]
pub struct Tables {
    start: u64,
    end: u64,
    /// The next byte.
    pub at: u64,
    /// A page that can be read.
    page: u64,
}

impl Tables {
    /// Starts at `at`.
    pub const fn new(object: &Object, at: u64) -> Tables {
        Tables { start: object.start, end: object.end, at, page: 0 }
    }

    /// The same, asking anew whether the page at `at` can be read: a program may hide parts of an
    /// object at any time.
    pub fn anew(self) -> Tables {
        note(self.at / PAGE, false);
        self
    }

    /// The same bounds, ending at `end` when that is nearer.
    pub fn until(mut self, end: u64) -> Tables {
        self.end = self.end.min(end);
        self
    }

    /// Whether nothing is left.
    pub const fn is_done(&self) -> bool {
        self.at >= self.end
    }

    /// An unsigned number of `size` bytes.
    pub fn number(&mut self, size: u64) -> Option<u64> {
        let end = self.at.checked_add(size)?;
        if self.at < self.start || end > self.end {
            return None;
        }
        let (first, last) = (self.at / PAGE, (end - 1) / PAGE);
        if first != self.page || last != self.page {
            (can_be_read(first) && (first == last || can_be_read(last))).then_some(())?;
            self.page = last;
        }
        let mut value = 0;
        for place in (0..size).rev() {
            // SAFETY: inside the object between its first and last address, in a page that could be
            // read; the loader keeps it.
            let byte = unsafe { ((self.at + place) as *const u8).read() };
            value = value << 8 | u64::from(byte);
        }
        self.at = end;
        Some(value)
    }

    /// One byte.
    pub fn byte(&mut self) -> Option<u8> {
        self.number(1).map(|value| value as u8)
    }

    /// A signed number of `size` bytes.
    pub fn signed(&mut self, size: u64) -> Option<i64> {
        let shift = 64 - 8 * size as u32;
        self.number(size).map(|value| ((value << shift) as i64) >> shift)
    }

    /// Unsigned LEB128; bits beyond 64 are dropped.
    pub fn uleb(&mut self) -> Option<u64> {
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

    /// Signed LEB128.
    pub fn sleb(&mut self) -> Option<i64> {
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

    /// A pointer in one of the encodings of `.eh_frame` (`DW_EH_PE_…`); `data` is the base of
    /// data-relative ones.
    pub fn pointer(&mut self, encoding: u8, data: u64) -> Option<u64> {
        let place = self.at;
        if encoding == 0xff {
            return None;
        }
        let value = match encoding & 0x0f {
            0x00 | 0x04 | 0x0c => self.number(8)?,
            0x01 => self.uleb()?,
            0x02 => self.number(2)?,
            0x03 => self.number(4)?,
            0x09 => self.sleb()? as u64,
            0x0a => self.signed(2)? as u64,
            0x0b => self.signed(4)? as u64,
            _ => return None,
        };
        let base = match encoding & 0x70 {
            0x00 => 0,
            0x10 => place,
            0x30 => data,
            _ => return None,
        };
        let value = base.wrapping_add(value);
        if encoding & 0x80 == 0 {
            return Some(value);
        }
        Tables { at: value, ..*self }.number(8)
    }
}
