//! SIGKILL of a recorder loses no event that it has read: what is not in the tape yet is in the
//! journal, and in the rings.

use heaptape_tests::daemon::Running;
use heaptape_tests::recording::heaptape;
use heaptape_tests::run::survivor;
use heaptape_tests::wait::until;
use heaptape_tests::{Daemon, Program, Report, is_full, is_root, own, target, test_env, torture};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Returns the number of events by the program's own count. Each thread has one allocation more.
fn events(file: &Path) -> u64 {
    let own = own::sum(&own::read(file));
    own.allocs + own.resizes + own.frees
}

/// Returns times that differ from round to round and from run to run.
fn moment(round: usize) -> Duration {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |time| time.subsec_micros());
    Duration::from_micros((u64::from(now) * 7919 + round as u64 * 104_729) % 400_000)
}

/// Kills the daemon repeatedly; the program and the fd store continue. Checks that the epochs
/// together hold each event once. Returns their number. The program is so slow that a ring has
/// space for the events of ten seconds.
fn epochs_add_up(threads: u64, rounds: usize, restart: impl Fn(&mut Daemon)) -> usize {
    let temporary = test_env::folder();
    let file = temporary.path().join("own");
    let mut daemon = Daemon::start(&["--mode", "trace"]);
    let mut command = daemon.command(&target::c("paces"));
    let child =
        command.args(["30000", &threads.to_string(), "10"]).env("OWN_FILE", &file).spawn().expect("the program starts");
    let mut program = Running(child);
    // A program whose daemon is killed before the first answer runs unrecorded.
    until("the program is served", || daemon.list("paces").len() == 1);
    for round in 0..rounds {
        std::thread::sleep(moment(round));
        if program.0.try_wait().expect("a child").is_some() {
            break;
        }
        restart(&mut daemon);
        until("the program is served again", || {
            daemon.list("paces").len() == 1 || program.0.try_wait().expect("a child").is_some()
        });
    }
    assert!(program.0.wait().expect("it ends").success());
    daemon.stop();
    let epochs = daemon.epochs(&[]);
    let Told { emitted, recorded, lost, parts } = told(&daemon, &epochs);
    let own = events(&file);
    assert!(
        (own..own + threads).contains(&emitted),
        "{own} events happened, {emitted} are accounted for ({recorded} recorded, {lost} lost)\n{parts:?}\n{}",
        daemon.log()
    );
    assert_eq!(emitted, recorded + lost);
    assert_eq!(lost, 0, "recorded and lost of each epoch: {parts:?}\n{}", daemon.log());
    epochs.len()
}

#[test]
fn sigkill_of_the_daemon_loses_and_doubles_nothing() {
    let rounds = if is_full() { 1_000 } else { 10 };
    let mut left = rounds;
    while left > 0 {
        assert!(epochs_add_up(2, left.min(20), Daemon::restart) > 1);
        left -= left.min(20);
    }
    torture::passed(4, "SIGKILLs of a daemon, no event lost and none doubled", rounds as u64);
}

/// As in Kubernetes, where nothing outlives the daemon's container but the programs.
#[test]
fn sigkill_of_the_daemon_with_its_store_loses_and_doubles_nothing() {
    if !is_root() {
        return;
    }
    assert!(epochs_add_up(2, 3, |daemon| daemon.restart_without_store("")) > 1);
}

/// What the epochs of a daemon say of a program's events together, and of each part of the program.
struct Told {
    emitted: u64,
    recorded: u64,
    lost: u64,
    /// Recorded and lost events.
    parts: Vec<(u64, u64)>,
}

fn told(daemon: &Daemon, epochs: &[PathBuf]) -> Told {
    let mut told = Told { emitted: 0, recorded: 0, lost: 0, parts: Vec::new() };
    for epoch in epochs {
        let verdict = heaptape(["verify".as_ref(), epoch.as_os_str()]);
        assert!(!verdict.text().contains("the events say"), "{verdict}");
        for process in &daemon.report(std::slice::from_ref(epoch)).processes {
            process.assert_accounting();
            told.emitted += process.emitted_events;
            told.recorded += process.recorded_events;
            told.lost += process.lost_events;
            told.parts.push((process.recorded_events, process.lost_events));
        }
    }
    told
}

