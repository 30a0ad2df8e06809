//! Hooks of functions inside the program, which have a jump to [`enter`] in their first bytes. One
//! body serves all functions: a [`Function`] says what each one does, and by which arguments.
//!
//! Functions of an allocator may call each other. The outermost one on the thread is the event.

use super::{freed_rarely, mark, record_alloc, unmark};
use crate::caller::Caller;
use crate::record::{Resize, resize_begins, resize_ends};
use crate::thread::{Request, UNTRACED};
use heaptape_wire::Op;
use heaptape_wire::patches::{Action, Function, NO_ARGUMENT};

/// A call of a hooked function. [`enter`] writes the first fields.
#[repr(C)]
struct PatchedCall {
    arguments: [usize; NO_ARGUMENT as usize],
    function: *const Function,
    caller: Caller,
    resize: Option<Resize>,
    is_marked: bool,
}

const _: () = assert!(core::mem::offset_of!(PatchedCall, function) == 48);
const _: () = assert!(core::mem::offset_of!(PatchedCall, caller) == 56);

/// Size of the frame of [`enter`]: the call, and what the stub keeps after it.
const FRAME_BYTES: usize = size_of::<PatchedCall>().next_multiple_of(16) + crate::arch::KEPT_BYTES;

/// The entry of all hooked functions.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn enter() {
    crate::arch::patched_stub!(begins, ends, FRAME_BYTES, UNTRACED)
}

impl PatchedCall {
    fn argument(&self, index: u8) -> Option<usize> {
        self.arguments.get(usize::from(index)).copied()
    }

    /// Returns the requested bytes. If they overflow, the function fails.
    fn size(&self, function: &Function) -> usize {
        let count = self.argument(function.count).unwrap_or(1);
        self.argument(function.size).unwrap_or(0).saturating_mul(count)
    }

    /// Returns the block that the function frees or resizes; null if there is none.
    fn block(&self, function: &Function) -> *mut u8 {
        let has_block = function.action != Action::AllocAt as u8;
        self.argument(function.pointer).filter(|_| has_block).unwrap_or(0) as *mut u8
    }
}

/// Runs before a function, and returns its trampoline.
unsafe extern "C" fn begins(call: *mut PatchedCall) -> u64 {
    // SAFETY: the frame of the stub, which has written the other fields; the description is in the
    // code that led here, which stays mapped.
    let (call, function) = unsafe {
        (&raw mut (*call).resize).write(None);
        (&raw mut (*call).is_marked).write(false);
        (&mut *call, &*(*call).function)
    };
    let (size, block, caller) = (call.size(function), call.block(function), call.caller);
    // An inner call may request more than the outer one, for a header or an alignment.
    let mut request = Request { size, slack: usize::MAX / 2, address: 0 };
    if !block.is_null() {
        request.address = Request::ANY_BLOCK;
        if function.action == Action::Free as u8 {
            freed_rarely(Op::of_allocator(Op::FREE_INSIDE, function.allocator), block, caller);
            // No allocation belongs to a free.
            (request.size, request.slack) = (usize::MAX, 0);
        } else {
            call.resize = resize_begins(block, size, caller);
        }
    }
    if function.action == Action::Internal as u8 {
        request = Request { size: usize::MAX, slack: 0, address: Request::ANY_BLOCK };
    }
    call.is_marked = mark(caller, request);
    function.trampoline
}

/// Runs after a function, and returns its result.
unsafe extern "C" fn ends(call: &mut PatchedCall, result: *mut u8) -> *mut u8 {
    // SAFETY: as in `begins`.
    let function = unsafe { &*call.function };
    let (size, block, caller) = (call.size(function), call.block(function), call.caller);
    if call.is_marked {
        unmark(caller);
    }
    let op = |first: Op| Op::of_allocator(first, function.allocator);
    let mut new = result;
    if function.action == Action::AllocAt as u8 {
        let target = call.argument(function.pointer).unwrap_or(0) as *const *mut u8;
        // SAFETY: the function has stored the block there and returned 0, an `int`.
        new = if result as usize as u32 == 0 { unsafe { target.read() } } else { core::ptr::null_mut() };
    } else if function.action == Action::ResizeFixed as u8 {
        new = if result as usize >= size { block } else { core::ptr::null_mut() };
    }
    if let Some(resize) = call.resize {
        resize_ends(resize, op(Op::RESIZE_INSIDE), block, new, size, caller);
    } else if block.is_null() && function.action != Action::Free as u8 && function.action != Action::Internal as u8 {
        record_alloc(op(Op::ALLOC_INSIDE), new, size, caller);
    }
    result
}
