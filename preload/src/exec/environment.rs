//! Strings and lists that a program hands to an exec function, at addresses that may be bad.

use crate::sys;
use core::ffi::{CStr, c_char};
use heaptape_wire::hello::Why;
use heaptape_wire::limits::ENV_SOCKET;

/// A list of strings that ends with null.
pub type Strings = *const *const c_char;

/// Copies the string at an address; `None` when it cannot be read, or is longer than the room.
pub fn text(address: usize, room: &mut [u8]) -> Option<&CStr> {
    let copied = if address == 0 { 0 } else { sys::copy_from(address, room) };
    CStr::from_bytes_until_nul(room.get(..copied)?).ok()
}

/// Calls `each` with the address and the first bytes of each string of a list; false when the list cannot be read.
fn each(list: Strings, mut each: impl FnMut(&[u8])) -> bool {
    /// Addresses that are copied at once.
    const WINDOW: usize = 32;
    const WORD: usize = size_of::<usize>();
    let mut at = list as usize;
    if at == 0 {
        return true;
    }
    loop {
        let mut addresses = [0u8; WINDOW * WORD];
        let copied = sys::copy_from(at, &mut addresses);
        let (words, _) = addresses[..copied].as_chunks::<WORD>();
        if words.is_empty() {
            return false;
        }
        for word in words {
            let address = usize::from_le_bytes(*word);
            if address == 0 {
                return true;
            }
            let mut start = [0u8; 32];
            let copied = sys::copy_from(address, &mut start);
            if copied == 0 {
                return false;
            }
            each(&start[..copied]);
        }
        at = at.wrapping_add(words.len() * WORD);
    }
}

/// Whether an environment will not bring the library along. One that cannot be read starts no program at all.
pub fn in_vain(environment: Option<Strings>) -> Option<Why> {
    let (mut library, mut socket) = (false, false);
    let has_value = |start: &[u8], name: &[u8]| {
        let value = start.strip_prefix(name).and_then(|rest| rest.strip_prefix(b"="));
        value.is_some_and(|value| value.first().is_some_and(|byte| *byte != 0))
    };
    let is_list = each(environment?, |start| {
        library |= has_value(start, b"LD_PRELOAD");
        socket |= has_value(start, ENV_SOCKET.as_bytes());
    });
    (is_list && !(library && socket)).then_some(Why::Environment)
}
