//! Requests that wait to be sent: a file each, oldest first. The queue has a maximum size; the
//! oldest requests are dropped when it is full.

use super::Pushed;
use crate::http::Server;
use anyhow::{Context, anyhow, bail};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::{Path, PathBuf};
use ureq::http::StatusCode;

/// Name of the folder of the queue.
const FOLDER: &str = "queue";
/// Maximum length of an answer in an error message.
const MAX_ANSWER: u64 = 300;

/// A request: what is sent with POST.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Request {
    /// Path below the URL of the server, with its query.
    pub path: String,
    /// Content type of the body.
    pub content_type: String,
    /// The bytes that are sent.
    pub body: Vec<u8>,
}

/// The first line of a file; the body follows.
#[derive(Debug, Serialize, Deserialize)]
struct Head {
    path: String,
    content_type: String,
}

impl Request {
    fn write(&self, out: &mut impl Write) -> anyhow::Result<()> {
        let head = Head { path: self.path.clone(), content_type: self.content_type.clone() };
        serde_json::to_writer(&mut *out, &head)?;
        out.write_all(b"\n")?;
        out.write_all(&self.body)?;
        Ok(())
    }

    fn read(bytes: &[u8]) -> anyhow::Result<Request> {
        let end = bytes.iter().position(|byte| *byte == b'\n').context("it has no head")?;
        let Head { path, content_type } = serde_json::from_slice(&bytes[..end])?;
        if !path.starts_with('/') || content_type.contains(|c: char| c.is_control()) {
            bail!("its head is invalid");
        }
        Ok(Request { path, content_type, body: bytes[end + 1..].to_vec() })
    }
}

/// The requests that wait.
pub(super) struct Queue {
    folder: PathBuf,
    max_bytes: u64,
}

/// What became of a request.
enum Answer {
    Taken,
    /// The server will never take it.
    Refused(anyhow::Error),
}

impl Queue {
    /// Opens the queue in a folder.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be made.
    pub(super) fn open(folder: &Path, max_bytes: u64) -> anyhow::Result<Queue> {
        let folder = folder.join(FOLDER);
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        // What a process that was killed had not finished.
        for name in names(&folder)? {
            if name.starts_with(".tmp") {
                let _ = std::fs::remove_file(folder.join(name));
            }
        }
        Ok(Queue { folder, max_bytes })
    }

    /// Returns the paths of the requests, oldest first, with their sizes.
    fn requests(&self) -> anyhow::Result<Vec<(PathBuf, u64)>> {
        let mut names = names(&self.folder)?;
        names.retain(|name| !name.starts_with('.'));
        names.sort();
        let paths = names.into_iter().map(|name| self.folder.join(name));
        Ok(paths.map(|path| (path.clone(), std::fs::metadata(path).map_or(0, |about| about.len()))).collect())
    }

    /// Adds a request, which replaces one of the same name. Returns the number of older ones that
    /// were dropped because the queue is full.
    ///
    /// # Errors
    /// Returns an error if the file cannot be written.
    pub(super) fn add(&self, name: &str, request: &Request) -> anyhow::Result<u64> {
        let mut file =
            tempfile::NamedTempFile::new_in(&self.folder).with_context(|| self.folder.display().to_string())?;
        request.write(&mut file)?;
        let path = self.folder.join(name);
        file.persist(&path).with_context(|| path.display().to_string())?;
        let waiting = self.requests()?;
        let mut bytes: u64 = waiting.iter().map(|(_, size)| size).sum();
        let mut dropped = 0;
        for (path, size) in waiting {
            if bytes <= self.max_bytes {
                break;
            }
            std::fs::remove_file(&path).with_context(|| path.display().to_string())?;
            bytes -= size;
            dropped += 1;
        }
        Ok(dropped)
    }

    /// Sends the requests, oldest first, until one is not answered.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be read. One of the server is in the result.
    pub(super) fn send(&self, server: &Server, pushed: &mut Pushed) -> anyhow::Result<()> {
        let waiting = self.requests()?;
        pushed.waiting = waiting.len() as u64;
        for (path, size) in waiting {
            let bytes = std::fs::read(&path).with_context(|| path.display().to_string())?;
            let answer = match Request::read(&bytes) {
                Ok(request) => post(server, &request),
                Err(error) => Ok(Answer::Refused(error.context(path.display().to_string()))),
            };
            match answer {
                Ok(Answer::Taken) => {
                    pushed.profiles += 1;
                    pushed.bytes += size;
                }
                Ok(Answer::Refused(error)) => {
                    pushed.dropped += 1;
                    pushed.error = Some(format!("{error:#}"));
                }
                Err(error) => {
                    pushed.error = Some(format!("{error:#}"));
                    return Ok(());
                }
            }
            std::fs::remove_file(&path).with_context(|| path.display().to_string())?;
            pushed.waiting -= 1;
        }
        Ok(())
    }
}

