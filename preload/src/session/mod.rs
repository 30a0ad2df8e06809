//! The session of this process with the recorder: is there one, and where is its shared area?
//! [`crate::boot`] makes it.

mod area;
pub(crate) mod board;
pub(crate) mod private;

pub(crate) use area::{Area, map, node, search_tables};

use crate::sys::{self, Need};
use core::cell::UnsafeCell;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, fence};
use heaptape_wire::area::{CHILD, TELLS_END};

const NEW: u64 = 0;
const LIVE: u64 = 1;
const OFF: u64 = 2;
/// A thread creates the session. Its numbers are in the upper bits; see [`attaching`].
const ATTACHING: u64 = 3;
/// One of the four above, with the numbers of the thread that creates the session in one word, so
/// that a child forked meanwhile does not wait for a thread that it does not have, nor a signal
/// handler for the thread that it interrupts.
static STATE: AtomicU64 = AtomicU64::new(NEW);
/// Whether a thread waited in vain for another one to attach: that one was cancelled. Nobody waits
/// again.
static IS_ABANDONED: AtomicBool = AtomicBool::new(false);
static PID: AtomicU32 = AtomicU32::new(0);
/// [`CHILD`] for each child that this process made and that its area does not count yet.
static EARLIER_CHILDREN: AtomicU32 = AtomicU32::new(0);
static IS_FORKED: AtomicBool = AtomicBool::new(false);
static FREE_STACKS: AtomicBool = AtomicBool::new(false);
/// Number of events that happened while another thread was creating the session. They are added to
/// the header once it exists.
static UNCOUNTED: AtomicU64 = AtomicU64::new(0);

struct Shared(UnsafeCell<Option<Area>>);
// SAFETY: written by the one thread that moved `STATE` to [`attaching`], read only after `STATE`
// was seen LIVE (Acquire after Release).
unsafe impl Sync for Shared {}
static AREA: Shared = Shared(UnsafeCell::new(None));

/// Returns the shared area of a live session of this process. A child that has not attached yet has
/// none.
pub(crate) fn area() -> Option<Area> {
    parents_area().filter(|_| private::is_ours())
}

/// Returns the area of the session of this process, or of the one that it was forked from, where it
/// is not mapped any more.
pub(crate) fn parents_area() -> Option<Area> {
    // SAFETY: LIVE was seen with Acquire.
    is_live().then(|| unsafe { *AREA.0.get() }).flatten()
}

/// Returns the area of the session, and creates the session if that has not been tried in this
/// process. `attach` does so, by the pid and whether the process was forked from one with a
/// session.
pub(crate) fn area_or_attach(attach: impl FnOnce(u32, bool) -> Option<Area>) -> Option<Area> {
    loop {
        let state = STATE.load(Acquire);
        let (pid, tid) = match state {
            OFF => return None,
            LIVE if private::is_ours() => {
                // SAFETY: LIVE was seen with Acquire.
                return unsafe { *AREA.0.get() };
            }
            // In a sandbox that forbids the attach, the try ends at once.
            _ => (sys::pid(), if Need::ATTACH.is_allowed() { sys::tid() } else { 0 }),
        };
        if is_attaching(state, pid) {
            if state == attaching(pid, tid) || !has_attached(state) {
                return None;
            }
            continue;
        }
        if STATE.compare_exchange(state, attaching(pid, tid), Acquire, Relaxed).is_err() {
            continue;
        }
        let area = attach(pid, state == LIVE);
        // SAFETY: this thread alone is attaching.
        unsafe { *AREA.0.get() = area };
        STATE.store(if area.is_some() { LIVE } else { OFF }, Release);
        area.inspect(|area| {
            area.header().dropped_without_slot.fetch_add(UNCOUNTED.swap(0, Relaxed), Relaxed);
            fence(SeqCst);
            tell_children(area);
        });
        return area;
    }
}

/// Returns the state in which a thread attaches its process. Numbers of processes and threads have
/// 22 bits at most.
fn attaching(pid: u32, tid: u32) -> u64 {
    u64::from(tid) << 32 | u64::from(pid) << 8 | ATTACHING
}

/// Returns whether the state is that of a thread that attaches this process.
fn is_attaching(state: u64, pid: u32) -> bool {
    state as u32 == attaching(pid, 0) as u32
}

