//! Traces and profiles that are sent to the daemon: stored up to the last readable record, found by
//! every command, and no burden for others.

use heaptape_formats::{Ending, mptl, mtrc};
use heaptape_tests::recording::heaptape;
use heaptape_tests::run::{Outcome, finish};
use heaptape_tests::wait::until;
use heaptape_tests::{Daemon, is_root, target, test_env};
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::socket::{
    AddressFamily, MsgFlags, Shutdown, SockFlag, SockType, UnixAddr, connect, recv, send, shutdown, socket,
};
use serde_json::Value;
use std::fs::read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

fn golden(name: &str) -> PathBuf {
    test_env::root().join("tests/golden/mpatrol").join(name)
}

/// Runs `heaptape send`.
fn sent(daemon: &Daemon, file: &Path) -> Outcome {
    heaptape(["send".as_ref(), "--socket".as_ref(), daemon.socket().as_os_str(), file.as_os_str()])
}

/// Returns the path under which a stream was stored.
fn stored_path(output: &Outcome) -> PathBuf {
    PathBuf::from(output.text().trim())
}

/// A sender that the test controls.
struct Sender(OwnedFd);

impl Sender {
    fn to(daemon: &Daemon) -> Sender {
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
        let address = UnixAddr::new(&daemon.socket()).expect("an address");
        connect(socket.as_raw_fd(), &address).expect("the daemon listens");
        Sender(socket)
    }

    fn say(&self, bytes: &[u8]) -> Result<usize, Errno> {
        send(self.0.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL)
    }

    fn answer(self) -> Value {
        let _ = shutdown(self.0.as_raw_fd(), Shutdown::Write);
        let mut bytes = vec![0; 16 << 10];
        let mut hear = || recv(self.0.as_raw_fd(), &mut bytes, MsgFlags::empty());
        let count = hear().or_else(|_| hear()).expect("an answer");
        serde_json::from_slice(&bytes[..count]).unwrap_or_else(|error| panic!("{error}: {bytes:?}"))
    }
}

fn status(daemon: &Daemon, key: &str) -> u64 {
    daemon.query(&["status"])["own"][key].as_f64().unwrap_or_else(|| panic!("no {key}")) as u64
}

#[test]
fn sent_files_are_processes_of_the_epoch() {
    let mut daemon = Daemon::start(&[]);
    let files =
        ["basic.mtrc", "basic.mpt", "basic32-be.mtrc", "recursion-be64.mpt", "edge/trail.mtrc", "edge/ptrail.mpt"];
    let kept: Vec<PathBuf> = files.map(|file| stored_path(&sent(&daemon, &golden(file)).success())).into();
    for (file, kept) in files.iter().zip(&kept) {
        let (name, end) = if file.ends_with("mpt") { ("profile.mptl", b"MPTL") } else { ("trace.mtrc", b"MTRC") };
        let (came, bytes) = (read(golden(file)).expect("a sample"), read(kept.join(name)).expect("a file"));
        assert!(came.starts_with(&bytes) && bytes.ends_with(end), "{file}");
        assert_eq!(came.len() > bytes.len(), file.contains("trail"), "{file}: bytes after the end are not part of it");
        let (alone, process) = (daemon.report(&[golden(file)]), daemon.report(std::slice::from_ref(kept)));
        let (alone, process) = (&alone.processes[0], &process.processes[0]);
        assert_eq!(
            (alone.allocs, alone.frees, alone.bytes_allocated, alone.live_bytes, alone.peak_bytes),
            (process.allocs, process.frees, process.bytes_allocated, process.live_bytes, process.peak_bytes),
            "{file}"
        );
    }
    daemon.query(&["epoch"]);
    let epochs = daemon.epochs(&[]);
    let report = daemon.report(&epochs);
    assert_eq!(report.all("heaptape").filter(|process| process.complete && process.allocs > 0).count(), files.len());
    assert!(daemon.leaks(&epochs).iter().any(|leak| leak.functions().starts_with(&["grow", "build_index", "main"])));
    let sites = daemon.heaptape(&["sites"], &epochs).success();
    assert!(sites.text().contains("cache_fill < main"), "{sites}");
    let whole = daemon.heaptape(&["verify"], &epochs).success();
    assert!(whole.text().contains("26 allocations, 0 resizes, 16 frees"), "{whole}");
    assert_eq!((status(&daemon, "streams_total"), status(&daemon, "streams_cut_total")), (files.len() as u64, 0));
    assert_eq!(daemon.epochs(&["--program", "heaptape"]).len(), files.len());
    assert!(daemon.ctl(&["metrics"]).text().contains("heaptape_streams_total 6\n"));
    assert!(daemon.ctl(&["status"]).text().contains("0 incoming, 6 stored (0 incomplete"));
    // Packed, labelled, through a pipe.
    let mut command = std::process::Command::new(test_env::command());
    command.args(["send", "--socket"]).arg(daemon.socket()).env("HEAPTAPE_LABEL", "nightly");
    let packed = zstd::encode_all(&read(golden("names.mtrc")).expect("a sample")[..], 3).expect("packed");
    let labelled = stored_path(&finish(command, &packed).success());
    assert_eq!(daemon.epochs(&["--label", "nightly"]), std::slice::from_ref(&labelled));
    assert_eq!(read(labelled.join("trace.mtrc")).ok(), read(golden("names.mtrc")).ok());
    daemon.stop();
    daemon.assert_complete();
    assert_eq!(std::fs::read_dir(daemon.state().join("streams")).map_or(9, Iterator::count), 0, "nothing is left over");
}

