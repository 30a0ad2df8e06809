//! Output for terminals is clean: names of functions, files, threads, programs, arguments, labels
//! and paths may contain anything, and no command prints control characters or bidirectional marks.

use heaptape_tests::recording::heaptape;
use heaptape_tests::run::Outcome;
use heaptape_tests::wait::until;
use heaptape_tests::{Daemon, test_env};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Escape sequences of 7 and 8 bits, a bell, bidirectional marks, a byte that is not UTF-8.
const HOSTILE: &str = "e\x1b[31mv\u{9b}2Ji\x07l\u{202e}b\u{2066}\u{200f}c\x7f";

const SOURCE: &str = r#"
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
#define HOSTILE "e\033[31mv\302\2332Ji\007l\342\200\256\342\201\246\177"
void *volatile kept;
__attribute__((noinline)) void *plainname(void) { void *p = malloc(48); kept = p; return p; }
int main(int argc, char **argv) {
    prctl(PR_SET_NAME, "t\033[1m\177\302\233x");
    for (int i = 0; i < 200; i++) { void *p = plainname(); if (i % 3) free(p); }
    kept = realloc(plainname(), 96);
    if (argc > 2) sleep(600);
    return argv == 0;
}
"#;

/// A program whose path, function, source file, thread and arguments have hostile names.
fn program(folder: &Path) -> PathBuf {
    let (source, object) = (folder.join("source.c"), folder.join("object.o"));
    let program = folder.join(format!("p{HOSTILE}"));
    fs::write(&source, SOURCE.replace("void *volatile", "#line 7 \"f\\033[32m\\342\\200\\256.c\"\nvoid *volatile"))
        .expect("a source");
    let run = |tool: &str, arguments: &[&OsStr]| {
        let output = Command::new(test_env::need(tool)).args(arguments).output().expect("the tool");
        assert!(output.status.success(), "{tool}: {}", String::from_utf8_lossy(&output.stderr));
    };
    run("gcc", &["-g".as_ref(), "-O1".as_ref(), "-c".as_ref(), "-o".as_ref(), object.as_ref(), source.as_ref()]);
    let mut renamed = OsString::from(format!("plainname={HOSTILE}"));
    renamed.push(OsStr::from_bytes(b"\xff"));
    run("objcopy", &["--redefine-sym".as_ref(), &renamed, object.as_ref()]);
    run("gcc", &["-o".as_ref(), program.as_ref(), object.as_ref()]);
    program
}

/// Returns the first line with a control character or a bidirectional mark.
fn dirty(bytes: &[u8]) -> Option<String> {
    let steers = |c: char| {
        c.is_control() && c != '\n' && c != '\t'
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}')
    };
    match std::str::from_utf8(bytes) {
        Ok(text) => text.lines().find(|line| line.chars().any(steers)).map(|line| format!("{line:?}")),
        Err(error) => Some(format!("not UTF-8 at {}", error.valid_up_to())),
    }
}

#[derive(Default)]
struct Judge {
    answered: usize,
    dirty: Vec<String>,
}

impl Judge {
    fn judge(&mut self, command: &str, output: &Outcome) {
        assert!(output.code() < 128 && output.code() != 101, "{command}: {output}");
        self.answered += usize::from(!output.stdout.is_empty());
        for (name, bytes) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
            self.dirty.extend(dirty(bytes).map(|line| format!("{command}: {name}: {line}")));
        }
    }

    fn run(&mut self, arguments: &[&str], paths: &[&Path]) -> Outcome {
        let output = heaptape(arguments.iter().map(OsStr::new).chain(paths.iter().map(|path| path.as_os_str())));
        self.judge(&arguments.join(" "), &output);
        output
    }
}

/// Commands that read a recording.
const ANSWERS: [&str; 35] = [
    "report",
    "leaks",
    "peak",
    "sites",
    "sizes",
    "lifetimes",
    "temporary",
    "timeline",
    "threads",
    "realloc",
    "free-sites",
    "fragmentation",
    "verify",
    "pack",
    "report --json",
    "leaks --json",
    "verify --json",
    "mprof -v",
    "mprof -a -n0 -g stdout",
    "mptrace -v -s",
    "mptrace -H stdout -S stdout",
    "mleak",
    "dcpiprof",
    "dcpiprof -i",
    "dcpiprof --csl",
    "dcpicat",
    "dcpilist --both main",
    "leaks --all",
    "sites --inclusive",
    "callers main",
    "callees main",
    "source main",
    "leaks --function nothing",
    "leaks --fail-if list",
    "leaks --fail-if leaked.bytes>0",
];

/// Commands that fail, with the path or the argument that they are about.
const FAILURES: [&str; 24] = [
    "report",
    "leaks",
    "diff",
    "verify",
    "pack",
    "dump",
    "mprof",
    "mptrace",
    "mleak",
    "gprof",
    "dcpiprof",
    "dcpicat",
    "dcpidiff",
    "dcpilist main",
    "export --to mptl -o -",
    "send",
    "epochs --state",
    "ctl list --control",
    "top --once --control",
    "record -o /dev/null/x",
    "nothing",
    "report --nothing",
    "leaks --process",
    "mprof -n",
];