/// Waits until the other thread that attaches this process has ended its try. Returns whether it
/// has.
#[cold]
fn has_attached(state: u64) -> bool {
    /// A try takes a millisecond, and with a busy recorder as long as the limit of an attach.
    const LONGEST_MS: u32 = 1_000;
    for _ in 0..LONGEST_MS {
        if IS_ABANDONED.load(Relaxed) || !Need::SLEEP.is_allowed() {
            return false;
        }
        // The lower half, which holds the pid only while a thread attaches.
        sys::futex_wait(STATE.as_ptr().cast(), state as u32, 1);
        if STATE.load(Acquire) != state {
            return true;
        }
    }
    IS_ABANDONED.store(true, Relaxed);
    false
}

/// Notes the process that has attached, whether it was forked from one with a session, and whether
/// frees are recorded with stacks.
pub(crate) fn begin(pid: u32, is_forked: bool, frees_have_stacks: bool) {
    PID.store(pid, Relaxed);
    IS_FORKED.store(is_forked, Relaxed);
    FREE_STACKS.store(frees_have_stacks, Relaxed);
}

/// Returns whether there is a session, of this process or of the one that it was forked from.
pub(crate) fn is_live() -> bool {
    STATE.load(Acquire) == LIVE
}

/// Returns whether there is one, as [`is_live`] has it, or a thread creates one right now and
/// `has_tried` to before, in this process or in the one that it was forked from.
pub(crate) fn is_live_or_attaching(has_tried: bool) -> bool {
    let state = STATE.load(Acquire);
    state == LIVE || (has_tried && state as u8 == ATTACHING as u8)
}

/// Notes that the process makes a child, or a child of `vfork` starts a program, in a way that this
/// library sees. The recorder takes further children that used memory for unseen programs.
pub(crate) fn note_child() {
    EARLIER_CHILDREN.fetch_add(CHILD, Relaxed);
    // Another thread may attach right now: it sees this child, or we see its area.
    fence(SeqCst);
    area().inspect(tell_children);
}

/// Tells the recorder of the children that were noted since the last call.
fn tell_children(area: &Area) {
    area.header().signs.fetch_add(EARLIER_CHILDREN.swap(0, Relaxed), Relaxed);
}

/// Notes a fork, in the parent or in the child, which has no children yet.
pub(crate) fn note_fork(is_child: bool) {
    if is_child {
        EARLIER_CHILDREN.store(0, Relaxed);
    } else {
        note_child();
    }
}

/// Tells the recorder that the process will tell of its end.
pub(crate) fn note_signs(header: &heaptape_wire::Header) {
    header.signs.fetch_add(if cfg!(feature = "standalone") { 0 } else { TELLS_END }, Relaxed);
}

/// Tells the recorder that the process has changed its name: another one is no sign of another program.
pub(crate) fn note_name() {
    if let Some(area) = area() {
        area.header().signs.fetch_and(!TELLS_END, Relaxed);
    }
}

/// Returns whether nothing has been tried yet.
pub(crate) fn is_new() -> bool {
    STATE.load(Acquire) == NEW
}

/// Returns whether the process is untraced for good.
pub(crate) fn is_untraced() -> bool {
    STATE.load(Acquire) == OFF
}

/// Ends tracing: the recorder has closed the session, and the process runs untraced from now on.
pub(crate) fn close() {
    STATE.store(OFF, Release);
}

/// Returns whether frees are recorded with stacks.
#[inline(always)]
pub(crate) fn frees_have_stacks() -> bool {
    FREE_STACKS.load(Relaxed)
}

/// Returns the pid of the session, as the process sees itself.
pub(crate) fn pid() -> u32 {
    PID.load(Relaxed)
}

/// Returns whether the process of the session was forked from another process with the same
/// program.
pub(crate) fn is_forked() -> bool {
    IS_FORKED.load(Relaxed)
}

/// Counts an event of a thread that has no slot.
#[cold]
pub(crate) fn count_without_slot() {
    match area() {
        Some(area) => area.header().dropped_without_slot.fetch_add(1, Relaxed),
        // Of whichever process: a sandbox may forbid to ask for its number.
        None if STATE.load(Acquire) & ATTACHING == ATTACHING => UNCOUNTED.fetch_add(1, Relaxed),
        None => 0,
    };
}
