//! A command finds the recorder of a process that runs, whoever started it where, and waits for no other.

use crate::holds_attached::Earlier;
use crate::holds_live::{UNSEEN, assert_truth, holds_of, recorded};
use heaptape_tests::daemon::Running;
use heaptape_tests::recording::heaptape;
use heaptape_tests::wait::until_some;
use heaptape_tests::{Target, is_root, test_env};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

/// Sends a signal to all processes of heaptape that record into a folder.
fn signal_recorder(dir: &Path, signal: Signal) {
    let text = dir.to_str().expect("a path").as_bytes().to_owned();
    let is_it = |pid: &i32| {
        let read = |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        read("comm").starts_with(b"heaptape") && read("cmdline").windows(text.len()).any(|part| part == text)
    };
    let pids = std::fs::read_dir("/proc").expect("processes").flatten();
    let found: Vec<i32> = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(is_it).collect();
    assert!(!found.is_empty());
    found.into_iter().for_each(|pid| kill(Pid::from_raw(pid), signal).expect("it runs"));
}

/// Runs the command, which must end by itself, and returns its exit code and what it says.
fn asked(arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(test_env::command());
    command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running(command.spawn().expect("it starts"));
    let status = until_some("it ends", || running.0.try_wait().expect("its status"));
    let mut said = String::new();
    running.0.stderr.take().expect("its messages").read_to_string(&mut said).expect("its messages");
    running.0.stdout.take().expect("its output").read_to_string(&mut said).expect("its output");
    (status.code(), said)
}

/// Starts `attach` by a command line, and returns it once the program is hooked.
fn attach(earlier: &Earlier, dir: &Path, change: impl FnOnce(&mut Command)) -> Running {
    let mut command = Command::new(test_env::command());
    command.args(["attach", "-o"]).arg(dir).arg(earlier.pid()).stderr(Stdio::piped());
    change(&mut command);
    let mut attach = Running(command.spawn().expect("it starts"));
    let mut line = String::new();
    BufReader::new(attach.0.stderr.as_mut().expect("its messages")).read_line(&mut line).expect("a line");
    assert!(line.starts_with("attached to "), "{line}");
    attach
}

/// Who asks about a process that is not there, or that nobody records, gets that as the answer, and not a
/// word about a daemon that he never wanted.
#[test]
fn a_process_that_nobody_records_is_said_to_be_that() {
    let mut child = Command::new("sleep").arg("600").spawn().expect("sleep");
    let pid = child.id().to_string();
    let (code, said) = asked(&["holds", "--live", &pid]);
    assert!(code != Some(0) && said.contains(&format!("`heaptape attach {pid}` records it from now on")), "{said}");
    child.kill().and_then(|()| child.wait()).expect("it ends");
    let (code, said) = asked(&["leaks", "--live", &pid]);
    assert!(code != Some(0) && said.contains(&format!("there is no process {pid}")), "{said}");
}

/// The copy that is read is a further process of the program's group.
#[test]
fn a_program_that_may_make_no_process_is_said_to_be_that() {
    let Some(group) = heaptape_tests::cgroup::Cgroup::full() else { return };
    let folder = test_env::folder();
    let dir = folder.path().join("r");
    let (live, pid) = recorded(&dir, &[]);
    std::fs::write(group.processes(), &pid).expect("it enters the group");
    let (code, said) = asked(&["holds", "--live", &pid]);
    assert!(code != Some(0) && said.contains("its cgroup may have no further process"), "{said}");
    assert_eq!(live.end(), UNSEEN);
}

/// The command says that the recorder is stopped, and by which process. Once it goes on, it answers.
#[test]
fn a_stopped_recorder_is_named() {
    let folder = test_env::folder();
    let dir = folder.path().join("r");
    let (live, pid) = recorded(&dir, &[]);
    signal_recorder(&dir, Signal::SIGSTOP);
    for which in [&pid, dir.to_str().expect("a path")] {
        for report in ["holds", "leaks"] {
            let (code, said) = asked(&[report, "--live", which]);
            assert!(code != Some(0) && said.contains("does not answer: it is stopped"), "{said}");
        }
    }
    signal_recorder(&dir, Signal::SIGCONT);
    // Events were lost meanwhile, so it does not judge what is lost.
    let (code, said) = asked(&["holds", "--live", &pid]);
    assert!(code == Some(0) && said.contains("live in"), "{said}");
    assert_eq!(live.end(), UNSEEN);
}

