//! From the environment to a live session: connect, send the hello, map the area, close everything.
//! This is tried once. On any failure the process runs untraced, silently and for good.

use super::patch::{self, Patches};
use crate::session::{self, Area, board, private};
use crate::stack::unwind::rules;
use crate::stack::{self, table};
use crate::sys::{self, Need};
use crate::thread::{STATE_BYTES, descriptor_thread};
use crate::{arch, dynsym, next, timestamp};
use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::sync::atomic::{
    AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};
use heaptape_wire::area::CLOCK_TSC;
use heaptape_wire::hello::{
    ACCEPTED, Hello, ORIGIN_FORK, ORIGIN_START, REFUSED_FULL, REPLY_BYTES, Reply, UntracedReason,
};
use heaptape_wire::limits::{ATTACH_MS, ENV_ATTACH_MS, ENV_FILTERS, ENV_SOCKET, MAX_ATTACH_MS};
use heaptape_wire::{Header, WIRE_MINOR};

/// Whether the attach of this process, or of the one that it was forked from, has failed. Programs
/// that it starts are inspected all the same.
static IS_LEFT_OUT: AtomicBool = AtomicBool::new(false);
/// Whether this process, or the one that it was forked from, has given up its attach: the recorder
/// did not answer in time, or had no space.
static HAS_GIVEN_UP: AtomicBool = AtomicBool::new(false);
/// The ticks before the fork that made this process; see `process/fork.rs`.
pub(crate) static FORK_TICK: AtomicU64 = AtomicU64::new(0);

/// The path of the socket, copied before the program can change its environment.
struct Path(UnsafeCell<[u8; 109]>);
// SAFETY: written by the one thread that attaches while `PATH_BYTES` is 0, and then read only.
unsafe impl Sync for Path {}
static PATH: Path = Path(UnsafeCell::new([0; 109]));
/// Length of the path; 0 until it is copied.
static PATH_BYTES: AtomicUsize = AtomicUsize::new(0);

/// The longest time of an attach in milliseconds, read from the environment together with the path.
static TIMEOUT_MS: AtomicU64 = AtomicU64::new(ATTACH_MS);

/// Returns the shared area of the session, and attaches if that has not been tried in this process.
pub(crate) fn area() -> Option<Area> {
    if session::is_new() {
        if !environment_is_ready() {
            return None;
        }
        // Even the number of the process may be what a filter kills for.
        if sys::environment(ENV_SOCKET).is_some() && !may_attach() {
            sys::forbid(Need::EVERYTHING);
            // Whoever is started inherits the filter, and must not get the library.
            IS_LEFT_OUT.store(true, Release);
            session::close();
        }
    }
    session::area_or_attach(attach)
}

/// Returns whether the environment can be read and every function called. That is not so while the
/// loader still processes relocations (in an IFUNC resolver).
fn environment_is_ready() -> bool {
    !sys::environ().is_null() || dynsym::is_consistent()
}

/// Whether the next attach maps new memory for states and index, because a hook of the parent
/// continues in the old memory.
static USE_NEW_MEMORY: AtomicBool = AtomicBool::new(false);

/// Makes the next attach use new memory; see [`USE_NEW_MEMORY`].
pub(crate) fn use_new_memory() {
    USE_NEW_MEMORY.store(true, Relaxed);
}

/// Returns the path of the socket, if there was an attempt to attach in this process or the one that
/// it was forked from.
pub(crate) fn socket_path() -> Option<&'static CStr> {
    // SAFETY: a path is written before this process is seen to watch starts, and not again.
    let path = unsafe { &*PATH.0.get() };
    (watches_starts() && Need::INSPECT.is_allowed()).then(|| sys::c_text(path)).flatten()
}

/// Returns whether the programs that this process starts are inspected: it has a session, or the
/// one that it was forked from has, also while another thread attaches, or its attach has failed.
/// Who starts a program with a sanitizer must not pass this library on. In an unknown filter nothing
/// is inspected: that could kill.
pub(crate) fn watches_starts() -> bool {
    session::is_live_or_attaching(PATH_BYTES.load(Acquire) != 0) || IS_LEFT_OUT.load(Acquire)
}

/// Returns whether this process, or the one that it was forked from, has given up its attach. Then
/// the recorder does not know of the children that are forked.
pub(crate) fn has_given_up() -> bool {
    HAS_GIVEN_UP.load(Acquire)
}

/// Returns the path of the socket, once there was an attempt to attach.
pub(crate) fn socket_of_attempt() -> Option<&'static CStr> {
    // SAFETY: the path was written before HAS_GIVEN_UP, and is not written again.
    let path = unsafe { &*PATH.0.get() };
    has_given_up().then(|| sys::c_text(path)).flatten()
}

