//! The unsafe code of this crate apart from [`crate::os::spawn`], in owned types
//! and functions that cannot be misused: the memory of a shared area, the transfer of descriptors,
//! the identity of a peer, the wake-up of a writer.

use crate::os::atomics::Releases;
use nix::sys::{mman, socket};
use nix::{errno::Errno, fcntl, libc, unistd};
use std::ffi::{CStr, c_void};
use std::io::{self, IoSlice, Write};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use wire::area::Params;
use wire::modules::ModuleEntry;
use wire::ring::Ring;
use wire::{Area, Header, Layout, SlotControl, nodes};

/// The kernel's clocks, also for the standard library, which is linked to this definition. libfaketime, preloaded
/// for the traced program, replaces libc's, and a clock that stands still would make our waits endless.
///
/// # Safety
/// `time` must be valid for a write, as for libc's function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clock_gettime(clock: libc::clockid_t, time: *mut libc::timespec) -> libc::c_int {
    // SAFETY: the kernel writes to `time` only, and checks it.
    unsafe { libc::syscall(libc::SYS_clock_gettime, clock, time) as libc::c_int }
}

/// Gives the allocator's free memory back to the kernel.
pub fn give_back_memory() {
    // SAFETY: it changes only memory that is free.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Returns whether a file has an extended attribute.
pub(crate) fn has_attribute(path: &std::path::Path, name: &CStr) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let Ok(path) = std::ffi::CString::new(path.as_os_str().as_bytes()) else { return false };
    // SAFETY: both texts end with a zero; nothing is written without a buffer.
    unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

/// The shared memory area of one session, mapped in the recorder and unmapped on drop. Values made
/// from it borrow it or are stored next to it.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<c_void>,
    area: Area,
    releases: Releases,
}

