//! What `ctl` and the reports say about processes that are served now, and the configuration that
//! is read again.

use heaptape_tests::daemon::Running;
use heaptape_tests::recording::heaptape;
use heaptape_tests::wait::until;
use heaptape_tests::{Daemon, target, test_env};
use nix::sys::signal::Signal;
use serde_json::Value;
use std::ffi::OsStr;
use std::time::Duration;

/// The configuration is read again by `ctl reload` and by SIGHUP. Rules apply to programs that
/// start afterwards; the answer and the log name what changed, and a wrong file changes nothing.
#[test]
fn configuration_is_read_again() {
    let folder = test_env::folder();
    let file = folder.path().join("daemon.toml");
    let write = |text: &str| std::fs::write(&file, text).expect("the file");
    write("mode = \"profile\"");
    let daemon = Daemon::start(&["--config", file.to_str().expect("a path"), "--epoch", "2h"]);
    let program = target::c("leaks_slowly");
    let modes = || {
        let all = daemon.list("leaks_slowly");
        let mut modes: Vec<_> = all.iter().map(|one| one["mode"].as_str().unwrap_or_default().to_owned()).collect();
        modes.sort();
        modes
    };
    let old = daemon.spawn(&program, &["100000", "20"], None);
    until("it is served", || modes() == ["profile"]);
    assert_eq!(daemon.ctl(&["reload"]).success().text(), "nothing changed\n");
    write("mode = \"profile\"\nprogram = [\"leaks_*=trace\"]\nepoch = \"5h\"\nstarts = 77");
    let answer = daemon.query(&["reload"]);
    assert_eq!(answer["changed"], serde_json::json!({ "program": "[] is now [leaks_*=trace]" }), "{answer}");
    assert_eq!(answer["needs_restart"], serde_json::json!({ "starts": "200 is now 77" }));
    let new = daemon.spawn(&program, &["100000", "20"], None);
    until("the new one has the new mode", || modes() == ["profile", "trace"]);
    let logged = |text: &str| daemon.log().contains(text);
    assert!(logged("read again: program: [] is now [leaks_*=trace]"), "{}", daemon.log());
    assert!(logged("starts: 200 is now 77; it applies when the daemon is started again"), "{}", daemon.log());
    write("mode = \"on\"");
    let refused = daemon.ctl(&["reload"]);
    assert!(refused.code() != 0 && refused.error().contains("invalid mode 'on'"), "{refused}");
    write("keep-bytes = \"1GiB\"");
    daemon.signal(Signal::SIGHUP);
    until("it is read again", || logged("keep-bytes: 10GiB is now 1GiB"));
    until("the epochs have ended", || daemon.epochs(&[]).len() > 1);
    drop((old, new));
}

