//! The daemon records programs in the chosen mode, and keeps them in its epochs.

use heaptape_formats::recording::TAPE;
use heaptape_formats::tape::{self, Record, Step};
use heaptape_tests::daemon::Running;
use heaptape_tests::recording::{Leak, Report, heaptape};
use heaptape_tests::wait::until;
use heaptape_tests::{Daemon, Target, is_full, target, test_env};
use std::io::{Read as _, Write as _};
use std::process::Stdio;
use std::time::Instant;

#[test]
fn trace_mode_records_everything() {
    let mut daemon = Daemon::start(&["--mode", "trace", "--overflow", "wait:30s"]);
    let program = target::c("pairs");
    for threads in ["1", "3"] {
        daemon.run(&program, &["20000", threads]).success();
    }
    daemon.run(&target::c("fork_inherited"), &[]);
    daemon.query(&["epoch"]);
    daemon.assert_complete();
    let report = daemon.report(&daemon.epochs(&["--last", "1"]));
    let pairs: Vec<_> = report.all("pairs").collect();
    assert_eq!(pairs.len(), 2);
    for process in pairs {
        assert!(process.allocs >= 20_000 && process.complete, "{process:#?}");
    }
    assert!(report.processes.iter().filter(|process| process.name() == "fork_inherited").count() > 1, "{report:#?}");
    daemon.stop();
    daemon.assert_complete();
}

/// Static programs that a served program starts are recorded.
#[test]
fn static_children_are_recorded() {
    let mut daemon = Daemon::start(&["--mode", "trace", "--overflow", "wait:30s"]);
    let child = Target::program("small.c").flag("-static").named("small-static").build();
    let child = child.to_str().expect("a plain path");
    for how in ["execve", "posix_spawn"] {
        daemon.run(&target::c("exec_kinds"), &[how, child]).success();
    }
    daemon.query(&["epoch"]);
    let report = daemon.report(&daemon.epochs(&["--last", "1"]));
    let found: Vec<_> = report.all("small-static").collect();
    assert!(found.len() == 2 && found.iter().all(|process| process.allocs >= 100), "{report:#?}");
    daemon.stop();
    daemon.assert_complete();
}

#[test]
fn live_process_changes_through_all_modes() {
    // With few events a second, which wait for a disk that others keep busy.
    let mut daemon = Daemon::start(&["--mode", "off", "--snapshot", "300ms", "--overflow", "wait:30s"]);
    let running = daemon.spawn(&target::c("leaks_slowly"), &["100000", "5"], None);
    let pid = running.0.id().to_string();
    until("it is served", || daemon.list("leaks_slowly").len() == 1);
    let live = || daemon.list("leaks_slowly")[0]["live_blocks"].as_u64().unwrap_or(0);
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(live(), 0, "a dormant process has no counts");
    for mode in ["profile", "trace", "flight", "profile:2KiB", "trace:2KiB", "trace"] {
        daemon.query(&["mode", &pid, mode]);
        let before = live();
        until(mode, || live() > before + 20);
        daemon.query(&["snapshot", &pid]);
        assert_eq!(daemon.list("leaks_slowly")[0]["mode"], mode.replace("2KiB", "2048"));
    }
    daemon.query(&["rotate"]);
    daemon.query(&["epoch"]);
    daemon.query(&["mode", "leaks_*", "off"]);
    until("it sleeps", || live() == 0);
    daemon.query(&["mode", "all", "profile"]);
    until("it wakes", || live() > 20);
    daemon.stop();
    daemon.assert_complete();
    // The daemon has ended. The program goes on.
    drop(running);
}

/// What a program does after the end of the daemon is not recorded, and not lost.
#[test]
fn programs_that_run_on_have_lost_nothing() {
    for round in 0..4 {
        let mode = ["profile", "trace"][round % 2];
        let mut daemon = Daemon::start(&["--mode", mode, "--overflow", "wait:30s"]);
        let running = daemon.spawn(&target::c("paces"), &["100000000", "64", "1"], None);
        until("it is recorded", || {
            daemon.list("paces").iter().any(|process| process["live_blocks"].as_u64() > Some(1000))
        });
        daemon.stop();
        daemon.assert_complete();
        drop(running);
    }
}

