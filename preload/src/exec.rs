//! Programs that will not be recorded, told to the recorder right before they start: no interpreter to load this library, other rights, 32 bits,
//! or an environment that names no library. A statically linked child that lives a millisecond is seen in no other way.
//!
//! The exec functions are entered by stubs that save all argument registers, look, and jump to the next definition: their arguments, also
//! those of no fixed number, are never touched. What is done here may be done in a child of `vfork`: raw system calls, no state. What the
//! program names is copied in a way that cannot fault: the kernel judges bad addresses, not this library.

mod apart;
mod environment;
mod program;

use crate::link::{self, Scope, Wanted};
use crate::{attach, board, real, sys};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use environment::{Strings, in_vain, text};
use heaptape_wire::hello::{HELLO_BYTES, NOTICE_PATH, Notice, Why};
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

// Number, name, how the program is named, and the place of the environment among the arguments (none: the process's own; it stands behind
// arguments of no fixed number for `execle`, whose environment is not looked at).
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
    link::find(Scope::Next, false, &mut wanted);
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

/// Looks at the program that an exec function is about to start; gives the function's next definition.
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
        apart::run(|| match named {
            Named::Path => drop(judge_path(argument(0), environment, socket, 0)),
            Named::Name => judge_name(argument(0), environment, socket, 0),
            Named::Descriptor => judge_descriptor(argument(0), environment, socket),
            Named::At => {
                let mut first = [0u8; 1];
                let path = argument(1);
                let is_empty = path == 0 || sys::copy_from(path, &mut first) == 0 || first[0] == 0;
                if is_empty && argument(4) as c_int & libc::AT_EMPTY_PATH != 0 {
                    judge_descriptor(argument(0), environment, socket);
                } else if !is_empty && (first[0] == b'/' || argument(0) as c_int == libc::AT_FDCWD) {
                    judge_path(path, environment, socket, 0);
                }
            }
        });
    }
    let next = NEXT[which].load(Relaxed);
    if next.is_null() {
        real::resolve();
        let next = NEXT[which].load(Relaxed);
        return if next.is_null() { no_exec as *mut c_void } else { next };
    }
    next
}

/// Judges the program at a path, whose address is the program's own argument. True when there is such a program.
fn judge_path(path: usize, environment: Option<Strings>, socket: &CStr, pid: u32) -> bool {
    let mut copy = [0; NOTICE_PATH];
    let Some(path) = text(path, &mut copy) else { return false };
    judge(path, environment, socket, pid)
}

fn judge(path: &CStr, environment: Option<Strings>, socket: &CStr, pid: u32) -> bool {
    let Some(file) = File::of(path) else { return false };
    tell(file.why().or_else(|| in_vain(environment)).or_else(|| unreachable(socket)), path.to_bytes(), socket, pid);
    true
}

/// The same for a name that is looked for in `PATH`.
fn judge_name(name: usize, environment: Option<Strings>, socket: &CStr, pid: u32) {
    let mut copy = [0; NOTICE_PATH];
    let Some(name) = text(name, &mut copy) else { return };
    if name.to_bytes().contains(&b'/') {
        judge(name, environment, socket, pid);
        return;
    }
    let name = name.to_bytes_with_nul();
    let folders = sys::environment("PATH").map_or(&b"/bin:/usr/bin"[..], CStr::to_bytes);
    let mut path = [0; NOTICE_PATH];
    for folder in folders.split(|byte| *byte == b':') {
        let end = folder.len() + usize::from(!folder.is_empty());
        let Some(room) = path.get_mut(..end + name.len()) else { continue };
        room[..folder.len()].copy_from_slice(folder);
        if !folder.is_empty() {
            room[folder.len()] = b'/';
        }
        room[end..].copy_from_slice(name);
        if CStr::from_bytes_with_nul(room).is_ok_and(|path| judge(path, environment, socket, pid)) {
            return;
        }
    }
}

fn judge_descriptor(descriptor: usize, environment: Option<Strings>, socket: &CStr) {
    let mut link = [0; 32];
    sys::decimal(b"/proc/self/fd/", descriptor as u32, b"", &mut link);
    let Ok(link) = CStr::from_bytes_until_nul(&link) else { return };
    let mut path = [0; NOTICE_PATH];
    let length = sys::link(link, &mut path);
    if let Some(file) = File::of(link) {
        let why = file.why().or_else(|| in_vain(environment)).or_else(|| unreachable(socket));
        tell(why, &path[..length], socket, 0);
    }
}

/// Whether a program that starts here will not find the recorder's socket, or not the library. The
/// names are those of this process's root and mount namespace, which the program gets too.
fn unreachable(socket: &CStr) -> Option<Why> {
    let is_socket = |file: &libc::stat| file.st_mode & libc::S_IFMT == libc::S_IFSOCK;
    let library = link::own_name().filter(|name| name.to_bytes().first() == Some(&b'/'));
    let is_there = sys::status(socket).as_ref().is_some_and(is_socket)
        && library.is_none_or(|library| sys::status(library).is_some());
    (!is_there).then_some(Why::Unreachable)
}

/// Tells the recorder, by the board if the socket cannot be reached; nobody waits for an answer.
fn tell(why: Option<Why>, path: &[u8], socket_path: &CStr, pid: u32) {
    let Some(why) = why else { return };
    let mut message = [0; HELLO_BYTES + NOTICE_PATH];
    message[..HELLO_BYTES].copy_from_slice(&Notice { pid, why }.encode());
    let length = path.len().min(NOTICE_PATH);
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
        board::post(if pid == 0 { sys::pid() } else { pid }, why, path);
    }
}

type Spawn = unsafe fn(*mut c_int, *const c_char, *const c_void, *const c_void, Strings, Strings) -> c_int;

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
    // SAFETY: the caller's promise; where the program wants no number, it goes into a variable of ours.
    unsafe {
        let number = if pid.is_null() { &raw mut child } else { pid };
        let result = real(number, path, options[0], options[1], lists[0], lists[1]);
        // The child runs already: its number is known, and told.
        if result == 0
            && let Some(socket) = attach::socket_path()
        {
            let child = *number as u32;
            apart::run(|| {
                if by_name {
                    judge_name(path as usize, Some(lists[1]), socket, child);
                } else {
                    judge_path(path as usize, Some(lists[1]), socket, child);
                }
            });
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
    // SAFETY: the program's own call.
    unsafe { spawning(false, real::posix_spawn, pid, path, [actions, attributes], [argv, environment]) }
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
    // SAFETY: the program's own call.
    unsafe { spawning(true, real::posix_spawnp, pid, name, [actions, attributes], [argv, environment]) }
}
