//! Allocators inside a stripped file, by the texts that they print. Their functions have no names
//! to hook them by, so that their blocks are not recorded, which the recording says.

use super::symbols::Section;
use memchr::memmem::Finder;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// The text that each allocator begins its messages with.
const MESSAGES: [(&str, &str); 2] = [("<jemalloc>: ", "jemalloc"), ("mimalloc: ", "mimalloc")];
/// Maximum number of bytes that are searched.
const MAX_BYTES: u64 = 256 << 20;
/// Number of bytes that are read at once.
const CHUNK: usize = 1 << 20;
/// The last bytes of a chunk that are searched again with the next one: a text may begin there.
const OVERLAP: usize = 16;

/// Returns the allocators whose messages are in these sections of constants.
pub(super) fn allocators(file: &File, constants: &[Section]) -> Vec<&'static str> {
    let mut search =
        Search { missing: MESSAGES.iter().map(|(text, name)| (Finder::new(text), *name)).collect(), found: Vec::new() };
    let mut left = MAX_BYTES;
    for section in constants {
        let bytes = section.bytes.min(left);
        search.section(file, Section { bytes, ..*section });
        left -= bytes;
    }
    search.found
}

struct Search {
    missing: Vec<(Finder<'static>, &'static str)>,
    found: Vec<&'static str>,
}

impl Search {
    fn section(&mut self, file: &File, section: Section) {
        let mut window = Vec::with_capacity(CHUNK + OVERLAP);
        let mut at = 0;
        while at < section.bytes && !self.missing.is_empty() {
            window.drain(..window.len().saturating_sub(OVERLAP));
            let kept = window.len();
            let count = (section.bytes - at).min(CHUNK as u64) as usize;
            window.resize(kept + count, 0);
            let target = window.get_mut(kept..).unwrap_or_default();
            if file.read_exact_at(target, section.offset.saturating_add(at)).is_err() {
                break;
            }
            self.missing.retain(|(text, name)| {
                let is_there = text.find(&window).is_some();
                self.found.extend(is_there.then_some(*name));
                !is_there
            });
            at += count as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// A text is found wherever it is, also across two chunks, and not after the section.
    #[test]
    fn messages_of_allocators_are_found() {
        let text = b"mimalloc: ";
        let mut file = tempfile::tempfile().expect("a file");
        let mut bytes = vec![0; 2 * CHUNK + 100];
        bytes[CHUNK - 4..CHUNK - 4 + text.len()].copy_from_slice(text);
        bytes[2 * CHUNK + 80..2 * CHUNK + 92].copy_from_slice(b"<jemalloc>: ");
        file.write_all(&bytes).expect("written");
        let of = |bytes: usize| allocators(&file, &[Section { offset: 0, bytes: bytes as u64 }]);
        assert_eq!(of(bytes.len()), ["mimalloc", "jemalloc"]);
        assert_eq!(of(2 * CHUNK + 90), ["mimalloc"]);
        assert_eq!(of(CHUNK), [] as [&str; 0]);
        // A section that the file does not have.
        assert_eq!(of(8 * CHUNK), ["mimalloc"]);
    }
}