/// Of a truncated stream everything is stored. Of a corrupt one everything before the error is
/// stored, and the error is reported.
#[test]
fn truncated_and_corrupt_streams_are_kept_to_the_last_record() {
    let daemon = Daemon::start(&[]);
    let folder = test_env::folder();
    let made = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).expect("a file");
        path
    };
    let (trace, profile) =
        (read(golden("usedebug.mtrc")).expect("a sample"), read(golden("basic.mpt")).expect("a sample"));
    let truncated_trace = sent(&daemon, &made("truncated", &trace[..trace.len() / 2])).exits(1);
    let truncated_profile = sent(&daemon, &made("truncated", &profile[..profile.len() - 300])).exits(1);
    for (output, name, bytes) in
        [(&truncated_trace, "trace.mtrc", trace.len() / 2), (&truncated_profile, "profile.mptl", profile.len() - 300)]
    {
        assert!(output.error().contains("incomplete") && output.error().contains("it ends here"), "{output}");
        assert_eq!(read(stored_path(output).join(name)).map_or(0, |kept| kept.len()), bytes);
        let checked = daemon.heaptape(&["verify"], &[stored_path(output)]).exits(1);
        assert!(
            checked.text().contains("is truncated at offset") && !checked.text().contains("kept up to"),
            "{checked}"
        );
    }
    let (_, ending) = mptl::Profile::read(&profile[..profile.len() - 300]).expect("a profile");
    let Ending::Truncated { offset, field } = ending else { panic!("{ending:?}") };
    assert!(truncated_profile.error().contains(&format!("MPTL: offset {offset}: {field}:")), "{truncated_profile}");
    // Valid bytes, then garbage.
    let good = trace.len() - 4;
    let wrong = [&trace[..good], b"\xffgarbage", &trace[..]].concat();
    let output = sent(&daemon, &made("wrong", &wrong)).exits(1);
    let why = format!("MTRC: offset {good}: record: 255");
    assert!(output.error().contains(&why), "{output}");
    assert_eq!(read(stored_path(&output).join("trace.mtrc")).ok(), Some(trace[..good].to_vec()));
    let before = daemon.report(&[golden("usedebug.mtrc")]).processes[0].events();
    assert_eq!(daemon.report(&[stored_path(&output)]).processes[0].events(), before, "every record before it");
    let mut wrong = profile.clone();
    let end = wrong.len() - 4;
    wrong[end..].copy_from_slice(b"????");
    let output = sent(&daemon, &made("wrong", &wrong)).exits(1);
    assert!(output.error().contains(&format!("MPTL: offset {end}: end mark: not the expected magic")), "{output}");
    assert!(daemon.report(&[stored_path(&output)]).processes[0].allocs > 0);
    let output = sent(&daemon, &golden("edge/pcycle.mpt")).exits(1);
    assert!(output.error().contains("parent index") && output.error().contains("form a loop"), "{output}");
    // The epoch reports it, too.
    daemon.query(&["epoch"]);
    let checked = daemon.heaptape(&["verify"], &daemon.epochs(&[])).exits(1);
    assert!(checked.text().contains("kept up to what could be read") && checked.text().contains(&why), "{checked}");
    assert_eq!((status(&daemon, "streams_total"), status(&daemon, "streams_cut_total")), (5, 5));
    // Nothing in these can be read.
    for bytes in [
        &b"MTRC\x05\0\0\0\0\0\0\0\0\0\0\0"[..],
        b"MTRC",
        b"MP",
        &profile[..12],
        &read(golden("edge/ver10600.mtrc")).expect("a sample"),
    ] {
        let output = sent(&daemon, &made("none", bytes)).exits(2);
        let error = output.error();
        assert!(
            error.contains("the daemon at /")
                && error.contains("stored nothing")
                && (error.contains(": M") || error.contains("ends within its first four bytes")),
            "{output}"
        );
    }
    assert_eq!(status(&daemon, "streams_refused_total"), 5);
    // A file of another format is not a stream.
    sent(&daemon, &made("other", b"GIF89a")).exits(2);
}

