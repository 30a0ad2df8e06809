//! Tests of `record` as a shell sees it: exit statuses, folders, errors. The library that is
//! preloaded here does nothing, so no process attaches.

use heaptape_formats::recording::{RECORDING, Recording};
use heaptape_recorder::run::launch::{Finished, Launch, LaunchError, record};
use heaptape_recorder::session::options::Options;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

fn library() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let path =
        maps.lines().filter_map(|line| line.split_ascii_whitespace().nth(5)).find(|path| path.contains("/libc.so"));
    path.expect("a libc").into()
}

fn run(dir: &Path, command: &[&str]) -> Result<Finished, LaunchError> {
    record(Launch {
        program: command[0].into(),
        arguments: command[1..].iter().map(Into::into).collect(),
        dir: Some(dir.to_owned()),
        library: library(),
        preloads: Vec::new(),
        options: Options::default(),
        separate: false,
        wait: false,
        symbols: None,
    })
}

#[test]
fn exit_status_is_that_of_the_program() {
    let folder = tempfile::tempdir().expect("a folder");
    for (number, (script, status)) in
        [("exit 0", 0), ("exit 42", 42), ("kill -9 $$", 137), ("kill -TERM $$", 143), ("kill -INT $$", 130)]
            .into_iter()
            .enumerate()
    {
        let dir = folder.path().join(number.to_string());
        let finished = run(&dir, &["sh", "-c", script]).expect("runs");
        assert_eq!(finished.status, status, "{script}");
        assert!(finished.unrecorded.is_some_and(|why| why.contains("did not load")));
        let bytes = std::fs::read(dir.join(RECORDING)).expect("a recording");
        let recording: Recording = serde_json::from_slice(&bytes).expect("json");
        assert_eq!((recording.processes.len(), recording.not_traced.len()), (0, 1));
        assert!(recording.ended_unix_ns.is_some());
        assert_eq!(recording.command, ["sh", "-c", script]);
        assert_eq!(std::fs::metadata(&dir).expect("a folder").permissions().mode() & 0o777, 0o700);
    }
}

#[test]
fn program_that_cannot_run_leaves_no_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let dir = folder.path().join("new");
    let text = folder.path().join("text");
    std::fs::write(&text, "no program").expect("writes");
    for (program, status) in
        [("/no/such/program", 127), ("no-such-program-anywhere", 127), (text.to_str().expect("text"), 126)]
    {
        let error = run(&dir, &[program]).expect_err("is refused");
        assert_eq!(error.status, status, "{error}");
        assert!(error.message.starts_with(program) && error.message.lines().count() == 1);
        assert!(!dir.exists());
    }
}

#[test]
fn unusable_folder_is_reported_before_the_program_starts() {
    let folder = tempfile::tempdir().expect("a folder");
    let mark = folder.path().join("mark");
    let command = ["touch", mark.to_str().expect("text")];
    for dir in [folder.path().to_owned(), folder.path().join("a").join("b"), PathBuf::from("/proc/heaptape")] {
        let error = run(&dir, &command).expect_err("is refused");
        assert_eq!(error.status, 2);
        assert!(error.message.contains(&*dir.to_string_lossy()) && error.message.lines().count() == 1, "{error}");
        assert!(!mark.exists());
    }
}

#[test]
fn input_output_environment_and_signals_are_untouched() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out");
    let script = format!(
        "(grep SigBlk /proc/self/status; echo \"$LD_PRELOAD\"; test -S \"$HEAPTAPE_SOCKET\" && echo socket) > {}",
        out.display()
    );
    let finished = run(&folder.path().join("new"), &["sh", "-c", &script]).expect("runs");
    assert_eq!(finished.status, 0);
    let output = std::fs::read_to_string(&out).expect("output");
    let lines: Vec<&str> = output.lines().collect();
    assert!(lines[0].ends_with("0000000000000000"), "{output}");
    assert_eq!((lines[1], lines[2]), (library().to_str().expect("text"), "socket"));
}
