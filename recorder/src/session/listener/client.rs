//! A client that waits for its reply, and its shared memory area.

use crate::os::clock::Clock;
use crate::os::sys::{self, Mapping};
use crate::session::options::Options;
use crate::target::cgroup;
use nix::errno::Errno;
use nix::sys::socket::{self, SockType};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering::Relaxed, Ordering::Release};
use wire::area::{LIVE, MAGIC, Params};
use wire::hello::{Hello, Reply};
use wire::{Layout, WIRE_VERSION, limits};

/// A client that has sent its hello and waits for the reply.
#[derive(Debug)]
pub struct Client {
    /// The socket on which the client waits for the reply.
    pub(super) socket: OwnedFd,
    /// The client's hello message.
    pub hello: Hello,
    /// Process id of the client, from the kernel.
    pub pid: u32,
    /// User id of the client, from the kernel.
    pub uid: u32,
    /// Descriptor that becomes readable when the client ends.
    pub process: OwnedFd,
}

impl Client {
    /// Returns the client of a process that runs already and sends no hello. Nobody is at the other
    /// end of its socket.
    ///
    /// # Errors
    /// The process has ended, or no descriptor is left.
    pub fn running(pid: u32, uid: u32, hello: Hello) -> nix::Result<Client> {
        let flags = socket::SockFlag::SOCK_CLOEXEC;
        let (socket, _) = socket::socketpair(socket::AddressFamily::Unix, SockType::SeqPacket, None, flags)?;
        Ok(Client { socket, hello, pid, uid, process: sys::process(pid)? })
    }

    /// Returns the sizes of the client's area.
    fn params(&self, options: &Options) -> Option<Params> {
        options.params(self.hello.address_space, cgroup::memory_limit(self.pid), self.hello.agreed())
    }

    /// Creates the client's shared memory area in an empty file in memory.
    ///
    /// # Errors
    /// Its limits leave no address space for it, otherwise the error of the file.
    pub(crate) fn area_in(&self, file: &OwnedFd, options: &Options, clock: Clock) -> io::Result<Mapping> {
        let params = self.params(options);
        let params = params.filter(|params| params.is_valid());
        let params = params.ok_or_else(|| io::Error::other("its limit on address space is too low"))?;
        let mapping = Mapping::create_in(file, params).map_err(sys::io)?;
        prepare(&mapping, params, options, clock);
        Ok(mapping)
    }

    /// Refuses the client, which then runs untraced.
    pub fn refuse(self, status: u32) {
        let _ = sys::send_with(
            sys::fd(&self.socket),
            &Reply { status, minor: self.hello.agreed(), area_bytes: 0 }.encode(),
            None,
        );
    }

    /// Creates the client's shared memory area. Smaller ones are tried when there is no memory for
    /// the requested one.
    ///
    /// # Errors
    /// `Unsupported` when its sizes or the page size are invalid, otherwise why no memory could be
    /// mapped.
    pub fn area(&self, options: &Options, clock: Clock) -> io::Result<(Mapping, OwnedFd)> {
        let Some(requested) = self.params(options) else {
            return Err(io::Error::other("its limit on address space leaves no space for the recording"));
        };
        let mut result = Err(io::Error::from(io::ErrorKind::OutOfMemory));
        for params in [requested, requested.fit_into(1 << 30), requested.fit_into(1 << 27)] {
            if !params.is_valid() || !wire::area::is_page(u64::from(self.hello.page_size)) {
                return Err(io::Error::from(io::ErrorKind::Unsupported));
            }
            match Mapping::create(params) {
                Ok((mapping, file)) => {
                    prepare(&mapping, params, options, clock);
                    return Ok((mapping, file));
                }
                Err(error) => result = Err(sys::io(error)),
            }
        }
        result
    }

    /// Returns the descriptor that becomes readable when the client has closed its end.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        sys::fd(&self.socket)
    }

    /// Returns whether the client has closed its end.
    pub fn has_disconnected(&self) -> bool {
        !matches!(
            socket::recv(self.socket.as_raw_fd(), &mut [0], socket::MsgFlags::MSG_DONTWAIT),
            Err(Errno::EAGAIN | Errno::EINTR)
        )
    }

    /// Sends the area to the client. Returns false when the client is gone.
    pub fn accept(&self, mapping: &Mapping, file: &OwnedFd) -> bool {
        sys::seal(file);
        let minor = self.hello.agreed();
        let reply = Reply { status: wire::hello::ACCEPTED, minor, area_bytes: mapping.bytes() };
        sys::send_with(sys::fd(&self.socket), &reply.encode(), Some(sys::fd(file))).is_ok()
    }
}

/// Writes the header of a new area.
fn prepare(mapping: &Mapping, params: Params, options: &Options, clock: Clock) {
    let header = mapping.header();
    header.version.store(u32::from(WIRE_VERSION), Relaxed);
    header.clock.store(clock.kind(), Relaxed);
    header.ring_bytes.store(params.ring_bytes, Relaxed);
    header.first_ring_shift.store(params.first_ring_shift, Relaxed);
    header.slots.store(params.slots, Relaxed);
    header.nodes.store(params.nodes, Relaxed);
    header.stacks.store(options.stacks, Relaxed);
    options.overflow.set(header);
    header.announce_exit.store(options.announcements(false), Relaxed);
    header.free_stacks.store(options.free_stacks.into(), Relaxed);
    header.max_frames.store(options.max_frames.min(limits::MAX_FRAMES as u32), Relaxed);
    header.sample_bytes.store(options.sample_bytes, Relaxed);
    header.record_mappings.store(options.mode.mapping_calls(), Relaxed);
    header.nodes_used.0.store(1, Relaxed);
    header.state.store(LIVE, Relaxed);
    header.magic.store(MAGIC, Release);
    debug_assert_eq!(mapping.bytes(), Layout::new(params).total);
}