/// Attaches a process that runs already, with an area whose descriptor the recorder has put into
/// this process. The recorder writes the jumps of the patches.
#[cfg(feature = "standalone")]
pub(crate) fn adopt_area(descriptor: i32, bytes: u64) {
    // The recorder attaches to no process in a sandbox.
    sys::permit(Need::PEEK.and(Need::LATER));
    let attach = |pid, _| {
        let area = session::map(descriptor, bytes);
        if let Some(patches) = area.as_ref().and_then(|area| patch::map(area, descriptor)) {
            patches.prepare();
        }
        adopt(area?, None, pid, false)
    };
    let _ = session::area_or_attach(attach);
    sys::close(descriptor);
}

fn attach(pid: u32, is_child: bool) -> Option<Area> {
    if sys::auxiliary(libc::AT_SECURE) != 0
        || arch::is_under_valgrind()
        || sys::environment("RUNNING_UNDER_RR").is_some()
    {
        return None;
    }
    if !Need::ATTACH.is_allowed() {
        board::post(pid, UntracedReason::Sandbox, b"");
        return None;
    }
    if PATH_BYTES.load(Relaxed) == 0 {
        // SAFETY: this thread alone is attaching, and nobody reads the path before its length is known.
        let path = unsafe { &mut *PATH.0.get() };
        let value = sys::environment(ENV_SOCKET)?.to_bytes();
        // A zero follows.
        path.get_mut(..value.len()).filter(|_| value.len() < 109)?.copy_from_slice(value);
        PATH_BYTES.store(value.len(), Release);
        let wanted = sys::environment(ENV_ATTACH_MS).and_then(|wanted| sys::number(wanted.to_bytes(), 0));
        if let Some(wanted) = wanted {
            TIMEOUT_MS.store(wanted.min(MAX_ATTACH_MS), Relaxed);
        }
    }
    // SAFETY: written above or by an earlier attach, and not written again.
    let path = unsafe { &*PATH.0.get() }.get(..PATH_BYTES.load(Relaxed)).filter(|path| !path.is_empty())?;
    if is_child && sys::has_filter() {
        sys::forbid(Need::PEEK);
    }
    if sys::has_no_counter() {
        timestamp::leave_counter();
    }
    if !is_child {
        stack::note_reserved();
    }
    let mut area = None;
    // A child of fork may have started threads: in mode off it attaches late.
    if !descriptor_thread::run(false, |_| area = connected(path, pid, is_child)) {
        board::post(pid, UntracedReason::Memory, b"");
    }
    IS_LEFT_OUT.store(area.is_none(), Release);
    area
}

/// Gets an area from the recorder, and starts to use it. No descriptor stays open.
fn connected(path: &[u8], pid: u32, is_child: bool) -> Option<Area> {
    let (fork_age, fork_tick) = match FORK_TICK.load(Relaxed) {
        _ if !is_child => (0, 0),
        0 => (sys::age_ns(), timestamp::now()),
        tick => (0, tick),
    };
    let hello = Hello {
        pid,
        origin: if is_child { ORIGIN_FORK } else { ORIGIN_START },
        page_size: sys::auxiliary(libc::AT_PAGESZ) as u32,
        address_space: sys::address_space(),
        fork_age,
        fork_tick,
        parent_pid: if is_child { session::pid() } else { 0 },
        minor: WIRE_MINOR,
    };
    let Some(socket) = sys::socket() else {
        board::post(pid, UntracedReason::Descriptors, b"");
        return None;
    };
    // The recorder sees the socket close. By then the session is in use, or never will be.
    let deadline = deadline();
    let area = match connect(socket, path, deadline) {
        Ok(()) => exchange(socket, &hello, deadline).and_then(|(reply, descriptor)| {
            let area = session::map(descriptor, reply.area_bytes);
            let patches = area.as_ref().and_then(|area| patch::map(area, descriptor));
            sys::close(descriptor);
            adopt(area?, patches, pid, is_child)
        }),
        Err(why) => {
            board::post(pid, why, b"");
            HAS_GIVEN_UP.store(why == UntracedReason::Busy, Release);
            None
        }
    };
    sys::close(socket);
    area
}

/// Connects to the recorder.
///
/// # Errors
/// Returns why the process cannot be recorded.
fn connect(socket: i32, path: &[u8], deadline: u64) -> Result<(), UntracedReason> {
    loop {
        match sys::connect(socket, path) {
            0 => return Ok(()),
            // The recorder's queue is full, and may have space a moment later.
            error if error == -libc::EAGAIN as isize => {
                if sys::kernel_ns() >= deadline {
                    return Err(UntracedReason::Busy);
                }
                sys::sleep_ms(1);
            }
            _ => return Err(UntracedReason::Unreachable),
        }
    }
}

