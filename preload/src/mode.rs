//! What the exported functions do first. It is chosen for the whole process, so that neither a
//! dormant process nor one that samples pays for full tracing. A pair of malloc and free takes 10.8
//! ns without the library, 12.6 ns dormant (15.1 through the body), 13.3 ns sampled (16.1 through
//! the body). Every mode is correct at any time and in any thread: if it finds another state than
//! the one that it is made for, it continues like the full one.

use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicU8, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// The target of all exports.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum EntryMode {
    /// The bodies of the hooks, which record every event.
    Full,
    /// Bodies that first check whether sampling skips the call, for functions where that can be
    /// decided before the call.
    Sampled,
    /// A check of the thread's activation, and a jump to the allocator.
    Untraced,
}

impl EntryMode {
    /// Returns the mode for a sampling interval of `sample_bytes`, or for all events if it is 0.
    pub(crate) fn of_interval(sample_bytes: u64) -> EntryMode {
        if sample_bytes == 0 { EntryMode::Full } else { EntryMode::Sampled }
    }

    fn of_number(number: u8) -> EntryMode {
        match number {
            0 => EntryMode::Full,
            1 => EntryMode::Sampled,
            _ => EntryMode::Untraced,
        }
    }
}

/// A function that sets the targets of the exports.
type Switch = fn(EntryMode);

static MODE: AtomicU8 = AtomicU8::new(EntryMode::Full as u8);
/// The [`Switch`]; null before the library has been initialized. It is a pointer since the hooks,
/// which are the targets, call what chooses the mode.
static SWITCH: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Sets the target of all exports.
pub(crate) fn choose(mode: EntryMode) {
    // This is called at each thread's start, so the shared cache line is written only if the mode
    // changes.
    if MODE.load(Relaxed) != mode as u8 && MODE.swap(mode as u8, Relaxed) != mode as u8 {
        let switch = SWITCH.load(Acquire);
        if !switch.is_null() {
            // SAFETY: `switch_by` stored a function of this type.
            unsafe { core::mem::transmute::<*mut c_void, Switch>(switch)(mode) };
        }
    }
}

/// Sets the function that sets the targets, and calls it for the mode that has been chosen already.
#[cfg_attr(test, allow(dead_code))]
pub(crate) fn switch_by(switch: Switch) {
    SWITCH.store(switch as *mut c_void, Release);
    switch(EntryMode::of_number(MODE.load(Relaxed)));
}
