//! What a process inherits over fork and exec, apart from descriptors and mappings: limits, signals,
//! rights, priorities, timers, groups, names. It's the same bare and recorded.

use heaptape_tests::daemon::Daemon;
use heaptape_tests::recording::heaptape;
use heaptape_tests::{Program, same, target, test_env};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{ChildStdout, Command, Stdio};

#[test]
fn recorded_program_inherits_what_the_plain_one_does() {
    let program = target::c("inherits");
    let path = program.to_str().expect("a path");
    let shows = Program::new(&program).arg("show");
    let changed = || Program::new(&program).args(["set", path, "show"]);
    let [plain, after_set] = [&shows, &changed()].map(|program| program.plain().success());
    assert_ne!(plain.text(), after_set.text());
    let daemon = Daemon::start(&[]);
    for (expected, program) in [(&plain, &shows), (&after_set, &changed())] {
        same(expected, &program.preloaded());
        same(expected, &program.recorded().outcome);
        same(expected, &program.preloaded_with(daemon.socket()));
    }
    // What was set before `heaptape record`.
    let folder = test_env::folder();
    let outside = Program::new(&program)
        .arg("set")
        .arg(test_env::command())
        .args(["record", "-q", "-o"])
        .arg(folder.path().join("r"))
        .arg("--")
        .arg(&program)
        .arg("show");
    same(&after_set, &outside.plain());
}

/// The next answer of the program: as many lines as the first one had.
fn answer(lines: &mut Lines<BufReader<ChildStdout>>, count: usize) -> Vec<String> {
    lines.take(count).map(|line| line.expect("text")).collect()
}

#[test]
fn attach_changes_nothing_of_it() {
    let program = target::c("inherits");
    let count = Program::new(&program).arg("show").plain().success().text().lines().count();
    let arguments = [OsStr::new("set"), program.as_os_str(), OsStr::new("show"), OsStr::new("twice")];
    let mut child =
        Command::new(&program).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
    let (mut input, mut lines) =
        (child.stdin.take().expect("a pipe"), BufReader::new(child.stdout.take().expect("a pipe")).lines());
    let first = answer(&mut lines, count);
    let folder = test_env::folder();
    let options = ["attach", "--for", "1s", "-o"].map(OsStr::new);
    let (pid, destination) = (child.id().to_string(), folder.path().join("r"));
    let mut attach = Command::new(test_env::command())
        .args(options.into_iter().chain([destination.as_os_str(), pid.as_ref()]))
        .spawn()
        .expect("it starts");
    heaptape_tests::wait::until("the library is in it", || {
        std::fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.contains("memfd:heaptape"))
    });
    writeln!(input).expect("it reads");
    assert_eq!(answer(&mut lines, count), first, "attached");
    assert!(attach.wait().expect("its end").success());
    writeln!(input).expect("it reads");
    assert_eq!(answer(&mut lines, count), first, "detached");
    drop(input);
    assert!(child.wait().expect("its end").success());
    assert_eq!(heaptape([OsStr::new("report"), destination.as_os_str()]).code(), 0);
}
