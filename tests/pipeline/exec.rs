//! Exec: each program that a pid runs is recorded as a process of its own.

use heaptape_tests::oracle::Depth;
use heaptape_tests::wait::until;
use heaptape_tests::{Daemon, Program, Target, is_full, is_root, same, target, test_env, torture};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

#[test]
fn each_program_of_an_exec_chain_is_recorded() {
    let length: u64 = if is_full() { 100 } else { 6 };
    let program = Program::new(target::c("exec_chain")).arg(length.to_string());
    let plain = program.plain().exits(3);
    same(&plain, &program.preloaded());
    let (recording, report, _) = program.recorded_like_counted(Depth::Live);
    same(&plain, &recording.outcome);
    recording.complete();
    let processes: Vec<_> = report.all("exec_chain").collect();
    assert_eq!(processes.len() as u64, length + 1, "{report:#?}");
    assert!(
        processes.iter().all(|process| process.pid == processes[0].pid && process.live_blocks >= 1),
        "{processes:#?}"
    );
    torture::passed(19, "execs in one process", length);
}

#[test]
fn chain_of_interpreters_is_recorded() {
    let folder = test_env::folder();
    let put = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("a script");
    put("a.sh", "exec env perl b.pl\n");
    put("b.pl", "exec '/usr/bin/python3', 'c.py';\n");
    put("c.py", "import os\nos.execvp('sh', ['sh', '-c', 'echo end of the chain; exit 7'])\n");
    let program = Program::new("sh").arg("a.sh").folder(folder.path());
    let plain = program.plain().exits(7);
    let recording = program.recorded();
    same(&plain, &recording.outcome);
    let recording = recording.complete();
    let report = recording.report();
    let names: Vec<&str> = report.processes.iter().map(heaptape_tests::Process::name).collect();
    assert!(names.contains(&"perl") && names.iter().any(|name| name.starts_with("python3")), "{names:?}");
    torture::passed(19, "programs in a chain of interpreters", names.len() as u64);
}

/// Each process names its origin: start, fork or exec.
#[test]
fn each_process_names_its_origin() {
    let program = Program::shell("/bin/true; (/bin/true); /bin/true | /bin/true; exec env /bin/true");
    let about = program.recorded().success().about();
    assert!(about.processes.len() >= 6 && about.not_traced.is_empty(), "{about:#?}");
    for (index, process) in about.processes.iter().enumerate() {
        let parent = about.processes.iter().find(|parent| Some(&parent.folder) == process.parent.as_ref());
        assert_eq!(parent.is_none(), index == 0, "{process:#?}");
        let is_exec = parent.is_some_and(|parent| parent.pid == process.pid || parent.pid == process.ppid);
        match process.origin.as_str() {
            "start" => assert_eq!(index, 0, "{process:#?}"),
            "fork" => assert_eq!(parent.map(|parent| parent.pid), Some(process.ppid), "{process:#?}"),
            "exec" => assert!(is_exec, "{process:#?}"),
            other => panic!("{other}: {process:#?}"),
        }
    }
}

/// A static program in its own folder, named `unseen`.
fn unseen(folder: &Path) -> std::path::PathBuf {
    let path = folder.join("unseen");
    test_env::copy(Target::program("small.c").flag("-static").named("small-static").build(), &path);
    path
}

/// Functions that start programs.
const KINDS: [&str; 12] = [
    "execve",
    "execv",
    "execl",
    "execle",
    "execvp",
    "execvpe",
    "execlp",
    "fexecve",
    "execveat",
    "vfork",
    "posix_spawn",
    "posix_spawnp",
];