/// Every export: the file, and the messages of the exporter.
fn exports(judge: &mut Judge, folder: &Path, recording: &Path) {
    for format in ["mtrc", "mptl", "gmon", "dcpi", "pprof", "dhat", "heaptrack", "massif", "collapsed", "csv"] {
        let out = folder.join(format!("{HOSTILE}.{format}"));
        judge.run(&["export", "--names", "--to", format, "-o"], &[&out, recording]);
        judge.run(&["export", "--to", format, "-o"], &[&out, recording]);
        let files = if out.is_dir() {
            fs::read_dir(&out).unwrap().flatten().map(|file| file.path()).collect()
        } else {
            vec![out]
        };
        for file in files.iter().filter(|file| file.is_file()) {
            for arguments in
                ["dump", "report", "mprof -v", "mptrace -v -s", "mleak", "dcpicat --raw", "dcpiprof", "gprof -b"]
            {
                judge.run(&arguments.split(' ').collect::<Vec<_>>(), &[file]);
            }
        }
    }
}

#[test]
fn commands_escape_hostile_names() {
    let directory = test_env::folder();
    let folder = directory.path().join(format!("d{HOSTILE}"));
    fs::create_dir(&folder).expect("a folder");
    let program = program(&folder);
    let recording = folder.join("recording");
    let mut judge = Judge::default();
    let run = ["record", "--free-stacks", "-o"].map(OsStr::new);
    let output =
        heaptape(run.into_iter().chain([recording.as_os_str(), "--".as_ref(), program.as_os_str(), HOSTILE.as_ref()]));
    assert_eq!(output.code(), 0, "{output}");
    judge.judge("record", &output);
    for arguments in ANSWERS {
        judge.run(&arguments.split(' ').collect::<Vec<_>>(), &[&recording]);
    }
    judge.run(&["dcpilist", HOSTILE], &[&recording]);
    judge.run(&["diff"], &[&recording, &recording]);
    judge.run(&["dcpidiff"], &[&recording, &recording]);
    for more in ["-b", "-A"] {
        let output = heaptape(["gprof".as_ref(), more.as_ref(), program.as_os_str(), recording.as_os_str()]);
        // gprof prints form feeds of its own between listings.
        judge.judge(
            more,
            &Outcome { stdout: output.stdout.iter().copied().filter(|byte| *byte != b'\x0c').collect(), ..output },
        );
    }
    exports(&mut judge, directory.path(), &recording);
    for process_folder in fs::read_dir(&recording).unwrap().flatten().filter(|entry| entry.path().is_dir()) {
        for file in fs::read_dir(process_folder.path()).unwrap().flatten().filter(|entry| entry.path().is_file()) {
            judge.run(&["dump"], &[&file.path()]);
        }
    }
    // Errors, with the path or the argument that they are about.
    let missing = folder.join("missing");
    for command in FAILURES {
        let arguments: Vec<&str> = command.split(' ').collect();
        judge.run(&arguments, &[&missing]);
        judge.run(&arguments, &[&folder.join("source.c")]);
    }
    // Another program's log for mleak.
    let log = folder.join("log");
    fs::write(
        &log,
        format!("ALLOC: malloc (5, 10 bytes, 8 bytes) [{HOSTILE}|a.c|3]\n\t0x01 {HOSTILE}+1\n\nreturns 0x1000\n\n"),
    )
    .unwrap();
    assert!(judge.run(&["mleak"], &[&log]).text().contains("unfreed allocations: 1"));
    assert!(judge.dirty.is_empty(), "{}", judge.dirty.join("\n"));
    assert!(judge.answered > 60, "{} commands said something", judge.answered);
}

#[test]
fn daemon_answers_escape_hostile_names() {
    let directory = test_env::folder();
    let program = program(directory.path());
    let mut daemon = Daemon::start(&["--mode", "trace"]);
    let mut command = daemon.command(&program);
    let mut child = command.args([HOSTILE, "stay"]).env("HEAPTAPE_LABEL", HOSTILE).spawn().expect("the program");
    until("it is served", || daemon.query(&["list"]).as_array().is_some_and(|all| !all.is_empty()));
    let mut judge = Judge::default();
    let pid = child.id().to_string();
    for arguments in [
        &["status"][..],
        &["list"],
        &["list", "--json"],
        &["show", &pid],
        &["show", &pid, "--json"],
        &["metrics"],
        &["show", HOSTILE],
        &["mode", HOSTILE, "off"],
        &["snapshot"],
        &["epoch"],
    ] {
        judge.judge(&arguments.join(" "), &daemon.ctl(arguments));
    }
    let control = daemon.state().with_file_name("run").join("control");
    for arguments in [&["top", "--once"][..], &["top", "--once", "--process", &pid]] {
        let output = heaptape(arguments.iter().map(OsStr::new).chain(["--control".as_ref(), control.as_os_str()]));
        judge.judge(&arguments.join(" "), &output);
    }
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), nix::sys::signal::Signal::SIGKILL)
        .expect("a signal");
    child.wait().expect("the program's end");
    daemon.stop();
    for arguments in
        [&["epochs"][..], &["epochs", "--label", HOSTILE], &["epochs", "--program", "p*"], &["epochs", "--dcpi"]]
    {
        let output = heaptape(arguments.iter().map(OsStr::new).chain(["--state".as_ref(), daemon.state().as_os_str()]));
        judge.judge(&arguments.join(" "), &output);
    }
    assert!(judge.dirty.is_empty(), "{}", judge.dirty.join("\n"));
    assert!(judge.answered > 10, "{} commands said something", judge.answered);
}
