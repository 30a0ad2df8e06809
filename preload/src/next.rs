//! The next definitions of the allocator's functions: found once, and called for every call.
//!
//! Each pointer starts at a boot function, so that the fast path has no check. The first call of
//! any of them resolves all pointers. Calls that arrive meanwhile, from another thread or a signal
//! handler, are served by the bootstrap arena.

use crate::dynsym::{self, Scope, Wanted};
use crate::{bootstrap_arena, sys};
use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};

macro_rules! next_functions {
    ($($name:ident ($($arg:ident: $kind:ty),*) -> $result:ty, $body:expr;)*) => {
        $(
            #[doc = concat!("The next `", stringify!($name), "`.")]
            #[inline(always)]
            #[allow(non_snake_case)]
            pub(crate) unsafe fn $name($($arg: $kind),*) -> $result {
                let pointer = pointers::$name.load(Relaxed);
                // SAFETY: the pointer is the boot function of the same type or what was found under
                // this name; the arguments are the program's own.
                unsafe { core::mem::transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) -> $result>(pointer)($($arg),*) }
            }
        )*
        /// The addresses of the next functions.
        #[allow(missing_docs, non_upper_case_globals, non_snake_case)]
        pub(crate) mod pointers {
            use super::*;
            $(
                pub(crate) static $name: AtomicPtr<c_void> = AtomicPtr::new(boot::$name as *mut c_void);
            )*
        }
        /// The first targets: each finds all next definitions and jumps to its own.
        #[allow(non_snake_case)]
        mod boot {
            $(
                #[unsafe(link_section = "heaptape_stubs")]
                #[unsafe(naked)]
                pub(crate) unsafe extern "C" fn $name() {
                    crate::arch::numbered_stub!(super::Number::$name as u32, super::first_call)
                }
            )*
        }
        /// Replacements where there is no next definition, or while it is not known yet.
        #[allow(non_snake_case)]
        mod missing {
            use super::*;
            $(
                pub(crate) unsafe extern "C" fn $name($($arg: $kind),*) -> $result {
                    $body
                }
            )*
        }
        #[allow(non_camel_case_types)]
        #[derive(Clone, Copy)]
        enum Number {
            $($name,)*
        }
        /// The names, each with a zero at its end: a list of addresses would be relocated at each
        /// start.
        const TEXT: &str = concat!($(stringify!($name), "\0"),*);
        /// Returns the variable for the address of a next function, and the function's replacement
        /// if there is none.
        #[inline(never)]
        fn slot(number: usize) -> Option<(&'static AtomicPtr<c_void>, *mut c_void)> {
            $(
                if number == Number::$name as usize {
                    return Some((&pointers::$name, missing::$name as *mut c_void));
                }
            )*
            None
        }
    };
}

next_functions! {
    free (block: *mut u8) -> (), { let _ = block; };
    realloc (block: *mut u8, size: usize) -> *mut u8, move_out(block, size);
    malloc (size: usize) -> *mut u8, bootstrap_arena::alloc(size, 16);
    calloc (count: usize, size: usize) -> *mut u8, {
        count.checked_mul(size).map_or(core::ptr::null_mut(), |bytes| bootstrap_arena::alloc(bytes, 16))
    };
    reallocarray (block: *mut u8, count: usize, size: usize) -> *mut u8, {
        match count.checked_mul(size) {
            // SAFETY: the program's own arguments, with the product checked as `reallocarray` does.
            Some(bytes) => unsafe { super::realloc(block, bytes) },
            None => { sys::set_errno(libc::ENOMEM); core::ptr::null_mut() }
        }
    };
    memalign (align: usize, size: usize) -> *mut u8, bootstrap_arena::alloc(size, align);
    aligned_alloc (align: usize, size: usize) -> *mut u8, {
        // SAFETY: an allocator without `aligned_alloc` gets the older call of the same meaning.
        unsafe { super::memalign(align, size) }
    };
    posix_memalign (out: *mut *mut u8, align: usize, size: usize) -> c_int, {
        // SAFETY: the arguments are the program's, passed on unchanged; `out` is the program's.
        unsafe {
            let block = super::memalign(align, size);
            if block.is_null() { libc::ENOMEM } else { *out = block; 0 }
        }
    };
    valloc (size: usize) -> *mut u8, {
        // SAFETY: the size is the program's.
        unsafe { super::memalign(4096, size) }
    };
    pvalloc (size: usize) -> *mut u8, {
        // SAFETY: the size is the program's.
        unsafe { super::memalign(4096, size.next_multiple_of(4096)) }
    };
    cfree (block: *mut u8) -> (), {
        // SAFETY: the block is the program's.
        unsafe { super::free(block) }
    };
    free_sized (block: *mut u8, size: usize) -> (), {
        let _ = size;
        // SAFETY: C23 defines it as `free` with a known size.
        unsafe { super::free(block) }
    };
    free_aligned_sized (block: *mut u8, align: usize, size: usize) -> (), {
        let _ = (align, size);
        // SAFETY: C23 defines it as `free` with a known size and alignment.
        unsafe { super::free(block) }
    };
    // glibc's own functions, past every other allocator; another libc has none that anybody calls.
    __libc_malloc (size: usize) -> *mut u8, {
        // SAFETY: the arguments are the program's, passed on unchanged.
        unsafe { super::malloc(size) }
    };
    __libc_calloc (count: usize, size: usize) -> *mut u8, {
        // SAFETY: the arguments are the program's, passed on unchanged.
        unsafe { super::calloc(count, size) }
    };
    __libc_realloc (block: *mut u8, size: usize) -> *mut u8, {
        // SAFETY: the arguments are the program's, passed on unchanged.
        unsafe { super::realloc(block, size) }
    };
    __libc_memalign (align: usize, size: usize) -> *mut u8, {
        // SAFETY: the arguments are the program's, passed on unchanged.
        unsafe { super::memalign(align, size) }
    };
    __libc_valloc (size: usize) -> *mut u8, {
        // SAFETY: the arguments are the program's, passed on unchanged.
        unsafe { super::valloc(size) }
    };
    __libc_pvalloc (size: usize) -> *mut u8, {
        // SAFETY: the arguments are the program's, passed on unchanged.
        unsafe { super::pvalloc(size) }
    };
    __libc_free (block: *mut u8) -> (), {
        // SAFETY: the arguments are the program's, passed on unchanged.
        unsafe { super::free(block) }
    };
    malloc_usable_size (block: *mut u8) -> usize, { let _ = block; 0 };
    mlockall (flags: c_int) -> c_int, { let _ = flags; sys::set_errno(libc::ENOSYS); -1 };
    dlclose (handle: *mut c_void) -> c_int, { let _ = handle; -1 };
    fork () -> c_int, raw_fork();
    _Fork () -> c_int, raw_fork();
    prctl (option: c_int, a: u64, b: u64, c: u64, d: u64) -> c_int, {
        let _ = (option, a, b, c, d);
        sys::set_errno(libc::ENOSYS);
        -1
    };
    posix_spawn (pid: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void, argv: *const *const c_char, environment: *const *const c_char) -> c_int, {
        let _ = (pid, path, actions, attributes, argv, environment);
        libc::ENOSYS
    };
    posix_spawnp (pid: *mut c_int, path: *const c_char, actions: *const c_void, attributes: *const c_void, argv: *const *const c_char, environment: *const *const c_char) -> c_int, {
        let _ = (pid, path, actions, attributes, argv, environment);
        libc::ENOSYS
    };
}

