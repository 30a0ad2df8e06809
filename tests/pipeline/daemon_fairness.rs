//! One user of the daemon cannot take the service away from another: connections, starts and disk
//! space have a share per user.

use heaptape_tests::daemon::Running;
use heaptape_tests::wait::until;
use heaptape_tests::{Daemon, is_full, is_root, target, test_env, torture};
use heaptape_wire::hello::Hello;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The user that floods.
const OTHER: &str = "65534";

/// Lets every user connect to a daemon that listens in a folder of a test.
fn open_to_all(daemon: &Daemon) {
    for path in [daemon.socket().parent().expect("a folder").parent().expect("a folder"), &daemon.state()] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("rights");
    }
}

/// Starts processes of another user that flood the socket.
fn flood(daemon: &Daemon, kind: &str, processes: usize) -> Vec<Running> {
    let hello = Hello { pid: 1, page_size: 4096, address_space: u64::MAX, ..Hello::default() };
    let hello: String = hello.encode().iter().map(|byte| format!("{byte:02x}")).collect();
    let start = || {
        let mut command = Command::new(target::c("floods"));
        command.arg(daemon.socket()).args([OTHER, kind, &hello]).stdin(Stdio::null());
        Running(command.spawn().expect("it starts"))
    };
    (0..processes).map(|_| start()).collect()
}

/// Results of starts of a small program.
#[derive(Debug)]
struct Starts {
    median: Duration,
    longest: Duration,
    recorded: usize,
}

/// Starts of each phase of a test.
const STARTS: usize = 30;

/// Starts a small program again and again, which waits for its answer for at most `wait`, or else
/// for the library's own time limit.
fn starts(daemon: &Daemon, wait: Option<Duration>) -> Starts {
    let before = recorded(daemon);
    let start = |_| {
        let mut command = daemon.command(&target::c("small"));
        match wait {
            Some(wait) => command.env("HEAPTAPE_ATTACH_MS", wait.as_millis().to_string()),
            None => command.env_remove("HEAPTAPE_ATTACH_MS"),
        };
        let begun = Instant::now();
        assert!(command.status().expect("it runs").success());
        begun.elapsed()
    };
    let mut times: Vec<Duration> = (0..STARTS).map(start).collect();
    times.sort();
    until("all is over", || daemon.list("small").is_empty());
    Starts { median: times[STARTS / 2], longest: times[STARTS - 1], recorded: recorded(daemon) - before }
}

/// Processes of the small program that are in epochs of this user.
fn recorded(daemon: &Daemon) -> usize {
    daemon.query(&["epoch"]);
    let epochs = daemon.epochs(&["--user", "0"]);
    epochs.iter().map(|epoch| daemon.report(std::slice::from_ref(epoch)).all("small").count()).sum()
}

/// How often a budget was hit.
fn hits(daemon: &Daemon, budget: &str) -> u64 {
    daemon.query(&["status"])["budgets_hit"][budget].as_u64().unwrap_or(0)
}

/// What a user may do to the socket without end, and the budget that it uses up.
const FLOODS: [(&str, &str); 4] =
    [("silent", "connections"), ("hangup", "connections"), ("wrong", "connections"), ("hello", "starts")];

/// A daemon that every user may connect to; none where this test may not become another user.
fn shared_daemon() -> Option<Daemon> {
    if !is_root() {
        eprintln!("not root: other users are not tried");
        return None;
    }
    let daemon = Daemon::start(&["--mode", "trace"]);
    open_to_all(&daemon);
    Some(daemon)
}

/// While one process of a user connects in a loop, programs of another user are recorded, and the
/// user's budget is hit, counted and logged.
#[test]
fn flood_of_one_user_does_not_keep_others_out() {
    for (kind, budget) in FLOODS {
        let Some(daemon) = shared_daemon() else { return };
        let flooding = flood(&daemon, kind, 1);
        until("the flood uses up its budget", || hits(&daemon, budget) > 0);
        // A busy machine may answer slowly. The test requires an answer, not a time.
        let flooded = starts(&daemon, Some(Duration::from_secs(2)));
        drop(flooding);
        println!("{kind}: {flooded:?}");
        assert!(flooded.recorded + STARTS / 15 >= STARTS, "{kind}: {flooded:?}\n{}", daemon.log());
        assert!(daemon.log().contains(&format!("budget of {budget}: user {OTHER}")), "{kind}: {}", daemon.log());
    }
    torture::passed(64, "kinds of flood that exclude no other user", FLOODS.len() as u64);
}

