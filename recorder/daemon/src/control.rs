//! The control socket: one line of JSON in each direction, whose content is in `protocol.rs`. Only
//! root and the daemon's own user are answered, and only in the daemon's namespaces (`peer.rs`).
//!
//! Each client has a thread of its own, so that waiting for a disk delays nobody else. The thread
//! of the service only starts what was requested.

use super::disk::Disk;
use super::log_limit::LogLimit;
use super::peer::Peer;
use super::protocol::{self, Request, Response};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use heaptape_recorder::os::{crash, poll};
use heaptape_recorder::target::proc;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use serde_json::Value;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
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
pub(crate) struct ControlRequest {
    pub request: Request,
    pub reply: Sender<Answer>,
}

#[derive(Debug)]
pub(crate) enum Answer {
    /// The answer is complete.
    Now(Response),
    /// The answer is complete once this number of completions have been received.
    When(Receiver<()>, usize, Response),
    /// So is this one; it also names what could not be written meanwhile.
    Written(Receiver<()>, usize, Response, WriteCheck),
    /// The answer will be received from this channel.
    Later(Receiver<Response>),
    /// The request is refused for this reason.
    Refused(String),
}

/// The errors of writing from a point in time on.
#[derive(Debug)]
pub(crate) struct WriteCheck {
    disk: Arc<Disk>,
    errors: u64,
}

impl WriteCheck {
    pub(crate) fn begin(disk: &Arc<Disk>) -> WriteCheck {
        WriteCheck { disk: Arc::clone(disk), errors: disk.errors.load(Relaxed) }
    }

    /// Returns the last error since then.
    fn error(&self) -> Option<String> {
        (self.disk.errors.load(Relaxed) != self.errors).then(|| self.disk.last_error())
    }
}

/// The socket that wakes the thread of the service.
pub(crate) type Wake = Arc<UnixStream>;

/// Sends a request to the service and waits for its answer.
pub(crate) fn send_request(requests: &Sender<ControlRequest>, wake: &Wake, request: Request) -> Response {
    let (reply, answer) = bounded(1);
    if requests.send(ControlRequest { request, reply }).is_err() {
        return Response::error("the daemon is stopping");
    }
    let _ = wake.as_ref().write(&[1]);
    match answer.recv_timeout(EXECUTION_TIMEOUT) {
        Ok(Answer::Now(response)) => response,
        Ok(Answer::When(done, count, response)) => completed(&done, count).unwrap_or(response),
        Ok(Answer::Written(done, count, response, check)) => {
            let response = completed(&done, count).unwrap_or(response);
            check.error().into_iter().fold(response, Response::with_error)
        }
        Ok(Answer::Later(response)) => response.recv_timeout(EXECUTION_TIMEOUT).unwrap_or_else(|error| {
            Response::error(match error {
                RecvTimeoutError::Timeout => "not done within a minute; `heaptape daemon list` shows when it is",
                RecvTimeoutError::Disconnected => "the process has ended",
            })
        }),
        Ok(Answer::Refused(why)) => Response::error(why),
        Err(_) => Response::error("the daemon did not answer"),
    }
}

/// Waits for this number of completions. Returns the error if they do not come.
fn completed(done: &Receiver<()>, count: usize) -> Option<Response> {
    let is_done = (0..count).all(|_| done.recv_timeout(EXECUTION_TIMEOUT).is_ok());
    let why = "the request was not completed within a minute, or a process ended meanwhile";
    (!is_done).then(|| Response::error(why))
}

/// Listens at a path. The socket of a daemon that has ended is replaced.
///
/// # Errors
/// When another daemon serves the path, when it is not a socket, or the error of the socket.
pub(crate) fn listen(path: &Path, mode: u32) -> io::Result<UnixListener> {
    clear(path, || UnixStream::connect(path).map(OwnedFd::from))?;
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    Ok(listener)
}

