//! Why a running process is not recorded, or not left.

use super::ptrace::StopError;
use crate::inject::static_program::ImageError;
use nix::errno::Errno;
use std::io;

/// Why a process is not attached, or was not left.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// There is no such process.
    #[error("there is no such process")]
    NoProcess,
    /// Something speaks against it, with what helps.
    #[error("{0}")]
    Unsuitable(String),
    /// The threads were not stopped.
    #[error(transparent)]
    Stop(#[from] StopError),
    /// No thread has space for a signal frame.
    #[error("none of its threads can be used: each one waits in the kernel, or is on a stack of its own making")]
    NoThread,
    /// The kernel refused something.
    #[error("the kernel refused {what} ({error})")]
    Refused {
        /// What the kernel refused.
        what: &'static str,
        error: io::Error,
    },
    /// The library did not begin to record.
    #[error("its library could not map the memory for the recording")]
    NotAttached,
    /// A stack refers to a place inside of a jump, each time that it was tried.
    #[error("a thread is about to return into the first bytes of an allocator's function; try again")]
    Unsafe,
    /// The process that traced it was killed.
    #[error("the process that traced it was killed")]
    Killed,
    /// The library is not valid.
    #[error(transparent)]
    Image(#[from] ImageError),
}

impl AttachError {
    /// Returns whether a later try may succeed.
    pub fn may_pass(&self) -> bool {
        matches!(self, AttachError::Stop(StopError::Late) | AttachError::NoThread | AttachError::Unsafe)
    }

    pub(super) fn memory(error: io::Error) -> AttachError {
        AttachError::Refused { what: "access to its memory", error }
    }

    /// Returns whether an address range of the plan was in use.
    pub(super) fn is_taken(&self) -> bool {
        matches!(self, AttachError::Refused { error, .. } if error.kind() == io::ErrorKind::AlreadyExists)
    }

    /// Returns why there is no copy of it.
    pub(super) fn no_copy(error: Errno) -> AttachError {
        match error {
            Errno::EAGAIN => AttachError::Unsuitable(
                "its user or its cgroup may have no further process (RLIMIT_NPROC, pids.max), and it is a copy of it that is \
                 read"
                    .into(),
            ),
            _ => AttachError::refused("a copy of it")(error),
        }
    }

    pub(super) fn refused(what: &'static str) -> impl Fn(Errno) -> AttachError {
        move |error| AttachError::Refused { what, error: error.into() }
    }
}
