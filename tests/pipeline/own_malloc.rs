//! Programs whose own `malloc` is called instead of the library's.

use heaptape_tests::test_env;
use heaptape_tests::{Program, Target, same, target};

/// A `malloc` that comes before the library's is called instead of it, and is named.
#[test]
fn program_with_its_own_malloc_is_named() {
    let own = Program::new(target::c("own_malloc"));
    let plain = own.plain().success();
    let recording = own.recorded();
    same(&plain, &recording.outcome);
    let name = "own_malloc (pid";
    for command in [&["report"][..], &["leaks"]] {
        let outcome = recording.heaptape(command);
        assert!(outcome.text().contains(name) && outcome.text().contains("has its own malloc"), "{outcome}");
    }
    let json = recording.heaptape(&["report", "--json"]).text();
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["processes"][0]["own_malloc"], true, "{json:#}");
    // The closing lines of `record`.
    let folder = test_env::folder();
    let recorder = Program::new(test_env::command()).args(["record", "-o"]).arg(folder.path().join("r")).arg("--");
    let outcome = own.as_arguments_of(recorder).plain().success();
    assert!(outcome.error().contains("has its own malloc"), "{outcome}");
    // A library that was preloaded before.
    let before = Target::library("own_malloc.c").build();
    let line = format!("env LD_PRELOAD={}:$LD_PRELOAD {} 0", before.display(), target::c("small").display());
    let about = Program::shell(&line).recorded().success().about();
    let small = about.processes.iter().find(|process| process.exe.ends_with("/small")).expect("it is recorded");
    assert!(small.own_malloc, "{about:#?}");
    // Libc's malloc, and one that comes after the library, are not its own.
    let recording = Program::new(target::c("small")).arg("0").recorded().success();
    assert!(
        !recording.about().processes[0].own_malloc && !recording.heaptape(&["report"]).text().contains("own malloc")
    );
}
