//! The daemon as systemd starts it: the socket for programs is passed (with a backlog, as by
//! systemd), readiness and the watchdog are reported, and descriptors are stored.
//! `scripts/dev systemd` does the same with the real one.

use heaptape_tests::recording::heaptape;
use heaptape_tests::run::finish;
use heaptape_tests::wait::PATIENCE;
use heaptape_tests::{target, test_env};
use std::os::unix::net::UnixDatagram;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Instant;

/// Listens as systemd does and becomes the daemon.
const LISTENS: &str = "
import os, socket, sys
listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(sys.argv[1])
listener.listen(8)
if listener.fileno() == 3:
    os.set_inheritable(3, True)
else:
    os.dup2(listener.fileno(), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS='1', LISTEN_FDNAMES='programs')
os.execv(sys.argv[2], sys.argv[2:])
";

#[test]
fn daemon_serves_an_activated_socket_and_notifies_systemd() {
    let directory = test_env::folder();
    let at = |name: &str| directory.path().join(name);
    let (socket, control, state) = (at("socket"), at("control"), at("state"));
    let manager = UnixDatagram::bind(at("notify")).expect("a socket");
    // As systemd, a thread reads all the time: the socket holds few messages, and the daemon drops
    // what it cannot send.
    let (sender, messages) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = [0; 512];
        while let Ok(count) = manager.recv(&mut bytes) {
            if sender.send(String::from_utf8_lossy(&bytes[..count]).into_owned()).is_err() {
                break;
            }
        }
    });
    let mut daemon = Command::new(test_env::need("python3"));
    daemon.args(["-c", LISTENS]).arg(&socket).arg(test_env::command()).args(["daemon", "--mode", "trace", "--socket"]);
    daemon.arg(&socket).arg("--control").arg(&control).arg("--state").arg(&state);
    daemon.env("NOTIFY_SOCKET", at("notify")).env("WATCHDOG_USEC", "400000").env("FDSTORE", "16");
    daemon.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut daemon = daemon.spawn().expect("it starts");
    let mut output = Vec::new();
    let mut hear = |what: &str| {
        let start = Instant::now();
        while !output.iter().any(|one: &String| one.starts_with(what)) {
            let left = PATIENCE.saturating_sub(start.elapsed());
            output.push(messages.recv_timeout(left).unwrap_or_else(|error| panic!("{what}: {error}, only {output:?}")));
        }
        output.drain(..).find(|one| one.starts_with(what)).unwrap_or_default()
    };
    hear("READY=1");
    hear("WATCHDOG=1");
    hear("WATCHDOG=1");
    let mut program = Command::new(target::c("pairs"));
    program.args(["20000", "1"]).env("LD_PRELOAD", test_env::library()).env("HEAPTAPE_SOCKET", &socket);
    program.env("HEAPTAPE_ATTACH_MS", "10000");
    finish(program, b"").success();
    let stored = hear("FDSTORE=1\nFDNAME=");
    let name = stored.lines().find_map(|line| line.strip_prefix("FDNAME=")).unwrap_or_default().to_owned();
    assert!(!name.is_empty() && !name.contains(':'), "{name}");
    assert!(hear("FDSTOREREMOVE=1").ends_with(&name));
    // The watchdog is still notified, and the daemon still answers.
    hear("WATCHDOG=1");
    heaptape(["ctl".as_ref(), "--control".as_ref(), control.as_os_str(), "stop".as_ref()]).success();
    hear("STOPPING=1");
    assert!(daemon.wait().expect("it is ours").success());
    assert!(socket.exists(), "the socket belongs to its creator");
    let epochs = heaptape(["epochs".as_ref(), "--state".as_ref(), state.as_os_str()]).success();
    let report = heaptape(["report", epochs.text().trim()]).success();
    assert!(report.text().contains("none lost") && report.text().contains("pairs"), "{report}");
}