/// Removes a socket at which no process listens.
///
/// # Errors
/// `AddrInUse` when a process listens at the path, `AlreadyExists` when it is not a socket, or the
/// error of the removal.
pub(crate) fn clear(path: &Path, connect: impl Fn() -> io::Result<OwnedFd>) -> io::Result<()> {
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
        Ok(connection) if has_ended(&connection) => std::fs::remove_file(path),
        _ => Err(io::Error::new(io::ErrorKind::AddrInUse, format!("another daemon serves {}", path.display()))),
    }
}

/// Returns whether the process that listens at the other end was killed. Its sockets stay as long as
/// one of its threads waits for a file system that does not answer.
fn has_ended(connection: &impl AsFd) -> bool {
    let peer = getsockopt(connection, PeerCredentials).ok().and_then(|peer| u32::try_from(peer.pid()).ok());
    peer.is_some_and(proc::is_zombie)
}

/// Time between two looks whether the file of the socket is still there.
const LOOK: Duration = Duration::from_secs(1);

/// The control socket.
#[derive(Debug)]
pub(crate) struct Controller {
    pub listener: UnixListener,
    /// Path of its file; `None` if another process made it.
    pub path: Option<PathBuf>,
}

impl Controller {
    /// Waits for the next client. A file that is gone is made again: without it nobody could ask
    /// why.
    fn accept(&mut self) -> io::Result<UnixStream> {
        loop {
            if poll::wait(std::iter::once(self.listener.as_fd()), LOOK)? == [true] {
                return self.listener.accept().map(|(stream, _)| stream);
            }
            let gone = self.path.as_ref().filter(|path| is_gone(path));
            if let Some(listener) = gone.and_then(|path| listen(path, 0o600).ok()) {
                tracing::error!(
                    "{}: the control socket was removed, and is made again",
                    self.path.iter().map(|path| path.display().to_string()).collect::<String>()
                );
                self.listener = listener;
            }
        }
    }
}

/// Returns whether there is no file at a path.
pub(crate) fn is_gone(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

/// The thread of the control socket, which serves clients until the service is gone. `busy` counts
/// the connections.
pub(crate) fn run(mut controller: Controller, requests: Sender<ControlRequest>, wake: Wake, busy: Arc<AtomicUsize>) {
    let own = nix::unistd::geteuid().as_raw();
    let mut log = LogLimit::default();
    loop {
        let Ok(stream) = controller.accept() else {
            std::thread::sleep(Duration::from_millis(20));
            continue;
        };
        // It has ended, or is in a namespace that has no number for it here.
        let Ok(peer) = Peer::of(&stream) else {
            let _ = answer(&stream, &Response::error("the daemon cannot see the calling process"));
            continue;
        };
        if let Some(why) = peer.refusal(own) {
            if let Some(more) = log.permits("control", peer.uid, 1) {
                tracing::warn!("a process of user {} may not control this daemon: {why}{more}", peer.uid);
            }
            let _ = answer(&stream, &Response::error(why));
            continue;
        }
        if busy.fetch_add(1, Relaxed) >= MAX_CONNECTIONS {
            busy.fetch_sub(1, Relaxed);
            let _ = answer(&stream, &Response::error("too many requests at once"));
            continue;
        }
        let (requests, wake, done) = (requests.clone(), Arc::clone(&wake), Arc::clone(&busy));
        let serve = move || {
            serve(&stream, &peer, &requests, &wake);
            done.fetch_sub(1, Relaxed);
        };
        if crash::spawn("ctl", serve).is_err() {
            busy.fetch_sub(1, Relaxed);
        }
    }
}

fn serve(stream: &UnixStream, peer: &Peer, requests: &Sender<ControlRequest>, wake: &Wake) {
    let _ = stream.set_read_timeout(Some(IO_TIMEOUT));
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        match reader.by_ref().take(MAX_LINE).read_until(b'\n', &mut line) {
            Ok(count) if count > 0 && line.ends_with(b"\n") => {}
            _ => return,
        }
        let response = match Request::read(&line) {
            Ok(request) => match peer.refusal_of(&request) {
                None => send_request(requests, wake, request),
                Some(why) => Response::error(why),
            },
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
    if has_ended(&stream) {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
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
pub(crate) fn passed(socket: OwnedFd) -> UnixListener {
    UnixListener::from(socket)
}
