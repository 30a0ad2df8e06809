//! What the daemon serves over HTTP, if that is configured: the metrics, and heap profiles of
//! programs for `go tool pprof` and servers that scrape such profiles. Requests are limited in size
//! and time.
//!
//! On loopback there are metrics without a token, without labels, functions and the names of other
//! users' programs. Everything else needs the token, or the Unix socket, which only the daemon's own
//! user can reach: what other users run, and where it allocates, is not for everybody on the
//! machine.
//!
//! Each connection has a thread. A client that is silent delays nobody, and of too many connections
//! the oldest silent one is closed.

use super::address::Address;
use super::control::{self, ControlRequest, Wake, send_request};
use super::protocol::{self, Request, Response};
use crossbeam_channel::{Sender, bounded};
use data_encoding::BASE64;
use heaptape_recorder::os::{confine, crash};
use percent_encoding::percent_decode_str;
use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use subtle::ConstantTimeEq;

/// Maximum length of a request, in bytes.
const MAX_REQUEST_LEN: usize = 8192;
/// Maximum number of headers of a request.
const MAX_HEADERS: usize = 64;
/// Time in which a request must arrive.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Time in which a profile must be made. It takes long on a machine that is short of CPU time or
/// memory, where the profile may show the cause.
const PROFILE_TIMEOUT: Duration = Duration::from_secs(180);
/// Maximum size of a profile, in bytes.
const MAX_PROFILE_BYTES: u64 = 64 << 20;
/// Maximum number of connections at once.
const MAX_CONNECTIONS: usize = 64;
/// Maximum number of profiles that are made at once.
const MAX_PROFILES: usize = 2;
/// Minimum length of a token, in bytes.
const MIN_TOKEN_LEN: usize = 16;

/// The secret that a request must have.
#[derive(Clone)]
pub(crate) struct Token(Vec<u8>);

/// The token is not shown anywhere.
impl fmt::Debug for Token {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("Token")
    }
}

impl Token {
    /// Reads the token in a file, without the white space around it.
    ///
    /// # Errors
    /// When the file cannot be read, when all users can read it, or when the token is too short.
    pub(crate) fn read(path: &Path) -> io::Result<Token> {
        let named = |why: String| io::Error::new(io::ErrorKind::InvalidInput, format!("{}: {why}", path.display()));
        if is_open_to_all(path).map_err(|error| named(error.to_string()))? {
            return Err(named("all users can access this token; chmod 600 it".into()));
        }
        let text = std::fs::read_to_string(path).map_err(|error| named(error.to_string()))?;
        let token = text.trim().as_bytes();
        if token.len() < MIN_TOKEN_LEN {
            return Err(named(format!("a token must have at least {MIN_TOKEN_LEN} bytes")));
        }
        Ok(Token(token.to_vec()))
    }

    /// Returns whether this is the token. The time that it takes depends only on the length of what
    /// was sent.
    fn is(&self, sent: &[u8]) -> bool {
        self.0.ct_eq(sent).into()
    }
}

/// Returns whether all users can access a file.
fn is_open_to_all(path: &Path) -> io::Result<bool> {
    Ok(std::fs::metadata(path)?.permissions().mode() & 0o007 != 0)
}

/// Warns of a token for another server that all users can read. It may have been so for long, so the
/// daemon starts all the same.
pub(crate) fn warn_of_open_token(path: Option<&Path>) {
    if let Some(path) = path.filter(|path| is_open_to_all(path).unwrap_or(false)) {
        tracing::warn!("{}: all users can access this token; chmod 600 it", path.display());
    }
}

