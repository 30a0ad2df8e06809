//! `--debuginfod`: the names of a stripped program come from a server. A server without them, with
//! garbage, or without an answer costs only a note.

use super::own_allocators::DESCRIPTION;
use heaptape_formats::recording as formats;
use heaptape_tests::{Outcome, Program, Recording, Target, test_env};
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
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

/// A program without symbols, and what a server has of it.
struct Stripped {
    program: PathBuf,
    debug_information: Vec<u8>,
    build_id: String,
    directory: tempfile::TempDir,
}

fn strip(source: &str) -> Stripped {
    let directory = test_env::folder();
    let (program, debug) = (directory.path().join("shop"), directory.path().join("shop.debug"));
    test_env::copy(Target::program(source).flag("-Wl,--build-id").build(), &program);
    let tool = |name: &str, arguments: &[&Path]| {
        let output = Command::new(test_env::need(name)).args(arguments).output().expect("the tool");
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    tool("objcopy", &["--only-keep-debug".as_ref(), &program, &debug]);
    tool("strip", &[&program]);
    let notes = tool("readelf", &["-n".as_ref(), &program]);
    let id = notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: ")).expect("a build-id").to_string();
    let debug_information = fs::read(&debug).expect("the debug file");
    fs::remove_file(&debug).expect("nobody finds it");
    Stripped { program, debug_information, build_id: id, directory }
}

/// A recording of a stripped program, its debug information, and its build-id.
fn stripped() -> (Recording, Vec<u8>, String, tempfile::TempDir) {
    let Stripped { program, debug_information, build_id, directory } = strip("leaks/shop.c");
    let recording = Program::new(&program).recorded().success().complete();
    (recording, debug_information, build_id, directory)
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

/// Returns what is known of the allocator of `crosses.c` in a recording of it.
fn boxes(about: &formats::Recording) -> Option<formats::Allocator> {
    about.processes.first()?.allocators.iter().find(|allocator| allocator.name == "boxes").cloned()
}

/// `record --debuginfod` finds an allocator inside a stripped program by symbols of a server, which
/// nobody queries without the option. Without an answer the program runs as before.
#[test]
fn allocator_of_a_stripped_program_is_found_by_symbols_of_a_server() {
    test_env::need("debuginfod-find");
    let Stripped { program, debug_information, build_id, directory } = strip("crosses.c");
    let description = directory.path().join("boxes.alloc");
    fs::write(&description, DESCRIPTION).expect("a description");
    let hooked = |option: Option<&str>, server: &Server| {
        let cache = test_env::folder();
        let program = Program::new(&program).option("--allocator").option(description.to_str().expect("a plain path"));
        let program = option.into_iter().fold(program, Program::option);
        let program = program.env("DEBUGINFOD_URLS", format!("http://{}", server.address));
        // What was found once is stored there.
        let program = program.env("XDG_CACHE_HOME", cache.path());
        let recording = program.env("DEBUGINFOD_CACHE_PATH", cache.path()).env("DEBUGINFOD_TIMEOUT", "1").recorded();
        let recording = recording.success();
        let hooked = boxes(&recording.about()).map(|allocator| allocator.hooked);
        (hooked, recording.outcome.error().to_string())
    };
    let server = Server::start(&build_id, Response::Bytes(debug_information));
    assert_eq!(hooked(None, &server).0, None);
    assert_eq!(server.requests(), [] as [String; 0]);
    assert_eq!(hooked(Some("--debuginfod"), &server).0, Some(5));
    assert_eq!(server.requests(), [format!("/buildid/{build_id}/debuginfo")]);
    for (response, why) in [
        (Response::Nothing, "the debuginfod servers have no debug information of it"),
        (Response::Silence, "the debuginfod servers do not answer"),
    ] {
        let (hooked, error) = hooked(Some("--debuginfod"), &Server::start(&build_id, response));
        assert_eq!(hooked, None);
        assert!(error.contains("has no symbols to find allocators inside it") && error.contains(why), "{error}");
    }
}

/// `attach --debuginfod` finds it by the same symbols, in a program that runs already: all of its
/// calls are recorded.
#[test]
fn attach_finds_an_allocator_by_symbols_of_a_server() {
    test_env::need("debuginfod-find");
    let Stripped { program, debug_information, build_id, directory } = strip("crosses.c");
    let description = directory.path().join("boxes.alloc");
    fs::write(&description, DESCRIPTION).expect("a description");
    let plain = Program::new(&program).plain().success().text();
    let attached = |option: Option<&str>, server: &Server| {
        let cache = test_env::folder();
        let recording = cache.path().join("recording");
        let mut running = Command::new(&program)
            .arg("waits")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program starts");
        let mut output = BufReader::new(running.stdout.take().expect("its output"));
        let mut line = String::new();
        output.read_line(&mut line).expect("a line");
        assert_eq!(line, "ready\n");
        let mut attach = Command::new(test_env::command())
            .args(["attach", "--allocator"])
            .arg(&description)
            .args(option)
            .arg("-o")
            .arg(&recording)
            .arg(running.id().to_string())
            .env("DEBUGINFOD_URLS", format!("http://{}", server.address))
            .env("DEBUGINFOD_CACHE_PATH", cache.path())
            .env("DEBUGINFOD_TIMEOUT", "1")
            .stderr(Stdio::piped())
            .spawn()
            .expect("heaptape attach starts");
        let mut errors = BufReader::new(attach.stderr.take().expect("its messages"));
        let mut text = String::new();
        while !text.contains("attached to ") && errors.read_line(&mut text).expect("a line") > 0 {}
        // The program does its work, and ends.
        drop(running.stdin.take());
        let mut rest = String::new();
        output.read_to_string(&mut rest).expect("its output");
        assert!(running.wait().expect("its end").success(), "{text}");
        errors.read_to_string(&mut text).expect("its messages");
        assert!(attach.wait().expect("its end").success(), "{text}");
        assert_eq!(rest, plain);
        let about = fs::read(recording.join("recording.json")).expect("recording.json");
        let boxes = boxes(&serde_json::from_slice(&about).expect("JSON"));
        boxes.map(|allocator| (allocator.hooked, allocator.events))
    };
    let server = Server::start(&build_id, Response::Bytes(debug_information));
    assert_eq!(attached(None, &server), None);
    assert_eq!(server.requests(), [] as [String; 0]);
    // As many events as of a program that was started with the library.
    assert_eq!(attached(Some("--debuginfod"), &server), Some((5, 71 + 10 + 65)));
    assert_eq!(server.requests(), [format!("/buildid/{build_id}/debuginfo")]);
}
