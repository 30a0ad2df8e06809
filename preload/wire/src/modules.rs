//! The table of modules (mapped ELF objects) that the preload finds while it unwinds. A module is
//! appended before the first node with an address in it, so that the recorder knows it even if the
//! process ends before its maps can be read.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Maximum length of a path in an entry, in bytes. Longer paths are truncated.
pub const MAX_PATH: usize = 928;
/// Maximum length of a build ID in an entry, in bytes.
pub const MAX_BUILD_ID: usize = 32;
/// The path of an object other than the program whose name the library does not know.
pub const UNNAMED: &[u8] = b"?";

/// One entry of the module table.
#[derive(Debug)]
#[repr(C, align(1024))]
pub struct ModuleEntry {
    /// The first address of the mapping.
    pub start: AtomicU64,
    /// The first address after the mapping.
    pub end: AtomicU64,
    /// The load bias of the object.
    pub bias: AtomicU64,
    /// Number of nodes that had been claimed when the module was found. The entry applies to nodes
    /// from this number on.
    pub first_node: AtomicU32,
    /// Number of nodes that had been claimed when the module was unmapped; 0 while it is mapped.
    pub unmapped_node: AtomicU32,
    /// 1 when the entry is complete. Written last, with Release.
    pub ready: AtomicU32,
    /// Length of the path in bytes.
    pub path_length: AtomicU32,
    /// Length of the build-id in bytes.
    pub build_id_length: AtomicU32,
    /// Hash of the first bytes of the object, which distinguishes objects without build-id; 0 if it
    /// is not known, as with older libraries.
    pub head: AtomicU32,
    path: [AtomicU8; MAX_PATH],
    build_id: [AtomicU8; MAX_BUILD_ID],
}

const _: () = assert!(size_of::<ModuleEntry>() == 1024);

impl ModuleEntry {
    /// Fills the entry and makes it visible. Only the thread that claimed its number may call this.
    /// The head was stored before, if it is known.
    pub fn publish(&self, start: u64, end: u64, bias: u64, first_node: u32, path: &[u8], build_id: &[u8]) {
        self.start.store(start, Relaxed);
        self.end.store(end, Relaxed);
        self.bias.store(bias, Relaxed);
        self.first_node.store(first_node, Relaxed);
        path.iter().zip(&self.path).for_each(|(byte, target)| target.store(*byte, Relaxed));
        self.path_length.store(path.len().min(MAX_PATH) as u32, Relaxed);
        build_id.iter().zip(&self.build_id).for_each(|(byte, target)| target.store(*byte, Relaxed));
        self.build_id_length.store(build_id.len().min(MAX_BUILD_ID) as u32, Relaxed);
        self.ready.store(1, Release);
    }

    /// Returns whether the entry is complete.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Acquire) != 0
    }

    /// Copies the path into `out` and returns its length.
    pub fn path(&self, out: &mut [u8; MAX_PATH]) -> usize {
        self.path.iter().zip(out.iter_mut()).for_each(|(byte, target)| *target = byte.load(Relaxed));
        (self.path_length.load(Relaxed) as usize).min(MAX_PATH)
    }

    /// Copies the build-id into `out` and returns its length.
    pub fn build_id(&self, out: &mut [u8; MAX_BUILD_ID]) -> usize {
        self.build_id.iter().zip(out.iter_mut()).for_each(|(byte, target)| *target = byte.load(Relaxed));
        (self.build_id_length.load(Relaxed) as usize).min(MAX_BUILD_ID)
    }
}
