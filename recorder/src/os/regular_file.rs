//! Opens files at paths that a traced program has chosen: regular ones only, since to open anything
//! else may do something.

use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a file for reading if it is a regular one. What else may be there is not touched: opening a
/// pipe lets its writer go on, and opening a watchdog starts it.
///
/// # Errors
/// `InvalidInput` when it is no regular file, otherwise the error of opening it.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    opened(open(path, OFlag::O_PATH | OFlag::O_CLOEXEC, Mode::empty())?)
}

/// Opens the file at a place, a descriptor of O_PATH, for reading if it is a regular one.
///
/// # Errors
/// As those of [`open_regular`].
pub(crate) fn opened(place: OwnedFd) -> io::Result<File> {
    let place = File::from(place);
    if !place.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // The same file, whatever is at the path by now. O_NONBLOCK: a lease of another process would
    // make us wait.
    let same = format!("/proc/self/fd/{}", place.as_raw_fd());
    OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(same)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn what_is_no_file_is_not_opened() {
        let folder = tempfile::tempdir().expect("a folder");
        let (pipe, file) = (folder.path().join("pipe"), folder.path().join("file"));
        nix::unistd::mkfifo(&pipe, Mode::from_bits_truncate(0o600)).expect("a pipe");
        std::fs::write(&file, "text").expect("a file");
        // It waits for a reader.
        let mut writer = std::process::Command::new("sh").args(["-c", ": > \"$0\""]).arg(&pipe).spawn().expect("sh");
        std::thread::sleep(Duration::from_millis(300));
        for path in [&pipe, folder.path(), Path::new("/dev/null")] {
            assert_eq!(open_regular(path).expect_err("no file").kind(), io::ErrorKind::InvalidInput);
        }
        std::thread::sleep(Duration::from_millis(100));
        assert!(writer.try_wait().expect("a child").is_none(), "it still waits");
        assert_eq!(io::read_to_string(open_regular(&file).expect("a file")).expect("text"), "text");
        writer.kill().expect("it waits");
        writer.wait().expect("its end");
    }
}
