//! `heaptape pack`, and sources of names: the packed recording of a stripped program has the same
//! answers elsewhere without the program.

use heaptape_tests::recording::heaptape;
use heaptape_tests::{Program, Recording, Target, test_env};
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Command;

fn tool(name: &str, arguments: &[&OsStr]) {
    let output = Command::new(test_env::need(name)).args(arguments).output().expect("the tool");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
}

fn leaks(folder: &Path, arguments: &[&str]) -> String {
    let output =
        heaptape(["leaks"].into_iter().chain(arguments.iter().copied()).map(OsStr::new).chain([folder.as_os_str()]));
    output.success().text()
}

/// Returns the output of all commands that print names, without the line with the path of the
/// recording.
fn all(folder: &Path, arguments: &[&str]) -> String {
    let questions: [&[&str]; 6] =
        [&["report"], &["leaks"], &["peak"], &["sites"], &["temporary"], &["diff", "--from", "0%", "--to", "100%"]];
    let answer = |question: &&[&str]| {
        let output =
            heaptape(question.iter().chain(arguments).map(OsStr::new).chain([folder.as_os_str()])).success().text();
        let lines = output.lines().filter(|line| !line.starts_with("recorded in ")).map(|line| format!("{line}\n"));
        format!("{question:?}\n{}", lines.collect::<String>())
    };
    questions.iter().map(answer).collect()
}

/// Removes the names that the recording keeps, so that only the packed files have names.
fn without_own_names(recording: &Recording) {
    while !recording.files(".symbols").is_empty() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    recording.files("symbols.tape").iter().for_each(|file| fs::remove_file(file).expect("they go"));
}

#[test]
fn pack_of_a_stripped_program_replaces_the_program() {
    let directory = test_env::folder();
    let (program, debug) = (directory.path().join("shop"), directory.path().join("shop.debug"));
    test_env::copy(Target::program("leaks/shop.c").build(), &program);
    tool("objcopy", &["--only-keep-debug".as_ref(), program.as_os_str(), debug.as_os_str()]);
    tool("strip", &[program.as_os_str()]);
    let link = format!("--add-gnu-debuglink={}", debug.display());
    tool("objcopy", &[link.as_ref(), program.as_os_str()]);
    let recording = Program::new(&program).recorded().success().complete();
    without_own_names(&recording);
    let here = all(&recording.folder, &[]);
    let named = here.matches("load_order shop.c:").count();
    assert!(named >= 4, "names and lines come from the debug file: {here}");
    heaptape([OsStr::new("pack"), recording.folder.as_os_str()]);
    fs::remove_file(&program).expect("the program goes");
    fs::remove_file(&debug).expect("its debug file goes");
    let elsewhere = directory.path().join("elsewhere");
    fs::rename(&recording.folder, &elsewhere).expect("it moves");
    assert_eq!(all(&elsewhere, &[]), here);
    // The same files below a folder that is named.
    let sysroot = directory.path().join("root");
    fs::rename(elsewhere.join("sysroot"), &sysroot).expect("it moves");
    assert!(!all(&elsewhere, &[]).contains("shop.c:"), "without the files no lines are known");
    assert_eq!(all(&elsewhere, &["--sysroot", &sysroot.to_string_lossy()]), here);
}

/// A root that holds the command, what it is linked with, and nothing else.
fn bare_root(root: &Path) {
    let output = Command::new("ldd").arg(test_env::command()).output().expect("ldd");
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    let libraries = output.split_whitespace().filter(|path| path.starts_with('/')).map(Path::new);
    for file in libraries.filter(|path| *path != test_env::command()) {
        let to = root.join(file.strip_prefix("/").expect("an absolute path"));
        fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
        test_env::copy(file, to);
    }
    test_env::copy(test_env::command(), root.join("heaptape"));
}

#[test]
fn pack_of_a_stripped_program_works_in_another_root() {
    let has_root = |arguments: &[&str]| {
        let tried = Command::new("unshare").args(arguments).args(["/", "true"]).output();
        tried.is_ok_and(|output| output.status.success())
    };
    // Without user namespaces, root can change the root directory.
    let Some(arguments) = [&["-rR"][..], &["-R"]].into_iter().find(|arguments| has_root(arguments)) else {
        eprintln!("SKIPPED: unshare can give no process another root here: packs are not tried in another root");
        return;
    };
    let directory = test_env::folder();
    let (program, root) = (directory.path().join("shop"), directory.path().join("root"));
    fs::create_dir(&root).expect("a folder");
    test_env::copy(Target::program("leaks/shop.c").flag("-O1").build(), &program);
    let debug = directory.path().join("shop.debug");
    tool("objcopy", &["--only-keep-debug".as_ref(), program.as_os_str(), debug.as_os_str()]);
    tool("strip", &[program.as_os_str()]);
    let link = format!("--add-gnu-debuglink={}", debug.display());
    tool("objcopy", &[link.as_ref(), program.as_os_str()]);
    let recording = Program::new(&program).recorded().success().complete();
    without_own_names(&recording);
    let questions = ["report", "leaks", "peak", "sites"];
    // The source is not in the other root, so its lines are not shown there.
    let is_source = |line: &str| {
        let text = line.strip_prefix("        ").unwrap_or_default().trim_start();
        text.split_once("  ").is_some_and(|(number, _)| number.parse::<u32>().is_ok())
    };
    let lines = |text: String| {
        let kept = text.lines().filter(|line| !line.starts_with("recorded in ") && !is_source(line));
        kept.collect::<Vec<_>>().join("\n")
    };
    let here = questions.map(|command| lines(recording.heaptape(&[command]).success().text()));
    heaptape([OsStr::new("pack"), recording.folder.as_os_str()]).success();
    bare_root(&root);
    fs::rename(&recording.folder, root.join("packed")).expect("it moves");
    let there = |command: &str, folder: &str| {
        let run = Command::new("unshare").args(arguments).arg(&root).args(["/heaptape", command, folder]).output();
        let run = run.expect("unshare");
        assert!(run.status.success(), "{command}: {}", String::from_utf8_lossy(&run.stderr));
        lines(String::from_utf8(run.stdout).expect("text"))
    };
    for (command, here) in questions.into_iter().zip(&here) {
        assert_eq!(there(command, "/packed"), *here, "{command}");
    }
    assert!(here[1].contains("load_order shop.c:"), "names and lines: {}", here[1]);
    fs::rename(root.join("packed/sysroot"), root.join("unpacked")).expect("it moves");
    assert!(!there("leaks", "/packed").contains("load_order"), "nothing else in that root knows the names");
}

