//! Modules (mapped ELF objects) as the preload meets them while unwinding: appended before the
//! first node that lies in them, so that the recorder knows them even when the process ends before
//! anybody can look at its maps.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Longest path that an entry holds; longer ones are cut.
pub const PATH: usize = 928;
/// Longest build-id that an entry holds.
pub const BUILD_ID: usize = 32;

/// One module.
#[derive(Debug)]
#[repr(C, align(1024))]
pub struct ModuleEntry {
    /// First address of the mapping.
    pub start: AtomicU64,
    /// First address behind it.
    pub end: AtomicU64,
    /// Load bias.
    pub bias: AtomicU64,
    /// Nodes claimed when the module was met: it names addresses of nodes from here on.
    pub first_node: AtomicU32,
    /// Nodes claimed when it was unmapped; 0 while it is mapped.
    pub gone_node: AtomicU32,
    /// Written last, Release: 1 when the entry is whole.
    pub ready: AtomicU32,
    /// Bytes of the path.
    pub path_length: AtomicU32,
    /// Bytes of the build-id.
    pub build_id_length: AtomicU32,
    reserved: AtomicU32,
    path: [AtomicU8; PATH],
    build_id: [AtomicU8; BUILD_ID],
}

const _: () = assert!(size_of::<ModuleEntry>() == 1024);

impl ModuleEntry {
    /// Fills the entry and makes it visible; only the thread that claimed its number does.
    pub fn publish(&self, start: u64, end: u64, bias: u64, first_node: u32, path: &[u8], build_id: &[u8]) {
        self.start.store(start, Relaxed);
        self.end.store(end, Relaxed);
        self.bias.store(bias, Relaxed);
        self.first_node.store(first_node, Relaxed);
        path.iter().zip(&self.path).for_each(|(byte, place)| place.store(*byte, Relaxed));
        self.path_length.store(path.len().min(PATH) as u32, Relaxed);
        build_id.iter().zip(&self.build_id).for_each(|(byte, place)| place.store(*byte, Relaxed));
        self.build_id_length.store(build_id.len().min(BUILD_ID) as u32, Relaxed);
        self.ready.store(1, Release);
    }

    /// Whether the entry is whole.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Acquire) != 0
    }

    /// Copies the path into `out`; gives its length.
    pub fn path(&self, out: &mut [u8; PATH]) -> usize {
        self.path.iter().zip(out.iter_mut()).for_each(|(byte, place)| *place = byte.load(Relaxed));
        (self.path_length.load(Relaxed) as usize).min(PATH)
    }

    /// Copies the build-id into `out`; gives its length.
    pub fn build_id(&self, out: &mut [u8; BUILD_ID]) -> usize {
        self.build_id.iter().zip(out.iter_mut()).for_each(|(byte, place)| *place = byte.load(Relaxed));
        (self.build_id_length.load(Relaxed) as usize).min(BUILD_ID)
    }
}
