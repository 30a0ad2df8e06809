//! From the environment to a live session: connect, send the hello, map the area, close everything.
//! This is tried once. On any failure the process runs untraced, silently and for good.

use crate::shared::{self, Area};
use crate::thread::ThreadState;
use crate::{arch, board, dynsym, private, sandbox, stack_table, sys, timestamp};
use core::cell::UnsafeCell;
use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use heaptape_wire::Header;
use heaptape_wire::area::{ACTIVATION_DORMANT, CLOCK_TSC};
use heaptape_wire::hello::{ACCEPTED, Hello, ORIGIN_FORK, ORIGIN_START, REPLY_BYTES, Reply, UntracedReason};
use heaptape_wire::limits::{ATTACH_MS, ENV_ATTACH_MS, ENV_SOCKET, MAX_ATTACH_MS};

const NEW: u32 = 0;
const ATTACHING: u32 = 1;
const LIVE: u32 = 2;
const OFF: u32 = 3;
static STATE: AtomicU32 = AtomicU32::new(NEW);
/// The process that is attaching, so that a child forked meanwhile does not wait for a thread that
/// it does not have.
static ATTACHER: AtomicU32 = AtomicU32::new(0);
static SESSION_PID: AtomicU32 = AtomicU32::new(0);
static IS_FORKED: AtomicBool = AtomicBool::new(false);
static FREE_STACKS: AtomicBool = AtomicBool::new(false);
/// Whether this process, or the one that it was forked from, could not reach the recorder. Programs
/// that it starts are inspected all the same.
static IS_UNREACHABLE: AtomicBool = AtomicBool::new(false);
/// The ticks before the fork that made this process; see [`crate::fork`].
pub static FORK_TICK: AtomicU64 = AtomicU64::new(0);

/// A live session with the recorder.
#[derive(Clone, Copy)]
pub struct Session {
    /// The shared area of the session.
    pub area: Area,
}

struct Shared(UnsafeCell<Option<Session>>);
// SAFETY: written by the one thread that moved `STATE` to ATTACHING, read only after `STATE` was
// seen LIVE (Acquire after Release).
unsafe impl Sync for Shared {}
static SESSION: Shared = Shared(UnsafeCell::new(None));

impl Session {
    /// Returns the address that the threads' thread-local variables hold while the process is
    /// dormant, or `None` while it is not.
    pub fn dormant_activation(&self) -> Option<*mut ThreadState> {
        let activation = &self.area.header().activation.0;
        (activation.load(Acquire) == ACTIVATION_DORMANT).then(|| (&raw const *activation).cast_mut().cast())
    }
}

/// The path of the socket and its length, copied before the program can change its environment.
struct Path(UnsafeCell<([u8; 109], usize)>);
// SAFETY: written once under ATTACHING, read under ATTACHING.
unsafe impl Sync for Path {}
static PATH: Path = Path(UnsafeCell::new(([0; 109], 0)));

/// The longest time of an attach in milliseconds, read from the environment together with the path.
static TIMEOUT_MS: AtomicU64 = AtomicU64::new(ATTACH_MS);

/// Returns whether frees are recorded with stacks.
#[inline(always)]
pub fn frees_have_stacks() -> bool {
    FREE_STACKS.load(Relaxed)
}

/// Returns the shared area of a live session of this process. A child that has not attached yet has
/// none.
pub fn area() -> Option<Area> {
    if STATE.load(Acquire) != LIVE || !private::is_ours() {
        return None;
    }
    // SAFETY: LIVE was seen with Acquire.
    unsafe { *SESSION.0.get() }.map(|session| session.area)
}

/// Attaches when the library is loaded.
#[cfg_attr(test, allow(dead_code))]
pub fn at_start() {
    let _ = session();
}

