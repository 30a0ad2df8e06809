//! Regular files of a recording. The author of a recording may have put a pipe or a device in their
//! place: a reader would wait for the pipe, and read the device without end.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// Opens a file for reading.
///
/// # Errors
/// Returns an error if the file cannot be opened, or is not a regular file.
///
/// # Examples
/// ```
/// use heaptape_formats::regular;
///
/// let error = regular::open("/dev/zero".as_ref()).expect_err("a device");
/// assert_eq!(error.to_string(), "not a regular file");
/// ```
pub fn open(path: &Path) -> io::Result<File> {
    check(path)?;
    File::open(path)
}

/// Opens a file or a pipe for reading, for readers that read it once.
///
/// # Errors
/// Returns an error if it cannot be opened, or is a device: that may have no end.
pub fn open_once(path: &Path) -> io::Result<File> {
    let kind = std::fs::metadata(path)?.file_type();
    match kind.is_char_device() || kind.is_block_device() {
        true => Err(io::Error::new(io::ErrorKind::InvalidInput, "a device, not a file or a pipe")),
        false => File::open(path),
    }
}

/// Reads the text of a file or a pipe that may have no end.
///
/// # Errors
/// Returns an error if it cannot be read, or has more than `most` bytes.
///
/// # Examples
/// ```
/// use heaptape_formats::regular;
///
/// let error = regular::read_text("/dev/zero".as_ref(), 2048).expect_err("a device");
/// assert_eq!(error.to_string(), "larger than 2 KiB");
/// ```
pub fn read_text(path: &Path, most: u64) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(most.saturating_add(1)).read_to_string(&mut text)?;
    match text.len() as u64 > most {
        true => Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {} KiB", most >> 10))),
        false => Ok(text),
    }
}

/// Reads a whole file into memory.
///
/// # Errors
/// Returns an error if the file cannot be read, or is not a regular file.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    check(path)?;
    std::fs::read(path)
}

fn check(path: &Path) -> io::Result<()> {
    match std::fs::metadata(path)?.is_file() {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
    }
}
