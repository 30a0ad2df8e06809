//! Reports programs that will not be recorded to the recorder right before they start: no
//! interpreter to load this library, other rights, 32 bits, or an environment that names no
//! library. A statically linked child that lives a millisecond is seen in no other way.
//!
//! The exec functions are entered by stubs that save all argument registers, look, and jump to the
//! next definition: their arguments, also those of no fixed number, are never touched. What is done
//! here may be done in a child of `vfork`: raw system calls, no state. What the program names is
//! copied in a way that cannot fault: the kernel judges bad addresses, not this library.

mod apart;
mod environment;
mod program;
mod sanitizer;

use crate::dynsym::{self, Scope, Wanted};
use crate::{attach, board, next, sys};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use environment::{Strings, in_vain, text, without_library};
use heaptape_wire::hello::{HELLO_BYTES, MAX_NOTICE_PATH, Notice, UntracedReason};
use program::File;

/// How a function names its program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Named {
    /// By path, as the first argument.
    Path,
    /// By a name that is looked for in `PATH`.
    Name,
    /// By a descriptor.
    Descriptor,
    /// By a folder's descriptor, path, and flags behind the environment.
    At,
}

macro_rules! exec_functions {
    ($($number:literal $name:ident $symbol:literal $named:ident $environment:expr;)*) => {
        const NAMES: [&CStr; [$($symbol),*].len()] = [$($symbol),*];
        const KINDS: [(Named, Option<usize>); NAMES.len()] = [$((Named::$named, $environment)),*];
        /// The exported names.
        #[cfg(not(test))]
        #[allow(missing_docs)]
        pub mod exported {
            $(
                #[unsafe(no_mangle)]
                #[unsafe(naked)]
                pub unsafe extern "C" fn $name() {
                    core::arch::naked_asm!(
                        "endbr64", "push rax", "push r9", "push r8", "push rcx", "push rdx", "push rsi", "push rdi",
                        "mov rdi, rsp", "mov esi, {which}", "call {look}", "mov r11, rax",
                        "pop rdi", "pop rsi", "pop rdx", "pop rcx", "pop r8", "pop r9", "pop rax", "jmp r11",
                        which = const $number, look = sym super::look)
                }
            )*
        }
    };
}

// Number, name, how the program is named, and the place of the environment among the arguments
// (none: the process's own; it stands behind arguments of no fixed number for `execle`, whose
// environment is not looked at).
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

static NEXT: [AtomicPtr<c_void>; NAMES.len()] = [const { AtomicPtr::new(core::ptr::null_mut()) }; NAMES.len()];

/// Finds the next definitions; once, with the allocator's.
pub fn find_next() {
    let mut wanted = NAMES.map(Wanted::new);
    dynsym::find(Scope::Next, false, &mut wanted);
    for (place, wanted) in NEXT.iter().zip(&wanted) {
        let missing = no_exec as *mut c_void;
        place.store(if wanted.found.is_null() { missing } else { wanted.found }, Relaxed);
    }
}

/// A libc without the function.
extern "C" fn no_exec() -> c_int {
    sys::set_errno(libc::ENOSYS);
    -1
}

/// Looks at the program that an exec function is about to start; gives the function's next
/// definition.
#[cfg_attr(test, allow(dead_code))]
unsafe extern "C" fn look(arguments: *const usize, which: usize) -> *mut c_void {
    // SAFETY: the stub saved six arguments.
    let argument = |place: usize| unsafe { *arguments.add(place) };
    if let Some(socket) = attach::socket_path() {
        let (named, environment) = KINDS[which];
        let environment = match environment {
            None => Some(sys::environ()),
            Some(usize::MAX) => None,
            Some(place) => Some(argument(place) as Strings),
        };
        let mut judged = Judged::new(socket);
        apart::run(|| {
            match named {
                Named::Path => judged.path(argument(0), environment),
                Named::Name => judged.name(argument(0), environment),
                Named::Descriptor => judged.descriptor(argument(0), environment),
                Named::At => {
                    let mut first = [0u8; 1];
                    let path = argument(1);
                    let is_empty = path == 0 || sys::copy_from(path, &mut first) == 0 || first[0] == 0;
                    if is_empty && argument(4) as c_int & libc::AT_EMPTY_PATH != 0 {
                        judged.descriptor(argument(0), environment);
                    } else if !is_empty && (first[0] == b'/' || argument(0) as c_int == libc::AT_FDCWD) {
                        judged.path(path, environment);
                    }
                }
            }
            judged.tell(0);
        });
        if judged.reason == Some(UntracedReason::Sanitizer) {
            // SAFETY: the arguments that the stub saved.
            unsafe { start_without_library(arguments, which, &judged) };
        }
    }
    let next = NEXT[which].load(Relaxed);
    if next.is_null() {
        next::resolve();
        let next = NEXT[which].load(Relaxed);
        return if next.is_null() { no_exec as *mut c_void } else { next };
    }
    next
}

