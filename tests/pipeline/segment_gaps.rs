//! Programs and libraries whose load segments have gaps between them: what every linker makes with
//! segments that are aligned to more than a page, and what `ld` does to 5 of 100 programs of a
//! distribution (`make`, `bc`, `node`).

use heaptape_tests::recording::Leak;
use heaptape_tests::{Program, Target, same};
use std::path::PathBuf;

/// Asserts that the leak of `bytes` bytes has exactly these innermost functions, all in `module`,
/// and reaches `main`.
#[track_caller]
fn chain(leaks: &[Leak], bytes: u64, functions: &[&str], module: &str) {
    let found: Vec<_> = leaks.iter().filter(|leak| leak.bytes == bytes).collect();
    assert_eq!(found.len(), 1, "one leak of {bytes} bytes in {leaks:#?}");
    let leak = found[0];
    assert!(leak.functions().starts_with(functions), "{functions:?}: {leak:#?}");
    let is_in =
        |frame: &&heaptape_tests::recording::Frame| frame.module.as_deref().is_some_and(|path| path.ends_with(module));
    assert!(leak.stack[..functions.len()].iter().all(|frame| is_in(&frame)), "in {module}: {leak:#?}");
}

fn plugin(flags: &[&str], name: &str) -> PathBuf {
    let mut target = Target::library("plugin_place.c").flag("-DNAME=plugin_gap_takes").flag("-DFRAME=200");
    for flag in flags {
        target = target.flag(*flag);
    }
    target.named(name).build()
}

#[test]
fn stacks_are_whole_in_objects_with_gaps() {
    for (name, gap, flags) in [
        ("gaps_2m", "0x100000", &["-Wl,-z,max-page-size=0x200000", "-Wl,-z,separate-code"][..]),
        (
            "gaps_2m_fixed",
            "0x100000",
            &["-Wl,-z,max-page-size=0x200000", "-Wl,-z,separate-code", "-no-pie", "-fno-pie"],
        ),
        ("gaps_64k", "0x8000", &["-Wl,-z,max-page-size=0x10000", "-Wl,-z,separate-code"]),
        ("gaps_64k_fixed", "0x8000", &["-Wl,-z,max-page-size=0x10000", "-Wl,-z,separate-code", "-no-pie", "-fno-pie"]),
    ] {
        let mut target = Target::program("segment_gaps.c").flag("-O2").flag("-fomit-frame-pointer");
        for flag in flags {
            target = target.flag(*flag);
        }
        let target = target.named(name).build();
        let library = format!("lib{name}.so");
        let program = Program::new(target).arg(plugin(&flags[..2], &library)).arg(gap);
        let plain = program.plain().success();
        let recording = program.recorded().complete();
        same(&plain, &recording.outcome);
        let leaks = recording.leaks();
        chain(&leaks, 2003, &["inner", "middle", "outer", "main"], name);
        let in_library: Vec<_> = leaks.iter().filter(|leak| leak.bytes == 2011).collect();
        assert_eq!(in_library.len(), 1, "{name}: {leaks:#?}");
        assert_eq!(in_library[0].functions()[..2], ["plugin_gap_takes", "main"], "{name}: {leaks:#?}");
        let through: Vec<_> = leaks.iter().filter(|leak| leak.bytes == 2017).collect();
        assert_eq!(through.len(), 1, "{name}: {leaks:#?}");
        let stack = &through[0].stack;
        assert_eq!(stack[0].function.as_deref(), Some("inner"), "{name}: {stack:#?}");
        assert!(stack[1].module.as_deref().unwrap_or_default().is_empty(), "{name}: {stack:#?}");
        assert!(through[0].functions()[2..].starts_with(&["through_gap", "main"]), "{name}: {stack:#?}");
        let verdict = recording.heaptape(&["verify"]).exits(0).text();
        assert!(verdict.contains("complete"), "{name}: {verdict}");
        let dump: String = recording
            .files("events.tape")
            .iter()
            .map(|tape| {
                heaptape_tests::recording::heaptape([std::ffi::OsStr::new("dump"), tape.as_os_str()]).success().text()
            })
            .collect();
        assert!(!dump.lines().any(|line| line.contains(name) && line.contains("build-id \"\"")), "{name}: {dump}");
    }
}
