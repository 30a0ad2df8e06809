//! Replaces files of a recording atomically ([`formats::replace`]), with the permissions of its
//! user and the durability of its other files.

use crate::os::permissions::let_read;
use crate::os::sync;
use formats::replace::{self, Writers};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

pub use formats::replace::Durability;

/// Replaces a file atomically, and returns it open for reading and writing. Only its owner and
/// `reader` can read it. With [`Durability::Later`] its content reaches the disk within seconds,
/// with the other files of the recording ([`sync`]), so that nobody waits for the disk.
///
/// # Errors
/// The error of the write, or of the rename. The old file is unchanged then.
pub fn replace_file(path: &Path, bytes: &[u8], reader: Option<u32>, durability: Durability) -> io::Result<File> {
    let file = replace::replace_file(path, Writers::One, durability, |file| {
        let_read(file, reader)?;
        file.write_all(bytes)
    })?;
    if durability == Durability::Later {
        sync::add_written(&mut 0, bytes.len(), std::iter::once(&file));
    }
    Ok(file)
}