/// What was found out about a program.
struct Judged {
    /// Why it will not be recorded, if so.
    reason: Option<UntracedReason>,
    /// Its path, with a 0 at its end.
    path: [u8; MAX_NOTICE_PATH],
    socket: &'static CStr,
}

impl Judged {
    fn new(socket: &'static CStr) -> Judged {
        Judged { reason: None, path: [0; MAX_NOTICE_PATH], socket }
    }

    /// Judges the program at a path, whose address is the program's own argument.
    fn path(&mut self, path: usize, environment: Option<Strings>) {
        let mut copy = [0; MAX_NOTICE_PATH];
        let Some(path) = text(path, &mut copy) else { return };
        self.file(path, path, environment);
    }

    /// Judges a file that is called `path`. Returns whether there is such a program.
    fn file(&mut self, file: &CStr, path: &CStr, environment: Option<Strings>) -> bool {
        let Some(file) = File::of(file) else { return false };
        self.reason = file.untraced_reason().or_else(|| in_vain(environment)).or_else(|| unreachable(self.socket));
        let length = path.count_bytes().min(MAX_NOTICE_PATH - 1);
        self.path[..length].copy_from_slice(&path.to_bytes()[..length]);
        true
    }

    /// The same for a name that is looked for in `PATH`.
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
            let Some(room) = path.get_mut(..end + name.len()) else { continue };
            room[..folder.len()].copy_from_slice(folder);
            if !folder.is_empty() {
                room[folder.len()] = b'/';
            }
            room[end..].copy_from_slice(name);
            if CStr::from_bytes_with_nul(room).is_ok_and(|path| self.file(path, path, environment)) {
                return;
            }
        }
    }

    fn descriptor(&mut self, descriptor: usize, environment: Option<Strings>) {
        let mut link = [0; 32];
        sys::decimal(b"/proc/self/fd/", descriptor as u32, b"", &mut link);
        let Ok(link) = CStr::from_bytes_until_nul(&link) else { return };
        let mut path = [0; MAX_NOTICE_PATH];
        sys::read_link(link, &mut path[..MAX_NOTICE_PATH - 1]);
        if let Ok(path) = CStr::from_bytes_until_nul(&path) {
            self.file(link, path, environment);
        }
    }

    /// Tells the recorder that the process `pid` (0: this one) runs it unrecorded, if so.
    fn tell(&self, pid: u32) {
        let length = self.path.iter().position(|byte| *byte == 0).unwrap_or(MAX_NOTICE_PATH);
        tell(self.reason, &self.path[..length], self.socket, pid);
    }
}

/// Strings of a list, and bytes of a variable, for which there is space on the stack.
const ENTRIES: usize = 1024;

/// Starts a program whose sanitizer must be loaded first in place of this one, with an environment
/// that does not name this library. Should that fail, the caller's own exec fails like it. Nothing
/// is allocated: the memory may be that of the parent, which goes on after a `vfork`.
///
/// # Safety
/// The arguments of the exec function with this number, as its stub saved them.
#[inline(never)]
unsafe fn start_without_library(arguments: *const usize, which: usize, judged: &Judged) {
    // SAFETY: the saved registers, and after them what is on the stack of a variadic call.
    let argument = |index: usize| unsafe { *arguments.add(index) };
    let (named, environment) = KINDS[which];
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
        _ if named == Named::At => argument(2) as Strings,
        _ => argument(1) as Strings,
    };
    let mut text = [0; 4096];
    let Some(variables) = without_library(environment, &mut variables, &mut text) else { return };
    let here = libc::AT_FDCWD;
    let (folder, path, flags) = match named {
        Named::Path => (here, argument(0) as *const c_char, 0),
        Named::Name => (here, judged.path.as_ptr().cast(), 0),
        Named::Descriptor => (argument(0) as i32, c"".as_ptr(), libc::AT_EMPTY_PATH),
        Named::At => (argument(0) as i32, argument(1) as *const c_char, argument(4) as i32),
    };
    // SAFETY: both lists end in a null pointer, or are the program's own.
    unsafe { sys::execveat(folder, path, [argv, variables], flags) };
}

