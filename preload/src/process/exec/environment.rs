//! Strings and lists that a program passes to an exec function, at addresses that may be bad.

use crate::sys::{self, Need};
use crate::workspace::Workspace;
use crate::{dynsym, probe};
use core::ffi::{CStr, c_char};
use heaptape_wire::hello::UntracedReason;
use heaptape_wire::limits::{ENV_FILTERS, ENV_SOCKET};
use heaptape_wire::sanitizer::{self, libraries};

/// A list of strings that ends with a null pointer.
pub(crate) type Strings = *const *const c_char;

/// The variable that names this library.
const VARIABLE: &[u8] = b"LD_PRELOAD=";
/// The most bytes of its value that are read.
const MAX_VALUE: usize = 4096;

/// Copies the string at an address. Returns `None` if it cannot be read, or does not fit into the
/// buffer.
#[inline(never)]
pub(crate) fn text(address: usize, buffer: &mut [u8]) -> Option<&CStr> {
    let copied = if address == 0 { 0 } else { copy::<1>(address, buffer) };
    sys::c_text(buffer.get(..copied)?)
}

const FIRST_MAPPABLE: usize = 4096;
const FIRST_OF_KERNEL: usize = 1 << 63;

/// Copies a list that ends with a zero of `WIDTH` bytes. Where a sandbox forbids to find out what
/// is mapped, it is read up to that zero: a bad address ends the program there, and not only the
/// call. Without this, the sandbox would end each program that is started.
fn copy<const WIDTH: usize>(address: usize, out: &mut [u8]) -> usize {
    if Need::PEEK.is_allowed() || Need::PROBE.is_allowed() {
        return probe::copy_from(address, out);
    }
    // No program has memory in the first pages (`vm.mmap_min_addr`), nor where the kernel's is.
    if !(FIRST_MAPPABLE..FIRST_OF_KERNEL).contains(&address) {
        return 0;
    }
    let mut count = 0;
    for unit in out.chunks_exact_mut(WIDTH) {
        for target in &mut *unit {
            // SAFETY: the program passes this list to the kernel, and it has not ended yet.
            *target = unsafe { (address.wrapping_add(count) as *const u8).read_volatile() };
            count += 1;
        }
        if unit.iter().all(|byte| *byte == 0) {
            break;
        }
    }
    count
}

/// Calls `each` with the address and the first bytes of each string of a list. Returns false if the
/// list cannot be read.
#[inline(never)]
fn each(list: Strings, each: &mut dyn FnMut(usize, &[u8])) -> bool {
    /// Number of addresses that are copied at once.
    const WINDOW: usize = 32;
    const WORD: usize = size_of::<usize>();
    let mut at = list as usize;
    if at == 0 {
        return true;
    }
    loop {
        let mut addresses = [0u8; WINDOW * WORD];
        let copied = copy::<WORD>(at, &mut addresses);
        let (pointers, _) = addresses[..copied].as_chunks::<WORD>();
        if pointers.is_empty() {
            return false;
        }
        for word in pointers {
            let address = usize::from_le_bytes(*word);
            if address == 0 {
                return true;
            }
            let mut start = [0u8; 32];
            let copied = copy::<1>(address, &mut start);
            if copied == 0 {
                return false;
            }
            each(address, &start[..copied]);
        }
        at = at.wrapping_add(pointers.len() * WORD);
    }
}

/// Returns whether a library of `LD_PRELOAD` is this one.
#[inline(never)]
fn is_ours(library: &[u8]) -> bool {
    const OURS: &[u8] = b"libheaptape";
    library.windows(OURS.len()).any(|name| name == OURS)
        || dynsym::own_name().is_some_and(|name| name.to_bytes() == library)
}

/// Returns whether a value of `LD_PRELOAD` names a library of this kind.
#[inline(never)]
fn names(value: &[u8], is_wanted: fn(&[u8]) -> bool) -> bool {
    libraries(value).any(is_wanted)
}

