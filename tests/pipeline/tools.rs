//! Other tools on the same process: they work, or the library steps aside; never a hang.

use heaptape_tests::{Program, Target, same, target, test_env, torture};

#[test]
fn under_strace_and_gdb() {
    for words in [
        vec!["strace", "-f", "-o", "/dev/null"],
        vec!["gdb", "-q", "-batch", "-return-child-result", "-ex", "run", "--args"],
    ] {
        let program = Program::new(target::c("pairs")).args(["2000", "2"]).behind(&words);
        let plain = program.plain();
        if plain.code() != 0 {
            continue; // tracing is not permitted here
        }
        let recording = program.recorded();
        assert_eq!(recording.outcome.code(), 0, "{}", recording.outcome);
        assert!(recording.outcome.text().contains("2000 pairs on 2 threads"), "{}", recording.outcome);
        let report = recording.report();
        assert_eq!(report.all("pairs").filter(|process| process.allocs >= 4_000).count(), 1, "{words:?}: {report:#?}");
        torture::passed(31, words[0], 1);
    }
}

#[test]
fn under_valgrind() {
    if test_env::find("valgrind").is_none() {
        return;
    }
    let program = Program::new(target::c("small")).arg("5").behind(&["valgrind", "-q"]);
    let plain = program.plain().exits(5);
    same(&plain, &program.preloaded());
    let recording = program.recorded();
    assert_eq!((recording.outcome.code(), &recording.outcome.stdout), (5, &plain.stdout), "{}", recording.outcome);
    torture::passed(31, "valgrind", 1);
}

#[test]
fn with_the_address_sanitizer() {
    let built =
        Target::program("small.c").flag("-fsanitize=address").flag("-U_FORTIFY_SOURCE").named("small-asan").build();
    let program = Program::new(built).arg("5").env("ASAN_OPTIONS", "detect_leaks=0");
    let plain = program.plain().exits(5);
    let recording = program.recorded();
    assert_eq!((recording.outcome.code(), &recording.outcome.stdout), (5, &plain.stdout), "{}", recording.outcome);
    torture::passed(31, "a program with the address sanitizer, unharmed", 1);
}