/// A listening socket with what it permits.
#[derive(Debug)]
pub(crate) struct Server {
    socket: Socket,
    token: Option<Token>,
    /// Path of the control socket, of which profiles are requested.
    control: PathBuf,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// A connection of any kind.
trait Stream: Read + Write + Send + Sync {
    /// Sets the longest time that one read takes.
    fn limit_read(&self, time: Duration) -> io::Result<()>;
    /// Ends what waits for this connection.
    fn hang_up(&self);
    /// Returns another handle of it.
    fn other(&self) -> io::Result<Box<dyn Stream>>;
}

macro_rules! stream {
    ($kind:ty) => {
        impl Stream for $kind {
            fn limit_read(&self, time: Duration) -> io::Result<()> {
                self.set_read_timeout(Some(time))
            }

            fn hang_up(&self) {
                let _ = self.shutdown(Shutdown::Both);
            }

            fn other(&self) -> io::Result<Box<dyn Stream>> {
                Ok(Box::new(self.try_clone()?))
            }
        }
    };
}
stream!(TcpStream);
stream!(UnixStream);

#[derive(Default)]
struct Connections {
    /// Those whose request has not arrived, oldest first, each with its number.
    silent: VecDeque<(u64, Box<dyn Stream>)>,
    count: usize,
    last: u64,
}

/// The connections, which their threads share.
type Shared = Arc<Mutex<Connections>>;

fn locked(connections: &Shared) -> MutexGuard<'_, Connections> {
    connections.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Connections {
    /// Adds a connection, for which the oldest silent one may have to go. Returns its number;
    /// `None` if all are busy.
    fn add(&mut self, stream: &dyn Stream) -> Option<u64> {
        if self.count >= MAX_CONNECTIONS {
            // Its thread ends when it notices, so it does not count any more.
            let (_, oldest) = self.silent.pop_front()?;
            oldest.hang_up();
            self.count -= 1;
        }
        self.last += 1;
        self.silent.push_back((self.last, stream.other().ok()?));
        self.count += 1;
        Some(self.last)
    }

    /// Notes that the request of a connection has arrived. Returns false if it was hung up.
    fn speaks(&mut self, number: u64) -> bool {
        let known = self.silent.iter().position(|(silent, _)| *silent == number);
        known.and_then(|known| self.silent.remove(known)).is_some()
    }
}

impl Server {
    /// Listens at an address. Without a token it must be loopback or a Unix socket.
    ///
    /// # Errors
    /// `InvalidInput` for another address without a token, or the error of the socket.
    pub(crate) fn listen(address: &Address, token: Option<Token>, control: &Path) -> io::Result<Server> {
        let socket = match address {
            Address::Tcp(tcp) if token.is_none() && !tcp.ip().is_loopback() => {
                let why = format!(
                    "{tcp} is not a loopback address: without metrics-token, metrics are only served to this machine"
                );
                return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
            }
            Address::Tcp(tcp) => Socket::Tcp(TcpListener::bind(tcp)?),
            Address::Unix(path) => Socket::Unix(control::listen(path, 0o600)?),
        };
        Ok(Server { socket, token, control: control.to_owned() })
    }

    /// Serves each connection in a thread of its own.
    pub(crate) fn run(self, requests: Sender<ControlRequest>, wake: Wake) {
        let server = Arc::new(self);
        let (connections, profiles) = (Shared::default(), Arc::new(AtomicUsize::new(0)));
        loop {
            let Ok(mut stream) = server.accept() else {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            };
            // All of them are being answered, which is soon over.
            let Some(number) = locked(&connections).add(&*stream) else { continue };
            let (server, requests, wake) = (Arc::clone(&server), requests.clone(), Arc::clone(&wake));
            let (shared, profiles) = (Arc::clone(&connections), Arc::clone(&profiles));
            let serve = move || {
                let request = read_request(&mut stream);
                if !locked(&shared).speaks(number) {
                    return;
                }
                if let Ok(Some(request)) = request {
                    let _ = server.serve(stream, request, &requests, &wake, &profiles);
                }
                locked(&shared).count -= 1;
            };
            if crash::spawn("http", serve).is_err() {
                let mut connections = locked(&connections);
                connections.speaks(number);
                connections.count -= 1;
            }
        }
    }

