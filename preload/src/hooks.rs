//! The list of all intercepted functions, and their bodies. A new one needs a row here and a
//! program in `tests/programs`.
//!
//! Each export is a stub ([`entry`]) that passes the stack pointer and the frame
//! pointer of its caller to the body. So the body has the exact state at the call, independent of
//! the frames that the compiler makes for this library.

use crate::boot::claim;
use crate::caller::Caller;
use crate::record::guard;
use crate::thread::Request;
mod by_libc_name;
mod entry;
#[cfg(not(feature = "standalone"))]
pub(crate) mod mappings;
pub(crate) mod operators;
pub(crate) mod patched;
pub(crate) mod reported;

use crate::record::{allocated, freed, is_free_sampled_out, is_sampled_out, resize_begins, resize_ends};
use crate::{bootstrap_arena, next, thread};
use by_libc_name::{libc_calloc, libc_free, libc_malloc, libc_memalign, libc_pvalloc, libc_realloc, libc_valloc};
use core::ffi::{CStr, c_int, c_void};
use heaptape_wire::Op;

/// Runs a call of an allocator whose functions may call each other by their public names, so that
/// the inner calls are not events.
#[inline(always)]
fn forward_call<T>(caller: Caller, size: usize, block: *mut u8, call: impl FnOnce() -> T) -> T {
    if next::is_glibc() { call() } else { mark_forwarded(caller, size, block, call) }
}

/// The same for a call that makes inner calls in glibc too: `reallocarray` is a multiplication and
/// a `realloc`.
#[inline(always)]
fn mark_forwarded<T>(caller: Caller, size: usize, block: *mut u8, call: impl FnOnce() -> T) -> T {
    let marked = mark(caller, Request::of_block(size, block));
    let result = call();
    if marked {
        unmark(caller);
    }
    result
}

/// Marks the start of a forwarded call. Returns whether [`unmark`] has to follow. It is not
/// inlined, since glibc's allocator needs it for `reallocarray` only.
#[inline(never)]
fn mark(caller: Caller, request: Request) -> bool {
    let state = claim::state(caller.sp);
    // SAFETY: the thread's own state, or null; `caller` is the stub's.
    thread::is_traced(state) && unsafe { guard::forward(state, caller.sp, request) }
}

/// Marks the end of a forwarded call that [`mark`] has marked.
#[inline(never)]
fn unmark(caller: Caller) {
    let state = thread::get();
    if thread::is_traced(state) {
        // SAFETY: the thread's own state, in the same call that has marked it.
        unsafe { guard::forwarded(state, caller.sp) };
    }
}

/// Records a block, unless it is null or from the bootstrap arena, and returns it.
#[inline(always)]
fn record_alloc(op: Op, block: *mut u8, size: usize, caller: Caller) -> *mut u8 {
    if !block.is_null() && !bootstrap_arena::owns(block) {
        allocated(op, block, size, caller);
    }
    block
}

/// The body of `malloc`.
pub(crate) unsafe extern "C" fn malloc(size: usize, caller: Caller) -> *mut u8 {
    // SAFETY: the arguments are the program's, passed on unchanged.
    record_alloc(Op::MALLOC, unsafe { next::malloc(size) }, size, caller)
}

/// The body of `malloc` in the sampled mode.
pub(crate) unsafe extern "C" fn malloc_sampled(size: usize, caller: Caller) -> *mut u8 {
    // SAFETY: the arguments are the program's, passed on unchanged.
    unsafe { if is_sampled_out(size) { next::malloc(size) } else { malloc(size, caller) } }
}

/// The body of `calloc`.
pub(crate) unsafe extern "C" fn calloc(count: usize, size: usize, caller: Caller) -> *mut u8 {
    let bytes = count.wrapping_mul(size);
    // SAFETY: the arguments are the program's, passed on unchanged. An overflow makes it fail, so
    // that `bytes` is not used.
    record_alloc(
        Op::CALLOC,
        forward_call(caller, bytes, core::ptr::null_mut(), || unsafe { next::calloc(count, size) }),
        bytes,
        caller,
    )
}