/// The time that a flood of four processes adds to the median start, beside four processes that are
/// as busy without the socket.
#[test]
fn flood_adds_little_to_the_median_start() {
    if !is_full() {
        eprintln!("HEAPTAPE_FULL is not set: times are not measured");
        return;
    }
    for (kind, _) in FLOODS {
        let Some(daemon) = shared_daemon() else { return };
        let phase = |kind: &str| {
            let running = flood(&daemon, kind, 4);
            // What a user may have at once is used up by then.
            std::thread::sleep(Duration::from_secs(2));
            let found = starts(&daemon, None);
            drop(running);
            found
        };
        let quiet = starts(&daemon, None);
        // Two CPUs have other work too: a phase that it hits is measured again.
        let is_fair = |busy: &Starts, flooded: &Starts| flooded.median < busy.median + Duration::from_millis(5);
        let (mut busy, mut flooded) = (phase("elsewhere"), phase(kind));
        for _ in 0..2 {
            if is_fair(&busy, &flooded) {
                break;
            }
            (busy, flooded) = (phase("elsewhere"), phase(kind));
        }
        for (what, Starts { median, longest, recorded }) in [("quiet", &quiet), ("busy", &busy), ("flooded", &flooded)]
        {
            println!("{kind}, {what}: median {median:?}, longest {longest:?}, {recorded} of {STARTS} recorded");
        }
        assert!(flooded.recorded + STARTS / 5 >= busy.recorded, "{kind}: {flooded:?} {busy:?}\n{}", daemon.log());
        assert!(is_fair(&busy, &flooded), "{kind}: {flooded:?} {busy:?}\n{}", daemon.log());
    }
}

/// Starts a program as another user, who may read what it needs.
fn as_other(daemon: &Daemon, folder: &Path, program: &Path, arguments: &[&str], mode: &str) -> Running {
    let open = |path: &Path| std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("rights");
    open(folder);
    let [library, program] = [test_env::library(), program].map(|from| {
        let to = folder.join(from.file_name().expect("a name"));
        if !to.exists() {
            test_env::copy(from, &to);
            open(&to);
        }
        to
    });
    let mut command = Command::new("setpriv");
    command.args(["--reuid", OTHER, "--regid", OTHER, "--clear-groups", "env"]);
    command.arg(format!("LD_PRELOAD={}", library.display()));
    command.arg(format!("HEAPTAPE_SOCKET={}", daemon.socket().display()));
    command.args([&format!("HEAPTAPE_MODE={mode}"), "HEAPTAPE_ATTACH_MS=10000"]).arg(program).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null());
    Running(command.spawn().expect("it starts"))
}

/// Bytes on the disk of everything that is kept for a user.
fn stored(daemon: &Daemon, user: &str) -> u64 {
    let output = Command::new("du").args(["-s", "-B1"]).arg(daemon.state().join(user)).output().expect("du");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.split_whitespace().next().and_then(|bytes| bytes.parse().ok()).unwrap_or(0)
}

/// The daemon takes too much memory: the user whose processes take most loses first, also if the
/// largest single process is another user's. All come back when there is room.
#[test]
fn memory_is_taken_from_the_user_who_takes_most() {
    if !is_root() {
        eprintln!("not root: other users are not tried");
        return;
    }
    let folder = test_env::folder();
    let file = folder.path().join("daemon.toml");
    let limit = |memory: &str| std::fs::write(&file, format!("memory = \"{memory}\"\n")).expect("the file");
    limit("2GiB");
    let daemon = Daemon::start(&["--config", file.to_str().expect("a path")]);
    open_to_all(&daemon);
    let (of_root, of_others) = ("leaks_slowly", "full_cache");
    let large = daemon.spawn(&target::c(of_root), &["1000000", "0"], None);
    let blocks = |name: &str| daemon.list(name).iter().filter_map(|one| one["live_blocks"].as_u64()).min().unwrap_or(0);
    until("it has many blocks", || blocks(of_root) > 60_000);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(large.0.id() as i32), nix::sys::signal::Signal::SIGSTOP)
        .expect("it runs");
    let small: Vec<_> =
        (0..4).map(|_| as_other(&daemon, folder.path(), &target::c(of_others), &["40000", "5"], "profile")).collect();
    until("all of them have some", || daemon.list(of_others).len() == 4 && blocks(of_others) > 39_000);
    assert!(blocks(of_root) > blocks(of_others), "{}", daemon.ctl(&["list"]));
    limit("1MiB");
    daemon.query(&["reload"]);
    let held = || -> Vec<u64> {
        let Value::Array(all) = daemon.query(&["list"]) else { panic!("a list was expected") };
        all.iter().filter(|one| one["held"] == "memory").filter_map(|one| one["uid"].as_u64()).collect()
    };
    until("one is held down", || !held().is_empty());
    limit("2GiB");
    daemon.query(&["reload"]);
    let first = held();
    assert!(first.iter().filter(|uid| **uid == 0).count() < first.len().min(4), "{first:?}\n{}", daemon.log());
    let line = daemon.log().lines().find(|line| line.contains("budget of memory")).map(str::to_owned);
    assert!(line.as_ref().is_some_and(|line| line.contains(of_others)), "{line:?}");
    until("all come back", || held().is_empty());
    assert!(daemon.log().contains("there is room again"), "{}", daemon.log());
    let list = daemon.ctl(&["list"]);
    assert!(!list.text().contains(" off "), "{list}");
    drop((large, small));
}

