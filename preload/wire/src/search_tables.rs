//! Search tables for objects of the program whose linker made none (`--no-eh-frame-hdr`). The
//! recorder makes them from the frame descriptions in the files, before the process gets its area,
//! and appends them to the file of the area, after [`crate::Layout::total`].
//!
//! ```text
//! directory: (start u64, offset u32, rows u32) for each object, then zeros
//! rows:      (first u32, description u32), by the first address
//! ```
//! `start` is the object's lowest address. The numbers of a row are distances from there: of the
//! first address that a description is for, and of the description. `offset` is that of an object's
//! first row from the directory.

/// Size of an entry of the directory in bytes.
pub const ENTRY_BYTES: usize = 16;
/// Size of a row in bytes.
pub const ROW_BYTES: usize = 8;
/// Maximum size of all tables of a process in bytes.
pub const MAX_BYTES: usize = 64 << 20;
