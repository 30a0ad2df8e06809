//! `record -o -`: the recording lies in a folder that goes away, and another process of this command copies its trace to standard output.

use anyhow::Context;
use std::io::IsTerminal;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// The copy while it is made.
pub struct Live {
    folder: tempfile::TempDir,
    copy: Child,
}

impl Live {
    /// Starts the process that copies. From here on standard output is where standard error is.
    pub fn start() -> anyhow::Result<Live> {
        let (out, error) = (std::io::stdout(), std::io::stderr());
        if out.is_terminal() {
            anyhow::bail!("standard output is a terminal: send the trace to a file or a pipe");
        }
        if is_same_file(out.as_fd(), error.as_fd())? {
            anyhow::bail!(
                "the trace and the program's messages would mix: standard output and standard error are the same file"
            );
        }
        let folder =
            tempfile::Builder::new().prefix("heaptape-live-").tempdir().context("a folder for the recording")?;
        let mut command = Command::new("/proc/self/exe");
        command.args(["stream", "--starting"]).arg(folder.path().join("r"));
        // The terminal's signals are for the program; the copy ends with the recording.
        command.stdin(Stdio::null()).process_group(0);
        let copy = command.spawn().context("the process that copies the trace")?;
        nix::unistd::dup2_stdout(error).context("standard output")?;
        Ok(Live { folder, copy })
    }

    /// Where the recording goes.
    pub fn dir(&self) -> PathBuf {
        self.folder.path().join("r")
    }

    /// Waits until all is copied.
    pub fn end(mut self) {
        let _ = self.copy.wait();
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // Of a program that was not run nothing comes.
        let _ = self.copy.kill();
        let _ = self.copy.wait();
    }
}

/// Whether two descriptors are the same file, in which what is written to both would mix.
fn is_same_file(one: BorrowedFd<'_>, other: BorrowedFd<'_>) -> anyhow::Result<bool> {
    let (one, other) = (nix::sys::stat::fstat(one)?, nix::sys::stat::fstat(other)?);
    let is_device = one.st_mode & nix::libc::S_IFMT == nix::libc::S_IFCHR;
    Ok(!is_device && (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino))
}
