//! What was not seen is missing: programs of the tree that ran unrecorded, and memory of allocators
//! that are not known. `verify`, `--strict`, conditions and the page say so.

use heaptape_tests::daemon::Running;
use heaptape_tests::recording::heaptape;
use heaptape_tests::target::LIBRARIES;
use heaptape_tests::wait::until;
use heaptape_tests::{Outcome, Program, Recording, Target, same, target, test_env};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Asserts that every command finds something missing, for this reason.
#[track_caller]
fn misses(recording: &Recording, why: &str) {
    let says = |output: Outcome, code: i32| {
        let output = output.exits(code);
        assert!(output.text().contains(why), "{why}: {output}");
    };
    says(recording.heaptape(&["verify"]), 1);
    for command in ["report", "leaks", "peak"] {
        says(recording.heaptape(&[command]), 0);
        says(recording.heaptape(&[command, "--strict"]), 3);
    }
    // What was not seen may leak.
    let condition = ["leaks", "--fail-if", "leaked > 1GiB"];
    let output = recording.heaptape(&condition).exits(2);
    assert!(output.text().starts_with("no answer: leaked = "), "{output}");
    recording.heaptape(&[&condition[..], &["--strict"]].concat()).exits(3);
    recording.heaptape(&["report", "--fail-if", "allocs >= 0"]).exits(1);
    let page = recording.heaptape(&["export", "--format", "html", "-o", "-"]).exits(1).text();
    assert!(page.contains(why), "the page says it: {why}");
}

#[track_caller]
fn misses_nothing(recording: &Recording) {
    recording.heaptape(&["verify"]).success();
    recording.heaptape(&["leaks", "--strict"]).success();
    recording.heaptape(&["leaks", "--fail-if", "leaked > 1GiB"]).success();
}

fn script(folder: &Path, name: &str, lines: &str) -> String {
    let path = folder.join(name);
    let made = path.with_extension("new");
    std::fs::write(&made, format!("#!/bin/sh\n{lines}\n")).expect("a script");
    std::fs::set_permissions(&made, PermissionsExt::from_mode(0o755)).expect("it may be executed");
    std::fs::rename(&made, &path).expect("its name");
    path.to_string_lossy().into_owned()
}

/// The start script of an image names another allocator to preload.
#[test]
fn start_script_that_replaces_the_library_is_named() {
    let folder = test_env::folder();
    test_env::copy(target::c("small"), folder.path().join("slow"));
    let start = |lines: &str| script(folder.path(), "start.sh", lines);
    let record = |path: &str| Program::new(path).folder(folder.path());
    let replaces = record(&start(&format!("export LD_PRELOAD={LIBRARIES}/libm.so.6\n./slow; :")));
    let recording = replaces.recorded().success();
    misses(
        &recording,
        &format!(
            "was not recorded: LD_PRELOAD was replaced by libm.so.6 in start.sh: append instead: \
             LD_PRELOAD=$LD_PRELOAD:{LIBRARIES}/libm.so.6"
        ),
    );
    // Who selects other programs, or leaves it out, does not ask for it.
    recording.heaptape(&["leaks", "--strict", "--program", "start.sh"]).success();
    recording.heaptape(&["leaks", "--program", "start.sh", "--fail-if", "leaked > 1GiB"]).success();
    recording.heaptape(&["leaks", "--program", "slow"]).exits(2);
    misses_nothing(&replaces.clone().option("--no-children").recorded().success());
    misses_nothing(&replaces.option("--skip").option("slow").recorded().success());
    // What the message advises works.
    let appends = start(&format!("export LD_PRELOAD=$LD_PRELOAD:{LIBRARIES}/libm.so.6\n./slow; :"));
    let recording = record(&appends).recorded().success();
    misses_nothing(&recording);
    assert!(recording.report().only("slow").allocs > 0);
}

