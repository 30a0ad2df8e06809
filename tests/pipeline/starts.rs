//! Programs that are started in a sandbox, from a small stack, or in another unusual way behave as
//! without heaptape, and are recorded or named.

use heaptape_tests::{Outcome, Program, Recording, Target, ring, same, target, test_env};
use nix::libc;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Runs `starts` plain, preloaded without a recorder, and recorded; all three are the same.
#[track_caller]
fn started(arguments: &[&str]) -> (Outcome, Recording) {
    let program = Program::new(target::c("starts")).args(arguments);
    let plain = program.plain().success();
    same(&plain, &program.preloaded());
    let recording = program.recorded();
    same(&plain, &recording.outcome);
    (plain, recording)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// A program that ends with its argument, built with a sanitizer.
fn sanitized(folder: &Path, sanitizer: &str) -> PathBuf {
    let path = folder.join("exits");
    test_env::copy(Target::program("exits.c").flag(format!("-fsanitize={sanitizer}")).named(sanitizer).build(), &path);
    path
}

/// The file of a sanitizer's run-time library.
fn sanitizer_runtime(name: &str) -> PathBuf {
    let name = format!("-print-file-name=lib{name}.so");
    let output = std::process::Command::new(test_env::need("gcc")).arg(name).output();
    let path = String::from_utf8(output.expect("gcc").stdout).expect("UTF-8");
    PathBuf::from(path.trim()).canonicalize().expect("the library")
}

const IN_SANDBOX: [&str; 1] = ["its sandbox does not let it reach the recorder"];

/// System calls that the attach makes and that a filter may kill for, by their numbers.
const CALLS: [(&str, i64); 9] = [
    ("socket", libc::SYS_socket),
    ("connect", libc::SYS_connect),
    ("sendto", libc::SYS_sendto),
    ("recvmsg", libc::SYS_recvmsg),
    #[cfg(target_arch = "x86_64")]
    ("poll", libc::SYS_poll),
    #[cfg(target_arch = "aarch64")]
    ("poll", libc::SYS_ppoll),
    ("mremap", libc::SYS_mremap),
    ("getpid", libc::SYS_getpid),
    ("gettid", libc::SYS_gettid),
    ("prctl", libc::SYS_prctl),
];

#[test]
fn program_in_a_filter_that_kills_runs_and_is_named() {
    let exits = target::c("exits");
    for (name, call) in CALLS {
        let (plain, recording) = started(&["filter", "kill", &call.to_string(), text(&exits)]);
        assert_eq!(plain.text(), "exited with 5\n", "{name}");
        assert!(recording.not_traced("exits") == IN_SANDBOX, "{name}: {:#?}", recording.about());
    }
}

#[test]
fn program_in_a_filter_that_refuses_is_named() {
    let exits = target::c("exits");
    for call in [libc::SYS_socket, libc::SYS_connect] {
        let (plain, recording) = started(&["filter", "errno", &call.to_string(), text(&exits)]);
        assert_eq!(plain.text(), "exited with 5\n");
        assert!(recording.not_traced("exits") == IN_SANDBOX, "{call}: {:#?}", recording.about());
        recording.heaptape(&["verify"]).exits(1);
    }
}

#[test]
fn supervisor_of_a_filter_is_not_asked_for_calls_of_the_library() {
    let exits = target::c("exits");
    for call in [libc::SYS_socket, libc::SYS_getpid, libc::SYS_prctl] {
        let (plain, _) = started(&["filter", "ask", &call.to_string(), text(&exits)]);
        assert_eq!(plain.text(), "exited with 5\nasked 0 times\n", "{call}");
    }
}

/// What the parent knows of its filter crosses the exec.
#[test]
fn program_in_a_filter_that_allows_all_is_recorded() {
    let (_, recording) = started(&["filter", "kill", "1000", text(&target::c("exits"))]);
    assert_eq!(recording.report().only("exits").allocs, 1);
    recording.heaptape(&["verify"]).success();
}

/// A filter that nobody has evaluated: the parent is not recorded.
#[test]
fn program_in_an_unknown_filter_is_left_alone() {
    for (name, call) in CALLS {
        let [starts, exits] = ["starts", "exits"].map(|name| target::c(name).display().to_string());
        let line = format!("env -u LD_PRELOAD SAVED_PRELOAD=$LD_PRELOAD {starts} filter kill {call} {exits}");
        let program = Program::shell(&line);
        let plain = program.plain().success();
        assert_eq!(plain.text(), "exited with 5\n", "{name}");
        same(&plain, &program.recorded().outcome);
    }
}

/// Nor is the library given on to what is started in such a filter: a sanitizer would end it.
#[test]
fn sanitized_program_runs_in_an_unknown_filter() {
    let folder = test_env::folder();
    let (starts, program) = (target::c("starts").display().to_string(), sanitized(folder.path(), "address"));
    let scripts = ["sh", "bash"].map(|shell| {
        let script = folder.path().join(shell);
        std::fs::write(&script, format!("#!/bin/{shell}\n{} 5\nexit $?\n", program.display())).expect("a script");
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("a script that may run");
        script
    });
    // Itself, it passes bad addresses.
    for script in scripts.iter().map(PathBuf::as_path).chain([Path::new(&starts)]) {
        let filter = format!("{starts} filter kill {} {}", libc::SYS_socket, script.display());
        let program = Program::shell(&format!("env -u LD_PRELOAD SAVED_PRELOAD=$LD_PRELOAD {filter}"));
        let plain = program.plain().success();
        assert_eq!(plain.text(), "exited with 5\n");
        same(&plain, &program.recorded().outcome);
    }
}

const WAYS: [&str; 4] = ["execv", "execl", "execvp", "execve"];

/// The stacks of 16 KiB and 4 KiB are enough for a program, and for one that must not load the
/// library.
#[test]
fn programs_are_started_from_small_stacks() {
    let folder = test_env::folder();
    let sanitized = sanitized(folder.path(), "address");
    let plain = target::c("exits");
    let ways = ["fork-", "vfork-", "clone-"].iter().flat_map(|how| WAYS.map(|way| format!("{how}{way}")));
    for how in std::iter::once("spawn".to_owned()).chain(ways) {
        for program in [&plain, &sanitized] {
            let (plain, recording) = started(&["stack", &how, text(program)]);
            assert_eq!(plain.text(), "exited with 5\n", "{how}");
            assert_eq!(
                recording.not_traced("exits").len(),
                usize::from(program == &sanitized),
                "{how}: {:#?}",
                recording.about()
            );
        }
    }
}

#[test]
fn program_in_another_folder_is_the_one_that_is_inspected() {
    let folder = test_env::folder();
    let other = folder.path().join("d1");
    std::fs::create_dir(&other).expect("a folder");
    sanitized(&other, "address");
    test_env::copy(target::c("exits"), folder.path().join("exits"));
    let program = Program::new(target::c("starts")).args(["folder", "./exits"]).folder(folder.path());
    let plain = program.plain().success();
    assert_eq!(plain.text(), "exited with 5\n");
    let recording = program.recorded();
    same(&plain, &recording.outcome);
    assert_eq!(recording.not_traced("exits").len(), 1, "{:#?}", recording.about());
    // The other way round.
    let sanitized = folder.path().join("exits");
    std::fs::rename(other.join("exits"), other.join("other")).expect("moved");
    std::fs::rename(&sanitized, other.join("exits")).expect("moved");
    std::fs::rename(other.join("other"), &sanitized).expect("moved");
    let recording = program.recorded();
    same(&plain, &recording.outcome);
    assert_eq!(recording.report().only("exits").allocs, 1);
}

#[test]
fn lock_on_a_started_program_is_kept() {
    let folder = test_env::folder();
    let program = folder.path().join("exits");
    test_env::copy(Target::program("exits.c").build(), &program);
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).expect("its rights");
    let (plain, recording) = started(&["lock", text(&program)]);
    assert_eq!(plain.text().matches("\nlocked\n").count(), 9, "{plain}");
    assert_eq!(recording.report().all("exits").count(), 6);
}

