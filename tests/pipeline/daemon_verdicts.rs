//! What the daemon's commands answer after losses, kills and restarts, and among several processes.

use heaptape_tests::daemon::Running;
use heaptape_tests::recording::heaptape;
use heaptape_tests::run::Outcome;
use heaptape_tests::wait::{until, until_some};
use heaptape_tests::{Daemon, is_root, ring, target, test_env};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::ffi::OsStr;
use std::io::{Seek, SeekFrom, Write};
use std::process::{Command, Stdio};
use std::time::Duration;

fn ask(daemon: &Daemon, arguments: &[&str]) -> Outcome {
    let control = daemon.control();
    let arguments = arguments.iter().map(OsStr::new);
    heaptape(arguments.chain([OsStr::new("--control"), control.as_os_str()]))
}

fn json(output: &Outcome) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output}"))
}

fn labelled(daemon: &Daemon, program: &str, arguments: &[&str], label: &str) -> Running {
    let mut command = daemon.command(&target::c(program));
    Running(command.args(arguments).env("HEAPTAPE_LABEL", label).spawn().expect("it starts"))
}

/// Events that are lost in one moment leave only what is older in doubt: growth since then is
/// judged, with the time.
#[test]
fn growth_after_lost_events_is_judged_since_then() {
    let daemon = Daemon::start(&[&ring(4), "--snapshot", "1s"]);
    let running = daemon.spawn(&target::c("leaks_slowly"), &["10000000", "5"], None);
    let one = || daemon.list("leaks_slowly").pop().unwrap_or_default();
    until("it is served", || one()["live_blocks"].as_u64() > Some(500));
    daemon.signal(Signal::SIGSTOP);
    std::thread::sleep(Duration::from_secs(4));
    daemon.signal(Signal::SIGCONT);
    until("the loss is known", || one()["lost"].as_u64() > Some(2000));
    let leaks = || json(&ask(&daemon, &["leaks", "--json", "--live", "leaks_slowly"]));
    let leak = |answer: &Value| -> Value {
        let leaks = answer["leaks"].as_array().cloned().unwrap_or_default();
        leaks.into_iter().find(|leak| leak["stack"].to_string().contains("\"keeps\"")).unwrap_or_default()
    };
    // On a busy machine more is lost meanwhile, and is in doubt for a while: each answer is awaited.
    let found = until_some("growth since the loss is judged", || {
        let leak = leak(&leaks());
        (leak["verdict"] == "growing" && !leak["evidence"]["judged_since"].is_null()).then_some(leak)
    });
    assert!(found["evidence"]["missing_events"].as_u64() > Some(2000), "{found:#}");
    // 200 blocks of 1,000 bytes a second at most.
    let rate = found["evidence"]["bytes_per_second"].as_f64().unwrap_or(0.0);
    assert!(rate > 1000.0 && rate < 250_000.0, "{found:#}");
    until("the text says so", || {
        let text = ask(&daemon, &["leaks", "--live", "leaks_slowly"]).text();
        text.contains("judged since ") && text.contains("events were lost before")
    });
    until("why says so", || {
        let why = ask(&daemon, &["why", "leaks_slowly"]).text();
        why.contains("growth is judged since ") && why.contains("growing")
    });
    drop(running);
}

/// After a daemon was killed, the sums of before and after cannot be compared.
#[test]
fn comparison_over_a_killed_daemon_is_refused() {
    let mut daemon = Daemon::start(&["--snapshot", "1s"]);
    let running = daemon.spawn(&target::c("leaks_slowly"), &["10000000", "1"], None);
    let live = || daemon_live(&daemon);
    until("it holds something", || live() > 200_000);
    daemon.query(&["mark", "deploy-42"]);
    until("it grows", || live() > 600_000);
    daemon.restart();
    until("it goes on", || daemon_live(&daemon) > 10_000);
    until("its growth is a lower bound", || {
        daemon.ctl(&["list", "--growth", "start"]).success().text().contains(" ≥ +")
    });
    let refused = ask(&daemon, &["diff", "--since", "deploy-42", "leaks_slowly"]).exits(2);
    assert!(refused.error().contains("is known since") && refused.text().is_empty(), "{refused}");
    daemon.query(&["mark", "after"]);
    until("it has grown since then", || daemon_live(&daemon) > 400_000);
    let answer = json(&ask(&daemon, &["diff", "--since", "after", "leaks_slowly", "--json"]).success());
    let of = |side: &str| answer[side]["live_bytes"].as_f64().unwrap_or(0.0);
    assert!(of("a") < of("b"), "{answer:#}");
    drop(running);
}

