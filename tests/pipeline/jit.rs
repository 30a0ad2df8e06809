//! Code without a file: generated at run time, with a perf map that has its names, or the vDSO. The
//! recording keeps the names: here the maps are removed before the commands run.

use heaptape_tests::daemon::Running;
use heaptape_tests::recording::Leak;
use heaptape_tests::wait::until;
use heaptape_tests::{Daemon, Program, Recording, is_root, target, test_env};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

fn map(pid: u32) -> PathBuf {
    PathBuf::from(format!("/tmp/perf-{pid}.map"))
}

/// Removes the maps of a recording's processes.
fn forget_maps(recording: &Recording) {
    recording.about().processes.iter().for_each(|process| drop(fs::remove_file(map(process.pid))));
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
fn jit_code_has_names_after_its_map_is_removed() {
    let recording = Program::new(target::c("makes_code")).arg("calls").recorded().success().complete();
    forget_maps(&recording);
    is_through_made_code(of_size(&recording.leaks(), 601));
    let output = recording.heaptape(&["leaks", "--all"]).exits(0).text();
    assert!(output.contains("load_orders shop.js:12"), "{output}");
}

/// A child runs code that its parent generated, without a map of its own, and has the modules of
/// its parent.
#[test]
fn forked_child_knows_the_code_and_modules_of_its_parent() {
    let recording = Program::new(target::c("makes_code")).arg("forks").recorded().success().complete();
    forget_maps(&recording);
    let leaks = recording.leaks();
    let leak = of_size(&leaks, 607);
    is_through_made_code(leak);
    let has_module = |frame: &usize| leak.stack[*frame].module.as_deref().is_some_and(|module| !module.is_empty());
    let outside: Vec<_> = (0..leak.stack.len()).filter(|frame| *frame != 1 && !has_module(frame)).collect();
    assert!(outside.is_empty() && leak.stack.len() > 4, "frames {outside:?} in no module: {leak:#?}");
}

/// Stacks continue through the code that CPython makes for each Python function, which keeps no
/// frame pointer.
#[test]
fn stacks_continue_through_trampolines_of_cpython() {
    let recording = Program::new(target::c("makes_code")).arg("hops").recorded().success().complete();
    forget_maps(&recording);
    let leaks = recording.leaks();
    let leak = of_size(&leaks, 613);
    let expected = ["take", "through_first", "load_order", "through_second", "load_orders", "through_third", "main"];
    assert!(leak.functions().starts_with(&expected), "{leak:#?}");
    assert_eq!(leak.stack[2].file.as_deref(), Some("/srv/shop.py"), "{leak:#?}");
}

/// Where the stack pointer was before generated code is told by the caller's frame record.
#[cfg(target_arch = "aarch64")]
#[test]
fn stacks_continue_through_code_that_stores_more_than_its_frame_record() {
    let recording = Program::new(target::c("makes_code")).arg("enters").recorded().success().complete();
    let leaks = recording.leaks();
    let functions = of_size(&leaks, 631).functions();
    assert_eq!((functions[0], &functions[2..4]), ("take", &["through_entry", "main"][..]), "{functions:?}");
}

/// The same in each CPython of this machine that has them: the whole Python stack.
#[test]
fn python_functions_have_names() {
    let folder = test_env::folder();
    let script = folder.path().join("shop.py");
    let text = "class Shop:\n    def load_order(self):\n        return bytearray(50021)\n\n    def load_orders(self):\n        \
                return [self.load_order() for _ in range(20)]\n\ndef run():\n    return Shop().load_orders()\n\n\
                kept = run()\nimport os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n";
    fs::write(&script, text).expect("a script");
    let mut tried = 0;
    for version in ["3.12", "3.13", "3.14"] {
        let name = format!("python{version}");
        let python = |path: &Path| {
            Command::new(path).args(["-X", "perf", "-c", ""]).output().is_ok_and(|out| out.status.success())
        };
        let Some(python) = pythons(&name).into_iter().find(|path| python(path)) else { continue };
        let recording = Program::new(&python).args(["-X", "perf"]).arg(&script).recorded();
        forget_maps(&recording);
        let leaks = recording.leaks_as(&["--by", "stack"]);
        let leak = leaks
            .iter()
            .find(|leak| leak.blocks == 20 && leak.bytes >= 20 * 50021)
            .unwrap_or_else(|| panic!("{name}: {leaks:#?}"));
        let of_script = leak.stack.iter().filter(|frame| frame.file.as_deref() == script.to_str());
        let functions: Vec<&str> = of_script.filter_map(|frame| frame.function.as_deref()).collect();
        assert_eq!(functions, ["Shop.load_order", "Shop.load_orders", "run", "<module>"], "{name}: {leak:#?}");
        tried += 1;
    }
    eprintln!("{tried} versions of CPython with -X perf");
}

/// Returns the interpreters of this name in PATH, and those of pyenv.
fn pythons(name: &str) -> Vec<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let versions = fs::read_dir(home.join(".pyenv/versions")).into_iter().flatten().flatten();
    let installed = versions.map(|version| version.path().join("bin").join(name)).filter(|path| path.exists());
    test_env::find(name).into_iter().chain(installed).collect()
}