/// A sender of one byte at a time, and one that stops, beside a program that is recorded.
#[test]
fn slow_sender_delays_nobody() {
    let mut daemon = Daemon::start(&["--mode", "trace", "--stream-idle", "5s", "--overflow", "wait:2s"]);
    let trace = read(golden("usedebug.mtrc")).expect("a sample");
    let (slow, silent) = (Sender::to(&daemon), Sender::to(&daemon));
    silent.say(&trace[..30]).expect("it is heard");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for byte in &trace {
                slow.say(&[*byte]).expect("it is heard");
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let own = std::process::id();
        let coming = || {
            let Value::Array(all) = daemon.query(&["list"]) else { panic!("a list was expected") };
            all.into_iter()
                .filter(|one| one["pid"] == own && one["mode"] == "stream" && one["received"].as_u64() > Some(9))
                .count()
        };
        until("both are listed", || coming() == 2);
        let listed = daemon.ctl(&["list"]).success();
        assert!(listed.text().contains("received"), "{listed}");
        daemon.ctl(&["show", &own.to_string()]).exits(2);
        for _ in 0..5 {
            daemon.run(&target::c("pairs"), &["20000", "2"]).success();
        }
    });
    let answer = slow.answer();
    assert_eq!(
        (answer["whole"].clone(), answer["bytes"].as_u64()),
        (Value::Bool(true), Some(trace.len() as u64)),
        "{answer}"
    );
    until("the silent one is ended", || status(&daemon, "streams") == 0);
    let answer = silent.answer();
    assert!(answer["why"].as_str().is_some_and(|why| why.contains("no byte arrived for 5s")), "{answer}");
    assert_eq!(daemon.query(&["status"])["budgets_hit"]["stream-idle"], 1);
    daemon.stop();
    let report = daemon.report(&daemon.epochs(&[]));
    let pairs: Vec<_> = report.all("pairs").collect();
    assert_eq!(pairs.len(), 5);
    assert!(pairs.iter().all(|one| one.complete && one.lost_events == 0 && one.allocs >= 20_000), "{pairs:#?}");
}