/// Static programs are stopped at their exec, so that the library is loaded into them, for each
/// function that starts programs.
#[test]
fn static_children_are_recorded() {
    let folder = test_env::folder();
    let path = unseen(folder.path());
    // The search fails in the first folder.
    let search = format!("/proc:{}:{}", folder.path().display(), std::env::var("PATH").unwrap_or_default());
    for kind in KINDS {
        let program = Program::new(target::c("exec_kinds")).arg(kind).arg(&path).env("PATH", &search);
        let plain = program.plain().success();
        assert_eq!(plain.text(), "small\n7\n");
        let recording = program.recorded();
        same(&plain, &recording.outcome);
        let recording = recording.complete();
        let report = recording.report();
        let (first, child) = (&report.processes[0], report.only("unseen"));
        // glibc has a few blocks besides.
        let extra = child.live_bytes - 50 * 107;
        assert!(child.allocs >= 100 && extra <= 4096, "{kind}: {child:#?}");
        assert_eq!(child.ppid, first.pid, "{kind}: {child:#?}");
        assert!(recording.about().not_traced.is_empty(), "{kind}: {:#?}", recording.about());
    }
    torture::passed(29, "ways to start a static program, which is recorded", KINDS.len() as u64);
}

/// Programs that cannot load the library are named with their pids, for each function that starts
/// programs.
#[test]
fn static_children_without_symbols_are_named() {
    let folder = test_env::folder();
    let path = folder.path().join("unseen");
    let built = Target::program("small.c").flag("-static").flag("-s").named("small-stripped").build();
    test_env::copy(built, &path);
    let search = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap_or_default());
    for kind in KINDS {
        let program = Program::new(target::c("exec_kinds")).arg(kind).arg(&path).env("PATH", &search);
        let plain = program.plain().success();
        assert_eq!(plain.text(), "small\n7\n");
        same(&plain, &program.preloaded());
        let recording = program.recorded();
        same(&plain, &recording.outcome);
        let about = recording.about();
        let why = "it is statically linked, and has no symbol of an allocator that is known";
        assert_eq!(recording.not_traced("unseen"), [why], "{kind}: {about:#?}");
        let (first, unseen) = (&about.processes[0], &about.not_traced[0]);
        assert!(unseen.pid != first.pid && unseen.pid != 0, "{kind}: {about:#?}");
        let forked = about.processes.iter().filter(|process| process.pid == unseen.pid);
        forked.for_each(|process| {
            assert_eq!(process.exit, Some(heaptape_formats::recording::Exit::Exec), "{kind}: {about:#?}")
        });
        let output = recording.heaptape(&["report"]);
        assert!(output.text().contains("was not recorded: it is statically linked"), "{kind}: {output}");
    }
    torture::passed(29, "ways to start a static program, which is named", KINDS.len() as u64);
}

/// libc's `syscall` is seen, so the library gets into a static program that it starts.
#[test]
fn static_child_of_an_exec_by_syscall_is_recorded() {
    let folder = test_env::folder();
    let path = folder.path().join("unseen");
    test_env::copy(Target::program("sleeps.c").flag("-static").build(), &path);
    let recording = Program::new(target::c("exec_kinds")).arg("raw").arg(&path).arg("100").recorded().success();
    let report = recording.report();
    assert!(report.only("unseen").events() > 0, "{report:#?}");
    assert_eq!(recording.not_traced("unseen"), [""; 0], "{:#?}", recording.about());
}

/// A program that root records drops its privileges. Its loader still finds the library, and its
/// output is unchanged.
#[test]
fn program_that_drops_privileges_is_unharmed() {
    if !is_root() {
        return;
    }
    let line = "setpriv --reuid 65534 --regid 65534 --clear-groups sh -c 'echo words; id -u; ls /root; exit 5'";
    let program = Program::shell(line);
    let plain = program.plain().exits(5);
    same(&plain, &program.preloaded());
    same(&plain, &program.recorded().outcome);
    torture::passed(20, "unharmed programs of root that drop their privileges", 1);
}

