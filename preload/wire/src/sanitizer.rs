//! Sanitizers: their run-time libraries must be loaded before all others, and end the program
//! otherwise.

/// Returns whether a library is by its name the run-time library of a sanitizer: `libasan.so.8`,
/// `libclang_rt.asan-x86_64.so`. UndefinedBehaviorSanitizer's may come anywhere.
#[inline(never)]
pub fn is_runtime(library: &[u8]) -> bool {
    let name = library.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let Some(name) = name.strip_prefix(b"libclang_rt.").or_else(|| name.strip_prefix(b"lib")) else { return false };
    let end = name.iter().position(|byte| matches!(byte, b'.' | b'-' | b'_')).unwrap_or(0);
    matches!(&name[..end], b"asan" | b"tsan" | b"lsan" | b"msan" | b"hwasan")
}

/// Returns the libraries that a value of `LD_PRELOAD` names.
pub fn libraries(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| matches!(byte, b':' | b' ')).filter(|library| !library.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_time_libraries_are_known_by_their_names() {
        for name in
            ["libasan.so.8", "/usr/lib/gcc/libtsan.so", "/x/libclang_rt.asan-x86_64.so", "libclang_rt.hwasan.so"]
        {
            assert!(is_runtime(name.as_bytes()), "{name}");
        }
        for name in ["libubsan.so.1", "libasanity.so", "asan.so", "liba.so/asan", ""] {
            assert!(!is_runtime(name.as_bytes()), "{name}");
        }
        assert!(libraries(b"a.so:/x/b.so  c").eq([&b"a.so"[..], b"/x/b.so", b"c"]));
    }
}
