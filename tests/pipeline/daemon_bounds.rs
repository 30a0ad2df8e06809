//! Bounds of the daemon: floods, silence, other users, hostile names, many epochs.

use heaptape_tests::daemon::Running;
use heaptape_tests::wait::until;
use heaptape_tests::{Daemon, is_full, is_root, target, test_env, waits};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// A flood loses its own events, and none of other programs.
#[test]
fn flood_loses_only_its_own_events() {
    let mut daemon = Daemon::start(&["--events", "20000"]);
    let mut flood = daemon.spawn(&target::c("pairs"), &["3000000", "1"], Some("trace"));
    let modest = daemon.spawn(&target::c("leaks_slowly"), &["100000", "5"], Some("trace"));
    let lost = |name: &str| daemon.list(name).first().map_or(0, |one| one["lost"].as_u64().unwrap_or(0));
    until("the flood is held down", || lost("pairs") > 0 || flood_is_over(&daemon));
    until("the log names it", || {
        let log = daemon.log();
        flood_is_over(&daemon) || (log.contains("budget of events: user") && log.contains("(pairs): "))
    });
    flood.0.wait().expect("the program ends");
    until("it is over", || flood_is_over(&daemon));
    assert_eq!(lost("leaks_slowly"), 0);
    assert!(daemon.query(&["status"])["budgets_hit"]["events"].as_u64().unwrap_or(0) > 0, "{}", daemon.log());
    drop(modest);
    until("all is over", || daemon.list("leaks_slowly").is_empty());
    daemon.stop();
    let report = daemon.report(&daemon.epochs(&[]));
    let (pairs, modest) = (report.only("pairs"), report.only("leaks_slowly"));
    assert!(pairs.lost_events > 0 && modest.lost_events == 0, "{pairs:#?}{modest:#?}");
    assert_eq!(pairs.emitted_events, pairs.recorded_events + pairs.lost_events);
}

/// A burst below the budget of its user loses nothing, also if many quiet processes share the
/// budget.
#[test]
fn burst_below_the_budget_loses_nothing() {
    let daemon = Daemon::start(&["--events", "200000", "--mode", "trace"]);
    let folder = test_env::folder();
    let start = folder.path().join("start");
    // 180,000 events: less than the budget, if all of them are sent in one second.
    let burst = daemon.spawn(&target::c("bursts"), &[start.to_str().expect("a path"), "9000"], None);
    until("it is served", || daemon.list("bursts").len() == 1);
    let program = target::c("leaks_slowly");
    let quiet: Vec<_> = (0..20).map(|_| daemon.spawn(&program, &["1000", "1000"], None)).collect();
    until("all are served", || daemon.list("leaks_slowly").len() == 20);
    let seconds = || daemon.query(&["status"])["seconds"].as_u64().unwrap_or(0);
    let shared = seconds() + 2;
    until("the budget is shared", || seconds() > shared);
    std::fs::write(&start, "").expect("the burst starts");
    until("the burst is over", || daemon.list("bursts").is_empty());
    let status = daemon.query(&["status"]);
    assert_eq!(
        (&status["own"]["lost_events_total"], &status["budgets_hit"]["events"]),
        (&0.0.into(), &Value::Null),
        "{}",
        daemon.log()
    );
    drop((quiet, burst));
}

fn flood_is_over(daemon: &Daemon) -> bool {
    daemon.list("pairs").is_empty()
}

#[test]
fn processes_and_threads_are_bounded() {
    let mut daemon = Daemon::start(&["--clients", "3", "--threads", "2"]);
    let program = target::c("leaks_slowly");
    let running: Vec<_> = (0..6).map(|_| daemon.spawn(&program, &["1000", "5"], None)).collect();
    until("three are served", || daemon.list("leaks_slowly").len() == 3);
    until("three are refused", || daemon.query(&["status"])["budgets_hit"]["clients"] == 3);
    drop(running);
    until("all are over", || daemon.list("leaks_slowly").is_empty());
    daemon.run(&target::c("pairs"), &["1000", "8"]).success();
    daemon.stop();
    let report = daemon.report(&daemon.epochs(&["--program", "pairs"]));
    assert!(report.only("pairs").lost_events > 0, "threads beyond the bound are counted as lost: {report:#?}");
}