/// Kills the daemon repeatedly under a program that never rests, and at last the program. Checks that
/// the epochs together hold each event that the program has counted, once, or count it as lost. A
/// daemon is killed after it has recorded this many events. Returns the lost events of each epoch.
fn full_rate_is_accounted(overflow: &str, recorded_events: u64, rounds: usize) -> Vec<u64> {
    let temporary = test_env::folder();
    let file = temporary.path().join("own");
    let mode = format!("trace,overflow={overflow}");
    let mut daemon = Daemon::start(&["--mode", &mode, "--cpu=100000", "--keep-bytes=8GiB"]);
    let mut command = daemon.command(&target::c("pairs"));
    let child = command.args(["4000000000", "2"]).env("OWN_FILE", &file).spawn().expect("the program starts");
    let mut program = Running(child);
    until("the program is recorded", || daemon_recorded(&daemon) > recorded_events);
    for round in 0..rounds {
        if recorded_events > 0 {
            std::thread::sleep(moment(round) / 2);
        }
        daemon.restart();
        until("it is recorded again", || daemon_recorded(&daemon) > recorded_events);
    }
    program.0.kill().expect("it runs");
    program.0.wait().expect("its end");
    let own = events(&file);
    until("its end is known", || daemon.list("pairs").is_empty());
    daemon.stop();
    let epochs = daemon.epochs(&[]);
    let Told { emitted, recorded, lost, parts } = told(&daemon, &epochs);
    // Each of the two threads has an allocation more, and may have been inside of a call.
    assert!(
        (own..=own + 4).contains(&emitted) && emitted == recorded + lost,
        "{own} events happened, {emitted} are accounted for ({recorded} recorded, {lost} lost)\n{parts:?}"
    );
    eprintln!("{rounds} kills, {overflow}: {own} events, {recorded} recorded, {lost} lost, {} epochs", epochs.len());
    parts.into_iter().map(|(_, lost)| lost).collect()
}

fn daemon_recorded(daemon: &Daemon) -> u64 {
    daemon.list("pairs").iter().filter_map(|one| one["recorded"].as_u64()).sum()
}

/// Frees of blocks from before the last kill wait for an allocation until the next timestamp, and with
/// them what their thread does next. So a daemon is also killed at once after it took over.
#[test]
fn sigkill_of_the_daemon_at_full_rate_loses_nothing_where_programs_wait() {
    /// Events with which the program has freed each block from before.
    const TURNOVER: u64 = 300_000;
    let rounds = if is_full() { 100 } else { 4 };
    for (recorded_events, rounds) in [(0, 2 * rounds), (TURNOVER, rounds)] {
        let lost = full_rate_is_accounted("wait:30s", recorded_events, rounds);
        assert!(lost.iter().all(|lost| *lost == 0), "{lost:?}");
    }
    torture::passed(4, "SIGKILLs of a daemon at full rate, no event of a waiting program lost", rounds as u64);
}

#[test]
fn sigkill_of_the_daemon_at_full_rate_counts_what_is_dropped() {
    let rounds = if is_full() { 100 } else { 8 };
    assert!(full_rate_is_accounted("drop", 0, rounds).iter().sum::<u64>() > 0);
    torture::passed(4, "SIGKILLs of a daemon at full rate, each dropped event counted", rounds as u64);
}

/// What a program did, and what is recorded of it.
#[derive(Debug)]
struct Counts {
    /// Events that had happened well before the kill.
    before: u64,
    /// Events of the whole run.
    all: u64,
    recorded: u64,
    lost: u64,
    /// Folders of the process.
    parts: usize,
}

