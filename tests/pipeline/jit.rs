//! Code that no file describes: made at run time, with a perf map that tells its names, or the
//! kernel's own. The recording keeps the names: here the maps are gone when the questions are
//! asked.

use heaptape_tests::daemon::{Running, until};
use heaptape_tests::recording::Leak;
use heaptape_tests::{Daemon, Program, Recording, is_root, target, test_env};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn map(pid: u32) -> PathBuf {
    PathBuf::from(format!("/tmp/perf-{pid}.map"))
}

/// Removes the maps of a recording's processes.
fn forget_maps(recording: &Recording) {
    recording.about().images.iter().for_each(|image| drop(fs::remove_file(map(image.pid))));
}

fn of_size(leaks: &[Leak], size: u64) -> &Leak {
    let mut found = leaks.iter().filter(|leak| leak.bytes == leak.blocks * size);
    found.next().unwrap_or_else(|| panic!("no block of {size} bytes: {leaks:#?}"))
}

#[track_caller]
fn is_through_made_code(leak: &Leak) {
    assert!(leak.functions().starts_with(&["take", "load_orders", "main"]), "{leak:#?}");
    let made = &leak.stack[1];
    assert_eq!((made.file.as_deref(), made.line), (Some("/srv/shop.js"), Some(12)), "{made:?}");
    assert!(made.module.as_deref().unwrap_or_default().is_empty(), "{made:?}");
}

#[test]
fn made_code_has_names_when_its_map_is_gone() {
    let recording = Program::new(target::c("makes_code")).arg("calls").recorded().success().whole();
    forget_maps(&recording);
    is_through_made_code(of_size(&recording.leaks(), 601));
    let said = recording.heaptape(&["leaks"]).exits(0).text();
    assert!(said.contains("load_orders shop.js:12"), "{said}");
}

/// A child runs what its parent made, though its own map is nowhere; and what its parent knew of
/// modules it knows too.
#[test]
fn a_fork_child_knows_its_parent_s_code_and_modules() {
    let recording = Program::new(target::c("makes_code")).arg("forks").recorded().success().whole();
    forget_maps(&recording);
    let leaks = recording.leaks();
    let leak = of_size(&leaks, 607);
    is_through_made_code(leak);
    let has_module = |place: &usize| leak.stack[*place].module.as_deref().is_some_and(|module| !module.is_empty());
    let outside: Vec<_> = (0..leak.stack.len()).filter(|place| *place != 1 && !has_module(place)).collect();
    assert!(outside.is_empty() && leak.stack.len() > 4, "frames {outside:?} in no module: {leak:#?}");
}

/// The program's `/tmp` goes with its last process.
#[test]
fn a_map_in_a_tmp_of_its_own() {
    if !is_root() {
        eprintln!("SKIPPED: another /tmp needs the superuser");
        return;
    }
    let run = tempfile::tempdir_in("/var/tmp").expect("a folder");
    let program = run.path().join("makes_code");
    fs::copy(target::c("makes_code"), &program).expect("a copy");
    let script = format!("mount -t tmpfs none /tmp && exec {} calls", program.display());
    let words = [("XDG_RUNTIME_DIR", run.path()), ("TMPDIR", run.path())];
    let mut recorded = Program::new(test_env::need("unshare")).args(["-m", "sh", "-c", &script]);
    for (name, value) in words {
        recorded = recorded.env(name, value);
    }
    let recording = recorded.recorded().success();
    is_through_made_code(of_size(&recording.leaks(), 601));
    for image in recording.about().images.iter().filter(|image| image.exe.ends_with("makes_code")) {
        assert!(!map(image.pid).exists(), "its map lay in ours");
    }
}

#[test]
fn the_kernel_s_code_has_names() {
    let recording = Program::new(target::c("makes_code")).arg("kernel").recorded().success().whole();
    let leaks = recording.leaks();
    let leak = of_size(&leaks, 619);
    let module = |frame: &&heaptape_tests::recording::Frame| {
        frame.module.as_deref().is_some_and(|module| module.contains("vdso"))
    };
    let frame = leak.stack.iter().find(module).unwrap_or_else(|| panic!("no frame in the vDSO: {leak:#?}"));
    assert!(frame.function.as_deref().is_some_and(|name| name.contains("clock_gettime")), "{frame:?}");
    assert!(leak.functions().contains(&"interrupt_the_kernel_s_code"), "{leak:#?}");
}

