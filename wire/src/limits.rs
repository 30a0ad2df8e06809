//! Limits and names that both sides must agree on.

/// Environment variable: path of the recorder's socket. Without it the library is inert.
pub const ENV_SOCKET: &str = "HEAPTAPE_SOCKET";
/// Most frames of one stack; outer frames beyond it are cut and the node is marked
/// [`crate::nodes::CUT`].
pub const MAX_FRAMES: usize = 1024;
/// Longest time that an attach may take, milliseconds.
pub const ATTACH_MS: u64 = 50;
/// Environment variable: another longest time. It lengthens the wait for a recorder that is busy;
/// one that is stopped or gone is waited for no longer than [`ATTACH_MS`].
pub const ENV_ATTACH: &str = "HEAPTAPE_ATTACH_MS";
/// What `heaptape record` allows: on a machine at full load its turn may come late, and the
/// program's start is the one chance.
pub const RECORD_ATTACH_MS: u64 = 2_000;
/// The most that [`ENV_ATTACH`] can ask for.
pub const MOST_ATTACH_MS: u64 = 10_000;
/// Default bytes of the ring of each of the first threads: 65,536 records. Measured: 64 KiB stalls,
/// 1 to 16 MiB are alike.
pub const RING_BYTES: u64 = 1 << 20;
/// Bytes of a ring at least, unless all are smaller: those of programs with many threads.
pub const LEAST_RING_BYTES: u64 = 32 << 10;
/// Records after which a thread looks at the header again, whether there is room or not: 0.1 ns a
/// record.
pub const STRIDE: u64 = 128;
/// Default number of thread slots. Address space is all that an unused slot costs.
pub const SLOTS: u32 = 16_384;
/// Default capacity of the stack-node table (16 bytes each, touched as they are used).
pub const NODES: u32 = 1 << 24;
/// Most modules of one process image, each load of a plugin counted; a KiB of sparse memory each.
pub const MODULES: u32 = 16_384;
/// Longest wait for room in a ring while the recorder shows no sign of life, milliseconds, in all.
pub const WAIT_MS: u64 = 2_000;
