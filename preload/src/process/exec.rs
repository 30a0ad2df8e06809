//! Notifies the recorder of programs that will not be recorded, right before they start: without an
//! interpreter to load this library, with other rights, 32-bit ones, or with an environment that
//! does not name the library. A statically linked child that lives for a millisecond is seen in no
//! other way. The recorder can load its library into such a child: it follows the thread that has
//! requested this to the exec.
//!
//! The exec functions are entered by stubs that save all argument registers, inspect the program,
//! and jump to the next definition. So their arguments are never touched, even those of variadic
//! functions. The code here may run in a child of `vfork`: it makes raw system calls and changes no
//! state. What the program passes is copied in a way that cannot fault: the kernel checks bad
//! addresses, not this library.

mod environment;
mod other_stack;
mod program;
mod sanitizer;

use crate::boot::attach;
use crate::dynsym;
use crate::session::{self, Area, board};
use crate::sys::Need;
use crate::thread::descriptor_thread;
use crate::{next, probe, sys};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use environment::{Strings, misses_library, text, without_library};
use heaptape_wire::hello::{
    HELLO_BYTES, Hello, LOAD_FOLLOWS, LOAD_NOT_PERMITTED, LoadRequest, MAX_NOTICE_PATH, Notice, ORIGIN_EXIT,
    UntracedReason,
};
use program::File;

/// How an exec function gets its program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ProgramArgument {
    /// By path, as the first argument.
    Path,
    /// By a name that is searched in `PATH`.
    Name,
    /// By a file descriptor.
    Descriptor,
    /// By a directory's descriptor and a path, with flags after the environment.
    At,
}

macro_rules! exec_functions {
    ($($number:literal $name:ident $symbol:literal $argument_kind:ident $environment:expr;)*) => {
        const NAMES: [&CStr; [$($symbol),*].len()] = [$($symbol),*];
        const KINDS: [(ProgramArgument, Option<usize>); NAMES.len()] = [$((ProgramArgument::$argument_kind, $environment)),*];
        /// Functions with the exported names.
        #[cfg(not(any(test, feature = "standalone")))]
        #[allow(missing_docs)]
        pub mod exported {
            $(
                #[unsafe(no_mangle)]
                #[unsafe(naked)]
                pub unsafe extern "C" fn $name() {
                    crate::arch::numbered_stub!($number, super::enter)
                }
            )*
        }
    };
}

// Number, name, how the program is passed, and the index of the environment among the arguments
// (none: the process's own; for `execle` it follows a variable number of arguments and is not
// inspected).
exec_functions! {
    0 execve c"execve" Path Some(2);
    1 execv c"execv" Path None;
    2 execl c"execl" Path None;
    3 execle c"execle" Path Some(usize::MAX);
    4 execvp c"execvp" Name None;
    5 execvpe c"execvpe" Name Some(2);
    6 execlp c"execlp" Name None;
    7 fexecve c"fexecve" Descriptor Some(2);
    8 execveat c"execveat" At Some(3);
}

/// The entry of all these functions.
#[cfg_attr(test, allow(dead_code))]
#[unsafe(naked)]
unsafe extern "C" fn enter() {
    crate::arch::numbered_frame!(inspect_on_other_stack)
}

/// The next definitions, by the numbers of the functions.
pub static NEXT: [AtomicPtr<c_void>; NAMES.len()] = [const { AtomicPtr::new(core::ptr::null_mut()) }; NAMES.len()];

/// The functions in the program that all others lead to.
#[cfg(feature = "standalone")]
pub mod replacements {
    /// Replaces `execve` of the program.
    #[unsafe(naked)]
    pub unsafe extern "C" fn execve() {
        crate::arch::numbered_stub!(0, super::enter)
    }

    /// Replaces `execveat` of the program.
    #[unsafe(naked)]
    pub unsafe extern "C" fn execveat() {
        crate::arch::numbered_stub!(8, super::enter)
    }
}

/// Finds the next definitions. Called when the library is loaded, or by an earlier call.
#[inline(never)]
pub fn find_next() {
    dynsym::find_next(&NAMES, &NEXT);
    for pointer in &NEXT {
        if pointer.load(Relaxed).is_null() {
            pointer.store(no_exec as *mut c_void, Relaxed);
        }
    }
}