// SAFETY: the mapping is shared memory that any thread may reach; `Area` states the sharing rules,
// and only `Drop` unmaps.
unsafe impl Send for Mapping {}
// SAFETY: `Area` holds atomics only, and states which side writes which of them.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Creates a zeroed area: a sparse file in memory that cannot shrink. Returns the descriptor
    /// that the client is to map, once it is sealed ([`seal`]).
    ///
    /// # Errors
    /// The error of the file, its seals, or the mapping.
    pub fn create(params: Params) -> nix::Result<(Mapping, OwnedFd)> {
        let file = new_memory_file(c"heaptape", libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)?;
        Ok((Mapping::create_in(&file, params)?, file))
    }

    /// Creates a zeroed area in an empty file in memory that can be sealed.
    ///
    /// # Errors
    /// The error of the file, its seals, or the mapping.
    pub(crate) fn create_in(file: &OwnedFd, params: Params) -> nix::Result<Mapping> {
        let total = Layout::new(params).total;
        unistd::ftruncate(file, i64::try_from(total).map_err(|_| Errno::EFBIG)?)?;
        fcntl::fcntl(file, fcntl::FcntlArg::F_ADD_SEALS(fcntl::SealFlag::F_SEAL_SHRINK))?;
        Mapping::of(file, params)
    }

    /// Maps an area that another recorder created. Its sizes are read from its header, which the
    /// traced process may have overwritten: they must be valid and match the file.
    ///
    /// # Errors
    /// `InvalidData` when the file is not an area of this version, otherwise the error of the
    /// mapping.
    pub fn adopt(file: &OwnedFd) -> io::Result<Mapping> {
        const FIRST_RING_SHIFT_OFFSET: usize = core::mem::offset_of!(Header, first_ring_shift);
        const HEAD_BYTES: usize = FIRST_RING_SHIFT_OFFSET + size_of::<u32>();
        let mut head = [0; HEAD_BYTES];
        let read = nix::sys::uio::pread(file, &mut head, 0)?;
        let number = |at: usize, size: usize| {
            head[at..at + size].iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte))
        };
        let small = |at: usize| u32::try_from(number(at, 4)).unwrap_or(0);
        let (slots, nodes) = (small(24), small(28));
        let params =
            Params { ring_bytes: number(16, 8), first_ring_shift: small(FIRST_RING_SHIFT_OFFSET), slots, nodes };
        let is_ours =
            read == head.len() && number(0, 8) == wire::area::MAGIC && small(8) == u32::from(wire::WIRE_VERSION);
        if !is_ours || !params.is_valid() {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
        let seals = fcntl::SealFlag::from_bits_retain(fcntl::fcntl(file, fcntl::FcntlArg::F_GET_SEALS)?);
        if !seals.contains(fcntl::SealFlag::F_SEAL_SHRINK) {
            return Err(io::Error::from(io::ErrorKind::InvalidData));
        }
        Ok(Mapping::of(file, params)?)
    }

    /// Maps the area in `file`, which was created with `params`.
    ///
    /// # Errors
    /// `EINVAL` when the file is shorter, otherwise the error of the mapping.
    pub fn of(file: &OwnedFd, params: Params) -> nix::Result<Mapping> {
        let total = Layout::new(params).total;
        let size = nix::sys::stat::fstat(file)?.st_size;
        let length = usize::try_from(total).ok().and_then(NonZeroUsize::new).ok_or(Errno::ENOMEM)?;
        // Search tables may follow.
        if u64::try_from(size).is_ok_and(|size| size < total) {
            return Err(Errno::EINVAL);
        }
        let access = mman::ProtFlags::PROT_READ | mman::ProtFlags::PROT_WRITE;
        let kind = mman::MapFlags::MAP_SHARED | mman::MapFlags::MAP_NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses overlaps no other memory. The
        // file is sealed against shrinking, so reading the mapping cannot fault.
        let base = unsafe { mman::mmap(None, length, access, kind, file, 0)? };
        // SAFETY: exactly the bytes that were just mapped. A core dump of the recorder need not
        // contain them; a failure does no harm.
        let _ = unsafe { mman::madvise(base, length.get(), mman::MmapAdvise::MADV_DONTDUMP) };
        // SAFETY: `total` bytes of the layout are mapped at `base`, page-aligned, until `self` is
        // dropped.
        let area = unsafe { Area::new(base.as_ptr().cast(), params) };
        Ok(Mapping { base, area, releases: Releases::default() })
    }

    /// Frees the memory of an area, which then reads as zeros. Otherwise processes that map a part
    /// of the area would keep all of it allocated.
    pub fn empty(&self) {
        // SAFETY: the range is the whole mapping: shared memory whose content is never trusted. A
        // failure does no harm.
        let _ = unsafe { mman::madvise(self.base, self.bytes() as usize, mman::MmapAdvise::MADV_REMOVE) };
    }

    /// Returns the sizes with which the area was created.
    pub fn params(&self) -> Params {
        self.area.layout().params
    }

    /// Returns the size of the area in bytes.
    pub fn bytes(&self) -> u64 {
        self.area.layout().total
    }

    /// Returns the header of the area.
    pub fn header(&self) -> &Header {
        self.area.header()
    }

    /// Returns whether the attached process calls a `malloc` that is not the preload library's.
    pub(crate) fn has_own_malloc(&self) -> bool {
        self.header().own_malloc.load(Ordering::Relaxed) != 0
    }

    pub fn patches(&self) -> &wire::patches::PatchTable {
        self.area.patches()
    }

    /// Returns the control record of a slot.
    pub fn slot(&self, index: u32) -> Option<&SlotControl> {
        self.area.slot(index)
    }

    /// Returns the ring of a slot. It must not outlive the mapping.
    pub fn ring(&self, index: u32) -> Option<Ring> {
        self.area.ring(index)
    }

    /// Returns an entry of the module table.
    pub fn module(&self, index: u32) -> Option<&ModuleEntry> {
        self.area.module(index)
    }

    /// Returns the state of the release of ring space.
    pub fn releases(&self) -> &Releases {
        &self.releases
    }

    /// Returns the number of slots that may be in use.
    pub fn slots_used(&self) -> u32 {
        self.area.slots_used()
    }

    /// Returns a node of the stack table. Its bytes are validated as untrusted input.
    pub fn node(&self, number: u32) -> Option<nodes::NodeValue> {
        // SAFETY: the table is inside the mapping and has as many nodes as the layout was created
        // with.
        unsafe { nodes::read(self.area.first_node(), self.params().nodes, number) }
    }

    /// Returns the cell of a node, for tests that act as the traced process.
    pub fn node_cell(&self, number: u32) -> Option<&nodes::Node> {
        if number >= self.params().nodes {
            return None;
        }
        // SAFETY: the number was checked, so the node is inside the mapping, which the reference
        // keeps alive. The node consists of atomics.
        Some(unsafe { &*self.area.first_node().add(number as usize) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is exactly the mapping. Every value made from it borrows `self` or is
        // dropped before it.
        let _ = unsafe { mman::munmap(self.base, self.bytes() as usize) };
    }
}

/// Appends bytes to the file of an area of this size.
pub fn append(file: &OwnedFd, size: u64, bytes: &[u8]) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    std::fs::File::from(file.try_clone()?).write_all_at(bytes, size)
}