/// Returns the reason if an environment does not load the library. An environment that cannot be
/// read starts no program at all, and a value that is too long counts as naming it. Copies the
/// value of an `LD_PRELOAD` that does not name the library, up to the size of `other`, which ends
/// with a 0.
#[inline(never)]
pub(crate) fn misses_library(environment: Option<Strings>, other: &mut [u8]) -> Option<UntracedReason> {
    let (mut library, mut socket, mut is_sanitized) = (false, false, false);
    let has_value = |start: &[u8], name: &[u8]| {
        let value = start.strip_prefix(name).and_then(|rest| rest.strip_prefix(b"="));
        value.is_some_and(|value| value.first().is_some_and(|byte| *byte != 0))
    };
    let is_list = each(environment?, &mut |address, start| {
        if start.starts_with(VARIABLE) {
            let mut copy = [0; MAX_VALUE];
            let value = text(address + VARIABLE.len(), &mut copy).map(CStr::to_bytes);
            library |= value.is_none_or(|value| names(value, is_ours));
            is_sanitized |= value.is_some_and(|value| names(value, sanitizer::is_runtime));
            let value = value.unwrap_or_default();
            let fitting = value.len().min(other.len().saturating_sub(1));
            other.fill(0);
            other[..fitting].copy_from_slice(&value[..fitting]);
        }
        socket |= has_value(start, ENV_SOCKET.as_bytes());
    });
    match (library, socket, other.first()) {
        _ if !is_list => None,
        (true, true, _) => is_sanitized.then_some(UntracedReason::Sanitizer),
        (true, false, _) => Some(UntracedReason::Socket),
        (false, _, None | Some(0)) => Some(UntracedReason::Environment),
        (false, ..) => Some(UntracedReason::Replaced),
    }
}

/// Makes a list of `arguments` strings, and an environment of the same strings but those that
/// heaptape needs: without this library, or with `filters`, the number of seccomp filters that
/// allow an attach. Returns `None` if it cannot be read, or there is no memory. What is returned
/// has to be given back after a start that has failed.
#[inline(never)]
pub(crate) fn changed(
    arguments: usize,
    argument: &dyn Fn(usize) -> usize,
    environment: Strings,
    filters: Option<u32>,
) -> Option<(&'static Workspace, [Strings; 2])> {
    // It does not load this library, and `fexecve` refuses it.
    if environment.is_null() {
        return None;
    }
    let mut count = arguments + 3;
    each(environment, &mut |_, _| count += 1).then_some(())?;
    let workspace = Workspace::claim(MAX_VALUE + count * size_of::<usize>())?;
    // SAFETY: the memory was claimed with this size, and nothing else uses it.
    let (value, list) = unsafe {
        let memory = workspace.memory();
        (
            core::slice::from_raw_parts_mut(memory, MAX_VALUE),
            core::slice::from_raw_parts_mut(memory.add(MAX_VALUE).cast::<usize>(), count),
        )
    };
    list.fill(0);
    list[..arguments].iter_mut().enumerate().for_each(|(index, entry)| *entry = argument(index));
    let entries = &mut list[arguments + 1..];
    let mut used = 0;
    // The last entry stays null.
    let mut keep = |address: usize| {
        if address != 0 && used + 1 < entries.len() {
            entries[used] = address;
            used += 1;
        }
    };
    let mut fits = true;
    if let (Some(filters), Some(text)) = (filters, value.first_chunk_mut()) {
        *text = [0; 32];
        sys::decimal(b"HEAPTAPE_FILTERS=", filters, b"", text);
        keep(value.as_ptr() as usize);
    }
    let is_list = each(environment, &mut |address, start| {
        if start.strip_prefix(ENV_FILTERS.as_bytes()).is_some_and(|rest| rest.first() == Some(&b'=')) {
        } else if filters.is_none() && start.starts_with(VARIABLE) {
            match other_libraries(address, value) {
                Some(kept) => keep(kept),
                None => fits = false,
            }
        } else {
            keep(address);
        }
    });
    if !is_list || !fits {
        workspace.release();
        return None;
    }
    let lists = [list.as_ptr().cast(), list[arguments + 1..].as_ptr().cast()];
    Some((workspace, lists))
}

/// Writes the variable at an address without this library. Returns the address of the result, 0 if
/// nothing is left, or `None` if it is too long.
fn other_libraries(address: usize, value: &mut [u8]) -> Option<usize> {
    let mut copy = [0; MAX_VALUE];
    let old = text(address, &mut copy)?.to_bytes();
    let mut length = 0;
    for library in libraries(&old[VARIABLE.len()..]).filter(|library| !is_ours(library)) {
        let before: &[u8] = if length == 0 { VARIABLE } else { b":" };
        for byte in before.iter().chain(library) {
            *value.get_mut(length)? = *byte;
            length += 1;
        }
    }
    *value.get_mut(length)? = 0;
    Some(if length == 0 { 0 } else { value.as_ptr() as usize })
}
