//! `heaptape attach` and `heaptape detach`: processes that run already.

mod programs;
mod refusals;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use programs::{Attach, Running, RunsOn, answer, binary, build, heaptape, wait_until};
use std::io::BufRead;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// The figures of `attached.c`, for each thread and line.
const BLOCKS: u64 = 1000;
const LEAKED: u64 = 3;

/// Everything from the attach on is recorded, with the stacks of the program, once and again.
/// Between and afterwards there is nothing of the library in the process.
#[test]
fn attached_process_is_recorded_exactly_and_left_as_it_was() {
    for threads in [1, 4] {
        let mut running = Running::start(threads);
        for round in 0..2 {
            let mut attach = Attach::start(&running, &round.to_string());
            assert_ne!(running.mappings(), "");
            running.work();
            let text = attach.end();
            assert!(text.contains("was left as it was; longest stop: "), "{text}");
            assert_eq!(running.mappings(), "", "{text}");
            running.work();
            let report = answer("report", &attach.recording);
            let process = &report["processes"][0];
            let unknown = if round == 0 { threads } else { 0 };
            let wanted = [
                ("allocs", threads * (BLOCKS + LEAKED)),
                ("resizes", threads * BLOCKS),
                ("frees", threads * BLOCKS + unknown),
                ("lost_events", 0),
                ("unknown_frees", unknown),
            ];
            for (name, count) in wanted {
                assert_eq!(process[name], count, "{name} of {threads} threads, round {round}: {process}");
            }
            assert_eq!(process["unseen_mappings"], "it ran already when it was attached", "{process}");
            let leaks = answer("leaks", &attach.recording);
            let leaks = leaks["leaks"].as_array().expect("a list");
            let found = leaks.iter().find(|leak| leak["blocks"] == threads * LEAKED).expect("the leak");
            let functions = found["stack"].to_string();
            assert!(functions.contains("\"leaks\"") && functions.contains("\"works\""), "{found}");
            assert_eq!(found["bytes"], threads * LEAKED * 107);
            // Each frame is in the file that it is really in.
            let module_of = |function: &str| {
                let mut frames = found["stack"].as_array().expect("a list").iter();
                let frame = frames.find(|frame| frame["function"].as_str().is_some_and(|name| name == function));
                frame.and_then(|frame| frame["module"].as_str()?.rsplit('/').next()).map(str::to_owned)
            };
            assert_eq!(module_of("leaks").as_deref(), Some("attached"), "{found}");
            let of_libc = found["stack"].to_string().contains("/libc.so");
            assert!(of_libc, "{found}");
        }
        running.ends_unharmed();
    }
}

/// The blocks that glibc keeps for a thread are freed by the program once, and by glibc at the end
/// of the thread once more.
#[test]
fn end_of_a_thread_is_no_free() {
    let mut running = Running::start(1);
    let mut attach = Attach::start(&running, "recording");
    running.request("end");
    attach.end();
    let report = answer("report", &attach.recording);
    let process = &report["processes"][0];
    assert!(process["allocs"].as_u64().is_some_and(|allocs| allocs >= 20), "{process}");
    assert_eq!((&process["unknown_frees"], &process["lost_events"]), (&0.into(), &0.into()), "{process}");
    running.ends_unharmed();
}

/// A process whose `heaptape attach` was killed goes on. It is not attached again before `heaptape
/// detach` has restored it.
#[test]
fn process_of_a_killed_attach_goes_on_and_is_restored() {
    let mut running = Running::start(2);
    let mut attach = Attach::start(&running, "first");
    running.work();
    // What was written is readable, also while the recorder is still writing.
    let allocs = || answer("report", &attach.recording)["processes"][0]["allocs"].as_u64();
    wait_until(|| allocs() >= Some(2 * BLOCKS));
    attach.child.kill().expect("it runs");
    attach.child.wait().expect("its end");
    running.work();
    assert!(allocs() >= Some(2 * BLOCKS), "{:?}", answer("report", &attach.recording));
    let leaks = answer("leaks", &attach.recording)["leaks"].to_string();
    assert!(leaks.contains("\"leaks\"") && leaks.contains("\"works\""), "{leaks}");
    let pid = running.pid();
    let refused = heaptape(&["attach", &pid], 2);
    assert!(refused.contains(&format!("heaptape detach {pid} restores them")), "{refused}");
    let restored = heaptape(&["detach", &pid], 0);
    assert!(restored.contains("functions have their own code again"), "{restored}");
    let restored = heaptape(&["detach", &pid], 0);
    assert!(restored.contains("no function that heaptape has hooked"), "{restored}");
    let mut attach = Attach::start(&running, "second");
    running.work();
    attach.end();
    running.ends_unharmed();
}