/// Replaces a function that the libc does not have.
extern "C" fn no_exec() -> c_int {
    sys::set_errno(libc::ENOSYS);
    -1
}

/// Does what [`inspect`] does, also where the stack is small.
#[cfg_attr(test, allow(dead_code))]
unsafe extern "C" fn inspect_on_other_stack(arguments: *const usize, which: usize) -> *mut c_void {
    // SAFETY: the stub saved the arguments that `inspect` reads.
    let next = unsafe { other_stack::run(inspect, arguments, which) };
    if next.is_null() { next_of(which) } else { next }
}

/// Returns the next definition of an exec function.
#[inline(never)]
fn next_of(which: usize) -> *mut c_void {
    let next = NEXT[which].load(Relaxed);
    if !next.is_null() {
        return next;
    }
    find_next();
    let next = NEXT[which].load(Relaxed);
    if next.is_null() { no_exec as *mut c_void } else { next }
}

/// Inspects the program that an exec function is about to start, and returns the function's next
/// definition.
#[cfg_attr(test, allow(dead_code))]
unsafe extern "C" fn inspect(arguments: *const usize, which: usize) -> *mut c_void {
    // SAFETY: the stub saved six arguments.
    let argument = |index: usize| unsafe { *arguments.add(index) };
    if let Some(socket) = attach::socket_path() {
        let (argument_kind, environment) = KINDS[which];
        let environment = match environment {
            None => Some(sys::environ()),
            Some(usize::MAX) => None,
            Some(index) => Some(argument(index) as Strings),
        };
        let mut inspection = Inspection::new(socket);
        let thread = sys::tid();
        descriptor_thread::run(|| {
            match argument_kind {
                ProgramArgument::Path => inspection.path(argument(0), environment),
                ProgramArgument::Name => inspection.name(argument(0), environment),
                ProgramArgument::Descriptor => inspection.descriptor(argument(0), environment),
                ProgramArgument::At => {
                    let mut first = [0u8; 1];
                    let path = argument(1);
                    let is_empty = path == 0 || probe::copy_from(path, &mut first) == 0 || first[0] == 0;
                    if is_empty && argument(4) as c_int & libc::AT_EMPTY_PATH != 0 {
                        inspection.descriptor(argument(0), environment);
                    } else if !is_empty && (first[0] == b'/' || argument(0) as c_int == libc::AT_FDCWD) {
                        inspection.path(path, environment);
                    }
                }
            }
            inspection.report(0, LoadRequest::Exec, thread);
        });
        if inspection.must_leave_library() {
            // SAFETY: the arguments that the stub saved.
            unsafe { start_without_library(arguments, which, &inspection) };
        }
    }
    next_of(which)
}

/// The result of inspecting a program.
struct Inspection {
    /// Why the program will not be recorded, if so.
    reason: Option<UntracedReason>,
    /// The program's path and the value of another `LD_PRELOAD`, each of which ends with a 0.
    texts: [u8; MAX_NOTICE_PATH],
    socket: &'static CStr,
}

impl Inspection {
    fn new(socket: &'static CStr) -> Inspection {
        Inspection { reason: None, texts: [0; MAX_NOTICE_PATH], socket }
    }

    /// Inspects the program at a path, whose address is the program's own argument.
    #[inline(never)]
    fn path(&mut self, path: usize, environment: Option<Strings>) {
        let mut copy = [0; MAX_NOTICE_PATH];
        let Some(path) = text(path, &mut copy) else { return };
        self.file(path, path, environment);
    }

    /// Inspects a file that is called `path`. Returns whether there is such a program.
    fn file(&mut self, file: &CStr, path: &CStr, environment: Option<Strings>) -> bool {
        let Some(file) = File::of(file) else { return false };
        let length = path.count_bytes().min(MAX_NOTICE_PATH - 1);
        self.texts[..length].copy_from_slice(&path.to_bytes()[..length]);
        // A static program does not attach either, if it does not find the socket.
        self.reason = file.untraced_reason();
        if self.reason.is_none_or(|reason| reason == UntracedReason::Static) {
            let missing = misses_library(environment, &mut self.texts[length + 1..]);
            self.reason = missing.or_else(|| unreachable(self.socket)).or(self.reason);
        }
        true
    }