/// A daemon without descriptors refuses programs at once; each of them is counted, and the log says
/// why.
#[test]
fn programs_refused_without_descriptors_are_counted_and_logged() {
    const PROGRAMS: u64 = 60;
    let daemon = Daemon::start(&[]);
    let mut limit = std::process::Command::new("prlimit");
    limit.args(["--nofile=64", "--pid", &daemon.pid().to_string()]);
    assert!(limit.status().expect("prlimit of util-linux").success());
    // Sleeps, so that all of them are there at once.
    let program = target::c("leaks_slowly");
    let running: Vec<_> = (0..PROGRAMS).map(|_| daemon.spawn(&program, &["1000", "100"], None)).collect();
    // A daemon without descriptors cannot answer queries. The programs have been answered when they
    // sleep in `clock_nanosleep`.
    for one in &running {
        let calls = format!("/proc/{}/syscall", one.0.id());
        until("it runs", || std::fs::read_to_string(&calls).is_ok_and(|call| call.starts_with("230 ")));
    }
    drop(running);
    let own = |key: &str| daemon.query(&["status"])["own"][key].as_f64().unwrap_or(0.0) as u64;
    until("all are over", || own("processes") == 0);
    until("each is counted", || own("accepted_total") + own("refused_total") == PROGRAMS);
    let (accepted, refused) = (own("accepted_total"), own("refused_total"));
    println!("{accepted} recorded, {refused} refused");
    assert!(accepted > 0 && refused > 0, "{accepted} {refused}\n{}", daemon.log());
    assert_eq!(daemon.query(&["status"])["budgets_hit"]["descriptors"], refused, "{}", daemon.log());
    assert!(daemon.log().contains("budget of descriptors: user "), "{}", daemon.log());
}

/// Programs that start while the daemon does not answer ask for their 50 ms and no more, and run.
#[test]
fn silent_daemon_delays_programs_by_at_most_the_attach_timeout() {
    let daemon = Daemon::start(&[]);
    let program = target::c("small");
    daemon.signal(Signal::SIGSTOP);
    for _ in 0..if is_full() { 500 } else { 10 } {
        let (outcome, asked) = waits::with_library(&program, &daemon.socket());
        outcome.success();
        assert!((1..=51).contains(&asked), "{asked} ms");
    }
    daemon.signal(Signal::SIGCONT);
    assert!(daemon.ctl(&["status"]).code() == 0);
}

