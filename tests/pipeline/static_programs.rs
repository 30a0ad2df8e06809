//! Static programs: stopped at their exec, so that the library is loaded before their first
//! instruction.

use heaptape_tests::{Program, Target, own, same, test_env};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The kinds of static programs, by compiler and flag.
const KINDS: [(&str, &str); 3] = [("gcc", "-static"), ("gcc", "-static-pie"), ("musl-gcc", "-static")];

/// Builds a static program; `None` if musl-tools are not installed.
fn build(source: &str, (compiler, flag): (&str, &str)) -> Option<PathBuf> {
    test_env::find(compiler)?;
    Some(Target::program(source).by(compiler).flag(flag).named(&format!("static{flag}-{compiler}")).build())
}

/// All events are recorded with the program's own addresses and sizes, of all threads. glibc itself
/// requests a few blocks at the start and for each thread, and frees those of `LD_LIBRARY_PATH`.
#[test]
fn events_of_static_programs_are_recorded_exactly() {
    for kind in KINDS {
        for (source, arguments) in
            [("pairs.c", ["20000", "1"]), ("threads.c", ["4", "2000"]), ("moves.c", ["4", "20000"])]
        {
            let Some(program) = build(source, kind) else { continue };
            let folder = test_env::folder();
            let file = folder.path().join("own");
            let program = Program::new(program).args(arguments).env("OWN_FILE", &file);
            let recording = program.recorded_counting(&file);
            let recording = recording.complete();
            let own = own::read(&file);
            if kind.0 == "musl-gcc" {
                own::equal(&own, &own::recorded(&recording));
            }
            // Addresses and their order are compared for musl, which requests nothing by itself.
            let (own, report) = (own::sum(&own), recording.report());
            let recorded = &report.processes[0];
            let extra = recorded.allocs - own.allocs;
            assert!(extra <= 32, "{kind:?} {source}: {extra} more\n{recorded:#?}\n{own:#?}");
            let extra_frees = recorded.frees - own.frees;
            assert!(extra_frees <= extra, "{kind:?} {source}: {extra_frees} more\n{recorded:#?}\n{own:#?}");
            assert_eq!((recorded.resizes, recorded.lost_events), (own.resizes, 0), "{kind:?} {source}");
            let allocators = &recording.about().processes[0].allocators;
            assert!(allocators.len() == 1 && allocators[0].hooked == allocators[0].found, "{allocators:#?}");
        }
    }
}

/// What a static program with glibc has besides the program's own events is the same for any number
/// of these: no event of the program is missing, and none is counted twice.
#[test]
fn events_of_static_glibc_programs_are_exact() {
    for kind in &KINDS[..2] {
        let extra = |pairs: &str| {
            let folder = test_env::folder();
            let file = folder.path().join("own");
            let program = build("pairs.c", *kind).expect("gcc");
            let recording = Program::new(program).args([pairs, "2"]).env("OWN_FILE", &file).recorded().complete();
            let (own, report) = (own::sum(&own::read(&file)), recording.report());
            let process = &report.processes[0];
            let recorded = [process.allocs, process.resizes, process.frees, process.bytes_allocated];
            let own = [own.allocs, own.resizes, own.frees, own.bytes];
            std::array::from_fn::<_, 4, _>(|index| recorded[index].checked_sub(own[index]).expect("all are recorded"))
        };
        let (few, many) = (extra("10"), extra("30000"));
        assert_eq!(few, many, "{kind:?}");
        assert!(few[0] <= 32, "{kind:?}: {few:?}");
    }
}

/// Programs that start others run as before, and so do those that they start. musl executes them on
/// a stack of 5 KiB.
#[test]
fn static_programs_start_others_as_before() {
    for kind in KINDS {
        let Some(program) = build("spawns.c", kind) else { continue };
        let program = Program::new(program);
        let plain = program.plain().success();
        assert_eq!(plain.text(), "spawned 0\nsystem 3\npopen words\nfork 0\n");
        let recording = program.recorded();
        same(&plain, &recording.outcome);
        // musl describes none of the code that starts a spawned child.
        recording.report().processes.iter().for_each(heaptape_tests::Process::assert_accounting);
        let spawned = recording.about().processes.iter().filter(|process| process.argv.len() == 2).count();
        assert!(recording.report().processes.iter().all(|process| process.allocs > 0), "{kind:?}");
        assert_eq!(spawned, 2, "{kind:?}: the static children are recorded: {:#?}", recording.about());
    }
}