#[test]
fn unrecordable_programs_are_named() {
    let folder = test_env::folder();
    let recording = Program::shell("env -i /bin/true; /nowhere/at/all; exit 3").recorded();
    assert_eq!(recording.outcome.code(), 3);
    let why = recording.not_traced("true");
    assert!(
        why.len() == 1 && why[0].starts_with("LD_PRELOAD was removed from its environment by env: keep it"),
        "{:#?}",
        recording.about()
    );
    assert_eq!(recording.about().not_traced.len(), 1, "{:#?}", recording.about());
    if !is_root() {
        return;
    }
    // A setuid program of another user.
    let path = folder.path().join("other");
    test_env::copy("/bin/true", &path);
    std::os::unix::fs::chown(&path, Some(65534), None).expect("another owner");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o4755)).expect("its rights");
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).expect("a way to it");
    let recording = Program::shell(&format!("{}; exit 4", path.display())).recorded();
    assert_eq!(recording.outcome.code(), 4);
    assert!(recording.not_traced("other").iter().any(|why| why.contains("setuid")), "{:#?}", recording.about());
    torture::passed(20, "named setuid programs of another user", 1);
}

/// A forked child attaches with its first event, and another thread starts a program at that moment.
/// It is said to be unrecorded only if it is, and then it is named.
#[test]
fn programs_that_start_during_an_attach_are_inspected() {
    const COUNT: usize = 40;
    let unseen = Target::program("small.c").flag("-static").flag("-s").named("small-stripped").build();
    let program = |path: &Path| Program::new(target::c("spawns_while_attaching")).arg(COUNT.to_string()).arg(path);
    for (path, unrecorded) in [(Path::new("/bin/true"), 0), (unseen.as_path(), COUNT)] {
        let program = program(path);
        let plain = program.plain().success();
        let recording = program.recorded();
        same(&plain, &recording.outcome);
        let about = recording.about();
        let recorded =
            about.processes.iter().filter(|process| Path::new(&process.exe).file_name() == path.file_name()).count();
        let named = about.not_traced.iter().map(|process| process.why.as_str()).collect::<Vec<_>>();
        assert_eq!((recorded, named.len()), (COUNT - unrecorded, unrecorded), "{named:?}");
        assert!(named.iter().all(|why| why.starts_with("it is statically linked")), "{named:?}");
    }
    torture::passed(20, "programs that start while another thread attaches", 2 * COUNT as u64);
}

/// A sanitizer's run-time ends its program when another library is before it. Such a program runs
/// without the library, by each function that starts programs, and is named.
#[test]
fn children_with_a_sanitizer_run_and_are_named() {
    let folder = test_env::folder();
    let file = folder.path().join("unseen.c");
    std::fs::write(&file, "#include <stdlib.h>\nint main(int c, char **v) { free(malloc(433)); return atoi(v[1]); }\n")
        .expect("a source");
    let program = folder.path().join("unseen");
    let path = format!("{}:/usr/bin:/bin", folder.path().display());
    for sanitizer in ["thread", "address"] {
        let flag = format!("-fsanitize={sanitizer}");
        let mut gcc = std::process::Command::new(test_env::need("gcc"));
        assert!(gcc.arg(&flag).arg("-o").arg(&program).arg(&file).status().expect("gcc").success());
        assert_eq!(Program::new(&program).arg("7").plain().code(), 7, "{sanitizer}: it runs here");
        for kind in KINDS {
            let starts = Program::new(target::c("exec_kinds")).arg(kind).arg(&program).env("PATH", &path);
            let plain = starts.plain().success();
            // Debian's ThreadSanitizer for aarch64 ends such a program.
            let is_broken = cfg!(target_arch = "aarch64") && (sanitizer, kind) == ("thread", "fexecve");
            assert!(is_broken || plain.text() == "7\n", "{kind}: {plain}");
            let recording = starts.recorded();
            same(&plain, &recording.outcome);
            let named = recording.not_traced("unseen");
            assert_eq!(named, ["it was built with a sanitizer, which must be loaded first"], "{sanitizer} {kind}");
            recording.report().only("exec_kinds");
        }
        // Other preloaded libraries stay, although AddressSanitizer accepts none before it.
        let line = format!("export LD_PRELOAD=\"$LD_PRELOAD:libm.so.6\"; {} 5; echo $?", program.display());
        let starts = Program::shell(&line);
        let (plain, recording) = (starts.plain(), starts.recorded());
        assert_eq!(recording.outcome.text(), plain.text(), "{sanitizer}: {}", recording.outcome);
        assert_eq!(recording.not_traced("unseen").len(), 1, "{sanitizer}: {:#?}", recording.about());
    }
    torture::passed(20, "named programs with a sanitizer, unharmed", 24);
}

