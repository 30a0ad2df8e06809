//! Memory that a start of a program works in. Threads may have stacks of 16 KiB, and children of
//! `clone(CLONE_VM | CLONE_VFORK)` of 4 KiB: an inspection needs more, and the lists for a program
//! that is started without this library do, too.
//!
//! A child of `vfork` works in its parent's memory, and what it maps stays mapped there. So nothing
//! is unmapped: a workspace is used again. Lists must be there until the kernel has read them,
//! which nobody sees. But when the same thread, by its thread pointer, is here once more, its last
//! start is over: it has failed, or it was that of a child of `vfork`, for which the thread has
//! waited.

use crate::arch;
use crate::sys::{self, Need, Part};
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

/// Size of a stack in bytes.
const STACK: usize = 48 << 10;

/// A function that runs on a workspace's stack.
pub(crate) type Body = unsafe extern "C" fn(*mut c_void);

/// Memory for a stack or for lists.
pub(crate) struct Workspace {
    /// 0 if nobody uses it, the thread pointer plus one while a thread does, or the thread pointer
    /// after [`Workspace::leave`].
    user: AtomicUsize,
    memory: AtomicPtr<u8>,
    bytes: AtomicUsize,
}

/// The memory of the first two, for a stack, and for another one, then lists. They need no system
/// call: a sandbox may forbid `mmap`, and a limit leave no address space.
#[repr(align(4096))]
struct First(UnsafeCell<[[u8; STACK]; FIRST]>);
const FIRST: usize = 2;
// SAFETY: the thread that has claimed a workspace uses its part.
unsafe impl Sync for First {}
static MEMORY: First = First(UnsafeCell::new([[0; STACK]; FIRST]));

static WORKSPACES: [Workspace; 64] = [const {
    Workspace { user: AtomicUsize::new(0), memory: AtomicPtr::new(core::ptr::null_mut()), bytes: AtomicUsize::new(0) }
}; 64];

impl Workspace {
    /// Claims a workspace with at least this many bytes. Returns `None` if all are in use, or there
    /// is no memory.
    #[inline(never)]
    pub(crate) fn claim(bytes: usize) -> Option<&'static Workspace> {
        let workspace = Workspace::take(arch::thread_pointer(), bytes).or_else(|| Workspace::take(0, bytes))?;
        if workspace.first().is_none() && !workspace.has(bytes) {
            workspace.release();
            return None;
        }
        Some(workspace)
    }

    #[inline(never)]
    fn take(user: usize, bytes: usize) -> Option<&'static Workspace> {
        let busy = arch::thread_pointer() | 1;
        // The compiler would unroll the search.
        core::hint::black_box(&WORKSPACES[..]).iter().find(|workspace| {
            (bytes <= STACK || workspace.first().is_none())
                && workspace.user.compare_exchange(user, busy, Acquire, Relaxed).is_ok()
        })
    }

    /// Returns the memory of one of the first.
    fn first(&self) -> Option<*mut u8> {
        let index = (&raw const *self as usize - &raw const WORKSPACES as usize) / size_of::<Workspace>();
        (index < FIRST).then(|| MEMORY.0.get().cast::<u8>().wrapping_add(index * STACK))
    }

    /// Maps more memory if there is too little. Returns whether there is enough.
    fn has(&self, bytes: usize) -> bool {
        if self.bytes.load(Relaxed) < bytes {
            let wanted = bytes.max(STACK).next_multiple_of(4096);
            let memory = if Need::MAP.is_allowed() { sys::map_private(wanted, Part::All) } else { None };
            let Some(memory) = memory else { return false };
            let (old, old_bytes) = (self.memory.swap(memory, Relaxed), self.bytes.swap(wanted, Relaxed));
            if !old.is_null() {
                sys::unmap(old, old_bytes);
            }
        }
        true
    }

    /// Returns the start of the memory.
    pub(crate) fn memory(&self) -> *mut u8 {
        self.first().unwrap_or_else(|| self.memory.load(Relaxed))
    }

    /// Returns the end of a stack in this memory.
    pub(crate) fn end_of_stack(&self) -> *mut u8 {
        self.memory().wrapping_add(STACK)
    }

    /// Calls `body` on a stack in this memory. Signals wait meanwhile where that is allowed: their
    /// handlers expect the program's own stack.
    ///
    /// # Safety
    /// The body must be sound to call with this argument, and the memory claimed with the size of a
    /// stack.
    #[inline(never)]
    pub(crate) unsafe fn run(&self, body: Body, argument: *mut c_void) {
        let holds = Need::INSPECT.is_allowed();
        let signals = if holds { sys::hold_signals() } else { 0 };
        // SAFETY: the caller ensures that the call is sound. This thread has claimed the memory.
        unsafe { arch::call_on_stack(argument, body, self.end_of_stack()) };
        if holds {
            sys::release_signals(signals);
        }
    }

    /// Leaves the memory as it is until this thread claims a workspace again.
    pub(crate) fn leave(&self) {
        self.user.store(arch::thread_pointer(), Release);
    }

    /// Gives the memory back.
    pub(crate) fn release(&self) {
        self.user.store(0, Release);
    }
}

/// Calls `body` on memory of its own, since the caller's stack may be that of a small coroutine; on
/// the caller's stack only if there is no other memory.
#[inline(never)]
pub(crate) fn apart(mut body: &mut dyn FnMut()) {
    unsafe extern "C" fn call(body: *mut c_void) {
        // SAFETY: `apart` passes its own argument.
        unsafe { (*body.cast::<&mut dyn FnMut()>())() };
    }
    let Some(workspace) = claim_stack() else { return body() };
    // SAFETY: the memory was claimed for a stack, and the argument lives until the call has
    // returned.
    unsafe { workspace.run(call, (&raw mut body).cast()) };
    workspace.release();
}

pub(crate) fn claim_stack() -> Option<&'static Workspace> {
    Workspace::claim(STACK)
}
