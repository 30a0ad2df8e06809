//! The interface of the allocator: results, alignment, usable sizes and errno equal those of a bare
//! run, to the byte.

use heaptape_tests::{Program, same, target, torture};

#[test]
fn allocator_interface_behaves_as_in_a_bare_run() {
    let program = Program::new(target::c("semantics")).launched_by(&["setarch", "-R"]);
    let plain = program.plain().success();
    same(&plain, &program.preloaded());
    let recording = program.recorded().complete();
    same(&plain, &recording.outcome);
    let cases = plain.text().lines().count() as u64;
    assert!(cases > 150, "{cases} cases");
    torture::passed(25, "cases of the allocator interface with equal results", cases);
}

#[test]
fn hooks_are_no_cancellation_points() {
    let program = Program::new(target::c("cancel_points"));
    let plain = program.plain().success();
    let recording = program.recorded().complete();
    same(&plain, &recording.outcome);
    assert_eq!(plain.text(), "20\n");
}

#[test]
fn every_way_to_end_is_recorded() {
    for how in ["return", "exit", "_exit", "quick_exit", "raw", "abort", "crash", "fpe", "term", "kill"] {
        let program = Program::new(target::c("ends")).arg(how);
        let plain = program.plain();
        let recording = program.recorded();
        assert_eq!(plain.code(), recording.outcome.code(), "{how}: {}", recording.outcome);
        assert_eq!(plain.stdout, recording.outcome.stdout, "{how}");
        let report = recording.report();
        let process = report.only("ends");
        assert_eq!((process.allocs, process.live_bytes), (10, 1270), "{how}: {process:#?}");
        process.assert_accounting();
        let (key, value) = if plain.code() > 128 { ("signal", plain.code() - 128) } else { ("code", plain.code()) };
        assert_eq!(
            process.exit.get(key).and_then(serde_json::Value::as_i64),
            Some(value.into()),
            "{how}: {process:#?}"
        );
    }
}