/// Seals the file of an area before the process gets it: from now on nobody can change its size.
pub fn seal(file: &OwnedFd) {
    let seals = fcntl::SealFlag::F_SEAL_GROW | fcntl::SealFlag::F_SEAL_SEAL;
    let _ = fcntl::fcntl(file, fcntl::FcntlArg::F_ADD_SEALS(seals));
}

/// Sends one message, with a descriptor if one is given.
pub(crate) fn send_with(socket: BorrowedFd<'_>, bytes: &[u8], file: Option<BorrowedFd<'_>>) -> nix::Result<()> {
    let files: Vec<i32> = file.iter().map(|file| file.as_raw_fd()).collect();
    let rights = [socket::ControlMessage::ScmRights(&files)];
    let control = if files.is_empty() { &[][..] } else { &rights[..] };
    let flags = socket::MsgFlags::MSG_NOSIGNAL | socket::MsgFlags::MSG_DONTWAIT;
    socket::sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(bytes)], control, flags, None).map(drop)
}

/// Receives one message and the descriptor that was sent with it: the client's side of
/// [`send_with`].
pub fn receive_with(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> nix::Result<(usize, Option<OwnedFd>)> {
    let mut space = nix::cmsg_space!([i32; 1]);
    let mut buffers = [io::IoSliceMut::new(bytes)];
    let flags = socket::MsgFlags::MSG_CMSG_CLOEXEC;
    let message = socket::recvmsg::<()>(socket.as_raw_fd(), &mut buffers, Some(&mut space), flags)?;
    let mut file = None;
    for control in message.cmsgs()? {
        if let socket::ControlMessageOwned::ScmRights(files) = control {
            // SAFETY: the kernel has just given these descriptors to us alone.
            files.into_iter().for_each(|number| file = Some(unsafe { OwnedFd::from_raw_fd(number) }));
        }
    }
    Ok((message.bytes, file))
}

/// Sends one message with descriptors; waits until there is space.
pub fn send_files(socket: BorrowedFd<'_>, bytes: &[u8], files: &[BorrowedFd<'_>]) -> nix::Result<()> {
    send_files_with(socket, bytes, files, true)
}

/// Sends one message with descriptors; waits for space only if `waits` is set.
///
/// # Errors
/// The error of `sendmsg`: `EAGAIN` when there is no space and `waits` is not set.
pub fn send_files_with(socket: BorrowedFd<'_>, bytes: &[u8], files: &[BorrowedFd<'_>], waits: bool) -> nix::Result<()> {
    let files: Vec<i32> = files.iter().map(|file| file.as_raw_fd()).collect();
    let rights = [socket::ControlMessage::ScmRights(&files)];
    let control = if files.is_empty() { &[][..] } else { &rights[..] };
    let wait = if waits { socket::MsgFlags::empty() } else { socket::MsgFlags::MSG_DONTWAIT };
    let flags = socket::MsgFlags::MSG_NOSIGNAL | wait;
    socket::sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(bytes)], control, flags, None).map(drop)
}

