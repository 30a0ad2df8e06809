//! The control socket: one line of JSON in each direction, whose content is in `protocol.rs`. Only
//! root and the daemon's own user are answered.
//!
//! Each client has a thread of its own, so that waiting for a disk delays nobody else. The thread
//! of the service only starts what was requested.

use super::protocol::{self, Request, Response};
use crossbeam_channel::{Receiver, Sender, bounded};
use heaptape_recorder::os::crash;
use nix::sys::socket::{self, sockopt};
use serde_json::Value;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// Maximum length of the line of a request, in bytes.
const MAX_LINE: u64 = 4096;
/// Maximum number of connections at once.
const MAX_CONNECTIONS: usize = 32;
/// Time in which the request must arrive, and in which the response must be read.
const IO_TIMEOUT: Duration = Duration::from_secs(5);
/// Time in which a request must be executed.
const EXECUTION_TIMEOUT: Duration = Duration::from_secs(60);

/// A request, with the channel for its answer.
#[derive(Debug)]
pub struct ControlRequest {
    /// What the client requested.
    pub request: Request,
    /// The channel for the answer.
    pub reply: Sender<Answer>,
}

/// The answer to a request.
#[derive(Debug)]
pub enum Answer {
    /// The answer is complete.
    Now(Response),
    /// The answer is complete once this number of completions have been received.
    When(Receiver<()>, usize, Response),
    /// The answer will be received from this channel.
    Later(Receiver<Response>),
    /// The request is refused for this reason.
    Refused(String),
}

/// The socket that wakes the thread of the service.
pub type Wake = Arc<UnixStream>;

/// Sends a request to the service and waits for its answer.
pub fn send_request(requests: &Sender<ControlRequest>, wake: &Wake, request: Request) -> Response {
    let (reply, answer) = bounded(1);
    if requests.send(ControlRequest { request, reply }).is_err() {
        return Response::error("the daemon is stopping");
    }
    let _ = wake.as_ref().write(&[1]);
    match answer.recv_timeout(EXECUTION_TIMEOUT) {
        Ok(Answer::Now(response)) => response,
        Ok(Answer::When(done, count, response)) => {
            for _ in 0..count {
                if done.recv_timeout(EXECUTION_TIMEOUT).is_err() {
                    return Response::error(
                        "the request was not completed within a minute, or a process ended meanwhile",
                    );
                }
            }
            response
        }
        Ok(Answer::Later(response)) => {
            response.recv_timeout(EXECUTION_TIMEOUT).unwrap_or_else(|_| Response::error("the process has ended"))
        }
        Ok(Answer::Refused(why)) => Response::error(why),
        Err(_) => Response::error("the daemon did not answer"),
    }
}

/// Listens at a path. The socket of a daemon that has ended is replaced.
///
/// # Errors
/// When another daemon serves the path, when it is not a socket, or the error of the socket.
pub fn listen(path: &Path, mode: u32) -> io::Result<UnixListener> {
    clear(path, || UnixStream::connect(path).map(drop))?;
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    Ok(listener)
}

/// Removes a socket at which no process listens.
///
/// # Errors
/// `AddrInUse` when a process listens at the path, `AlreadyExists` when it is not a socket, or the
/// error of the removal.
pub fn clear(path: &Path, connect: impl Fn() -> io::Result<()>) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            format!("{} exists and is not a socket", path.display()),
        ));
    }
    match connect() {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        _ => Err(io::Error::new(io::ErrorKind::AddrInUse, format!("another daemon serves {}", path.display()))),
    }
}

/// The thread of the control socket, which serves clients until the service is gone. `busy` counts
/// the connections.
pub fn run(listener: UnixListener, requests: Sender<ControlRequest>, wake: Wake, busy: Arc<AtomicUsize>) {
    let own = nix::unistd::geteuid().as_raw();
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            std::thread::sleep(Duration::from_millis(20));
            continue;
        };
        let peer = socket::getsockopt(&stream, sockopt::PeerCredentials).map(|peer| peer.uid());
        if !peer.is_ok_and(|uid| uid == 0 || uid == own) {
            tracing::warn!(
                "user {} may not control this daemon",
                peer.map_or_else(|_| "?".into(), |uid| uid.to_string())
            );
            let _ = answer(&stream, &Response::error("only root and the daemon's own user may control this daemon"));
            continue;
        }
        if busy.fetch_add(1, Relaxed) >= MAX_CONNECTIONS {
            busy.fetch_sub(1, Relaxed);
            let _ = answer(&stream, &Response::error("too many requests at once"));
            continue;
        }
        let (requests, wake, done) = (requests.clone(), Arc::clone(&wake), Arc::clone(&busy));
        let serve = move || {
            serve(&stream, &requests, &wake);
            done.fetch_sub(1, Relaxed);
        };
        if crash::spawn("ctl", serve).is_err() {
            busy.fetch_sub(1, Relaxed);
        }
    }
}

fn serve(stream: &UnixStream, requests: &Sender<ControlRequest>, wake: &Wake) {
    let _ = stream.set_read_timeout(Some(IO_TIMEOUT));
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        match reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line) {
            Ok(count) if count > 0 && line.ends_with(b"\n") => {}
            _ => return,
        }
        let response = match Request::read(&line) {
            Ok(request) => send_request(requests, wake, request),
            Err(why) => Response::error(why),
        };
        if answer(stream, &response).is_err() {
            return;
        }
    }
}

fn answer(mut stream: &UnixStream, response: &Response) -> io::Result<()> {
    stream.set_write_timeout(Some(IO_TIMEOUT))?;
    let mut bytes = protocol::line(response)?;
    bytes.push(b'\n');
    stream.write_all(&bytes)
}

/// Sends a request to a daemon, as `ctl` does, and returns the JSON of the answer, which
/// [`Response::read`] interprets.
///
/// # Errors
/// When the daemon cannot be reached, or closes the connection without an answer.
pub fn ask(path: &Path, request: &Request) -> io::Result<Value> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(2 * EXECUTION_TIMEOUT))?;
    let mut bytes = protocol::line(request)?;
    bytes.push(b'\n');
    // A daemon that refuses the client may respond and close the connection before the request is
    // sent.
    let sent = (&stream).write_all(&bytes);
    let mut line = String::new();
    match BufReader::new(&stream).read_line(&mut line) {
        Ok(count) if count > 0 => Ok(serde_json::from_str(&line)?),
        received => Err(sent.and(received.map(drop)).err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into())),
    }
}

/// Converts a socket that was passed in to a listener.
pub fn passed(socket: OwnedFd) -> UnixListener {
    UnixListener::from(socket)
}
