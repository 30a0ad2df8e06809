//! Notifies the recorder of programs that will not be recorded, right before they start: without an
//! interpreter to load this library, with other rights, 32-bit ones, or with an environment that
//! does not name the library. A statically linked child that lives for a millisecond is seen in no
//! other way. The recorder can load its library into such a child: it follows the thread that has
//! requested this to the exec.
//!
//! The exec functions are entered by stubs that save all argument registers, inspect the program,
//! and jump to the next definition. So their arguments are passed on as they are, even those of
//! variadic functions. The code here may run in a child of `vfork`: it makes raw system calls and
//! changes no state. What the program passes is copied in a way that cannot fault: the kernel
//! checks bad addresses, not this library. It works on memory of its own, since the stack may be
//! small ([`workspace`]).
//!
//! A program that must not load this library gets an environment that does not name it. Then the
//! stub calls the function of the same kind that takes an environment.

mod environment;
mod folders;
mod program;
mod sanitizer;
mod spawn;

pub(crate) use spawn::{posix_spawn, posix_spawnp};

use crate::boot::attach;
use crate::dynsym;
use crate::session::{self, board};
use crate::sys::Need;
use crate::thread::descriptor_thread;
use crate::{probe, sys, workspace};
use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use environment::{Strings, changed, misses_library, text};
use heaptape_wire::hello::{
    HELLO_BYTES, LOAD_FOLLOWS, LOAD_NOT_PERMITTED, LoadRequest, MAX_NOTICE_PATH, Notice, UNKNOWN_CHILD, UntracedReason,
};
use program::File;

/// How an exec function gets its program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ProgramArgument {
    /// By path, as the first argument.
    Path,
    /// By a name that is searched in `PATH`.
    Name,
    Descriptor,
    /// By a directory's descriptor and a path, with flags after the environment.
    At,
    /// It is the shell, which a child of this process runs with the process's own environment.
    Shell,
    /// There is none: the function makes a child that shares this process's memory, or may do so.
    Child,
    /// There is none: the process ends.
    End,
}

macro_rules! exec_functions {
    ($($number:literal $name:ident $symbol:literal $argument_kind:ident $environment:expr;)*) => {
        const NAMES: [&CStr; [$($symbol),*].len()] = [$($symbol),*];
        const KINDS: [(ProgramArgument, Option<usize>); NAMES.len()] = [$((ProgramArgument::$argument_kind, $environment)),*];
        /// Functions with the exported names.
        #[cfg(not(any(test, feature = "standalone")))]
        pub(crate) mod exported {
            $(
                #[unsafe(no_mangle)]
                #[unsafe(link_section = "heaptape_stubs")]
                #[unsafe(naked)]
                pub(crate) unsafe extern "C" fn $name() {
                    crate::arch::numbered_stub!($number, super::enter)
                }
            )*
        }
    };
}

// Number, name, how the program is passed, and the index of the environment among the arguments
// (none: the process's own; for `execle` it follows a variable number of arguments).
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
    9 system c"system" Shell None;
    10 popen c"popen" Shell None;
    11 vfork c"vfork" Child None;
    12 clone c"clone" Child None;
    13 _exit c"_exit" End None;
    14 _Exit c"_Exit" End None;
}

/// The entry of all these functions.
#[cfg_attr(test, allow(dead_code))]
#[unsafe(naked)]
unsafe extern "C" fn enter() {
    crate::arch::numbered_frame!(starting)
}

/// The next definitions, by the numbers of the functions.
pub(crate) static NEXT: [AtomicPtr<c_void>; NAMES.len()] =
    [const { AtomicPtr::new(core::ptr::null_mut()) }; NAMES.len()];

/// The functions in the program that all others lead to.
#[cfg(feature = "standalone")]
pub(crate) mod replacements {
    /// Replaces `execve` of the program.
    #[unsafe(link_section = "heaptape_stubs")]
    #[unsafe(naked)]
    pub(crate) unsafe extern "C" fn execve() {
        crate::arch::numbered_stub!(0, super::enter)
    }

    /// Replaces `execveat` of the program.
    #[unsafe(link_section = "heaptape_stubs")]
    #[unsafe(naked)]
    pub(crate) unsafe extern "C" fn execveat() {
        crate::arch::numbered_stub!(8, super::enter)
    }
}

/// Finds the next definitions. Called when the library is loaded, or by an earlier call.
#[inline(never)]
pub(crate) fn find_next() {
    for (names, targets) in NAMES.chunks(dynsym::MOST).zip(NEXT.chunks(dynsym::MOST)) {
        dynsym::find_next(names, targets);
    }
    for pointer in &NEXT {
        if pointer.load(Relaxed).is_null() {
            pointer.store(no_exec as *mut c_void, Relaxed);
        }
    }
}