/// Receives one message and up to `N` descriptors that were sent with it.
pub fn receive_files<const N: usize>(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> nix::Result<(usize, Vec<OwnedFd>)> {
    receive_in(socket, bytes, nix::cmsg_space!([i32; N]))
}

/// Receives one message with as many descriptors as the kernel passes with one.
pub(crate) fn receive_many_files(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> nix::Result<(usize, Vec<OwnedFd>)> {
    receive_in(socket, bytes, nix::cmsg_space!([i32; 253]))
}

fn receive_in(socket: BorrowedFd<'_>, bytes: &mut [u8], mut space: Vec<u8>) -> nix::Result<(usize, Vec<OwnedFd>)> {
    let mut buffers = [io::IoSliceMut::new(bytes)];
    let flags = socket::MsgFlags::MSG_CMSG_CLOEXEC;
    let message = socket::recvmsg::<()>(socket.as_raw_fd(), &mut buffers, Some(&mut space), flags)?;
    let mut received = Vec::new();
    for control in message.cmsgs()? {
        if let socket::ControlMessageOwned::ScmRights(files) = control {
            // SAFETY: the kernel has just given these descriptors to us alone.
            received.extend(files.into_iter().map(|number| unsafe { OwnedFd::from_raw_fd(number) }));
        }
    }
    Ok((message.bytes, received))
}

/// Creates an empty file in memory. glibc has a function for the system call only since 2.27, and
/// the command must start with 2.17.
pub(crate) fn new_memory_file(name: &CStr, flags: u32) -> nix::Result<OwnedFd> {
    // SAFETY: the name ends with a zero byte; the call writes no memory.
    let fd = Errno::result(unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), flags) })?;
    // SAFETY: the kernel has just made the descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Creates a file in memory that contains these bytes.
pub(crate) fn memory_file(bytes: &[u8]) -> io::Result<OwnedFd> {
    let file = new_memory_file(c"heaptape", libc::MFD_CLOEXEC)?;
    std::fs::File::from(file.try_clone()?).write_all(bytes)?;
    Ok(file)
}

/// Opens a socket of the kernel's process events (`NETLINK_CONNECTOR`), which drops each message that this program of
/// the classic packet filter returns 0 for.
///
/// # Errors
/// That of the socket, or of the filter.
pub fn connector(filter: &mut [libc::sock_filter]) -> nix::Result<OwnedFd> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the call takes integers only.
    let made = Errno::result(unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_CONNECTOR) })?;
    // SAFETY: the kernel has just made the descriptor for us.
    let made = unsafe { OwnedFd::from_raw_fd(made) };
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    let (level, length) = (libc::SOL_SOCKET, size_of_val(&program) as libc::socklen_t);
    // SAFETY: the kernel reads the program, which has this length, and the filter, which lives.
    let set = unsafe {
        libc::setsockopt(made.as_raw_fd(), level, libc::SO_ATTACH_FILTER, (&raw const program).cast(), length)
    };
    Errno::result(set).map(|_| made)
}

/// Takes ownership of a descriptor with which this process was started (`LISTEN_FDS`); returns
/// `None` when it is not open. Must be called once for each number.
pub fn inherited(number: i32) -> Option<OwnedFd> {
    // SAFETY: the call takes integers only; its result shows whether the descriptor is open.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return None;
    }
    // SAFETY: the descriptor is open, the parent process passed it, and the caller requests each
    // number once.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Accepts the next connection as a non-blocking socket that is closed on exec.
pub fn accept(listener: BorrowedFd<'_>) -> nix::Result<OwnedFd> {
    let flags = socket::SockFlag::SOCK_CLOEXEC | socket::SockFlag::SOCK_NONBLOCK;
    let socket = socket::accept4(listener.as_raw_fd(), flags)?;
    // SAFETY: the kernel has just given the descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}

/// Returns whether an error means that no descriptor is left, in this process or in the system.
pub fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Returns a descriptor that becomes readable when the peer process ends. It is the peer's own
/// where the kernel supports that, otherwise it is opened by number.
pub fn process_of_peer(socket: BorrowedFd<'_>, pid: u32) -> nix::Result<OwnedFd> {
    const SO_PEERPIDFD: i32 = 77;
    let mut received: i32 = -1;
    let mut length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: value and length point to local variables of the sizes that are passed.
    let result = unsafe {
        let value = (&raw mut received).cast::<c_void>();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PEERPIDFD, value, &raw mut length)
    };
    if result == 0 && received >= 0 {
        // SAFETY: the kernel has just given the descriptor to us alone.
        return Ok(unsafe { OwnedFd::from_raw_fd(received) });
    }
    process(pid)
}