/// Lists and reports about the processes that are served now.
#[test]
fn served_processes_are_selected_by_name_pid_and_label() {
    let daemon = Daemon::start(&["--mode", "trace"]);
    let program = target::c("leaks_slowly");
    let start = |label: &str, ms: &str| {
        let mut command = daemon.command(&program);
        Running(command.env("HEAPTAPE_LABEL", label).args(["100000", ms]).spawn().expect("it starts"))
    };
    let (slow, fast) = (start("shop", "20"), start("bank", "2"));
    let other = daemon.spawn(&target::c("full_cache"), &["100", "20"], None);
    let lives = |name: &str| daemon.list(name).iter().map(|one| one["live_blocks"].as_u64().unwrap_or(0)).min();
    until("all are served", || {
        daemon.list("leaks_slowly").len() == 2 && lives("leaks_slowly") > Some(20) && lives("full_cache") > Some(0)
    });
    let pids = |arguments: &[&str]| -> Vec<u64> {
        let Value::Array(all) = daemon.query(&[&["list"], arguments].concat()) else { panic!("a list was expected") };
        all.iter().filter_map(|one| one["pid"].as_u64()).collect()
    };
    let rates = || daemon.list("leaks_slowly").iter().filter_map(|one| one["allocs_a_second"].as_u64()).max();
    until("their rates are known", || rates() > Some(600));
    let [slow_pid, fast_pid, other_pid] = [&slow, &fast, &other].map(|one| u64::from(one.0.id()));
    assert_eq!(pids(&["leaks_*", "--sort", "rate"]), [fast_pid, slow_pid]);
    assert_eq!(pids(&["--label", "sh?p"]), [slow_pid]);
    assert_eq!(pids(&[&other_pid.to_string()]), [other_pid]);
    assert_eq!(pids(&["ba?k"]), [fast_pid], "a label where no name matches");
    assert_eq!(daemon.query(&["show", "shop"])["pid"].as_u64(), Some(slow_pid));
    assert_eq!(daemon.query(&["mode", "shop", "profile"])["processes"].as_u64(), Some(1));
    let both = daemon.ctl(&["show", "leaks_*"]);
    assert!(both.code() == 2 && both.error().contains(&slow_pid.to_string()), "{both}");
    let mut all = pids(&["--sort", "name"]);
    assert_eq!(all.remove(0), other_pid);
    let nobody = daemon.ctl(&["list", "nobody"]);
    assert!(nobody.code() == 2 && nobody.error().contains("no recorded process matches"), "{nobody}");
    let control = daemon.control();
    let live = |which: &str| {
        let paths = ["--live".as_ref(), which.as_ref(), "--control".as_ref(), control.as_os_str()];
        heaptape(["leaks".as_ref(), "--json".as_ref()].into_iter().chain(paths))
    };
    for (which, leaking) in [("leaks_*", 2), ("bank", 1), (slow_pid.to_string().as_str(), 1)] {
        let output = live(which);
        let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output}"));
        let leaks = answer["leaks"].as_array().expect("leaks");
        let keeps = leaks.iter().filter(|leak| leak.to_string().contains("\"keeps")).count();
        assert_eq!(keeps, leaking, "{which}: {answer:#}");
    }
    let nobody = live("nobody");
    assert!(nobody.code() == 2 && nobody.error().contains("serves no process"), "{nobody}");
    drop((slow, fast, other));
}

