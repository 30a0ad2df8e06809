//! Every unsafe line of this crate, behind owned types and functions that cannot be misused: the
//! area's memory, handing over its descriptor, who is at the other end, the processor's counter,
//! waking a writer, prefetching.

use nix::sys::{memfd, mman, socket};
use nix::{errno::Errno, fcntl, libc, unistd};
use std::ffi::c_void;
use std::io::{self, IoSlice, Write};
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use wire::area::Params;
use wire::modules::ModuleEntry;
use wire::ring::Ring;
use wire::{Area, Header, Layout, SlotControl, nodes};

/// The memory of one session's area, mapped in the recorder; unmapped on drop. Everything made from
/// it borrows it or is kept beside it.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<c_void>,
    area: Area,
}

// SAFETY: the mapping is shared memory that any thread may reach; `Area` states the sharing rules,
// and only `Drop` unmaps.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Makes an area of zeros: a sealed, sparse file in memory. Gives the descriptor that the
    /// client is to map.
    pub fn create(params: Params) -> nix::Result<(Mapping, OwnedFd)> {
        let flags = memfd::MFdFlags::MFD_CLOEXEC | memfd::MFdFlags::MFD_ALLOW_SEALING;
        let file = memfd::memfd_create(c"heaptape", flags)?;
        let total = Layout::new(params).total;
        unistd::ftruncate(&file, i64::try_from(total).map_err(|_| Errno::EFBIG)?)?;
        let seals = fcntl::SealFlag::F_SEAL_SHRINK | fcntl::SealFlag::F_SEAL_GROW | fcntl::SealFlag::F_SEAL_SEAL;
        fcntl::fcntl(&file, fcntl::FcntlArg::F_ADD_SEALS(seals))?;
        Ok((Mapping::of(&file, params)?, file))
    }

    /// Maps an area that another recorder made. Its sizes stand in its header, which its process
    /// may have written to: they must be sound and fit the file.
    pub fn adopt(file: &OwnedFd) -> io::Result<Mapping> {
        let mut head = [0; 32];
        let read = nix::sys::uio::pread(file, &mut head, 0)?;
        let number = |at: usize, size: usize| {
            head[at..at + size].iter().rev().fold(0u64, |value, byte| value << 8 | u64::from(*byte))
        };
        let small = |at: usize| u32::try_from(number(at, 4)).unwrap_or(0);
        let params = Params { ring_bytes: number(16, 8), slots: small(24), nodes: small(28) };
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

    /// Maps the area that lies in `file`, made with `params`.
    pub fn of(file: &OwnedFd, params: Params) -> nix::Result<Mapping> {
        let total = Layout::new(params).total;
        let size = nix::sys::stat::fstat(file)?.st_size;
        let length = usize::try_from(total).ok().and_then(NonZeroUsize::new).ok_or(Errno::ENOMEM)?;
        if u64::try_from(size) != Ok(total) {
            return Err(Errno::EINVAL);
        }
        let access = mman::ProtFlags::PROT_READ | mman::ProtFlags::PROT_WRITE;
        let kind = mman::MapFlags::MAP_SHARED | mman::MapFlags::MAP_NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory of ours.
        // The file is sealed against shrinking, so reading the mapping cannot fault.
        let base = unsafe { mman::mmap(None, length, access, kind, file, 0)? };
        // SAFETY: exactly the bytes that were just mapped. A core dump of the recorder need not
        // hold them; failing is no harm.
        let _ = unsafe { mman::madvise(base, length.get(), mman::MmapAdvise::MADV_DONTDUMP) };
        // SAFETY: `total` bytes of the layout are mapped from `base` on, page-aligned, until `self`
        // is dropped.
        let area = unsafe { Area::new(base.as_ptr().cast(), params) };
        Ok(Mapping { base, area })
    }

    /// Returns the memory of an area to the system; it reads as zeros then. Processes that map
    /// some of it would hold all of it.
    pub fn empty(&self) {
        // SAFETY: the whole mapping, which is shared memory whose content is never trusted.
        // Failing is no harm.
        let _ = unsafe { mman::madvise(self.base, self.bytes() as usize, mman::MmapAdvise::MADV_REMOVE) };
    }

    /// What was agreed about sizes.
    pub fn params(&self) -> Params {
        self.area.layout().params
    }

    /// Bytes in all.
    pub fn bytes(&self) -> u64 {
        self.area.layout().total
    }

    /// The header.
    pub fn header(&self) -> &Header {
        self.area.header()
    }

    /// Whether the process, which has attached, calls a `malloc` that is not the library's.
    pub fn has_own_malloc(&self) -> bool {
        self.header().own_malloc.load(Ordering::Relaxed) != 0
    }

    /// The control block of a slot.
    pub fn slot(&self, index: u32) -> Option<&SlotControl> {
        self.area.slot(index)
    }

    /// The ring of a slot; must not outlive the mapping.
    pub fn ring(&self, index: u32) -> Option<Ring> {
        self.area.ring(index)
    }

    /// A module entry.
    pub fn module(&self, index: u32) -> Option<&ModuleEntry> {
        self.area.module(index)
    }

    /// Slots that may be in use.
    pub fn slots_used(&self) -> u32 {
        self.area.slots_used()
    }

    /// A node, judged as bytes of a stranger.
    pub fn node(&self, number: u32) -> Option<nodes::NodeValue> {
        // SAFETY: the table lies inside the mapping and has as many nodes as the layout was made
        // with.
        unsafe { nodes::read(self.area.first_node(), self.params().nodes, number) }
    }

    /// The cell of a node, for whoever plays the traced process.
    pub fn node_cell(&self, number: u32) -> Option<&nodes::Node> {
        if number >= self.params().nodes {
            return None;
        }
        // SAFETY: the number was checked, so the node lies inside the mapping, which the reference
        // keeps alive; it is all atomics.
        Some(unsafe { &*self.area.first_node().add(number as usize) })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the whole mapping and nothing else; whatever was made from it borrows `self` or
        // is dropped before it.
        let _ = unsafe { mman::munmap(self.base, self.bytes() as usize) };
    }
}

