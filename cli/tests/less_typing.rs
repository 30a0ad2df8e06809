//! What need not be typed: the folder of the newest recording, a new name for each run, the command
//! for a recording or a program, the browser for a page.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// A folder to work in, with a cache of its own.
struct Desk(tempfile::TempDir);

impl Desk {
    fn new() -> Desk {
        Desk(tempfile::tempdir().expect("a folder"))
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_heaptape"));
        command.args(args).current_dir(self.path()).env("XDG_CACHE_HOME", self.path().join("cache"));
        for name in ["DISPLAY", "WAYLAND_DISPLAY", "BROWSER"] {
            command.env_remove(name);
        }
        command
    }

    /// Runs the command, which ends with this status. Returns its standard output and error.
    fn run(&self, args: &[&str], status: i32) -> (String, String) {
        let output = self.command(args).output().expect("the command runs");
        assert_eq!(output.status.code(), Some(status), "{args:?}: {}", text(&output).1);
        text(&output)
    }

    fn record(&self, name: &str) {
        self.run(&["record", "-q", "-o", name, "--", "true"], 0);
    }
}

fn text(output: &Output) -> (String, String) {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).into()
}

#[test]
fn commands_without_a_folder_take_the_newest_recording_and_name_it() {
    let desk = Desk::new();
    for command in ["leaks", "report", "verify", "open", "why", "whatif", "diff", "pack"] {
        let (out, error) = desk.run(&[command], 2);
        assert!(out.is_empty() && error.contains("in this folder"), "{command}: {out}{error}");
    }
    desk.record("first");
    let (_, error) = desk.run(&["diff"], 2);
    assert!(error.contains("fewer than two recordings"), "{error}");
    desk.record("second");
    for command in ["leaks", "peak", "sites", "timeline", "report", "verify", "why", "threads", "pack"] {
        let (_, error) = desk.run(&[command], 0);
        assert!(error.contains("heaptape: second, the newest recording here"), "{command}: {error}");
    }
    let (out, _) = desk.run(&["report", "--json"], 0);
    assert!(out.starts_with('{') && out.contains("\"processes\""), "{out}");
    let (_, error) = desk.run(&["diff"], 0);
    assert!(error.contains("from first to second"), "{error}");
    let (_, error) = desk.run(&["leaks", "first"], 0);
    assert!(!error.contains("newest"), "{error}");
    let (_, error) = desk.run(&["callers", "first"], 2);
    assert!(error.contains("the function comes first"), "{error}");
}

#[test]
fn force_replaces_a_recording_and_nothing_else() {
    let desk = Desk::new();
    desk.record("run");
    let about = || fs::read(desk.path().join("run/recording.json")).expect("a recording");
    let before = about();
    let record = |options: &[&str], program: &str, status| {
        desk.run(&[&["record", "-q"], options, &["--", program]].concat(), status).1
    };
    assert!(
        record(&["-o", "run"], "true", 2)
            .contains("run exists already: choose another folder with -o, or replace it with -f")
    );
    // Nothing is given up for a program that does not exist, or cannot run.
    assert!(record(&["-f", "-o", "run"], "./no-such-program", 127).contains("run is kept"));
    assert!(record(&["-f", "-o", "run"], "no-such-program", 127).contains("run is kept"));
    record(&["-f", "-o", "run"], "/etc", 126);
    record(&["-f", "-o", "run"], "/etc/passwd", 126);
    assert_eq!(about(), before);
    record(&["-f", "-o", "run"], "true", 0);
    assert_ne!(about(), before);
    record(&["--force", "-o", "new"], "true", 0);
    record(&["--force", "--references", "-o", "new"], "true", 0);
    record(&["--force", "-o", "new"], "true", 0);
    fs::create_dir(desk.path().join("thesis")).expect("a folder");
    fs::write(desk.path().join("thesis/chapter"), "words").expect("a file");
    std::os::unix::fs::symlink("run", desk.path().join("link")).expect("a link");
    for other in ["thesis", "thesis/chapter", "link"] {
        assert!(record(&["-f", "-o", other], "true", 2).contains("is no recording"), "{other}");
    }
    assert!(desk.path().join("thesis/chapter").exists() && desk.path().join("link").is_symlink());
    // The name of one file makes no recording, and what a user has put into one stays.
    for about in ["hello", "{}"] {
        fs::write(desk.path().join("thesis/recording.json"), about).expect("a file");
        record(&["-f", "-o", "thesis"], "true", 2);
    }
    let process = fs::read_dir(desk.path().join("run")).expect("a recording").flatten().map(|entry| entry.path());
    let process = process.into_iter().find(|path| path.is_dir()).expect("a process");
    for folder in [desk.path().join("run"), process] {
        let notes = folder.join("notes.txt");
        fs::write(&notes, "words").expect("a file");
        assert!(record(&["-f", "-o", "run"], "true", 2).contains("notes.txt is in run and not of the recording"));
        fs::remove_file(&notes).expect("it is there");
    }
    fs::create_dir_all(desk.path().join("run/more/sub")).expect("folders");
    record(&["-f", "-o", "run"], "true", 2);
    assert!(desk.path().join("thesis/chapter").exists() && desk.path().join("run/more/sub").exists());
}