/// The program of `system` and `popen`.
const SHELL: &CStr = c"/bin/sh";

/// Replaces a function that the libc does not have.
extern "C" fn no_exec() -> c_int {
    sys::set_errno(libc::ENOSYS);
    -1
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

/// A start of a program by an exec function.
struct Start {
    /// The arguments that the stub saved: six registers, `rax`, the return address, and what is on
    /// the stack of a variadic call.
    arguments: *mut usize,
    /// The number of the exec function, and of the one that is called in its place.
    which: usize,
}

/// Inspects the program that an exec function is about to start, and returns the next definition to
/// call.
#[cfg_attr(test, allow(dead_code))]
unsafe extern "C" fn starting(arguments: *mut usize, which: usize) -> *mut c_void {
    let mut start = Start { arguments, which };
    let watches = match KINDS[which].0 {
        ProgramArgument::Shell => true,
        ProgramArgument::Child => {
            // SAFETY: the stub saved six arguments.
            let flags = unsafe { *arguments.add(2) };
            // A thread is no child.
            if NAMES[which] != c"clone" || flags & libc::CLONE_THREAD as usize == 0 {
                session::note_child();
            }
            false
        }
        ProgramArgument::End => {
            tell_end();
            false
        }
        _ => {
            session::note_child();
            true
        }
    };
    if watches
        && attach::watches_starts()
        && let Some(workspace) = workspace::claim_stack()
    {
        // SAFETY: the memory was claimed for a stack, and `start` lives until the call has
        // returned.
        unsafe { workspace.run(inspect, (&raw mut start).cast()) };
        workspace.release();
    }
    next_of(start.which)
}

/// Does so for a program that is about to be started by the system call `execve` or `execveat`. The
/// call itself stays the caller's: a definition of these functions may make it.
///
/// # Safety
/// There must be six arguments.
pub(crate) unsafe fn prepare(arguments: *mut usize, is_at: bool) {
    const EXECVE: usize = 0;
    const EXECVEAT: usize = 8;
    // SAFETY: the caller has as many as the stubs save.
    unsafe { starting(arguments, if is_at { EXECVEAT } else { EXECVE }) };
}

/// Inspects the program of a [`Start`]. If it must not load this library, it changes the arguments.
unsafe extern "C" fn inspect(start: *mut c_void) {
    // SAFETY: `starting` passes its own structure.
    let start = unsafe { &mut *start.cast::<Start>() };
    // SAFETY: the stub saved six arguments.
    let argument = |index: usize| unsafe { *start.arguments.add(index) };
    let (argument_kind, environment) = KINDS[start.which];
    let is_shell = argument_kind == ProgramArgument::Shell;
    let environment = match environment {
        None => Some(sys::environ()),
        Some(usize::MAX) => Some(argument(variadic(count_variadic(&argument) + 1)) as Strings),
        Some(index) => Some(argument(index) as Strings),
    };
    let mut inspection = Inspection::new();
    let is_known = Need::INSPECT.is_allowed() && {
        let thread = sys::tid();
        descriptor_thread::run(true, |_| {
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
                _ => inspection.path(SHELL.as_ptr() as usize, environment),
            }
            match is_shell {
                true => inspection.report(UNKNOWN_CHILD, LoadRequest::No, 0),
                false => inspection.report(0, LoadRequest::Exec, thread),
            };
        })
    };
    if !is_known {
        let path = match argument_kind {
            ProgramArgument::Descriptor => 0,
            ProgramArgument::At => argument(1),
            ProgramArgument::Shell => SHELL.as_ptr() as usize,
            _ => argument(0),
        };
        inspection.in_sandbox(path, environment);
        inspection.post(if is_shell { UNKNOWN_CHILD } else { 0 });
    }
    if is_shell {
        return;
    }
    if let Some(filters) = inspection.change() {
        // SAFETY: the arguments that the stub saved.
        unsafe { change_environment(start, filters) };
    }
}