/// Returns a descriptor that becomes readable when a process ends. The number must still be that of
/// the process, as for a child that has not been waited for.
pub fn process(pid: u32) -> nix::Result<OwnedFd> {
    // SAFETY: the call takes integers only; its result is a new descriptor or an error.
    let received = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) })?;
    // SAFETY: the kernel has just given the descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(received as i32) })
}

/// Returns the wait status of a process that has ended; `None` on kernels before 6.15, or while it
/// has not been waited for.
pub fn exit_status(process: BorrowedFd<'_>) -> Option<i32> {
    /// The kernel's `struct pidfd_info` in its first form, 64 bytes.
    #[repr(C)]
    #[derive(Default)]
    struct Info {
        mask: u64,
        cgroup: u64,
        ids: [u32; 11],
        exit_code: i32,
    }
    const INFO_EXIT: u64 = 1 << 3;
    const PIDFD_GET_INFO: libc::c_ulong = 0xc040_ff0b; // _IOWR(0xff, 11, 64 bytes)
    let mut info = Info { mask: INFO_EXIT, ..Info::default() };
    // SAFETY: the request's number contains the size 64, that of `info`.
    let result = unsafe { libc::ioctl(process.as_raw_fd(), PIDFD_GET_INFO as _, &raw mut info) };
    (result == 0 && info.mask & INFO_EXIT != 0).then_some(info.exit_code)
}

/// Forks the process, which must have one thread. Returns the pid of the child, and `None` in the
/// child.
pub fn fork() -> nix::Result<Option<u32>> {
    // SAFETY: the callers have not started a thread, so no lock that the child may need is held by
    // a thread that it does not have.
    match unsafe { unistd::fork()? } {
        unistd::ForkResult::Parent { child } => Ok(u32::try_from(child.as_raw()).ok()),
        unistd::ForkResult::Child => Ok(None),
    }
}

/// Redirects standard error to `/dev/null`, so that this process does not keep a pipe open.
pub(crate) fn discard_stderr() {
    if let Ok(null) = std::fs::OpenOptions::new().write(true).open("/dev/null") {
        let _ = unistd::dup2_stderr(&null);
    }
}

/// Closes all descriptors but one and the standard ones: for a child that uses nothing else of its
/// parent.
pub(crate) fn close_all_except(file: BorrowedFd<'_>) {
    let kept = file.as_raw_fd().cast_unsigned();
    for (first, last) in [(3, kept - 1), (kept + 1, u32::MAX)] {
        if first <= last {
            // SAFETY: the call takes integers only. The calling process uses none of these
            // descriptors any more.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    }
}

/// Returns whether two processes have the same memory, as after a `clone` with `CLONE_VM`; `None` if the
/// kernel does not say: see kcmp(2).
pub(crate) fn share_memory(pids: [u32; 2]) -> Option<bool> {
    const KCMP_VM: i32 = 1;
    // SAFETY: the call takes integers only.
    let result = unsafe { libc::syscall(libc::SYS_kcmp, pids[0] as i32, pids[1] as i32, KCMP_VM, 0, 0) };
    Errno::result(result).ok().map(|order| order == 0)
}

/// Gives up all capabilities of this thread, for good: see capset(2).
pub(crate) fn drop_capabilities() -> nix::Result<()> {
    const VERSION_3: u32 = 0x2008_0522;
    let (header, none) = ([VERSION_3, 0], [[0u32; 3]; 2]);
    // SAFETY: the kernel reads a header of two words and, in this version, two sets of three.
    Errno::result(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) }).map(drop)
}

/// Sets the nice value of this process, so that others get the CPU first.
pub fn lower_priority(nice: i32) {
    // SAFETY: the call takes integers only; 0 is the caller. A failure changes nothing.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
}

