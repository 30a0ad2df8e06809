//! The sender's side of a stream: sends a trace or a profile to the daemon in messages, and
//! receives the outcome.

use super::receive::{FileInfo, MAX_MESSAGE_LEN};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::socket::{self, MsgFlags, SockFlag, SockType};
use serde_json::Value;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

/// Length of a message, in bytes: several fit into the buffer of a socket of the default size.
const BLOCK: usize = 32 << 10;
const _: () = assert!(BLOCK <= MAX_MESSAGE_LEN);
/// Maximum length of an answer, in bytes.
const MAX_ANSWER_LEN: usize = 16 << 10;
/// Time in which the daemon must store the file, in seconds.
const ANSWER_TIMEOUT_SECONDS: u16 = 60;

/// Connects to the daemon's socket for programs.
///
/// # Errors
/// When no daemon listens at the path, or the connection is not permitted.
pub fn connect(path: &Path) -> io::Result<OwnedFd> {
    let socket = socket::socket(socket::AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None)?;
    socket::connect(socket.as_raw_fd(), &socket::UnixAddr::new(path)?)?;
    Ok(socket)
}

/// Sends all data of a reader, under the program `name` unless that is empty. Returns the answer.
///
/// # Errors
/// When reading fails, or no answer arrives.
pub fn send(socket: &OwnedFd, name: &str, from: impl Read) -> io::Result<Value> {
    let info = FileInfo { name: name.to_owned(), label: String::new() };
    let mut line = if name.is_empty() { Vec::new() } else { serde_json::to_vec(&info)? };
    line.extend((!line.is_empty()).then_some(b'\n'));
    let mut from = io::Cursor::new(line).chain(from);
    let mut block = vec![0; BLOCK];
    loop {
        let count = match from.read(&mut block) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        match socket::send(socket.as_raw_fd(), &block[..count], MsgFlags::MSG_NOSIGNAL) {
            Ok(_) => {}
            // The daemon has ended the reception, and its answer contains the reason.
            Err(Errno::EPIPE | Errno::ECONNRESET) => break,
            Err(error) => return Err(error.into()),
        }
    }
    let _ = socket::shutdown(socket.as_raw_fd(), socket::Shutdown::Write);
    answer(socket)
}

fn answer(socket: &OwnedFd) -> io::Result<Value> {
    let mut bytes = vec![0; MAX_ANSWER_LEN];
    // The first attempt may only report that the peer left data unread.
    for _ in 0..2 {
        let mut wait = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
        if nix::poll::poll(&mut wait, PollTimeout::from(ANSWER_TIMEOUT_SECONDS * 1000))? == 0 {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match socket::recv(socket.as_raw_fd(), &mut bytes, MsgFlags::empty()) {
            Ok(0) => break,
            Ok(count) => return Ok(serde_json::from_slice(&bytes[..count])?),
            Err(Errno::ECONNRESET) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the daemon closed the connection without an answer"))
}