/// Each way to lose the library has the reason that is true.
#[test]
fn programs_without_the_library_have_the_true_reason() {
    let small = target::c("small");
    let small = small.display();
    for (line, why) in [
        (format!("env LD_PRELOAD=libm.so.6 {small}; :"), "LD_PRELOAD was replaced by libm.so.6 by env"),
        (format!("env -i {small}; :"), "LD_PRELOAD was removed from its environment by env"),
        (format!("unset LD_PRELOAD; {small}; :"), "LD_PRELOAD was removed from its environment in a command of sh"),
        (format!("LD_PRELOAD= {small}; :"), "LD_PRELOAD was removed from its environment in a command of sh"),
        (format!("unset HEAPTAPE_SOCKET; {small}; :"), "HEAPTAPE_SOCKET was removed from its environment"),
        // The program itself is replaced.
        (format!("LD_PRELOAD=libm.so.6 exec {small}"), "LD_PRELOAD was replaced by libm.so.6 in a command of sh"),
    ] {
        let recording = Program::shell(&line).recorded().success();
        let why_not = recording.not_traced("small");
        assert!(why_not.len() == 1 && why_not[0].starts_with(why), "{line}: {why_not:?}");
        recording.heaptape(&["verify"]).exits(1);
        recording.heaptape(&["leaks", "--fail-if", "leaked > 1GiB"]).exits(2);
    }
}

/// Memory that no library sees is missing if it is most, and no sum is an answer.
#[test]
fn memory_of_an_unknown_allocator_is_missing() {
    let hides = |name: &str, flag: &str| Target::program("hides_memory.c").flag(flag).named(name).build();
    let hidden = Program::new(hides("hides_memory", "-DHIDDEN")).arg("12");
    let plain = hidden.plain().success();
    let recording = hidden.recorded().success();
    same(&plain, &recording.outcome);
    misses(&recording, " of its memory never held a recorded block: it has an allocator that was not seen");
    // One that ends before anybody looks at it has a last look, too.
    let brief = Program::new(hides("hides_memory", "-DHIDDEN")).args(["12", "0"]);
    for _ in 0..3 {
        misses(&brief.recorded().success(), " held a recorded block: it has an allocator that was not seen");
    }
    // A variable of the program is no allocator's.
    misses_nothing(&Program::new(hides("holds_memory", "-DVARIABLE")).arg("12").recorded().success());
    // Little memory is none, and what the program maps by the library is known.
    misses_nothing(&Program::new(target::c("half_seen")).arg("6").recorded().success());
}

/// What a program had before it was attached is no allocator's that was not seen.
#[test]
fn memory_from_before_an_attach_is_no_unseen_allocator() {
    let mut command = Command::new(target::c("full_cache"));
    let running = Running(command.args(["60000", "1"]).spawn().expect("it starts"));
    let pid = running.0.id().to_string();
    let status = || std::fs::read_to_string(format!("/proc/{pid}/statm")).expect("it runs");
    let pages = || status().split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    until("its cache is full", || pages() > Some(7500));
    let folder = test_env::folder();
    let dir = folder.path().join("r");
    let dir = dir.to_str().expect("a path");
    heaptape(["attach", "-q", "--for", "1s", "-o", dir, &pid]).success();
    for report in ["report", "leaks", "verify"] {
        let said = heaptape([report, dir]);
        assert!(!format!("{said}").contains("an allocator that was not seen"), "{report}: {said}");
    }
}

/// A library in a namespace of its own allocates by another C library, which nobody sees: however
/// little that is.
#[test]
fn second_c_library_is_an_allocator_that_was_not_seen() {
    let library = Target::library("opens_namespace.c").flag("-DLIBRARY").named("in-namespace.so").build();
    let program = Program::new(target::c("opens_namespace")).arg(library).arg("300");
    let plain = program.plain().success();
    let recording = program.recorded();
    same(&plain, &recording.outcome);
    misses(
        &recording,
        "libc.so.6, its own malloc, was not recorded: the program has loaded it a second time (dlmopen)",
    );
}

/// The allocator of the C library by its own names: each call is an event, of the program. With
/// an allocator between that uses these names, each call is an event once.
#[test]
fn calls_by_the_names_of_libc_are_recorded_once() {
    let program = Program::new(target::c("libc_names"));
    let plain = program.plain().success();
    let recording = program.recorded();
    same(&plain, &recording.outcome);
    let recording = recording.complete();
    let report = recording.report();
    let process = &report.processes[0];
    assert_eq!((process.allocs, process.resizes, process.frees), (9, 2, 5), "{process:#?}");
    assert_eq!((process.live_blocks, process.live_bytes), (4, 1009 + 300 + 500 + 700), "{process:#?}");
    assert_eq!(process.unknown_frees, 0);
    let leaks = recording.leaks();
    let leak = leaks.iter().find(|leak| leak.bytes == 1009).unwrap_or_else(|| panic!("{leaks:#?}"));
    assert_eq!(leak.functions()[..2], ["keeps", "main"], "{leaks:#?}");

    let between = Target::library("libc_names.c").flag("-DLIBRARY").named("passes-on-by-libc-names.so").build();
    let small = Program::new(target::c("small"));
    let counts = |program: &Program| {
        let recording = program.recorded().success().complete();
        let process = recording.report().processes[0].clone();
        (process.allocs, process.resizes, process.frees, process.live_bytes, process.unknown_frees)
    };
    assert_eq!(counts(&small.clone().option("--preload").option(&between)), counts(&small));
}

