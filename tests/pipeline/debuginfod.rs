//! `--debuginfod`: a stripped program's names come from a server; one that has none, sends
//! something else or keeps silent costs a note.

use heaptape_tests::{Outcome, Program, Recording, Target, test_env};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

/// What the server returns to a client that asks for the program's debug information; for all else
/// it says 404.
#[derive(Clone)]
enum Gives {
    Nothing,
    Bytes(Vec<u8>),
    Silence,
}

struct Server {
    address: SocketAddr,
    /// Paths that were asked for.
    asked: Arc<Mutex<Vec<String>>>,
}

fn answer(stream: TcpStream, wanted: &str, gives: &Gives, asked: &Mutex<Vec<String>>, kept: &mut Vec<TcpStream>) {
    let mut lines = BufReader::new(stream.try_clone().expect("the connection")).lines().map_while(Result::ok);
    let Some(first) = lines.next() else { return };
    lines.find(String::is_empty);
    let path = first.split(' ').nth(1).unwrap_or_default().to_string();
    asked.lock().expect("the list").push(path.clone());
    let mut stream = stream;
    let said = match gives {
        Gives::Silence => return kept.push(stream),
        Gives::Bytes(bytes) if path.contains(wanted) => {
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", bytes.len());
            stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(bytes))
        }
        _ => stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
    };
    // A client that hangs up is its own affair.
    drop(said);
}

impl Server {
    fn start(wanted: &str, gives: Gives) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (list, wanted) = (Arc::clone(&asked), wanted.to_string());
        // It ends with the test's process.
        std::thread::spawn(move || {
            let mut kept = Vec::new();
            for stream in listener.incoming().map_while(Result::ok) {
                answer(stream, &wanted, &gives, &list, &mut kept);
            }
        });
        Server { address, asked }
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().expect("the list").clone()
    }
}

/// A recording of a stripped program, its debug information, and its build-id.
fn stripped() -> (Recording, Vec<u8>, String, tempfile::TempDir) {
    let place = test_env::folder();
    let (program, debug) = (place.path().join("shop"), place.path().join("shop.debug"));
    fs::copy(Target::program("leaks/shop.c").flag("-Wl,--build-id").build(), &program).expect("a copy");
    let tool = |name: &str, words: &[&Path]| {
        let said = Command::new(test_env::need(name)).args(words).output().expect("the tool");
        assert!(said.status.success(), "{name}: {}", String::from_utf8_lossy(&said.stderr));
        String::from_utf8_lossy(&said.stdout).into_owned()
    };
    tool("objcopy", &["--only-keep-debug".as_ref(), &program, &debug]);
    tool("strip", &[&program]);
    let notes = tool("readelf", &["-n".as_ref(), &program]);
    let id = notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: ")).expect("a build-id").to_string();
    let recording = Program::new(&program).recorded().success().whole();
    let bytes = fs::read(&debug).expect("the debug file");
    fs::remove_file(&debug).expect("nobody finds it");
    (recording, bytes, id, place)
}

fn ask(word: &str, recording: &Recording, address: SocketAddr, cache: &Path) -> Outcome {
    let asked = Program::new(test_env::command()).arg(word).arg("--debuginfod").arg(&recording.folder);
    let asked = asked.env("DEBUGINFOD_URLS", format!("http://{address}")).env("DEBUGINFOD_CACHE_PATH", cache);
    asked.env("DEBUGINFOD_TIMEOUT", "1").env("HOME", cache).plain()
}

#[test]
fn a_server_names_what_was_stripped_and_is_asked_once() {
    test_env::need("debuginfod-find");
    let (recording, bytes, id, _place) = stripped();
    let cache = test_env::folder();
    let plain = recording.heaptape(&["leaks"]).success().text();
    assert!(!plain.contains("load_order"), "nothing names it here: {plain}");
    let server = Server::start(&id, Gives::Bytes(bytes));
    let said = ask("leaks", &recording, server.address, cache.path()).success().text();
    assert!(said.contains("load_order shop.c:"), "{said}");
    let own = |server: &Server| server.asked().iter().filter(|path| path.contains(&id)).count();
    assert_eq!(server.asked().first(), Some(&format!("/buildid/{id}/debuginfo")));
    assert_eq!(own(&server), 1);
    // From then on from the cache, whatever servers there are.
    let other = Server::start(&id, Gives::Nothing);
    assert_eq!(ask("leaks", &recording, other.address, cache.path()).success().text(), said);
    assert_eq!(own(&other), 0);
    // Packed, it needs neither.
    let packed = ask("pack", &recording, other.address, cache.path());
    assert!(packed.code() < 2, "{packed}");
    assert_eq!(recording.heaptape(&["leaks"]).success().text(), said);
}

#[test]
fn a_server_without_it_with_garbage_or_silent_costs_a_note() {
    test_env::need("debuginfod-find");
    let (recording, bytes, id, _place) = stripped();
    let plain = recording.heaptape(&["leaks"]).success().text();
    let another = [b"\x7fELF".as_slice(), &[0xff; 100_000]].concat();
    let cut = bytes[..bytes.len() / 2].to_vec();
    for (gives, note) in [
        (Gives::Nothing, "the debuginfod servers have no debug information of it"),
        (Gives::Bytes(b"<html>not here</html>".to_vec()), "what a debuginfod server gave is not its debug information"),
        (Gives::Bytes(another), "what a debuginfod server gave is not its debug information"),
        (Gives::Bytes(cut), "what a debuginfod server gave is not its debug information"),
        (Gives::Silence, "the debuginfod servers do not answer"),
    ] {
        let cache = test_env::folder();
        let server = Server::start(&id, gives.clone());
        let said = ask("leaks", &recording, server.address, cache.path()).success().text();
        assert_eq!(said, plain, "{note}");
        let cache = test_env::folder();
        let said = ask("report", &recording, server.address, cache.path()).success().text();
        assert!(said.lines().any(|line| line.starts_with("note: ") && line.contains(note)), "{note}: {said}");
        if matches!(gives, Gives::Silence) {
            let modules: BTreeSet<String> = server.asked().into_iter().collect();
            assert_eq!(modules.len(), 1, "nobody waits for a silent server again: {modules:?}");
        }
    }
}