/// Sends one message and a descriptor along.
pub fn send_with(socket: BorrowedFd<'_>, bytes: &[u8], file: Option<BorrowedFd<'_>>) -> nix::Result<()> {
    let files: Vec<i32> = file.iter().map(|file| file.as_raw_fd()).collect();
    let rights = [socket::ControlMessage::ScmRights(&files)];
    let control = if files.is_empty() { &[][..] } else { &rights[..] };
    let flags = socket::MsgFlags::MSG_NOSIGNAL | socket::MsgFlags::MSG_DONTWAIT;
    socket::sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(bytes)], control, flags, None).map(drop)
}

/// Receives one message and the descriptor that comes along: the client's side of [`send_with`].
pub fn receive_with(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> nix::Result<(usize, Option<OwnedFd>)> {
    let mut space = nix::cmsg_space!([i32; 1]);
    let mut parts = [io::IoSliceMut::new(bytes)];
    let flags = socket::MsgFlags::MSG_CMSG_CLOEXEC;
    let message = socket::recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags)?;
    let mut file = None;
    for control in message.cmsgs()? {
        if let socket::ControlMessageOwned::ScmRights(files) = control {
            // SAFETY: the kernel has just given these descriptors to us alone.
            files.into_iter().for_each(|number| file = Some(unsafe { OwnedFd::from_raw_fd(number) }));
        }
    }
    Ok((message.bytes, file))
}

/// Sends one message with any number of descriptors; waits until there is room.
pub fn send_files(socket: BorrowedFd<'_>, bytes: &[u8], files: &[BorrowedFd<'_>]) -> nix::Result<()> {
    send_files_now(socket, bytes, files, true)
}

/// The same; waits only if told to.
pub fn send_files_now(socket: BorrowedFd<'_>, bytes: &[u8], files: &[BorrowedFd<'_>], waits: bool) -> nix::Result<()> {
    let files: Vec<i32> = files.iter().map(|file| file.as_raw_fd()).collect();
    let rights = [socket::ControlMessage::ScmRights(&files)];
    let control = if files.is_empty() { &[][..] } else { &rights[..] };
    let wait = if waits { socket::MsgFlags::empty() } else { socket::MsgFlags::MSG_DONTWAIT };
    let flags = socket::MsgFlags::MSG_NOSIGNAL | wait;
    socket::sendmsg::<()>(socket.as_raw_fd(), &[IoSlice::new(bytes)], control, flags, None).map(drop)
}

