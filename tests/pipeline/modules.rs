//! Libraries that come and go while the program runs.

use heaptape_tests::{Program, Target, is_full, is_root, same, target, test_env, torture};
use std::collections::BTreeMap;
use std::path::PathBuf;

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

/// The plugins of the tests below, in order of the sizes of their blocks: 1001, 2002, 3003 bytes.
const PLUGINS: [&str; 3] = ["apple", "berry", "cacao"];

fn plugins(build_id: &str) -> Vec<PathBuf> {
    let build = |(name, size): (&&str, u64)| {
        Target::library("plugin_named.c")
            .flag("-g")
            .flag(format!("-DNAME={name}"))
            .flag(format!("-DSIZE={}", size * 1001))
            .flag(format!("-Wl,--build-id={build_id}"))
            .named(&format!("{name}-{build_id}.so"))
            .build()
    };
    PLUGINS.iter().zip(1..).map(build).collect()
}

/// Records the host with these arguments. Returns, for each plugin, the blocks of its size with its
/// name, and those without a name. No block may have the name of another plugin, and no two plugins
/// may be one entry.
fn named_blocks(form: &str, ms: u64, rounds: u64, plugins: &[PathBuf]) -> BTreeMap<&'static str, (u64, u64)> {
    let folder = test_env::folder();
    let program = Program::new(target::c("reloads_plugins")).arg(form).arg(ms.to_string()).arg(rounds.to_string());
    let program = program.arg(folder.path()).args(plugins);
    let program = if form.contains("mount") { program.launched_by(&["unshare", "-m"]) } else { program };
    let recording = program.recorded().complete();
    // The recorder may be reading the file at this moment, for as long as a busy machine takes; a later
    // attempt succeeds, else the program has no end.
    assert!(recording.outcome.text().ends_with(" times busy\n"), "{form}: {}", recording.outcome.text());
    let mut found: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
    for leak in recording.leaks_as(&["--depth", "2000", "--by", "stack", "--top", "1000"]) {
        let size = leak.bytes / leak.blocks;
        let names = leak.functions();
        let Some(own) = (1..).zip(PLUGINS).find(|(number, _)| size == number * 1001).map(|(_, name)| name) else {
            assert!(
                leak.blocks < 100 || !names.contains(&"main"),
                "{form}, {ms} ms: the blocks of two plugins are one entry: {leak:?}"
            );
            continue;
        };
        assert_eq!(leak.bytes % leak.blocks, 0, "{form}, {ms} ms: {leak:?}");
        let is_named = names.contains(&&*format!("{own}_keeps"));
        let other = names.iter().find(|name| name.ends_with("_keeps") && !name.starts_with(own));
        assert_eq!(other, None, "{form}, {ms} ms: {names:?}");
        assert!(names.contains(&"main"), "{form}, {ms} ms: {names:?}");
        let (named, nameless) = found.entry(own).or_default();
        *(if is_named { named } else { nameless }) += leak.blocks;
    }
    for (own, (named, nameless)) in &found {
        assert_eq!(named + nameless, rounds * 100, "{form}, {ms} ms: {own}");
    }
    assert_eq!(found.len(), plugins.len(), "{form}, {ms} ms");
    found
}

/// Plugins that are loaded where another was have their own names, or none. A file that exists for
/// long enough is named even if it is deleted, replaced or in a file system that is gone.
#[test]
fn plugins_at_one_address_have_their_own_names() {
    for build_id in ["sha1", "none"] {
        let plugins = plugins(build_id);
        for form in ["kept", "deleted", "same", "renamed", "memfd", "mount", "unmount", "rewritten"] {
            if (form.contains("mount") || form == "memfd") && !is_root() {
                continue;
            }
            // The recorder may be late on a busy machine: names are not certain then.
            for (ms, rounds) in [(60, 1), (1, 2)] {
                let found = named_blocks(form, ms, rounds, &plugins);
                let is_certain = form == "kept";
                assert!(!is_certain || found.values().all(|(_, nameless)| *nameless == 0), "{form}: {found:?}");
            }
        }
    }
    torture::passed(28, "ways to load a plugin where another was", 32);
}

/// Files of programs on other file systems are not kept open, so that a script may unmount them.
#[test]
fn file_systems_can_be_unmounted_after_their_program() {
    if !is_root() {
        return;
    }
    let program = target::c("allocates_nothing");
    let line = format!(
        "mkdir m && mount -t tmpfs tmpfs m && cp {} m/program && m/program; umount m && echo unmounted",
        program.display()
    );
    for options in [&[][..], &["--only", "program"]] {
        let folder = test_env::folder();
        let script = Program::shell(&line).folder(folder.path()).launched_by(&["unshare", "-m"]);
        let script = options.iter().fold(script, |script, option| script.option(option));
        let recording = script.recorded();
        assert_eq!(recording.outcome.text(), "nothing\nunmounted\n", "{options:?}: {}", recording.outcome.error());
    }
}