    /// Inspects a program by a name that is searched in `PATH`.
    fn name(&mut self, name: usize, environment: Option<Strings>) {
        let mut copy = [0; MAX_NOTICE_PATH];
        let Some(name) = text(name, &mut copy) else { return };
        if name.to_bytes().contains(&b'/') {
            self.file(name, name, environment);
            return;
        }
        let name = name.to_bytes_with_nul();
        let folders = sys::environment("PATH").map_or(&b"/bin:/usr/bin"[..], CStr::to_bytes);
        let mut path = [0; MAX_NOTICE_PATH];
        for folder in folders.split(|byte| *byte == b':') {
            let end = folder.len() + usize::from(!folder.is_empty());
            let Some(target) = path.get_mut(..end + name.len()) else { continue };
            target[..folder.len()].copy_from_slice(folder);
            if !folder.is_empty() {
                target[folder.len()] = b'/';
            }
            target[end..].copy_from_slice(name);
            if CStr::from_bytes_with_nul(target).is_ok_and(|path| self.file(path, path, environment)) {
                return;
            }
        }
    }

    /// Inspects a program by a descriptor.
    fn descriptor(&mut self, descriptor: usize, environment: Option<Strings>) {
        let mut link = [0; 32];
        sys::decimal(b"/proc/self/fd/", descriptor as u32, b"", &mut link);
        let Some(link) = sys::c_text(&link) else { return };
        let mut path = [0; MAX_NOTICE_PATH];
        sys::read_link(link, &mut path[..MAX_NOTICE_PATH - 1]);
        if let Some(path) = sys::c_text(&path) {
            self.file(link, path, environment);
        }
    }

    /// Returns whether the program must be started without this library: its sanitizer has to be
    /// loaded first, or the loader would complain that there is no such file.
    #[inline(never)]
    fn must_leave_library(&self) -> bool {
        match self.reason {
            Some(UntracedReason::Sanitizer) => true,
            Some(UntracedReason::Unreachable) => !library_is_there(),
            _ => false,
        }
    }

    /// Returns whether the recorder may load its library into the program.
    #[inline(never)]
    fn is_loadable(&self) -> bool {
        self.reason == Some(UntracedReason::Static) && Need::ATTACH.is_allowed()
    }

    /// Notifies the recorder if the process `pid` (0: this one) is about to run the program
    /// unrecorded. For a static program it makes the request of this thread, and waits for the
    /// answer. Returns whether the recorder follows the thread to the program.
    #[inline(never)]
    fn report(&self, pid: u32, load: LoadRequest, thread: u32) -> bool {
        let Some(reason) = self.reason else { return false };
        let load = if self.is_loadable() { load } else { LoadRequest::No };
        let thread = if load == LoadRequest::No { session::pid() } else { thread };
        let notice = Notice { pid, reason, load, thread };
        let mut answer = 0;
        for permits in [false, true] {
            answer = notify(notice, &self.texts, self.socket, permits);
            if answer != LOAD_NOT_PERMITTED || !Need::PEEK.is_allowed() {
                break;
            }
        }
        answer == LOAD_FOLLOWS
    }
}

/// Number of strings of a list that there is space for on the stack.
const ENTRIES: usize = 1024;