/// Another user can neither control the daemon nor read what it keeps; its own programs are kept
/// apart.
#[test]
fn other_users_can_neither_control_nor_read() {
    if !is_root() {
        eprintln!("not root: other users are not tried");
        return;
    }
    let daemon = Daemon::start(&[]);
    let control = daemon.socket().with_file_name("control");
    // The directories must be accessible, so that only the files are protected.
    let open = |path: &Path| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("rights");
    };
    open(daemon.state().parent().expect("a folder"));
    open(control.parent().expect("a folder"));
    let as_user = |user: &str, arguments: &[&str]| {
        let mut command = std::process::Command::new("setpriv");
        command.args(["--reuid", user, "--regid", user, "--clear-groups"]).args(arguments);
        heaptape_tests::run::finish(command, b"")
    };
    let as_other = |arguments: &[&str]| as_user("65534", arguments);
    daemon.run(&target::c("small"), &[]).success();
    let copied = test_env::folder();
    open(copied.path());
    let copied = |from: &Path, name: &str| {
        let to = copied.path().join(name);
        test_env::copy(from, &to);
        open(&to);
        to.to_str().expect("text").to_owned()
    };
    let (command, library, small) = (
        copied(test_env::command(), "heaptape"),
        copied(test_env::library(), "library.so"),
        copied(&target::c("small"), "small"),
    );
    let control = control.to_str().expect("text");
    assert_ne!(as_other(&[&command, "ctl", "--control", control, "stop"]).code(), 0);
    std::fs::set_permissions(control, std::os::unix::fs::PermissionsExt::from_mode(0o666)).expect("rights");
    let output = as_other(&[&command, "ctl", "--control", control, "stop"]).exits(2);
    assert!(output.error().contains("only root and the daemon's own user"), "{output}");
    let own = daemon.state().join("0");
    assert_ne!(as_other(&["ls", own.to_str().expect("text")]).code(), 0);
    let preload = format!("LD_PRELOAD={library}");
    let socket = format!("HEAPTAPE_SOCKET={}", daemon.socket().display());
    as_other(&["env", &preload, &socket, "HEAPTAPE_MODE=trace", &small]).success();
    until("its program is kept", || !daemon.epochs(&["--user", "65534"]).is_empty());
    daemon.query(&["epoch"]);
    let theirs = daemon.epochs(&["--user", "65534", "--program", "small"]);
    assert_eq!(theirs.len(), 1);
    let process_folder = theirs[0].to_str().expect("text");
    as_other(&[&command, "verify", process_folder]).success();
    // They find it without being able to list the users. The newest epoch is that of each user.
    let state = daemon.state().display().to_string();
    let listed = as_other(&[&command, "epochs", "--state", &state, "--program", "small"]).success();
    assert_eq!(listed.text().trim(), process_folder);
    assert_eq!(daemon.epochs(&["--last", "1", "--program", "small"]).len(), 2);
    // What other users can read they cannot replace: by a link the daemon of root would write
    // anywhere.
    for path in [theirs[0].as_path(), theirs[0].parent().expect("an epoch"), &daemon.state().join("65534")] {
        let path = path.to_str().expect("text");
        as_other(&["ls", path]).success();
        assert_ne!(as_other(&["mv", path, &format!("{path}x")]).code(), 0, "{path}");
        assert_ne!(as_other(&["touch", &format!("{path}/x")]).code(), 0, "{path}");
        assert_ne!(as_user("65533", &["ls", path]).code(), 0, "{path}");
    }
    assert_ne!(as_other(&["sh", "-c", &format!("echo >> {process_folder}/events.tape")]).code(), 0);
    assert_ne!(as_other(&["touch", daemon.state().join("x").to_str().expect("text")]).code(), 0);
}

/// Names with paths, control characters or text of a metric stay names.
#[test]
fn hostile_names_stay_names() {
    let daemon = Daemon::start(&["--metrics", "127.0.0.1:0"]);
    let directory = test_env::folder();
    let names: [&[u8]; 4] = [b"..", b"a\x1b[31m\"}\n", b"x\"} 1\n", b"\xff\xfe\n"];
    let program = target::c("leaks_slowly");
    let mut running = Vec::new();
    for (number, name) in names.iter().enumerate() {
        let folder = directory.path().join(number.to_string());
        std::fs::create_dir(&folder).expect("a folder");
        let name = if *name == b".." { b"..x" } else { *name };
        let path = folder.join(std::ffi::OsStr::from_bytes(name));
        test_env::copy(&program, &path);
        let mut command = daemon.command(&path);
        command.args(["100000", "5"]).env("HEAPTAPE_MODE", "trace").env("HEAPTAPE_LABEL", "l\"\n\x1b[2J\\");
        running.push(Running(command.spawn().expect("it starts")));
    }
    until("all are served", || daemon.query(&["status"])["processes"] == 4);
    std::thread::sleep(Duration::from_millis(300));
    for arguments in [&["list"][..], &["metrics"], &["show", &running[1].0.id().to_string()]] {
        let output = daemon.ctl(arguments).success();
        assert!(!output.stdout.contains(&0x1b), "{arguments:?}: {output}");
        if arguments == ["metrics"] {
            let strange = |line: &&str| !line.starts_with('#') && !line.starts_with("heaptape_");
            assert_eq!(output.text().lines().find(strange), None);
            let unlabelled = output.text();
            assert!(
                unlabelled.lines().filter(|line| line.starts_with("heaptape_program_processes{")).count() == 4,
                "{output}"
            );
        }
    }
    drop(running);
    until("all are over", || daemon.query(&["status"])["processes"] == 0);
    daemon.query(&["epoch"]);
    daemon.assert_complete();
    for epoch in daemon.epochs(&[]) {
        for entry in std::fs::read_dir(epoch).expect("an epoch").flatten() {
            let name = entry.file_name();
            assert!(
                name.as_bytes().iter().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(byte)),
                "{name:?}"
            );
        }
    }
    assert!(!daemon.log().contains('\x1b'));
}