fn raw_fork() -> c_int {
    crate::arch::fork() as c_int
}

/// Implements `realloc` of a block in the bootstrap arena, by a new block with the old bytes.
fn move_out(block: *mut u8, size: usize) -> *mut u8 {
    // SAFETY: before the next allocator is known, every block comes from the arena.
    let old = if block.is_null() { 0 } else { unsafe { bootstrap_arena::size(block) } };
    let new = bootstrap_arena::alloc(size, 16);
    if !new.is_null() && !block.is_null() {
        // SAFETY: both blocks hold at least the smaller size.
        unsafe { core::ptr::copy_nonoverlapping(block, new, old.min(size)) };
    }
    new
}

/// The entry of all first targets. It preserves the arguments.
#[unsafe(naked)]
unsafe extern "C" fn first_call() {
    crate::arch::numbered_frame!(first_target)
}

/// Returns what the first call of a function jumps to.
unsafe extern "C" fn first_target(_: *const usize, number: usize) -> *mut c_void {
    let Some((next, missing)) = slot(number) else { return core::ptr::null_mut() };
    if resolve() { next.load(Relaxed) } else { missing }
}

/// Finds all next definitions.
#[inline(never)]
fn find_all() {
    let (mut left, mut number) = (TEXT.as_bytes(), 0);
    while !left.is_empty() {
        let mut wanted = [const { Wanted::new(c"") }; dynsym::MOST];
        // The compiler would unroll these loops.
        for wanted in core::hint::black_box(&mut wanted[..]) {
            let Some(name) = sys::c_text(left) else { break };
            *wanted = Wanted::new(name);
            left = &left[name.count_bytes() + 1..];
        }
        dynsym::find(Scope::Next, false, &mut wanted);
        for Wanted { found, .. } in core::hint::black_box(&wanted[..]) {
            if let Some((next, missing)) = slot(number) {
                next.store(if found.is_null() { missing } else { *found }, Relaxed);
            }
            number += 1;
        }
    }
}

const UNRESOLVED: u32 = 0;
const RESOLVING: u32 = 1;
const RESOLVED: u32 = 2;
static STATE: AtomicU32 = AtomicU32::new(UNRESOLVED);
static IS_GLIBC: AtomicBool = AtomicBool::new(false);

/// Finds the next definitions. Returns false while another call is doing so.
pub(crate) fn resolve() -> bool {
    match STATE.compare_exchange(UNRESOLVED, RESOLVING, Acquire, Acquire) {
        Ok(_) => {
            let mut wanted = [c"_dl_find_object", c"__libc_single_threaded"].map(Wanted::new);
            dynsym::find(Scope::Any, false, &mut wanted);
            let [finder, flag] = wanted.map(|wanted| wanted.found);
            crate::elf::objects::find_loader(finder);
            find_all();
            dynsym::find_other_malloc();
            IS_GLIBC.store(pointers::__libc_malloc.load(Relaxed) == pointers::malloc.load(Relaxed), Relaxed);
            crate::timestamp::watch_threads(flag.cast());
            STATE.store(RESOLVED, Release);
            true
        }
        Err(state) => state == RESOLVED,
    }
}

/// Does something during which libc's `calloc` returns memory of the bootstrap arena, which is
/// never freed and no event.
#[cfg(not(any(test, feature = "standalone")))]
pub(crate) fn calloc_from_arena(body: impl FnOnce()) {
    let next = pointers::calloc.swap(missing::calloc as *mut c_void, Relaxed);
    body();
    pointers::calloc.store(next, Relaxed);
}

/// Returns whether the next definitions are known.
pub(crate) fn is_resolved() -> bool {
    STATE.load(Acquire) == RESOLVED
}

/// Returns whether the next allocator is glibc's own, whose functions do not call each other by
/// their public names.
#[inline(always)]
pub(crate) fn is_glibc() -> bool {
    IS_GLIBC.load(Relaxed)
}