/// Counters do not fall at a change of mode, and a sampled trace is shown as estimated.
#[test]
fn counters_never_fall_at_a_change_of_mode() {
    let daemon = Daemon::start(&[]);
    let running = daemon.spawn(&target::c("leaks_slowly"), &["1000000", "1"], Some("profile"));
    let one = || daemon.list("leaks_slowly").pop().unwrap_or_default();
    let number = |one: &Value, key: &str| one[key].as_u64().unwrap_or(0);
    until("it is counted", || number(&one(), "allocs") > 4000);
    for mode in ["trace", "off", "trace:1KiB", "flight", "profile:4KiB", "profile"] {
        let before = one();
        daemon.query(&["mode", "leaks_slowly", mode]);
        for _ in 0..5 {
            let after = one();
            for key in ["allocs", "frees", "bytes", "recorded", "lost", "sampled_out"] {
                assert!(number(&after, key) >= number(&before, key), "{mode}, {key}: {before:#} {after:#}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        let counted = number(&one(), "allocs");
        until("it goes on", || mode == "off" || number(&one(), "allocs") > counted + 500);
        if mode == "trace:1KiB" {
            let now = one();
            // Blocks of 1,000 bytes, two thirds of them sampled.
            let [blocks, bytes] = ["live_blocks", "live_bytes"].map(|key| number(&now, key));
            assert!(blocks * 900 < bytes && bytes < blocks * 1100, "blocks are scaled as bytes are: {now:#}");
        }
    }
    drop(running);
}

/// A leak is judged in the sampled modes, too, with its standard error; a healthy service is not
/// said to grow.
#[test]
fn sampled_services_are_judged_by_their_history() {
    let daemon = Daemon::start(&[]);
    let start = |program: &str, arguments: &[&str], mode: &str, label: &str| {
        let mut command = daemon.command(&target::c(program));
        command.env("HEAPTAPE_LABEL", label).env("HEAPTAPE_MODE", mode).args(arguments);
        Running(command.spawn().expect("it starts"))
    };
    let modes = [("profile:512KiB", "512"), ("profile:2%", "2")];
    let running: Vec<Running> = modes
        .into_iter()
        .flat_map(|(mode, label)| {
            // 1,000 blocks of 20,000 bytes a second at most; a cache of a million bytes.
            let leak = start("leaks_slowly", &["10000000", "1", "20000"], mode, &format!("leak-{label}"));
            [leak, start("full_cache", &["2000", "1"], mode, &format!("cache-{label}"))]
        })
        .collect();
    let leaks_of = |label: &str, function: &str| {
        daemon.query(&["flush"]);
        let leaks = daemon.leaks(&daemon.epochs(&["--label", label]));
        leaks.into_iter().find(|leak| leak.functions().contains(&function))
    };
    for (_, label) in modes {
        let leak = format!("leak-{label}");
        until("the leak is found", || leaks_of(&leak, "keeps").is_some_and(|leak| leak.verdict == "growing"));
        let text = daemon.heaptape(&["leaks"], &daemon.epochs(&["--label", &leak])).text().to_owned();
        // With 2 % of the time of an idle service, each block is sampled.
        assert!(label != "512" || text.contains("/s (standard error "), "{text}");
        assert!(text.contains("bytes and blocks are estimates"), "{text}");
        // The array of the cache is one block of its start.
        let cache = format!("cache-{label}");
        until("there is evidence for the cache, which was started last", || {
            daemon.query(&["flush"]);
            let leaks = daemon.heaptape(&["leaks", "--all"], &daemon.epochs(&["--label", &cache]));
            !leaks.text().contains("there is no evidence")
        });
        if let Some(cache) = leaks_of(&cache, "entry") {
            assert!(!["growing", "slow"].contains(&cache.verdict.as_str()), "{cache:#?}");
        }
    }
    drop(running);
}

/// What grew since a mark is known by call site, also if the program was restarted since then, and
/// ended processes do not count.
#[test]
fn growth_since_a_mark_is_that_of_the_running_processes() {
    let daemon = Daemon::start(&[]);
    let program = target::c("leaks_slowly");
    let spawn = || daemon.spawn(&program, &["100000", "2"], None);
    let live = || daemon.list("leaks_slowly").iter().map(|one| one["live_bytes"].as_u64().unwrap_or(0)).max();
    let since = |since: &str| {
        let control = daemon.control();
        let arguments = ["diff", "leaks_slowly", "--json", "--since", since];
        let arguments = arguments.into_iter().map(OsStr::new).chain(["--control".as_ref(), control.as_os_str()]);
        heaptape(arguments)
    };
    let first = spawn();
    until("it grows", || live() > Some(20_000));
    let refused = since("deploy-42");
    assert!(refused.code() == 2 && refused.error().contains("a mark (there is none)"), "{refused}");
    let text = daemon.ctl(&["mark", "deploy-42"]).success().text().to_owned();
    assert_eq!(text, "marked; 1 epoch sealed\n");
    // The list follows after a while.
    let listed = live();
    until("the list has what was marked", || live() > listed);
    let at_mark = live().expect("it is served");
    assert!(!daemon.ctl(&["mark", ""]).text().contains("marked"));
    drop(first);
    let second = spawn();
    until("the second one holds more", || live() > Some(at_mark * 2 + 20_000));
    let output = since("deploy-42").success();
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let of = |side: &str| answer[side]["live_bytes"].as_f64().unwrap_or_else(|| panic!("{answer:#}")) as u64;
    // The first process, which has ended, is on the old side only.
    assert!(of("a") > 20_000 && of("a") <= at_mark, "{at_mark}: {answer:#}");
    assert!(of("a") < of("b"), "{answer:#}");
    until("the list has what was written", || live() >= Some(of("b")));
    assert_eq!(
        (&answer["changes"][0]["functions"][0], &answer["changes"][0]["status"]),
        (&"keeps".into(), &"changed".into())
    );
    assert!(output.error().contains("heaptape: compared with 20"), "{output}");
    assert!(!output.error().contains("incomplete"), "the epoch of the present lists all processes: {output}");
    // In the list, growth counts from the start of each process.
    let growths = || daemon.list("leaks_slowly").remove(0)["growths"].clone();
    until("it was measured twice", || growths()["start"].as_i64() > Some(0));
    assert!(growths()["hour"].is_null(), "{}", growths());
    let list = daemon.ctl(&["list", "leaks_slowly", "--growth", "start"]).success().text().to_owned();
    assert!(list.contains(" +"), "{list}");
    drop(second);
}

/// What a trace allocated before the epochs that are compared counts on both sides: each epoch has
/// only its own events.
#[test]
fn allocations_of_a_trace_since_a_mark_are_those_after_it() {
    let daemon = Daemon::start(&["--mode", "trace"]);
    let running = daemon.spawn(&target::c("leaks_slowly"), &["100000", "2"], None);
    let more = |blocks: u64| {
        until("it allocates", || {
            daemon.list("leaks_slowly").iter().any(|one| one["live_blocks"].as_u64() > Some(blocks))
        });
    };
    more(200);
    daemon.query(&["epoch"]);
    more(400);
    daemon.query(&["mark", "deploy-42"]);
    more(600);
    daemon.query(&["epoch"]);
    let control = daemon.control();
    let diff = ["diff", "leaks_slowly", "--json", "--since", "deploy-42", "--control"].map(OsStr::new);
    let output = heaptape(diff.into_iter().chain([control.as_os_str()])).success();
    let answer: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let of = |side: &str, key: &str| answer[side][key].as_f64().unwrap_or_else(|| panic!("{answer:#}"));
    // It keeps one block of eight.
    for (side, least) in [("a", 400.0), ("b", 600.0)] {
        assert!(of(side, "live_blocks") >= least && of(side, "allocs") >= 8.0 * least, "{side}: {answer:#}");
    }
    let statuses = answer["changes"].as_array().expect("changes").iter().map(|change| change["bytes"].to_string());
    assert!(statuses.clone().all(|bytes| !bytes.starts_with('-')), "nothing allocates less: {answer:#}");
    drop(running);
}

/// The live set begins anew when a process leaves the mode `off`: what it held before is not the
/// memory of an allocator that nobody saw.
#[test]
fn memory_from_before_a_change_of_mode_is_no_unseen_allocator() {
    let daemon = Daemon::start(&["--snapshot", "1s"]);
    let running = daemon.spawn(&target::c("full_cache"), &["60000", "5"], None);
    let one = || daemon.list("full_cache").pop().unwrap_or_default();
    until("its cache is full", || one()["live_blocks"].as_u64() > Some(59_000));
    daemon.query(&["mode", "full_cache", "off"]);
    until("it is not recorded", || one()["mode"] == "off");
    daemon.query(&["mode", "full_cache", "profile"]);
    until("it has some new blocks", || (50..5000).contains(&one()["live_blocks"].as_u64().unwrap_or(0)));
    let control = daemon.control();
    let ask = |question: &str| {
        let words = [question, "--live", "full_cache", "--control"].map(OsStr::new);
        heaptape(words.into_iter().chain([control.as_os_str()]))
    };
    until("its pages are known", || ask("rss").text().contains("memory of the process that was no block"));
    let said = ask("leaks");
    assert!(!format!("{said}").contains("an allocator that was not seen"), "{said}");
    drop(running);
}