/// A leak has the stack of the program, also where the linker made no table of its unwind rules.
#[test]
fn leak_in_static_program_has_its_stack() {
    for kind in KINDS {
        let Some(program) = build("small.c", kind) else { continue };
        let recording = Program::new(program).arg("3").recorded().complete();
        let leaks = recording.leaks();
        let found = leaks.iter().find(|leak| (leak.blocks, leak.bytes) == (50, 50 * 107));
        let found = found.unwrap_or_else(|| panic!("{kind:?}: {leaks:#?}"));
        assert!(found.functions().contains(&"main"), "{kind:?}: {found:#?}");
    }
}

/// A Rust program that is static, as it is by default for musl.
#[test]
fn static_rust_program_is_recorded() {
    let program = Target::program("words.rs").flag("-Ctarget-feature=+crt-static").named("words-static").build();
    let program = Program::new(program);
    let plain = program.plain().success();
    let recording = program.recorded();
    same(&plain, &recording.outcome);
    let recording = recording.complete();
    assert!(recording.report().only("words-static").allocs > 0);
}

/// Children of static programs by exec are recorded or named, and a filter for system calls kills
/// nothing.
#[test]
fn children_and_sandboxes_of_static_programs() {
    let kind = ("gcc", "-static");
    let program = build("exec_kinds.c", kind).expect("gcc");
    let folder = test_env::folder();
    let child = |name: &str, flags: &[&str]| {
        let built = flags.iter().fold(Target::program("small.c"), |target, flag| target.flag(flag));
        let path = folder.path().join(name);
        test_env::copy(built.named(name).build(), &path);
        path
    };
    let (seen, unseen) = (child("seen", &["-static"]), child("unseen", &["-static", "-s"]));
    for how in ["execve", "execl", "vfork", "posix_spawn"] {
        let program = Program::new(&program).arg(how);
        let named = program.clone().arg(&unseen);
        let plain = named.plain().success();
        let recording = named.recorded();
        same(&plain, &recording.outcome);
        let reasons = recording.not_traced("unseen");
        assert!(reasons.len() == 1 && reasons[0].contains("no symbol"), "{how}: {:#?}", recording.about());
        let recording = program.arg(&seen).recorded();
        same(&plain, &recording.outcome);
        let report = recording.complete().report();
        let extra = report.only("seen").live_bytes - 50 * 107;
        assert!(extra <= 4096, "{how}: {report:#?}");
    }
    for arguments in [&["sandbox.c"][..], &["sandbox_kinds.c", "strict"], &["sandbox_kinds.c", "nodes", "10"]] {
        let program = Program::new(build(arguments[0], kind).expect("gcc")).args(&arguments[1..]);
        let plain = program.plain();
        same(&plain, &program.recorded().outcome);
    }
}

/// A shell, make and `env` start static programs of each kind, and one executes itself again and
/// again, also from a second thread. Exit status, output and the end by a signal are as without.
#[test]
fn static_programs_that_others_start_are_recorded() {
    for kind in KINDS {
        let Some(small) = build("small.c", kind) else { continue };
        let small = small.to_str().expect("a plain path");
        let folder = test_env::folder();
        std::fs::write(folder.path().join("Makefile"), format!("all:\n\t@{small} 0\n\t@{small} 0; {small} 9\n"))
            .expect("a makefile");
        let script =
            format!("{small} 3; echo $?; {small} 0 | cat; for i in 1 2 3; do {small} $i & wait $!; echo $?; done");
        let starts: [(&str, Vec<&str>, usize); 3] = [
            ("sh", vec!["-c", &script], 5),
            ("make", vec!["-s", "-C", folder.path().to_str().expect("a plain path")], 3),
            ("env", vec![small, "0"], 1),
        ];
        for (launcher, arguments, count) in starts {
            let program = Program::new(launcher).args(&arguments);
            let plain = program.plain();
            let recording = program.recorded();
            same(&plain, &recording.outcome);
            let report = recording.report();
            let found: Vec<_> = report.processes.iter().filter(|one| one.exe.ends_with(small)).collect();
            assert_eq!(found.len(), count, "{kind:?} {launcher}: {:#?}", recording.about());
            for one in found {
                one.assert_accounting();
                // glibc has a few blocks besides.
                let extra = one.live_bytes - 50 * 107;
                assert!(one.allocs >= 100 && extra <= 4096, "{kind:?} {launcher}: {one:#?}");
                assert!(kind.0 != "musl-gcc" || extra == 0, "{kind:?} {launcher}: {one:#?}");
            }
        }
        let Some(chain) = build("exec_chain.c", kind) else { continue };
        let program = Program::new(chain).arg("4");
        let plain = program.plain().exits(3);
        let recording = program.recorded();
        same(&plain, &recording.outcome);
        let report = recording.report();
        assert_eq!(report.processes.len(), 5, "{kind:?}: {:#?}", recording.about());
        assert!(report.processes.iter().all(|one| one.live_bytes >= 801 && one.allocs >= 2), "{kind:?}: {report:#?}");
    }
}

