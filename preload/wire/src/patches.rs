//! The functions of allocators inside the program, which the preload library hooks by a jump in
//! their first bytes.
//!
//! The recorder reads the program's symbols and instructions. It decides which functions are
//! hooked and writes the code to do so. The library verifies the bytes of each function, maps the
//! code near to it, and writes the jump, before `main` and with one thread.
//!
//! A function's code is a [`Function`], then an entry that loads its address and jumps to the
//! library, then the *trampoline*: the function's first instructions, moved, and a jump to the rest
//! of the function.

use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};

/// Maximum number of hooked functions of one process.
pub const MAX_PATCHES: usize = 512;
/// Maximum number of runs of code of one process. Each module with hooked functions has one.
pub const MAX_RUNS: usize = 8;
/// Maximum number of bytes at the start of a function that are moved.
pub const MAX_MOVED: usize = 24;
/// Size of the jump that is written over a function's first bytes.
pub const JUMP_BYTES: usize = if cfg!(target_arch = "aarch64") { 4 } else { 5 };
/// Offset of the first [`Function`] in a run of code. Before it are the address of the library's
/// hook and those of its [`REPLACEMENTS`], which the library itself stores.
pub const FIRST_FUNCTION: usize = 48;
/// Functions of libc that the standalone library replaces: where they change the process, it must
/// know of it. Elsewhere the library exports these names.
pub const REPLACEMENTS: [&str; 5] = ["prctl", "syscall", "execve", "execveat", "fork"];

/// Status of a patch that the library has not looked at.
pub const WAITING: u32 = 0;
/// Status of a patch that was written.
pub const WRITTEN: u32 = 1;
/// Status of a patch that was not written: the function's bytes are not those of its file.
pub const DIFFERS: u32 = 2;
/// Status of a patch that was not written: there were several threads.
pub const HAS_THREADS: u32 = 3;
/// Status of a patch that was not written: the address range near to the function is in use, or
/// the kernel maps nothing there.
pub const NO_SPACE: u32 = 4;
/// Status of a patch that was not written: the kernel does not let the process change its code.
pub const FORBIDDEN: u32 = 5;

/// Returns why a patch with this status was not written.
pub const fn text(status: u32) -> &'static str {
    match status {
        DIFFERS => "its bytes in memory are not those of the file",
        HAS_THREADS => "there were several threads",
        NO_SPACE => "there is no free address range near to it",
        FORBIDDEN => "the kernel does not let the process change its code",
        _ => "the process did not get to it",
    }
}

/// What a hooked function does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Action {
    /// It returns a new block.
    Alloc = 0,
    /// It frees a block.
    Free = 1,
    /// It returns a block that replaces another one.
    Resize = 2,
    /// It resizes a block without moving it, and returns the size that the block has then.
    ResizeFixed = 3,
    /// It stores the address of a new block through its `pointer` argument, and returns 0.
    AllocAt = 4,
    /// It is no event, and neither are the allocator's functions that it calls.
    Internal = 5,
    /// It is one of [`REPLACEMENTS`], whose index is in place of the size. The entry jumps to the
    /// library's function of this name.
    Replaced = 6,
}

/// The value of an argument's index if there is no such argument.
pub const NO_ARGUMENT: u8 = 6;

/// A hooked function, as its hook sees it. It precedes the function's entry in the code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Function {
    /// Address of the trampoline.
    pub trampoline: u64,
    /// What the function does: an [`Action`].
    pub action: u8,
    /// Index of the argument with the size.
    pub size: u8,
    /// Index of the argument that the size is multiplied with, or [`NO_ARGUMENT`].
    pub count: u8,
    /// Index of the argument with the block, or with the address to store it at.
    pub pointer: u8,
    /// Number of the allocator, below [`crate::Op::ALLOCATORS`].
    pub allocator: u8,
    /// Always zeros in this version.
    pub reserved: [u8; 3],
}

impl Function {
    /// Encodes the function as it is in the code.
    pub fn encode(&self) -> [u8; size_of::<Function>()] {
        let mut out = [0; size_of::<Function>()];
        out[..8].copy_from_slice(&self.trampoline.to_le_bytes());
        out[8..13].copy_from_slice(&[self.action, self.size, self.count, self.pointer, self.allocator]);
        out
    }
}

/// A run of code, which is mapped near to the functions of one module.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Run {
    /// Address of the code, a multiple of the page size.
    pub address: AtomicU64,
    /// Offset of its bytes in [`PatchTable::code`].
    pub offset: AtomicU32,
    /// Number of bytes; 0 if the run is not used.
    pub bytes: AtomicU32,
}

/// A jump to be written.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Patch {
    /// The address that the jump is written to.
    pub address: AtomicU64,
    /// The address that it jumps to, in a run of code.
    pub target: AtomicU64,
    /// The bytes that the jump replaces, which are verified first.
    pub expected: [AtomicU8; MAX_MOVED],
    /// Number of the expected bytes, at least [`JUMP_BYTES`].
    pub length: AtomicU32,
    /// Whether the jump was written: one of the status values.
    pub status: AtomicU32,
}

/// Number of bytes of code.
pub const CODE_BYTES: usize = 96 * 1024 - MAX_RUNS * size_of::<Run>() - MAX_PATCHES * size_of::<Patch>();

/// All patches of a process, at the end of its area. The recorder writes everything but the
/// statuses, before the process gets the area.
#[repr(C)]
pub struct PatchTable {
    /// The runs of code.
    pub runs: [Run; MAX_RUNS],
    /// The patches, as many as [`crate::Header::patches`] says.
    pub patches: [Patch; MAX_PATCHES],
    /// The code of all runs.
    pub code: [AtomicU8; CODE_BYTES],
}

const _: () = assert!(size_of::<PatchTable>() == 96 * 1024);
const _: () = assert!((1 + REPLACEMENTS.len()) * 8 <= FIRST_FUNCTION && FIRST_FUNCTION.is_multiple_of(16));

impl Patch {
    /// Returns the expected bytes. The result is empty if their number is not valid.
    pub fn expected(&self, out: &mut [u8; MAX_MOVED]) -> usize {
        let length = self.length.load(Relaxed) as usize;
        if !(JUMP_BYTES..=MAX_MOVED).contains(&length) {
            return 0;
        }
        out.iter_mut().zip(&self.expected).for_each(|(target, byte)| *target = byte.load(Relaxed));
        length
    }
}