#[test]
fn sanitized_program_with_many_variables_runs() {
    let folder = test_env::folder();
    let program = sanitized(folder.path(), "address");
    let (plain, recording) = started(&["variables", "20000", text(&program)]);
    assert_eq!(plain.text(), "exited with 5\nexited with 5\n");
    assert_eq!(recording.not_traced("exits").len(), 2, "{:#?}", recording.about());
}

#[test]
fn sanitized_program_is_known_without_a_free_descriptor() {
    let folder = test_env::folder();
    let sanitized = sanitized(folder.path(), "address");
    for how in ["used", "new"] {
        let (plain, _) = started(&["full", how, text(&sanitized)]);
        assert_eq!(plain.text(), "exited with 5\n", "{how}");
    }
}

/// A program whose attach failed, or that the user left out, must not pass the library on to one with
/// a sanitizer either.
#[test]
fn sanitized_program_runs_where_its_parent_is_not_recorded() {
    let folder = test_env::folder();
    let sanitized = sanitized(folder.path(), "address");
    for (option, limit, named) in
        [("--only=none", "", 0), ("--stacks=none", "ulimit -Sn 4;", 1), ("--stacks=none", "ulimit -Sv 6000;", 1)]
    {
        let line = format!("{limit} sh -c 'ulimit -Sv unlimited; {} 5; echo $?'; :", sanitized.display());
        let program = Program::shell(&line);
        let plain = program.plain().success();
        assert_eq!(plain.text(), "5\n", "{limit}");
        let recording = program.option(option).recorded();
        same(&plain, &recording.outcome);
        assert_eq!(recording.not_traced("exits").len(), named, "{limit}: {:#?}", recording.about());
    }
}