/// A leak is found in the store while the program runs, among others that do not leak.
#[test]
fn slow_leak_is_found_in_the_store_while_the_program_runs() {
    // The long form: a block per second, one process of fifty, the default options of the daemon,
    // and each condition holds within a minute.
    let (options, others, pause): (&[&str], _, _) =
        if is_full() { (&[], 49, "1000") } else { (&["--snapshot", "500ms"], 8, "100") };
    let daemon = Daemon::start(options);
    let program = target::c("leaks_slowly");
    let quiet: Vec<_> = (0..others).map(|_| daemon.spawn(&program, &["1", "100000"], None)).collect();
    let leaking = daemon.spawn(&program, &["1000", pause], None);
    let begun = Instant::now();
    let leaks = || daemon.leaks(&daemon.epochs(&["--program", "leaks_slowly"]));
    until("the leak is in the store", || leaks().iter().any(|leak| leak.blocks > 10));
    let found = leaks();
    let named: Vec<_> = found.iter().filter(|leak| leak.blocks > 10).collect();
    assert_eq!(named.len(), 1, "{found:#?}");
    assert!(named[0].functions().starts_with(&["keeps", "main"]), "{named:#?}");
    println!("named after {:?}", begun.elapsed());
    // Sums that were looked at again and again tell growth from what merely lives, within a minute
    // too.
    let is_growth = |leak: &Leak| ["growing", "slow"].contains(&leak.verdict.as_str());
    until("it is called a growth", || leaks().iter().any(is_growth));
    println!("judged after {:?}", begun.elapsed());
    let found = leaks();
    let grown: Vec<_> = found.iter().filter(|leak| is_growth(leak)).collect();
    assert!(grown.iter().all(|leak| leak.functions().starts_with(&["keeps", "main"])), "{grown:#?}");
    assert_eq!(grown.len(), 1, "{grown:#?}");
    let shown = daemon.ctl(&["show", &leaking.0.id().to_string()]).success();
    assert!(shown.text().contains("keeps"), "{shown}");
    drop((quiet, leaking));
}

/// A flight recording holds the last events, and every block that was live.
#[test]
fn flight_recording_is_kept_when_its_process_dies() {
    let mut daemon = Daemon::start(&["--mode", "flight", "--flight-time", "800ms"]);
    let program = target::c("leaks_slowly");
    daemon.run(&program, &["20", "1"]).success();
    daemon.run(&program, &["400", "5", "1000", "abort"]);
    daemon.query(&["epoch"]);
    let report = daemon.report(&daemon.epochs(&["--last", "1"]));
    let kept: Vec<_> = report.all("leaks_slowly").collect();
    let segments: Vec<usize> = kept.iter().map(|process| process.segments.len().max(1)).collect();
    let number: usize = segments.iter().sum();
    assert!(number > 1 && number <= 6, "a quarter of the window a segment: {report:#?} {:?}", daemon.epochs(&[]));
    let last = kept.iter().max_by_key(|process| process.live_blocks).expect("a process");
    assert!(last.live_blocks >= 400, "every block that lived is there: {last:#?}");
    let events: u64 = kept.iter().map(|process| process.recorded_events).sum();
    assert!(events > 1000 && events < 400 * 15 - 1000, "only the last while: {events}");
    daemon.stop();
    daemon.assert_complete();
    assert!(!daemon.state().join("0/flight").exists());
}

/// Each segment begins at a tick with its time, also if its program had done nothing for a while: the
/// times of its events come from both.
#[test]
fn segments_of_an_idle_program_have_right_times() {
    let mut daemon = Daemon::start(&["--mode", "flight", "--flight-time", "2s"]);
    daemon.run(&target::c("leaks_slowly"), &["3", "1300", "1000", "abort"]);
    daemon.stop();
    daemon.assert_complete();
    let folders =
        daemon.epochs(&[]).into_iter().flat_map(|epoch| std::fs::read_dir(epoch).expect("an epoch").flatten());
    let tapes: Vec<_> = folders.filter_map(|folder| std::fs::read(folder.path().join(TAPE)).ok()).collect();
    assert!(tapes.len() > 2, "{} segments", tapes.len());
    for bytes in tapes {
        let (mut reader, mut start, mut known) = (tape::Reader::new(&bytes).expect("a tape"), None, Vec::new());
        while let Step::Record(_, record) = reader.step() {
            match record {
                Record::Process(process) => start = Some(process),
                Record::Clock(clock) => known.push((clock.tick, clock.unix_ns)),
                Record::End(end) => known.push((end.tick, end.unix_ns)),
                _ => {}
            }
        }
        let start = start.expect("a process");
        assert!(known.len() > 1, "{known:?}");
        for (tick, unix_ns) in known {
            let seconds = (tick - start.start_tick) as f64 / start.ticks_per_second as f64;
            let shown = unix_ns as f64 / 1e9 - (start.start_unix_ns as f64 / 1e9 + seconds);
            assert!(shown.abs() < 0.2, "{shown} s from its time, {seconds} s after the start");
        }
    }
}

