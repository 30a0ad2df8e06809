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
        for (source, arguments) in [("pairs.c", ["20000", "1"]), ("threads.c", ["4", "2000"])] {
            let Some(program) = build(source, kind) else { continue };
            let folder = test_env::folder();
            let file = folder.path().join("own");
            let program = Program::new(program).args(arguments).env("OWN_FILE", &file);
            let plain = program.plain().success();
            std::fs::remove_file(&file).expect("own figures");
            let recording = program.recorded();
            same(&plain, &recording.outcome);
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

/// Children by fork are recorded, children by exec are recorded or named, and a filter for system
/// calls kills nothing.
#[test]
fn children_and_sandboxes_of_static_programs() {
    let kind = ("gcc", "-static");
    let program = build("exec_kinds.c", kind).expect("gcc");
    let unseen = Target::program("small.c").flag("-static").flag("-s").named("unseen").build();
    for how in ["execve", "execl", "vfork", "posix_spawn"] {
        let program = Program::new(&program).arg(how).arg(&unseen);
        let plain = program.plain().success();
        let recording = program.recorded();
        same(&plain, &recording.outcome);
        let about = recording.about();
        assert_eq!(recording.not_traced("unseen"), ["it is statically linked"], "{how}: {about:#?}");
    }
    for arguments in [&["sandbox.c"][..], &["sandbox_kinds.c", "strict"], &["sandbox_kinds.c", "nodes", "10"]] {
        let program = Program::new(build(arguments[0], kind).expect("gcc")).args(&arguments[1..]);
        let plain = program.plain();
        same(&plain, &program.recorded().outcome);
    }
}

/// A program without symbols, and one that is setuid, run as before and are named.
#[test]
fn static_programs_that_cannot_be_hooked_are_named() {
    let folder = test_env::folder();
    let copy = |name: &str, from: &Path| {
        let path = folder.path().join(name);
        std::fs::copy(from, &path).expect("a copy");
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
