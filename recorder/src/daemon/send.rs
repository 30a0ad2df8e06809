//! The sender's side of a stream: a trace or a profile goes to the daemon in messages, and its
//! answer says what became of it.

use super::receive::{About, MESSAGE};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{self, MsgFlags, SockFlag, SockType};
use serde_json::Value;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

/// Bytes of a message: a few find room in a socket of the usual size.
const PIECE: usize = 32 << 10;
const _: () = assert!(PIECE <= MESSAGE);
/// An answer has at most so many bytes.
const ANSWER: usize = 16 << 10;
/// Seconds that the daemon may take to end what was sent.
const PATIENCE: u16 = 60;

/// Connects to the daemon's socket for programs.
///
/// # Errors
/// When no daemon listens at the path, or it may not be connected to.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket::socket(socket::AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
    socket::connect(socket.as_raw_fd(), &socket::UnixAddr::new(path)?)?;
    Ok(socket)
}

/// Sends all that there is to read, filed under the program `name` unless that is empty. Returns
/// the answer.
///
/// # Errors
/// When reading fails, or no answer comes.
pub fn send(socket: &OwnedFd, name: &str, from: impl Read) -> io::Result<Value> {
    let about = About { name: name.to_owned(), label: String::new() };
    let mut line = if name.is_empty() { Vec::new() } else { serde_json::to_vec(&about)? };
    line.extend((!line.is_empty()).then_some(b'\n'));
    let mut from = io::Cursor::new(line).chain(from);
    let mut piece = vec![0; PIECE];
    loop {
        let count = match from.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        match socket::send(socket.as_raw_fd(), &piece[..count], MsgFlags::MSG_NOSIGNAL) {
            Ok(_) => {}
            // It has heard enough, and says why.
            Err(Errno::EPIPE | Errno::ECONNRESET) => break,
            Err(error) => return Err(error.into()),
        }
    }
    let _ = socket::shutdown(socket.as_raw_fd(), socket::Shutdown::Write);
    answer(socket)
}

fn answer(socket: &OwnedFd) -> io::Result<Value> {
    let mut bytes = vec![0; ANSWER];
    // The first try may only learn that the other side left what we sent.
    for _ in 0..2 {
        let mut wait = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
        if nix::poll::poll(&mut wait, PollTimeout::from(PATIENCE * 1000))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match socket::recv(socket.as_raw_fd(), &mut bytes, MsgFlags::empty()) {
            Ok(0) => break,
            Ok(count) => return Ok(serde_json::from_slice(&bytes[..count])?),
            Err(Errno::ECONNRESET) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the daemon is gone"))
}
