//! Other tools on the same process: they work, or the library is inert. Nothing hangs.

use heaptape_tests::{Program, Target, same, target, test_env, torture};

#[test]
fn programs_under_strace_and_gdb_are_recorded() {
    for arguments in [
        vec!["strace", "-f", "-o", "/dev/null"],
        vec!["gdb", "-q", "-batch", "-return-child-result", "-ex", "run", "--args"],
    ] {
        let program = Program::new(target::c("pairs")).args(["2000", "2"]).launched_by(&arguments);
        let plain = program.plain();
        if plain.code() != 0 {
            continue; // tracing is not permitted here
        }
        let recording = program.recorded();
        assert_eq!(recording.outcome.code(), 0, "{}", recording.outcome);
        assert!(recording.outcome.text().contains("2000 pairs on 2 threads"), "{}", recording.outcome);
        let report = recording.report();
        assert_eq!(
            report.all("pairs").filter(|process| process.allocs >= 4_000).count(),
            1,
            "{arguments:?}: {report:#?}"
        );
        torture::passed(31, arguments[0], 1);
    }
}

#[test]
fn programs_under_valgrind_are_unharmed() {
    if test_env::find("valgrind").is_none() {
        return;
    }
    let program = Program::new(target::c("small")).arg("5").launched_by(&["valgrind", "-q"]);
    let plain = program.plain().exits(5);
    same(&plain, &program.preloaded());
    let recording = program.recorded();
    assert_eq!((recording.outcome.code(), &recording.outcome.stdout), (5, &plain.stdout), "{}", recording.outcome);
    torture::passed(31, "valgrind", 1);
}

#[test]
fn program_with_address_sanitizer_is_unharmed() {
    let built =
        Target::program("small.c").flag("-fsanitize=address").flag("-U_FORTIFY_SOURCE").named("small-asan").build();
    let program = Program::new(built).arg("5").env("ASAN_OPTIONS", "detect_leaks=0");
    let plain = program.plain().exits(5);
    let recording = program.recorded();
    assert_eq!((recording.outcome.code(), &recording.outcome.stdout), (5, &plain.stdout), "{}", recording.outcome);
    torture::passed(31, "unharmed programs with AddressSanitizer", 1);
}