/// A program with an environment of its own, started by what the library does not see, is named by
/// what it is while it runs, and by who started it if it was too short for that.
#[test]
fn program_that_no_library_starts_is_named() {
    let program = |how: &str, command: &str| Program::new(target::c("starts_unseen")).args([how, command]);
    let named = |recording: &Recording| -> Vec<(String, String)> {
        recording.about().not_traced.into_iter().map(|one| (one.exe, one.why)).collect()
    };
    let by_shell = ["system", "popen", "forked", "ignored", "left"];
    for how in ["raw", "go", "itself"].into_iter().chain(by_shell) {
        let plain = program(how, "true").plain().success();
        let short = program(how, "true").recorded();
        same(&plain, &short.outcome);
        let found = named(&short);
        let whys = match how {
            // It may be found in the few milliseconds that it lives, or not.
            "raw" | "go" => ["run a program that was not seen", "LD_PRELOAD was removed"],
            "itself" => {
                ["its limits left no room for the library, or a direct system call started it, in place of starts_unseen";
                    2]
            }
            _ => ["LD_PRELOAD was removed from its environment by starts_unseen"; 2],
        };
        let why = whys.into_iter().find(|why| found.first().is_some_and(|found| found.1.contains(why)));
        assert!(found.len() == 1 && why.is_some(), "{how}: {found:?}");
        assert!(how == "raw" || how == "go" || found[0].0.ends_with("sh"), "{how}: {found:?}");
        misses(&short, why.unwrap_or_default());

        let long = program(how, "sleep 2; true").recorded().success();
        let found = named(&long);
        let is_named = |(exe, why): &(String, String)| {
            let is_known =
                ["LD_PRELOAD was removed", "was started by", "did not load"].map(|why_not| why.contains(why_not));
            exe.ends_with("sleep") && is_known.contains(&true)
        };
        assert!(found.iter().any(is_named), "{how}: {found:?}");
        assert!(
            !found.iter().any(|(exe, _)| exe.is_empty()),
            "{how}: one that was found is not reported again: {found:?}"
        );
        long.heaptape(&["verify"]).exits(1);
    }
    // What attaches, or allocates nothing and executes nothing, is not missing.
    for command in ["true; true", "(:); echo x | cat >/dev/null; exec true"] {
        misses_nothing(&Program::shell(command).recorded().success());
    }
}

/// Programs that run for a moment, after others that were recorded: each is named by what it is, or
/// counted, by which way ever it was started.
#[test]
fn short_programs_that_no_library_starts_are_named() {
    let fixed = Target::program("starts_briefly.c").flag("-static").named("brief").build();
    let program = |how: &str| {
        let program = Program::new(target::c("starts_briefly")).arg(how);
        if how == "static" { program.arg(&fixed) } else { program }
    };
    for how in ["clone", "vfork", "fork", "static", "emptied"] {
        let plain = program(how).plain().success();
        let recording = program(how).recorded();
        same(&plain, &recording.outcome);
        let missing = recording.about().not_traced;
        let named =
            missing.iter().filter(|one| one.exe.ends_with("starts_briefly") || one.exe.ends_with("brief")).count();
        let counted = missing.iter().any(|one| one.why.contains("not seen"));
        assert!(named + usize::from(counted) > 0 && named <= 3, "{how}: {missing:#?}");
        recording.heaptape(&["verify"]).exits(1);
        recording.heaptape(&["leaks", "--strict"]).exits(3);
    }
    // Programs that are started in the same way, and have the library, are recorded and nothing else.
    let recording = program("kept").recorded().success();
    assert_eq!(recording.about().not_traced.len(), 0, "{:?}", recording.about().not_traced);
    misses_nothing(&recording);
}

