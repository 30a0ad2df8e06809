//! Name caches of reader and writer: 32 slots for functions and 32 for files.
//!
//! A reader only stores names by slot number. The writer chooses slots as mpatrol's own does, so
//! that it writes a file of that library again byte for byte: unused slots in the order 1, 2, 3 …,
//! then the slot that was used longest ago.

use super::layout::{LONGEST_NAME, SLOTS};

/// Cache of a reader. Names are copies, so that they outlive the buffer from which they came.
#[derive(Clone, Debug)]
pub(super) struct ReaderCache([Option<Vec<u8>>; SLOTS]);

impl Default for ReaderCache {
    fn default() -> Self {
        ReaderCache([const { None }; SLOTS])
    }
}

impl ReaderCache {
    /// Sets the name of slot `slot`. Slots other than 1..=32 are ignored.
    pub(super) fn define(&mut self, slot: u8, name: &[u8]) {
        let Some(entry) = usize::from(slot).checked_sub(1).and_then(|at| self.0.get_mut(at)) else { return };
        let text = entry.get_or_insert_default();
        text.clear();
        text.extend_from_slice(name);
    }

    /// Returns the name in a slot; none for slot 0 and for slots that were never defined.
    #[inline]
    pub(super) fn get(&self, slot: u8) -> Option<&[u8]> {
        if slot == 0 {
            return None;
        }
        self.0.get(usize::from(slot) - 1)?.as_deref()
    }
}

/// Cache of a writer: the names in the slots, and the order in which they were used.
#[derive(Clone, Debug)]
pub(super) struct WriterCache {
    names: Vec<Vec<u8>>,
    /// Slot numbers minus one, most recently used first.
    recent: Vec<u8>,
}

impl Default for WriterCache {
    fn default() -> Self {
        WriterCache { names: vec![Vec::new(); SLOTS], recent: Vec::with_capacity(SLOTS) }
    }
}

impl WriterCache {
    /// Clears the cache: names must be defined again before they are used.
    pub(super) fn clear(&mut self) {
        self.recent.clear();
    }

    /// Appends the field for `name`, truncated at its first NUL and at 1023 bytes: no name, the
    /// number of a slot, or the definition of a slot.
    pub(super) fn put(&mut self, out: &mut Vec<u8>, name: Option<&[u8]>) {
        let name = name.unwrap_or_default();
        let name = &name[..name.len().min(LONGEST_NAME)];
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        if name.is_empty() {
            return out.push(0);
        }
        if let Some(at) = self.recent.iter().position(|&slot| self.names[usize::from(slot)] == name) {
            self.recent[..=at].rotate_right(1);
            return out.push(self.recent[0] + 1);
        }
        if self.recent.len() < SLOTS {
            // Slots are assigned in order and never released, so the number of slots in use is the
            // next slot.
            self.recent.push(self.recent.len() as u8);
        }
        self.recent.rotate_right(1);
        let slot = self.recent[0];
        let text = &mut self.names[usize::from(slot)];
        text.clear();
        text.extend_from_slice(name);
        out.push(0x80 | (slot + 1));
        out.extend_from_slice(name);
        out.push(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(cache: &mut WriterCache, name: &str) -> Vec<u8> {
        let mut out = Vec::new();
        cache.put(&mut out, Some(name.as_bytes()));
        out
    }

    #[test]
    fn the_slot_used_longest_ago_is_redefined() {
        let mut cache = WriterCache::default();
        for slot in 1..=32u8 {
            assert_eq!(put(&mut cache, &format!("n{slot}"))[0], 0x80 | slot);
        }
        assert_eq!(put(&mut cache, "n1"), [1]);
        assert_eq!(put(&mut cache, "new"), b"\x82new\0");
        assert_eq!(put(&mut cache, "n2"), b"\x83n2\0");
        cache.clear();
        assert_eq!(put(&mut cache, "n2"), b"\x81n2\0");
    }

    #[test]
    fn names_are_truncated_where_the_format_cannot_hold_them() {
        let mut cache = WriterCache::default();
        assert_eq!(put(&mut cache, ""), [0]);
        assert_eq!(put(&mut cache, "a\0b"), b"\x81a\0");
        assert_eq!(put(&mut cache, &"x".repeat(5000)).len(), 1 + 1023 + 1);
        assert_eq!(put(&mut cache, &"x".repeat(5000)), [2]);
    }

    #[test]
    fn undefined_slots_hold_no_name() {
        let mut cache = ReaderCache::default();
        cache.define(0, b"zero");
        cache.define(33, b"beyond");
        cache.define(32, b"last");
        assert_eq!((cache.get(0), cache.get(33), cache.get(1)), (None, None, None));
        assert_eq!(cache.get(32), Some(&b"last"[..]));
    }
}
