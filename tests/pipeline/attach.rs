//! The attach without a recorder, at the socket of another program, and to a silent recorder.

use heaptape_tests::wait::until_some;
use heaptape_tests::{Program, same, target, test_env, torture, waits};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

#[test]
fn programs_run_without_a_recorder() {
    let folder = test_env::folder();
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("file"), "not a socket").expect("a file");
    std::fs::create_dir(at("folder")).expect("a folder");
    std::os::unix::fs::symlink(at("nowhere"), at("link")).expect("a link");
    nix::unistd::mkfifo(&at("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    drop(UnixListener::bind(at("dead")).expect("a socket that nobody serves"));
    let stream = UnixListener::bind(at("stream")).expect("a socket of another kind");
    let closed = at("closed");
    std::fs::create_dir(&closed).expect("a folder");
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o000)).expect("no rights");
    let program = Program::new(target::c("footprint"));
    let plain = program.plain().success();
    let long = "x".repeat(300);
    let names = ["nowhere", "file", "folder", "link", "pipe", "dead", "stream", "closed/socket", "", &long];
    for name in names {
        same(&plain, &program.preloaded_with(at(name)));
    }
    same(&plain, &program.preloaded_with(""));
    drop(stream);
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).expect("rights");
    torture::passed(6, "paths that are not a recorder's socket", names.len() as u64 + 1);
}

/// The attach asks for no more than its 50 ms, even if the other side does nothing: the first ones
/// wait for an answer, the others for a place in the queue.
#[test]
fn attach_ends_when_the_recorder_never_answers() {
    let folder = test_env::folder();
    let path = folder.path().join("socket");
    let listener = seqpacket(&path, 1);
    let program = target::c("small");
    let plain = Program::new(&program).plain().success();
    for start in 0..10 {
        let (outcome, asked) = waits::with_library(&program, &path);
        same(&plain, &outcome);
        assert!((1..=51).contains(&asked), "start {start} waits {asked} ms");
    }
    drop(listener);
    torture::passed(8, "program starts with a full queue that is never accepted", 10);
}

/// Creates a listening socket of the recorder's kind. Its connections are never accepted.
fn seqpacket(path: &std::path::Path, backlog: i32) -> std::os::fd::OwnedFd {
    use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
    use std::os::fd::AsRawFd;
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::empty(), None).expect("a socket");
    bind(socket.as_raw_fd(), &UnixAddr::new(path).expect("a path")).expect("its path");
    listen(&socket, Backlog::new(backlog).expect("a backlog")).expect("a queue");
    socket
}

/// The program waits for a late recorder for the time in HEAPTAPE_ATTACH_MS, or else for 50 ms.
#[test]
fn late_recorder_is_awaited_as_configured() {
    use nix::sys::socket::{MsgFlags, accept, recv, send};
    use std::os::fd::AsRawFd;
    let folder = test_env::folder();
    let path = folder.path().join("socket");
    let listener = seqpacket(&path, 8);
    let program = Program::new(target::c("small"));
    for (timeout, is_there) in [("50", false), ("10000", true)] {
        let waited = std::thread::scope(|scope| {
            let late = scope.spawn(|| {
                let client = accept(listener.as_raw_fd()).expect("a client");
                let mut bytes = [0; 100];
                assert_eq!(recv(client, &mut bytes, MsgFlags::empty()), Ok(64), "a hello");
                // Later than the library waits by itself, or until the program goes on.
                match is_there {
                    true => std::thread::sleep(Duration::from_millis(400)),
                    false => assert_eq!(recv(client, &mut bytes, MsgFlags::empty()), Ok(0), "the end"),
                }
                let answered = send(client, b"no", MsgFlags::MSG_NOSIGNAL).is_ok();
                nix::unistd::close(client).expect("closes");
                answered
            });
            program.clone().env("HEAPTAPE_ATTACH_MS", timeout).preloaded_with(&path).success();
            late.join().expect("no panic")
        });
        assert_eq!(waited, is_there, "{timeout} ms");
    }
    torture::passed(8, "waits for a recorder that answers after 400 ms", 2);
}

/// Clients that send garbage to the socket of the recorder harm nothing.
#[test]
fn invalid_clients_do_not_disturb_the_recording() {
    let program = Program::new(target::c("pairs")).args(["400000", "2"]);
    let plain = program.plain().success();
    let mut clients = 0;
    // A shell writes the path of the socket to a file before it starts the program.
    let note = test_env::folder();
    let file = note.path().join("socket");
    let program = program
        .after(&format!("printf %s \"$HEAPTAPE_SOCKET\" > {0}.part; mv {0}.part {0}; sleep 0.2", file.display()));
    let recording = program.recorded_while(|_, _| {
        let path = until_some("the socket's path is written", || std::fs::read_to_string(&file).ok());
        let mut keep = Vec::new();
        for index in 0..300u32 {
            use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, send, socket};
            use std::os::fd::AsRawFd;
            if let Ok(mut stream) = UnixStream::connect(&path) {
                stream.write_all(b"MTRC and no more").ok();
            }
            let Ok(socket) = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_NONBLOCK, None) else {
                continue;
            };
            if connect(socket.as_raw_fd(), &UnixAddr::new(path.as_str()).expect("a path")).is_ok() {
                let bytes: Vec<u8> = (0..index * 7).map(|i| (i * 31) as u8).collect();
                send(socket.as_raw_fd(), &bytes, MsgFlags::MSG_NOSIGNAL).ok();
                clients += 1;
                if index % 3 == 0 {
                    keep.push(socket); // half-open for ever
                }
            }
        }
    });
    assert_eq!(
        (plain.code(), &plain.stdout),
        (recording.outcome.code(), &recording.outcome.stdout),
        "{}",
        recording.outcome
    );
    let output = &recording.outcome.stderr;
    assert!(output.len() < 4_000, "a flood of clients is no flood of messages: {}", recording.outcome);
    assert!(!output.contains(&0x1b), "no colors off a terminal: {}", recording.outcome);
    let recording = recording.complete();
    assert!(recording.report().only("pairs").allocs >= 800_000);
    assert!(clients > 100, "{clients}");
    torture::passed(40, "invalid clients of the socket", clients);
}
