//! Numbers of frames and stacks that are the same in all recordings of the same program: hashes of
//! build-ids and offsets, so that tables of many hosts and days join.
//!
//! These functions never change: tables that were written long ago join with those of today.

use crate::stacks::{Site, Stacks};
use crate::symbols::module_of;

/// A hash of bytes: FNV-1a of 64 bits, then mixed (splitmix64), so that all bits depend on all
/// bytes.
#[derive(Clone, Copy, Debug)]
pub struct Hash(u64);

impl Default for Hash {
    fn default() -> Self {
        Hash::new()
    }
}

impl Hash {
    /// Creates the hash of no bytes.
    pub const fn new() -> Hash {
        Hash(0xcbf2_9ce4_8422_2325)
    }

    /// Returns the hash with further bytes.
    #[must_use]
    pub fn bytes(self, bytes: &[u8]) -> Hash {
        Hash(bytes.iter().fold(self.0, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)))
    }

    /// Returns the id. It is positive, since many readers know signed numbers only. It is never 0,
    /// which means no stack.
    pub fn finish(self) -> i64 {
        let x = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ x >> 31) >> 1).max(1).cast_signed()
    }
}

/// Returns the number of a frame: of the build-id of its object (of its path, where it has none)
/// and the offset in it; of its names, if the file names it; else of the address.
pub fn frame(stacks: &Stacks, site: &Site) -> i64 {
    if let Some(module) = module_of(stacks, site) {
        let identity = if module.build_id.is_empty() { &module.path } else { &module.build_id };
        let offset = site.address.wrapping_sub(module.bias);
        return Hash::new().bytes(b"m").bytes(identity).bytes(&offset.to_le_bytes()).finish();
    }
    match stacks.named.get((site.named as usize).wrapping_sub(1)) {
        Some(named) => {
            let hash = Hash::new().bytes(b"n").bytes(&named.function).bytes(&[0]).bytes(&named.file).bytes(&[0]);
            hash.bytes(&named.line.to_le_bytes()).finish()
        }
        None => Hash::new().bytes(b"a").bytes(&site.address.to_le_bytes()).finish(),
    }
}

/// Returns the number of a stack: of its innermost frame, and the stack of its caller.
pub fn stack(frame: i64, caller: i64) -> i64 {
    Hash::new().bytes(b"s").bytes(&frame.to_le_bytes()).bytes(&caller.to_le_bytes()).finish()
}

/// Returns the ids of the frame and the stack of each site, by site number. Index 0 is that of
/// no stack.
pub fn of(stacks: &Stacks) -> Vec<(i64, i64)> {
    let mut ids = vec![(0, 0)];
    for number in 1..=stacks.len() as u32 {
        let site = stacks.site(number);
        let frame = frame(stacks, &site);
        let caller = if site.parent < number { ids[site.parent as usize].1 } else { 0 };
        ids.push((frame, stack(frame, caller)));
    }
    ids
}
