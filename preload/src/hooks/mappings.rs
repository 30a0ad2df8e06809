//! Hooks of the functions that map and unmap memory. Their calls are rare, and no events of the
//! heap: each is recorded like an annotation, with its own timestamp and its stack.
//!
//! An unmapped range is recorded before the call, since another thread may get it at once, and a
//! mapped one after it. The next definition is called where there is one, so other libraries that
//! define these functions work as without this one. Before the next definitions are known, the
//! system call is made, and nothing is recorded.

use crate::caller::Caller;
use crate::record::{is_forwarding, mapping};
use crate::stack::unwind::{code, rules};
use crate::{arch, dynsym, session, sys};
use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicBool, AtomicPtr, Ordering::Relaxed};
use heaptape_wire::Op;
use heaptape_wire::mapping::{ACCESS, pack};

macro_rules! mapping_functions {
    ($($number:literal $name:ident $symbol:literal;)*) => {
        const NAMES: [&CStr; [$($symbol),*].len()] = [$($symbol),*];
        /// Functions with the exported names.
        #[cfg(not(test))]
        pub(crate) mod exported {
            $(
                #[unsafe(no_mangle)]
                #[unsafe(link_section = "heaptape_stubs")]
                #[unsafe(naked)]
                pub(crate) unsafe extern "C" fn $name() {
                    crate::arch::mapping_stub!($number, super::enter)
                }
            )*
        }
    };
}

mapping_functions! {
    0 mmap c"mmap";
    1 mmap64 c"mmap64";
    2 shmat c"shmat";
    3 munmap c"munmap";
    4 shmdt c"shmdt";
    5 mremap c"mremap";
    6 madvise c"madvise";
    7 mprotect c"mprotect";
    8 brk c"brk";
    9 sbrk c"sbrk";
}

/// The bits of an address inside a page.
const MASK: usize = heaptape_wire::mapping::BITS as usize;
const SHMAT: usize = 2;
const MUNMAP: usize = 3;
const SHMDT: usize = 4;
const MREMAP: usize = 5;
const MADVISE: usize = 6;
const MPROTECT: usize = 7;
const BRK: usize = 8;
const SBRK: usize = 9;

/// The system calls of all but the last two functions, which are no plain system calls.
const NUMBERS: [i64; BRK] = [
    libc::SYS_mmap,
    libc::SYS_mmap,
    libc::SYS_shmat,
    libc::SYS_munmap,
    libc::SYS_shmdt,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_mprotect,
];

/// The kinds of advice that return memory: `MADV_DONTNEED`, `MADV_FREE`, `MADV_REMOVE`, and
/// `MADV_DONTNEED_LOCKED`. One bit for each number.
const RETURNING: u64 = 1 << libc::MADV_DONTNEED | 1 << libc::MADV_FREE | 1 << libc::MADV_REMOVE | 1 << 24;

/// Whether the program has reserved memory (`PROT_NONE`). Until then `mprotect` changes nothing
/// that is recorded, as in programs that only make their code executable.
static HAS_RESERVED: AtomicBool = AtomicBool::new(false);

/// The next definitions, by the numbers of the functions.
static NEXT: [AtomicPtr<c_void>; NAMES.len()] = [const { AtomicPtr::new(core::ptr::null_mut()) }; NAMES.len()];

const _: () = assert!(NAMES.len() <= dynsym::MOST);

/// Finds the next definitions. Called when the library is loaded.
pub(crate) fn find_next() {
    dynsym::find_next(&NAMES, &NEXT);
}

/// The entry of all these functions.
#[cfg_attr(test, allow(dead_code))]
#[unsafe(naked)]
unsafe extern "C" fn enter() {
    crate::arch::mapping_frame!(call)
}

/// Makes a call without recording it.
#[inline(never)]
unsafe fn forward(which: usize, arguments: &[usize; 6]) -> isize {
    if which >= BRK && NEXT[which].load(Relaxed).is_null() {
        // A call before this library's own start. No system call does what these functions do.
        find_next();
    }
    let next = NEXT[which].load(Relaxed);
    let [a, b, c, d, e, f] = *arguments;
    if !next.is_null() {
        // SAFETY: the definition that was found under this name; it ignores arguments that it does
        // not have. The others are the program's own.
        return unsafe {
            let next: unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> isize =
                core::mem::transmute(next);
            next(a, b, c, d, e, f)
        };
    }
    let result = match NUMBERS.get(which) {
        // SAFETY: the arguments are the program's, and the result goes to it.
        Some(number) => unsafe { arch::syscall(*number, *arguments) },
        None => -libc::ENOMEM as isize,
    };
    if (-4095..0).contains(&result) {
        sys::set_errno(-result as i32);
        return -1;
    }
    result
}

