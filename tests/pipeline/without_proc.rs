//! Programs that have no `/proc`: chroots, initramfs and minimal containers.

use heaptape_tests::{Program, Recording, Target, test_env};
use std::path::Path;
use std::process::Command;

/// Records a program that runs after `/proc` is unmounted, in a mount namespace of its own; `None`
/// where that is not permitted.
fn recorded_without_proc(program: &Path, arguments: &str) -> Option<Recording> {
    let line = format!("umount -l /proc && {} {arguments}; :", program.display());
    let tried = Command::new("unshare").args(["-m", "umount", "-l", "/proc"]).output();
    if !tried.is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED: unshare may make no mount namespace here");
        return None;
    }
    Some(Program::new(test_env::need("unshare")).args(["-m", "sh", "-c", &line]).recorded().success())
}

/// The recorder finds out what the program cannot: that it has one thread, and where its segments
/// are.
#[test]
fn programs_without_proc_are_recorded_whole() {
    let built = |name: &str, flag: &str| Target::program("known_stacks.c").flag(flag).named(name).build();
    for program in [built("known_stacks_static", "-static"), built("known_stacks_dynamic", "-O1")] {
        let name = program.file_name().and_then(|name| name.to_str()).expect("a name");
        // glibc itself allocates to read `/proc`, and keeps 3,104 bytes if there is none.
        let counts = |recording: &Recording| {
            let process = recording.report().only(name).clone();
            let mut leaks: Vec<u64> = recording
                .leaks()
                .iter()
                .map(|leak| leak.bytes)
                .filter(|bytes| bytes / 1000 == 3 && bytes % 2 == 1)
                .collect();
            leaks.sort_unstable();
            (process.frees, leaks)
        };
        let Some(recording) = recorded_without_proc(&program, "") else { return };
        let with_proc = Program::new(&program).recorded().success();
        assert_eq!(counts(&recording), counts(&with_proc), "{name}");
        recording.heaptape(&["verify"]).success();
    }
}