/// A thread that waits for its child by `vfork` stops for nobody. The functions are restored all
/// the same, and the library stays mapped, since the thread may be in it.
#[test]
fn process_is_restored_while_a_thread_does_not_stop() {
    let mut running = Running::start(1);
    let mut attach = Attach::start(&running, "recording");
    running.request("vfork");
    let text = attach.end();
    assert!(text.contains("stays mapped") && text.contains("was left; longest stop: "), "{text}");
    let restored = heaptape(&["detach", &running.pid()], 0);
    assert!(restored.contains("no function that heaptape has hooked"), "{restored}");
    // The child reads it, and the thread goes on.
    writeln!(running.input).expect("it reads");
    running.work();
    running.ends_unharmed();
}

/// A process that a signal has stopped is attached and left, and is still stopped then.
#[test]
fn stopped_process_stays_stopped() {
    let mut running = Running::start(2);
    let pid = Pid::from_raw(running.child.id() as i32);
    kill(pid, Signal::SIGSTOP).expect("it runs");
    let is_stopped = || std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("its state").contains(") T ");
    wait_until(is_stopped);
    let mut attach = Attach::start(&running, "recording");
    wait_until(is_stopped);
    attach.end();
    wait_until(is_stopped);
    kill(pid, Signal::SIGCONT).expect("it is there");
    running.work();
    // SIGSTOP and SIGCONT interrupt the wait without heaptape, too.
    running.ends_unharmed_after(&[0, 1]);
}

/// A stop may meet a thread that is about to get a signal, also a real-time one, which it still
/// gets.
#[test]
fn process_under_real_time_signals_is_attached_again_and_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let running = RunsOn::start(Command::new(build("runs_on", folder.path())).args(["realtime", "4"]));
    for round in 0..5 {
        let recording = folder.path().join(round.to_string());
        let recording = recording.to_string_lossy();
        let text = heaptape(&["attach", "--drop", "--for", "20ms", "-o", &recording, &running.pid()], 0);
        assert!(text.contains("was left as it was; longest stop: "), "{text}");
    }
    let pid = running.child.id();
    running.ends_unharmed(pid);
}

/// A kill of the command at any time leaves no trace of the step at which it was: no signal mask,
/// no false interruption, and the process can be attached afterwards.
#[test]
fn killed_attach_leaves_the_process_as_it_was() {
    for kind in ["forks", "wakes"] {
        let folder = tempfile::tempdir().expect("a folder");
        let running = RunsOn::start(Command::new(build("runs_on", folder.path())).arg(kind));
        let pid = running.pid();
        let status = |name: &str| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
            status.lines().find_map(|line| line.strip_prefix(name)).expect("a field").trim().to_owned()
        };
        let is_free = || status("TracerPid:") == "0" && status("SigBlk:") == "0000000000000000";
        for round in 0..16u64 {
            let recording = folder.path().join("killed");
            let mut attach = Command::new(binary())
                .args(["attach", "-q", "-o"])
                .args([recording.as_os_str(), pid.as_ref()])
                .spawn()
                .expect("heaptape attach starts");
            // Without a pause, since it traces for some milliseconds only. Seldom this is too late.
            let until = Instant::now() + Duration::from_secs(2);
            while status("TracerPid:") == "0" && Instant::now() < until {}
            // Within the first steps: each one takes some 10 us.
            let until = Instant::now() + Duration::from_micros(round % 12 * 25);
            while Instant::now() < until {}
            attach.kill().expect("it is a child");
            attach.wait().expect("its end");
            // The process that traces finishes its step. glibc blocks all signals in fork for a
            // moment.
            wait_until(is_free);
            let _ = std::fs::remove_dir_all(&recording);
            heaptape(&["detach", &pid], 0);
        }
        let recording = folder.path().join("last");
        heaptape(&["attach", "--for", "20ms", "-o", &recording.to_string_lossy(), &pid], 0);
        let pid = running.child.id();
        running.ends_unharmed(pid);
    }
}