/// Implements `realloc` and `reallocarray`. `ops` are the op of an allocation and that of a resize.
#[inline(always)]
fn resize(block: *mut u8, size: usize, caller: Caller, ops: [Op; 2], call: impl FnOnce() -> *mut u8) -> *mut u8 {
    let [first, again] = ops;
    if block.is_null() {
        return record_alloc(first, call(), size, caller);
    }
    if bootstrap_arena::owns(block) {
        return leave_arena(block, size, first, caller);
    }
    let begun = resize_begins(block, size, caller);
    let new = call();
    if let Some(begun) = begun {
        resize_ends(begun, again, block, new, size, caller);
    }
    new
}

/// Implements the functions that programs rarely reallocate by. One copy serves all of them.
#[inline(never)]
fn resize_rarely(block: *mut u8, size: usize, caller: Caller, ops: [Op; 2], call: &dyn Fn() -> *mut u8) -> *mut u8 {
    resize(block, size, caller, ops, call)
}

/// Reallocates a block of the bootstrap arena.
#[cold]
fn leave_arena(block: *mut u8, size: usize, op: Op, caller: Caller) -> *mut u8 {
    // SAFETY: a new block of `size` bytes; the old one holds its own size and stays where it is for
    // ever.
    unsafe {
        let new = next::malloc(size);
        if !new.is_null() {
            core::ptr::copy_nonoverlapping(block, new, bootstrap_arena::size(block).min(size));
        }
        record_alloc(op, new, size, caller)
    }
}

/// The body of `realloc`.
pub(crate) unsafe extern "C" fn realloc(block: *mut u8, size: usize, caller: Caller) -> *mut u8 {
    // SAFETY: the arguments are the program's, passed on unchanged.
    let call = || unsafe { next::realloc(block, size) };
    resize(block, size, caller, [Op::REALLOC, Op::RESIZE], || forward_call(caller, size, block, call))
}

/// The body of `reallocarray`.
pub(crate) unsafe extern "C" fn reallocarray(block: *mut u8, count: usize, size: usize, caller: Caller) -> *mut u8 {
    // SAFETY: the arguments are the program's, passed on unchanged; when the product overflows it
    // fails and leaves the block as it is.
    let call = || unsafe { next::reallocarray(block, count, size) };
    match count.checked_mul(size) {
        Some(bytes) => {
            let ops = [Op::REALLOCARRAY, Op::RESIZE_ARRAY];
            resize_rarely(block, bytes, caller, ops, &|| mark_forwarded(caller, bytes, block, call))
        }
        None => call(),
    }
}

/// The body of `posix_memalign`.
pub(crate) unsafe extern "C" fn posix_memalign(out: *mut *mut u8, align: usize, size: usize, caller: Caller) -> c_int {
    // SAFETY: the arguments are the program's, passed on unchanged; on success `*out` is the block.
    unsafe {
        let result = forward_call(caller, size, core::ptr::null_mut(), || next::posix_memalign(out, align, size));
        if result == 0 {
            record_alloc(Op::POSIX_MEMALIGN, *out, size, caller);
        }
        result
    }
}

/// The body of `aligned_alloc`.
pub(crate) unsafe extern "C" fn aligned_alloc(align: usize, size: usize, caller: Caller) -> *mut u8 {
    // SAFETY: the arguments are the program's, passed on unchanged.
    record_alloc(
        Op::ALIGNED_ALLOC,
        forward_call(caller, size, core::ptr::null_mut(), || unsafe { next::aligned_alloc(align, size) }),
        size,
        caller,
    )
}

/// Implements the functions that programs rarely allocate by. One copy serves all of them.
#[inline(never)]
fn alloc_rarely(op: Op, size: usize, caller: Caller, call: &dyn Fn() -> *mut u8) -> *mut u8 {
    record_alloc(op, forward_call(caller, size, core::ptr::null_mut(), call), size, caller)
}

/// The body of `memalign`.
pub(crate) unsafe extern "C" fn memalign(align: usize, size: usize, caller: Caller) -> *mut u8 {
    // SAFETY: the arguments are the program's, passed on unchanged.
    alloc_rarely(Op::MEMALIGN, size, caller, &|| unsafe { next::memalign(align, size) })
}

