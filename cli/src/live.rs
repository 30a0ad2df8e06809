//! `record -o -`: the recording is written to a temporary folder, and a second process of this
//! command copies its trace to standard output.

use anyhow::Context;
use std::io::IsTerminal;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// The process that copies the trace, and the temporary folder.
pub(crate) struct Live {
    folder: tempfile::TempDir,
    copy: Child,
}

impl Live {
    /// Starts the process that copies. From then on standard output goes to standard error.
    ///
    /// # Errors
    /// Standard output is a terminal, or the same file as standard error; the folder or the process
    /// cannot be made.
    pub(crate) fn start() -> anyhow::Result<Live> {
        let (out, error) = (std::io::stdout(), std::io::stderr());
        if out.is_terminal() {
            anyhow::bail!("standard output is a terminal: send the trace to a file or a pipe");
        }
        if is_same_file(out.as_fd(), error.as_fd())? {
            anyhow::bail!(
                "standard output and standard error are the same file, so trace and messages would mix: redirect one of them"
            );
        }
        let folder = tempfile::Builder::new()
            .prefix("heaptape-live-")
            .tempdir()
            .context("cannot make a folder for the recording")?;
        let mut command = Command::new("/proc/self/exe");
        command.args(["stream", "--starting"]).arg(folder.path().join("r"));
        // The terminal's signals are for the program; the copy ends with the recording.
        command.stdin(Stdio::null()).process_group(0);
        let copy = command.spawn().context("cannot start the process that copies the trace")?;
        nix::unistd::dup2_stdout(error).context("cannot redirect standard output")?;
        Ok(Live { folder, copy })
    }

    /// Returns the folder of the recording.
    pub(crate) fn dir(&self) -> PathBuf {
        self.folder.path().join("r")
    }

    /// Waits until the whole trace has been copied.
    pub(crate) fn end(mut self) {
        let _ = self.copy.wait();
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // If the program was not run, the copying process would wait for ever.
        let _ = self.copy.kill();
        let _ = self.copy.wait();
    }
}

/// Returns whether two descriptors are the same file, in which their output would mix.
fn is_same_file(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> anyhow::Result<bool> {
    let (one, other) = (nix::sys::stat::fstat(one)?, nix::sys::stat::fstat(other)?);
    let is_device = one.st_mode & nix::libc::S_IFMT == nix::libc::S_IFCHR;
    Ok(!is_device && (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
}