#[test]
fn split_debug_information_names_lines() {
    let directory = test_env::folder();
    let source = test_env::programs().join("leaks/shop.c");
    let program = directory.path().join("shop");
    let built = Command::new("gcc")
        .args(["-O2", "-g", "-gsplit-dwarf", "-fno-builtin", "-o", "shop"])
        .arg(&source)
        .current_dir(directory.path())
        .status()
        .expect("gcc");
    assert!(built.success());
    let split = fs::read_dir(directory.path()).expect("the folder").flatten();
    assert!(
        split.map(|entry| entry.file_name()).any(|name| name.to_string_lossy().ends_with(".dwo")),
        "a file of its own"
    );
    let recording = Program::new(&program).recorded().success().complete();
    let output = leaks(&recording.folder, &[]);
    assert!(output.contains("load_order shop.c:"), "{output}");
}

#[test]
fn symbols_packed_into_a_stripped_binary_name_functions() {
    let directory = test_env::folder();
    let file = |name: &str| directory.path().join(name);
    let (program, symbols) = (file("shop"), file("symbols"));
    test_env::copy(Target::program("leaks/shop.c").build(), &program);
    // As distributions do it: the symbols alone, packed by xz, in a section of the stripped binary.
    tool("objcopy", &["--only-keep-debug".as_ref(), program.as_os_str(), symbols.as_os_str()]);
    tool("strip", &["--strip-debug".as_ref(), symbols.as_os_str()]);
    tool("xz", &[symbols.as_os_str()]);
    tool("strip", &[program.as_os_str()]);
    let section = format!(".gnu_debugdata={}", file("symbols.xz").display());
    tool("objcopy", &["--add-section".as_ref(), section.as_ref(), program.as_os_str()]);
    let recording = Program::new(&program).recorded().success().complete();
    let output = leaks(&recording.folder, &[]);
    assert!(output.contains("load_order"), "{output}");
}

/// A recording in one file is read by every command as its directory is.
#[test]
fn recording_in_one_file_is_read_as_its_directory() {
    let directory = test_env::folder();
    let (folder, file) = (directory.path().join("run"), directory.path().join("run.heaptape"));
    let program = Target::program("leaks/shop.c").build();
    let arguments = ["record", "-q", "--pack", "-o"].map(OsStr::new);
    let arguments = arguments.into_iter().chain([folder.as_os_str(), "--".as_ref(), program.as_os_str()]);
    let output = heaptape(arguments).success();
    assert!(output.error().contains("packed in "), "{output}");
    for arguments in [
        &["report", "--json"][..],
        &["leaks", "--all"],
        &["peak"],
        &["sites", "--inclusive"],
        &["timeline"],
        &["callers", "load_order"],
        &["verify"],
        &["mprof"],
        &["mptrace", "-v"],
        &["mleak"],
        &["dcpiprof"],
        &["export", "--format", "collapsed", "-o", "-"],
    ] {
        let read = |path: &Path| {
            let output = heaptape(arguments.iter().map(OsStr::new).chain([path.as_os_str()]));
            (output.code(), output.text().replace(&*path.to_string_lossy(), "PATH"))
        };
        assert_eq!(read(&file), read(&folder), "{arguments:?}");
    }
    let again = directory.path().join("again.heaptape");
    let pack = |to: &Path| heaptape(["pack".as_ref(), "--to".as_ref(), to.as_os_str(), folder.as_os_str()]);
    pack(&again).success();
    assert!(pack(&again).exits(2).error().contains("exists"), "an archive is not overwritten");
    let damaged = fs::read(&again).expect("the archive");
    fs::write(&again, &damaged[..damaged.len() / 2]).expect("half of it");
    let output = heaptape(["leaks".as_ref(), again.as_os_str()]).exits(2);
    assert!(!output.error().is_empty(), "{output}");
}