/// Returns the session, and attaches if that has not been tried in this process.
pub fn session() -> Option<Session> {
    loop {
        let state = STATE.load(Acquire);
        let again = match state {
            OFF => return None,
            LIVE if private::is_ours() => {
                // SAFETY: LIVE was seen with Acquire.
                return unsafe { *SESSION.0.get() };
            }
            LIVE | NEW => state,
            _ if ATTACHER.load(Relaxed) != sys::pid() => state,
            _ => return None,
        };
        if state == NEW && !sys::environment_is_ready() {
            return None;
        }
        if STATE.compare_exchange(again, ATTACHING, Acquire, Relaxed).is_err() {
            continue;
        }
        let pid = sys::pid();
        ATTACHER.store(pid, Relaxed);
        let session = attach(pid, state == LIVE);
        // SAFETY: this thread alone is ATTACHING.
        unsafe { *SESSION.0.get() = session };
        STATE.store(if session.is_some() { LIVE } else { OFF }, Release);
        session.inspect(|session| {
            session.area.header().dropped_without_slot.fetch_add(UNCOUNTED.swap(0, Relaxed), Relaxed);
        });
        return session;
    }
}

/// Returns whether the process is untraced for good.
pub fn is_untraced() -> bool {
    STATE.load(Acquire) == OFF
}

/// Whether the next attach maps new memory for states and index, because a hook of the parent
/// continues in the old memory.
static USE_NEW_MEMORY: AtomicBool = AtomicBool::new(false);

/// Makes the next attach use new memory; see [`USE_NEW_MEMORY`].
pub fn use_new_memory() {
    USE_NEW_MEMORY.store(true, Relaxed);
}

/// Number of events that happened while another thread was creating the session. They are added to
/// the header once it exists.
static UNCOUNTED: AtomicU64 = AtomicU64::new(0);

/// Counts an event of a thread that has no slot.
#[cold]
pub fn count_without_slot() {
    match area() {
        Some(area) => area.header().dropped_without_slot.fetch_add(1, Relaxed),
        None if STATE.load(Acquire) == ATTACHING => UNCOUNTED.fetch_add(1, Relaxed),
        None => 0,
    };
}

/// Ends tracing: the recorder has closed the session, and the process runs untraced from now on.
pub fn close() {
    STATE.store(OFF, Release);
}

/// Returns the pid of the session, as the process sees itself.
pub fn pid() -> u32 {
    SESSION_PID.load(Relaxed)
}

/// Returns whether the process of the session was forked from another process with the same
/// program.
pub fn is_forked() -> bool {
    IS_FORKED.load(Relaxed)
}

/// Returns the path of the socket, if this process or the one that it was forked from has a
/// session, or could not reach the recorder.
pub fn socket_path() -> Option<&'static CStr> {
    let is_known = STATE.load(Acquire) == LIVE || IS_UNREACHABLE.load(Acquire);
    // SAFETY: the path was written before LIVE and before IS_UNREACHABLE, and is not written again.
    let (path, _) = unsafe { &*PATH.0.get() };
    (is_known && sandbox::allows(sandbox::INSPECT)).then(|| CStr::from_bytes_until_nul(path).ok()).flatten()
}

/// Posts that this process runs unrecorded, because it cannot reach the recorder.
fn note_unreachable(pid: u32, why: UntracedReason) {
    board::post(pid, why, b"");
    IS_UNREACHABLE.store(true, Release);
}