/// Makes the start one with another environment ([`environment::changed`]). The lists are there
/// until this thread starts another program, or its parent does after a `vfork`.
///
/// # Safety
/// The arguments must be those that the stub saved.
#[inline(never)]
unsafe fn change_environment(start: &mut Start, filters: Option<u32>) {
    /// The functions with an environment, by the argument that it is.
    const EXECVE: usize = 0;
    const EXECVPE: usize = 5;
    // SAFETY: the saved registers, and after them what is on the stack of a variadic call.
    let argument = |index: usize| unsafe { *start.arguments.add(index) };
    let (argument_kind, environment) = KINDS[start.which];
    let index = environment.filter(|index| *index != usize::MAX).unwrap_or(2);
    let mut environment = if environment == Some(index) { argument(index) as Strings } else { sys::environ() };
    let is_variadic = matches!(NAMES[start.which].to_bytes(), b"execl" | b"execle" | b"execlp");
    let mut count = 0;
    if is_variadic {
        count = count_variadic(&argument);
        if NAMES[start.which] == c"execle" {
            environment = argument(variadic(count + 1)) as Strings;
        }
    }
    let other = match argument_kind {
        ProgramArgument::Path => EXECVE,
        ProgramArgument::Name => EXECVPE,
        _ => start.which,
    };
    if next_of(other) == no_exec as *mut c_void {
        return;
    }
    let Some((workspace, [list, variables])) = changed(count, &|index| argument(variadic(index)), environment, filters)
    else {
        return;
    };
    workspace.leave();
    // SAFETY: as above: these are registers that the stub loads again.
    unsafe {
        if is_variadic {
            *start.arguments.add(1) = list as usize;
        }
        *start.arguments.add(index) = variables as usize;
    }
    start.which = other;
}

/// Returns the number of variadic arguments before the null pointer that ends them.
fn count_variadic(argument: &dyn Fn(usize) -> usize) -> usize {
    let mut count = 0;
    while argument(variadic(count)) != 0 {
        count += 1;
    }
    count
}

/// Returns the index of a variadic argument among what the stub saved: five registers, then the
/// stack after `rax` and the return address.
const fn variadic(index: usize) -> usize {
    if index < 5 { index + 1 } else { index + 3 }
}

/// The result of inspecting a program.
struct Inspection {
    /// Why the program will not be recorded, if so.
    reason: Option<UntracedReason>,
    /// Whether it would not find this library.
    lacks_library: bool,
    /// The program's path and the value of another `LD_PRELOAD`, each of which ends with a 0.
    texts: [u8; MAX_NOTICE_PATH],
}

/// Returns the reason if the program inherits a sandbox in which it cannot attach.
fn sandbox() -> Option<UntracedReason> {
    (!(Need::ATTACH.is_allowed() && Need::INSPECT.is_allowed())).then_some(UntracedReason::Sandbox)
}

impl Inspection {
    const fn new() -> Inspection {
        Inspection { reason: None, lacks_library: false, texts: [0; MAX_NOTICE_PATH] }
    }

    /// Takes a program for one that would load the library, where a sandbox, or too little memory, does
    /// not let this process find out.
    fn in_sandbox(&mut self, path: usize, environment: Option<Strings>) {
        let mut copy = [0; MAX_NOTICE_PATH];
        let path = text(path, &mut copy).map_or(&b""[..], CStr::to_bytes);
        self.texts[..path.len()].copy_from_slice(path);
        let missing = misses_library(environment, &mut self.texts[path.len() + 1..]);
        self.reason = missing.or_else(sandbox);
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
            self.reason = missing.or_else(|| self.unreachable()).or(self.reason).or_else(sandbox);
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
        if !sys::c_text(&path).is_some_and(|path| self.file(link, path, environment)) {
            // Without `/proc` nothing is known of the file, but where it will run.
            self.reason = self.unreachable();
        }
    }

    /// Returns the reason if a program that starts here will not find the recorder's socket or this
    /// library. The names are those of this process's root and mount namespace, which the program
    /// gets too.
    fn unreachable(&mut self) -> Option<UntracedReason> {
        let library = dynsym::own_name().filter(|name| name.to_bytes().first() == Some(&b'/'));
        // Landlock lets a process see the status of a file that it may not read.
        self.lacks_library = library.is_some_and(|library| sys::open(library).map(sys::close).is_none());
        let is_socket = |file: libc::stat| file.st_mode & libc::S_IFMT == libc::S_IFSOCK;
        let is_there = !self.lacks_library && attach::socket_path().and_then(sys::status).is_some_and(is_socket);
        (!is_there).then_some(UntracedReason::Unreachable)
    }

    /// Returns how the environment of the program must be changed, if so: `None` inside to leave
    /// this library out. Its sanitizer has to be loaded first, the loader would complain that there
    /// is no such file, or that it is a 64-bit one, or the sandbox may kill the program for the
    /// attach. Or the number of filters that are known to allow it.
    #[inline(never)]
    fn change(&self) -> Option<Option<u32>> {
        match self.reason {
            Some(UntracedReason::Sanitizer | UntracedReason::ThirtyTwoBit | UntracedReason::Sandbox) => Some(None),
            Some(UntracedReason::Unreachable) => self.lacks_library.then_some(None),
            _ => attach::new_filters().map(Some),
        }
    }