/// The body of all these functions. `arguments` are the six registers as the stub saved them.
unsafe extern "C" fn call(arguments: &[usize; 6], which: usize, caller: Caller) -> isize {
    // SAFETY: the arguments are the program's, passed on unchanged.
    sys::aligned(|| unsafe { call_aligned(arguments, which, caller) })
}

#[inline(always)]
unsafe fn call_aligned(arguments: &[usize; 6], which: usize, caller: Caller) -> isize {
    let [address, size, third, flags, ..] = *arguments;
    let note = |op: Op, address: usize, size: usize| note(op, address, size, caller);
    // SAFETY: `sbrk` of 0 changes nothing.
    let end_of_data = || unsafe { forward(SBRK, &[0; 6]) as usize };
    let moves_break = which >= BRK && (which != SBRK || address != 0);
    let before = if moves_break { end_of_data() } else { 0 };
    if matches!(which, MUNMAP | MREMAP) || (which < SHMAT && flags & libc::MAP_FIXED as usize != 0) {
        rules::unmapped(address as u64, size as u64);
    }
    match which {
        MUNMAP => note(Op::UNMAP, address, size),
        SHMDT => note(Op::UNMAP, address, 0),
        MREMAP => note(Op::MOVE_BEGIN, address, size),
        _ => {}
    }
    // SAFETY: the arguments are the program's, passed on unchanged.
    let result = unsafe { forward(which, arguments) };
    let new = result as usize;
    if result as i32 != -1 && third & libc::PROT_EXEC as usize != 0 && (which < SHMAT || which == MPROTECT) {
        code::mapped(if which == MPROTECT { address } else { new } as u64, size as u64);
    }
    match which {
        // An `int` is returned in half of the register. No address of a page ends like this.
        _ if result as i32 == -1 => {
            if (MUNMAP..=MREMAP).contains(&which) {
                note(Op::UNMAP_FAILED, 0, 0);
            }
        }
        MUNMAP | SHMDT => {}
        MREMAP => note(Op::MOVED, new | flags & heaptape_wire::mapping::MOVE_FLAGS, third),
        SHMAT => note(Op::MAP_SEGMENT, new, 0),
        MADVISE => {
            if third < 64 && RETURNING >> third & 1 != 0 {
                note(Op::ADVISED, address | third, size);
            }
        }
        MPROTECT => {
            if keep_reserved(third) {
                note(Op::PROTECTED, address | third & ACCESS, size);
            }
        }
        _ if which >= BRK => {
            // The kernel maps whole pages.
            let [before, after] =
                [before, if moves_break { end_of_data() } else { before }].map(|end| end.wrapping_add(MASK) & !MASK);
            if after > before {
                note(Op::BREAK, before, after - before);
            } else if after < before {
                note(Op::UNMAP, after, before - after);
            }
        }
        _ => {
            keep_reserved(third);
            note(Op::MAP, new | pack(third, flags), size);
        }
    }
    result
}

/// Keeps in mind that memory with this access is reserved. Returns whether any is.
#[inline(always)]
fn keep_reserved(access: usize) -> bool {
    if access & ACCESS == 0 {
        HAS_RESERVED.store(true, Relaxed);
    }
    HAS_RESERVED.load(Relaxed)
}

/// Records a call, or counts one of an allocator that serves a request of this thread. Of the other
/// calls of allocators the recorder knows by their stacks.
#[inline(never)]
fn note(op: Op, address: usize, size: usize, caller: Caller) {
    if is_forwarding() {
        match op {
            Op::MAP | Op::BREAK => count_allocators(0, size),
            Op::ADVISED => count_allocators(2, size),
            _ => {}
        }
    } else {
        mapping(op, address as u64, size as u64, caller);
    }
}

/// Counts memory that an allocator maps (`first` is 0) or returns (2).
fn count_allocators(first: usize, bytes: usize) {
    if let Some(area) = session::area() {
        let counts = &area.header().allocator_mapped;
        counts[first].fetch_add(1, Relaxed);
        counts[first + 1].fetch_add(bytes as u64, Relaxed);
    }
}
