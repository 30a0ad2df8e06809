//! The session of this process with the recorder: whether there is one, and its shared area. It is
//! made by [`crate::boot`].

mod area;
pub mod board;
pub mod private;

pub use area::{Area, map, node};

use crate::sys;
use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

const NEW: u32 = 0;
const ATTACHING: u32 = 1;
const LIVE: u32 = 2;
const OFF: u32 = 3;
static STATE: AtomicU32 = AtomicU32::new(NEW);
/// The process that is attaching, so that a child forked meanwhile does not wait for a thread that
/// it does not have.
static ATTACHER: AtomicU32 = AtomicU32::new(0);
static PID: AtomicU32 = AtomicU32::new(0);
static IS_FORKED: AtomicBool = AtomicBool::new(false);
static FREE_STACKS: AtomicBool = AtomicBool::new(false);
/// Number of events that happened while another thread was creating the session. They are added to
/// the header once it exists.
static UNCOUNTED: AtomicU64 = AtomicU64::new(0);

struct Shared(UnsafeCell<Option<Area>>);
// SAFETY: written by the one thread that moved `STATE` to ATTACHING, read only after `STATE` was
// seen LIVE (Acquire after Release).
unsafe impl Sync for Shared {}
static AREA: Shared = Shared(UnsafeCell::new(None));

/// Returns the shared area of a live session of this process. A child that has not attached yet has
/// none.
pub fn area() -> Option<Area> {
    parents_area().filter(|_| private::is_ours())
}

/// Returns the area of the session of this process, or of the one that it was forked from, where it
/// is not mapped any more.
pub fn parents_area() -> Option<Area> {
    // SAFETY: LIVE was seen with Acquire.
    is_live().then(|| unsafe { *AREA.0.get() }).flatten()
}

/// Returns the area of the session, and creates the session if that has not been tried in this
/// process. `is_ready` returns whether a process without one can attach already. `attach` does so,
/// by the pid and whether the process was forked from one with a session.
pub fn area_or_attach(is_ready: impl Fn() -> bool, attach: impl FnOnce(u32, bool) -> Option<Area>) -> Option<Area> {
    loop {
        let state = STATE.load(Acquire);
        let again = match state {
            OFF => return None,
            LIVE if private::is_ours() => {
                // SAFETY: LIVE was seen with Acquire.
                return unsafe { *AREA.0.get() };
            }
            LIVE | NEW => state,
            _ if ATTACHER.load(Relaxed) != sys::pid() => state,
            _ => return None,
        };
        if state == NEW && !is_ready() {
            return None;
        }
        if STATE.compare_exchange(again, ATTACHING, Acquire, Relaxed).is_err() {
            continue;
        }
        let pid = sys::pid();
        ATTACHER.store(pid, Relaxed);
        let area = attach(pid, state == LIVE);
        // SAFETY: this thread alone is ATTACHING.
        unsafe { *AREA.0.get() = area };
        STATE.store(if area.is_some() { LIVE } else { OFF }, Release);
        area.inspect(|area| {
            area.header().dropped_without_slot.fetch_add(UNCOUNTED.swap(0, Relaxed), Relaxed);
        });
        return area;
    }
}

/// Notes the process that has attached, whether it was forked from one with a session, and whether
/// frees are recorded with stacks.
pub fn begin(pid: u32, is_forked: bool, frees_have_stacks: bool) {
    PID.store(pid, Relaxed);
    IS_FORKED.store(is_forked, Relaxed);
    FREE_STACKS.store(frees_have_stacks, Relaxed);
}

/// Returns whether there is a session, of this process or of the one that it was forked from.
pub fn is_live() -> bool {
    STATE.load(Acquire) == LIVE
}

/// Returns whether the process is untraced for good.
pub fn is_untraced() -> bool {
    STATE.load(Acquire) == OFF
}

/// Ends tracing: the recorder has closed the session, and the process runs untraced from now on.
pub fn close() {
    STATE.store(OFF, Release);
}

/// Returns whether frees are recorded with stacks.
#[inline(always)]
pub fn frees_have_stacks() -> bool {
    FREE_STACKS.load(Relaxed)
}

/// Returns the pid of the session, as the process sees itself.
pub fn pid() -> u32 {
    PID.load(Relaxed)
}

/// Returns whether the process of the session was forked from another process with the same
/// program.
pub fn is_forked() -> bool {
    IS_FORKED.load(Relaxed)
}

/// Counts an event of a thread that has no slot.
#[cold]
pub fn count_without_slot() {
    match area() {
        Some(area) => area.header().dropped_without_slot.fetch_add(1, Relaxed),
        None if STATE.load(Acquire) == ATTACHING => UNCOUNTED.fetch_add(1, Relaxed),
        None => 0,
    };
}