/// libc's `syscall` starts a program as its `execve` does: one with a sanitizer must not get the library,
/// and the loader must not complain that it is not in another root.
#[test]
fn programs_that_a_system_call_starts_are_inspected() {
    let folder = test_env::folder();
    let program = sanitized(folder.path(), "address");
    let libc = format!("{}/libc.so.6", target::LIBRARIES);
    let root = folder.path().join("root");
    for (file, from) in
        [("/program", target::c("exits")), (target::LOADER, target::LOADER.into()), (&libc[..], (&libc[..]).into())]
    {
        let to = root.join(file.trim_start_matches('/'));
        std::fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
        test_env::copy(from, &to);
    }
    let (plain, recording) = started(&["call", text(&root), text(&program)]);
    let third = if heaptape_tests::is_root() { "exited with 5" } else { "exited with 96" };
    assert_eq!(plain.text(), format!("exited with 5\nexited with 5\n{third}\n"));
    assert_eq!(recording.not_traced("exits").len(), 2, "{:#?}", recording.about());
}

/// A 64-bit library in its environment makes the loader of a 32-bit program complain.
#[test]
fn program_of_32_bits_does_not_get_the_library() {
    let target = Target::program("exits_32.c").flag("-m32").flag("-nostdlib").flag("-static").named("exits_32");
    let program = target.build();
    for (recording, plain) in [
        (Program::new(&program).recorded(), Program::new(&program).plain()),
        (Program::shell(text(&program)).recorded(), Program::shell(text(&program)).plain()),
    ] {
        assert_eq!(plain.code(), 5, "it runs here");
        assert_eq!(recording.outcome.code(), 5, "{}", recording.outcome);
        assert_eq!(recording.not_traced("exits_32"), ["it is a 32-bit program"], "{:#?}", recording.about());
    }
}