#[test]
fn stream_sizes_and_counts_are_bounded() {
    let daemon = Daemon::start(&["--stream-bytes", "5000", "--user-stream-bytes", "12000", "--streams", "4"]);
    let trace = read(golden("names.mtrc")).expect("a sample");
    for budget in ["stream-bytes", "stream-bytes", "user-stream-bytes"] {
        let output = sent(&daemon, &golden("names.mtrc")).exits(1);
        assert!(output.error().contains(&format!("its budget ({budget}) of")), "{output}");
        let kept = read(stored_path(&output).join("trace.mtrc")).expect("a trace");
        assert!(trace.starts_with(&kept) && !kept.is_empty() && kept.len() <= 5000, "{}", kept.len());
        assert!(daemon.report(&[stored_path(&output)]).processes[0].allocs > 0);
    }
    let output = sent(&daemon, &golden("basic.mtrc")).exits(2);
    assert!(output.error().contains("its user has sent"), "{output}");
    let hits = daemon.query(&["status"])["budgets_hit"].clone();
    assert_eq!((hits["stream-bytes"].as_u64(), hits["user-stream-bytes"].as_u64()), (Some(2), Some(2)), "{hits}");
    // A new epoch has a new budget. Then one user sends more streams at once than allowed.
    daemon.query(&["epoch"]);
    for file in ["basic.mtrc", "sizes.mtrc", "deep.mtrc", "realloc.mtrc"] {
        sent(&daemon, &golden(file)).success();
    }
    let output = sent(&daemon, &golden("basic.mtrc")).exits(2);
    assert!(output.error().contains("4 streams in this epoch"), "{output}");
    let daemon = Daemon::start(&[]);
    let open: Vec<Sender> = (0..20).map(|_| Sender::to(&daemon)).collect();
    for one in &open {
        one.say(&trace[..100]).expect("it is heard");
    }
    until("sixteen come", || status(&daemon, "streams") == 16 && status(&daemon, "streams_refused_total") == 4);
    drop(open);
    until("all are over", || status(&daemon, "streams_total") == 16);
}

/// The daemon's memory does not grow with what comes.
#[test]
fn long_stream_needs_constant_memory() {
    let daemon = Daemon::start(&[]);
    let peak = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("it lives");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
        line.trim().trim_end_matches(" kB").parse::<usize>().expect("a number") << 10
    };
    sent(&daemon, &golden("names.mtrc")).success();
    let before = peak();
    let mut writer = mtrc::Writer::new(mtrc::Options::default());
    let mut bytes = Vec::new();
    writer.header(&mut bytes);
    for index in 1..=1_000_000 {
        writer.alloc(
            &mut bytes,
            mtrc::Block { index, address: index << 20, size: 99 },
            &mtrc::Location::thread(1 << 40),
        );
    }
    writer.end(&mut bytes);
    let long = test_env::folder();
    let path = long.path().join("long");
    std::fs::write(&path, &bytes).expect("a file");
    sent(&daemon, &path).success();
    let grown = peak() - before;
    assert!(bytes.len() > 16 << 20 && grown < 4 << 20, "{} bytes sent, {grown} bytes more", bytes.len());
}