/// Returns whether the kernel tells us of each program: since Linux 6.6, in the first namespaces.
fn kernel_tells_of_programs() -> bool {
    let is_first = |name: &str, number: &str| {
        std::fs::read_link(format!("/proc/self/ns/{name}")).is_ok_and(|link| link.to_string_lossy().contains(number))
    };
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let version: Vec<u32> = release.split('.').map_while(|part| part.parse().ok()).take(2).collect();
    is_first("pid", "4026531836") && is_first("user", "4026531837") && version >= vec![6, 6]
}

/// Each program that nobody sees is counted, however short it is: also where its parent has ended,
/// and where others are known.
#[test]
fn every_short_program_is_counted_where_the_kernel_tells() {
    if !kernel_tells_of_programs() {
        return;
    }
    for (how, number) in [("orphan", 1), ("beside", 5)] {
        for command in ["exec true", "exit 3"] {
            let program = Program::new(target::c("starts_unseen")).args([how, command]);
            let plain = program.plain().success();
            let recording = program.recorded();
            same(&plain, &recording.outcome);
            let missing = recording.about().not_traced;
            let named = missing.iter().filter(|one| one.pid != 0).count();
            let counted = missing.iter().filter(|one| one.pid == 0).map(|one| {
                let words = one.why.split_once(" has run ").unwrap_or_else(|| panic!("{how}: {missing:#?}")).1;
                words.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(1)
            });
            assert_eq!(named + counted.sum::<usize>(), number, "{how}: {missing:#?}");
            recording.heaptape(&["verify"]).exits(1);
            recording.heaptape(&["leaks", "--strict"]).exits(3);
        }
    }
    // Programs that are recorded, that cannot start, and that end by a signal.
    let ends = "/bin/sh -c 'kill -9 $$'; no-such-program; sh -c 'exit 127'; ls | cat; (true; :) & wait";
    let recording = Program::shell(&format!("({ends}; exec true) 2>/dev/null")).recorded().success();
    assert_eq!(recording.about().not_traced.len(), 0, "{:?}", recording.about().not_traced);
}

/// Children that run no program, and starts that the library sees, are no unseen programs: also if
/// the process allocates nothing before.
#[test]
fn children_that_start_nothing_are_no_unseen_programs() {
    for how in ["forks", "vforks", "fails", "vtouches", "clones", "touches", "renames"] {
        let recording = Program::new(target::c("childless")).arg(how).recorded().success();
        assert_eq!(recording.about().not_traced.len(), 0, "{how}: {:?}", recording.about().not_traced);
        recording.complete();
    }
}

/// A child that goes on after the end of the recording is missing from then on, whether or not it
/// had allocated before.
#[test]
fn child_that_outlives_the_recording_is_missing() {
    let folder = test_env::folder();
    let program = |name: &str| Program::new(target::c("outlives")).arg(folder.path().join(name));
    misses(&program("silent").recorded().success(), "outlives (pid");
    let began = program("began").arg("first").recorded().success();
    misses(&began, "still ran when the recording ended: what it did after that is not known (record --wait");
    began.heaptape(&["leaks", "--strict", "--program", "other"]).exits(2);
    let awaited = program("awaited").arg("first").option("--wait").recorded().success();
    misses_nothing(&awaited);
    assert!(awaited.report().all("outlives").any(|process| process.allocs == 1_001), "{:#?}", awaited.report());
}

/// `execle` has its environment behind its arguments.
#[test]
fn program_of_execle_without_the_library_is_named() {
    let recording = Program::new(target::c("childless")).arg("execle").recorded().success();
    let found: Vec<_> = recording.about().not_traced.into_iter().map(|one| (one.exe, one.why)).collect();
    assert!(found.len() == 1 && found[0].1.contains("LD_PRELOAD was removed"), "{found:?}");
}

/// A program that takes long to load attaches later than one that will not attach is named, as on a
/// machine at full load.
#[test]
fn program_that_is_slow_to_load_is_recorded_and_not_named() {
    let slow = Target::library("slow_library.c").build();
    let small = target::c("small");
    let line = format!("LD_PRELOAD=$LD_PRELOAD:{} exec {}", slow.display(), small.display());
    let recording = Program::shell(&line).recorded().success();
    assert_eq!(recording.not_traced("small"), [""; 0], "{:#?}", recording.about());
    assert!(recording.report().only("small").allocs > 0);
    misses_nothing(&recording);
}
