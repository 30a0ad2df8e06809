//! Which block of a process holds which: finds the words in its memory that are addresses of live
//! blocks. Recorders do it in a process, readers in a core.

mod blocks;
mod descriptors;
mod regions;
mod search;

pub use blocks::{BlockTable, LiveBlock};
pub use regions::{Found, Mapping, Regions, StoppedThread};
pub use search::{Counts, Search};

/// Bits of the addresses that programs have.
const ADDRESS_BITS: u32 = 48;

/// The memory of a process.
pub trait Memory: std::fmt::Debug {
    /// Reads a range, and returns how many of its bytes are there. The others are zeros.
    fn read(&self, at: u64, out: &mut [u8]) -> u64;

    /// Returns the first address from this one on that may be there, or `None` if none is. A core may
    /// have regions of any length without a byte of them.
    fn next_there(&self, at: u64) -> Option<u64> {
        Some(at)
    }

    /// Returns the parts of a private mapping of a file that are not as in the file, as far as that is known.
    fn written(&self, _start: u64, _end: u64) -> Vec<(u64, u64)> {
        Vec::new()
    }
}