/// A stream is stored in the folder of its sender, whose user the kernel reports.
#[test]
fn stream_of_another_user_is_stored_in_a_private_folder() {
    if !is_root() {
        eprintln!("not root: other users are not tried");
        return;
    }
    let folder = test_env::folder();
    let open = |path: &Path| std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("rights");
    open(folder.path());
    let [command, file] = [(test_env::command(), "heaptape"), (&golden("basic.mtrc"), "basic")].map(|(from, name)| {
        let to = folder.path().join(name);
        test_env::copy(from, &to);
        open(&to);
        to
    });
    let send_as_other = |daemon: &Daemon| {
        open(daemon.state().parent().expect("a folder"));
        std::fs::set_permissions(daemon.socket(), std::fs::Permissions::from_mode(0o666)).expect("rights");
        open(daemon.socket().parent().expect("a folder"));
        let mut arguments = std::process::Command::new("setpriv");
        arguments.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(&command);
        arguments.args(["send", "--socket"]).arg(daemon.socket()).arg(&file);
        finish(arguments, b"")
    };
    let daemon = Daemon::start(&[]);
    let kept = stored_path(&send_as_other(&daemon).success());
    assert!(kept.starts_with(daemon.state().join("65534")), "{}", kept.display());
    for path in [kept.clone(), kept.join("trace.mtrc")] {
        let about = path.metadata().expect("it is there");
        assert_eq!((about.uid(), about.mode() & 0o007), (0, 0), "{}", path.display());
    }
    let alone = Daemon::start(&["--all-users", "false"]);
    let output = send_as_other(&alone).exits(2);
    assert!(output.error().contains("serves only its own user"), "{output}");
    assert!(!alone.state().join("65534").exists());
}

/// The part of a stream that a daemon received before it ended, or was killed, is stored.
#[test]
fn stream_is_kept_when_its_daemon_ends() {
    let mut daemon = Daemon::start(&[]);
    let trace = read(golden("usedebug.mtrc")).expect("a sample");
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        let sender = Sender::to(&daemon);
        sender.say(&trace[..1000]).expect("it is heard");
        let came = |daemon: &Daemon| {
            let Value::Array(all) = daemon.query(&["list"]) else { panic!("a list was expected") };
            all.iter().any(|one| one["received"] == 1000)
        };
        until("it comes", || came(&daemon));
        daemon.replace(signal);
        if signal == Signal::SIGTERM {
            let answer = sender.answer();
            assert!(answer["why"].as_str().is_some_and(|why| why.contains("the daemon ended")), "{answer}");
        }
        until("it is kept", || !daemon.epochs(&["--last", "1"]).is_empty() && status(&daemon, "streams") == 0);
    }
    daemon.stop();
    let report = daemon.report(&daemon.epochs(&[]));
    assert_eq!(report.processes.len(), 2, "{report:#?}");
    assert!(report.processes.iter().all(|one| one.allocs > 0 && !one.complete), "{report:#?}");
    let output: String = daemon
        .epochs(&[])
        .iter()
        .map(|epoch| daemon.heaptape(&["verify"], std::slice::from_ref(epoch)).text())
        .collect();
    assert!(
        output.contains("the daemon was killed during the reception") && output.contains("the daemon ended"),
        "{output}"
    );
}

/// Connects to a stream socket, sends the file of its second argument in blocks of different sizes,
/// and prints the answer.
const CLIENT: &str = "
import socket, sys
client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
client.connect(sys.argv[1])
data = sys.argv[3].encode() + open(sys.argv[2], 'rb').read()
sizes = [1, 2, 3, 700, 5, 40000]
try:
    while data:
        client.sendall(data[:sizes[0]])
        data = data[sizes[0]:]
        sizes = sizes[1:] + sizes[:1]
    if sys.argv[4] == 'shut':
        client.shutdown(socket.SHUT_WR)
except (BrokenPipeError, ConnectionResetError):
    pass  # It has heard enough.
answer = b''
while part := client.recv(4096):
    answer += part
sys.stdout.write(answer.decode())
";

/// Sends `before` and a file by a Python client over the stream socket. `end` states whether the
/// client shuts down its side.
fn by_python(daemon: &Daemon, file: &Path, before: &str, end: &str) -> Value {
    let mut command = std::process::Command::new(test_env::need("python3"));
    command.args(["-c", CLIENT]).arg(daemon.stream_socket()).arg(file).args([before, end]);
    let output = finish(command, b"").success();
    assert!(output.text().ends_with("}\n"), "{output}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output}"))
}

