//! Faults and warnings about a file that can be read nevertheless.

use crate::Error;

/// Remarks of a reader: faults or warnings. Only the first 100 are kept, so that the list is short
/// for any file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remarks {
    list: Vec<Error>,
    /// Number of all remarks.
    pub total: u64,
}

impl Remarks {
    const KEPT: usize = 100;

    /// Counts a remark, and keeps it if it is among the first.
    pub(super) fn push(&mut self, error: impl FnOnce() -> Error) {
        self.total += 1;
        if self.list.len() < Self::KEPT {
            self.list.push(error());
        }
    }

    /// Returns the remarks that were kept.
    pub fn iter(&self) -> impl Iterator<Item = &Error> {
        self.list.iter()
    }

    /// Returns whether there are no remarks.
    pub const fn is_empty(&self) -> bool {
        self.total == 0
    }
}