    /// Posts the program of the process `pid` (0: this one) on the board.
    fn post(&self, pid: u32) {
        let Some(reason) = self.reason else { return };
        // One of the two needs includes the call; without it, this process is the session's or a
        // child of that one.
        let own = || if Need::PEEK.is_allowed() || Need::INSPECT.is_allowed() { sys::pid() } else { session::pid() };
        let end = self.texts.iter().position(|byte| *byte == 0).unwrap_or(0);
        board::post(if pid == 0 { own() } else { pid }, reason, &self.texts[..end]);
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
            answer = self.notify(notice, permits);
            if answer != LOAD_NOT_PERMITTED || !Need::PEEK.is_allowed() {
                break;
            }
        }
        answer == LOAD_FOLLOWS
    }

    /// Notifies the recorder, by the board if the socket cannot be reached. Waits for an answer
    /// only if the notice is a request. Returns the answer, or 0 if there is none. The recorder may
    /// trace this process first if `permits`.
    fn notify(&self, notice: Notice, permits: bool) -> u8 {
        let mut message = [0; HELLO_BYTES + MAX_NOTICE_PATH];
        message[..HELLO_BYTES].copy_from_slice(&notice.encode());
        message[HELLO_BYTES..].copy_from_slice(&self.texts);
        let end_from = |from: usize| {
            self.texts[from..].iter().position(|byte| *byte == 0).map_or(MAX_NOTICE_PATH, |end| from + end)
        };
        let path = end_from(0);
        let length = if notice.reason == UntracedReason::Replaced { end_from(path + 1) } else { path };
        let deadline = if notice.load == LoadRequest::No { 0 } else { attach::deadline() };
        let answer =
            attach::socket_path().and_then(|socket| send(socket, &message[..HELLO_BYTES + length], deadline, permits));
        if answer.is_none() {
            self.post(notice.pid);
        }
        answer.unwrap_or(0)
    }
}

/// Notifies the recorder that this child, which was just forked, is not recorded, because the
/// process that forked it gave up its attach. Waits for nothing.
#[inline(never)]
pub(crate) fn note_forked() {
    const MAX_PATH: usize = 256;
    let Some(socket) = attach::socket_of_attempt().filter(|_| Need::ATTACH.is_allowed()) else { return };
    let notice = Notice { pid: 0, reason: UntracedReason::Parent, load: LoadRequest::No, thread: 0 };
    let mut message = [0; HELLO_BYTES + MAX_PATH];
    message[..HELLO_BYTES].copy_from_slice(&notice.encode());
    sys::read_link(c"/proc/self/exe", &mut message[HELLO_BYTES..HELLO_BYTES + MAX_PATH - 1]);
    let length = message[HELLO_BYTES..].iter().position(|byte| *byte == 0).unwrap_or(0);
    send(socket, &message[..HELLO_BYTES + length], 0, false);
}

/// Sends a message to the recorder, and waits for an answer until the deadline, if that is not 0.
/// Returns the answer, 0 if there is none, or `None` if the recorder cannot be reached.
#[inline(never)]
pub(super) fn send(socket_path: &CStr, message: &[u8], deadline: u64, permits: bool) -> Option<u8> {
    let socket = sys::socket()?;
    let mut answer = [0];
    let is_connected = sys::connect(socket, socket_path.to_bytes()) == 0;
    if is_connected {
        if permits {
            sys::permit_tracer(socket);
        }
        sys::send(socket, message);
        if deadline != 0 && attach::wait_for_answer(socket, deadline) {
            sys::read(socket, &mut answer);
        }
    }
    sys::close(socket);
    is_connected.then_some(answer[0])
}

/// Tells the recorder that the process ends by `_exit`. A child of `vfork` does so too, in memory
/// that is its parent's.
fn tell_end() {
    if let Some(area) = session::area().filter(|_| Need::ATTACH.is_allowed())
        && sys::pid() == session::pid()
    {
        area.header().child_faults.store(child_faults() + 1, Relaxed);
    }
}

/// Returns the page faults of the children that this process has waited for.
pub(super) fn child_faults() -> u64 {
    // After two times, the largest size and three others; then those that read a file.
    const MINOR: usize = 8;
    let usage = sys::usage(libc::RUSAGE_CHILDREN);
    usage[MINOR] + usage[MINOR + 1]
}