/// The body of `valloc`.
pub(crate) unsafe extern "C" fn valloc(size: usize, caller: Caller) -> *mut u8 {
    // SAFETY: the arguments are the program's, passed on unchanged.
    alloc_rarely(Op::VALLOC, size, caller, &|| unsafe { next::valloc(size) })
}

/// The body of `pvalloc`.
pub(crate) unsafe extern "C" fn pvalloc(size: usize, caller: Caller) -> *mut u8 {
    // SAFETY: the arguments are the program's, passed on unchanged.
    alloc_rarely(Op::PVALLOC, size, caller, &|| unsafe { next::pvalloc(size) })
}

/// Implements all functions that free a block.
#[inline(always)]
fn free_by(op: Op, block: *mut u8, caller: Caller, call: impl FnOnce()) {
    if block.is_null() {
        return call();
    }
    if bootstrap_arena::owns(block) {
        return;
    }
    freed(op, block, caller);
    call();
}

/// The body of `free`.
pub(crate) unsafe extern "C" fn free(block: *mut u8, caller: Caller) {
    // SAFETY: the arguments are the program's, passed on unchanged.
    free_by(Op::FREE, block, caller, || unsafe { next::free(block) });
}

/// The body of `free` in the sampled mode.
pub(crate) unsafe extern "C" fn free_sampled(block: *mut u8, caller: Caller) {
    // SAFETY: the arguments are the program's, passed on unchanged.
    unsafe {
        if !bootstrap_arena::owns(block) && is_free_sampled_out(block) {
            next::free(block)
        } else {
            free(block, caller)
        }
    }
}

/// Records a free by a function that programs rarely call. One copy serves all of them.
#[inline(never)]
fn freed_rarely(op: Op, block: *mut u8, caller: Caller) {
    freed(op, block, caller);
}

/// Implements the functions that programs rarely free by.
#[inline(never)]
fn free_rarely(op: Op, block: *mut u8, caller: Caller, call: &dyn Fn()) {
    if block.is_null() {
        return call();
    }
    if !bootstrap_arena::owns(block) {
        freed_rarely(op, block, caller);
        forward_call(caller, 0, block, call);
    }
}

/// The body of `cfree`.
pub(crate) unsafe extern "C" fn cfree(block: *mut u8, caller: Caller) {
    // SAFETY: the arguments are the program's, passed on unchanged.
    free_rarely(Op::CFREE, block, caller, &|| unsafe { next::cfree(block) });
}

/// The body of `free_sized`.
pub(crate) unsafe extern "C" fn free_sized(block: *mut u8, size: usize, caller: Caller) {
    // SAFETY: the arguments are the program's, passed on unchanged.
    free_rarely(Op::FREE_SIZED, block, caller, &|| unsafe { next::free_sized(block, size) });
}

/// The body of `free_aligned_sized`.
pub(crate) unsafe extern "C" fn free_aligned_sized(block: *mut u8, align: usize, size: usize, caller: Caller) {
    // SAFETY: the arguments are the program's, passed on unchanged.
    let call = || unsafe { next::free_aligned_sized(block, align, size) };
    free_rarely(Op::FREE_ALIGNED_SIZED, block, caller, &call);
}

/// The body of `malloc_usable_size`, which is not an event.
pub(crate) unsafe extern "C" fn malloc_usable_size(block: *mut u8) -> usize {
    if bootstrap_arena::owns(block) {
        // SAFETY: a block of the arena, as checked.
        return unsafe { bootstrap_arena::size(block) };
    }
    // SAFETY: the arguments are the program's, passed on unchanged.
    unsafe { next::malloc_usable_size(block) }
}

macro_rules! operators {
    ($($index:literal $symbol:ident $name:literal $shape:ident $op:ident;)*) => {
        /// Names of the C++ operators, by their number in this list.
        pub(crate) const OPERATORS: [&CStr; [$($name),*].len()] = [$($name),*];
        /// Exported stubs of the C++ operators.
        #[cfg(not(any(test, feature = "standalone")))]
        pub(crate) mod exported_operators {
            $(crate::hooks::entry::operator_stub!($symbol, $index, $shape);)*
        }
        const OPERATOR_OPS: [Op; OPERATORS.len()] = [$(Op::$op),*];
    };
}