#[test]
fn stream_sockets_accept_traces_and_profiles() {
    let mut daemon = Daemon::start(&["--stream-bytes", "200000"]);
    // A profile's own end mark ends it too.
    for (file, end) in [("basic.mtrc", "shut"), ("basic.mpt", "shut"), ("basic.mpt", "open")] {
        let answer = by_python(&daemon, &golden(file), "", end);
        let name = if file.ends_with("mpt") { "profile.mptl" } else { "trace.mtrc" };
        assert_eq!(answer["whole"], true, "{file}, {end}: {answer}");
        let kept = Path::new(answer["folder"].as_str().expect("a folder")).join(name);
        assert_eq!(read(kept).ok(), read(golden(file)).ok(), "{file}");
    }
    let mut netcat = std::process::Command::new(test_env::need("nc"));
    netcat.arg("-N").arg("-U").arg(daemon.stream_socket());
    let output = finish(netcat, &read(golden("usedebug.mtrc")).expect("a sample")).success();
    assert!(output.text().contains("\"whole\":true") && output.text().ends_with('\n'), "{output}");
    // Truncated, corrupt, of another format, and too long.
    let folder = test_env::folder();
    let made = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).expect("a file");
        path
    };
    let trace = read(golden("usedebug.mtrc")).expect("a sample");
    let answer = by_python(&daemon, &made("truncated", &trace[..trace.len() / 2]), "", "shut");
    assert!(answer["why"].as_str().is_some_and(|why| why.contains("it ends here")), "{answer}");
    let wrong = [&trace[..trace.len() - 4], b"\xff"].concat();
    let answer = by_python(&daemon, &made("wrong", &wrong), "", "shut");
    assert!(answer["why"].as_str().is_some_and(|why| why.contains("record: 255")), "{answer}");
    let answer = by_python(&daemon, &made("other", b"GIF89a"), "", "shut");
    assert!(answer["error"].as_str().is_some_and(|why| why.contains("neither a trace")), "{answer}");
    let mut writer = mtrc::Writer::new(mtrc::Options::default());
    let mut bytes = Vec::new();
    writer.header(&mut bytes);
    (1..=100_000).for_each(|index| {
        writer.alloc(&mut bytes, mtrc::Block { index, address: index << 20, size: 99 }, &mtrc::Location::thread(1))
    });
    writer.end(&mut bytes);
    let answer = by_python(&daemon, &made("long", &bytes), "", "shut");
    assert!(answer["why"].as_str().is_some_and(|why| why.contains("stream-bytes")), "{answer}");
    assert_eq!(answer["bytes"].as_u64().map(|bytes| bytes <= 200_000), Some(true), "{answer}");
    // Silent connections of a user delay nobody, and only a few are kept.
    let silent: Vec<_> = (0..100)
        .map(|_| std::os::unix::net::UnixStream::connect(daemon.stream_socket()).expect("it listens"))
        .collect();
    assert_eq!(by_python(&daemon, &golden("basic.mtrc"), "", "shut")["whole"], true);
    until("silent ones are counted", || daemon.query(&["status"])["budgets_hit"]["connections"].as_u64() >= Some(84));
    drop(silent);
    daemon.stop();
    assert!(!daemon.stream_socket().exists());
}

