//! `heaptape record -- PROG` as the README begins: no `-o`, many at once, in one working folder.

use heaptape_tests::{Program, is_full, test_env, torture};
use std::collections::BTreeSet;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Every run leaves a folder of its own with the program's pid in its name, complete and with
/// nothing lost.
#[test]
fn concurrent_recordings_without_a_name_are_all_complete() {
    let (runs, at_once) = (if is_full() { 1_000 } else { 60 }, 8);
    let folder = test_env::folder();
    let next = AtomicUsize::new(0);
    let faults = Mutex::new(Vec::new());
    let work = || {
        while next.fetch_add(1, Relaxed) < runs {
            let mut command = Command::new(test_env::command());
            command.args(["record", "--", "ls", "-l", "/etc"]).current_dir(folder.path());
            let outcome = heaptape_tests::run::finish(command, b"");
            let error = outcome.error();
            let is_good =
                outcome.code() == 0 && error.contains(" recorded, none lost") && !error.contains("heaptape: ");
            if !is_good || error.contains("WARN") || error.contains("ERROR") || error.contains(" 0 recorded") {
                faults.lock().expect("no thread has failed").push(outcome.to_string());
            }
        }
    };
    std::thread::scope(|scope| (0..at_once).for_each(|_| drop(scope.spawn(work))));
    let faults = faults.into_inner().expect("no thread has failed");
    assert!(faults.is_empty(), "{} of {runs} runs failed; the first:\n{}", faults.len(), faults[0]);
    let names: BTreeSet<String> = std::fs::read_dir(folder.path())
        .expect("the folder")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    assert_eq!(names.len(), runs, "one folder a run: {names:?}");
    for name in &names {
        let pid = name.strip_prefix("heaptape.ls.").unwrap_or_else(|| panic!("{name} is no default name"));
        let process_folder = folder.path().join(name).join(format!("{}.ls", pid.split('.').next().expect("a pid")));
        assert!(
            process_folder.join("trace.mtrc").is_file() && process_folder.join("profile.mptl").is_file(),
            "{}",
            process_folder.display()
        );
    }
    // The last look is that of the commands that a user would type next.
    for name in names.iter().step_by(10) {
        let recording = folder.path().join(name);
        let output = Program::new(test_env::command()).arg("verify").arg(&recording).plain();
        assert_eq!(output.code(), 0, "{output}");
    }
    torture::passed(65, "concurrent recordings with their default name", runs as u64);
}
