//! Libraries that come and go while the program runs.

use heaptape_tests::{Program, Target, is_full, same, target, test_env, torture};

/// Guards the generations of rules, stack caches and nodes: those of a library must not be used for
/// another one at its address.
#[test]
fn stacks_are_right_for_two_libraries_at_one_address() {
    let library = |name: &str, frame: &str| {
        Target::library("plugin_place.c")
            .flag(format!("-DNAME={name}"))
            .flag(format!("-DFRAME={frame}"))
            .named(&format!("lib{name}.so"))
            .build()
    };
    let (a, b) = (library("plugin_a_takes", "200"), library("plugin_b_takes", "600"));
    let rounds = if is_full() { 1_000 } else { 200 };
    let program = Program::new(target::c("same_place")).arg(a).arg(b).arg(rounds.to_string());
    let plain = program.plain().success();
    assert_eq!(plain.text(), "same place\n", "the loader maps both at one address");
    let recording = program.recorded().complete();
    same(&plain, &recording.outcome);
    let leaks = recording.leaks();
    for (size, right, wrong) in [(1601, "plugin_a_takes", "plugin_b_takes"), (1607, "plugin_b_takes", "plugin_a_takes")]
    {
        let mine: Vec<_> = leaks.iter().filter(|leak| leak.bytes == leak.blocks * size).collect();
        let others: Vec<_> = leaks.iter().filter(|leak| leak.bytes % 1601 != 0 && leak.bytes % 1607 != 0).collect();
        assert_eq!(
            mine.iter().map(|leak| leak.blocks).sum::<u64>(),
            rounds,
            "blocks of {size} bytes; others: {others:#?}"
        );
        for leak in mine {
            let names = leak.functions();
            assert!(names.contains(&right) && !names.contains(&wrong), "{size} bytes: {names:?}");
            assert!(names.contains(&"main"), "{size} bytes: {names:?}");
        }
    }
    torture::passed(28, "libraries opened at the address of another one, with correct stacks", 2 * rounds);
}

#[test]
fn two_hundred_libraries_with_thread_local_variables_are_recorded() {
    let plugin = Target::library("plugin_tls.c").build();
    let folder = test_env::folder();
    for index in 0..200 {
        test_env::copy(&plugin, folder.path().join(format!("libplugin{index}.so")));
    }
    let program = Program::new(target::c("opens_many")).arg(folder.path());
    let plain = program.plain().success();
    assert_eq!(plain.text(), "200 libraries\n");
    let recording = program.recorded().complete();
    same(&plain, &recording.outcome);
    torture::passed(27, "libraries used by 20 threads", 200);
}

/// Operators of a library that was opened locally serve that library only.
#[test]
fn libraries_keep_their_own_operators() {
    let library = |name: &str| {
        let named = format!("lib{name}operators.so");
        Target::library("plugin_operators.cpp").flag(format!("-DNAME={name}")).named(&named).build()
    };
    let plain_library = Target::library("plugin_operators_none.cpp").build();
    let (a, b) = (library("a_"), library("b_"));
    for arguments in [
        [(&a, "a_"), (&b, "b_")],
        [(&b, "b_"), (&a, "a_")],
        [(&plain_library, "c_"), (&a, "a_")],
        [(&a, "a_"), (&plain_library, "c_")],
    ] {
        let mut program = Program::new(target::c("opens_plugins"));
        for (path, prefix) in arguments {
            program = program.arg(path).arg(prefix);
        }
        let plain = program.plain().success();
        same(&plain, &program.preloaded());
        let recording = program.recorded().complete();
        same(&plain, &recording.outcome);
        let process = recording.report();
        assert!(process.only("opens_plugins").allocs >= 1_000, "{process:#?}");
    }
    torture::passed(66, "orders of libraries with their own operators", 4);
}

/// Closing a library costs little beside many stacks, and nothing afterwards, however the close
/// ends.
#[test]
fn closes_of_a_library_stay_fast() {
    let plugin = Target::library("plugin_closing.c").build();
    for how in ["many", "jump", "fork"] {
        let program = Program::new(target::c("closes_plugin")).arg(how).arg(&plugin);
        let plain = program.plain().success();
        assert_eq!(plain.text(), "fast\n", "{how}");
        same(&plain, &program.recorded().outcome);
    }
    torture::passed(66, "ways to close a library without a delay", 3);
}
