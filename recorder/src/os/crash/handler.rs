//! The code that runs in a process that has crashed: a signal handler on a stack of its own, and
//! the panic hook. It does not allocate, take a lock or wait for another thread. A fault in this
//! code ends the process at once, and everything that was written stays.

use super::report::{self, Lines, MAX_FRAMES, MAX_REPORT_BYTES, Modules, Text};
use super::{Role, destinations, names, terminal};
use crate::os::spawn::{self, FATAL_SIGNALS};
use formats::recording::CRASH_REPORT;
use nix::libc::{self, c_char, c_int, c_void};
use std::cell::UnsafeCell;
use std::ffi::{CStr, CString};
use std::fmt::Write as _;
use std::panic::PanicHookInfo;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering::Relaxed, Ordering::SeqCst};

/// Size of a handler's stack, in bytes. Only the used part takes memory.
const STACK_BYTES: usize = 256 << 10;
/// Size in bytes above which no further report is added to a file.
const MAX_FILE_BYTES: i64 = 256 << 10;
/// Maximum distance of a fault from the stack pointer that is reported as a stack overflow.
const STACK_OVERFLOW_DISTANCE: u64 = 64 << 10;
/// Seconds after which a handler that hangs is ended.
const TIMEOUT_SECONDS: u32 = 20;
/// Maximum number of steps that the process waits for the names.
const WAIT_STEPS: u32 = 600;
/// Length of such a step, in nanoseconds.
const WAIT_STEP_NS: i64 = 10_000_000;

/// Id of the thread that writes the report; 0 for none.
static REPORTING: AtomicI32 = AtomicI32::new(0);
/// The signal that ends the process.
static SIGNAL: AtomicI32 = AtomicI32::new(libc::SIGABRT);
/// Whether a fatal signal that another process sent is queued again, for a reader of a signal
/// descriptor.
static FORWARDS: AtomicBool = AtomicBool::new(false);

/// The static memory in which a report is composed.
struct Scratch {
    text: Text<MAX_REPORT_BYTES>,
    modules: Modules,
    lines: Lines,
    frames: [u64; MAX_FRAMES],
    count: usize,
    outputs: [c_int; super::MAX_DESTINATIONS],
    read: [u8; 4096],
}

struct Shared(UnsafeCell<Scratch>);

// SAFETY: only the one thread whose id `REPORTING` holds accesses it.
unsafe impl Sync for Shared {}

static SCRATCH: Shared = Shared(UnsafeCell::new(Scratch {
    text: Text::new(),
    modules: Modules::new(),
    lines: Lines::new(),
    frames: [0; MAX_FRAMES],
    count: 0,
    outputs: [-1; super::MAX_DESTINATIONS],
    read: [0; 4096],
}));

/// The arguments of the process that names frames, created beforehand: program, option, and one
/// descriptor each.
static ARGUMENTS: AtomicPtr<CString> = AtomicPtr::new(ptr::null_mut());

fn set_action(signal: c_int, handler: libc::sighandler_t) {
    // SAFETY: all zeros is a valid value of this plain structure; the handler is `SIG_DFL` or has
    // the three arguments that `SA_SIGINFO` promises.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        for (other, _) in FATAL_SIGNALS {
            libc::sigaddset(&raw mut action.sa_mask, other);
        }
        libc::sigaction(signal, &raw const action, ptr::null_mut());
    }
}

/// Handles the fatal signals of this process that it does not ignore.
pub fn install() {
    let arguments = ["heaptape", names::OPTION].map(|text| CString::new(text).unwrap_or_default());
    ARGUMENTS.store(Box::leak(Box::new(arguments)).as_mut_ptr(), Relaxed);
    let handler = on_signal as extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) as libc::sighandler_t;
    for (signal, _) in FATAL_SIGNALS.iter().filter(|(signal, _)| !spawn::is_ignored(*signal)) {
        set_action(*signal, handler);
    }
}

fn is_installed() -> bool {
    !ARGUMENTS.load(Relaxed).is_null()
}

/// Removes the handlers: for a forked process that executes another program, or whose crash is not
/// to be reported.
pub fn disarm() {
    if is_installed() {
        let _ = std::panic::take_hook();
        spawn::reset_fatal_signals();
    }
}

