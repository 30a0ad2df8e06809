//! Programs that will not be recorded, told to the recorder right before they start: no interpreter to load this library, other rights, 32 bits,
//! or an environment that names no library. A statically linked child that lives a millisecond is seen in no other way.
//!
//! The exec functions are entered by stubs that save all argument registers, look, and jump to the next definition: their arguments, also
//! those of no fixed number, are never touched. What is done here may be done in a child of `vfork`: raw system calls, no state.

use crate::link::{self, Scope, Wanted};
use crate::{attach, real, sys};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use heaptape_wire::hello::{HELLO_BYTES, NOTICE_PATH, Notice, Why};

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
    // SAFETY: the stub saved six arguments; strings and lists are the program's own, which the next definition reads as well.
    unsafe {
        let argument = |place: usize| *arguments.add(place);
        if let Some(socket) = attach::socket_path() {
            let (named, environment) = KINDS[which];
            let environment = match environment {
                None => Some(sys::environ()),
                Some(usize::MAX) => None,
                Some(place) => Some(argument(place) as *const *const c_char),
            };
            match named {
                Named::Path => drop(judge_path(argument(0), environment, socket, 0)),
                Named::Name => judge_name(argument(0), environment, socket, 0),
                Named::Descriptor => judge_descriptor(argument(0), environment, socket),
                Named::At => {
                    let path = argument(1) as *const c_char;
                    let is_empty = path.is_null() || *path == 0;
                    if is_empty && argument(4) as c_int & libc::AT_EMPTY_PATH != 0 {
                        judge_descriptor(argument(0), environment, socket);
                    } else if !is_empty && (*path == b'/' as c_char || argument(0) as c_int == libc::AT_FDCWD) {
                        judge_path(argument(1), environment, socket, 0);
                    }
                }
            }
        }
        let next = NEXT[which].load(Relaxed);
        if next.is_null() {
            real::resolve();
            let next = NEXT[which].load(Relaxed);
            return if next.is_null() { no_exec as *mut c_void } else { next };
        }
        next
    }
}

type Strings = *const *const c_char;

/// # Safety
/// `path` is the program's own argument, a string or null; `environment` a list of strings or null.
unsafe fn judge_path(path: usize, environment: Option<Strings>, socket: &[u8], pid: u32) -> bool {
    // SAFETY: the caller's promise.
    unsafe {
        let Some(path) = text(path) else { return false };
        let Some(file) = File::of(path) else { return false };
        tell(file.why().or_else(|| in_vain(environment)), path.to_bytes(), socket, pid);
        true
    }
}

/// # Safety
/// As [`judge_path`].
unsafe fn judge_name(name: usize, environment: Option<Strings>, socket: &[u8], pid: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        let Some(name) = text(name) else { return };
        let name = name.to_bytes_with_nul();
        if name.contains(&b'/') {
            judge_path(name.as_ptr() as usize, environment, socket, pid);
            return;
        }
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
            if judge_path(room.as_ptr() as usize, environment, socket, pid) {
                return;
            }
        }
    }
}

/// # Safety
/// As [`judge_path`].
unsafe fn judge_descriptor(descriptor: usize, environment: Option<Strings>, socket: &[u8]) {
    let mut link = [0; 32];
    sys::decimal(b"/proc/self/fd/", descriptor as u32, b"", &mut link);
    let Ok(link) = CStr::from_bytes_until_nul(&link) else { return };
    let mut path = [0; NOTICE_PATH];
    let length = sys::link(link, &mut path);
    if let Some(file) = File::of(link) {
        // SAFETY: the caller's promise.
        tell(file.why().or_else(|| unsafe { in_vain(environment) }), &path[..length], socket, 0);
    }
}

/// # Safety
/// Null or a string of the program's.
unsafe fn text(address: usize) -> Option<&'static CStr> {
    // SAFETY: the caller's promise.
    (address != 0).then(|| unsafe { CStr::from_ptr(address as *const c_char) })
}

