//! The attach: nobody there, somebody else there, a recorder that never answers.

use heaptape_tests::{Program, same, target, test_env, torture};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::{Duration, Instant};

#[test]
fn no_recorder_there() {
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
        let outcome = program.preloaded_with(at(name));
        same(&plain, &outcome);
        assert!(
            outcome.wall < plain.wall + Duration::from_millis(500),
            "{name}: {:?} against {:?}",
            outcome.wall,
            plain.wall
        );
    }
    same(&plain, &program.preloaded_with(""));
    drop(stream);
    std::fs::set_permissions(&closed, std::fs::Permissions::from_mode(0o700)).expect("rights");
    torture::passed(6, "sockets that are none", names.len() as u64 + 1);
}

/// The attach ends within its 50 ms, whatever the other side does.
#[test]
fn a_recorder_that_never_answers() {
    let folder = test_env::folder();
    let path = folder.path().join("socket");
    let listener = seqpacket(&path, 1);
    let program = Program::new(target::c("small"));
    let plain = program.plain().success();
    let mut slowest = Duration::ZERO;
    for _ in 0..40 {
        let start = Instant::now();
        same(&plain, &program.preloaded_with(&path));
        slowest = slowest.max(start.elapsed());
    }
    drop(listener);
    // 50 ms by promise; the rest is a busy machine's.
    assert!(slowest < Duration::from_millis(400), "{slowest:?}");
    torture::passed(8, "starts with a full queue that nobody empties", 40);
}

/// A listening socket of the recorder's kind that nobody accepts from.
fn seqpacket(path: &std::path::Path, backlog: i32) -> std::os::fd::OwnedFd {
    use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen, socket};
    use std::os::fd::AsRawFd;
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::empty(), None).expect("a socket");
    bind(socket.as_raw_fd(), &UnixAddr::new(path).expect("a path")).expect("its path");
    listen(&socket, Backlog::new(backlog).expect("a backlog")).expect("a queue");
    socket
}

/// A recorder that lives and is late is waited for as long as HEAPTAPE_ATTACH_MS says; without it
/// for 50 ms.
#[test]
fn a_recorder_that_is_late() {
    use nix::sys::socket::{MsgFlags, accept, recv, send};
    use std::os::fd::AsRawFd;
    let folder = test_env::folder();
    let path = folder.path().join("socket");
    let listener = seqpacket(&path, 8);
    let program = Program::new(target::c("small"));
    for (patience, is_there) in [("50", false), ("5000", true)] {
        let waited = std::thread::scope(|scope| {
            let late = scope.spawn(|| {
                let client = accept(listener.as_raw_fd()).expect("a client");
                std::thread::sleep(Duration::from_millis(400));
                let mut bytes = [0; 100];
                let hello = recv(client, &mut bytes, MsgFlags::MSG_DONTWAIT);
                assert_eq!(hello, Ok(64), "a hello");
                let answered = send(client, b"no", MsgFlags::MSG_NOSIGNAL).is_ok();
                nix::unistd::close(client).expect("closes");
                answered
            });
            program.clone().env("HEAPTAPE_ATTACH_MS", patience).preloaded_with(&path).success();
            late.join().expect("no panic")
        });
        assert_eq!(waited, is_there, "{patience} ms");
    }
    torture::passed(8, "a recorder that answers after 400 ms, waited for as asked", 2);
}

/// Strangers that talk nonsense to the recorder's socket harm nobody.
#[test]
fn strangers_on_the_socket() {
    let program = Program::new(target::c("pairs")).args(["400000", "2"]);
    let plain = program.plain().success();
    let mut strangers = 0;
    // The program tells where the socket is: a shell behind the command writes its environment
    // down.
    let note = test_env::folder();
    let file = note.path().join("socket");
    let told = program
        .after(&format!("printf %s \"$HEAPTAPE_SOCKET\" > {0}.part; mv {0}.part {0}; sleep 0.2", file.display()));
    let recording = told.recorded_while(|_, _| {
        let start = Instant::now();
        let path = loop {
            match std::fs::read_to_string(&file) {
                Ok(path) => break path,
                Err(_) if start.elapsed() < Duration::from_secs(10) => std::thread::sleep(Duration::from_millis(5)),
                Err(error) => panic!("the socket's path: {error}"),
            }
        };
        let mut keep = Vec::new();
        for index in 0..300u32 {
            use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, send, socket};
            use std::os::fd::AsRawFd;
            if let Ok(mut stream) = UnixStream::connect(&path) {
                stream.write_all(b"MTRC and nothing behind it").ok();
            }
            let Ok(socket) = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_NONBLOCK, None) else {
                continue;
            };
            if connect(socket.as_raw_fd(), &UnixAddr::new(path.as_str()).expect("a path")).is_ok() {
                let bytes: Vec<u8> = (0..index * 7).map(|i| (i * 31) as u8).collect();
                send(socket.as_raw_fd(), &bytes, MsgFlags::MSG_NOSIGNAL).ok();
                strangers += 1;
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
    let said = &recording.outcome.stderr;
    assert!(said.len() < 4_000, "a flood of strangers is no flood of messages: {}", recording.outcome);
    assert!(!said.contains(&0x1b), "no colours where nobody looks: {}", recording.outcome);
    let recording = recording.whole();
    assert!(recording.report().only("pairs").allocs >= 800_000);
    assert!(strangers > 100, "{strangers}");
    torture::passed(40, "strangers on the socket", strangers);
}