/// A child that shares the memory of an unrecorded program, as LeakSanitizer starts one, is a part of it.
#[test]
fn parts_of_unrecorded_programs_are_not_named() {
    let folder = test_env::folder();
    let (file, program) = (folder.path().join("shares.c"), folder.path().join("shares"));
    let source = "#define _GNU_SOURCE\n#include <sched.h>\n#include <signal.h>\n#include <stdlib.h>\n#include <sys/wait.h>\n\
                  #include <unistd.h>\nstatic int waits(void *unused) { (void)unused; sleep(2); return 0; }\n\
                  static char stack[65536] __attribute__((aligned(16)));\n\
                  int main(void) { free(malloc(433));\n\
                  int pid = clone(waits, stack + sizeof stack, CLONE_VM | SIGCHLD, NULL);\n\
                  return waitpid(pid, NULL, 0) != pid; }\n";
    std::fs::write(&file, source).expect("a source");
    let mut gcc = std::process::Command::new(test_env::need("gcc"));
    assert!(
        gcc.arg("-fsanitize=undefined,address").arg("-o").arg(&program).arg(&file).status().expect("gcc").success()
    );
    let starts = Program::shell(&format!("{}; echo $?", program.display()));
    // LeakSanitizer itself has nothing to do with it.
    let recording = starts.env("ASAN_OPTIONS", "detect_leaks=0").recorded();
    assert_eq!(recording.outcome.text(), "0\n");
    assert_eq!(recording.not_traced("shares"), ["it was built with a sanitizer, which must be loaded first"]);
}

/// Programs are chosen by name.
#[test]
fn only_and_skip_select_programs() {
    let line = "ls / >/dev/null; cat /dev/null; env true; exit 5";
    for (option, there, gone) in
        [("--only=ca*,env", ["cat", "env"], ["ls", "true"]), ("--skip=cat,e*v", ["ls", "true"], ["cat", "env"])]
    {
        let recording = Program::shell(line).option(option).recorded();
        assert_eq!(recording.outcome.code(), 5);
        let report = recording.complete().report();
        let has = |name: &str| report.processes.iter().any(|process| process.name() == name);
        assert!(there.into_iter().all(has) && !gone.into_iter().any(has), "{option}: {report:#?}");
    }
}

/// The options also select among the programs that the started one executes in its own process:
/// wrappers before the selected program are left out.
#[test]
fn only_and_skip_apply_within_an_exec_chain() {
    for (option, there) in [("--only=ls", &["ls"][..]), ("--skip=env", &["bash", "ls"]), ("--only=nobody", &[])] {
        let recording =
            Program::shell("exec bash -c 'exec env ls / >/dev/null'").option(option).recorded().success().complete();
        let mut names: Vec<String> = recording.report().processes.iter().map(|one| one.name().to_string()).collect();
        assert!(names.len() == there.len() + 1, "the shell that was launched, and {there:?}: {names:?}");
        names.remove(0);
        assert_eq!(names, there, "{option}");
    }
}

