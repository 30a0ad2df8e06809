//! Programs whose own `malloc` is called instead of the library's.

use heaptape_tests::test_env;
use heaptape_tests::{Program, Target, same, target};

/// A `malloc` of the program comes before the library's. It is hooked inside the program.
#[test]
fn program_with_its_own_malloc_is_recorded() {
    // Without optimization, so that the calls are not inlined.
    is_recorded(&Program::new(Target::program("own_malloc.c").flag("-O0").build()));
}

/// Its functions begin where branches may lead to, and sign their return addresses.
#[test]
fn program_with_protected_branches_is_recorded() {
    let own = Target::program("own_malloc.c").flag("-O0").flag(target::PROTECTED).named("own_malloc_protected");
    is_recorded(&Program::new(own.build()));
}

#[track_caller]
fn is_recorded(own: &Program) {
    let plain = own.plain().success();
    let recording = own.recorded();
    same(&plain, &recording.outcome);
    let recording = recording.complete();
    let process = &recording.report().processes[0];
    assert_eq!((process.allocs, process.frees, process.bytes_allocated), (100, 100, 81_100), "{process:#?}");
    let about = recording.about();
    let [allocator] = &about.processes[0].allocators[..] else { panic!("one allocator: {about:#?}") };
    assert_eq!((&allocator.name[..], allocator.found, allocator.hooked), ("malloc of the program", 4, 4));
    for command in [&["report"][..], &["leaks"]] {
        let outcome = recording.heaptape(command);
        assert!(!outcome.text().contains("has its own malloc"), "{outcome}");
    }
}

/// A `malloc` that comes before the library's and is not hooked is named.
#[test]
fn program_with_its_own_malloc_is_named() {
    // A library that was preloaded before.
    let before = Target::library("own_malloc.c").build();
    let line = format!("env LD_PRELOAD={}:$LD_PRELOAD {} 0", before.display(), target::c("small").display());
    let recording = Program::shell(&line).recorded().success();
    let about = recording.about();
    let small = about.processes.iter().find(|process| process.exe.ends_with("/small")).expect("it is recorded");
    assert!(small.own_malloc, "{about:#?}");
    for command in [&["report"][..], &["leaks"]] {
        let outcome = recording.heaptape(command);
        let text = outcome.text();
        assert!(text.contains("small (pid") && text.contains("has its own malloc"), "{outcome}");
    }
    let json = recording.heaptape(&["report", "--json"]).text();
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let processes = json["processes"].as_array().expect("processes");
    assert!(processes.iter().any(|process| process["own_malloc"] == true), "{json:#}");
    // The closing lines of `record`.
    let folder = test_env::folder();
    let recorder = Program::new(test_env::command()).args(["record", "-o"]).arg(folder.path().join("r")).arg("--");
    let outcome = Program::shell(&line).as_arguments_of(recorder).plain().success();
    assert!(outcome.error().contains("has its own malloc"), "{outcome}");
    // Libc's malloc, and one that comes after the library, are not its own.
    let recording = Program::new(target::c("small")).arg("0").recorded().success();
    assert!(
        !recording.about().processes[0].own_malloc && !recording.heaptape(&["report"]).text().contains("own malloc")
    );
}