/// Whether a program that starts here will not find the recorder's socket, or not the library. The
/// names are those of this process's root and mount namespace, which the program gets too.
fn unreachable(socket: &CStr) -> Option<UntracedReason> {
    let is_socket = |file: &libc::stat| file.st_mode & libc::S_IFMT == libc::S_IFSOCK;
    let library = dynsym::own_name().filter(|name| name.to_bytes().first() == Some(&b'/'));
    let is_there = sys::status(socket).as_ref().is_some_and(is_socket)
        && library.is_none_or(|library| sys::status(library).is_some());
    (!is_there).then_some(UntracedReason::Unreachable)
}

/// Tells the recorder, by the board if the socket cannot be reached; nobody waits for an answer.
fn tell(reason: Option<UntracedReason>, path: &[u8], socket_path: &CStr, pid: u32) {
    let Some(reason) = reason else { return };
    let mut message = [0; HELLO_BYTES + MAX_NOTICE_PATH];
    message[..HELLO_BYTES].copy_from_slice(&Notice { pid, reason }.encode());
    let length = path.len().min(MAX_NOTICE_PATH);
    message[HELLO_BYTES..HELLO_BYTES + length].copy_from_slice(&path[..length]);
    let is_sent = sys::socket().is_some_and(|socket| {
        let is_connected = sys::connect(socket, socket_path.to_bytes()) == 0;
        if is_connected {
            sys::send(socket, &message[..HELLO_BYTES + length]);
        }
        sys::close(socket);
        is_connected
    });
    if !is_sent {
        board::post(if pid == 0 { sys::pid() } else { pid }, reason, path);
    }
}

type Spawn = unsafe fn(*mut c_int, *const c_char, *const c_void, *const c_void, Strings, Strings) -> c_int;

/// Calls `start` with the environment, without this library where that is possible.
#[inline(never)]
fn with_other_environment(environment: Strings, start: impl FnOnce(Strings) -> c_int) -> c_int {
    let (mut variables, mut text) = ([core::ptr::null(); ENTRIES], [0; 4096]);
    start(without_library(environment, &mut variables, &mut text).unwrap_or(environment))
}

/// # Safety
/// The program's own arguments.
unsafe fn spawning(
    by_name: bool,
    real: Spawn,
    pid: *mut c_int,
    path: *const c_char,
    options: [*const c_void; 2],
    lists: [Strings; 2],
) -> c_int {
    let mut child = 0;
    let mut judged = attach::socket_path().map(Judged::new);
    if let Some(judged) = &mut judged {
        apart::run(|| match by_name {
            true => judged.name(path as usize, Some(lists[1])),
            false => judged.path(path as usize, Some(lists[1])),
        });
    }
    // SAFETY: the caller's promise; where the program wants no number, it goes into a variable of
    // ours.
    unsafe {
        let number = if pid.is_null() { &raw mut child } else { pid };
        let start = |environment| real(number, path, options[0], options[1], lists[0], environment);
        let result = match judged.as_ref().and_then(|judged| judged.reason) {
            Some(UntracedReason::Sanitizer) => with_other_environment(lists[1], start),
            _ => start(lists[1]),
        };
        // The child runs already: its number is known, and told.
        if result == 0
            && let Some(judged) = judged.filter(|judged| judged.reason.is_some())
        {
            let child = *number as u32;
            apart::run(|| judged.tell(child));
        }
        result
    }
}

/// `posix_spawn`.
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

/// `posix_spawnp`.
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
