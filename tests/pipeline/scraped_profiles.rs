//! Heap profiles over HTTP: who may have them, and that they are what is live.

use heaptape_tests::recording::heaptape;
use heaptape_tests::wait::until;
use heaptape_tests::{Daemon, target, test_env};
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

const TOKEN: &str = "a-token-of-this-test";

/// Sends a request; returns the status and the body.
fn get(mut stream: impl Read + Write, target: &str, header: &str) -> (u16, Vec<u8>) {
    let request = format!("GET {target} HTTP/1.1\r\nHost: x\r\n{header}\r\n");
    stream.write_all(request.as_bytes()).expect("it is sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    let end = answer.windows(4).position(|end| end == b"\r\n\r\n").expect("its head") + 4;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, answer[end..].to_vec())
}

/// On a Unix socket, only the daemon's user gets an answer, and needs no token.
#[test]
fn profile_of_a_program_is_served_on_a_unix_socket() {
    let folder = test_env::folder();
    let socket = folder.path().join("metrics");
    let daemon = Daemon::start(&["--metrics", &format!("unix:{}", socket.display())]);
    assert_eq!(std::fs::metadata(&socket).expect("the socket").permissions().mode() & 0o777, 0o600);
    let running = daemon.spawn(&target::c("leaks_slowly"), &["100000", "2"], None);
    until("it grows", || daemon.list("leaks_slowly").iter().any(|one| one["live_blocks"].as_u64() > Some(20)));
    let get = |target: &str| get(UnixStream::connect(&socket).expect("it listens"), target, "");
    let (status, metrics) = get("/metrics");
    assert!(status == 200 && String::from_utf8_lossy(&metrics).contains("heaptape_program_live_bytes{"));
    for (kind, shown) in [("heap", "inuse_space"), ("allocs", "alloc_space")] {
        let (status, profile) = get(&format!("/debug/pprof/{kind}?program=leaks_slowl%79"));
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&profile));
        let file = folder.path().join(format!("{kind}.pb.gz"));
        std::fs::write(&file, profile).expect("a file");
        let sites = heaptape([OsStr::new("sites"), file.as_os_str()]).success().text().to_owned();
        assert!(sites.contains("keeps"), "{shown}: {sites}");
    }
    // A flight recording is read where it is: a scrape keeps nothing on disk.
    let flight = daemon.spawn(&target::c("leaks_slowly"), &["100000", "2"], Some("flight"));
    let pid = flight.0.id();
    let served = || daemon.list("leaks_slowly").into_iter().find(|one| one["pid"] == pid);
    until("the flight grows", || served().is_some_and(|one| one["live_blocks"].as_u64() > Some(20)));
    for _ in 0..2 {
        let (status, profile) = get(&format!("/debug/pprof/heap?program={pid}"));
        let file = folder.path().join("flight.pb.gz");
        std::fs::write(&file, &profile).expect("a file");
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&profile));
        let sites = heaptape([OsStr::new("sites"), file.as_os_str()]).success().text().to_owned();
        assert!(sites.contains("keeps"), "{sites}");
    }
    let kept = |epoch: &PathBuf| {
        let folders = std::fs::read_dir(epoch).expect("an epoch").flatten();
        folders.filter(|folder| folder.file_name().to_string_lossy().starts_with(&format!("{pid}."))).count()
    };
    assert_eq!(daemon.epochs(&[]).iter().map(kept).sum::<usize>(), 0, "no flight is kept");
    let (_, metrics) = get("/metrics");
    assert!(String::from_utf8_lossy(&metrics).contains("heaptape_flights_kept_total 0\n"));
    let segments = std::fs::read_dir(daemon.state().join("0/flight")).expect("the flights").count();
    assert_eq!(segments, 1, "that which is being written");
    drop(flight);
    assert_eq!(get("/debug/pprof/heap").0, 400);
    assert_eq!(get("/debug/pprof/heap?program=nobody").0, 404);
    assert_eq!(get("/debug/pprof/profile").0, 404);
    drop(running);
}

/// Without a token, only metrics are served on loopback. With one, nothing is served without it.
#[test]
fn profiles_on_an_address_need_the_token() {
    let folder = test_env::folder();
    let token = folder.path().join("token");
    std::fs::write(&token, format!("{TOKEN}\n")).expect("a token");
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).expect("its mode");
    for is_protected in [false, true] {
        let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port");
        let (text, token) = (address.to_string(), token.display().to_string());
        let mut options = vec!["--metrics", &text];
        options.extend(is_protected.then_some(["--metrics-token", &token]).into_iter().flatten());
        let daemon = Daemon::start(&options);
        let get = |target: &str, header: &str| get(TcpStream::connect(address).expect("it listens"), target, header).0;
        let (metrics, profile) = ("/metrics", "/debug/pprof/heap?program=nobody");
        let (bearer, wrong) =
            (format!("Authorization: Bearer {TOKEN}\r\n"), format!("Authorization: Bearer {TOKEN}x\r\n"));
        let found =
            [get(metrics, ""), get(profile, ""), get(metrics, &wrong), get(metrics, &bearer), get(profile, &bearer)];
        let expected = if is_protected { [401, 401, 401, 200, 404] } else { [200, 403, 200, 200, 403] };
        assert_eq!(found, expected, "{}", daemon.log());
        assert!(!daemon.log().contains(TOKEN), "{}", daemon.log());
    }
}
