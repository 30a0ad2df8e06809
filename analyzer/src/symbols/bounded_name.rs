//! A name that is written piece by piece, up to a length.

use std::fmt;

/// A string that refuses to exceed a maximum length. A few bytes of a mangled name can expand to a
/// name of any length.
pub(super) struct BoundedName {
    text: String,
    longest: usize,
}

impl BoundedName {
    /// Returns an empty name, which can become `longest` bytes long.
    pub(super) const fn new(longest: usize) -> BoundedName {
        BoundedName { text: String::new(), longest }
    }

    /// Returns what was written.
    pub(super) fn into_text(self) -> String {
        self.text
    }
}

impl fmt::Write for BoundedName {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.text.len() + text.len() > self.longest {
            return Err(fmt::Error);
        }
        self.text.push_str(text);
        Ok(())
    }
}
