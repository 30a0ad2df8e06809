//! The start of the library in a program without a loader (a static program), and the few functions
//! of libc and of the loader that it uses. The program's own ones cannot be called: they have no
//! names, and at the start they are not initialized.
//!
//! The recorder maps this library into the new process before its first instruction, and lets it
//! run from [`heaptape_program_entry`], with the stack that the kernel has prepared. The library
//! attaches the process as it does elsewhere, and hooks the allocator as it does inside of other
//! programs. Then the program begins.

use crate::elf::objects;
use crate::session::{self, private};
use crate::{arch, boot, next, sampling, thread};
use core::ffi::{c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use heaptape_wire::standalone::{ATTACHED_CALL, AttachRequest};

/// The first instruction of the process.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn heaptape_program_entry() {
    crate::arch::program_entry_stub!(start)
}

/// The kernel's pairs of numbers about the process (the auxiliary vector).
static AUXILIARY: AtomicPtr<[usize; 2]> = AtomicPtr::new(core::ptr::null_mut());
/// The list of the environment at the start.
#[unsafe(no_mangle)]
static environ: AtomicPtr<*const c_char> = AtomicPtr::new(core::ptr::null_mut());

/// Attaches the process, and returns the address at which the program begins. `stack` is as the
/// kernel has prepared it: the number of arguments, the arguments, the environment, and the
/// auxiliary vector, each but the first with a null word at its end.
unsafe extern "C" fn start(stack: *const usize) -> usize {
    // SAFETY: the layout is part of the system's interface (System V ABI for x86-64, figure 3.9).
    unsafe {
        let mut at = stack.add(stack.read() + 2);
        environ.store(at.cast_mut().cast(), Relaxed);
        while at.read() != 0 {
            at = at.add(1);
        }
        AUXILIARY.store(at.add(1).cast_mut().cast(), Relaxed);
    }
    next::resolve();
    let _ = boot::attach::area();
    getauxval(libc::AT_ENTRY) as usize
}

/// The first instruction in a program that runs already. The recorder has stopped one of its
/// threads, which runs this on a stack of the library's own.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn heaptape_attach_entry() {
    crate::arch::visit_stub!(attach, ATTACHED_CALL)
}

/// The same at the end, when no thread is in the library's code any more.
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn heaptape_leave_entry() {
    crate::arch::visit_stub!(leave, ATTACHED_CALL)
}

/// How the process attaches. The recorder fills this in before the library runs.
#[unsafe(no_mangle)]
static mut heaptape_attach_request: AttachRequest = AttachRequest::NONE;

/// Attaches a process that runs already: maps its area, and the code of its hooks. The recorder
/// writes the jumps to it later, while all threads are stopped.
unsafe extern "C" fn attach() {
    // SAFETY: nothing writes to it after the recorder has let this thread run. The compiler does
    // not know that the recorder has written to it.
    let request = unsafe { &*core::hint::black_box(&raw const heaptape_attach_request) };
    AUXILIARY.store((&raw const request.auxiliary).cast_mut().cast(), Relaxed);
    next::resolve();
    objects::find_loader(request.finder as *mut c_void);
    boot::attach::adopt_area(request.descriptor as i32, request.area_bytes);
}

/// Unmaps the library's memory but its own file's.
unsafe extern "C" fn leave() {
    if let Some(area) = session::area() {
        session::close();
        area.unmap();
        private::give_up(thread::STATE_BYTES);
        sampling::give_up();
    }
}

/// Returns a number about the process, as libc's function does.
#[unsafe(no_mangle)]
extern "C" fn getauxval(kind: u64) -> u64 {
    let mut pair = AUXILIARY.load(Relaxed);
    while !pair.is_null() {
        // SAFETY: the vector ends with a pair of this kind.
        let [found, value] = unsafe { pair.read() };
        if found as u64 == kind {
            return value as u64;
        }
        if found as u64 == libc::AT_NULL {
            break;
        }
        pair = pair.wrapping_add(1);
    }
    0
}

/// Reads a clock by a system call.
#[unsafe(no_mangle)]
unsafe extern "C" fn clock_gettime(clock: c_int, time: *mut libc::timespec) -> c_int {
    // SAFETY: the kernel writes to the caller's variable.
    unsafe { arch::syscall(libc::SYS_clock_gettime, [clock as usize, time as usize, 0, 0, 0, 0]) as c_int }
}

/// No object has been loaded by a loader.
#[unsafe(no_mangle)]
extern "C" fn dl_iterate_phdr(_: *mut c_void, _: *mut c_void) -> c_int {
    0
}

/// The variable for errors of this library's own functions, which nobody reads. The program's own
/// is never changed.
#[unsafe(no_mangle)]
extern "C" fn __errno_location() -> *mut c_int {
    static mut ERRNO: c_int = 0;
    &raw mut ERRNO
}

/// Copies memory that does not overlap.
#[unsafe(no_mangle)]
unsafe extern "C" fn memcpy(target: *mut u8, source: *const u8, bytes: usize) -> *mut u8 {
    // SAFETY: both ranges are the caller's.
    unsafe { arch::copy(target, source, bytes) };
    target
}

/// Copies memory that may overlap.
#[unsafe(no_mangle)]
unsafe extern "C" fn memmove(target: *mut u8, source: *const u8, bytes: usize) -> *mut u8 {
    // SAFETY: both ranges are the caller's. A copy in ascending order reads each byte before it is
    // overwritten, if the target is below the source or does not overlap it.
    unsafe {
        if (target as usize).wrapping_sub(source as usize) >= bytes {
            arch::copy(target, source, bytes);
        } else {
            (0..bytes).rev().for_each(|index| {
                target.add(index).write_volatile(source.add(index).read());
            });
        }
    }
    target
}

/// Fills memory with a byte.
#[unsafe(no_mangle)]
unsafe extern "C" fn memset(target: *mut u8, byte: c_int, bytes: usize) -> *mut u8 {
    // SAFETY: the range is the caller's.
    unsafe { arch::fill(target, byte as u8, bytes) };
    target
}

/// Compares memory; 0 if it is equal.
#[unsafe(no_mangle)]
unsafe extern "C" fn bcmp(left: *const u8, right: *const u8, bytes: usize) -> c_int {
    // SAFETY: both ranges are the caller's.
    let differs = |index: usize| unsafe { left.add(index).read_volatile() != right.add(index).read_volatile() };
    c_int::from((0..bytes).any(differs))
}

/// Returns the length of a text.
#[unsafe(no_mangle)]
unsafe extern "C" fn strlen(text: *const u8) -> usize {
    let mut length = 0;
    // SAFETY: the caller's text ends with a zero.
    while unsafe { text.add(length).read_volatile() } != 0 {
        length += 1;
    }
    length
}