#[test]
fn recording_that_is_being_recorded_is_not_replaced() {
    let desk = Desk::new();
    let mut first = desk.command(&["record", "-q", "-o", "run", "--", "sleep", "30"]).spawn().expect("it runs");
    let tape = || {
        fs::read_dir(desk.path().join("run"))
            .into_iter()
            .flatten()
            .flatten()
            .any(|entry| entry.path().join("events.tape").exists())
    };
    while !tape() {
        assert!(first.try_wait().expect("its state").is_none(), "it ended early");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let (_, error) = desk.run(&["record", "-q", "-f", "-o", "run", "--", "true"], 2);
    assert!(error.contains("is still being recorded"), "{error}");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(first.id() as i32), nix::sys::signal::Signal::SIGINT)
        .expect("a signal");
    first.wait().expect("its end");
    desk.run(&["record", "-q", "-f", "-o", "run", "--", "true"], 0);
}

#[test]
fn recordings_and_programs_in_place_of_a_command_get_an_answer() {
    let desk = Desk::new();
    desk.record("run");
    for (typed, wanted) in [
        ("run", "to record a program"),
        ("./run", "heaptape leaks ./run, or heaptape open ./run"),
        ("true", "heaptape record -- true"),
        ("/bin/true", "heaptape record -- /bin/true"),
        ("/bin/ls -l it's --x", "heaptape record -- /bin/ls -l 'it'\\''s' --x"),
        ("ls -l", "to record the program ls: heaptape record -- ls -l"),
        ("html", "did you mean open?"),
        ("no-such-thing", "heaptape help all"),
    ] {
        let (_, error) = desk.run(&typed.split(' ').collect::<Vec<_>>(), 2);
        // A recording's name comes before a command of other tools.
        let wanted = if typed == "run" { "heaptape leaks run, or heaptape open run" } else { wanted };
        assert!(error.contains(wanted) && error.lines().count() == 1, "{typed}: {error}");
    }
}

#[test]
fn page_is_in_the_cache_and_a_browser_opens_it() {
    let desk = Desk::new();
    desk.record("run");
    let (out, _) = desk.run(&["open"], 0);
    let page = Path::new(out.trim());
    assert!(page.starts_with(desk.path().join("cache/heaptape/pages")), "{out}");
    assert!(fs::read_to_string(page).expect("a page").contains("<html"));
    // The same recording has the same place; two recordings are compared.
    assert_eq!(desk.run(&["open", "run"], 0).0, out);
    desk.record("other");
    assert_ne!(desk.run(&["open", "run", "other"], 0).0, out);
    let (out, _) = desk.run(&["open", "--print", "-o", "page.html", "run"], 0);
    assert_eq!(Path::new(out.trim()), desk.path().canonicalize().expect("a folder").join("page.html"));
    // A desktop: a program xdg-open, and a display.
    let opener = desk.path().join("xdg-open");
    fs::write(&opener, format!("#!/bin/sh\necho \"$1\" > {}/opened\n", desk.path().display())).expect("a script");
    fs::set_permissions(&opener, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("rights");
    let search = format!("{}:/usr/bin:/bin", desk.path().display());
    let output = desk.command(&["open", "run"]).env("DISPLAY", ":9").env("PATH", search).output().expect("it runs");
    let (out, error) = text(&output);
    assert!(output.status.success() && out.is_empty() && error.contains("is shown in the browser"), "{out}{error}");
    let opened = fs::read_to_string(desk.path().join("opened")).expect("the browser's page");
    assert_eq!(Path::new(opened.trim()), page);
}

#[test]
fn export_takes_the_format_from_the_name_of_the_file() {
    let desk = Desk::new();
    desk.record("run");
    desk.run(&["export", "-o", "page.html"], 0);
    assert!(fs::read_to_string(desk.path().join("page.html")).expect("a page").contains("<html"));
    for args in [["export", "run"].as_slice(), &["export", "-o", "unknown.ending", "run"]] {
        let (_, error) = desk.run(args, 2);
        assert!(error.contains("choose a format") && error.contains("speedscope"), "{error}");
    }
}

/// `script` gives the command a terminal.
#[test]
fn pages_and_binary_files_do_not_go_to_a_terminal() {
    let desk = Desk::new();
    desk.record("run");
    for (options, is_refused) in [
        ("--format html", true),
        ("--format html -o -", true),
        ("--format svg", true),
        ("--format mtrc", true),
        ("--format pprof -o -", true),
        ("--format csv", false),
    ] {
        let line = format!("{} export {options} run", env!("CARGO_BIN_EXE_heaptape"));
        let mut script = Command::new("script");
        script.args(["-qec", &line, "/dev/null"]).current_dir(desk.path());
        let output = script.output().expect("script runs");
        let shown = text(&output).0;
        assert_eq!(shown.contains("is not for a terminal"), is_refused, "{options}: {shown}");
        assert_eq!(output.status.success(), !is_refused, "{options}: {shown}");
    }
}

#[test]
fn why_answers_for_a_recording() {
    let desk = Desk::new();
    let (_, error) = desk.run(&["record", "-q", "-o", "run", "--", "sh", "-c", "exit 3"], 3);
    let (out, _) = desk.run(&["why", "run"], 0);
    assert!(out.contains("exit 3") && out.contains("recorded in run/"), "{out}{error}");
    assert_eq!(desk.run(&["daemon", "why", "run"], 0).0, out);
    let (json, _) = desk.run(&["why", "--json", "run"], 0);
    assert!(json.contains("\"exit\"") && json.contains("\"grew\""), "{json}");
}