/// Sample files stand for the kernel's, which may have no memory controller of version 2.
#[test]
fn flight_recording_is_kept_under_memory_pressure() {
    if !std::fs::read_to_string("/proc/self/cgroup").is_ok_and(|groups| groups.contains("0::/")) {
        eprintln!("there are no control groups of version 2");
        return;
    }
    let groups = test_env::folder();
    let write = |high: u64| {
        let text = format!("low 0\nhigh {high}\nmax 0\noom 0\noom_kill 0\n");
        std::fs::write(groups.path().join("memory.events.local"), text).expect("the sample is written");
    };
    write(7);
    let folder = groups.path().to_str().expect("a path");
    let daemon = Daemon::start(&["--mode", "flight", "--cgroups", folder]);
    let kept = || {
        let metrics = daemon.ctl(&["metrics"]).success().text();
        metrics.lines().filter(|line| line.contains("flight_kept_timestamp") && line.contains("pressure")).count()
    };
    let running = daemon.spawn(&target::c("leaks_slowly"), &["100000", "2", "5000"], None);
    until("it is served", || daemon.list("leaks_slowly").len() == 1);
    // Two looks: what was counted before is no pressure.
    std::thread::sleep(std::time::Duration::from_millis(2500));
    assert_eq!(kept(), 0);
    write(8);
    until("the flight is kept", || kept() == 1);
    let events = || daemon.query(&["status"])["own"]["flights_kept_total"].as_f64();
    let first = events();
    write(9);
    std::thread::sleep(std::time::Duration::from_millis(2500));
    assert_eq!((events(), kept()), (first, 1), "once a minute");
    daemon.query(&["epoch"]);
    let text = daemon.heaptape(&["report"], &daemon.epochs(&[])).success().text();
    assert!(text.contains("memory.events: high"), "{text}");
    drop(running);
}

#[test]
fn flight_recording_is_kept_on_request_and_goes_on() {
    let mut daemon = Daemon::start(&["--mode", "flight", "--flight-live", "50KiB"]);
    let running = daemon.spawn(&target::c("leaks_slowly"), &["100000", "2"], None);
    until("its live bytes exceed the limit", || daemon.log().contains("live bytes exceeded the limit"));
    daemon.query(&["snapshot"]);
    let kept = |daemon: &Daemon| -> usize {
        daemon.report(&daemon.epochs(&[])).processes.iter().map(|process| process.segments.len().max(1)).sum()
    };
    until("both are listed", || kept(&daemon) == 2);
    drop(running);
    until("it is over", || daemon.list("leaks_slowly").is_empty());
    daemon.stop();
    daemon.assert_complete();
}

/// Sums of sampled blocks are unbiased for each sampling interval.
#[test]
fn sampled_sums_are_unbiased() {
    let mut daemon = Daemon::start(&[]);
    let program = target::c("leaks_slowly");
    let sum = |mode: &str| {
        let mut bytes = 0;
        for _ in 0..4 {
            let mut running = daemon.spawn(&program, &["5000", "0", "3000"], Some(mode));
            running.0.wait().expect("the program ends");
        }
        daemon.query(&["epoch"]);
        for process in daemon.report(&daemon.epochs(&["--last", "1", "--program", "leaks_slowly"])).processes {
            bytes += process.live_bytes;
        }
        bytes
    };
    let exact = sum("profile") as f64;
    assert!((4.0 * 5000.0 * 3000.0..4.0 * 5000.0 * 3000.0 * 1.01).contains(&exact), "{exact}");
    // 20,000 blocks of 3,000 bytes, one sample in 8 KiB: the deviation is below 1.2 %.
    for mode in ["profile:8KiB", "profile:3%"] {
        let estimate = sum(mode);
        assert!((estimate as f64 / exact - 1.0).abs() < 0.12, "{mode}: {estimate} of {exact}");
    }
    daemon.stop();
}

/// The epoch's DCPI profiles count what its recording counts, and the processes of a program that
/// are over are one process.
#[test]
fn epochs_sum_ended_processes_and_match_dcpi() {
    let mut daemon = Daemon::start(&[]);
    let program = target::c("leaks_slowly");
    for _ in 0..3 {
        daemon.run(&program, &["10", "0", "777"]).success();
    }
    daemon.query(&["epoch"]);
    daemon.run(&program, &["4", "0", "777"]).success();
    daemon.stop();
    daemon.assert_complete();
    let epochs = daemon.epochs(&["--program", "leaks_slowly"]);
    let report = daemon.report(&epochs);
    let live: Vec<u64> = report.processes.iter().map(|process| process.live_bytes).collect();
    assert_eq!((report.processes.len(), live), (2, vec![30 * 777, 4 * 777]));
    let output = daemon.heaptape(&["dcpiprof"], &daemon.epochs(&["--dcpi"])).success();
    let total: u64 = 34 * 777;
    assert!(output.text().contains(&format!("total of leak-bytes: {total} samples")), "{output}");
    let leaks = daemon.leaks(&epochs);
    assert!(leaks.iter().all(|leak| leak.functions().starts_with(&["keeps", "main"])), "{leaks:#?}");
}