fn daemon_live(daemon: &Daemon) -> u64 {
    daemon.list("leaks_slowly").iter().filter_map(|one| one["live_bytes"].as_u64()).max().unwrap_or(0)
}

/// Of several processes with a label, the one that grows is answered for, also if another one holds
/// more; short processes that come and go disturb no answer.
#[test]
fn why_answers_for_the_process_that_grows() {
    let daemon = Daemon::start(&["--snapshot", "1s"]);
    let large = labelled(&daemon, "full_cache", &["60000", "50"], "svc");
    let leaking = labelled(&daemon, "leaks_slowly", &["10000000", "20"], "svc");
    until("both are served", || daemon.list("leaks_slowly").len() + daemon.list("full_cache").len() == 2);
    let why = |which: &str| json(&ask(&daemon, &["why", which, "--json"]));
    until("the one that grows comes first", || {
        let answer = why("svc");
        let first = &answer["processes"][0];
        first["pid"] == leaking.0.id() && first["grew"][0]["verdict"] == "growing"
    });
    let text = ask(&daemon, &["why", "svc"]).text();
    assert!(text.contains(&format!("also running: {} full_cache (", large.0.id())), "{text}");
    for _ in 0..10 {
        let mut short: Vec<_> =
            (0..8).map(|_| daemon.command(&target::c("small")).spawn().expect("it starts")).collect();
        let answer = ask(&daemon, &["why", "*"]);
        assert!([0, 3].contains(&answer.code()), "{answer}\n{}", daemon.log());
        short.iter_mut().for_each(|one| drop(one.wait()));
    }
    drop((large, leaking));
}

/// A program that has renamed itself since its start is found by the name that `ps` shows, also if
/// another one with that name is not recorded.
#[test]
fn why_knows_programs_by_the_name_that_they_have_now() {
    let daemon = Daemon::start(&["--snapshot", "1s"]);
    let name = format!("mw{}", std::process::id());
    let script = format!("printf {name} > /proc/$$/comm; read line");
    let start = |command: &mut Command| {
        let command = command.args(["-c", &script]).stdin(Stdio::piped());
        let running = Running(command.spawn().expect("a shell"));
        let comm = format!("/proc/{}/comm", running.0.id());
        until("it is renamed", || std::fs::read_to_string(&comm).is_ok_and(|comm| comm.trim() == name));
        running
    };
    let other = start(&mut Command::new("/bin/sh"));
    let recorded = start(&mut daemon.command("/bin/sh".as_ref()));
    let answer = ask(&daemon, &["why", &name]).success();
    assert!(answer.text().contains(&format!("(pid {})", recorded.0.id())), "{answer}");
    drop((other, recorded));
}

/// A daemon that is killed together with its fd store, as runtimes of containers do, leaves its
/// programs to nobody: the next one opens their memory, or counts and names them if it may not.
#[test]
fn programs_of_a_daemon_that_left_nothing_are_recorded_again_or_named() {
    let mut daemon = Daemon::start(&[]);
    let mut command = daemon.command(&target::c("leaks_slowly"));
    command.args(["10000000", "5"]).env("HEAPTAPE_LABEL", "shop").env("HEAPTAPE_MODE", "trace");
    let running = Running(command.spawn().expect("it starts"));
    until("it is served", || daemon.list("leaks_slowly").len() == 1);
    let pid = running.0.id();
    if is_root() {
        daemon.restart_without_store("");
        until("it is recorded again", || daemon.list("leaks_slowly").len() == 1);
        let again = daemon.list("leaks_slowly").remove(0);
        assert_eq!((&again["pid"], &again["label"], &again["mode"]), (&pid.into(), &"shop".into(), &"trace".into()));
        let recorded = || daemon.list("leaks_slowly")[0]["recorded"].as_u64().expect("a number");
        let before = recorded();
        until("its events are read", || recorded() > before + 100);
        let status = daemon.query(&["status"]);
        assert_eq!((&status["own"]["orphans_recorded_total"], &status["late"]), (&1.0.into(), &Value::Null));
    }
    // Without root there is no such right, and none to drop.
    daemon.restart_without_store(if is_root() { "-sys_admin,-checkpoint_restore" } else { "" });
    until("it is named", || daemon.query(&["status"])["late"][0]["pid"] == pid);
    let status = daemon.query(&["status"]);
    assert_eq!(
        (&status["late"][0]["reason"], &status["late"][0]["name"]),
        (&"orphaned".into(), &"leaks_slowly".into())
    );
    assert!(daemon.ctl(&["metrics"]).text().contains("heaptape_unrecorded_total{reason=\"orphaned\"} 1\n"));
    let log = daemon.log();
    assert!(log.contains("did not pass it on") && log.contains("CAP_CHECKPOINT_RESTORE"), "{log}");
    let refused = daemon.ctl(&["attach", &pid.to_string()]).exits(2);
    assert!(refused.error().contains("by a recorder that is gone"), "{refused}");
    drop(running);
}