/// Replaces this program by one that must not load this library, with an environment that does not
/// name it. If that fails, the caller's own exec fails in the same way. Nothing is
/// allocated, since the memory may be that of the parent, which continues after a `vfork`.
///
/// # Safety
/// `arguments` must be those of the exec function with the number `which`, as its stub saved them.
#[inline(never)]
unsafe fn start_without_library(arguments: *const usize, which: usize, inspection: &Inspection) {
    // SAFETY: the saved registers, and after them what is on the stack of a variadic call.
    let argument = |index: usize| unsafe { *arguments.add(index) };
    let (argument_kind, environment) = KINDS[which];
    let (mut list, mut variables) = ([core::ptr::null(); ENTRIES], [core::ptr::null(); ENTRIES]);
    let mut environment = environment.map_or(sys::environ(), |index| argument(index.min(6)) as Strings);
    let argv = match NAMES[which].to_bytes() {
        b"execl" | b"execle" | b"execlp" => {
            // Five registers, then the stack after `rax` and the return address.
            let mut rest = (1..6).chain(8..).map(argument);
            for slot in &mut list {
                *slot = rest.next().unwrap_or(0) as *const c_char;
                if slot.is_null() {
                    break;
                }
            }
            if list.last().is_none_or(|last| !last.is_null()) {
                return;
            }
            if NAMES[which] == c"execle" {
                environment = rest.next().unwrap_or(0) as Strings;
            }
            list.as_ptr()
        }
        _ if argument_kind == ProgramArgument::At => argument(2) as Strings,
        _ => argument(1) as Strings,
    };
    let mut text = [0; 4096];
    let Some(variables) = without_library(environment, &mut variables, &mut text) else { return };
    let here = libc::AT_FDCWD;
    let (folder, path, flags) = match argument_kind {
        ProgramArgument::Path => (here, argument(0) as *const c_char, 0),
        ProgramArgument::Name => (here, inspection.texts.as_ptr().cast(), 0),
        ProgramArgument::Descriptor => (argument(0) as i32, c"".as_ptr(), libc::AT_EMPTY_PATH),
        ProgramArgument::At => (argument(0) as i32, argument(1) as *const c_char, argument(4) as i32),
    };
    // SAFETY: both lists end in a null pointer, or are the program's own.
    unsafe { sys::execveat(folder, path, [argv, variables], flags) };
}

/// Returns the reason if a program that starts here will not find the recorder's socket or the
/// library. The names are those of this process's root and mount namespace, which the program gets
/// too.
fn unreachable(socket: &CStr) -> Option<UntracedReason> {
    let is_socket = |file: &libc::stat| file.st_mode & libc::S_IFMT == libc::S_IFSOCK;
    let is_there = sys::status(socket).as_ref().is_some_and(is_socket) && library_is_there();
    (!is_there).then_some(UntracedReason::Unreachable)
}

/// Returns whether a program that starts here will find the library, as far as that is known.
fn library_is_there() -> bool {
    let library = dynsym::own_name().filter(|name| name.to_bytes().first() == Some(&b'/'));
    library.is_none_or(|library| sys::status(library).is_some())
}

/// Notifies the recorder, by the board if the socket cannot be reached. Waits for an answer only if
/// the notice is a request. Returns the answer, or 0 if there is none. The recorder may trace this
/// process first if `permits`.
fn notify(notice: Notice, texts: &[u8; MAX_NOTICE_PATH], socket_path: &CStr, permits: bool) -> u8 {
    let mut message = [0; HELLO_BYTES + MAX_NOTICE_PATH];
    message[..HELLO_BYTES].copy_from_slice(&notice.encode());
    message[HELLO_BYTES..].copy_from_slice(texts);
    let end_from = |from: usize| texts[from..].iter().position(|byte| *byte == 0).map_or(texts.len(), |end| from + end);
    let path = end_from(0);
    let length = if notice.reason == UntracedReason::Replaced { end_from(path + 1) } else { path };
    let waits = notice.load != LoadRequest::No;
    let answer = send(socket_path, &message[..HELLO_BYTES + length], waits, permits);
    if answer.is_none() {
        board::post(if notice.pid == 0 { sys::pid() } else { notice.pid }, notice.reason, &texts[..path]);
    }
    answer.unwrap_or(0)
}

/// Notifies the recorder that this child, which was just forked, is not recorded, because the
/// process that forked it gave up its attach. Waits for nothing.
#[inline(never)]
pub fn note_forked() {
    const MAX_PATH: usize = 256;
    let Some(socket) = attach::socket_of_attempt().filter(|_| Need::ATTACH.is_allowed()) else { return };
    let notice = Notice { pid: 0, reason: UntracedReason::Parent, load: LoadRequest::No, thread: 0 };
    let mut message = [0; HELLO_BYTES + MAX_PATH];
    message[..HELLO_BYTES].copy_from_slice(&notice.encode());
    sys::read_link(c"/proc/self/exe", &mut message[HELLO_BYTES..HELLO_BYTES + MAX_PATH - 1]);
    let length = message[HELLO_BYTES..].iter().position(|byte| *byte == 0).unwrap_or(0);
    send(socket, &message[..HELLO_BYTES + length], false, false);
}