/// The run-time library of a sanitizer in `LD_PRELOAD` must be the first, as for a Python with a
/// sanitized extension.
#[test]
fn preloaded_sanitizer_stays_first() {
    let exits = target::c("exits");
    for sanitizer in ["asan", "lsan", "tsan"] {
        let program = Program::new(&exits).arg("5").env("LD_PRELOAD", sanitizer_runtime(sanitizer));
        program.plain().exits(5);
        let recording = program.recorded();
        assert_eq!(recording.outcome.code(), 5, "{}", recording.outcome);
        assert_eq!(recording.outcome.error().lines().count(), 1, "{}", recording.outcome);
        assert!(recording.not_traced("exits")[0].contains("must be loaded first"), "{:#?}", recording.about());
    }
    let runtime = sanitizer_runtime("asan");
    let line = format!("LD_PRELOAD=$LD_PRELOAD:{} {} 5", runtime.display(), exits.display());
    let program = Program::shell(&line);
    let plain = program.plain().exits(5);
    let recording = program.recorded();
    same(&plain, &recording.outcome);
    assert_eq!(recording.not_traced("exits").len(), 1, "{:#?}", recording.about());
}

/// LeakSanitizer follows frame pointers, so it would not find what its suppressions name.
#[test]
fn leak_sanitizer_keeps_its_stacks() {
    let folder = test_env::folder();
    let program = sanitized(folder.path(), "leak");
    let line = format!("{} 5", program.display());
    for program in [Program::shell(&line), Program::new(&program).arg("5")] {
        program.plain().exits(5);
        let recording = program.recorded();
        assert_eq!(recording.outcome.code(), 5, "{}", recording.outcome);
        assert!(recording.not_traced("exits")[0].contains("sanitizer"), "{:#?}", recording.about());
    }
}

#[test]
fn system_calls_that_are_dispatched_to_the_program_are_its_own() {
    let (plain, recording) = started(&["dispatch", text(&target::c("exits"))]);
    assert_eq!(plain.text(), "0 traps\nexited with 5\n");
    assert!(recording.report().only("starts").allocs >= 40);
}

/// glibc's debugging allocator has `malloc` in an old version only.
#[test]
fn debugging_allocator_of_glibc_is_called() {
    let program = Program::new(target::c("overflows")).env("LD_PRELOAD", "libc_malloc_debug.so.0");
    let program = program.env("MALLOC_CHECK_", "3");
    let plain = program.plain();
    assert_eq!((plain.code(), plain.error().trim()), (134, "free(): invalid pointer"), "{plain}");
    same(&plain, &program.recorded().outcome);
}

/// The waits for a stopped recorder have an end, whatever the clock of libc says.
#[test]
fn stopped_recorder_is_not_awaited_for_ever_with_a_frozen_clock() {
    use heaptape_tests::run::{started, survivor};
    use heaptape_tests::wait::{until, until_some};
    use nix::sys::signal::{Signal, kill};
    let clock = Target::library("frozen_clock.c").build();
    let program = Program::new(target::c("pairs")).arg("3000000").option(ring(1));
    let plain = program.plain().success();
    let program = program.option(format!("--preload={}", clock.display()));
    let recording = program.recorded_while(|command, _| {
        let recorder = survivor(command);
        let program = until_some("the program runs", || started(command.id()));
        kill(recorder, Signal::SIGSTOP).expect("stopped");
        until("the program ends", || !Path::new(&format!("/proc/{program}")).exists());
        kill(recorder, Signal::SIGCONT).expect("continued");
    });
    same(&plain, &recording.outcome);
}

/// A library that replaces the clock is preloaded into the command as well.
#[test]
fn command_with_a_frozen_clock_ends() {
    let clock = Target::library("frozen_clock.c").build();
    let program = Program::new(target::c("exits")).arg("5").env("LD_PRELOAD", &clock);
    let plain = program.plain().exits(5);
    let recording = program.recorded();
    same(&plain, &recording.outcome);
    assert_eq!(recording.report().only("exits").allocs, 1);
}

/// A program waits for a recorder that is busy with others: it has only this chance to be recorded.
#[test]
fn programs_that_start_all_at_once_are_recorded() {
    heaptape_tests::all_at_once::all_are_recorded(30, 4);
}

/// What a recorder leaves to the next one has no room in one message then.
#[test]
fn program_with_a_long_command_line_is_recorded() {
    let long = "\"".repeat(100_000);
    let program = Program::new(target::c("pairs")).args(["1000", "1", &long]);
    let recording = program.recorded().complete();
    assert!(recording.report().only("pairs").allocs >= 1000);
}
