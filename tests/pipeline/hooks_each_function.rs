//! Each function of the allocator family is recorded once, with the requested bytes and the calling
//! function.

use heaptape_tests::oracle::{Counts, Depth};
use heaptape_tests::{Program, Recording, Target, same, target, test_env};

/// Asserts that exactly one leak of each size was allocated in the given function.
#[track_caller]
fn one_leak(recording: &Recording, expected: &[(&str, u64)]) {
    let leaks = recording.leaks();
    for &(function, bytes) in expected {
        let found: Vec<_> = leaks.iter().filter(|leak| leak.bytes == bytes && leak.blocks == 1).collect();
        assert_eq!(found.len(), 1, "one leak of {bytes} bytes: {leaks:#?}");
        let names = found[0].functions();
        assert!(
            names.iter().take(3).any(|name| *name == function),
            "{bytes} bytes are taken by {function}, not by {names:?}"
        );
        assert!(names.contains(&"main"), "the stack of {function} reaches main: {names:?}");
    }
}

#[test]
fn each_c_allocation_function_is_recorded_once() {
    let program = Program::new(target::c("each_function"));
    let plain = program.plain().success();
    let recording = program.recorded().complete();
    same(&plain, &recording.outcome);
    let expected = [
        ("takes_by_malloc", 1009),
        ("takes_by_calloc", 2023),
        ("takes_by_realloc", 1013),
        ("takes_by_reallocarray", 2019),
        ("aligned_by_posix", 1033),
        ("takes_by_aligned_alloc", 1056),
        ("takes_by_memalign", 1039),
        ("takes_by_valloc", 1049),
        ("takes_by_pvalloc", 1051),
        ("resizes_by_realloc", 1061),
        ("resizes_by_reallocarray", 3065),
        ("takes_by_strdup", 70),
    ];
    one_leak(&recording, &expected);
    let report = recording.report();
    let process = report.only("each_function");
    assert_eq!((process.allocs, process.resizes, process.frees), (12, 2, 0), "{process:#?}");
    let sum: u64 = expected.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(process.bytes_allocated, sum + 11 + 13, "and the two blocks that were resized: {process:#?}");
    assert_eq!((process.live_blocks, process.live_bytes), (12, sum), "{process:#?}");
}

#[test]
fn each_deallocation_function_is_recorded_once() {
    let program = Program::new(target::c("each_free"));
    let (recording, report, counts) = program.recorded_like_counted(Depth::Peak);
    recording.complete();
    let process = report.only("each_free");
    assert_eq!((process.allocs, process.frees, process.live_blocks), (100, 83, 17), "{process:#?}");
    assert_eq!(counts[0].resizes, 0);
}

/// The operators for aligned types round the size up before they call the allocator. The requested
/// size is recorded, once.
#[test]
fn each_cpp_operator_is_recorded_once() {
    let program = Program::new(Target::program("each_operator.cpp").build());
    let plain = program.plain().success();
    let recording = program.recorded().complete();
    same(&plain, &recording.outcome);
    let expected = [
        ("takes_new", 5003),
        ("takes_new_array", 5009),
        ("takes_new_nothrow", 5011),
        ("takes_new_array_nothrow", 5021),
        ("takes_new_aligned", 5023),
        ("takes_new_array_aligned", 5039),
        ("takes_new_aligned_nothrow", 5051),
        ("takes_new_array_aligned_nothrow", 5059),
    ];
    one_leak(&recording, &expected);
    let folder = test_env::folder();
    let alone = program.counted(folder.path()).recorded();
    let counts = Counts::read_all(folder.path());
    let report = alone.report();
    let counted = counts.iter().find(|counts| counts.name() == "each_operator").expect("the counts");
    let process = report.only("each_operator");
    assert_eq!((process.allocs, process.frees, process.resizes), (counted.allocs, counted.frees, 0), "{process:#?}");
    assert_eq!(process.live_blocks, counted.live_blocks, "{process:#?}");
}

/// Guards against an operator's inner `malloc` being recorded instead of the operator: the
/// innermost frame must be the program's.
#[test]
fn innermost_frame_is_the_caller_of_the_operator() {
    let recording = Program::new(Target::program("each_operator.cpp").build()).recorded().complete();
    for leak in recording.leaks().iter().filter(|leak| leak.blocks == 1 && (5003..=5059).contains(&leak.bytes)) {
        let names = leak.functions();
        assert!(names[0].starts_with("takes_new"), "the innermost frame is the caller of new: {names:?}");
    }
}

#[test]
fn operators_that_throw_are_recorded_correctly() {
    let program = Program::new(Target::program("bad_alloc.cpp").build());
    let plain = program.plain().success();
    let (recording, report, _) = program.recorded_like_counted(Depth::Peak);
    same(&plain, &recording.outcome);
    recording.complete();
    assert!(report.only("bad_alloc").allocs >= 1000);
}

#[test]
fn operator_of_a_library_opened_later_is_recorded() {
    let library = Target::library("plugin_new.cpp").build();
    let program = Program::new(target::c("opens_cpp_library")).arg(&library);
    let plain = program.plain().success();
    let recording = program.recorded().complete();
    same(&plain, &recording.outcome);
    one_leak(&recording, &[("plugin_takes", 7013)]);
}

#[test]
fn program_without_allocations_has_no_events() {
    let program = Program::new(target::c("allocates_nothing"));
    let plain = program.plain().exits(4);
    let recording = program.recorded();
    same(&plain, &recording.outcome);
    for process in recording.report().processes {
        assert_eq!(process.events(), 0, "{process:#?}");
    }
    assert_eq!(recording.heaptape(&["verify"]).code(), 0, "{}", recording.heaptape(&["verify"]));
}