operators! {
    0 _Znwm c"_Znwm" new NEW;
    1 _Znam c"_Znam" new NEW_ARRAY;
    2 _ZnwmRKSt9nothrow_t c"_ZnwmRKSt9nothrow_t" new NEW;
    3 _ZnamRKSt9nothrow_t c"_ZnamRKSt9nothrow_t" new NEW_ARRAY;
    4 _ZnwmSt11align_val_t c"_ZnwmSt11align_val_t" new NEW;
    5 _ZnamSt11align_val_t c"_ZnamSt11align_val_t" new NEW_ARRAY;
    6 _ZnwmSt11align_val_tRKSt9nothrow_t c"_ZnwmSt11align_val_tRKSt9nothrow_t" new NEW;
    7 _ZnamSt11align_val_tRKSt9nothrow_t c"_ZnamSt11align_val_tRKSt9nothrow_t" new NEW_ARRAY;
    8 _ZdlPv c"_ZdlPv" delete DELETE;
    9 _ZdaPv c"_ZdaPv" delete DELETE_ARRAY;
    10 _ZdlPvm c"_ZdlPvm" delete DELETE;
    11 _ZdaPvm c"_ZdaPvm" delete DELETE_ARRAY;
    12 _ZdlPvRKSt9nothrow_t c"_ZdlPvRKSt9nothrow_t" delete DELETE;
    13 _ZdaPvRKSt9nothrow_t c"_ZdaPvRKSt9nothrow_t" delete DELETE_ARRAY;
    14 _ZdlPvSt11align_val_t c"_ZdlPvSt11align_val_t" delete DELETE;
    15 _ZdaPvSt11align_val_t c"_ZdaPvSt11align_val_t" delete DELETE_ARRAY;
    16 _ZdlPvmSt11align_val_t c"_ZdlPvmSt11align_val_t" delete DELETE;
    17 _ZdaPvmSt11align_val_t c"_ZdaPvmSt11align_val_t" delete DELETE_ARRAY;
    18 _ZdlPvSt11align_val_tRKSt9nothrow_t c"_ZdlPvSt11align_val_tRKSt9nothrow_t" delete DELETE;
    19 _ZdaPvSt11align_val_tRKSt9nothrow_t c"_ZdaPvSt11align_val_tRKSt9nothrow_t" delete DELETE_ARRAY;
}

/// Numbers of the forms of `operator new` that have an alignment.
const ALIGNED_NEW: core::ops::RangeInclusive<usize> = 4..=7;

/// Number of the first form of `operator delete`.
pub(crate) const FIRST_DELETE: usize = 8;

/// Returns whether a form of an operator has no alignment.
pub(crate) fn is_plain_form(which: usize) -> bool {
    !matches!(which, 4..=7 | 14..=19)
}

/// Implements `operator new` where the next definition is the C++ run-time's, which is a call of
/// `malloc`, and what to do if that fails. Returns null if the next definition has to be called:
/// because it is another one, or to do what is to be done after a failure.
pub(crate) unsafe extern "C" fn new_direct(size: usize, which: usize, caller: Caller) -> *mut u8 {
    // SAFETY: the size is the program's, and 1 for 0 as in the run-time; `caller` is the stub's.
    unsafe {
        if !operators::is_runtime(which, caller.return_address()) {
            return core::ptr::null_mut();
        }
        record_alloc(OPERATOR_OPS[which], next::malloc(size.max(1)), size, caller)
    }
}

/// The same in the sampled mode.
pub(crate) unsafe extern "C" fn new_direct_sampled(size: usize, which: usize, caller: Caller) -> *mut u8 {
    // SAFETY: as `new_direct`.
    unsafe {
        if operators::is_runtime(which, caller.return_address()) && is_sampled_out(size) {
            return next::malloc(size.max(1));
        }
        new_direct(size, which, caller)
    }
}

