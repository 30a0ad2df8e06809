//! The end of a process that calls `exit` or returns from `main`: it is announced to a recorder
//! that wants to read the memory once more, and the process waits for it. Other ends are not
//! announced.
//!
//! libc runs the destructors of the main thread's `thread_local` objects first, then those of
//! global objects and `atexit` functions, and ours (`.fini_array`) last: by then a global cache is
//! empty. So we register the first destructor of a `thread_local` object, which runs as the last of
//! its kind, before all others.

use super::exec::{child_faults, send};
use crate::boot::attach;
use crate::dynsym::{self, Scope, Wanted};
use crate::sys::{self, Need};
use crate::thread::descriptor_thread;
use crate::{next, session};
use core::ffi::{c_int, c_void};
use core::sync::atomic::Ordering::Relaxed;
use heaptape_wire::area::{ANNOUNCE_LARGE, ANNOUNCE_PAGES, ANNOUNCE_REFERENCES, LARGE_KIB};
use heaptape_wire::hello::{Hello, ORIGIN_BEFORE_EXIT, ORIGIN_EXIT, REFERENCES_MS};

/// `__cxa_thread_atexit_impl`: destructor, object, and any address in the module that has both.
type AtThreadExit = unsafe extern "C" fn(unsafe extern "C" fn(), *mut c_void, *const c_void) -> c_int;

/// Registers the announcement before all destructors of global objects, if the recorder wants it.
/// Runs in the main thread, before `main`.
pub(crate) fn prepare() {
    let is_wanted = |header: &heaptape_wire::Header| header.announce_exit.load(Relaxed) & ANNOUNCE_REFERENCES != 0;
    if session::area().is_none_or(|area| !is_wanted(area.header())) {
        return;
    }
    let mut wanted = [Wanted::new(c"__cxa_thread_atexit_impl")];
    dynsym::find(Scope::Any, false, &mut wanted);
    let [Wanted { found, .. }] = wanted;
    if found.is_null() {
        return;
    }
    // glibc allocates a list entry, and frees it after the call: from the bootstrap arena, so that
    // neither is an event.
    next::calloc_from_arena(|| {
        // SAFETY: libc's function of this name and type (C++ ABI, 3.3.6); the destructor takes no
        // argument that it reads, and this library is never unloaded by the loader.
        unsafe {
            let register: AtThreadExit = core::mem::transmute::<*mut c_void, AtThreadExit>(found);
            register(before_exit, core::ptr::null_mut(), prepare as *const c_void);
        }
    });
}

/// Keeps the registers of the caller on the stack, where the recorder finds them.
#[unsafe(naked)]
unsafe extern "C" fn before_exit() {
    crate::arch::saved_frame!(announce_references)
}

/// Announces the end before destructors run.
extern "C" fn announce_references() {
    announce(ANNOUNCE_REFERENCES, ORIGIN_BEFORE_EXIT);
}

/// Announces the end after the destructors of the program.
pub(crate) fn announce_exit() {
    announce(ANNOUNCE_PAGES | ANNOUNCE_REFERENCES, ORIGIN_EXIT);
}

/// Returns the most memory that this process has had at a time, or a program before it.
fn most_resident_kib() -> u64 {
    // After two times.
    const MOST_RESIDENT: usize = 4;
    sys::usage(libc::RUSAGE_SELF)[MOST_RESIDENT]
}

/// Sends a message if the recorder wants one of these, and waits until it has read the memory.
fn announce(mut wanted: u32, origin: u32) {
    let Some(area) = session::area().filter(|_| Need::ATTACH.is_allowed()) else { return };
    let header = area.header();
    if wanted & ANNOUNCE_PAGES != 0 {
        header.child_faults.store(child_faults() + 1, Relaxed);
        wanted |= u32::from(most_resident_kib() > LARGE_KIB) * ANNOUNCE_LARGE;
    }
    let announced = header.announce_exit.load(Relaxed) & wanted;
    if announced != 0
        && let Some(socket) = attach::socket_path()
    {
        let message = Hello { origin, ..Hello::default() }.encode();
        let reads_memory = announced & ANNOUNCE_REFERENCES != 0;
        let longest = sys::kernel_ns() + REFERENCES_MS * 1_000_000;
        let deadline = if reads_memory { longest } else { attach::deadline() };
        descriptor_thread::run(false, |_| {
            send(socket, &message, deadline, reads_memory);
        });
    }
}
