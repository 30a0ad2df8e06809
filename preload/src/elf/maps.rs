//! The objects of a process from `/proc/self/maps`, for libcs without `_dl_find_object`. The file
//! is read with direct system calls when an unknown address comes up, without a lock. An object is
//! the run of mappings of one file around the address. Its program headers, in its first page,
//! describe the unwind tables.

use super::header;
use super::object::Object;
use super::tables::Tables;
use crate::sys;

/// Returns the object of an address. The function is not inlined, because its buffer must not take
/// space on small stacks where it is not needed.
#[cold]
#[inline(never)]
pub(crate) fn find(address: usize) -> Option<Object> {
    let descriptor = sys::open(c"/proc/self/maps")?;
    let found = scan(address as u64, &mut |bytes| sys::read(descriptor, bytes));
    sys::close(descriptor);
    let (start, end) = found?;
    let object =
        Object { start, end, is_program: false, link_map: core::ptr::null_mut(), bias: start, unwind_header: 0 };
    let (bias, unwind_header) = bias_and_unwind_header(&object);
    Some(Object { bias: bias.unwrap_or(start), unwind_header: unwind_header.unwrap_or(0), ..object })
}

/// A line of the map.
struct Mapping {
    start: u64,
    end: u64,
    /// Whether its memory can be executed.
    is_code: bool,
    inode: u64,
}

/// Visits the ranges of memory that can be executed, with `text` as the space for reading.
#[cold]
#[inline(never)]
pub(crate) fn code(text: &mut [u8; TEXT], visit: &mut dyn FnMut(u64, u64)) {
    let Some(descriptor) = sys::open(c"/proc/self/maps") else { return };
    each(text, &mut |bytes| sys::read(descriptor, bytes), &mut |mapping| {
        if mapping.is_code {
            visit(mapping.start, mapping.end);
        }
        true
    });
    sys::close(descriptor);
}

/// Bytes of the map that are read at once.
pub(crate) const TEXT: usize = 1024;

/// Passes the mappings to `visit` until that returns false.
fn each(text: &mut [u8; TEXT], read: &mut dyn FnMut(&mut [u8]) -> usize, visit: &mut dyn FnMut(Mapping) -> bool) {
    let mut length = 0;
    loop {
        let line_end = text[..length].iter().position(|byte| *byte == b'\n');
        let Some(line_end) = line_end else {
            if length == text.len() {
                length = 0; // a line longer than any path we need: its tail is no mapping
            }
            let more = read(&mut text[length..]);
            if more == 0 {
                return;
            }
            length += more;
            continue;
        };
        if parse(&text[..line_end]).is_some_and(|mapping| !visit(mapping)) {
            return;
        }
        text.copy_within(line_end + 1..length, 0);
        length -= line_end + 1;
    }
}

/// Returns the first address of the run of mappings of one file that holds `address`, and the first
/// address after it.
fn scan(address: u64, read: &mut dyn FnMut(&mut [u8]) -> usize) -> Option<(u64, u64)> {
    // The run so far: start, end and inode.
    let mut run: Option<(u64, u64, u64)> = None;
    let mut found = None;
    each(&mut [0; TEXT], read, &mut |Mapping { start, end, inode, .. }| {
        match run {
            Some((first, last, of)) if of == inode && inode != 0 && start - last < 1 << 30 => {
                run = Some((first, end, of))
            }
            Some((first, last, _)) if (first..last).contains(&address) => found = Some((first, last)),
            _ => run = Some((start, end, inode)),
        }
        found.is_none() && (start <= address || run.is_some_and(|(first, ..)| first <= address))
    });
    found
}

/// Parses `start-end rights offset device inode path`.
fn parse(line: &[u8]) -> Option<Mapping> {
    let number = |text: &[u8], base: u64| {
        text.iter().try_fold(0u64, |value, byte| {
            let digit = char::from(*byte).to_digit(base as u32)?;
            value.checked_mul(base)?.checked_add(u64::from(digit))
        })
    };
    let mut fields = line.split(|byte| *byte == b' ').filter(|field| !field.is_empty());
    let mut range = fields.next()?.splitn(2, |byte| *byte == b'-');
    let (start, end) = (number(range.next()?, 16)?, number(range.next()?, 16)?);
    let is_code = fields.next()?.get(2) == Some(&b'x');
    let inode = number(fields.nth(2)?, 10)?;
    Some(Mapping { start, end, is_code, inode })
}

/// Returns the load bias of an object whose ELF header is mapped at its start, and the address of
/// its `.eh_frame_hdr`.
fn bias_and_unwind_header(object: &Object) -> (Option<u64>, Option<u64>) {
    let number = |offset: u64, size: u64| Tables::new(object, object.start.wrapping_add(offset)).number(size);
    let mut bias = None;
    for segment in header::segments(number) {
        if segment.kind == libc::PT_LOAD && bias.is_none() {
            bias = Some(object.start.wrapping_sub(segment.address.wrapping_sub(segment.offset)));
        }
        if segment.kind == libc::PT_GNU_EH_FRAME {
            return (bias, bias.map(|bias: u64| bias.wrapping_add(segment.address)));
        }
    }
    (bias, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_one_file() {
        let maps = b"1000-2000 r--p 00000000 fe:00 7 /a\n2000-3000 r-xp 00001000 fe:00 7 /a\n\
            3000-4000 rw-p 00000000 00:00 0 \n5000-6000 r-xp 00000000 fe:00 8 /b\n";
        let look = |address| {
            let mut left = &maps[..];
            scan(address, &mut |bytes: &mut [u8]| {
                let count = left.len().min(bytes.len()).min(10);
                bytes[..count].copy_from_slice(&left[..count]);
                left = &left[count..];
                count
            })
        };
        assert_eq!(look(0x2800), Some((0x1000, 0x3000)));
        assert_eq!(look(0x3800), Some((0x3000, 0x4000)));
        assert_eq!(look(0x4800), None);
        assert_eq!(look(0x900), None);
    }

    #[test]
    fn finds_this_program() {
        let here = finds_this_program as fn() as usize;
        let object = find(here).expect("the test program is mapped");
        assert!((object.start..object.end).contains(&(here as u64)) && object.unwind_header != 0);
    }
}