/// A kill at each numbered step of the tracing process, of the command or of that process itself,
/// leaves the program unharmed. It can be detached and attached afterwards. Release builds have no
/// such steps.
#[test]
fn process_survives_a_kill_at_each_step() {
    if !cfg!(debug_assertions) {
        return;
    }
    // A prime, so that other steps of a loop are met in each round of it.
    let stride = if std::env::var_os("HEAPTAPE_FULL").is_some() { 1 } else { 13 };
    let folder = tempfile::tempdir().expect("a folder");
    let program = build("runs_on", folder.path());
    // The last one allows for no false interruption, and the tracer alone can prevent that.
    for (arguments, who) in [(["storm", "2"], ""), (["storm", "2"], ",tracer"), (["wakes", "1"], "")] {
        let running = RunsOn::start(Command::new(&program).args(arguments));
        let pid = running.pid();
        let recording = folder.path().join("recording");
        let attach = |step: u32| {
            let _ = std::fs::remove_dir_all(&recording);
            let mut command = Command::new(env!("CARGO_BIN_EXE_heaptape"));
            command.args(["attach", "-q", "--drop", "--for", "1ms", "-o"]).args([recording.as_os_str(), pid.as_ref()]);
            command.env("HEAPTAPE_TEST_KILL", format!("{step}{who}"));
            let output = command.output().expect("it starts");
            // It is killed, or it says why the process is not attached.
            assert!(output.status.signal().is_none_or(|signal| signal == Signal::SIGKILL as i32), "{output:?}");
            output.status.success() && !String::from_utf8_lossy(&output.stderr).contains("was killed")
        };
        let mut step = 1;
        let mut killed = 0;
        while !attach(step) {
            heaptape(&["detach", &pid], 0);
            step += stride;
            killed += 1;
            assert!(step < 2000, "it never succeeds");
        }
        println!("{arguments:?}, {who}: {killed} kills, the last step was {step}");
        assert!(killed >= 10, "{arguments:?}: the last step was {step}");
        heaptape(&["attach", "-q", "--for", "1ms", "-o", &folder.path().join("last").to_string_lossy(), &pid], 0);
        std::fs::remove_dir_all(folder.path().join("last")).expect("the recording");
        let pid = running.child.id();
        running.ends_unharmed(pid);
    }
}

/// A signal that arrives while its thread is stopped interrupts the wait of the thread, as it does
/// without the stop.
#[test]
fn signal_during_a_stop_ends_the_wait() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut running = RunsOn::start(Command::new(build("runs_on", folder.path())).arg("wakes"));
    let pid = running.pid();
    let state = format!("/proc/{pid}/stat");
    let mut stopped = 0;
    for round in 0..12 {
        let recording = folder.path().join(round.to_string());
        let mut attach = Command::new(binary())
            .args(["attach", "-q", "--for", "1ms", "-o"])
            .args([recording.as_os_str(), pid.as_ref()])
            .spawn()
            .expect("heaptape attach starts");
        let until = Instant::now() + Duration::from_secs(2);
        let is_stopped = || std::fs::read_to_string(&state).expect("its state").contains(") t ");
        while !is_stopped() && Instant::now() < until {}
        kill(Pid::from_raw(running.child.id() as i32), Signal::SIGUSR1).expect("it runs");
        stopped += u32::from(is_stopped());
        let mut line = String::new();
        running.output.read_line(&mut line).expect("a line");
        assert_eq!(line, "woken\n");
        assert!(attach.wait().expect("its end").success());
    }
    assert!(stopped > 0, "no signal met a stop");
    let pid = running.child.id();
    running.ends_unharmed(pid);
}

/// Returns the mapped files of a process whose code in memory is not that of the file.
fn changed_files(pid: &str) -> Vec<String> {
    use std::os::unix::fs::FileExt;
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("its mappings");
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).expect("its memory");
    let code = maps.lines().filter(|line| line.contains(" r-xp ") && line.contains('/'));
    let mut compared = 0;
    let changed = code.filter_map(|line| {
        let path = &line[line.find('/')?..];
        let (start, end) = line.split(' ').next()?.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).expect("a number");
        let offset = number(line.split(' ').nth(2)?);
        let mut own = vec![0; (number(end) - number(start)) as usize];
        memory.read_exact_at(&mut own, number(start)).expect("it is mapped");
        let mut of_file = vec![0; own.len()];
        let file = std::fs::File::open(path).expect("the file");
        // The rest of the last page has no bytes in the file.
        let mut length = 0;
        while let Ok(count @ 1..) = file.read_at(&mut of_file[length..], offset + length as u64) {
            length += count;
        }
        compared += 1;
        (own[..length] != of_file[..length]).then(|| path.to_owned())
    });
    let changed: Vec<String> = changed.collect();
    assert!(compared >= 3, "{maps}");
    changed
}