    fn accept(&self) -> io::Result<Box<dyn Stream>> {
        match &self.socket {
            Socket::Tcp(listener) => {
                let stream: TcpStream = listener.accept()?.0;
                stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
                Ok(Box::new(stream))
            }
            Socket::Unix(listener) => {
                let stream: UnixStream = listener.accept()?.0;
                stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
                Ok(Box::new(stream))
            }
        }
    }

    fn serve(
        &self,
        mut stream: Box<dyn Stream>,
        request: HttpRequest,
        requests: &Sender<ControlRequest>,
        wake: &Wake,
        profiles: &AtomicUsize,
    ) -> io::Result<()> {
        let is_permitted = match &self.token {
            Some(token) => request.secret().is_some_and(|sent| token.is(&sent)),
            None => true,
        };
        if !is_permitted {
            let why = "this daemon wants its token: Authorization: Bearer TOKEN, or http://:TOKEN@HOST\n";
            return answer(&mut stream, "401 Unauthorized", TEXT, why.as_bytes());
        }
        let question = match request.path.as_str() {
            "/" | "/metrics" => {
                let is_public = self.token.is_none() && matches!(self.socket, Socket::Tcp(_));
                let metrics = if is_public { Request::PublicMetrics } else { Request::Metrics };
                let (status, body) = match send_request(requests, wake, metrics) {
                    Response::Metrics(text) => ("200 OK", text),
                    other => {
                        ("503 Service Unavailable", String::from_utf8_lossy(&protocol::line(&other)?).into_owned())
                    }
                };
                return answer(&mut stream, status, TEXT, body.as_bytes());
            }
            "/debug/pprof/heap" => "live-bytes",
            "/debug/pprof/allocs" => "alloc-bytes",
            _ => {
                let paths = "metrics are at /metrics, profiles at /debug/pprof/heap?program=NAME and /debug/pprof/allocs?program=NAME\n";
                return answer(&mut stream, "404 Not Found", TEXT, paths.as_bytes());
            }
        };
        if self.token.is_none() && matches!(self.socket, Socket::Tcp(_)) {
            let why = "profiles need metrics-token, or metrics on a Unix socket\n";
            return answer(&mut stream, "403 Forbidden", TEXT, why.as_bytes());
        }
        let Some(program) = request.program else {
            return answer(&mut stream, "400 Bad Request", TEXT, b"which program? ?program=NAME, a pid or a label\n");
        };
        if profiles.fetch_add(1, Relaxed) >= MAX_PROFILES {
            profiles.fetch_sub(1, Relaxed);
            return answer(&mut stream, "503 Service Unavailable", TEXT, b"other profiles are being made\n");
        }
        let made = self.profile(&program, question);
        profiles.fetch_sub(1, Relaxed);
        match made {
            Ok(profile) => answer(&mut stream, "200 OK", "application/octet-stream", &profile),
            Err(why) => answer(&mut stream, "404 Not Found", TEXT, why.as_bytes()),
        }
    }