/// The private `/tmp` of the program is removed with its last process.
#[test]
fn map_in_a_private_tmp_is_read() {
    if !is_root() {
        eprintln!("SKIPPED: another /tmp needs root");
        return;
    }
    let run = tempfile::tempdir_in("/var/tmp").expect("a folder");
    let program = run.path().join("makes_code");
    test_env::copy(target::c("makes_code"), &program);
    let script = format!("mount -t tmpfs none /tmp && exec {} calls", program.display());
    let arguments = [("XDG_RUNTIME_DIR", run.path()), ("TMPDIR", run.path())];
    let mut recorded = Program::new(test_env::need("unshare")).args(["-m", "sh", "-c", &script]);
    for (name, value) in arguments {
        recorded = recorded.env(name, value);
    }
    let recording = recorded.recorded().success();
    is_through_made_code(of_size(&recording.leaks(), 601));
    for process in recording.about().processes.iter().filter(|process| process.exe.ends_with("makes_code")) {
        assert!(!map(process.pid).exists(), "its map is in our /tmp");
    }
}

#[test]
fn vdso_code_has_names() {
    let recording = Program::new(target::c("makes_code")).arg("kernel").recorded().success().complete();
    let leaks = recording.leaks();
    let leak = of_size(&leaks, 619);
    let module = |frame: &&heaptape_tests::recording::Frame| {
        frame.module.as_deref().is_some_and(|module| module.contains("vdso"))
    };
    // Some kernels have the code to which handlers return there, too.
    let is_clock = |frame: &&heaptape_tests::recording::Frame| {
        frame.function.as_deref().is_some_and(|name| name.contains("clock_gettime"))
    };
    assert!(leak.stack.iter().filter(module).any(|frame| is_clock(&frame)), "{leak:#?}");
    assert!(leak.functions().contains(&"interrupt_the_kernel_s_code"), "{leak:#?}");
}

/// A real run-time with a compiler.
#[test]
fn node_functions_have_names() {
    let directory = test_env::folder();
    let script = directory.path().join("shop.js");
    let text = "const kept = [];\nfunction loadOrders(count) {\n  for (let at = 0; at < count; at++) kept.push(Buffer.allocUnsafeSlow(50021));\n}\n\
                for (let round = 0; round < 20; round++) loadOrders(50);\nprocess.kill(process.pid, 'SIGKILL');\n";
    fs::write(&script, text).expect("a script");
    let node = Program::new(test_env::need("node"));
    let flags = ["--perf-basic-prof", "--interpreted-frames-native-stack"];
    // Where it runs it leaves a log.
    let recording = node.args(flags).arg(&script).folder(directory.path()).recorded();
    forget_maps(&recording);
    // By function, what Node.js allocates beside a buffer is the script's, too.
    let leaks = recording.leaks_as(&["--by", "stack"]);
    let buffers: Vec<_> = leaks.iter().filter(|leak| leak.bytes == leak.blocks * 50021).collect();
    let blocks: u64 = buffers.iter().map(|leak| leak.blocks).sum();
    assert_eq!(blocks, 1000, "{buffers:#?}");
    for leak in buffers {
        let frame = leak.functions().iter().position(|name| *name == "loadOrders");
        let frame =
            frame.map(|frame| &leak.stack[frame]).unwrap_or_else(|| panic!("not through the script: {leak:#?}"));
        assert_eq!((frame.file.as_deref(), frame.line), (script.to_str(), Some(2)), "{frame:?}");
        assert!(leak.functions().contains(&"node::Start"), "the stack continues after the generated code: {leak:#?}");
    }
}

/// The daemon keeps names in sums of ended processes, and of a running one.
#[test]
fn daemon_keeps_names_of_jit_code() {
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
    assert_eq!(summed.len(), 1, "three processes, whose code is at three addresses, are one row: {found:#?}");
    drop(live);
    daemon.stop();
    daemon.assert_complete();
}

/// With one frame per stack, its module is known.
#[test]
fn single_frame_of_jit_code_has_a_name() {
    let recording =
        Program::new(target::c("makes_code")).arg("calls").option("--stacks").option("none").recorded().success();
    forget_maps(&recording);
    assert_eq!(of_size(&recording.leaks(), 601).functions(), ["take"]);
}

/// A pack has the names of generated code.
#[test]
fn pack_includes_names_of_jit_code() {
    let directory = test_env::folder();
    let program = directory.path().join("makes_code");
    test_env::copy(target::c("makes_code"), &program);
    let recording = Program::new(&program).arg("calls").recorded().success().complete();
    forget_maps(&recording);
    recording.heaptape(&["pack"]).success();
    fs::remove_file(&program).expect("the program goes");
    is_through_made_code(of_size(&recording.leaks(), 601));
    export_names_it(&recording.folder);
}

/// Asserts that an export has the names.
fn export_names_it(folder: &Path) {
    let out = folder.with_file_name("collapsed");
    let arguments = ["export", "--to", "collapsed", "-o"];
    let output = Command::new(test_env::command()).args(arguments).arg(&out).arg(folder).output().expect("the command");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = fs::read_to_string(&out).expect("an export");
    assert!(text.contains("main;load_orders;take"), "{text}");
}