/// Receives one message and up to two descriptors that come along.
pub fn receive_files(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> nix::Result<(usize, Vec<OwnedFd>)> {
    receive_in(socket, bytes, nix::cmsg_space!([i32; 2]))
}

/// The same with as many as the kernel passes with one message.
pub fn receive_many_files(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> nix::Result<(usize, Vec<OwnedFd>)> {
    receive_in(socket, bytes, nix::cmsg_space!([i32; 253]))
}

fn receive_in(socket: BorrowedFd<'_>, bytes: &mut [u8], mut space: Vec<u8>) -> nix::Result<(usize, Vec<OwnedFd>)> {
    let mut parts = [io::IoSliceMut::new(bytes)];
    let flags = socket::MsgFlags::MSG_CMSG_CLOEXEC;
    let message = socket::recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags)?;
    let mut found = Vec::new();
    for control in message.cmsgs()? {
        if let socket::ControlMessageOwned::ScmRights(files) = control {
            // SAFETY: the kernel has just given these descriptors to us alone.
            found.extend(files.into_iter().map(|number| unsafe { OwnedFd::from_raw_fd(number) }));
        }
    }
    Ok((message.bytes, found))
}

/// A file in memory that holds these bytes.
pub fn bytes_file(bytes: &[u8]) -> io::Result<OwnedFd> {
    let file = memfd::memfd_create(c"heaptape", memfd::MFdFlags::MFD_CLOEXEC)?;
    std::fs::File::from(file.try_clone()?).write_all(bytes)?;
    Ok(file)
}

/// A descriptor that we were started with (`LISTEN_FDS`); `None` when it is not open.
pub fn inherited(number: i32) -> Option<OwnedFd> {
    // SAFETY: plain numbers; the answer says whether there is such a descriptor.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return None;
    }
    // SAFETY: it is open, and our parent passed it to us; the caller asks for each number
    // once.
    Some(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Takes the next connection, non-blocking and closed on exec.
pub fn accept(listener: BorrowedFd<'_>) -> nix::Result<OwnedFd> {
    let flags = socket::SockFlag::SOCK_CLOEXEC | socket::SockFlag::SOCK_NONBLOCK;
    let socket = socket::accept4(listener.as_raw_fd(), flags)?;
    // SAFETY: the kernel has just given the descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}

/// Whether an error says that no descriptor is left, of this process or of the machine.
pub fn is_out_of_descriptors(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// A descriptor that becomes readable when the process ends: the peer's own where the kernel knows
/// it, else by number.
pub fn process_of_peer(socket: BorrowedFd<'_>, pid: u32) -> nix::Result<OwnedFd> {
    const SO_PEERPIDFD: i32 = 77;
    let mut found: i32 = -1;
    let mut length = size_of::<i32>() as libc::socklen_t;
    // SAFETY: value and length point to locals of the sizes given.
    let result = unsafe {
        let value = (&raw mut found).cast::<c_void>();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PEERPIDFD, value, &raw mut length)
    };
    if result == 0 && found >= 0 {
        // SAFETY: the kernel has just given the descriptor to us alone.
        return Ok(unsafe { OwnedFd::from_raw_fd(found) });
    }
    process(pid)
}

/// The same for any process of which the number is known to be still its own (a child not waited
/// for).
pub fn process(pid: u32) -> nix::Result<OwnedFd> {
    // SAFETY: plain numbers; the result is a new descriptor or an error.
    let found = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) })?;
    // SAFETY: the kernel has just given the descriptor to us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(found as i32) })
}

/// How a process that is gone ended, as `wait` would say it; `None` on kernels before 6.15, or
/// while nobody has waited for it.
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
    // SAFETY: the request's number says 64 bytes, the size of `info`.
    let result = unsafe { libc::ioctl(process.as_raw_fd(), PIDFD_GET_INFO as _, &raw mut info) };
    (result == 0 && info.mask & INFO_EXIT != 0).then_some(info.exit_code)
}

/// Forks a caller that has one thread: `None` in the child.
pub fn fork() -> nix::Result<Option<u32>> {
    // SAFETY: the one caller has not started a thread, so that nothing that the child may need is
    // held by one that it does not have.
    match unsafe { unistd::fork()? } {
        unistd::ForkResult::Parent { child } => Ok(u32::try_from(child.as_raw()).ok()),
        unistd::ForkResult::Child => Ok(None),
    }
}

/// Has nothing to say any more: what stands on its standard error would keep a pipe open.
pub fn be_silent() {
    if let Ok(nothing) = std::fs::OpenOptions::new().write(true).open("/dev/null") {
        let _ = unistd::dup2_stderr(&nothing);
    }
}