/// After the end all code is that of the files, and debuggers and profilers work as before.
#[test]
fn code_is_that_of_the_files_and_other_tools_work_afterwards() {
    let folder = tempfile::tempdir().expect("a folder");
    let running = RunsOn::start(Command::new(build("runs_on", folder.path())).args(["storm", "2"]));
    let pid = running.pid();
    let recording = folder.path().join("recording");
    let attach = Command::new(binary())
        .args(["attach", "--drop", "-q", "-o"])
        .args([recording.as_os_str(), pid.as_ref()])
        .spawn();
    let mut attach = attach.expect("heaptape attach starts");
    wait_until(|| !changed_files(&pid).is_empty());
    kill(Pid::from_raw(attach.id() as i32), Signal::SIGINT).expect("it runs");
    assert!(attach.wait().expect("its end").success());
    assert_eq!(changed_files(&pid), Vec::<String>::new());
    let perf_data = folder.path().join("perf");
    let tools = [
        ("strace", vec!["timeout", "-s", "INT", "1", "strace", "-f", "-o", "/dev/null", "-p", &pid]),
        ("gdb", vec!["gdb", "-batch", "-q", "-nx", "-ex", "thread apply all bt", "-p", &pid]),
        ("perf", vec!["perf", "record", "-q", "-o", perf_data.to_str().expect("a path"), "-p", &pid, "sleep", "0.2"]),
    ];
    for (tool, line) in tools {
        let is_installed = Command::new("which").arg(tool).output().is_ok_and(|output| output.status.success());
        if !is_installed {
            continue;
        }
        let output = Command::new(line[0]).args(&line[1..]).output().expect("it starts");
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        match tool {
            "gdb" => assert!(text.contains("storms (") && text.contains("start_thread ("), "{text}"),
            // `timeout` has ended it.
            "strace" => assert!(text.contains("attached") && text.contains("detached"), "{text}"),
            _ => assert!(output.status.success() || text.contains("access"), "{text}"),
        }
    }
    let pid = running.child.id();
    running.ends_unharmed(pid);
}

/// A process in a mount, pid and user namespace of its own is recorded from outside, with its
/// names, and so is one whose files the command cannot see.
#[test]
fn process_in_other_namespaces_is_recorded() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = build("runs_on", folder.path());
    // In a file system that is mounted in its namespace alone.
    let script = "mount -t tmpfs none /mnt && cp \"$0\" /mnt/inside && exec /mnt/inside storm 2";
    let running = RunsOn::start(
        Command::new("unshare")
            .args(["--user", "--map-root-user", "--mount", "--pid", "--fork", "sh", "-c", script])
            .arg(&program),
    );
    let children = format!("/proc/{0}/task/{0}/children", running.child.id());
    let pid = std::fs::read_to_string(children).expect("its child").trim().to_owned();
    for (round, sidecar) in [false, true].into_iter().enumerate() {
        let recording = folder.path().join(round.to_string());
        let mut command = Command::new(if sidecar { "unshare" } else { binary() });
        if sidecar {
            // The pids are shared, the files are not.
            let hidden = "mount -t tmpfs none /usr/share && exec \"$0\" \"$@\"";
            command.args(["--mount", "sh", "-c", hidden, binary()]);
        }
        let attached = command.args(["attach", "--for", "100ms", "-o"]).args([recording.as_os_str(), pid.as_ref()]);
        let output = attached.output().expect("it starts");
        assert!(output.status.success(), "{output:?}");
        let process = &answer("report", &recording)["processes"][0];
        assert_eq!((&process["exe"], &process["lost_events"]), (&"/mnt/inside".into(), &0.into()), "{process}");
        assert!(process["allocs"].as_u64().is_some_and(|allocs| allocs > 100), "{process}");
        let sites = answer("sites", &recording).to_string();
        assert!(sites.contains("runs_on.c") && sites.contains("\"allocates\""), "{sites}");
    }
    let pid = pid.parse().expect("a pid");
    running.ends_unharmed(pid);
}