/// A program that starts while the recorder is stopped runs unrecorded after 50 ms, and is named.
#[test]
fn program_that_gave_up_waiting_is_named() {
    use nix::sys::signal::{Signal, kill};
    let folder = test_env::folder();
    let (go, done) = (folder.path().join("go"), folder.path().join("done"));
    let line = format!(
        "touch {0}.ready; while [ ! -e {0} ]; do sleep 0.01; done; env true; touch {1}; sleep 0.1; exit 6",
        go.display(),
        done.display()
    );
    let recording = Program::shell(&line).recorded_while(|command, _| {
        until("the shell runs", || go.with_extension("ready").exists());
        let id = heaptape_tests::run::survivor(command);
        std::thread::sleep(Duration::from_millis(100));
        kill(id, Signal::SIGSTOP).expect("SIGSTOP");
        std::fs::write(&go, "").expect("the signal to go");
        until("the program goes on", || done.exists());
        kill(id, Signal::SIGCONT).expect("SIGCONT");
    });
    assert_eq!(recording.outcome.code(), 6, "{}", recording.outcome);
    let about = recording.about();
    let gave_up = about.not_traced.iter().filter(|process| process.why.contains("no longer waited for the recorder"));
    assert!(gave_up.count() >= 1, "{about:#?}");
    let report = recording.report();
    report.processes.iter().for_each(heaptape_tests::Process::assert_accounting);
    torture::passed(7, "named programs that started while the recorder was stopped", 1);
}

/// Invalid arguments of exec fail with the errors of the kernel.
#[test]
fn bad_exec_addresses_fail_as_in_the_kernel() {
    // What is started in a sandbox gets another environment.
    let kinds = [&[][..], &["sandbox"]].map(|arguments| {
        let program = Program::new(target::c("exec_pointers")).args(arguments);
        let plain = program.plain().success();
        assert!(plain.text().contains("environment -1 EFAULT"), "{plain}");
        assert!(plain.text().contains("no environment -1 EINVAL"), "{plain}");
        same(&plain, &program.preloaded());
        same(&plain, &program.recorded().outcome);
        plain.text().lines().count() as u64
    });
    torture::passed(19, "kinds of invalid addresses passed to exec", kinds.iter().sum());
}

/// Descriptors that the library opens for the inspection of a program are not visible to other
/// threads.
#[test]
fn starts_show_no_descriptor_to_other_threads() {
    let count = if is_full() { 5_000 } else { 100 };
    let sleeps = Target::program("sleeps.c").flag("-static").build();
    let program = Program::new(target::c("spawns_beside_threads")).arg(count.to_string()).arg(&sleeps);
    let plain = program.plain().success();
    assert_eq!(plain.text(), "only its own descriptors\n");
    let recording = program.recorded();
    same(&plain, &recording.outcome);
    let about = recording.about();
    let recorded = about.processes.iter().filter(|process| process.exe.ends_with("/sleeps")).count();
    assert_eq!((recorded, about.not_traced.len()), (count, 0), "{about:#?}");
    torture::passed(21, "program starts while another thread lists the descriptors", count as u64);
}

/// A forked child of a dormant process attaches at the first allocation of another thread.
#[test]
fn attach_of_a_forked_child_shows_no_descriptor_to_other_threads() {
    let count = if is_full() { 2_000 } else { 100 };
    let daemon = Daemon::start(&["--mode", "off"]);
    let ended = daemon.run(&target::c("allocates_beside_threads"), &[&count.to_string()]).success();
    assert_eq!(ended.text(), "0 children saw a descriptor of another's\n");
    let staying = daemon.spawn(&target::c("allocates_beside_threads"), &["1", "stays"], None);
    until("the child attaches, too", || daemon.list("allocates_besid").len() == 2);
    drop(staying);
    torture::passed(21, "attaches of forked children while another thread lists the descriptors", count);
}

/// One whose threads do not allocate does not attach. Its starts show no descriptor either.
#[test]
fn starts_of_a_forked_child_show_no_descriptor_to_other_threads() {
    let count = if is_full() { 50_000 } else { 600 };
    let program = target::c("spawns_beside_threads");
    let arguments = [count.to_string(), "/bin/true".to_owned(), "forked".to_owned()];
    let arguments = arguments.each_ref().map(String::as_str);
    let daemon = Daemon::start(&["--mode", "off"]);
    assert_eq!(daemon.run(&program, &arguments).success().text(), "only its own descriptors\n");
    torture::passed(21, "starts by a forked child while another thread lists the descriptors", count);
}