fn attach(pid: u32, is_child: bool) -> Option<Session> {
    if sys::auxiliary(libc::AT_SECURE) != 0
        || arch::is_under_valgrind()
        || sys::environment("RUNNING_UNDER_RR").is_some()
    {
        return None;
    }
    if !sandbox::allows(sandbox::ATTACH) {
        board::post(pid, UntracedReason::Sandbox, b"");
        return None;
    }
    // SAFETY: this thread alone is ATTACHING.
    let (path, length) = unsafe { &mut *PATH.0.get() };
    if *length == 0 {
        let value = sys::environment(ENV_SOCKET)?.to_bytes();
        // A zero follows.
        path.get_mut(..value.len()).filter(|_| value.len() < 109)?.copy_from_slice(value);
        *length = value.len();
        if let Some(wanted) = sys::environment(ENV_ATTACH_MS) {
            let wanted = wanted.to_bytes().iter().take(6).fold(0, |value, digit| {
                if digit.is_ascii_digit() { value * 10 + u64::from(digit - b'0') } else { value }
            });
            TIMEOUT_MS.store(wanted.min(MAX_ATTACH_MS), Relaxed);
        }
    }
    let path = path.get(..*length).filter(|path| !path.is_empty())?;
    sandbox::inspect_process();
    let unseen = is_child && FORK_TICK.load(Relaxed) == 0;
    let hello = Hello {
        pid,
        origin: if is_child { ORIGIN_FORK } else { ORIGIN_START },
        page_size: sys::auxiliary(libc::AT_PAGESZ) as u32,
        address_space: sys::address_space(),
        fork_age: if unseen { sys::age_ns() } else { 0 },
        fork_tick: match is_child {
            true if unseen => timestamp::now(),
            true => FORK_TICK.load(Relaxed),
            false => 0,
        },
        parent_pid: if is_child { SESSION_PID.load(Relaxed) } else { 0 },
    };
    let Some(socket) = sys::socket() else {
        note_unreachable(pid, UntracedReason::Descriptors);
        return None;
    };
    // The recorder sees the socket close. By then the session is in use, or never will be.
    let deadline = sys::monotonic_ns() + TIMEOUT_MS.load(Relaxed) * 1_000_000;
    let session = match connect(socket, path, deadline) {
        Ok(()) => exchange(socket, &hello, deadline).and_then(|(reply, descriptor)| {
            let area = shared::map(descriptor, reply.area_bytes);
            sys::close(descriptor);
            adopt(area?, pid, is_child)
        }),
        Err(why) => {
            note_unreachable(pid, why);
            None
        }
    };
    sys::close(socket);
    session
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
                if sys::monotonic_ns() >= deadline {
                    return Err(UntracedReason::Busy);
                }
                sys::sleep_ms(1);
            }
            _ => return Err(UntracedReason::Unreachable),
        }
    }
}

/// Starts to use an area.
fn adopt(area: Area, pid: u32, is_child: bool) -> Option<Session> {
    let is_inherited = is_child && !USE_NEW_MEMORY.swap(false, Relaxed);
    if !private::start(is_inherited) || !start(&area) {
        area.give_up();
        return None;
    }
    SESSION_PID.store(pid, Relaxed);
    IS_FORKED.store(is_child, Relaxed);
    let parents = board::begin(&area);
    if !parents.is_null() {
        // The page is replaced and not unmapped, because another thread may use it.
        sys::map_private(parents, size_of::<Header>(), libc::MAP_FIXED);
    }
    area.header().own_malloc.store(dynsym::has_other_malloc().into(), Relaxed);
    if is_child {
        crate::unwind::rules::forget_closers();
    }
    private::attached();
    area.header().attached.store(1, Release);
    Some(Session { area })
}

/// Exchanges hello and reply before the deadline. A recorder that is stopped gets [`ATTACH_MS`] of
/// that time.
fn exchange(socket: i32, hello: &Hello, deadline: u64) -> Option<(Reply, i32)> {
    let left = || deadline.saturating_sub(sys::monotonic_ns()) / 1_000_000;
    let hello = hello.encode();
    if sys::send(socket, &hello) != hello.len() as isize {
        return None;
    }
    // A signal may interrupt the wait. The deadline holds all the same.
    while !sys::wait_readable(socket, left().min(ATTACH_MS)) {
        if left() == 0 || sys::peer_is_stopped(socket) {
            return None;
        }
    }
    let mut bytes = [0; REPLY_BYTES];
    let (count, descriptor) = sys::receive(socket, &mut bytes);
    let reply = Reply::decode(&bytes).filter(|reply| count == REPLY_BYTES as isize && reply.status == ACCEPTED);
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
    FREE_STACKS.store(header.free_stacks.load(Relaxed) != 0, Relaxed);
    stack_table::start(area)
}
