//! A small cache a thread of runs of frames whose nodes are known: (outer node, return addresses) -> the nodes. Looking frames up one by one
//! is a chain, each step waiting for the node before; a run is compared in parallel. The comparison is exact.

use super::{Frame, NODE_FLAGS};
use crate::intern;

/// Frames that a run can hold.
const LENGTH: usize = 14;
/// Runs kept, a power of two. 192 bytes each.
const RUNS: usize = 128;

#[repr(C, align(64))]
struct Run {
    parent: u32,
    count: u32,
    addresses: [u64; LENGTH],
    nodes: [u32; LENGTH],
}

/// The cache.
#[repr(C)]
pub struct Runs([Run; RUNS]);

impl Runs {
    /// Empties the cache.
    #[cold]
    pub fn forget(&mut self) {
        self.0.iter_mut().for_each(|run| run.count = 0);
    }

    /// The nodes of `frames` (innermost first) inside the stack of node `parent`, outermost first into `nodes`.
    #[inline(always)]
    pub fn nodes(&mut self, parent: u32, frames: &[Frame], nodes: &mut [u32]) {
        let count = frames.len();
        let mut hash = u64::from(parent);
        let mut flags = 0;
        if count > LENGTH {
            return one_by_one(parent, frames, nodes);
        }
        for frame in frames {
            hash = hash.rotate_left(11) ^ frame.address;
            flags |= frame.flags();
        }
        if flags & NODE_FLAGS != 0 {
            return one_by_one(parent, frames, nodes);
        }
        let place = hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - RUNS.trailing_zeros());
        let run = &mut self.0[place as usize];
        let mut difference = u64::from(run.parent ^ parent) | (run.count as u64 ^ count as u64);
        for (frame, address) in frames.iter().zip(&run.addresses) {
            difference |= frame.address ^ address;
        }
        if difference == 0 {
            for (node, known) in nodes.iter_mut().zip(&run.nodes) {
                *node = *known;
            }
            return;
        }
        one_by_one(parent, frames, nodes);
        run.parent = parent;
        run.count = count as u32;
        run.addresses.iter_mut().zip(frames).for_each(|(place, frame)| *place = frame.address);
        run.nodes.iter_mut().zip(nodes).for_each(|(place, node)| *place = *node);
    }
}

#[inline(never)]
fn one_by_one(mut parent: u32, frames: &[Frame], nodes: &mut [u32]) {
    for (frame, node) in frames.iter().rev().zip(nodes) {
        parent = intern::node(parent, frame.address, frame.flags() & NODE_FLAGS);
        *node = parent;
    }
}
