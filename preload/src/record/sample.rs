//! Selects the events of a thread that samples, and counts the others.

use super::ring_space::apply_control;
use crate::thread::ThreadState;
use crate::{arch, sampling};

/// Returns whether an allocation of `size` bytes contains a sampling point. If it does, the
/// recorder's settings are read again.
///
/// # Safety
/// As [`selects`].
#[inline(always)]
pub(crate) unsafe fn hits(state: *mut ThreadState, size: u64) -> bool {
    // SAFETY: the state is the calling thread's, as the caller ensures.
    unsafe {
        let hit = (*state).countdown.hits(size);
        if hit {
            apply_control(state);
        }
        hit
    }
}

/// Returns whether sampling selects an allocation or a free, and counts it as sampled out if not.
///
/// # Safety
/// `state` must be the calling thread's, with an activation that is not 0.
#[inline(always)]
pub(crate) unsafe fn selects(state: *mut ThreadState, is_free: bool, address: u64, size: u64) -> bool {
    // SAFETY: the state is the calling thread's. A handler between load and store of the countdown
    // costs a little chance, nothing else.
    unsafe {
        if (*state).countdown.mean == 0 {
            return true;
        }
        let wanted = if is_free { sampling::remove(address) } else { hits(state, size) && sampling::insert(address) };
        if !wanted {
            count_sampled_out(state);
        }
        wanted
    }
}

/// Returns whether an allocation contains no sampling point. It is then counted, and nothing else
/// is to be done. Otherwise nothing has changed.
///
/// # Safety
/// As [`selects`].
#[inline(always)]
pub(crate) unsafe fn is_sampled_out(state: *mut ThreadState, size: u64) -> bool {
    // SAFETY: the state is the calling thread's, as the caller ensures.
    unsafe {
        let passes = (*state).countdown.passes(size);
        if passes {
            count_sampled_out(state);
        }
        passes
    }
}

/// Returns whether the freed block was certainly not sampled. The free is then counted, and nothing
/// else is to be done. Otherwise nothing has changed.
///
/// # Safety
/// As [`selects`].
#[inline(always)]
pub(crate) unsafe fn is_free_sampled_out(state: *mut ThreadState, address: u64) -> bool {
    // SAFETY: the state is the calling thread's, as the caller ensures.
    unsafe {
        let passes = (*state).countdown.mean != 0 && !sampling::is_likely(address);
        if passes {
            count_sampled_out(state);
        }
        passes
    }
}

/// Counts a sampled-out event in one instruction, since a handler may run at any time.
///
/// # Safety
/// As [`selects`].
#[inline(always)]
pub(crate) unsafe fn count_sampled_out(state: *mut ThreadState) {
    // SAFETY: the state is the calling thread's, as the caller ensures; only the thread that owns
    // the slot writes the word.
    unsafe {
        let word = &raw const (*state).writer.producer().sampled_out;
        arch::signal_atomic_increment(word.cast_mut().cast());
    }
}
