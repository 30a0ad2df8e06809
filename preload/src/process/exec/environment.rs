//! Strings and lists that a program passes to an exec function, at addresses that may be bad.

use super::ENTRIES;
use crate::{dynsym, probe, sys};
use core::ffi::{CStr, c_char};
use heaptape_wire::hello::UntracedReason;
use heaptape_wire::limits::ENV_SOCKET;

/// A list of strings that ends with a null pointer.
pub type Strings = *const *const c_char;

/// Copies the string at an address. Returns `None` if it cannot be read, or does not fit into the
/// buffer.
pub fn text(address: usize, buffer: &mut [u8]) -> Option<&CStr> {
    let copied = if address == 0 { 0 } else { probe::copy_from(address, buffer) };
    sys::c_text(buffer.get(..copied)?)
}

/// Calls `each` with the address and the first bytes of each string of a list. Returns false if the
/// list cannot be read.
fn each(list: Strings, mut each: impl FnMut(usize, &[u8])) -> bool {
    /// Number of addresses that are copied at once.
    const WINDOW: usize = 32;
    const WORD: usize = size_of::<usize>();
    let mut at = list as usize;
    if at == 0 {
        return true;
    }
    loop {
        let mut addresses = [0u8; WINDOW * WORD];
        let copied = probe::copy_from(at, &mut addresses);
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
            let copied = probe::copy_from(address, &mut start);
            if copied == 0 {
                return false;
            }
            each(address, &start[..copied]);
        }
        at = at.wrapping_add(pointers.len() * WORD);
    }
}

/// Returns whether the value of `LD_PRELOAD` at an address names this library. A value that is too
/// long to be inspected counts as naming it.
fn names_library(address: usize) -> bool {
    const OURS: &[u8] = b"libheaptape";
    let mut copy = [0; 1024];
    let copied = probe::copy_from(address, &mut copy);
    let Some(value) = sys::c_text(&copy[..copied]) else { return true };
    let has = |name: &[u8]| !name.is_empty() && value.to_bytes().windows(name.len()).any(|window| window == name);
    has(OURS) || dynsym::own_name().is_some_and(|name| has(name.to_bytes()))
}

/// Returns the reason if an environment does not load the library. An environment that cannot be
/// read starts no program at all. Copies the value of an `LD_PRELOAD` that does not name the
/// library, up to the size of `other`, which ends with a 0.
pub fn misses_library(environment: Option<Strings>, other: &mut [u8]) -> Option<UntracedReason> {
    const VARIABLE: &[u8] = b"LD_PRELOAD=";
    let (mut library, mut socket) = (false, false);
    let has_value = |start: &[u8], name: &[u8]| {
        let value = start.strip_prefix(name).and_then(|rest| rest.strip_prefix(b"="));
        value.is_some_and(|value| value.first().is_some_and(|byte| *byte != 0))
    };
    let is_list = each(environment?, |address, start| {
        if start.starts_with(VARIABLE) {
            library |= names_library(address);
            let copied = probe::copy_from(address + VARIABLE.len(), other);
            other[copied..].fill(0);
            other.last_mut().into_iter().for_each(|last| *last = 0);
        }
        socket |= has_value(start, ENV_SOCKET.as_bytes());
    });
    match (library, socket, other.first()) {
        _ if !is_list => None,
        (true, true, _) => None,
        (true, false, _) => Some(UntracedReason::Socket),
        (false, _, None | Some(0)) => Some(UntracedReason::Environment),
        (false, ..) => Some(UntracedReason::Replaced),
    }
}

/// Makes an environment that does not name this library, of the same strings otherwise. Returns
/// `None` if it cannot be read, or has more entries than there is space for.
pub fn without_library<'a>(list: Strings, entries: &'a mut [*const c_char], value: &'a mut [u8]) -> Option<Strings> {
    const VARIABLE: &[u8] = b"LD_PRELOAD=";
    const LIBRARY: &[u8] = b"libheaptape";
    let mut count = 0;
    let mut fits = true;
    let is_list = each(list, |address, start| {
        let mut kept = address as *const c_char;
        if start.starts_with(VARIABLE) {
            let mut copy = [0; 4096];
            let Some(old) = text(address, &mut copy).map(CStr::to_bytes) else {
                fits = false;
                return;
            };
            let is_ours = |library: &[u8]| library.windows(LIBRARY.len()).any(|name| name == LIBRARY);
            let libraries = old[VARIABLE.len()..].split(|byte| matches!(byte, b':' | b' '));
            let mut length = 0;
            for bytes in libraries.filter(|library| !library.is_empty() && !is_ours(library)) {
                let before: &[u8] = if length == 0 { VARIABLE } else { b":" };
                for byte in before.iter().chain(bytes) {
                    value[length] = *byte;
                    length += 1;
                }
            }
            value[length] = 0;
            kept = if length == 0 { core::ptr::null() } else { value.as_ptr().cast() };
        }
        if !kept.is_null() {
            // The last entry stays null.
            match entries.get_mut(count).filter(|_| count + 1 < ENTRIES) {
                Some(slot) => *slot = kept,
                None => fits = false,
            }
            count += 1;
        }
    });
    (is_list && fits).then_some(entries.as_ptr())
}
