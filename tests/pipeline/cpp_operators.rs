//! The operators of the C++ run-time are recorded as what they are, without calling them; all
//! others are called as without the library.

use heaptape_formats::tape::Entry;
use heaptape_tests::{Program, Recording, Target, plain, same, target};
use std::path::PathBuf;

/// Options of `record` in which the hooks differ.
const MODES: [&[&str]; 3] = [&[], &["--sample", "1"], &["--sample", "64KiB"]];

fn recorded_with(program: &Program, options: &[&str]) -> Recording {
    let recording = options.iter().fold(program.clone(), |program, option| program.option(option)).recorded().success();
    if options.is_empty() { recording.complete() } else { recording }
}

/// A library whose name is that of the C++ run-time, and a library that calls its operators.
fn small_runtime() -> [PathBuf; 2] {
    let runtime = Target::library("small_runtime.c").flag("-Wl,-soname,libstdc++.so.6").named("libstdc++.so.6").build();
    let plugin = Target::library("plugin_runtime.c").with(&runtime).build();
    [runtime, plugin]
}

fn numbers(text: &str) -> Vec<u64> {
    text.lines().map(|line| line.parse().expect("a number")).collect()
}

/// Returns how often each function is in the only process of a recording.
fn counts(recording: &Recording, name: &str) -> [usize; 4] {
    let functions = plain::functions(&recording.folder.join(only_folder(recording, name)));
    [Entry::New, Entry::NewArray, Entry::Delete, Entry::DeleteArray]
        .map(|wanted| functions.iter().filter(|function| **function == wanted).count())
}

fn only_folder(recording: &Recording, name: &str) -> String {
    let folders = std::fs::read_dir(&recording.folder).expect("the recording").flatten();
    let mut found =
        folders.map(|entry| entry.file_name().to_string_lossy().into_owned()).filter(|folder| folder.ends_with(name));
    let folder = found.next().expect("the process");
    assert!(found.next().is_none(), "one process {name}");
    folder
}

/// The first call of `new` and the first of `delete` reach the run-time; all are recorded.
#[test]
fn runtime_operators_are_not_called() {
    let [runtime, plugin] = small_runtime();
    let linked =
        Target::program("opens_runtime.c").flag("-DLINKED").with(&plugin).with(&runtime).named("calls_runtime").build();
    let linked = Program::new(linked);
    let opened = Program::new(target::c("opens_runtime")).arg(&plugin);
    assert_eq!(numbers(&linked.preloaded().success().text()), [8000], "untraced");
    assert_eq!(numbers(&opened.preloaded().success().text()).len(), 3, "untraced");
    for (program, name, rounds) in [(linked, "calls_runtime", 1), (opened, "opens_runtime", 3)] {
        assert_eq!(numbers(&program.plain().success().text()), vec![8000; rounds]);
        for options in MODES {
            let recording = recorded_with(&program, options);
            let calls = numbers(&recording.outcome.text());
            assert_eq!(calls.len(), rounds);
            assert!(calls.iter().all(|calls| *calls <= 2), "{name} {options:?}: {calls:?}");
            if options.is_empty() {
                assert_eq!(counts(&recording, name), [2000 * rounds; 4], "{name}");
            }
        }
    }
}

/// What the program replaces gets every call that it gets without the library, also through the
/// run-time's other operators.
#[test]
fn operators_of_the_program_get_all_calls() {
    let program = Program::new(Target::program("own_operators.cpp").build());
    let plain = program.plain().success();
    assert_eq!(plain.text(), "taken 5000, given 5000\n");
    same(&plain, &program.preloaded());
    for options in MODES {
        same(&plain, &recorded_with(&program, options).outcome);
    }
}

/// Other tools that replace the functions in the run-time's table see its calls.
#[test]
fn changed_tables_of_the_runtime_are_obeyed() {
    let lazy = Program::new(Target::program("watches_runtime.cpp").build());
    for program in [lazy.clone(), lazy.env("LD_BIND_NOW", "1")] {
        let plain = program.plain().success();
        let expected = "before: 0 taken, 0 given\nwatched: 2000 taken, 2000 given\n\
                        frees watched: 0 taken, 2000 given\nafter: 0 taken, 0 given\n";
        assert_eq!(plain.text(), expected);
        same(&plain, &program.preloaded());
        for options in MODES {
            same(&plain, &recorded_with(&program, options).outcome);
        }
    }
}

/// A failure of the allocator is the run-time's matter: handlers, exceptions, null.
#[test]
fn operators_that_fail_throw_in_each_mode() {
    let program = Program::new(Target::program("bad_alloc.cpp").build());
    let plain = program.plain().success();
    same(&plain, &program.preloaded());
    for options in MODES {
        same(&plain, &recorded_with(&program, options).outcome);
    }
}

/// Operators that are linked into the program are part of it: their `malloc` is the event.
#[test]
fn static_runtime_is_part_of_the_program() {
    let built = Target::program("each_operator.cpp").flag("-static-libstdc++").named("each_static").build();
    let program = Program::new(built);
    let plain = program.plain().success();
    let recording = program.recorded().complete();
    same(&plain, &recording.outcome);
    assert_eq!(counts(&recording, "each_static"), [0; 4]);
    let leaks = recording.leaks();
    for bytes in [5003, 5009, 5011, 5021] {
        assert_eq!(leaks.iter().filter(|leak| leak.bytes == bytes && leak.blocks == 1).count(), 1, "{leaks:#?}");
    }
}