/// Waits until a descriptor is readable. Returns false when it is not within the timeout.
pub(crate) fn wait_readable_for(file: BorrowedFd<'_>, timeout: std::time::Duration) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let until = std::time::Instant::now() + timeout;
    loop {
        let left = until.saturating_duration_since(std::time::Instant::now()).as_micros().div_ceil(1000);
        let mut polls = [PollFd::new(file, PollFlags::POLLIN)];
        match poll(&mut polls, PollTimeout::try_from(left.min(60_000) as i32).unwrap_or(PollTimeout::ZERO)) {
            Err(Errno::EINTR) => {}
            ready => return ready.is_ok_and(|ready| ready > 0),
        }
    }
}

/// Raises the priority of the calling thread where the system permits it: for a thread that others
/// wait for and that does little.
pub fn prefer_thread() {
    const NICE: i32 = -10;
    // SAFETY: the call takes integers only. Without the permission nothing changes. On Linux 0 is
    // the calling thread alone.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
}

/// Lets the calling thread run before all ordinary ones (SCHED_FIFO) where the system permits it:
/// for a thread that has stopped all threads of another process for less than a millisecond.
pub(crate) fn prefer_thread_to_all() {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: the kernel reads the variable only. Without the permission nothing changes. On Linux
    // 0 is the calling thread alone.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const lowest) };
}

/// Waits until one of these descriptors is readable.
pub fn wait_readable(files: &[BorrowedFd<'_>]) {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut polls: Vec<PollFd<'_>> = files.iter().map(|file| PollFd::new(*file, PollFlags::POLLIN)).collect();
    let _ = poll(&mut polls, PollTimeout::NONE);
}

/// Returns whether a descriptor is readable now, or at its end.
pub fn is_readable(file: BorrowedFd<'_>) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut polls = [PollFd::new(file, PollFlags::POLLIN)];
    poll(&mut polls, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// Wakes the thread of a traced process that waits for space in its ring: a futex on the low half
/// of the tail.
pub fn wake(tail: &AtomicU64) {
    // SAFETY: the address is valid while the reference lives; the call reads no memory of this
    // process.
    unsafe { libc::syscall(libc::SYS_futex, tail.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// Requests huge pages for memory, which the kernel may ignore.
pub(crate) fn prefer_huge_pages(memory: NonNull<u8>, bytes: usize) {
    // SAFETY: this advice changes no content and no access.
    let _ = unsafe { mman::madvise(memory.cast(), bytes, mman::MmapAdvise::MADV_HUGEPAGE) };
}

/// Converts an error of nix to one of std.
pub fn io(error: Errno) -> io::Error {
    io::Error::from(error)
}

/// Borrows a descriptor, so that callers need not import the trait.
pub fn fd(file: &impl AsFd) -> BorrowedFd<'_> {
    file.as_fd()
}

/// Permits a user to read a file or a folder by its access list. A user who is neither this one nor
/// the owner has no permission.
///
/// # Errors
/// `EOPNOTSUPP` where the file system has no access lists, otherwise the error of the call.
pub fn let_read(file: &std::fs::File, uid: u32) -> io::Result<()> {
    /// `posix_acl_xattr.h`: version, then tag, rights and id of each entry.
    const VERSION: u32 = 2;
    const NO_ID: u32 = u32::MAX;
    let (own, read) = if file.metadata()?.is_dir() { (7, 5) } else { (6, 4) };
    // The owner, the user, the group, the mask of user and group, all others.
    let entries = [(1, own, NO_ID), (2, read, uid), (4, 0, NO_ID), (16, read, NO_ID), (32, 0, NO_ID)];
    let mut list = VERSION.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        list.extend([u16::to_le_bytes(tag), u16::to_le_bytes(rights)].concat());
        list.extend(u32::to_le_bytes(id));
    }
    let name = c"system.posix_acl_access";
    // SAFETY: the file is open, the name ends in 0, and the list has the length that is passed.
    let done = unsafe { libc::fsetxattr(file.as_raw_fd(), name.as_ptr(), list.as_ptr().cast(), list.len(), 0) };
    Errno::result(done).map(drop).map_err(io)
}
