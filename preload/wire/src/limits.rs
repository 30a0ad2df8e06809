//! Limits and names that the preload and the recorder share.

/// Environment variable with the path of the recorder's socket. Without it the library does
/// nothing.
pub const ENV_SOCKET: &str = "HEAPTAPE_SOCKET";
/// Maximum number of frames of one stack. Outer frames beyond it are left out, and the node has the
/// flag [`crate::nodes::TRUNCATED`].
pub const MAX_FRAMES: usize = 1024;
/// Default timeout of an attach, in milliseconds.
pub const ATTACH_MS: u64 = 50;
/// Environment variable that replaces [`ATTACH_MS`]. It lengthens the wait for a recorder that is
/// busy; the wait for one that is stopped or gone stays [`ATTACH_MS`].
pub const ENV_ATTACH_MS: &str = "HEAPTAPE_ATTACH_MS";
/// Environment variable with the number of seccomp filters that are known to allow an attach: those
/// of `heaptape record`, and those that the program's parent has installed and this library has
/// evaluated. A program with more filters runs without the library's calls.
pub const ENV_FILTERS: &str = "HEAPTAPE_FILTERS";
/// Timeout of an attach to `heaptape record`, in milliseconds. A program has one chance to attach,
/// at its start, and waits as long as the recorder lives: when 250 programs start at once on a busy
/// machine, the last one's turn comes after 5 s. This bound is for a recorder that lives and makes
/// no progress, as on a disk that hangs.
pub const RECORD_ATTACH_MS: u64 = 30_000;
/// Maximum value of [`ENV_ATTACH_MS`]: [`RECORD_ATTACH_MS`] and as much again for a search of files
/// that the user has given more time.
pub const MAX_ATTACH_MS: u64 = 60_000;
/// Default size of the ring of each of the first threads, in bytes: 65,536 records. Measured: with
/// 64 KiB threads stall; with several threads 1 to 16 MiB perform alike.
pub const RING_BYTES: u64 = 1 << 20;
/// How often the ring of the first thread is doubled by default. Measured: the recorder's bursts
/// delay a C++ program with one thread and a ring of 1 MiB; 2 to 8 MiB perform alike.
pub const FIRST_RING_SHIFT: u32 = 1;
/// Minimum size of a ring in a program with many threads, in bytes, unless all rings are
/// smaller.
pub const MIN_RING_BYTES: u64 = if crate::area::PAGE > 32 << 10 { crate::area::PAGE } else { 32 << 10 };
/// Number of records after which a thread reads the header again, even if its ring has space. This
/// costs 0.1 ns per record.
pub const HEADER_CHECK_RECORDS: u64 = 128;
/// Default number of thread slots. An unused slot costs only address space.
pub const SLOTS: u32 = 16_384;
/// Default capacity of the stack table. Each node has 16 bytes, which are touched when it is used.
pub const NODES: u32 = 1 << 24;
/// Maximum number of modules of one process. Each load of a plugin counts. Each entry is a KiB of
/// sparse memory.
pub const MODULES: u32 = 16_384;
/// Maximum total wait for space in a ring of a recorder that is stopped or gone, in milliseconds.
pub const WAIT_MS: u64 = 2_000;