/// A static child that the recorder may not stop, since another one traces it, is named with its
/// own process number, not with that of the process that started it.
#[test]
fn refused_static_children_are_named_by_their_own_number() {
    let folder = test_env::folder();
    let child = folder.path().join("child");
    test_env::copy(build("small.c", ("gcc", "-static")).expect("gcc"), &child);
    let program = Program::new(Target::program("exec_kinds.c").build()).arg("posix_spawn").arg(&child);
    let recording = program.launched_by(&["strace", "-f", "-qq", "-o", "/dev/null"]).recorded().success();
    let about = recording.about();
    let children: Vec<_> = about.not_traced.iter().filter(|one| one.exe.ends_with("/child")).collect();
    let [child] = children[..] else { panic!("one child: {about:#?}") };
    assert!(child.why.contains("ptrace"), "{about:#?}");
    assert!(child.pid != 0 && about.processes.iter().all(|process| process.pid != child.pid), "{about:#?}");
}

/// A static program that a signal ends, in a pipeline of a shell, ends by it when it is recorded.
#[test]
fn signals_end_static_children() {
    let ends = build("sleeps.c", ("gcc", "-static")).expect("gcc");
    let ends = ends.to_str().expect("a plain path");
    let script = format!(
        "exec 2>/dev/null; for s in TERM KILL STOP; do {ends} 300 & sleep 0.1; kill -$s $!; sleep 0.1; kill -CONT $!; wait $!; echo $?; done"
    );
    let program = Program::new("bash").args(["-c", &script]);
    let plain = program.plain().success();
    let recording = program.recorded();
    same(&plain, &recording.outcome);
    let about = recording.about();
    let found = about.processes.iter().filter(|process| process.exe.ends_with(ends));
    assert_eq!(found.count(), 3, "{about:#?}");
}

/// A program without symbols, and one that is setuid, run as before and are named.
#[test]
fn static_programs_that_cannot_be_hooked_are_named() {
    let folder = test_env::folder();
    let copy = |name: &str, from: &Path| {
        let path = folder.path().join(name);
        test_env::copy(from, &path);
        path
    };
    let built = Target::program("small.c").flag("-static").named("small-static").build();
    let stripped = Target::program("small.c").flag("-static").flag("-s").named("small-stripped").build();
    let privileged = copy("privileged", &built);
    std::fs::set_permissions(&privileged, std::fs::Permissions::from_mode(0o4755)).expect("a mode");
    let cases = [(copy("stripped", &stripped), "no symbol of an allocator"), (privileged, "setuid")];
    for (path, why) in cases {
        let program = Program::new(&path).arg("7");
        let plain = program.plain().exits(7);
        let recording = program.recorded();
        assert_eq!((recording.outcome.code(), &recording.outcome.stdout), (7, &plain.stdout), "{}", recording.outcome);
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        let reasons = recording.not_traced(name);
        assert!(reasons.len() == 1 && reasons[0].contains(why), "{name}: {reasons:?}");
    }
}

/// The heap of Go has no functions that could be hooked, with or without symbols.
#[test]
fn static_programs_in_go_are_named() {
    let tools = Program::new("go").args(["env", "GOTOOLDIR"]).plain().success();
    let assembler = Path::new(tools.text().trim()).join("asm");
    let recording = Program::new(&assembler).arg("-V").recorded();
    assert_eq!(recording.outcome.code(), 0, "{}", recording.outcome);
    let reasons = recording.not_traced("asm");
    assert!(reasons.len() == 1 && reasons[0].contains("written in Go"), "{reasons:?}");
}