/// Number of filters that apply to this process, as far as this library has seen; with
/// [`NEW_FILTERS`] if one was installed since the start of the program.
static FILTERS: AtomicU32 = AtomicU32::new(0);
const NEW_FILTERS: u32 = 1 << 31;

/// Notes that the program has installed a filter, which was evaluated.
pub(crate) fn has_new_filter() {
    let count = FILTERS.load(Relaxed) & !NEW_FILTERS;
    FILTERS.store((count + 1) | NEW_FILTERS, Relaxed);
}

/// Returns the number of filters if programs that this process starts do not know it yet.
pub(crate) fn new_filters() -> Option<u32> {
    let filters = FILTERS.load(Relaxed);
    (filters & NEW_FILTERS != 0).then_some(filters & !NEW_FILTERS)
}

/// Returns whether the filters that the program was started with are known to allow an attach: it
/// was told so over the exec, or they are those of a whole container, in which programs do all that
/// libraries commonly do. Of a filter that the program's parent has installed, nothing is known.
fn may_attach() -> bool {
    sys::permit(Need::LATER);
    let own = sys::filters(c"/proc/self/status");
    let Some(own) = own.filter(|own| *own > 0) else {
        if own.is_some() || !sys::has_filter() {
            sys::permit(Need::PEEK);
        }
        return true;
    };
    // Perhaps they do not allow what debuggers do, which stays forbidden.
    FILTERS.store(own, Relaxed);
    let known = sys::environment(ENV_FILTERS).and_then(|known| sys::number(known.to_bytes(), 0)).unwrap_or(0);
    known >= u64::from(own) || sys::filters(c"/proc/1/status") == Some(own)
}

/// Starts to use an area.
fn adopt(area: Area, patches: Option<Patches>, pid: u32, is_child: bool) -> Option<Area> {
    let is_inherited = is_child && !USE_NEW_MEMORY.swap(false, Relaxed);
    if !private::start(is_inherited, STATE_BYTES) || !start(&area) {
        area.header().board.0.post(pid, UntracedReason::Memory, b"");
        area.give_up();
        return None;
    }
    if !is_child {
        arch::register_barrier();
    }
    session::begin(pid, is_child, area.header().free_stacks.load(Relaxed) != 0);
    let parents = board::begin(&area);
    if !parents.is_null() {
        // The page is replaced and not unmapped, because another thread may use it.
        sys::replace_by_zeros(parents, size_of::<Header>());
    }
    area.header().own_malloc.store(dynsym::has_other_malloc().into(), Relaxed);
    area.header().next_malloc.store(next::pointers::malloc.load(Relaxed) as u64, Relaxed);
    if is_child {
        rules::forget_closers();
    }
    if let Some(patches) = patches {
        patches.apply();
    }
    private::attached();
    private::publish(area.header());
    session::note_signs(area.header());
    area.header().attached.store(1, Release);
    Some(area)
}

/// Returns the end of the time that a program waits for the recorder, if the wait begins now.
pub(crate) fn deadline() -> u64 {
    sys::kernel_ns() + TIMEOUT_MS.load(Relaxed) * 1_000_000
}

/// Waits for an answer of the recorder until the deadline, and returns whether there is one. A
/// recorder that is stopped gets [`ATTACH_MS`] of that time.
pub(crate) fn wait_for_answer(socket: i32, deadline: u64) -> bool {
    let left = || deadline.saturating_sub(sys::kernel_ns()) / 1_000_000;
    // A signal may interrupt the wait. The deadline holds all the same.
    while !sys::wait_readable(socket, left().min(ATTACH_MS)) {
        if left() == 0 || sys::peer_is_stopped(socket) {
            return false;
        }
    }
    true
}

/// Exchanges hello and reply before the deadline.
fn exchange(socket: i32, hello: &Hello, deadline: u64) -> Option<(Reply, i32)> {
    let hello = hello.encode();
    if sys::send(socket, &hello) != hello.len() as isize || !wait_for_answer(socket, deadline) {
        HAS_GIVEN_UP.store(true, Release);
        return None;
    }
    let mut bytes = [0; REPLY_BYTES];
    let (count, descriptor) = sys::receive(socket, &mut bytes);
    let reply = Reply::decode(&bytes).filter(|_| count == REPLY_BYTES as isize);
    HAS_GIVEN_UP.store(reply.is_some_and(|reply| reply.status == REFUSED_FULL), Release);
    let reply = reply.filter(|reply| reply.status == ACCEPTED);
    match (reply, descriptor) {
        (Some(reply), Some(descriptor)) => Some((reply, descriptor)),
        (_, descriptor) => {
            descriptor.into_iter().for_each(sys::close);
            None
        }
    }
}

/// Applies the settings that the recorder has chosen.
fn start(area: &Area) -> bool {
    let header = area.header();
    timestamp::choose(header.clock.load(Relaxed) == CLOCK_TSC);
    table::start(area)
}
