//! Numbers of core files: elf(5), and `struct elf_prstatus` and its kin of `linux/elfcore.h`.

/// Size of the ELF header, and of an entry of the program headers.
pub const HEADER_BYTES: usize = 64;
pub const SEGMENT_BYTES: usize = 56;
/// `ET_CORE`.
pub const TYPE_CORE: u64 = 4;
/// `EM_X86_64`.
pub const MACHINE_X86_64: u64 = 62;
/// `PT_NOTE`.
pub const NOTE_SEGMENT: u64 = 4;

/// `NT_PRSTATUS`: a thread.
pub const STATUS: u64 = 1;
/// `NT_PRPSINFO`: the process.
pub const PROCESS: u64 = 3;
/// `NT_SIGINFO`: the signal.
pub const SIGNAL: u64 = 0x5349_4749;
/// `NT_FILE`: the mapped files.
pub const FILE: u64 = 0x4649_4c45;
/// Where the general registers are in a `NT_PRSTATUS`.
pub const REGISTERS_AT: usize = 112;

/// Maximum number of segments, of bytes of notes, of threads and of files that are read.
pub const MAX_SEGMENTS: u64 = 1 << 20;
pub const MAX_NOTES: u64 = 256 << 20;
pub const MAX_THREADS: usize = 1 << 16;
pub const MAX_FILES: usize = 1 << 20;