/// A stream is stored under the name of its program.
#[test]
fn sent_files_have_the_name_of_their_program() {
    let mut daemon = Daemon::start(&[]);
    let send = |name: &str, file: &Path| {
        let mut arguments = vec!["send".as_ref(), "--socket".as_ref()];
        let socket = daemon.socket();
        arguments.extend([socket.as_os_str(), "--name".as_ref(), name.as_ref(), file.as_os_str()]);
        heaptape(arguments)
    };
    let kept = stored_path(&send("/usr/bin/ls", &golden("basic.mtrc")).success());
    let name = kept.file_name().expect("a name").to_string_lossy().into_owned();
    assert!(name.ends_with(".ls"), "{name}");
    assert_eq!(daemon.epochs(&["--program", "ls"]), std::slice::from_ref(&kept));
    let about = daemon.report(&daemon.epochs(&[])).processes.remove(0);
    assert_eq!((about.exe.as_str(), about.complete), ("/usr/bin/ls", true));
    // A name changes neither a path nor a line of a log.
    let wild = stored_path(&send("../../x/..\n\u{1b}[31m", &golden("basic.mpt")).success());
    assert_eq!(wild.parent(), kept.parent());
    assert!(
        wild.file_name()
            .expect("a name")
            .to_string_lossy()
            .bytes()
            .all(|byte| b"._-[".contains(&byte) || byte.is_ascii_alphanumeric())
    );
    assert!(!daemon.ctl(&["list"]).text().contains('\u{1b}') && !daemon.log().contains('\u{1b}'));
    // Over the stream socket the same line of JSON does it.
    let line = "{\"name\": \"sqlite3\", \"label\": \"nightly\"}\n";
    let answer = by_python(&daemon, &golden("names.mtrc"), line, "shut");
    let folder_of = |answer: &Value| PathBuf::from(answer["folder"].as_str().unwrap_or_default());
    assert_eq!(daemon.epochs(&["--program", "sqlite3"]), [folder_of(&answer)]);
    assert_eq!(daemon.epochs(&["--label", "nightly"]), [folder_of(&answer)]);
    assert_eq!(read(folder_of(&answer).join("trace.mtrc")).ok(), read(golden("names.mtrc")).ok(), "without the line");
    for (line, why) in
        [("{\"name\": 7}\n", "the line that describes the file"), ("{x", "nothing"), (&"{".repeat(5000), "4096")]
    {
        let answer = by_python(&daemon, &golden("basic.mtrc"), line, "shut");
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(
            error.contains(why) || (why == "nothing" && error.contains("the line that describes the file")),
            "{answer}"
        );
    }
    // A file of a recording has the name of its program.
    let recorded = heaptape_tests::Program::new(target::c("small")).recorded();
    let trace = recorded.files("trace.mtrc").remove(0);
    let kept = stored_path(&sent(&daemon, &trace).success());
    assert!(kept.to_string_lossy().ends_with(".small"), "{}", kept.display());
    let cut = read(golden("usedebug.mtrc")).expect("a sample");
    let other = test_env::folder();
    std::fs::write(other.path().join("cut"), &cut[..cut.len() / 2]).expect("a file");
    sent(&daemon, &other.path().join("cut")).exits(1);
    daemon.query(&["epoch"]);
    let epoch = daemon.epochs(&[]).remove(0);
    let report = daemon.heaptape(&["report"], std::slice::from_ref(&epoch)).success();
    let head = format!("processes of {}", epoch.file_name().expect("a name").to_string_lossy());
    assert!(report.text().contains(&head), "{report}");
    assert!(report.text().contains("ls, sent completely") && !report.text().contains("end not recorded"), "{report}");
    daemon.stop();
}

#[test]
fn answers_tell_what_is_not_kept() {
    let mut daemon = Daemon::start(&[]);
    let (folder, trace) = (test_env::folder(), read(golden("basic.mtrc")).expect("a trace"));
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).expect("a file");
        path
    };
    let twice = by_python(&daemon, &file("twice", &[&trace[..], &trace].concat()), "", "shut");
    assert_eq!((&twice["whole"], twice["bytes"].as_u64()), (&Value::Bool(true), Some(trace.len() as u64)), "{twice}");
    assert_eq!(twice["dropped"].as_u64(), Some(trace.len() as u64), "{twice}");
    let once = by_python(&daemon, &file("once", &trace), "", "shut");
    assert_eq!(once["dropped"], 0, "{once}");
    let cut = by_python(&daemon, &file("cut", b"M"), "", "shut");
    assert_eq!(cut["error"], "it ends within its first four bytes, which tell a trace from a profile", "{cut}");
    daemon.stop();
}
