//! The hook that a fork interrupted. A signal handler may fork while a hook of its thread is
//! running. When the handler returns in the child, that hook continues, so the child gets the
//! thread's state and pages in place of the area, which nobody reads. Its own events go to a
//! session of its own, with new memory.

use super::attach;
use crate::session::{self, board, private};
use crate::thread::{self, Activation, BUSY, READY, ThreadState};

/// Leaves the parent's session in a forked child, if that has not been done yet. Returns whether it
/// was done now.
///
/// # Safety
/// `state` must be the calling thread's, of the parent's session, or one that was claimed in this
/// process.
#[cold]
pub(crate) unsafe fn leave_parent(state: *mut ThreadState) -> bool {
    let Some(area) = session::parents_area().filter(|_| !private::is_ours()) else { return false };
    // SAFETY: a state stays mapped for ever.
    let activation = unsafe { Activation::read(&raw const (*state).activation) };
    // The first page is shared with the recorder, for the board. A hook that continues must not
    // write there.
    area.replace_in_child(activation.has(BUSY));
    board::forked(area.base(), activation.has(BUSY));
    if activation.low_byte() != READY {
        attach::use_new_memory();
    }
    thread::set(core::ptr::null_mut());
    true
}