/// Sets whether faults that another process sent (`kill -SEGV`) are kept pending, for a reader of a
/// signal descriptor.
pub fn forward_faults(forwards: bool) {
    FORWARDS.store(forwards, Relaxed);
}

/// Unblocks the signals of faults for the calling thread: a blocked one would end the process
/// without a report.
pub fn unblock_faults() {
    if is_installed() {
        let (how, size) = (libc::SIG_UNBLOCK, size_of::<spawn::Mask>());
        let faults = FATAL_SIGNALS.iter().filter(|(signal, _)| *signal != libc::SIGABRT || !FORWARDS.load(Relaxed));
        let mask: spawn::Mask = faults.map(|(signal, _)| spawn::bit(*signal)).sum();
        let none = ptr::null_mut::<spawn::Mask>();
        // SAFETY: the first pointer is to 8 bytes, the size that is passed; the other is null.
        unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const mask, none, size) };
    }
}

/// The signal stack of the calling thread. It is freed on drop.
#[derive(Debug)]
pub struct SignalStack(*mut c_void);

/// Sets a signal stack for the calling thread, if handlers are installed.
pub fn use_signal_stack() -> SignalStack {
    if !is_installed() {
        return SignalStack(ptr::null_mut());
    }
    let (rights, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address of the kernel's choice; it stays until the stack is no
    // longer used.
    unsafe {
        let base = libc::mmap(ptr::null_mut(), STACK_BYTES, rights, flags, -1, 0);
        if base == libc::MAP_FAILED {
            return SignalStack(ptr::null_mut());
        }
        let stack = libc::stack_t { ss_sp: base, ss_flags: 0, ss_size: STACK_BYTES };
        libc::sigaltstack(&raw const stack, ptr::null_mut());
        SignalStack(base)
    }
}

impl SignalStack {
    /// Keeps the stack as long as the thread lives.
    pub fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for SignalStack {
    fn drop(&mut self) {
        if !self.0.is_null() {
            let none = libc::stack_t { ss_sp: ptr::null_mut(), ss_flags: libc::SS_DISABLE, ss_size: 0 };
            // SAFETY: the thread is not in a handler, so it does not use the stack; after the first
            // call nothing refers to the mapping.
            unsafe {
                libc::sigaltstack(&raw const none, ptr::null_mut());
                libc::munmap(self.0, STACK_BYTES);
            }
        }
    }
}

fn thread_id() -> c_int {
    // SAFETY: plain numbers.
    unsafe { libc::syscall(libc::SYS_gettid) as c_int }
}

/// Returns whether the calling thread writes the report. Any other thread waits here for the end of
/// the process.
fn is_first() -> bool {
    let own = thread_id();
    match REPORTING.compare_exchange(0, own, SeqCst, SeqCst) {
        Ok(_) => true,
        Err(other) if other == own => false,
        Err(_) => loop {
            pause_ns(WAIT_STEP_NS);
        },
    }
}

fn pause_ns(ns: i64) {
    let time = libc::timespec { tv_sec: 0, tv_nsec: ns };
    // SAFETY: the first pointer is to a time, the second is null.
    unsafe { libc::nanosleep(&raw const time, ptr::null_mut()) };
}

extern "C" fn on_signal(signal: c_int, information: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes both, for a handler with `SA_SIGINFO`.
    let (information, context) = unsafe { (&*information, &mut *context.cast::<libc::ucontext_t>()) };
    // SAFETY: of signals that a process sent the kernel sets the pid.
    let sender = (information.si_code <= 0).then(|| unsafe { information.si_pid() });
    let own = i32::try_from(std::process::id()).ok();
    if sender.is_some() && sender != own && FORWARDS.load(Relaxed) {
        // SAFETY: a mask of the interrupted thread, and the information that the kernel has just
        // passed.
        unsafe {
            libc::sigaddset(&raw mut context.uc_sigmask, signal);
            libc::syscall(libc::SYS_rt_sigqueueinfo, libc::getpid(), signal, ptr::from_ref(information));
        }
        return;
    }
    if is_first() {
        SIGNAL.store(signal, SeqCst);
        terminal::restore(write_all);
        let registers = &context.uc_mcontext.gregs;
        let register = |number: c_int| registers.get(number as usize).map_or(0, |value| value.cast_unsigned());
        let (pc, sp) = (register(libc::REG_RIP), register(libc::REG_RSP));
        // SAFETY: `is_first` was true, so nobody else has it.
        let scratch = unsafe { &mut *SCRATCH.0.get() };
        let name = FATAL_SIGNALS.iter().find(|(number, _)| *number == signal).map_or("a signal", |(_, name)| name);
        scratch.write_head(|text| {
            text.put(name.as_bytes());
            match sender {
                Some(pid) if Some(pid) == own => text.put(b" by its own call"),
                Some(pid) => text.put(b" sent by process ").number(pid as u64),
                None => {
                    // SAFETY: a fault's information has the address.
                    let address = unsafe { information.si_addr() } as u64;
                    text.put(b" at address ").hex(address);
                    if address.abs_diff(sp) < STACK_OVERFLOW_DISTANCE && signal == libc::SIGSEGV {
                        text.put(b": the stack is full")
                    } else {
                        text
                    }
                }
            };
        });
        scratch.text.put(b"registers:");
        for (name, number) in REGISTERS {
            scratch.text.put(b" ").put(name.as_bytes()).put(b"=").hex(register(number));
        }
        scratch.text.put(b"\n");
        scratch.report(Some(pc));
    }
    set_action(signal, libc::SIG_DFL);
    if sender.is_some() {
        // SAFETY: the information that the kernel has passed, for the calling thread; the signal
        // waits until the handler returns.
        unsafe {
            libc::syscall(libc::SYS_rt_tgsigqueueinfo, libc::getpid(), thread_id(), signal, ptr::from_ref(information))
        };
    }
}

const REGISTERS: [(&str, c_int); 17] = [
    ("rip", libc::REG_RIP),
    ("rsp", libc::REG_RSP),
    ("rbp", libc::REG_RBP),
    ("rax", libc::REG_RAX),
    ("rbx", libc::REG_RBX),
    ("rcx", libc::REG_RCX),
    ("rdx", libc::REG_RDX),
    ("rsi", libc::REG_RSI),
    ("rdi", libc::REG_RDI),
    ("r8", libc::REG_R8),
    ("r9", libc::REG_R9),
    ("r10", libc::REG_R10),
    ("r11", libc::REG_R11),
    ("r12", libc::REG_R12),
    ("r13", libc::REG_R13),
    ("r14", libc::REG_R14),
    ("r15", libc::REG_R15),
];

/// The panic hook. The process aborts when it returns.
pub fn panicked(panic: &PanicHookInfo<'_>) {
    if !is_first() {
        return;
    }
    // SAFETY: `is_first` was true, so nobody else has it.
    let scratch = unsafe { &mut *SCRATCH.0.get() };
    scratch.write_head(|text| {
        text.put(b"panic at ");
        let _ = panic.location().map_or(Ok(()), |location| write!(text, "{location}"));
        text.put(b": ").put_clean(panic.payload_as_str().unwrap_or("no message").as_bytes());
    });
    scratch.report(None);
}

extern "C" fn on_alarm(_: c_int) {
    let signal = SIGNAL.load(SeqCst);
    set_action(signal, libc::SIG_DFL);
    // SAFETY: plain numbers; the mask is of the calling thread.
    unsafe {
        spawn::swap_mask(0);
        libc::raise(signal);
        libc::_exit(128 + signal);
    }
}

impl Scratch {
    /// Writes the head of the report: which process crashed, and why.
    fn write_head(&mut self, cause: impl FnOnce(&mut Text<MAX_REPORT_BYTES>)) {
        // SAFETY: the handler calls only functions that a handler may call. SIGALRM is the
        // process's own from here on.
        unsafe {
            libc::signal(libc::SIGALRM, on_alarm as extern "C" fn(c_int) as libc::sighandler_t);
            let (mask, none) = (spawn::bit(libc::SIGALRM), ptr::null_mut::<spawn::Mask>());
            libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_UNBLOCK, &raw const mask, none, size_of::<spawn::Mask>());
            libc::alarm(TIMEOUT_SECONDS);
        }
        let text = &mut self.text;
        text.put(b"heaptape crash report\nversion: ").put(env!("CARGO_PKG_VERSION").as_bytes());
        text.put(if cfg!(debug_assertions) { b" (debug build)" } else { b" (release build)" });
        // SAFETY: all zeros is a valid value of these plain structures, which the calls fill.
        let (mut system, mut time, mut thread): (libc::utsname, libc::timespec, [u8; 17]) =
            unsafe { std::mem::zeroed() };
        // SAFETY: pointers to writable values; a thread's name takes at most 16 bytes.
        unsafe {
            libc::uname(&raw mut system);
            libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut time);
            libc::prctl(libc::PR_GET_NAME, thread.as_mut_ptr());
        }
        let bytes =
            |field: &[c_char]| field.first_chunk::<65>().map(|field| field.map(|byte| byte as u8)).unwrap_or([0; 65]);
        for field in [&system.sysname[..], &system.release, &system.machine] {
            let field = bytes(field);
            text.put(b", ").put_clean(CStr::from_bytes_until_nul(&field).unwrap_or_default().to_bytes());
        }
        text.put(b"\ntime: ").number(time.tv_sec.unsigned_abs()).put(b" seconds since 1970\nprocess: ");
        text.put(Role::now().text().as_bytes()).put(b", pid ").number(std::process::id().into());
        text.put(b", thread ").put_clean(CStr::from_bytes_until_nul(&thread).unwrap_or_default().to_bytes());
        text.put(b" (").number(thread_id().unsigned_abs().into()).put(b")\ncause: ");
        cause(text);
        text.put(b"\n");
    }

    /// Writes the stack from `pc` on, stores the report in its files, and names its functions.
    fn report(&mut self, pc: Option<u64>) {
        for (output, folder) in self.outputs.iter_mut().zip(destinations()) {
            *output = open_report(folder);
        }
        let has_file = self.outputs.iter().any(|output| *output >= 0);
        let to_log = !has_file || Role::now() == Role::Daemon;
        if !to_log && Role::now() == Role::Command {
            self.print_location();
        }
        // What is known without the stack is written first: a fault may occur while the stack is
        // read.
        let mut written = self.write(0, to_log);
        self.collect(pc);
        self.read_modules();
        self.text.put(b"stack, innermost frame first:\n");
        report::frames(&mut self.text, self.frames.get(..self.count).unwrap_or_default(), &self.modules);
        written += self.write(written, to_log);
        for output in self.outputs.iter().filter(|output| **output >= 0) {
            // SAFETY: plain numbers.
            unsafe { libc::fsync(*output) };
        }
        debug_assert!(written == self.text.len());
        self.name_functions(to_log);
    }

    /// Collects the return addresses, starting at `pc` if it is among them: the frames before it
    /// are the handler's.
    fn collect(&mut self, pc: Option<u64>) {
        self.count = 0;
        let mut is_found = pc.is_none();
        // SAFETY: this crate walks stacks here alone, and in one thread.
        unsafe {
            backtrace::trace_unsynchronized(|frame| {
                let address = frame.ip() as u64;
                if !is_found && pc == Some(address) {
                    (is_found, self.count) = (true, 0);
                }
                // The outermost frame has no return address.
                if let Some(slot) = self.frames.get_mut(self.count).filter(|_| address != 0 || pc == Some(0)) {
                    *slot = address;
                    self.count += 1;
                }
                self.count < MAX_FRAMES
            });
        }
        if !is_found && let (Some(pc), Some(first)) = (pc, self.frames.first_mut()) {
            *first = pc;
            self.count = self.count.max(1);
        }
    }

    fn read_modules(&mut self) {
        // SAFETY: a string that ends in 0; the buffer has the length that is passed.
        unsafe {
            let file = libc::open(c"/proc/self/maps".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
            while let Ok(count @ 1..) =
                usize::try_from(libc::read(file, self.read.as_mut_ptr().cast(), self.read.len()))
            {
                self.lines.read(self.read.get(..count).unwrap_or_default(), &mut self.modules);
            }
            libc::close(file);
        }
    }

    /// Writes the text from offset `from` on to all files, and to standard error with `to_log`.
    /// Returns the number of bytes.
    fn write(&self, from: usize, to_log: bool) -> usize {
        let bytes = self.text.bytes().get(from..).unwrap_or_default();
        let log = to_log.then_some(libc::STDERR_FILENO);
        self.outputs
            .iter()
            .copied()
            .filter(|output| *output >= 0)
            .chain(log)
            .for_each(|output| write_all(output, bytes));
        bytes.len()
    }

    /// Prints one line on standard error: what happened, and where the report is.
    fn print_location(&self) {
        let mut path = [0u8; 512];
        let mut link = Text::<32>::new();
        link.put(b"/proc/self/fd/").number(destinations().next().unwrap_or(-1).unsigned_abs().into()).put(b"\0");
        // SAFETY: the string ends in 0; the buffer has the length that is passed.
        let length = unsafe { libc::readlink(link.bytes().as_ptr().cast(), path.as_mut_ptr().cast(), path.len()) };
        let path = path.get(..usize::try_from(length).unwrap_or(0)).unwrap_or_default();
        let mut line = Text::<1024>::new();
        line.put(b"heaptape: ").put(Role::now().text().as_bytes()).put(b" crashed; please send its report: ");
        line.put_clean(path).put(b"/").put(CRASH_REPORT.as_bytes()).put(b"\n");
        write_all(libc::STDERR_FILENO, line.bytes());
    }

    /// Runs this program again, with the report as its input, and waits for it for a limited time.
    fn name_functions(&self, to_log: bool) {
        let arguments = ARGUMENTS.load(Relaxed);
        let mut pipe = [-1; 2];
        // SAFETY: the array has space for the two descriptors.
        if arguments.is_null() || unsafe { libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC | libc::O_NONBLOCK) } != 0 {
            return;
        }
        // The whole report fits into the pipe, so the write does not block.
        write_all(pipe[1], self.text.bytes());
        // SAFETY: a fork without libc, whose locks may be held by a thread that does not exist in
        // the child. The child makes system calls only.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t };
        if child == 0 {
            let mut numbers = [const { Text::<12>::new() }; super::MAX_DESTINATIONS + 1];
            let mut list = [ptr::null::<c_char>(); super::MAX_DESTINATIONS + 4];
            // SAFETY: `install` made two strings that are never freed; the list and the environment
            // end in a null pointer. Nothing returns from here.
            unsafe {
                list[0] = (*arguments).as_ptr();
                list[1] = (*arguments.add(1)).as_ptr();
                let log = to_log.then_some(libc::STDERR_FILENO);
                let outputs = self.outputs.iter().copied().filter(|output| *output >= 0).chain(log);
                for ((output, number), argument) in outputs.zip(&mut numbers).zip(list.iter_mut().skip(2)) {
                    libc::fcntl(output, libc::F_SETFD, 0);
                    *argument = number.number(output.unsigned_abs().into()).put(b"\0").bytes().as_ptr().cast();
                }
                libc::dup2(pipe[0], libc::STDIN_FILENO);
                libc::fcntl(libc::STDIN_FILENO, libc::F_SETFL, 0);
                libc::signal(libc::SIGALRM, libc::SIG_DFL);
                spawn::swap_mask(0);
                let nothing = [ptr::null::<c_char>()];
                libc::execve(c"/proc/self/exe".as_ptr(), list.as_ptr(), nothing.as_ptr());
                libc::_exit(127);
            }
        }
        // SAFETY: plain numbers. The child reads to the end of the pipe, so that no writer may be
        // left.
        unsafe {
            libc::close(pipe[1]);
            for _ in 0..WAIT_STEPS {
                if child < 0 || libc::waitpid(child, ptr::null_mut(), libc::WNOHANG) != 0 {
                    break;
                }
                pause_ns(WAIT_STEP_NS);
            }
        }
    }
}

/// Opens the report in a folder for appending; returns -1 when that is not possible, or when the
/// file is large already.
fn open_report(folder: c_int) -> c_int {
    const NAME: &CStr = c"crash-report.txt";
    const { assert!(CRASH_REPORT.len() == NAME.count_bytes()) };
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: a string that ends in 0, and a writable structure of which all zeros are a valid
    // value.
    unsafe {
        let file = libc::openat(folder, NAME.as_ptr(), flags, 0o600);
        let mut status: libc::stat = std::mem::zeroed();
        if file >= 0 && (libc::fstat(file, &raw mut status) != 0 || status.st_size > MAX_FILE_BYTES) {
            libc::close(file);
            return -1;
        }
        file
    }
}

fn write_all(file: c_int, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        // SAFETY: the pointer is to as many bytes as are passed.
        let written = unsafe { libc::write(file, bytes.as_ptr().cast(), bytes.len()) };
        match usize::try_from(written) {
            Ok(count @ 1..) => bytes = bytes.get(count..).unwrap_or_default(),
            _ if nix::errno::Errno::last() == nix::errno::Errno::EINTR => {}
            _ => return,
        }
    }
}
