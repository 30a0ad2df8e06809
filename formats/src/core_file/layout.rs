//! Numbers of core files: elf(5), and `struct elf_prstatus` and its kin of `linux/elfcore.h`.

/// Size of the ELF header, and of an entry of the program headers.
pub(super) const HEADER_BYTES: usize = 64;
pub(super) const SEGMENT_BYTES: usize = 56;
/// `ET_CORE`.
pub(super) const TYPE_CORE: u64 = 4;
/// `EM_386`, `EM_ARM` and others of elf(5) that are not read, with their names.
pub(super) const OTHER_MACHINES: [(u64, &str); 6] =
    [(3, "32-bit x86"), (20, "32-bit PowerPC"), (21, "PowerPC"), (22, "s390x"), (40, "32-bit ARM"), (243, "RISC-V")];
/// `PT_NOTE`.
pub(super) const NOTE_SEGMENT: u64 = 4;

/// `NT_PRSTATUS`: a thread.
pub(super) const STATUS: u64 = 1;
/// `NT_ARM_TLS`: the thread pointer of the thread before it.
pub(super) const THREAD_POINTER: u64 = 0x401;
/// `NT_PRPSINFO`: the process.
pub(super) const PROCESS: u64 = 3;
/// `NT_AUXV`: what the kernel told the loader, and in it `AT_PAGESZ` and `AT_SYSINFO_EHDR`.
pub(super) const AUXILIARY: u64 = 6;
pub(super) const PAGE_SIZE: u64 = 6;
pub(super) const VDSO: u64 = 33;
/// `AT_EXECFN`: the program's name, at the end of the first thread's stack.
pub(super) const PROGRAM_NAME: u64 = 31;
/// `NT_SIGINFO`: the signal.
pub(super) const SIGNAL: u64 = 0x5349_4749;
/// `NT_FILE`: the mapped files.
pub(super) const FILE: u64 = 0x4649_4c45;
/// Where the general registers are in a `NT_PRSTATUS`.
pub(super) const REGISTERS_AT: usize = 112;

/// Maximum number of segments, of bytes of notes, of threads and of files that are read.
pub(super) const MAX_SEGMENTS: u64 = 1 << 20;
pub(super) const MAX_NOTES: u64 = 256 << 20;
pub(super) const MAX_THREADS: usize = 1 << 16;
pub(super) const MAX_FILES: usize = 1 << 20;