    /// Returns the profile of a program as pprof reads it. Another process makes it: names are read
    /// from files of the programs, which may contain anything.
    fn profile(&self, program: &str, shown: &str) -> Result<Vec<u8>, String> {
        let mut command = Command::new("/proc/self/exe");
        command.args(["export", "--format", "pprof", "--output", "-", "--what", shown]);
        command.arg(format!("--live={program}")).arg("--control").arg(&self.control);
        command.env(confine::VARIABLE, "1");
        command.env_remove("LD_PRELOAD").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        let (Some(out), Some(err)) = (child.stdout.take(), child.stderr.take()) else { return Err("no output".into()) };
        let (sender, made) = bounded(1);
        let read = move || {
            let (mut profile, mut why) = (Vec::new(), Vec::new());
            let read = out.take(MAX_PROFILE_BYTES + 1).read_to_end(&mut profile);
            let _ = err.take(MAX_REQUEST_LEN as u64).read_to_end(&mut why);
            let _ = sender.send(read.map(|_| (profile, why)));
        };
        let reader = crash::spawn("profile", read).map_err(|error| error.to_string());
        let made = reader.and_then(|_| made.recv_timeout(PROFILE_TIMEOUT).map_err(|error| error.to_string()));
        let _ = child.kill();
        let status = child.wait().map_err(|error| error.to_string())?;
        let (profile, why) = made?.map_err(|error| error.to_string())?;
        // Status 3 and notes mean that something is missing, which the profile says, too.
        if profile.is_empty() || profile.len() as u64 > MAX_PROFILE_BYTES {
            return Err(format!("{}\n", String::from_utf8_lossy(&why).trim_end()));
        }
        tracing::debug!("a profile of {} was made: {status}", program.escape_debug());
        Ok(profile)
    }
}

/// Content type of text.
const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

fn answer(stream: &mut Box<dyn Stream>, status: &str, kind: &str, body: &[u8]) -> io::Result<()> {
    let challenge = if status.starts_with("401") { "WWW-Authenticate: Bearer\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{challenge}Connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)
}

#[derive(Debug, Default, PartialEq, Eq)]
struct HttpRequest {
    path: String,
    /// The value of `program` in the query.
    program: Option<String>,
    /// The value of the header `Authorization`.
    authorization: Option<String>,
}

/// Reads a request to the end of its headers; `None` for one that is too long or none.
fn read_request(stream: &mut Box<dyn Stream>) -> io::Result<Option<HttpRequest>> {
    let (mut request, start_time) = (Vec::new(), Instant::now());
    loop {
        let mut block = [0; 512];
        // The whole request must be there in this time, however it is split.
        let left = REQUEST_TIMEOUT.saturating_sub(start_time.elapsed());
        stream.limit_read(left.max(Duration::from_millis(1)))?;
        let count = stream.read(&mut block)?;
        request.extend_from_slice(&block[..count]);
        match HttpRequest::parse(&request) {
            Head::Complete(request) => return Ok(Some(request)),
            Head::Invalid => return Ok(None),
            Head::Partial => {}
        }
        if count == 0 || request.len() > MAX_REQUEST_LEN || start_time.elapsed() > REQUEST_TIMEOUT {
            return Ok(None);
        }
    }
}

/// What has been received of a request.
#[derive(Debug, PartialEq, Eq)]
enum Head {
    /// The request to the end of its headers.
    Complete(HttpRequest),
    /// The end of the headers is missing.
    Partial,
    /// It is no request, or has too many headers.
    Invalid,
}

impl HttpRequest {
    fn parse(bytes: &[u8]) -> Head {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(bytes) {
            Ok(httparse::Status::Complete(_)) => {}
            Ok(httparse::Status::Partial) => return Head::Partial,
            Err(_) => return Head::Invalid,
        }
        let (Some("GET"), Some(target)) = (request.method, request.path) else {
            return Head::Complete(HttpRequest::default());
        };
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut fields = query.split('&').filter_map(|field| field.split_once('='));
        let program = fields.find(|(key, _)| *key == "program").map(|(_, value)| decode(value));
        let program = program.filter(|program| !program.is_empty() && program.len() <= 256 && !program.contains('\0'));
        let header = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case("authorization"));
        let authorization = header.map(|header| String::from_utf8_lossy(header.value).trim().to_owned());
        Head::Complete(HttpRequest { path: path.to_owned(), program, authorization })
    }

    /// Returns the secret that was sent: a bearer token, or the password of a URL such as
    /// `http://:PASSWORD@HOST`.
    fn secret(&self) -> Option<Vec<u8>> {
        let (scheme, value) = self.authorization.as_ref()?.split_once(' ')?;
        if scheme.eq_ignore_ascii_case("bearer") {
            return Some(value.trim().as_bytes().to_vec());
        }
        if !scheme.eq_ignore_ascii_case("basic") {
            return None;
        }
        let decoded = BASE64.decode(value.trim().as_bytes()).ok()?;
        let colon = decoded.iter().position(|byte| *byte == b':')?;
        Some(decoded[colon + 1..].to_vec())
    }
}

/// Decodes `%41` and `+` of a query.
fn decode(text: &str) -> String {
    percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_beyond_this_machine_need_a_token() {
        let listen = |text: &str, token| {
            let address: Address = text.parse().unwrap_or_else(|error| panic!("{error}"));
            Server::listen(&address, token, Path::new("/none")).map(drop)
        };
        assert!(listen("0.0.0.0:0", None).is_err());
        assert!(listen("127.0.0.1:0", None).is_ok());
        assert!(listen("0.0.0.0:0", Some(Token(b"0123456789abcdef".to_vec()))).is_ok());
    }

    #[test]
    fn token_is_the_whole_secret() {
        let token = Token(b"0123456789abcdef".to_vec());
        assert!(token.is(b"0123456789abcdef"));
        for sent in [
            &b""[..],
            b"0123456789abcde",
            b"0123456789abcdef0",
            b"0123456789abcdeF",
            b"0123456789abcdef0123456789abcdef",
        ] {
            assert!(!token.is(sent), "{sent:?}");
        }
        assert!(!format!("{token:?}").contains("0123"));
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        for (text, mode, is_good) in
            [(" 0123456789abcdef\n", 0o600, true), ("0123456789abcdef", 0o604, false), ("short", 0o600, false)]
        {
            std::fs::write(&path, text).expect("a token");
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("its mode");
            let read = Token::read(&path);
            assert_eq!(read.is_ok(), is_good, "{text:?} {mode:o}");
            let error = read.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(!error.contains("0123") && !error.contains("short\n"), "{error}");
        }
        assert!(Token::read(&folder.path().join("none")).is_err());
    }

    #[test]
    fn requests_are_parsed() {
        let parse = |text: &str| match HttpRequest::parse(text.as_bytes()) {
            Head::Complete(request) => request,
            other => panic!("{text}: {other:?}"),
        };
        let request = parse("GET /debug/pprof/heap?seconds=1&program=a%20b%2dc+d HTTP/1.1\r\nHost: x\r\n\r\n");
        assert_eq!((request.path.as_str(), request.program.as_deref()), ("/debug/pprof/heap", Some("a b-c d")));
        assert_eq!(request.secret(), None);
        let with = |value: &str| parse(&format!("GET / HTTP/1.1\r\nauthorization: {value}\r\n\r\n")).secret();
        assert_eq!(with("Bearer abc").as_deref(), Some(&b"abc"[..]));
        // The user is empty, and is another one.
        assert_eq!(with("Basic OnNlY3JldA==").as_deref(), Some(&b"secret"[..]));
        assert_eq!(with("Basic dXNlcjpzZWNyZXQ=").as_deref(), Some(&b"secret"[..]));
        for other in ["Basic ?", "Basic", "Digest abc", "bearer"] {
            assert_eq!(with(other), None, "{other}");
        }
        assert_eq!(parse("POST /metrics HTTP/1.1\r\n\r\n"), HttpRequest::default());
        assert_eq!(HttpRequest::parse(b"GET\r\n\r\n"), Head::Invalid);
        assert_eq!(HttpRequest::parse(b"GET / HTTP/1.1\r\nHost: x\r\n"), Head::Partial);
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(MAX_HEADERS + 1));
        assert_eq!(HttpRequest::parse(many.as_bytes()), Head::Invalid);
        for bytes in [&b"\x16\x03\x01\x02\0\x01\0"[..], b"GET / HTTP/1.1\r\nA\0: b\r\n\r\n", b"GET /\x80 x\r\n\r\n"] {
            assert_eq!(HttpRequest::parse(bytes), Head::Invalid, "{bytes:?}");
        }
        assert_eq!(decode("%4"), "%4");
        assert_eq!(decode("%zz%"), "%zz%");
    }
}
