//! Events before constructors and after destructors.

use heaptape_tests::oracle::Counts;
use heaptape_tests::{Program, Target, same, test_env, torture};

fn program(flag: &str) -> Program {
    let library = Target::library("early_library.c").flag(flag).named("libearly.so").build();
    Program::new(Target::program("early_and_late.c").with(&library).build())
}

#[test]
fn allocations_before_and_after_main_are_recorded() {
    let program = program("-DPLAIN");
    let plain = program.plain().success();
    same(&plain, &program.preloaded());
    let folder = test_env::folder();
    let recording = program.clone().counted(folder.path()).recorded();
    same(&plain, &recording.outcome);
    let recording = recording.complete();
    let report = recording.report();
    // The counter waits for libc's environment; the two blocks of the preinit array, one freed,
    // come before it.
    let counts = Counts::read_all(folder.path());
    let counts = counts.iter().find(|counts| counts.name() == "early_and_late").expect("its counts");
    let found = report.only("early_and_late");
    assert_eq!((found.allocs, found.frees, found.resizes), (counts.allocs + 2, counts.frees + 1, counts.resizes));
    assert_eq!(found.bytes_allocated, counts.bytes + 1451 + 1453, "{found:#?}");
    assert_eq!((found.live_blocks, found.live_bytes), (counts.live_blocks + 1, counts.live_bytes + 1451));
    // By size: the leaks of the preinit array, the constructor of the library, the exit handler,
    // and the destructors of program and library.
    let leaks = recording.leaks();
    for bytes in [1451, 1423, 1481, 1487, 1433] {
        assert!(leaks.iter().any(|leak| leak.bytes == bytes), "{bytes} bytes: {leaks:#?}");
    }
    assert!(report.only("early_and_late").frees >= 10);
    torture::passed(26, "phases before and after main", 9);
}

/// A resolver runs while relocations are applied, perhaps before those of libc. It must not crash.
#[test]
fn allocation_in_an_ifunc_resolver_does_not_crash() {
    let program = program("-DIFUNC");
    let plain = program.plain();
    let preloaded = program.preloaded();
    same(&plain, &preloaded);
    let recording = program.recorded();
    same(&plain, &recording.outcome);
    recording.report().only("early_and_late").assert_accounting();
    torture::passed(26, "allocations in an IFUNC resolver", 1);
}

#[test]
fn programs_of_every_binding_are_recorded() {
    for binding in ["-Wl,-z,lazy", "-Wl,-z,now"] {
        let program = Program::new(Target::program("pairs.c").flag(binding).build()).args(["20000", "2"]);
        let plain = program.plain().success();
        let recording = program.recorded().complete();
        same(&plain, &recording.outcome);
        assert!(recording.report().only("pairs").allocs >= 40_000);
    }
    // Not position-independent, and without a PLT.
    for flags in [["-no-pie", "-fno-pie"], ["-fno-plt", "-pie"]] {
        let built = flags.iter().fold(Target::program("known_stacks.c"), |target, flag| target.flag(*flag)).build();
        let recording = Program::new(built).recorded().complete();
        let leaks = recording.leaks();
        let names = leaks
            .iter()
            .find(|leak| leak.bytes == 3001)
            .map(heaptape_tests::recording::Leak::functions)
            .unwrap_or_default();
        assert_eq!(names[..5], ["leaf", "plain_c", "plain_b", "plain_a", "main"], "{flags:?}");
    }
}
