//! Exec: each program in a process is an image of its own.

use heaptape_tests::oracle::Depth;
use heaptape_tests::{Program, is_full, same, target, torture, workshop};

#[test]
fn a_chain_of_execs() {
    let length: u64 = if is_full() { 100 } else { 6 };
    let program = Program::new(target::c("exec_chain")).arg(length.to_string());
    let plain = program.plain().exits(3);
    same(&plain, &program.preloaded());
    let (recording, report, _) = program.recorded_like_counted(Depth::Live);
    same(&plain, &recording.outcome);
    recording.whole();
    let images: Vec<_> = report.all("exec_chain").collect();
    assert_eq!(images.len() as u64, length + 1, "{report:#?}");
    assert!(images.iter().all(|image| image.pid == images[0].pid && image.live_blocks >= 1), "{images:#?}");
    torture::passed(19, "execs in one process", length);
}

#[test]
fn shells_and_interpreters_in_a_chain() {
    let folder = workshop::folder();
    let put = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("a script");
    put("a.sh", "exec env perl b.pl\n");
    put("b.pl", "exec '/usr/bin/python3', 'c.py';\n");
    put("c.py", "import os\nos.execvp('sh', ['sh', '-c', 'echo end of the chain; exit 7'])\n");
    let program = Program::new("sh").arg("a.sh").folder(folder.path());
    let plain = program.plain().exits(7);
    let recording = program.recorded();
    same(&plain, &recording.outcome);
    let recording = recording.whole();
    let report = recording.report();
    let names: Vec<&str> = report.processes.iter().map(heaptape_tests::Process::name).collect();
    assert!(names.contains(&"perl") && names.iter().any(|name| name.starts_with("python3")), "{names:?}");
    torture::passed(19, "programs in a chain of interpreters", names.len() as u64);
}