/// What the daemon needed for processes that have ended is free again, and nobody else loses his
/// recording for it.
#[test]
fn memory_of_ended_processes_is_given_back() {
    let folder = test_env::folder();
    let file = folder.path().join("daemon.toml");
    let limit = |bytes: f64| std::fs::write(&file, format!("memory = \"{bytes:.0}\"\n")).expect("the file");
    limit(2e9);
    let daemon = Daemon::start(&["--config", file.to_str().expect("a path")]);
    let resident = || {
        let text = std::fs::read_to_string(format!("/proc/{}/statm", daemon.pid())).expect("its memory");
        let pages: Vec<f64> = text.split(' ').skip(1).take(2).map(|pages| pages.parse().expect("a number")).collect();
        (pages[0] - pages[1]) * 4096.0
    };
    let stays = daemon.spawn(&target::c("full_cache"), &["40000", "5"], None);
    until("it has blocks", || daemon.list("full_cache").iter().any(|one| one["live_blocks"].as_u64() > Some(39_000)));
    let before = resident();
    let ends: Vec<_> = (0..6).map(|_| daemon.spawn(&target::c("leaks_slowly"), &["1000000", "0"], None)).collect();
    until("they take memory", || resident() > before + 60e6);
    let most = resident();
    drop(ends);
    until("they have ended", || daemon.list("leaks_slowly").is_empty());
    limit(before + (most - before) / 2.0);
    daemon.query(&["reload"]);
    until("it is free again", || resident() < before + (most - before) / 2.0);
    let held = daemon.list("full_cache").remove(0);
    assert_eq!((&held["held"], &held["mode"]), (&Value::Null, &"profile".into()), "{}", daemon.log());
    drop(stays);
}

/// A user who writes as much as he can keeps to his share while it is written, loses his own
/// events, and takes nothing from others.
#[test]
fn disk_share_limits_only_its_user() {
    if !is_root() {
        eprintln!("not root: other users are not tried");
        return;
    }
    const KEEP: u64 = 8 << 20;
    let mut daemon = Daemon::start(&["--keep-bytes", &KEEP.to_string()]);
    open_to_all(&daemon);
    // Root's own: more epochs than the newest three, which nothing protects but the share.
    for _ in 0..5 {
        let mut command = daemon.command(&target::c("pairs"));
        command.args(["2000", "1"]).env("HEAPTAPE_MODE", "trace");
        assert!(command.status().expect("it runs").success());
        daemon.query(&["epoch"]);
    }
    let own = daemon.epochs(&["--user", "0"]);
    assert!(own.len() >= 5, "{own:?}");
    let writer = daemon.spawn(&target::c("leaks_slowly"), &["1000000", "5"], Some("trace"));
    let folder = test_env::folder();
    let mut flood = as_other(&daemon, folder.path(), &target::c("churn"), &["0"], "trace");
    let mut most = 0;
    let held = || {
        let list = daemon.list("churn");
        list.first().is_some_and(|one| one["mode"] == "profile" && one["held"] == "disk")
    };
    until("it is held to its share", || {
        most = most.max(stored(&daemon, OTHER));
        held()
    });
    std::thread::sleep(Duration::from_secs(1));
    most = most.max(stored(&daemon, OTHER));
    let share = KEEP / 2;
    assert!(most > share / 2 && most < share + share / 2, "{most} bytes of a share of {share}");
    assert!(hits(&daemon, "disk") > 0, "{}", daemon.log());
    assert!(daemon.log().contains(&format!("user {OTHER}: the share of {share} bytes")), "{}", daemon.log());
    // Others keep their epochs, and go on.
    let one = &daemon.list("leaks_slowly")[0];
    assert_eq!((&one["mode"], &one["held"]), (&"trace".into(), &Value::Null), "{one}");
    assert!(own.iter().all(|epoch| epoch.is_dir()), "{}", daemon.log());
    flood.0.kill().expect("it runs");
    drop((flood, writer));
    until("all are over", || daemon.query(&["status"])["processes"] == 0);
    daemon.stop();
    for epoch in daemon.epochs(&[]) {
        assert!(daemon.heaptape(&["verify"], std::slice::from_ref(&epoch)).code() < 2, "{}", epoch.display());
    }
    let lost: u64 = daemon.report(&daemon.epochs(&["--user", OTHER])).all("churn").map(|one| one.lost_events).sum();
    println!("{most} bytes of a share of {share}; {lost} events lost");
}
