//! Regular files of a recording. Whoever made the recording may have put a pipe or a device in
//! their place: a reader would wait for the pipe, and read the device without end.

use std::fs::File;
use std::io;
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

/// Reads a file.
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
