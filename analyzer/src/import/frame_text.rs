//! Frames as Valgrind's tools write them: `0x109180: leaf (t.c:4)`, `0x48417B4: malloc (in /usr/lib/libc.so)`, `???`.

use crate::stacks::Named;

/// Address and names of a frame.
pub fn parse(text: &str) -> (u64, Named) {
    let (address, rest) = match text.strip_prefix("0x").and_then(|hex| hex.split_once(": ")) {
        Some((hex, rest)) => (u64::from_str_radix(hex, 16).unwrap_or(0), rest),
        None => (0, text),
    };
    // The place stands in the last brackets; names of functions have brackets of their own.
    let (function, place) = match rest.strip_suffix(')').and_then(|rest| rest.rsplit_once(" (")) {
        Some((function, place)) => (function, place),
        None => (rest, ""),
    };
    let function = if function == "???" { "" } else { function };
    let mut named = Named { function: function.as_bytes().to_vec(), ..Named::default() };
    if let Some(module) = place.strip_prefix("in ") {
        named.file = module.as_bytes().to_vec();
    } else if let Some((file, line)) = place.rsplit_once(':') {
        (named.file, named.line) = (file.as_bytes().to_vec(), line.parse().unwrap_or(0));
    } else {
        named.file = place.as_bytes().to_vec();
    }
    if named.function.is_empty() {
        named.function = if address == 0 { text.as_bytes().to_vec() } else { format!("{address:#x}").into_bytes() };
    }
    (address, named)
}
