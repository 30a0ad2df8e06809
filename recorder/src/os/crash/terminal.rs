//! The terminal of a full-screen program is restored before its crash is reported: otherwise the
//! report is drawn over the screen, and the shell gets a terminal without echo.

use nix::libc::{self, c_int};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering::SeqCst};

/// What restores the terminal.
struct Saved {
    /// Modes of the terminal before full-screen mode.
    modes: libc::termios,
    /// Escape sequences that end full-screen mode.
    leave: &'static str,
}

/// What the handler restores; null when the terminal is not in full-screen mode. A value that was
/// stored here is never freed, so that the handler may read it at any time.
static SAVED: AtomicPtr<Saved> = AtomicPtr::new(ptr::null_mut());

/// Makes a fatal signal of this process restore the terminal of standard output: its modes of now,
/// and `leave`, escape sequences that end full-screen mode. Without a terminal nothing happens.
pub fn restore_terminal(leave: &'static str) {
    // SAFETY: all zeros is a valid value of this plain structure, which the call fills.
    let modes = unsafe {
        let mut modes: libc::termios = std::mem::zeroed();
        (libc::tcgetattr(libc::STDOUT_FILENO, &raw mut modes) == 0).then_some(modes)
    };
    if let Some(modes) = modes {
        SAVED.store(Box::leak(Box::new(Saved { modes, leave })), SeqCst);
    }
}

/// Leaves the terminal alone from here on, since it is no longer in full-screen mode.
pub fn keep_terminal() {
    SAVED.store(ptr::null_mut(), SeqCst);
}

/// Restores the terminal, if it is in full-screen mode. It makes system calls only. `write` writes
/// bytes to a descriptor.
pub(super) fn restore(write: fn(c_int, &[u8])) {
    // SAFETY: a pointer in `SAVED` is null or that of a leaked box.
    if let Some(saved) = unsafe { SAVED.swap(ptr::null_mut(), SeqCst).as_ref() } {
        write(libc::STDOUT_FILENO, saved.leave.as_bytes());
        // SAFETY: the modes are those that `tcgetattr` returned.
        unsafe { libc::tcsetattr(libc::STDOUT_FILENO, libc::TCSADRAIN, &raw const saved.modes) };
    }
}