/// Whether an environment will not bring the library along.
///
/// # Safety
/// Null or a list of strings that ends with null.
unsafe fn in_vain(environment: Option<Strings>) -> Option<Why> {
    let mut entry = environment?;
    let (mut library, mut socket) = (false, false);
    // SAFETY: the caller's promise.
    unsafe {
        while !entry.is_null() && !(*entry).is_null() {
            let text = CStr::from_ptr(*entry).to_bytes();
            library |= text.strip_prefix(b"LD_PRELOAD=").is_some_and(|value| !value.is_empty());
            socket |=
                text.strip_prefix(heaptape_wire::limits::ENV_SOCKET.as_bytes()).is_some_and(|rest| rest.len() > 1);
            entry = entry.add(1);
        }
    }
    (!library || !socket).then_some(Why::Environment)
}

/// A program's file: its head, and whether it gives other rights.
struct File {
    head: [u8; HEAD],
    length: usize,
    is_privileged: bool,
}

/// Enough for the program headers of any linker's output, and for the line of a script.
const HEAD: usize = 1024;

impl File {
    /// `None` when there is no such program.
    fn of(path: &CStr) -> Option<File> {
        let status = sys::status(path)?;
        let is_program = status.st_mode & libc::S_IFMT == libc::S_IFREG && status.st_mode & 0o111 != 0;
        is_program.then_some(())?;
        let (user, group) = sys::effective_ids();
        let changes = |bit: u32, own: u32, other: u32| status.st_mode & bit != 0 && own != other;
        let mut file = File { head: [0; HEAD], length: 0, is_privileged: false };
        file.is_privileged = changes(libc::S_ISUID, user, status.st_uid)
            || changes(libc::S_ISGID, group, status.st_gid)
            || (user != 0 && sys::has_capabilities(path));
        // One that may be run but not read shows nothing.
        if let Some(descriptor) = sys::open(path) {
            file.length = sys::read(descriptor, &mut file.head).min(HEAD);
            sys::close(descriptor);
        }
        Some(file)
    }

    fn head(&self) -> &[u8] {
        &self.head[..self.length]
    }

    fn why(&self) -> Option<Why> {
        let Some(line) = self.head().strip_prefix(b"#!") else { return self.why_binary() };
        let line = line.split(|byte| *byte == b'\n').next()?.trim_ascii_start();
        let name = line.split(|byte| *byte == b' ' || *byte == b'\t').next()?;
        let mut path = [0; HEAD];
        path.get_mut(..name.len())?.copy_from_slice(name);
        File::of(CStr::from_bytes_until_nul(&path).ok()?)?.why_binary()
    }

    fn why_binary(&self) -> Option<Why> {
        const PT_INTERP: u64 = 3;
        if self.is_privileged {
            return Some(Why::Rights);
        }
        let head = self.head();
        if !head.starts_with(b"\x7fELF") {
            return None;
        }
        if head.get(4) != Some(&2) {
            return Some(Why::Narrow);
        }
        let number = |at: usize, size: usize| {
            let bytes = head.get(at..at.checked_add(size)?)?;
            Some(bytes.iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte)))
        };
        let (table, size, count) = (number(32, 8)? as usize, number(54, 2)? as usize, number(56, 2)? as usize);
        for row in 0..count {
            // A table that lies further back is not judged.
            if number(table.checked_add(row * size)?, 4)? == PT_INTERP {
                return None;
            }
        }
        Some(Why::Static)
    }
}

/// Tells the recorder; nobody waits for an answer.
fn tell(why: Option<Why>, path: &[u8], socket_path: &[u8], pid: u32) {
    let Some(why) = why else { return };
    let mut message = [0; HELLO_BYTES + NOTICE_PATH];
    message[..HELLO_BYTES].copy_from_slice(&Notice { pid, why }.encode());
    let length = path.len().min(NOTICE_PATH);
    message[HELLO_BYTES..HELLO_BYTES + length].copy_from_slice(&path[..length]);
    let Some(socket) = sys::socket() else { return };
    if sys::connect(socket, socket_path) == 0 {
        sys::send(socket, &message[..HELLO_BYTES + length]);
    }
    sys::close(socket);
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
            if by_name {
                judge_name(path as usize, Some(lists[1]), socket, child);
            } else {
                judge_path(path as usize, Some(lists[1]), socket, child);
            }
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
