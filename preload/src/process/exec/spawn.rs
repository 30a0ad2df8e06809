//! The body of `posix_spawn` and `posix_spawnp`.

use super::environment::{Strings, changed};
use super::{Inspection, folders};
use crate::boot::attach;
use crate::sys::{self, Need};
use crate::thread::descriptor_thread;
use crate::workspace::{self, Workspace};
use crate::{next, session};
use core::ffi::{c_char, c_int, c_void};
use heaptape_wire::hello::LoadRequest;

type Spawn = unsafe fn(*mut c_int, *const c_char, *const c_void, *const c_void, Strings, Strings) -> c_int;

struct Start {
    by_name: bool,
    path: *const c_char,
    actions: *const c_void,
    environment: Strings,
    /// The inspection, at the start of the memory that it ran in.
    inspection: *mut Inspection,
    /// The lists of another environment.
    lists: Option<&'static Workspace>,
    /// The child, whose parent has not reported it.
    unreported: u32,
    is_followed: bool,
}

/// Starts a program by `next`, and notifies the recorder if it will not be recorded. The calling
/// thread's own stack may be small.
///
/// # Safety
/// All arguments must be the program's own.
#[inline(never)]
unsafe fn spawning(
    by_name: bool,
    next: Spawn,
    pid: *mut c_int,
    path: *const c_char,
    options: [*const c_void; 2],
    lists: [Strings; 2],
) -> c_int {
    session::note_child();
    let [actions, attributes] = options;
    let [argv, environment] = lists;
    // SAFETY: the arguments are the program's own, as the caller ensures.
    unsafe {
        let workspace = if attach::watches_starts() { workspace::claim_stack() } else { None };
        let Some(workspace) = workspace else { return next(pid, path, actions, attributes, argv, environment) };
        let inspection = workspace.memory().cast();
        let mut start =
            Start { by_name, path, actions, environment, inspection, lists: None, unreported: 0, is_followed: false };
        // The memory was claimed for a stack, and `start` lives until the calls have returned.
        workspace.run(inspect, (&raw mut start).cast());
        // Where the program wants no number, it goes into a variable of ours.
        let mut child = 0;
        let number = if pid.is_null() { &raw mut child } else { pid };
        let result = next(number, path, actions, attributes, argv, start.environment);
        // The child is running already, so its pid is known and is reported.
        if result == 0 && !start.is_followed && (*inspection).reason.is_some() {
            start.unreported = *number as u32;
            workspace.run(report, (&raw mut start).cast());
        }
        start.lists.into_iter().for_each(Workspace::release);
        workspace.release();
        result
    }
}

/// Inspects the program of a [`Start`], and finds the environment to start it with.
unsafe extern "C" fn inspect(start: *mut c_void) {
    // SAFETY: `spawning` passes its own structure, with memory that it has claimed.
    let (start, inspection) = unsafe {
        let start = &mut *start.cast::<Start>();
        start.inspection.write(Inspection::new());
        let inspection = &mut *start.inspection;
        (start, inspection)
    };
    let (path, environment) = (start.path as usize, Some(start.environment));
    let is_known = Need::INSPECT.is_allowed() && {
        let thread = sys::tid();
        let mut is_followed = false;
        let is_known = descriptor_thread::run(true, |is_apart| {
            // The child looks a relative path up after its own changes of the folder.
            if folders::enter(start.actions, is_apart, path) {
                match start.by_name {
                    true => inspection.name(path, environment),
                    false => inspection.path(path, environment),
                }
            }
            if inspection.is_loadable() {
                is_followed = inspection.report(0, LoadRequest::Spawn, thread);
            }
        });
        start.is_followed = is_followed;
        is_known
    };
    if !is_known {
        inspection.in_sandbox(path, environment);
    }
    if let Some(filters) = inspection.change()
        && let Some((workspace, [_, variables])) = changed(0, &|_| 0, start.environment, filters)
    {
        start.lists = Some(workspace);
        start.environment = variables;
    }
}

/// Reports a child that runs unrecorded.
unsafe extern "C" fn report(start: *mut c_void) {
    // SAFETY: as in `inspect`.
    let (child, inspection) = unsafe {
        let start = &*start.cast::<Start>();
        (start.unreported, &*start.inspection)
    };
    let is_reported = Need::INSPECT.is_allowed()
        && descriptor_thread::run(false, |_| {
            inspection.report(child, LoadRequest::No, 0);
        });
    if !is_reported {
        inspection.post(child);
    }
}

/// The body of `posix_spawn`.
pub(crate) unsafe extern "C" fn posix_spawn(
    pid: *mut c_int,
    path: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    argv: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY: the arguments are the program's, passed on unchanged.
    unsafe { spawning(false, next::posix_spawn, pid, path, [actions, attributes], [argv, environment]) }
}

/// The body of `posix_spawnp`.
pub(crate) unsafe extern "C" fn posix_spawnp(
    pid: *mut c_int,
    name: *const c_char,
    actions: *const c_void,
    attributes: *const c_void,
    argv: Strings,
    environment: Strings,
) -> c_int {
    // SAFETY: the arguments are the program's, passed on unchanged.
    unsafe { spawning(true, next::posix_spawnp, pid, name, [actions, attributes], [argv, environment]) }
}
