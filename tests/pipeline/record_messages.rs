//! Messages of `heaptape record`: color, unrecorded programs, mistyped options and commands, and
//! processes that outlive the program.

use heaptape_tests::recording::heaptape;
use heaptape_tests::wait::until;
use heaptape_tests::{Outcome, Program, Recording, Target, target, test_env, torture};
use std::path::Path;

/// Runs heaptape with these arguments in a new working directory.
fn output(arguments: &[&str]) -> (Outcome, tempfile::TempDir) {
    let folder = test_env::folder();
    (Program::new(test_env::command()).args(arguments).folder(folder.path()).plain(), folder)
}

#[test]
fn log_has_color_only_on_a_terminal() {
    let terminal = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))";
    let record = |pty: bool, variable: &str| {
        let folder = test_env::folder();
        let program = Program::new("true").as_arguments_of(
            Program::new(test_env::command()).args(["record", "-o"]).arg(folder.path().join("r")).arg("--"),
        );
        let program = if pty { program.launched_by(&["python3", "-c", terminal]) } else { program };
        program.env("HEAPTAPE_LOG", "debug").env("TERM", "xterm").env(variable, "1").plain().success()
    };
    let piped = record(false, "UNUSED");
    assert!(piped.error().contains("DEBUG") && !piped.error().contains('\x1b'), "{piped}");
    let colored = record(true, "UNUSED");
    assert!(colored.text().contains("DEBUG") && colored.text().contains('\x1b'), "a terminal has color: {colored}");
    let plain = record(true, "NO_COLOR");
    assert!(plain.text().contains("DEBUG") && !plain.text().contains('\x1b'), "{plain}");
}

#[test]
fn empty_recording_recommends_no_command() {
    let program = Target::program("small.c").flag("-static").flag("-s").named("small-stripped").build();
    let (outcome, folder) = output(&["record", "--", program.to_str().expect("text"), "6"]);
    let error = outcome.error();
    assert_eq!(outcome.code(), 6, "{outcome}");
    assert!(error.contains("nothing was recorded") && error.contains("link it dynamically"), "{outcome}");
    assert!(!error.contains("next:") && !error.contains("none lost"), "{outcome}");
    assert_eq!(error.matches("statically linked").count(), 1, "the reason is there once: {outcome}");
    assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 1);
}

#[test]
fn unknown_options_are_errors() {
    for (arguments, wanted) in [
        (&["record", "--pid", "1"][..], "unknown option --pid"),
        (&["record", "-p", "1"], "unknown option -p"),
        (&["record", "--outptu", "x", "--", "true"], "did you mean --output?"),
        (&["record", "-q", "--pid=1", "true"], "unknown option --pid"),
        (&["leaks", "--no-such-option", "x"], "unknown option --no-such-option"),
    ] {
        let (outcome, folder) = output(arguments);
        assert_eq!(outcome.code(), 2, "{arguments:?}: {outcome}");
        assert!(outcome.error().contains(wanted) && outcome.error().lines().count() == 1, "{arguments:?}: {outcome}");
        assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 0, "{arguments:?}");
    }
    // After the program and after -- all arguments are the program's.
    for (arguments, code) in [
        (&["record", "-q", "sh", "-c", "exit 3"][..], 3),
        (&["record", "-q", "ls", "--color=never", "-a"], 0),
        (&["record", "-q", "--", "sh", "-c", "exit 4", "--pid"], 4),
        (&["record", "-q", "--", "-p"], 127),
    ] {
        let (outcome, _folder) = output(arguments);
        assert_eq!(outcome.code(), code, "{arguments:?}: {outcome}");
    }
}

#[test]
fn options_after_the_program_are_pointed_out() {
    let (outcome, _folder) = output(&["record", "ls", "-q", "-o", "no-such-file"]);
    assert_eq!(outcome.code(), 2, "{outcome}");
    assert!(outcome.error().contains("heaptape: -q -o was passed to ls"), "{outcome}");
    for arguments in [&["record", "--", "ls", "-q", "-o", "no-such-file"][..], &["record", "ls", "-q"]] {
        let (outcome, _folder) = output(arguments);
        assert!(!outcome.error().contains("was passed to"), "{arguments:?}: {outcome}");
    }
}

#[test]
fn missing_programs_are_reported_with_status_127() {
    let (outcome, folder) = output(&["record", "nosuchprog"]);
    assert_eq!((outcome.code(), outcome.error().as_str()), (127, "heaptape: nosuchprog: not found in PATH\n"));
    let script = folder.path().join("script");
    test_env::script(&script, "#!/no/such/interpreter\n");
    let (outcome, _folder) = output(&["record", script.to_str().expect("text")]);
    assert_eq!(outcome.code(), 127, "{outcome}");
    assert!(outcome.error().contains("its interpreter /no/such/interpreter does not exist"), "{outcome}");
    let (outcome, _folder) = output(&["record", "./nosuchprog"]);
    assert!(outcome.error().contains("./nosuchprog: No such file"), "{outcome}");
}