/// Closes every descriptor but one and the standard ones: for a process that goes on with nothing
/// else of its parent's.
pub fn keep_only(file: BorrowedFd<'_>) {
    let kept = file.as_raw_fd().cast_unsigned();
    for (first, last) in [(3, kept - 1), (kept + 1, u32::MAX)] {
        if first <= last {
            // SAFETY: plain numbers. The caller's process uses none of these descriptors any more.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
    }
}

/// Leaves the processor to others where they want it.
pub fn be_nice(by: i32) {
    // SAFETY: plain numbers; 0 is the caller. Failing means that nothing changes.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, by) };
}

/// Waits until it can be read, at most so long; false when the time is over.
pub fn wait_readable_for(file: BorrowedFd<'_>, most: std::time::Duration) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let until = std::time::Instant::now() + most;
    loop {
        let left = until.saturating_duration_since(std::time::Instant::now()).as_micros().div_ceil(1000);
        let mut polls = [PollFd::new(file, PollFlags::POLLIN)];
        match poll(&mut polls, PollTimeout::try_from(left.min(60_000) as i32).unwrap_or(PollTimeout::ZERO)) {
            Err(Errno::EINTR) => {}
            ready => return ready.is_ok_and(|ready| ready > 0),
        }
    }
}

/// Lets the calling thread run before others of the machine, where the system allows it: for a
/// thread that others wait for and that does little.
pub fn prefer_thread() {
    const NICE: i32 = -10;
    // SAFETY: plain numbers. Without the right to do it nothing changes. On Linux 0 names the
    // calling thread alone.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, NICE) };
}

/// Waits until one of these can be read.
pub fn wait_readable(files: &[BorrowedFd<'_>]) {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut polls: Vec<PollFd<'_>> = files.iter().map(|file| PollFd::new(*file, PollFlags::POLLIN)).collect();
    let _ = poll(&mut polls, PollTimeout::NONE);
}

/// Whether it can be read now, or is at its end.
pub fn is_readable(file: BorrowedFd<'_>) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut polls = [PollFd::new(file, PollFlags::POLLIN)];
    poll(&mut polls, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// Wakes the thread of a traced process that waits for room: a futex on the low half of the tail's
/// word.
pub fn wake(tail: &AtomicU64) {
    // SAFETY: the word is mapped as long as the reference lives; waking reads nothing of ours.
    unsafe { libc::syscall(libc::SYS_futex, tail.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// The processor's time stamp counter, not read before everything that stands before.
#[cfg(target_arch = "x86_64")]
pub fn tsc() -> u64 {
    // SAFETY: both instructions exist on every x86-64 processor.
    unsafe {
        core::arch::x86_64::_mm_lfence();
        core::arch::x86_64::_rdtsc()
    }
}

/// No such counter is used on this processor.
#[cfg(not(target_arch = "x86_64"))]
pub fn tsc() -> u64 {
    0
}

/// Asks for the cache line of a value that will soon be needed.
#[inline(always)]
pub fn prefetch<T>(value: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint about the address of a reference; reads nothing.
    unsafe {
        core::arch::x86_64::_mm_prefetch::<{ core::arch::x86_64::_MM_HINT_T0 }>(std::ptr::from_ref(value).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = value;
}

/// The error of a call of nix as the one of std.
pub fn io(error: Errno) -> io::Error {
    io::Error::from(error)
}

/// Borrows a descriptor; saves callers the trait.
pub fn fd(file: &impl AsFd) -> BorrowedFd<'_> {
    file.as_fd()
}

/// A store of everything written so far before everything read from here on.
pub fn full_fence() {
    std::sync::atomic::fence(Ordering::SeqCst);
}
/// Lets a user read a file, or look into a folder, by its access list; a user who is not its owner,
/// nor this user, may nothing. Fails with `EOPNOTSUPP` where the file system has none.
pub fn let_read(file: &std::fs::File, uid: u32) -> io::Result<()> {
    /// `posix_acl_xattr.h`: version, then tag, rights and id of each entry.
    const VERSION: u32 = 2;
    const NO_ID: u32 = u32::MAX;
    let (own, read) = if file.metadata()?.is_dir() { (7, 5) } else { (6, 4) };
    // The owner, the user, the group, what user and group may have at most, all others.
    let entries = [(1, own, NO_ID), (2, read, uid), (4, 0, NO_ID), (16, read, NO_ID), (32, 0, NO_ID)];
    let mut list = VERSION.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        list.extend([u16::to_le_bytes(tag), u16::to_le_bytes(rights)].concat());
        list.extend(u32::to_le_bytes(id));
    }
    let name = c"system.posix_acl_access";
    // SAFETY: an open file, a name that ends in 0, and as many bytes as are said.
    let done = unsafe { libc::fsetxattr(file.as_raw_fd(), name.as_ptr(), list.as_ptr().cast(), list.len(), 0) };
    Errno::result(done).map(drop).map_err(io)
}
