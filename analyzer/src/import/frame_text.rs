//! Parses frames in the format of Valgrind's tools: `0x109180: leaf (t.c:4)`, `0x48417B4: malloc
//! (in /usr/lib/libc.so)`, `???`.

use crate::stacks::Named;

/// Returns the address and the names of a frame. The address is 0 if it is unknown.
pub(super) fn parse(text: &str) -> (u64, Named) {
    let (address, rest) = match text.strip_prefix("0x").and_then(|hex| hex.split_once(": ")) {
        Some((hex, rest)) => (u64::from_str_radix(hex, 16).unwrap_or(0), rest),
        None => (0, text),
    };
    // The location is in the last parentheses; names of functions may contain parentheses too.
    let (function, location) = match rest.strip_suffix(')').and_then(|rest| rest.rsplit_once(" (")) {
        Some((function, location)) => (function, location),
        None => (rest, ""),
    };
    let function = if function == "???" { "" } else { function };
    let mut named = Named { function: function.as_bytes().to_vec(), ..Named::default() };
    if let Some(module) = location.strip_prefix("in ") {
        named.file = module.as_bytes().to_vec();
    } else if let Some((file, line)) = location.rsplit_once(':') {
        (named.file, named.line) = (file.as_bytes().to_vec(), line.parse().unwrap_or(0));
    } else {
        named.file = location.as_bytes().to_vec();
    }
    if named.function.is_empty() {
        named.function = if address == 0 { text.as_bytes().to_vec() } else { format!("{address:#x}").into_bytes() };
    }
    (address, named)
}
