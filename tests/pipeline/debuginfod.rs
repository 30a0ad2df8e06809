//! `--debuginfod`: the names of a stripped program come from a server. A server without them, with
//! garbage, or without an answer costs only a note.

use heaptape_tests::{Outcome, Program, Recording, Target, test_env};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

/// Response of the server to a request for the debug information of the program. All other requests
/// get 404.
#[derive(Clone)]
enum Response {
    Nothing,
    Bytes(Vec<u8>),
    Silence,
}

struct Server {
    address: SocketAddr,
    /// Requested paths.
    requested: Arc<Mutex<Vec<String>>>,
}

fn answer(
    stream: TcpStream,
    wanted: &str,
    response: &Response,
    requested: &Mutex<Vec<String>>,
    kept: &mut Vec<TcpStream>,
) {
    let mut lines = BufReader::new(stream.try_clone().expect("the connection")).lines().map_while(Result::ok);
    let Some(first) = lines.next() else { return };
    lines.find(String::is_empty);
    let path = first.split(' ').nth(1).unwrap_or_default().to_string();
    requested.lock().expect("the list").push(path.clone());
    let mut stream = stream;
    let written = match response {
        Response::Silence => return kept.push(stream),
        Response::Bytes(bytes) if path.contains(wanted) => {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", bytes.len());
            stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(bytes))
        }
        _ => stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
    };
    // The client may have closed the connection.
    drop(written);
}

impl Server {
    fn start(wanted: &str, response: Response) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let requested = Arc::new(Mutex::new(Vec::new()));
        let (list, wanted) = (Arc::clone(&requested), wanted.to_string());
        // It ends with the test's process.
        std::thread::spawn(move || {
            let mut kept = Vec::new();
            for stream in listener.incoming().map_while(Result::ok) {
                answer(stream, &wanted, &response, &list, &mut kept);
            }
        });
        Server { address, requested }
    }

    fn requests(&self) -> Vec<String> {
        self.requested.lock().expect("the list").clone()
    }
}

/// A recording of a stripped program, its debug information, and its build-id.
fn stripped() -> (Recording, Vec<u8>, String, tempfile::TempDir) {
    let directory = test_env::folder();
    let (program, debug) = (directory.path().join("shop"), directory.path().join("shop.debug"));
    fs::copy(Target::program("leaks/shop.c").flag("-Wl,--build-id").build(), &program).expect("a copy");
    let tool = |name: &str, arguments: &[&Path]| {
        let output = Command::new(test_env::need(name)).args(arguments).output().expect("the tool");
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    tool("objcopy", &["--only-keep-debug".as_ref(), &program, &debug]);
    tool("strip", &[&program]);
    let notes = tool("readelf", &["-n".as_ref(), &program]);
    let id = notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: ")).expect("a build-id").to_string();
    let recording = Program::new(&program).recorded().success().complete();
    let bytes = fs::read(&debug).expect("the debug file");
    fs::remove_file(&debug).expect("nobody finds it");
    (recording, bytes, id, directory)
}

fn ask(command: &str, recording: &Recording, address: SocketAddr, cache: &Path) -> Outcome {
    let requested = Program::new(test_env::command()).arg(command).arg("--debuginfod").arg(&recording.folder);
    let requested = requested.env("DEBUGINFOD_URLS", format!("http://{address}")).env("DEBUGINFOD_CACHE_PATH", cache);
    requested.env("DEBUGINFOD_TIMEOUT", "1").env("HOME", cache).plain()
}

#[test]
fn server_names_stripped_functions_with_one_request() {
    test_env::need("debuginfod-find");
    let (recording, bytes, id, _directory) = stripped();
    let cache = test_env::folder();
    let plain = recording.heaptape(&["leaks"]).success().text();
    assert!(!plain.contains("load_order"), "nothing names it here: {plain}");
    let server = Server::start(&id, Response::Bytes(bytes));
    let output = ask("leaks", &recording, server.address, cache.path()).success().text();
    assert!(output.contains("load_order shop.c:"), "{output}");
    let own = |server: &Server| server.requests().iter().filter(|path| path.contains(&id)).count();
    assert_eq!(server.requests().first(), Some(&format!("/buildid/{id}/debuginfo")));
    assert_eq!(own(&server), 1);
    // From then on the answer comes from the cache, with any server.
    let other = Server::start(&id, Response::Nothing);
    assert_eq!(ask("leaks", &recording, other.address, cache.path()).success().text(), output);
    assert_eq!(own(&other), 0);
    // Packed, it needs neither.
    let packed = ask("pack", &recording, other.address, cache.path());
    assert!(packed.code() < 2, "{packed}");
    assert_eq!(recording.heaptape(&["leaks"]).success().text(), output);
}

#[test]
fn useless_server_costs_only_a_note() {
    test_env::need("debuginfod-find");
    let (recording, bytes, id, _directory) = stripped();
    let plain = recording.heaptape(&["leaks"]).success().text();
    let another = [b"\x7fELF".as_slice(), &[0xff; 100_000]].concat();
    let cut = bytes[..bytes.len() / 2].to_vec();
    for (response, note) in [
        (Response::Nothing, "the debuginfod servers have no debug information of it"),
        (
            Response::Bytes(b"<html>not here</html>".to_vec()),
            "the file from the debuginfod server is not its debug information",
        ),
        (Response::Bytes(another), "the file from the debuginfod server is not its debug information"),
        (Response::Bytes(cut), "the file from the debuginfod server is not its debug information"),
        (Response::Silence, "the debuginfod servers do not answer"),
    ] {
        let cache = test_env::folder();
        let server = Server::start(&id, response.clone());
        let output = ask("leaks", &recording, server.address, cache.path()).success().text();
        assert_eq!(output, plain, "{note}");
        let cache = test_env::folder();
        let output = ask("report", &recording, server.address, cache.path()).success().text();
        assert!(output.lines().any(|line| line.starts_with("note: ") && line.contains(note)), "{note}: {output}");
        if matches!(response, Response::Silence) {
            let modules: BTreeSet<String> = server.requests().into_iter().collect();
            assert_eq!(modules.len(), 1, "no command waits for a silent server again: {modules:?}");
        }
    }
}
