//! A program cannot observe the library.

use heaptape_tests::target::Target;
use heaptape_tests::{Program, is_root, ring, same, target, test_env, torture};

#[test]
fn library_keeps_no_descriptor_thread_or_handler() {
    let program = Program::new(target::c("footprint"));
    let plain = program.plain().success();
    same(&plain, &program.preloaded());
    let recording = program.recorded().complete();
    same(&plain, &recording.outcome);
}

/// What is written beyond a block by pages hits what it hits without the library, and never the rings.
#[test]
fn blocks_that_run_over_end_the_program_as_without_the_library() {
    let touching = Program::new(target::c("beside_mappings")).arg("touching").recorded().complete();
    assert_eq!(touching.outcome.text(), "0\n", "mappings of the library touch others that can be written");
    let mappings = touching.outcome.error();
    let mappings = mappings.lines().find_map(|line| line.strip_suffix(" mappings")?.parse().ok());
    assert!(mappings >= Some(4), "{mappings:?} of heaptape's mappings were seen");
    for end in ["over", "under"] {
        let program = Program::new(target::c("beside_mappings")).arg(end);
        let plain = program.plain();
        same(&plain, &program.preloaded());
        let recording = program.recorded();
        same(&plain, &recording.outcome);
        assert_eq!(recording.report().only("beside_mappings").lost_events, 0);
    }
}

#[test]
fn program_that_closes_all_descriptors_is_recorded_on() {
    for how in ["closefrom", "close_range", "loop", "dup2", "proc"] {
        let program = Program::new(target::c("closes_all")).arg(how);
        let plain = program.plain().success();
        same(&plain, &program.preloaded());
        let recording = program.recorded().complete();
        same(&plain, &recording.outcome);
        assert!(recording.report().only("closes_all").allocs >= 20_001, "{how}");
    }
    torture::passed(21, "ways to close all descriptors", 5);
}

#[test]
fn program_that_changes_root_and_user_is_recorded_on() {
    if !is_root() {
        return;
    }
    let root = test_env::folder();
    let program = Program::new(target::c("changes_root")).arg(root.path());
    let recording = program.undisturbed().success();
    let report = recording.report();
    let parent = report.processes.iter().find(|process| process.allocs >= 200).expect("the parent is recorded on");
    assert_eq!(parent.lost_events, 0, "{parent:#?}");
    assert_eq!(std::fs::read_dir(root.path()).expect("the root").count(), 0, "nothing appears in the program's root");
    torture::passed(22, "changes of the root directory with dropped privileges", 1);
}

#[test]
fn programs_in_other_namespaces_are_unharmed() {
    let flags = ["-Urn", "-Urmp --fork", "-Uru --fork"];
    let mut tried = 0;
    for flag in flags {
        let arguments: Vec<&str> = std::iter::once("unshare").chain(flag.split(' ')).collect();
        let program = Program::new(target::c("fork_inherited")).launched_by(&arguments);
        let plain = program.plain();
        if plain.code() != 0 {
            continue; // not permitted here
        }
        same(&plain, &program.preloaded());
        let recording = program.recorded();
        same(&plain, &recording.outcome);
        assert!(recording.report().all("fork_inherited").any(|process| process.allocs >= 10), "{flag}");
        tried += 1;
    }
    torture::passed(22, "kinds of namespace", tried);
}

/// After the attach the library makes no system call: in a sandbox that kills on any call that an
/// allocator does not need, recording goes on.
#[test]
fn sandboxed_program_is_recorded_without_system_calls() {
    let program = Program::new(target::c("sandbox")).arg("15000");
    let recording = program.undisturbed().success();
    let report = recording.report();
    let process = report.only("sandbox");
    process.assert_accounting();
    assert!(process.allocs >= 15_100 && process.lost_events == 0, "{process:#?}");
    torture::passed(23, "allocations in a sandbox without a system call", 15_000);
}

/// A sandboxed program forks, starts others and fills its ring. No call of the library kills it.
#[test]
fn sandboxed_program_with_children_is_recorded() {
    let sleeps = Target::program("sleeps.c").flag("-static").build();
    for how in ["forks", "forks-raw"] {
        let program = Program::new(target::c("sandbox")).arg(how).arg(&sleeps).option(ring(1));
        let recording = program.undisturbed().success();
        let report = recording.report();
        let process = report.only("sandbox");
        process.assert_accounting();
        assert!(process.allocs >= 300_001 && process.lost_events == 0, "{how}: {process:#?}");
    }
    torture::passed(23, "kinds of sandbox with children", 2);
}

/// `unshare` of the user namespace fails in a process with more than one thread.
#[test]
fn library_starts_no_thread_before_unshare() {
    let program = Program::new("unshare").args(["-U", "true"]);
    let plain = program.plain();
    same(&plain, &program.preloaded());
    same(&plain, &program.recorded().outcome);
    torture::passed(23, "programs that must have a single thread", 1);
}