/// Which recorder an attached process has is not known, so all are asked: a stopped one delays nobody.
#[test]
fn a_stopped_recorder_of_others_delays_nobody() {
    let folder = test_env::folder();
    let stopped: Vec<_> = (0..4)
        .map(|number| {
            let dir = folder.path().join(number.to_string());
            let (live, _) = recorded(&dir, &[]);
            signal_recorder(&dir, Signal::SIGSTOP);
            (dir, live)
        })
        .collect();
    let mut earlier = Earlier::start();
    let dir = folder.path().join("r");
    let attached = attach(&earlier, &dir, |_| {});
    earlier.make_blocks();
    let (code, said) = asked(&["holds", "--live", &earlier.pid()]);
    assert!(code == Some(0) && said.contains("held"), "{said}");
    // Nor are they blamed for a process that nobody records.
    let nobody = Earlier::start();
    let (code, said) = asked(&["holds", "--live", &nobody.pid()]);
    assert!(code != Some(0) && !said.contains("stopped"), "{said}");
    for (dir, live) in stopped {
        signal_recorder(&dir, Signal::SIGCONT);
        assert_eq!(live.end(), UNSEEN);
    }
    drop(attached);
}

/// The recorder of an attached process may have another folder for its socket than the command.
#[test]
fn the_recorder_is_found_where_its_environment_put_it() {
    let folder = test_env::folder();
    let elsewhere = test_env::folder();
    let mut earlier = Earlier::start();
    let dir = folder.path().join("r");
    let place = elsewhere.path();
    let _attached = attach(&earlier, &dir, |command| {
        command.env("TMPDIR", place).env("XDG_RUNTIME_DIR", place);
    });
    earlier.make_blocks();
    let (code, said) = asked(&["holds", "--live", &earlier.pid()]);
    assert!(code == Some(0) && said.contains("held"), "{said}");
}

/// Nothing is known of an attached process that has allocated nothing since.
#[test]
fn an_attached_program_without_new_blocks_holds_none_that_are_known() {
    let folder = test_env::folder();
    let dir = folder.path().join("r");
    let earlier = Earlier::start();
    let _attached = attach(&earlier, &dir, |_| {});
    let (code, said) = asked(&["holds", "--live", &earlier.pid()]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("nothing that was allocated since the attach is live"), "{said}");
    assert!(said.contains("blocks from before are not known"), "{said}");
}

/// What an attached process allocated before is missing in `leaks` and in an answer about it: both say so,
/// while it runs and afterwards, and count their times from the attach.
#[test]
fn blocks_from_before_an_attach_are_said_to_be_unknown() {
    const UNKNOWN: &str = "blocks from before the attach are not known";
    let folder = test_env::folder();
    let dir = folder.path().join("r");
    let text = dir.to_str().expect("a path");
    let mut earlier = Earlier::start();
    let mut attached = attach(&earlier, &dir, |_| {});
    earlier.make_blocks();
    let assert_leaks = |arguments: &[&str]| {
        let (_, said) = asked(&[&["leaks", "--all"], arguments].concat());
        assert_eq!(said.matches(UNKNOWN).count(), 1, "{arguments:?}: {said}");
        assert!(said.contains(" after the attach") && !said.contains("after the start"), "{arguments:?}: {said}");
    };
    assert_leaks(&["--live", &earlier.pid()]);
    assert_leaks(&[text]);
    let (code, said) = asked(&["holds", "--live", &earlier.pid(), "--of", "make_holders"]);
    assert!(code == Some(2) && said.contains(&format!("no live block is of 'make_holders'; {UNKNOWN}: ")), "{said}");
    kill(Pid::from_raw(attached.0.id().cast_signed()), Signal::SIGINT).expect("it runs");
    assert!(attached.0.wait().expect("it ends").success());
    assert_leaks(&[text]);
}