/// Many epochs in short time: short processes come and go, three stay. The disk stays below its
/// bound, the newest epochs exist, and neither memory nor descriptors grow. Programs wait for the
/// daemon, so that a busy machine loses no event either.
#[test]
fn disk_memory_and_descriptors_stay_bounded_over_many_epochs() {
    let bound: u64 = 6 << 20;
    let keep = bound.to_string();
    let options = ["--epoch", "1s", "--snapshot", "200ms", "--keep-bytes", &keep, "--overflow", "wait:30s"];
    let mut daemon = Daemon::start(&options);
    let program = target::c("leaks_slowly");
    let churn = target::c("churn");
    let long = ["profile", "profile:4KiB", "trace"].map(|mode| daemon.spawn(&churn, &["1"], Some(mode)));
    let measure = |name: &str| {
        let sums = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", daemon.pid())).expect("the sums of pages");
        let line = sums.lines().find_map(|line| line.strip_prefix(name)).expect("a size");
        line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().expect("KiB")
    };
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).map_or(0, Iterator::count);
    let mut runs = 0;
    // Returns the least resident KiB, and descriptors, of so many seconds. A busy machine takes longer for
    // what the runs fill.
    let mut least = |seconds: u32| {
        let (start, mut done, mut least) = (Instant::now(), 0, (u64::MAX, usize::MAX));
        while start.elapsed().as_secs() < seconds.into() || done < 15 * seconds {
            done += 1;
            daemon.run(&program, &["3", "0"]).success();
            std::thread::sleep(Duration::from_millis(40));
            // The kernel puts the table of live blocks of a process into a huge page at any time.
            let huge = measure("AnonHugePages");
            assert!(huge <= 2048 * long.len() as u64, "{huge} KiB in huge pages");
            least = (least.0.min(measure("Rss") - huge), least.1.min(descriptors()));
        }
        runs += done;
        least
    };
    let seconds = if is_full() { 42 } else { 7 };
    // What is filled once: journals, buffers, rings, the allocator's arenas. That takes 12 s here, and 40
    // elsewhere; what grows for ever does so each time.
    least(2 * seconds);
    let (mut early, mut after) = (least(seconds), least(seconds));
    // Files that wait for a sync hold some descriptors.
    let has_grown =
        |early: (u64, usize), after: (u64, usize)| after.1 >= early.1 + 8 || after.0 > early.0 + early.0 / 20;
    for _ in 0..6 {
        if has_grown(early, after) {
            (early, after) = (after, least(seconds));
        }
    }
    println!("{runs} runs, resident KiB and descriptors: {early:?}, then {after:?}");
    assert!(!has_grown(early, after), "resident KiB and descriptors: {early:?}, then {after:?}");
    daemon.query(&["epoch"]);
    let epochs = daemon.epochs(&[]);
    assert!(epochs.len() >= 3, "{epochs:?}");
    let removed = daemon.query(&["status"])["own"]["epochs_removed_total"].as_f64().unwrap_or(0.0);
    let disk = daemon.query(&["status"])["own"]["disk_bytes"].as_f64().unwrap_or(0.0) as u64;
    assert!(disk <= bound, "{disk} bytes on disk, {removed} epochs removed");
    drop(long);
    until("all are over", || daemon.query(&["status"])["processes"] == 0);
    daemon.stop();
    daemon.assert_complete();
}