/// Removes the system calls by which a process announces its end. They are the second connection to
/// the recorder; the first one is the attach.
fn without_announcement(lines: Vec<&str>) -> Vec<&str> {
    let sockets: Vec<usize> = (0..lines.len()).filter(|at| lines[*at].contains(" socket(AF_UNIX")).collect();
    let [_, start] = sockets[..] else { return lines };
    let length = lines[start..].iter().position(|line| line.contains(" close(")).expect("the socket is closed") + 1;
    // Two of them read the clock, which bounds the wait.
    assert!(length <= 9, "{:#?}", &lines[start..start + length]);
    [&lines[..start], &lines[start + length..]].concat()
}

/// The library makes the system calls of the attach, and those that announce the end of the
/// process, and no others.
#[test]
fn library_makes_only_the_system_calls_of_the_attach() {
    let calls = |pairs: &str, arguments: &[(&str, std::path::PathBuf)]| {
        let folder = test_env::folder();
        let file = folder.path().join("calls");
        let mut program = Program::new("strace").args(["-f", "-o"]).arg(&file);
        for (name, value) in arguments {
            program = program.arg("-E").arg(format!("{name}={}", value.display()));
        }
        program.arg(target::c("pairs")).args([pairs, "1"]).plain().success();
        std::fs::read_to_string(file).expect("strace's output").lines().count()
    };
    let guest = [("LD_PRELOAD", test_env::library().to_owned()), ("HEAPTAPE_SOCKET", "/nonexistent/socket".into())];
    let (plain, inert) = (calls("1000", &[]), calls("1000", &guest));
    // A loader that maps to 64 KiB trims what it has mapped.
    let most = if cfg!(target_arch = "aarch64") { 27 } else { 25 };
    assert!(inert <= plain + most, "{plain} system calls plain, {inert} with the library");
    let recorded = |name: &str, pairs: &str| {
        let folder = test_env::folder();
        let file = folder.path().join("calls");
        let program = Program::new("strace").args(["-f", "-o"]).arg(&file).arg(target::c(name)).args([pairs, "1"]);
        let recording = program.recorded().success();
        assert!(recording.report().all(name).count() == 1);
        let text = std::fs::read_to_string(file).expect("strace's output");
        // A wait for space in the ring is a futex, and a look at the clock.
        let is_counted = |line: &&str| {
            ![" futex(", " clock_gettime(", " brk(", " exited with "].iter().any(|other| line.contains(other))
        };
        without_announcement(text.lines().filter(is_counted).collect()).len()
    };
    let (few, many) = (recorded("pairs", "1000"), recorded("pairs", "200000"));
    assert!(many <= few + 3, "{few} system calls for 1,000 pairs, {many} for 200,000");
    // One thread: the attach, the thread's own ring, the first stack; what the loader does for the
    // library apart.
    let file = test_env::folder();
    let path = file.path().join("calls");
    let mut inert = Program::new("strace").args(["-f", "-o"]).arg(&path);
    for (name, value) in &guest {
        inert = inert.arg("-E").arg(format!("{name}={}", value.display()));
    }
    inert.arg(target::c("limits")).plain().success();
    let text = std::fs::read_to_string(&path).expect("strace's output");
    let loaded = text
        .lines()
        .filter(|line| ![" clock_gettime(", " brk(", " exited with "].iter().any(|other| line.contains(other)))
        .count();
    let own = recorded("limits", "").saturating_sub(loaded);
    assert!(own <= 25, "{own} system calls more than without a recorder");
}

/// The attach is what is done while all signals are blocked. A program whose linker made no search
/// tables gets those of the recorder.
#[test]
fn attach_makes_a_bounded_number_of_system_calls() {
    let without = Target::program("limits.c").flag("-Wl,--no-eh-frame-hdr").named("limits_without_tables").build();
    let mut most = 0;
    for program in [target::c("limits"), without, target::c("pairs")] {
        let folder = test_env::folder();
        let file = folder.path().join("calls");
        let traced = Program::new("strace").args(["-f", "-o"]).arg(&file).arg(&program).args(["1", "1"]);
        traced.recorded().success().complete();
        let text = std::fs::read_to_string(file).expect("strace's output");
        // On aarch64 the library registers for the recorder's barriers. The clock is read without a system
        // call, except on some machines.
        let registers = text.lines().filter(|line| line.contains("membarrier(")).count();
        assert_eq!(registers, usize::from(cfg!(target_arch = "aarch64")), "{text}");
        let calls = || {
            text.lines()
                .filter(|line| !["clock_gettime(", "membarrier("].iter().any(|call| line.contains(call)))
                .skip_while(|line| !line.contains("rt_sigprocmask(SIG_BLOCK, ~[], ["))
        };
        assert!(calls().any(|line| line.contains("sendto(")), "the attach is found: {text}");
        let end = calls().position(|line| line.contains("rt_sigprocmask(SIG_SETMASK")).expect("the end of the attach");
        most = most.max(end + 1);
    }
    assert!(most <= 32, "{most} system calls of the attach");
    torture::passed(57, "system calls of the attach (maximum)", most as u64);
}