/// Growth is that of a minute: before there is one, `top` and `ctl list` show a dash instead of a
/// number.
#[test]
fn growth_is_shown_after_a_minute() {
    let daemon = Daemon::start(&[]);
    let running = daemon.spawn(&target::c("leaks_slowly"), &["1000000", "5"], None);
    let one = || daemon.list("leaks_slowly").pop().unwrap_or_default();
    until("it is looked at", || one()["growth_seconds"].as_u64().is_some_and(|seconds| seconds > 0));
    let top = |arguments: &[&str]| {
        let output =
            daemon.heaptape(&[&["top", "--once"], arguments, &["--control"]].concat(), &[daemon.control()]).success();
        output.text()
    };
    let pid = running.0.id().to_string();
    let of_process = |text: &str| text.lines().find(|line| line.contains("leaks_slowly")).expect("its line").to_owned();
    let listed = daemon.ctl(&["list"]).success().text();
    let (processes, sites) = (top(&[]), top(&["--process", &pid]));
    assert!(one()["growth_seconds"].as_u64().is_some_and(|seconds| seconds < 60), "{}", one());
    assert!(processes.contains("growth – (after 1 min)") && of_process(&processes).contains(" – "), "{processes}");
    assert!(sites.contains("growing sites: – (after 1 min)"), "{sites}");
    assert!(of_process(&listed).contains(" – "), "{listed}");
    if is_full() {
        until("a minute is over", || one()["growth_seconds"].as_u64().is_some_and(|seconds| seconds >= 45));
        until("a minute is over", || one()["growth_seconds"].as_u64().is_some_and(|seconds| seconds >= 60));
        let (processes, sites) = (top(&[]), top(&["--process", &pid]));
        assert!(processes.contains("growth +") && of_process(&processes).contains(" +"), "{processes}");
        assert!(!sites.contains("after 1 min"), "{sites}");
    }
}

/// A client of a daemon that is not there learns which socket was tried and what to do.
#[test]
fn errors_name_the_socket_and_say_what_to_do() {
    let directory = test_env::folder();
    let (missing, dead) = (directory.path().join("missing"), directory.path().join("dead"));
    drop(std::os::unix::net::UnixListener::bind(&dead).expect("a socket"));
    let file = directory.path().join("file");
    std::fs::write(&file, "MTRC").expect("a file");
    for path in [&missing, &dead] {
        let path = path.to_str().expect("a name");
        let asks: [(&[&str], &str); 3] = [
            (&["ctl", "list", "--control", path], "--control PATH"),
            (&["top", "--once", "--control", path], "--control PATH"),
            (&["send", file.to_str().expect("a name"), "--socket", path], "--socket PATH"),
        ];
        for (arguments, option) in asks {
            let output = heaptape(arguments).exits(2);
            for part in [path, "no daemon answers at ", "start one with `heaptape daemon start`", option] {
                assert!(output.error().contains(part), "{arguments:?}: {part}: {output}");
            }
        }
    }
    let daemon = Daemon::start(&[]);
    let output = daemon.ctl(&["show", "1"]).exits(2);
    assert!(output.error().contains(daemon.control().to_str().expect("a name")), "{output}");
    assert!(output.error().contains("no recorded process matches '1'"), "{output}");
}

/// What was asked for has all that the program did before, also what was in its ring.
#[test]
fn requested_states_have_all_that_was_done_before() {
    let daemon = Daemon::start(&["--snapshot", "1h"]);
    for (mode, request) in [("trace", "snapshot"), ("profile", "snapshot"), ("trace", "flush"), ("profile", "flush")] {
        let mut command = daemon.command(&target::c("keeps_on_request"));
        command.env("HEAPTAPE_MODE", mode).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut running = Running(command.spawn().expect("the program starts"));
        let (mut to, mut from) = (running.0.stdin.take().expect("a pipe"), running.0.stdout.take().expect("a pipe"));
        let pid = running.0.id().to_string();
        for round in 1..=10 {
            to.write_all(b".").and_then(|()| from.read_exact(&mut [0])).expect("the program answers");
            let which = Some(pid.as_str()).filter(|_| request == "snapshot");
            daemon.query(&[request].into_iter().chain(which).collect::<Vec<_>>());
            let output = daemon.heaptape(&["report", "--json", "--process", &pid], &daemon.epochs(&[])).success();
            let report: Report = serde_json::from_slice(&output.stdout).expect("a report");
            let live = report.processes[0].live_blocks;
            assert!((round * 1000..round * 1000 + 10).contains(&live), "{mode}, {request}, round {round}: {live}");
        }
    }
}