/// Reports without references are about this moment, too, for one process and for a recording.
#[test]
fn reports_of_a_program_under_record_are_of_now() {
    let folder = test_env::folder();
    let dir = folder.path().join("r");
    let (live, pid) = recorded(&dir, &[]);
    for which in [&pid, dir.to_str().expect("a path")] {
        let report = |name: &str| -> Value {
            let outcome = heaptape([name, "--json", "--live", which]);
            assert!(outcome.code() < 2, "{name}: {outcome}");
            serde_json::from_slice(&outcome.stdout).expect("JSON")
        };
        // It is ready: all that it will have made is there.
        let leaks = report("leaks").to_string();
        assert!(leaks.contains("make_cycle"), "{leaks}");
        for name in ["sites", "peak"] {
            let found = report(name).to_string();
            assert!(found.contains("open_session"), "{name}: {found}");
        }
        assert_eq!(report("report")["processes"].as_array().map(Vec::len), Some(1));
    }
    let export = dir.with_extension("json");
    let path = export.to_str().expect("a path");
    // What the recorder writes at this moment may be half of a chunk: the export says so.
    let exported = heaptape(["export", "--format", "speedscope", "--live", &pid, "-o", path]);
    assert!(exported.code() < 2, "{exported}");
    assert!(std::fs::read_to_string(path).expect("a file").contains("open_session"));
    assert_eq!(live.end(), UNSEEN);
}

/// Root may read the recordings of all, so their recorders answer it. Another user is told whose
/// process it is.
#[test]
fn root_asks_the_recorder_of_a_user_and_not_the_other_way_round() {
    const USER: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    if !is_root() || test_env::find("setpriv").is_none() {
        return;
    }
    let folder = test_env::folder();
    std::os::unix::fs::chown(folder.path(), Some(65534), Some(65534)).expect("root");
    let (command, program) = (folder.path().join("heaptape"), folder.path().join("program"));
    test_env::copy(test_env::command(), &command);
    test_env::copy(Target::program("holds_while_it_runs.cpp").build(), &program);
    let as_user = |arguments: &[&str]| {
        let mut line = Command::new(USER[0]);
        line.args(&USER[1..]).arg(&command).args(arguments);
        // Where the user may put a socket and the library.
        line.env("TMPDIR", folder.path()).env("HOME", folder.path()).env_remove("XDG_RUNTIME_DIR");
        line.current_dir(folder.path());
        line
    };
    let mut recorder = as_user(&["record", "-q", "-o", "r", "--", program.to_str().expect("a path"), "500"]);
    let mut running = Running(recorder.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts"));
    let mut output = BufReader::new(running.0.stdout.take().expect("its output"));
    let mut line = String::new();
    output.read_line(&mut line).expect("a line");
    assert_eq!(line, "ready\n");
    let about = || std::fs::read_to_string(folder.path().join("r/recording.json")).unwrap_or_default();
    let pid = || serde_json::from_str::<Value>(&about()).ok()?["images"][0]["pid"].as_u64();
    let pid = until_some("it is listed", pid).to_string();
    assert_truth(&holds_of(&pid), 500);
    let (code, said) = asked(&["leaks", "--live", &pid]);
    assert!(code.is_some_and(|code| code < 2) && said.contains("holds_while_it_runs.cpp"), "{said}");
    drop(running.0.stdin.take());
    line.clear();
    output.read_to_string(&mut line).expect("its output");
    assert_eq!(line, UNSEEN);
    // Root's own one, asked by the user.
    let dir = folder.path().join("of-root");
    let (live, pid) = recorded(&dir, &[]);
    let refused = as_user(&["holds", "--live", &pid]).output().expect("it runs");
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && said.contains("another user"), "{said}");
    assert_eq!(live.end(), UNSEEN);
}