/// A real run-time with a compiler.
#[test]
fn node_s_functions_have_names() {
    let place = test_env::folder();
    let script = place.path().join("shop.js");
    let text = "const kept = [];\nfunction loadOrders(count) {\n  for (let at = 0; at < count; at++) kept.push(Buffer.allocUnsafeSlow(50021));\n}\n\
                for (let round = 0; round < 20; round++) loadOrders(50);\nprocess.kill(process.pid, 'SIGKILL');\n";
    fs::write(&script, text).expect("a script");
    let node = Program::new(test_env::need("node"));
    let flags = ["--perf-basic-prof", "--interpreted-frames-native-stack"];
    // Where it runs it leaves a log.
    let recording = node.args(flags).arg(&script).folder(place.path()).recorded();
    forget_maps(&recording);
    // By function, what Node.js allocates beside a buffer is the script's, too.
    let leaks = recording.leaks_as(&["--by", "stack"]);
    let buffers: Vec<_> = leaks.iter().filter(|leak| leak.bytes == leak.blocks * 50021).collect();
    let blocks: u64 = buffers.iter().map(|leak| leak.blocks).sum();
    assert_eq!(blocks, 1000, "{buffers:#?}");
    for leak in buffers {
        let place = leak.functions().iter().position(|name| *name == "loadOrders");
        let frame =
            place.map(|place| &leak.stack[place]).unwrap_or_else(|| panic!("not through the script: {leak:#?}"));
        assert_eq!((frame.file.as_deref(), frame.line), (script.to_str(), Some(2)), "{frame:?}");
        assert!(leak.functions().contains(&"node::Start"), "the stack goes on behind the made code: {leak:#?}");
    }
}

/// What the daemon sums up of processes that are over, and what it keeps of one that lives.
#[test]
fn the_daemon_keeps_names() {
    let mut daemon = Daemon::start(&["--mode", "profile", "--snapshot", "300ms"]);
    let program = target::c("makes_code");
    let run = |_| {
        let mut child = daemon.command(&program).arg("calls").spawn().expect("it starts");
        assert!(child.wait().expect("it is ours").success());
        map(child.id())
    };
    let mut maps: Vec<PathBuf> = (0..3).map(run).collect();
    let live = daemon.command(&program).arg("waits").stdin(Stdio::piped()).spawn().expect("it starts");
    let live = Running(live);
    let leaks = |paths: &[PathBuf]| daemon.leaks(paths);
    let blocks = |paths: &[PathBuf]| {
        leaks(paths).iter().filter(|leak| leak.bytes == leak.blocks * 601).map(|leak| leak.blocks).sum::<u64>()
    };
    until("the epoch has all of them", || blocks(&daemon.epochs(&[])) == 4);
    let shown = daemon.ctl(&["show", &live.0.id().to_string()]).success().text();
    assert!(shown.contains("load_orders shop.js:12"), "{shown}");
    maps.push(map(live.0.id()));
    maps.iter().for_each(|map| fs::remove_file(map).expect("a map"));
    let found = leaks(&daemon.epochs(&[]));
    found.iter().filter(|leak| leak.bytes == leak.blocks * 601).for_each(is_through_made_code);
    let summed: Vec<_> = found.iter().filter(|leak| leak.blocks == 3 && leak.bytes == 3 * 601).collect();
    assert_eq!(summed.len(), 1, "three processes, whose code lay at three addresses, are one row: {found:#?}");
    drop(live);
    daemon.stop();
    daemon.whole();
}

/// One frame a stack: its module is known all the same.
#[test]
fn the_caller_alone_has_a_name() {
    let recording =
        Program::new(target::c("makes_code")).arg("calls").option("--stacks").option("none").recorded().success();
    forget_maps(&recording);
    assert_eq!(of_size(&recording.leaks(), 601).functions(), ["take"]);
}

/// A pack names made code elsewhere.
#[test]
fn a_pack_takes_names_along() {
    let place = test_env::folder();
    let program = place.path().join("makes_code");
    fs::copy(target::c("makes_code"), &program).expect("a copy");
    let recording = Program::new(&program).arg("calls").recorded().success().whole();
    forget_maps(&recording);
    recording.heaptape(&["pack"]).success();
    fs::remove_file(&program).expect("the program goes");
    is_through_made_code(of_size(&recording.leaks(), 601));
    export_names_it(&recording.folder);
}

/// Exports name it too.
fn export_names_it(folder: &Path) {
    let out = folder.with_file_name("collapsed");
    let words = ["export", "--to", "collapsed", "-o"];
    let said = Command::new(test_env::command()).args(words).arg(&out).arg(folder).output().expect("the command");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let text = fs::read_to_string(&out).expect("an export");
    assert!(text.contains("main;load_orders;take"), "{text}");
}