/// Runs before `operator new`: marks the call as forwarded and returns the next definition. The
/// stub calls that itself, so that an exception thrown there passes through a frame that has
/// nothing but its size.
///
/// The aligned forms may request their size rounded up to the alignment, which is their second
/// argument.
pub(crate) unsafe extern "C" fn new_begins(size: usize, which: usize, sp: usize, second: usize) -> *mut c_void {
    let state = claim::state(sp);
    // SAFETY: the thread's own state, or null; `caller` is the stub's.
    unsafe {
        if thread::is_traced(state) {
            let slack = if ALIGNED_NEW.contains(&which) { second.wrapping_sub(1) } else { 0 };
            guard::forward(state, sp, Request { size, slack, address: 0 });
        }
        let next = operators::next(which, (sp as *const usize).read());
        if next.is_null() { entry::new_without_next as *mut c_void } else { next }
    }
}

/// Runs after `operator new`, and records the block.
pub(crate) unsafe extern "C" fn new_ends(block: *mut u8, size: usize, which: usize, caller: Caller) -> *mut u8 {
    let state = thread::get();
    // SAFETY: the thread's own state; `caller` is the stub's.
    let is_outer = !thread::is_traced(state)
        || unsafe {
            let is_outer = !(*state).activation.has(thread::FORWARDING) || (*state).forwarded.sp == caller.sp;
            guard::forwarded(state, caller.sp);
            is_outer
        };
    if is_outer { record_alloc(OPERATOR_OPS[which], block, size, caller) } else { block }
}

/// The body of `operator delete`. `second` and `third` hold the further arguments of the form, if
/// it has any. That of the C++ run-time is a call of `free`.
pub(crate) unsafe extern "C" fn delete(block: *mut u8, second: usize, third: usize, which: usize, caller: Caller) {
    // SAFETY: the arguments are the program's, passed on unchanged; `caller` is the stub's.
    unsafe {
        let from = caller.return_address();
        free_by(OPERATOR_OPS[which], block, caller, || {
            if operators::is_runtime(which, from) {
                return next::free(block);
            }
            let next = operators::next(which, from);
            if next.is_null() {
                return next::free(block);
            }
            // SAFETY: every form takes at most three arguments in registers and returns nothing.
            let next: unsafe extern "C" fn(*mut u8, usize, usize) = core::mem::transmute(next);
            let state = claim::state(caller.sp);
            let marked = thread::is_traced(state) && guard::forward(state, caller.sp, Request::of_block(0, block));
            next(block, second, third);
            if marked {
                guard::forwarded(state, caller.sp);
            }
        });
    }
}

/// The body of `operator delete` in the sampled mode.
pub(crate) unsafe extern "C" fn delete_sampled(
    block: *mut u8,
    second: usize,
    third: usize,
    which: usize,
    caller: Caller,
) {
    // SAFETY: as `delete`.
    unsafe {
        if operators::is_runtime(which, caller.return_address())
            && !bootstrap_arena::owns(block)
            && is_free_sampled_out(block)
        {
            next::free(block)
        } else {
            delete(block, second, third, which, caller)
        }
    }
}

entry::exports! {
    malloc 1 malloc malloc_sampled;
    calloc 2 calloc calloc;
    realloc 2 realloc realloc;
    reallocarray 3 reallocarray reallocarray;
    posix_memalign 3 posix_memalign posix_memalign;
    aligned_alloc 2 aligned_alloc aligned_alloc;
    memalign 2 memalign memalign;
    valloc 1 valloc valloc;
    pvalloc 1 pvalloc pvalloc;
    free 1 free free_sampled;
    cfree 1 cfree cfree;
    free_sized 2 free_sized free_sized;
    free_aligned_sized 3 free_aligned_sized free_aligned_sized;
    __libc_malloc 1 libc_malloc libc_malloc;
    __libc_calloc 2 libc_calloc libc_calloc;
    __libc_realloc 2 libc_realloc libc_realloc;
    __libc_memalign 2 libc_memalign libc_memalign;
    __libc_valloc 1 libc_valloc libc_valloc;
    __libc_pvalloc 1 libc_pvalloc libc_pvalloc;
    __libc_free 1 libc_free libc_free;
}

/// Sets the targets of all exports.
#[cfg_attr(test, allow(dead_code))]
pub(crate) fn choose_targets(mode: crate::mode::EntryMode) {
    choose_exports(mode);
    entry::choose_operators(mode);
}