/// Processes that read files of programs for the daemon have no capabilities, and can neither
/// execute nor trace; a program with a mangled file disturbs neither them nor others.
#[test]
fn readers_of_hostile_files_are_confined() {
    let folder = test_env::folder();
    let daemon = Daemon::start(&[
        "--snapshot",
        "1s",
        "--verdict-interval",
        "1s",
        "--metrics",
        &format!("unix:{}", folder.path().join("metrics").display()),
    ]);
    let mut command = Command::new(test_env::command());
    command.args(["send", "--socket"]).arg(daemon.socket()).arg("-").env("HEAPTAPE_CONFINE", "1");
    let mut reader =
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    let status = || std::fs::read_to_string(format!("/proc/{}/status", reader.id())).unwrap_or_default();
    until("it is confined", || status().contains("\nSeccomp:\t2\n"));
    let now = status();
    assert!(now.contains("\nNoNewPrivs:\t1\n") && now.contains("\nCapEff:\t0000000000000000\n"), "{now}");
    assert!(now.contains("\nCapPrm:\t0000000000000000\n"), "{now}");
    reader.kill().expect("it waits");
    reader.wait().expect("its end");
    // The end of the file, with sections and debug information, is random; the loader needs none.
    let mangled = folder.path().join("mangled");
    test_env::copy(target::c("leaks_slowly"), &mangled);
    let mut file = std::fs::File::options().write(true).open(&mangled).expect("a program");
    let length = file.metadata().expect("its size").len();
    let start = std::fs::read(&mangled).expect("a program");
    let sections = u64::from_le_bytes(start[40..48].try_into().expect("8 bytes"));
    file.seek(SeekFrom::Start(sections)).expect("its sections");
    let noise: Vec<u8> = (sections..length).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect();
    file.write_all(&noise).expect("it is written");
    drop(file);
    let spawn =
        |program: &std::path::Path| Running(daemon.command(program).args(["10000000", "5"]).spawn().expect("it runs"));
    let (hostile, healthy) = (spawn(&mangled), spawn(&target::c("leaks_slowly")));
    until("both are judged", || {
        let metrics = daemon.ctl(&["metrics"]).text();
        ["mangled", "leaks_slowly"]
            .iter()
            .all(|program| metrics.contains(&format!("heaptape_program_suspect_bytes{{program=\"{program}\"")))
            && metrics.contains("program=\"leaks_slowly\",label=\"\",site=")
            && metrics.contains("function=\"keeps\"")
    });
    assert!(daemon.ctl(&["metrics"]).text().contains("heaptape_verdict_failures_total 0\n"), "{}", daemon.log());
    drop((hostile, healthy));
}

/// Settings that would silently mean something else are refused.
#[test]
fn wrong_settings_of_the_daemon_are_refused() {
    let run = |arguments: &[&str], variable: Option<(&str, &str)>| {
        let mut command = Command::new(test_env::command());
        command.args(arguments).envs(variable);
        heaptape_tests::run::finish(command, b"")
    };
    for arguments in [&["daemon"][..], &["ctl", "status"], &["env"]] {
        let refused = run(arguments, Some(("HEAPTAPE_DIR", "relative"))).exits(2);
        assert!(refused.error().contains("HEAPTAPE_DIR 'relative': must be an absolute path"), "{refused}");
    }
    let folder = test_env::folder();
    let socket = folder.path().join("socket").display().to_string();
    let refused = run(&["daemon", "--socket", &socket, "--epoch", "0s"], None).exits(2);
    assert!(refused.error().contains("must be at least 1s"), "{refused}");
    let refused = run(&["daemon", "--socket", &socket, "--state", "/proc/x"], None).exits(2);
    assert!(refused.error().contains("/proc/x"), "{refused}");
}