/// Sends a message to the recorder, and waits for an answer if `waits`. Returns the answer, 0 if
/// there is none, or `None` if the recorder cannot be reached.
#[inline(never)]
fn send(socket_path: &CStr, message: &[u8], waits: bool, permits: bool) -> Option<u8> {
    let socket = sys::socket()?;
    let mut answer = [0];
    let is_connected = sys::connect(socket, socket_path.to_bytes()) == 0;
    if is_connected {
        if permits {
            sys::permit_tracer(socket);
        }
        sys::send(socket, message);
        if waits && attach::wait_for_answer(socket, attach::deadline()) {
            sys::read(socket, &mut answer);
        }
    }
    sys::close(socket);
    is_connected.then_some(answer[0])
}

/// Announces the end of the process to a recorder that has requested it, and waits until the
/// recorder has read which pages are in memory. It runs when the program calls `exit`, or returns
/// from `main`; other ends are not announced.
pub fn announce_exit() {
    let wants = |area: &Area| area.header().announce_exit.load(Relaxed) != 0;
    if session::area().as_ref().is_some_and(wants)
        && Need::ATTACH.is_allowed()
        && let Some(socket) = attach::socket_path()
    {
        let message = Hello { origin: ORIGIN_EXIT, ..Hello::default() }.encode();
        descriptor_thread::run(|| {
            send(socket, &message, true, false);
        });
    }
}

type Spawn = unsafe fn(*mut c_int, *const c_char, *const c_void, *const c_void, Strings, Strings) -> c_int;

/// Calls `start` with the environment, without this library where that is possible.
#[inline(never)]
fn with_other_environment(environment: Strings, start: impl FnOnce(Strings) -> c_int) -> c_int {
    let (mut variables, mut text) = ([core::ptr::null(); ENTRIES], [0; 4096]);
    start(without_library(environment, &mut variables, &mut text).unwrap_or(environment))
}

/// Starts a program by `next`, and notifies the recorder if it will not be recorded.
///
/// # Safety
/// All arguments must be the program's own.
unsafe fn spawning(
    by_name: bool,
    next: Spawn,
    pid: *mut c_int,
    path: *const c_char,
    options: [*const c_void; 2],
    lists: [Strings; 2],
) -> c_int {
    let mut child = 0;
    let mut inspection = attach::socket_path().map(Inspection::new);
    let mut is_followed = false;
    if let Some(inspection) = &mut inspection {
        let thread = sys::tid();
        descriptor_thread::run(|| {
            match by_name {
                true => inspection.name(path as usize, Some(lists[1])),
                false => inspection.path(path as usize, Some(lists[1])),
            }
            if inspection.is_loadable() {
                is_followed = inspection.report(0, LoadRequest::Spawn, thread);
            }
        });
    }
    // SAFETY: the arguments are the program's own, as the caller ensures; where the program wants
    // no number, it goes into a variable of ours.
    unsafe {
        let number = if pid.is_null() { &raw mut child } else { pid };
        let start = |environment| next(number, path, options[0], options[1], lists[0], environment);
        let result = match inspection.as_ref().is_some_and(Inspection::must_leave_library) {
            true => with_other_environment(lists[1], start),
            false => start(lists[1]),
        };
        // The child is running already, so its pid is known and is reported.
        if result == 0
            && !is_followed
            && let Some(inspection) = inspection.filter(|inspection| inspection.reason.is_some())
        {
            let child = *number as u32;
            descriptor_thread::run(|| {
                inspection.report(child, LoadRequest::No, 0);
            });
        }
        result
    }
}

/// The body of `posix_spawn`.
pub unsafe extern "C" fn posix_spawn(
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
pub unsafe extern "C" fn posix_spawnp(
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