#[test]
fn mistyped_commands_get_a_suggestion() {
    for (command, wanted) in [
        ("run", "heaptape record -- PROG"),
        ("leeks", "did you mean leaks?"),
        ("recrod", "heaptape record -- PROG"),
        ("compare", "did you mean diff?"),
        ("quite-other", "heaptape help all"),
        ("daemon lst", "did you mean list?"),
        ("daemon quite-other", "heaptape daemon -h lists all"),
        ("compat mproff", "did you mean mprof?"),
        ("ctl stauts", "did you mean status?"),
    ] {
        let outcome = heaptape(command.split(' '));
        assert_eq!(outcome.code(), 2, "{outcome}");
        assert!(outcome.error().contains(wanted) && outcome.error().lines().count() == 1, "{command}: {outcome}");
    }
}

/// Returns the pids of processes that were still running at the end of a recording.
fn still_running(folder: &Path) -> Vec<String> {
    let bytes = std::fs::read(folder.join("recording.json")).expect("recording.json");
    let about: heaptape_formats::recording::Recording = serde_json::from_slice(&bytes).expect("json");
    let running = |process: &&heaptape_formats::recording::ProcessInfo| {
        process.exit == Some(heaptape_formats::recording::Exit::Running)
    };
    about.processes.iter().filter(running).map(|process| process.pid.to_string()).collect()
}

/// A program starts a child in the background and ends. With `--wait` the child is recorded to its
/// end. Without, it is named.
#[test]
fn processes_that_outlive_the_program_are_named_or_awaited() {
    // The program ends once its child runs, which goes on for a second. A child that has not run
    // yet when the program ends cannot have attached.
    let folder = test_env::folder();
    let running = folder.path().join("running");
    let line = format!(
        "rm -f {0}; ( touch {0}; sleep 1; exec ls / ) >/dev/null 2>&1 & while [ ! -e {0} ]; do sleep 0.01; done; echo $!",
        running.display()
    );
    let record = |name: &str, options: &[&str]| {
        let program = Program::new(test_env::command()).arg("record").args(options).arg("-o");
        let outcome = Program::new("bash").arg("-c").arg(&line);
        (
            outcome.as_arguments_of(program.arg(folder.path().join(name)).arg("--")).plain().success(),
            folder.path().join(name),
        )
    };
    let (outcome, recording) = record("without", &[]);
    let running = still_running(&recording);
    assert!(!running.is_empty(), "{outcome}");
    let error = outcome.error();
    assert!(error.contains("still running") && error.contains("record --wait"), "{outcome}");
    assert!(running.iter().all(|pid| error.contains(&format!("(pid {pid})"))), "{running:?}: {outcome}");
    assert!(error.contains("sleep (pid") || error.contains("bash (pid"), "{outcome}");

    let (outcome, recording) = record("with", &["--wait"]);
    assert!(outcome.wall.as_secs_f64() >= 1.0, "{outcome}");
    assert_eq!(still_running(&recording), Vec::<String>::new(), "{outcome}");
    assert!(!outcome.error().contains("still running"), "{outcome}");
    let recording = Recording { outcome, folder: recording, directory: test_env::folder() }.complete();
    let report = recording.report();
    assert_eq!(report.only("ls").exit.get("code").and_then(serde_json::Value::as_u64), Some(0), "{report:#?}");
    torture::passed(61, "background programs recorded to their end", 1);
}

/// A forked child attaches at its first allocation. When that comes after the end of the program,
/// the child is named, or recorded by `--wait`.
#[test]
fn child_that_first_allocates_after_the_end_is_named_or_awaited() {
    let folder = test_env::folder();
    let program = |name: &str| Program::new(target::c("outlives")).arg(folder.path().join(name));
    let recording = program("late").recorded().success();
    let why = recording.not_traced("outlives");
    assert!(why.len() == 1 && why[0].contains("record --wait"), "{:#?}", recording.about());
    let report = recording.heaptape(&["report"]).success().text();
    assert!(report.contains("was not recorded: it still ran"), "{report}");
    until("the child ends", || folder.path().join("late").exists());

    let recording = program("awaited").option("--wait").recorded().success().complete();
    assert_eq!(recording.not_traced("outlives"), Vec::<String>::new());
    let report = recording.report();
    assert!(report.all("outlives").any(|process| process.allocs == 1_000), "{report:#?}");

    // Children that are not to be recorded are not missing.
    for option in ["--no-children", "--skip=outlives"] {
        let recording = program(option).option(option).recorded().success();
        assert_eq!(recording.not_traced("outlives"), Vec::<String>::new(), "{option}");
    }
}

/// Nothing is waited for when nothing outlives the program, and a signal ends the waiting.
#[test]
fn waiting_ends_with_the_last_process_or_a_signal() {
    let quick = Program::new("ls").option("--wait").recorded().success().complete();
    assert!(quick.outcome.wall.as_secs_f64() < 20.0, "{}", quick.outcome);
    let recording =
        Program::shell("sleep 30 >/dev/null 2>&1 & echo $!").option("--wait").recorded_while(|command, _| {
            heaptape_tests::run::survivor(command);
            std::thread::sleep(std::time::Duration::from_millis(1_500));
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(command.id() as i32), nix::sys::signal::Signal::SIGTERM)
                .expect("SIGTERM");
        });
    let recording = recording.success();
    assert!(recording.outcome.wall.as_secs_f64() < 20.0, "{}", recording.outcome);
    assert_eq!(still_running(&recording.folder), [recording.outcome.text().trim()]);
    let sleep: i32 = recording.outcome.text().trim().parse().expect("a pid");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(sleep), nix::sys::signal::Signal::SIGKILL).expect("it runs");
}