fn names(folder: &Path) -> anyhow::Result<Vec<String>> {
    let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    Ok(entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

/// Sends a request. `Err` means that it may be taken later.
fn post(server: &Server, request: &Request) -> anyhow::Result<Answer> {
    let post =
        server.agent.post(format!("{}{}", server.url, request.path)).header("content-type", &request.content_type);
    let post = match &server.token {
        Some(token) => post.header("authorization", format!("Bearer {token}")),
        None => post,
    };
    let response = post.send(&request.body[..]).map_err(|error| anyhow!("{error}"))?;
    let status = response.status();
    if status.is_success() {
        return Ok(Answer::Taken);
    }
    let mut body = response.into_body();
    let text = body.with_config().limit(MAX_ANSWER).lossy_utf8(true).read_to_string().unwrap_or_default();
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let error = anyhow!("the server answered {status}: {}", text.trim());
    // These say that this content is wrong. All others may pass: wrong tokens, limits, restarts.
    let is_refused = matches!(
        status,
        StatusCode::BAD_REQUEST
            | StatusCode::PAYLOAD_TOO_LARGE
            | StatusCode::UNSUPPORTED_MEDIA_TYPE
            | StatusCode::UNPROCESSABLE_ENTITY
    );
    if is_refused { Ok(Answer::Refused(error)) } else { Err(error) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;

    fn request(body: &[u8]) -> Request {
        Request { path: "/ingest?name=a".into(), content_type: "text/plain".into(), body: body.to_vec() }
    }

    /// Answers requests with these statuses, and returns their bodies.
    fn serve(statuses: &'static [&'static str]) -> (Server, std::thread::JoinHandle<Vec<Vec<u8>>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Server::parse(&format!("http://{}/base/", listener.local_addr().unwrap()), None).unwrap();
        let answers = std::thread::spawn(move || {
            let mut bodies = Vec::new();
            for status in statuses {
                let (mut stream, _) = listener.accept().unwrap();
                let mut bytes = Vec::new();
                let body = loop {
                    let mut block = [0; 4096];
                    let count = stream.read(&mut block).unwrap();
                    bytes.extend_from_slice(&block[..count]);
                    let text = String::from_utf8_lossy(&bytes).to_lowercase();
                    let Some((head, _)) = text.split_once("\r\n\r\n") else { continue };
                    assert!(head.starts_with("post /base/ingest?name=a "), "{head}");
                    let length = head.split("content-length: ").nth(1).unwrap().lines().next().unwrap();
                    let body = &bytes[head.len() + 4..];
                    if body.len() >= length.parse().unwrap() {
                        break body.to_vec();
                    }
                };
                bodies.push(body);
                let answer = format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok");
                stream.write_all(answer.as_bytes()).unwrap();
            }
            bodies
        });
        (server, answers)
    }

    #[test]
    fn oldest_requests_are_dropped_when_the_queue_is_full() {
        let folder = tempfile::tempdir().unwrap();
        let queue = Queue::open(folder.path(), 250).unwrap();
        let add = |name: &str| queue.add(name, &request(&[7; 50])).unwrap();
        assert_eq!([add("1"), add("2"), add("2"), add("3")], [0, 0, 0, 1]);
        let names: Vec<PathBuf> = queue.requests().unwrap().into_iter().map(|(path, _)| path).collect();
        assert!(names.len() == 2 && names[0].ends_with("2") && names[1].ends_with("3"), "{names:?}");
    }

    #[test]
    fn what_is_not_answered_waits_and_what_is_refused_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let queue = Queue::open(folder.path(), 1 << 20).unwrap();
        for (name, body) in [("1", b"one"), ("2", b"two"), ("3", b"3rd")] {
            queue.add(name, &request(body)).unwrap();
        }
        let (server, answers) = serve(&["200 OK", "503 Service Unavailable"]);
        let mut pushed = Pushed::default();
        queue.send(&server, &mut pushed).unwrap();
        assert_eq!(answers.join().unwrap(), [b"one", b"two"]);
        assert_eq!((pushed.profiles, pushed.waiting, pushed.dropped), (1, 2, 0));
        assert!(pushed.error.unwrap().contains("503"));
        let (server, answers) = serve(&["400 Bad Request", "200 OK"]);
        let mut pushed = Pushed::default();
        queue.send(&server, &mut pushed).unwrap();
        assert_eq!(answers.join().unwrap(), [b"two", b"3rd"]);
        assert_eq!((pushed.profiles, pushed.waiting, pushed.dropped), (1, 0, 1));
        assert!(queue.requests().unwrap().is_empty());
    }

    #[test]
    fn damaged_requests_are_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let queue = Queue::open(folder.path(), 1 << 20).unwrap();
        std::fs::write(queue.folder.join("1"), "{\"path\": 7}\nbody").unwrap();
        std::fs::write(queue.folder.join("2"), "no head").unwrap();
        let server = Server::parse("http://127.0.0.1:9/", None).unwrap();
        let mut pushed = Pushed::default();
        queue.send(&server, &mut pushed).unwrap();
        assert_eq!((pushed.dropped, pushed.waiting), (2, 0));
        assert_eq!(Request::read(b"{\"path\": \"/x\", \"content_type\": \"a\"}\n\nb\n").unwrap().body, b"\nb\n");
        assert!(Request::read(b"{\"path\": \"@evil/x\", \"content_type\": \"a\"}\n").is_err());
    }
}
