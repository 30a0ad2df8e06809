//! The control socket: a line of JSON each way. Only root and the daemon's own user are
//! answered.
//!
//! Each client is served by a thread of its own, so that waiting for a disk holds up nobody else;
//! the service's thread itself only begins what was asked.

use crate::crash;
use crossbeam_channel::{Receiver, Sender, bounded};
use nix::sys::socket::{self, sockopt};
use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

/// A line of a question has at most so many bytes.
const LINE: u64 = 4096;
/// Connections at once.
const MOST: usize = 32;
/// Time for the question to come, and for the answer to be taken.
const PATIENCE: Duration = Duration::from_secs(5);
/// Time for what was asked to be done.
const LONGEST: Duration = Duration::from_secs(60);

/// A question.
#[derive(Debug)]
pub struct Ask {
    /// What: a word and what belongs to it.
    pub question: Value,
    /// Where the answer goes.
    pub reply: Sender<Answer>,
}

/// An answer.
#[derive(Debug)]
pub enum Answer {
    /// This is it.
    Now(Value),
    /// It is this once so many have told that they are done.
    When(Receiver<()>, usize, Value),
    /// It comes from there.
    Later(Receiver<Value>),
    /// It cannot be done.
    Refused(String),
}

/// What wakes the service's thread.
pub type Wake = Arc<UnixStream>;

/// Sends a question to the service and waits for its answer.
pub fn ask(asks: &Sender<Ask>, wake: &Wake, question: Value) -> Value {
    let refused = |why: &str| json!({ "error": why });
    let (reply, answer) = bounded(1);
    if asks.send(Ask { question, reply }).is_err() {
        return refused("the daemon is stopping");
    }
    let _ = wake.as_ref().write(&[1]);
    match answer.recv_timeout(LONGEST) {
        Ok(Answer::Now(value)) => value,
        Ok(Answer::When(done, count, value)) => {
            for _ in 0..count {
                if done.recv_timeout(LONGEST).is_err() {
                    return refused("not all of it was done in a minute, or a process ended meanwhile");
                }
            }
            value
        }
        Ok(Answer::Later(value)) => value.recv_timeout(LONGEST).unwrap_or_else(|_| refused("the process has ended")),
        Ok(Answer::Refused(why)) => refused(&why),
        Err(_) => refused("the daemon did not answer"),
    }
}

/// Opens the socket of a path: another daemon's that is dead is replaced.
pub fn listen(path: &Path, mode: u32) -> io::Result<UnixListener> {
    clear(path, || UnixStream::connect(path).map(drop))?;
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    Ok(listener)
}

/// Removes a socket that nobody listens at.
pub fn clear(path: &Path, connect: impl Fn() -> io::Result<()>) -> io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    let Ok(found) = std::fs::symlink_metadata(path) else { return Ok(()) };
    if !found.file_type().is_socket() {
        return Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            format!("{} is there and is no socket", path.display()),
        ));
    }
    match connect() {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => std::fs::remove_file(path),
        _ => Err(io::Error::new(io::ErrorKind::AddrInUse, format!("another daemon serves {}", path.display()))),
    }
}

/// The thread: serves until the service is gone. `busy` counts connections.
pub fn run(listener: UnixListener, asks: Sender<Ask>, wake: Wake, busy: Arc<AtomicUsize>) {
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
            let _ = answer(&stream, &json!({ "error": "only the superuser and the daemon's own user are answered" }));
            continue;
        }
        if busy.fetch_add(1, Relaxed) >= MOST {
            busy.fetch_sub(1, Relaxed);
            let _ = answer(&stream, &json!({ "error": "too many questions at once" }));
            continue;
        }
        let (asks, wake, done) = (asks.clone(), Arc::clone(&wake), Arc::clone(&busy));
        let serve = move || {
            serve(&stream, &asks, &wake);
            done.fetch_sub(1, Relaxed);
        };
        if crash::spawn("ctl", serve).is_err() {
            busy.fetch_sub(1, Relaxed);
        }
    }
}

fn serve(stream: &UnixStream, asks: &Sender<Ask>, wake: &Wake) {
    let _ = stream.set_read_timeout(Some(PATIENCE));
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        match reader.by_ref().take(LINE).read_until(b'\n', &mut line) {
            Ok(count) if count > 0 && line.ends_with(b"\n") => {}
            _ => return,
        }
        let value = match serde_json::from_slice(&line) {
            Ok(question) => ask(asks, wake, question),
            Err(error) => json!({ "error": format!("no question: {error}") }),
        };
        if answer(stream, &value).is_err() {
            return;
        }
    }
}

fn answer(mut stream: &UnixStream, value: &Value) -> io::Result<()> {
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut bytes = serde_json::to_vec(value)?;
    bytes.push(b'\n');
    stream.write_all(&bytes)
}

/// Asks a daemon, as `ctl` does.
pub fn question(path: &Path, question: &Value) -> io::Result<Value> {
    let stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(2 * LONGEST))?;
    let mut bytes = serde_json::to_vec(question)?;
    bytes.push(b'\n');
    // Whoever refuses us may have said so and gone before we asked.
    let asked = (&stream).write_all(&bytes);
    let mut line = String::new();
    match BufReader::new(&stream).read_line(&mut line) {
        Ok(count) if count > 0 => Ok(serde_json::from_str(&line)?),
        answered => Err(asked.and(answered.map(drop)).err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into())),
    }
}

/// A socket that was passed in as a listener of this kind.
pub fn passed(socket: OwnedFd) -> UnixListener {
    UnixListener::from(socket)
}
