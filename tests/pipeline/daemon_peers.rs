//! Whom the daemon obeys: user ids alone do not decide, since root of a container is root for the
//! kernel, too.

use heaptape_tests::daemon::Running;
use heaptape_tests::run::{Outcome, finish};
use heaptape_tests::wait::until;
use heaptape_tests::{Daemon, is_root, target, test_env};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Starts a program without the library.
fn plain(program: &str, arguments: &[&str]) -> Running {
    let mut command = Command::new(target::c(program));
    command.args(arguments).env_remove("LD_PRELOAD").stdin(Stdio::null()).stdout(Stdio::null());
    Running(command.spawn().expect("it starts"))
}

/// Runs a command of heaptape behind these words, e.g. those of `unshare`.
fn behind(words: &[&str], daemon: &Daemon, arguments: &[&str]) -> Outcome {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).arg(test_env::command()).arg("ctl").arg("--control").arg(daemon.control());
    command.args(arguments).env_remove("LD_PRELOAD");
    finish(command, b"")
}

/// Words that run a command as root of a container does: in namespaces of its own, without
/// capabilities.
const CONTAINER: [&str; 8] =
    ["unshare", "-m", "-p", "--fork", "setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"];

/// Root of a container that shares the control socket's folder gets no answer, and no process of
/// the host is traced for it. Root of the host without CAP_SYS_PTRACE may ask, but not attach.
#[test]
fn root_of_a_container_cannot_use_the_daemon() {
    if !is_root() || !finish_ok(&["unshare", "-m", "-p", "--fork", "true"]) {
        eprintln!("no namespaces may be made here");
        return;
    }
    let daemon = Daemon::start(&["--mode", "profile"]);
    let recorded = daemon.spawn(&target::c("leaks_slowly"), &["1000000", "5"], None);
    let other = plain("full_cache", &["100", "5"]);
    until("it is served", || daemon.list("leaks_slowly").len() == 1);
    let pid = other.0.id().to_string();
    for arguments in [
        &["status"][..],
        &["list"],
        &["show", "leaks_slowly"],
        &["metrics"],
        &["mode", "all", "off"],
        &["attach", &pid],
        &["detach", "all"],
        &["epoch"],
        &["stop"],
    ] {
        let refused = behind(&CONTAINER, &daemon, arguments).exits(2);
        assert!(refused.error().contains("the daemon's own namespaces"), "{arguments:?}: {refused}");
        assert!(!refused.text().contains("leaks_slowly"), "{arguments:?}: {refused}");
    }
    let user = ["unshare", "--user", "--map-root-user"];
    assert!(behind(&user, &daemon, &["list"]).exits(2).error().contains("namespaces"), "a namespace of users");
    let unable = &CONTAINER[4..];
    assert!(behind(unable, &daemon, &["list"]).success().text().contains("leaks_slowly"));
    let refused = behind(unable, &daemon, &["attach", &pid]).exits(2);
    assert!(refused.error().contains("CAP_SYS_PTRACE"), "{refused}");
    let one = &daemon.list("leaks_slowly")[0];
    assert_eq!(one["mode"], "profile", "nothing was changed");
    assert!(daemon.list("full_cache").is_empty(), "nothing was attached");
    daemon.query(&["attach", &pid]);
    assert!(behind(unable, &daemon, &["detach", "all"]).exits(2).error().contains("CAP_SYS_PTRACE"));
    daemon.query(&["detach", "all"]);
    let lines = daemon.log().lines().filter(|line| line.contains("may not control this daemon")).count();
    assert_eq!(lines, 1, "one line a minute: {}", daemon.log());
    drop((recorded, other));
}

fn finish_ok(words: &[&str]) -> bool {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    finish(command, b"").code() == 0
}

/// The control socket has a folder of its own that others cannot enter, and programs in a container
/// reach the programs' socket through a mount that they cannot change.
#[test]
fn containers_reach_the_programs_socket_alone() {
    if !is_root() || !finish_ok(&["unshare", "-m", "-p", "--fork", "true"]) {
        return;
    }
    let folder = test_env::folder();
    let control = folder.path().join("private/control");
    let daemon = Daemon::start_controlled_at(&control, &["--mode", "trace"]);
    let mode = std::fs::metadata(control.parent().expect("a folder")).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    let run = daemon.socket().parent().expect("a folder").display().to_string();
    let line = format!(
        "mount --bind -o ro {run} {run} && ! rm {run}/socket 2> /dev/null && ls {run} && LD_PRELOAD={} HEAPTAPE_SOCKET={run}/socket HEAPTAPE_ATTACH_MS=10000 exec {}",
        test_env::library().display(),
        target::c("small").display()
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "-p", "--fork", "sh", "-c", &line]);
    let outcome = finish(command, b"").success();
    assert!(!outcome.text().contains("control"), "{outcome}");
    until("it is kept", || {
        daemon.query(&["epoch"]);
        !daemon.epochs(&["--program", "small"]).is_empty()
    });
}

/// Sends a request; returns what is answered.
fn get(address: std::net::SocketAddr, target: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.write_all(format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes()).expect("it is sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

/// Without a token, everybody on the machine can read the metrics: they name no label, no function,
/// and no program of another user. Silent connections keep nobody from reading them.
#[test]
fn metrics_without_a_token_are_for_everybody() {
    let address = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port");
    let daemon = Daemon::start(&["--metrics", &address.to_string(), "--verdict-interval", "1s", "--snapshot", "1s"]);
    let mut command = daemon.command(&target::c("leaks_slowly"));
    command.args(["1000000", "2", "5000"]).env("HEAPTAPE_LABEL", "secret-project");
    let running = Running(command.spawn().expect("it starts"));
    until("a site is named to those who may know", || {
        daemon.ctl(&["metrics"]).text().contains("label=\"secret-project\",site=\"")
    });
    // More of them than a thread could serve in turn until the test's patience is over.
    let silent: Vec<TcpStream> = (0..400).filter_map(|_| TcpStream::connect(address).ok()).collect();
    let mut half = TcpStream::connect(address).expect("it listens");
    half.write_all(b"GET /metr").expect("it is sent");
    for _ in 0..5 {
        let metrics = get(address, "/metrics");
        assert!(metrics.starts_with("HTTP/1.1 200 "), "{metrics}");
        assert!(metrics.contains("heaptape_program_live_bytes{program=\"leaks_slowly\",label=\"\"}"), "{metrics}");
        for word in ["secret-project", "function=", "keeps"] {
            assert!(!metrics.contains(word), "{word}: {metrics}");
        }
    }
    assert!(silent.len() > 100, "{}", silent.len());
    drop((silent, half));
    std::thread::sleep(Duration::from_millis(10));
    assert!(get(address, "/metrics").starts_with("HTTP/1.1 200 "));
    drop(running);
}
