//! Used in builds with `--cfg heaptape_verify`: compares every captured stack with a full walk by
//! the same rules, and each 101st with the libc's own `backtrace`. The counts are in the area's
//! header. Nothing of this is in the library that users get.

use super::pages::Pages;
use super::unwind::memory::OwnStack;
use super::unwind::other::OtherStack;
use super::unwind::{Frame, Frames, NODE_FLAGS, walk};
use super::{ThreadStacks, table};
use crate::caller::Caller;
use crate::{dynsym, session};
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use heaptape_wire::limits::MAX_FRAMES;
use heaptape_wire::nodes::{GUESSED, LOST, SIGNAL, TRUNCATED};

const BACKTRACE_EACH: u64 = 101;

struct Buffer(UnsafeCell<(Frames, [*mut c_void; MAX_FRAMES])>);
// SAFETY: used under `TAKEN` only.
unsafe impl Sync for Buffer {}
static ROOM: Buffer = Buffer(UnsafeCell::new((
    [Frame { slot: 0, address: 0, bp: 0, step_info: 0 }; MAX_FRAMES],
    [core::ptr::null_mut(); MAX_FRAMES],
)));
/// The stacks of the thread that compares; 0 if there is none.
static OWNER: AtomicUsize = AtomicUsize::new(0);
static BACKTRACE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static CAPTURES: AtomicU64 = AtomicU64::new(0);

/// Compares the stack of `node` with what a walk and `backtrace` find.
///
/// # Safety
/// As [`super::cache::capture`].
pub unsafe fn compare(stacks: *mut ThreadStacks, caller: Caller, node: u32) {
    // If the owner is this thread, a handler jumped out of a comparison. Handlers' captures are
    // deferred ones and do not come here.
    if OWNER.compare_exchange(0, stacks as usize, Acquire, Relaxed).is_err_and(|other| other != stacks as usize) {
        return;
    }
    // SAFETY: `OWNER` reserves the buffer for this call; the frame or state is this thread's, as
    // the caller ensures.
    unsafe {
        let (frames, addresses) = &mut *ROOM.0.get();
        if !table::settings().caller_only {
            by_walk(stacks, caller, node, frames);
            // An alternate stack may be too small for it.
            if (*stacks).is_own(caller.sp) {
                by_backtrace(node, addresses);
            }
        }
    }
    OWNER.store(0, Release);
}

/// The two comparisons are not inlined, so that the frame of one is gone during the other.
#[inline(never)]
unsafe fn by_walk(stacks: *mut ThreadStacks, caller: Caller, node: u32, frames: &mut Frames) {
    let Some(area) = session::area() else { return };
    let frames = &mut frames[..table::settings().max_frames];
    let first = walk::first(caller);
    // SAFETY: the stacks are the calling thread's, as the caller ensures.
    let (is_own, end) = unsafe { ((*stacks).is_own(caller.sp), (*stacks).bounds.end as u64) };
    let count = match is_own {
        true => walk::plain(first, &mut OwnStack { low: caller.sp as u64, end }, frames),
        false => walk::plain(first, &mut OtherStack::new(caller.sp as u64, 0, 0, &mut Pages::new()), frames),
    };
    let mut number = node;
    let mut same = true;
    for (index, frame) in frames[..count].iter().enumerate() {
        let value = table::value(number);
        let flags = frame.flags() & NODE_FLAGS;
        same &= value.address == frame.address && (value.flags & (GUESSED | SIGNAL)) == flags & (GUESSED | SIGNAL);
        number = value.parent;
        if value.flags & TRUNCATED != 0 || flags & TRUNCATED != 0 {
            // Both are truncated by the depth limit, but not at the same frame. Or only the capture
            // is, at half of the limit or more: the stack was deeper a moment ago.
            let was_deeper = value.flags & LOST == 0 && number == 0 && index + 1 >= frames.len() / 2;
            same &= count == frames.len() || was_deeper || (flags & TRUNCATED != 0 && number == 0);
            number = 0;
            break;
        }
    }
    same &= number == 0;
    area.header().verified[0].fetch_add(1, Relaxed);
    area.header().verified[1].fetch_add(u64::from(!same), Relaxed);
}

#[inline(never)]
unsafe fn by_backtrace(node: u32, addresses: &mut [*mut c_void; MAX_FRAMES]) {
    let Some(area) = session::area() else { return };
    if CAPTURES.fetch_add(1, Relaxed) % BACKTRACE_EACH != 0 {
        return;
    }
    if BACKTRACE.load(Relaxed).is_null() {
        BACKTRACE.store(dynsym::find_one(dynsym::Scope::Any, false, c"backtrace"), Relaxed);
    }
    let function = BACKTRACE.load(Relaxed);
    if function.is_null() {
        return;
    }
    // SAFETY: libc's function of this type. Its first call may load a library and allocate; the
    // activation is busy, so that is not recorded.
    let count = unsafe {
        let backtrace: unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int = core::mem::transmute(function);
        backtrace(addresses.as_mut_ptr(), MAX_FRAMES as c_int)
    };
    let first = table::value(node).address;
    let found = &addresses[..count.clamp(0, MAX_FRAMES as c_int) as usize];
    let Some(start) = found.iter().position(|address| *address as u64 == first) else { return };
    let mut number = node;
    let mut same = true;
    let mut guessed = false;
    for address in &found[start..] {
        let value = table::value(number);
        guessed |= value.flags & (GUESSED | TRUNCATED) != 0;
        same &= value.address == *address as u64 || guessed;
        number = value.parent;
    }
    // A full buffer ends before the stack does.
    same &= number == 0 || guessed || found.len() == MAX_FRAMES;
    area.header().backtraced[0].fetch_add(1, Relaxed);
    area.header().backtraced[1].fetch_add(u64::from(!same), Relaxed);
}