/// Kills the survivor process of a command, alone or with others.
fn survivor_killed(threads: u64, round: usize, also: impl Fn(&mut std::process::Child)) -> Counts {
    let temporary = test_env::folder();
    let file = temporary.path().join("own");
    let program = Program::new(target::c("paces")).args(["40000", &threads.to_string()]).env("OWN_FILE", &file);
    let before = std::cell::Cell::new(0);
    let recording = program.recorded_while(|command, folder| {
        until("the program starts", || own::has_begun(&file));
        std::thread::sleep(Duration::from_millis(50) + moment(round) / 2);
        before.set(events(&file));
        // A recorder on a busy machine may look at the rings seldom.
        until("what has happened is read", || recorded_so_far(folder) >= before.get());
        kill(survivor(command), Signal::SIGKILL).expect("SIGKILL");
        also(command);
    });
    let verdict = recording.heaptape(&["verify"]);
    assert_eq!(verdict.code(), 1, "readable, and said to be cut: {verdict}");
    assert!(!verdict.text().contains("the events say"), "nothing is wrong with it: {verdict}");
    let report = recording.report();
    let (mut recorded, mut lost, mut parts) = (0, 0, 0);
    for process in report.all("paces") {
        process.assert_accounting();
        (recorded, lost, parts) =
            (recorded + process.recorded_events, lost + process.lost_events, parts + process.segments.len().max(1));
    }
    Counts { before: before.get(), all: events(&file), recorded, lost, parts }
}

/// Returns the number of events that can be read while a recording runs.
fn recorded_so_far(folder: &Path) -> u64 {
    let output = heaptape(["report".as_ref(), "--json".as_ref(), folder.as_os_str()]);
    let report: Option<Report> = serde_json::from_slice(&output.stdout).ok();
    report.map_or(0, |report| report.all("paces").map(|process| process.recorded_events).sum())
}

fn traced(command: &std::process::Child) -> Option<i32> {
    let id = command.id();
    let text = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children")).ok()?;
    let mut children = text.split_whitespace().filter_map(|word| word.parse::<i32>().ok());
    children.find(|pid| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe.ends_with("paces")))
}

/// The journal outlives the survivor process, the command and the program.
#[test]
fn sigkill_of_command_and_survivor_process_keeps_what_was_read() {
    let rounds = if is_full() { 300 } else { 3 };
    for round in 0..rounds {
        let with_command = |command: &mut std::process::Child| command.kill().expect("SIGKILL");
        let with_all = |command: &mut std::process::Child| {
            let pid = traced(command).expect("the program");
            command.kill().expect("SIGKILL");
            kill(Pid::from_raw(pid), Signal::SIGKILL).expect("SIGKILL");
        };
        for counts in [survivor_killed(1, round, with_command), survivor_killed(2, round, with_all)] {
            assert!(counts.recorded >= counts.before && counts.lost == 0, "{counts:?}");
        }
    }
    torture::passed(4, "SIGKILLs of a command and its recorder, all that it had read is there", 2 * rounds as u64);
}

/// The command starts another survivor process, which reads the rings on where the killed one
/// stopped: each event is recorded once. That one may be killed too.
#[test]
fn a_killed_survivor_process_is_replaced() {
    let rounds = if is_full() { 300 } else { 3 };
    for round in 0..rounds {
        let again = |command: &mut std::process::Child| {
            for kills in 0..round % 3 {
                std::thread::sleep(Duration::from_millis(300) + moment(round + kills) / 2);
                kill(survivor(command), Signal::SIGKILL).expect("SIGKILL");
            }
        };
        let counts = survivor_killed(2, round, again);
        assert!((counts.all..counts.all + 2).contains(&counts.recorded) && counts.lost == 0, "{counts:?}");
        assert!(counts.parts > 1, "{counts:?}");
    }
    torture::passed(4, "SIGKILLs of a command's recorder, each event recorded once", rounds as u64);
}

/// A survivor process that is killed while it starts is replaced as well. With several threads it
/// may have read frees that wait for their allocation, as those of all blocks from before do for a
/// moment.
#[test]
fn a_survivor_process_that_is_killed_while_it_starts_is_replaced() {
    let rounds = if is_full() { 300 } else { 4 };
    for round in 0..rounds {
        let threads = 1 + round as u64 % 2;
        let again = |command: &mut std::process::Child| {
            for kills in 0..1 + round % 3 {
                std::thread::sleep(moment(round + kills) / 20);
                kill(survivor(command), Signal::SIGKILL).expect("SIGKILL");
            }
        };
        let counts = survivor_killed(threads, round, again);
        assert!((counts.all..counts.all + 2).contains(&counts.recorded) && counts.lost == 0, "{counts:?}");
        assert!(counts.parts > 1, "{counts:?}");
    }
    torture::passed(4, "SIGKILLs of a command's recorder while it starts, each event recorded once", rounds as u64);
}
