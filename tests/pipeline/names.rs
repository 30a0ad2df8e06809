//! A recording keeps its names: every command prints the same after the file of the program changed
//! or was removed. If names are missing, a line states which, and what would help.

use heaptape_formats::recording::{SYMBOLS, SYMBOLS_LOCK};
use heaptape_tests::recording::heaptape;
use heaptape_tests::wait::until;
use heaptape_tests::{Daemon, Outcome, Program, Recording, Target, target, test_env};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn tool(name: &str, arguments: &[&OsStr]) {
    let output = Command::new(test_env::need(name)).args(arguments).output().expect("the tool");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
}

fn ask(arguments: &[&str], paths: &[&Path]) -> Outcome {
    heaptape(arguments.iter().map(OsStr::new).chain(paths.iter().map(|path| path.as_os_str()))).success()
}

/// The commands that print names.
const QUESTIONS: [&[&str]; 9] = [
    &["report"],
    &["leaks"],
    &["leaks", "--json"],
    &["peak"],
    &["sites"],
    &["sites", "--by", "line"],
    &["temporary"],
    &["diff", "--from", "0%", "--to", "100%"],
    &["mprof", "-v"],
];

/// Returns the output of all of them.
fn all(folder: &Path) -> String {
    QUESTIONS.iter().map(|arguments| format!("{arguments:?}\n{}", ask(arguments, &[folder]).text())).collect()
}

/// Copies a target, so that the copy may be deleted.
fn copy(directory: &Path, target: Target) -> PathBuf {
    let program = directory.join("shop");
    test_env::copy(target.build(), &program);
    program
}

fn recorded(program: &Path) -> Recording {
    Program::new(program).recorded().success().complete()
}

/// Waits until the names of all processes are stored, also where other programs leave the helper
/// that stores them no time.
fn wait_for_names(recording: &Recording) {
    let is_stored =
        |folder: PathBuf| fs::File::open(folder.join(SYMBOLS_LOCK)).map_or(true, |lock| lock.try_lock_shared().is_ok());
    until("the names are stored", || {
        let entries = fs::read_dir(&recording.folder).expect("the recording").flatten();
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).all(is_stored)
    });
}

/// Asserts that the answers are the same after the program was removed, and after it was replaced
/// by another build. Returns them.
fn is_the_same_without(program: &Path, other: &Path) -> String {
    is_the_same(&recorded(program), program, other)
}

fn is_the_same(recording: &Recording, program: &Path, other: &Path) -> String {
    let before = all(&recording.folder);
    wait_for_names(recording);
    fs::remove_file(program).expect("it goes");
    assert_eq!(all(&recording.folder), before, "deleted");
    test_env::copy(other, program);
    assert_eq!(all(&recording.folder), before, "built anew");
    before
}

/// A recording may have more processes, and they more libraries, than files may be open.
#[test]
fn few_open_files_are_enough() {
    let folder = test_env::folder();
    let library = Target::library("plugin_named.c").flag("-g").flag("-DNAME=pear").flag("-DSIZE=1001");
    let library = library.flag("-Wl,--build-id=none").named("pear.so").build();
    let libraries: Vec<PathBuf> = (0..70).map(|number| folder.path().join(format!("pear{number}.so"))).collect();
    libraries.iter().for_each(|copy| test_env::copy(&library, copy));
    let line = "for n in $(seq 40); do /bin/true; done; exec \"$@\"";
    let program = Program::new("/bin/bash").args(["-c", line, "bash"]).arg(target::c("opens_in_turn")).args(&libraries);
    let recording = program.recorded().success().complete();
    wait_for_names(&recording);
    // Without stored names, those of the libraries are read from their files.
    recording.files(SYMBOLS).iter().for_each(|file| fs::remove_file(file).expect("the names"));
    for question in [&["verify"][..]].iter().chain(&QUESTIONS) {
        let many = ask(question, &[&recording.folder]).text();
        let few = Program::new(test_env::command()).args(question.iter()).arg(&recording.folder);
        let few = few.after("ulimit -n 64").plain().success().text();
        assert_eq!(few, many, "{question:?}");
        assert!(question[0] != "leaks" || many.contains("pear_keeps"), "{many}");
    }
}

#[test]
fn removed_c_program_keeps_its_names() {
    let directory = test_env::folder();
    let other = Target::program("leaks/shop.c").flag("-DMORE").flag("-O0").build();
    let output = is_the_same_without(&copy(directory.path(), Target::program("leaks/shop.c")), &other);
    assert!(output.contains("load_order shop.c:"), "{output}");
}

#[test]
fn removed_cpp_program_keeps_its_inlined_functions() {
    let directory = test_env::folder();
    let other = Target::program("leaks/containers.cpp").flag("-O0").build();
    let program = copy(directory.path(), Target::program("leaks/containers.cpp").flag("-O2"));
    let recording = Program::new(&program).arg("grow_list").recorded().success().complete();
    let output = is_the_same(&recording, &program, &other);
    assert!(output.contains("containers.cpp:") && output.contains("\"inlined\": true"), "{output}");
}

/// The code of the program proves tail calls. What is needed of it is kept.
#[test]
fn removed_program_keeps_its_tail_calls() {
    let directory = test_env::folder();
    let library = Target::library("jumps_to_pool_library.c")
        .flag("-foptimize-sibling-calls")
        .flag("-Wl,--unresolved-symbols=ignore-all")
        .build();
    let target = || Target::program("jumps_to_pool.cpp").flag("-rdynamic").with(&library);
    let other = target().flag("-O0").build();
    let output = is_the_same_without(&copy(directory.path(), target().flag("-foptimize-sibling-calls")), &other);
    for name in ["make_widget", "make_part", "operator new", "std::allocator<char> >::_M_create"] {
        assert!(output.contains(&format!("{name}\",")), "{name}: {output}");
    }
    assert!(output.contains("title_page jumps_to_pool.cpp:") && output.contains("\"tail_call\": true"), "{output}");
    // The C library knows `strdup` by another name.
    let target = || Target::program("one_jump.c");
    let other = target().flag("-O0").build();
    let output = is_the_same_without(&copy(directory.path(), target().flag("-foptimize-sibling-calls")), &other);
    assert!(output.contains("copy_name\",") && output.contains("take_clear\","), "{output}");
}

#[test]
fn removed_rust_program_keeps_its_names() {
    let directory = test_env::folder();
    let target = || Target::program("words.rs");
    let other = target().flag("-Copt-level=0").build();
    let output = is_the_same_without(&copy(directory.path(), target()), &other);
    assert!(output.contains("words.rs:"), "{output}");
}

#[test]
fn program_without_build_id_is_not_confused_with_its_next_build() {
    let directory = test_env::folder();
    let target = || Target::program("leaks/shop.c").flag("-Wl,--build-id=none");
    let other = target().flag("-DMORE").flag("-O0").build();
    let program = copy(directory.path(), target());
    let output = is_the_same_without(&program, &other);
    assert!(output.contains("load_order shop.c:"), "{output}");
    // Without names of its own a recording trusts no file that is younger.
    let recording = recorded(&program);
    forget(&recording);
    test_env::copy(target().build(), &program);
    let output = recording.heaptape(&["leaks"]).success();
    assert!(!output.text().contains("load_order"), "{output}");
    let error = output.error();
    assert!(error.contains("no symbols for") && error.contains("(no build-id)"), "{error}");
}

#[test]
fn removed_stripped_program_and_debug_file_keep_their_names() {
    let directory = test_env::folder();
    let program = copy(directory.path(), Target::program("leaks/shop.c"));
    let debug = directory.path().join("shop.debug");
    tool("objcopy", &["--only-keep-debug".as_ref(), program.as_os_str(), debug.as_os_str()]);
    tool("strip", &[program.as_os_str()]);
    let link = format!("--add-gnu-debuglink={}", debug.display());
    tool("objcopy", &[link.as_ref(), program.as_os_str()]);
    let recording = recorded(&program);
    let before = all(&recording.folder);
    assert!(before.contains("load_order shop.c:"), "{before}");
    wait_for_names(&recording);
    fs::remove_file(&debug).expect("it goes");
    assert_eq!(all(&recording.folder), before);
    fs::remove_file(&program).expect("it goes");
    assert_eq!(all(&recording.folder), before);
}

#[test]
fn program_that_deletes_itself_keeps_its_names() {
    let directory = test_env::folder();
    let program = copy(directory.path(), Target::program("leaks/shop.c"));
    // The child is the shell until it executes the program, and has no file once it has ended.
    let script = format!(
        "{0} & child=$!; while [ /proc/$child/exe -ef /proc/$$/exe ]; do :; done; rm {0}; wait $child",
        program.display()
    );
    let recording = Program::shell(&script).recorded().success();
    let answer = ask(&["leaks"], &[&recording.folder]);
    assert!(answer.text().contains("load_order shop.c:"), "{answer}");
}

#[test]
fn rebuilt_program_is_compared_by_names() {
    let directory = test_env::folder();
    let old = recorded(&copy(directory.path(), Target::program("leaks/shop.c")));
    let new = recorded(&copy(directory.path(), Target::program("leaks/shop.c").flag("-DMORE").flag("-O0")));
    let reply = ask(&["diff", "--json"], &[&old.folder, &new.folder]);
    let answer: serde_json::Value = serde_json::from_slice(&reply.stdout).expect("JSON");
    let changes = answer["changes"].as_array().expect("a list");
    assert_eq!((changes.len(), &changes[0]["functions"][0]), (1, &"load_order".into()), "{reply}");
    assert_eq!(reply.error(), "");
}

#[test]
fn program_in_another_mount_namespace_has_names() {
    let tried = Command::new("unshare").args(["-m", "true"]).output();
    if !tried.is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED: unshare may make no mount namespace here: names of programs in containers are not tried");
        return;
    }
    let directory = test_env::folder();
    let (inside, program) = (directory.path().join("inside"), Target::program("leaks/shop.c").build());
    fs::create_dir(&inside).expect("a folder");
    let (from, to) = (program.display(), inside.display());
    let script = format!("mount -t tmpfs none {to} && cp {from} {to}/shop && {to}/shop");
    let recording = Program::new("unshare").args(["-m", "sh", "-c", &script]).recorded().success();
    assert!(!inside.join("shop").exists(), "it was never seen here");
    let answer = ask(&["leaks"], &[&recording.folder]);
    assert!(answer.text().contains("load_order shop.c:"), "{answer}");
    let plain = recorded(&program);
    // The names and lines: the verdict depends on how fast the program ran.
    let lines = |folder: &Path, question: &[&str]| -> Vec<String> {
        let output = ask(&[question, &["--function", "load_order"]].concat(), &[folder]).text();
        let names = output.lines().filter(|line| line.contains("shop.c:"));
        names.filter_map(|line| line.find("load_order").or(line.find("main")).map(|at| line[at..].to_owned())).collect()
    };
    for question in [&["leaks", "--all"][..], &["peak"], &["sites"]] {
        let here = lines(&plain.folder, question);
        assert!(!here.is_empty(), "{question:?}");
        assert_eq!(lines(&recording.folder, question), here, "{question:?}");
    }
}

/// Waits until all names are stored, and returns their files.
fn kept(recording: &Recording) -> Vec<PathBuf> {
    until("the names are there", || recording.files(".symbols").is_empty());
    recording.files("symbols.tape")
}

/// Removes the names from a recording, as if its recorder had been killed.
fn forget(recording: &Recording) {
    let files = kept(recording);
    assert!(!files.is_empty(), "it had names");
    files.iter().for_each(|file| fs::remove_file(file).expect("they go"));
}

/// What lacks names is said once for all files, below the answer: in every command of each day.
#[test]
fn files_without_names_are_one_note_below_the_answer() {
    let directory = test_env::folder();
    let script = ["bread", "milk", "eggs"].map(|name| {
        let program = directory.path().join(name);
        test_env::copy(
            Target::program("leaks/shop.c").flag(format!("-Wl,--build-id=0x{}", hex(name))).build(),
            &program,
        );
        tool("strip", &[program.as_os_str()]);
        program.display().to_string()
    });
    let script = script.join("; ");
    let recording = Program::new("/bin/sh").args(["-c", &format!("{script}; {script}")]).recorded().complete();
    forget(&recording);
    let folder = recording.folder.as_os_str();
    let asked = |question: &str| {
        let words = format!("\"$0\" {question} --all-processes \"$1\" 2>&1");
        let output = Command::new("/bin/sh").arg("-c").arg(words).arg(test_env::command()).arg(folder).output();
        String::from_utf8(output.expect("the shell").stdout).expect("text")
    };
    for question in ["leaks", "peak", "sites", "threads", "lifetimes", "open --print", "timeline", "report"] {
        let output = asked(question);
        let notes: Vec<&str> = output.lines().filter(|line| line.contains("no symbols")).collect();
        assert!(notes.len() <= 1, "{question}: {output}");
        let end = if question == "report" { 2 } else { 1 };
        let last: Vec<&str> = output.lines().rev().take(end).collect();
        assert!(notes.is_empty() || last.contains(&notes[0]), "{question}: {output}");
        if matches!(question, "leaks" | "peak" | "sites" | "report") {
            for part in ["stripped files (", "bread", "milk", "eggs", "--debuginfod"] {
                assert!(notes.iter().any(|note| note.contains(part)), "{question}: {part}: {output}");
            }
        }
    }
    // The reason for no answer is the only line, too.
    let output = asked("rss --process sh");
    assert!(output.lines().filter(|line| line.contains("no snapshot")).count() <= 1, "{output}");
}

fn hex(name: &str) -> String {
    name.bytes().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn missing_symbols_are_reported() {
    let directory = test_env::folder();
    let program = copy(directory.path(), Target::program("leaks/shop.c").flag("-Wl,--build-id=0xabcd1234"));
    let recording = recorded(&program);
    let here = all(&recording.folder);
    forget(&recording);
    assert_eq!(all(&recording.folder), here, "the files have the names");
    fs::remove_file(&program).expect("it goes");
    for question in [&["leaks"][..], &["peak", "--json"], &["sites"], &["diff", "--from", "0%", "--to", "100%"]] {
        let error = ask(question, &[&recording.folder]).error();
        let about: Vec<&str> = error.lines().filter(|line| line.contains("no symbols for")).collect();
        assert_eq!(about.len(), 1, "{question:?}: {error}");
        for part in [&program.display().to_string(), "build-id abcd1234", "--sysroot", "--debuginfod", "record again"] {
            assert!(about[0].contains(part), "{part}: {error}");
        }
    }
    let output = recording.heaptape(&["report"]).success();
    assert!(output.text().contains("no symbols for"), "{output}");
    // Another build in its place.
    test_env::copy(Target::program("leaks/shop.c").flag("-Wl,--build-id=0x5678").build(), &program);
    let error = recording.heaptape(&["leaks"]).success().error();
    assert!(error.contains("abcd1234") && error.contains("5678"), "{error}");
}

#[test]
fn corrupt_names_are_reported_and_the_files_are_used() {
    let directory = test_env::folder();
    let program = copy(directory.path(), Target::program("leaks/shop.c"));
    let recording = recorded(&program);
    let here = all(&recording.folder);
    let file = &kept(&recording)[0];
    let complete = fs::read(file).expect("names");
    for length in [0, 3, 16, 20, complete.len() / 3, complete.len() / 2, complete.len() - 1] {
        fs::write(file, &complete[..length]).expect("a file");
        let output = recording.heaptape(&["leaks"]).success();
        assert!(here.contains(&output.text()), "truncated to {length} bytes: {output}");
    }
    let mut broken = complete;
    let middle = broken.len() / 2;
    broken[middle] ^= 0x55;
    fs::write(file, &broken).expect("a file");
    let output = recording.heaptape(&["leaks"]).success();
    assert!(here.contains(&output.text()), "{output}");
    assert!(output.error().contains("symbols.tape"), "{output}");
}

#[test]
fn hostile_debug_information_costs_only_its_own_lines() {
    let directory = test_env::folder();
    let program = copy(directory.path(), Target::program("leaks/shop.c").flag("-O1"));
    let garbage = directory.path().join("garbage");
    for (section, byte) in [(".debug_info", 0xff), (".debug_abbrev", 0x01), (".debug_line", 0x80), (".debug_info", 0)] {
        fs::write(&garbage, vec![byte; 200_000]).expect("garbage");
        let update = format!("{section}={}", garbage.display());
        tool("objcopy", &["--update-section".as_ref(), update.as_ref(), program.as_os_str()]);
        let recording = recorded(&program);
        fs::remove_file(&program).expect("it goes");
        let answer = ask(&["leaks"], &[&recording.folder]);
        assert!(answer.text().contains("load_order"), "{section}: {answer}");
        copy(directory.path(), Target::program("leaks/shop.c").flag("-O1"));
    }
}

#[test]
fn epochs_keep_names_of_removed_programs() {
    for mode in ["trace", "profile", "flight"] {
        let mut daemon = Daemon::start(&["--mode", mode, "--flight-death", "any"]);
        let directory = test_env::folder();
        let program = copy(directory.path(), Target::program("leaks/shop.c"));
        daemon.run(&program, &[]).success();
        fs::remove_file(&program).expect("it goes");
        daemon.query(&["epoch"]);
        let names = || daemon.heaptape(&["sites"], &daemon.epochs(&[])).text();
        until(mode, || names().contains("load_order shop.c:"));
        daemon.stop();
    }
}

#[test]
fn epoch_keeps_names_of_a_process_that_goes_on() {
    let mut daemon = Daemon::start(&["--mode", "profile"]);
    let directory = test_env::folder();
    let program = directory.path().join("slow");
    test_env::copy(Target::program("leaks_slowly.c").build(), &program);
    let running = daemon.spawn(&program, &["1000", "5"], None);
    until("it is served", || daemon.list("slow").iter().any(|process| process["live_blocks"].as_u64() > Some(20)));
    fs::remove_file(&program).expect("it goes");
    daemon.query(&["epoch"]);
    let first = daemon.epochs(&[]).into_iter().min().expect("an epoch");
    let names = || daemon.heaptape(&["leaks"], std::slice::from_ref(&first)).text();
    until("its names", || names().contains("keeps leaks_slowly.c:"));
    drop(running);
    daemon.stop();
}

#[test]
fn names_need_little_disk_space() {
    let directory = test_env::folder();
    let source = directory.path().join("source.cpp");
    fs::write(
        &source,
        "#include <map>\n#include <regex>\n#include <iostream>\nint main() { std::map<int, std::regex> all; }\n",
    )
    .expect("a source");
    let object = directory.path().join("object.o");
    let compiler = Program::new(test_env::need("g++")).args(["-O1", "-c", "-o"]).arg(&object).arg(&source);
    let recording = compiler.recorded().success().complete();
    let size = |path: &PathBuf| fs::metadata(path).expect("a file").len();
    let names: u64 = kept(&recording).iter().map(size).sum();
    let all = recording.bytes();
    assert!(names > 0 && names <= (all / 50).max(64 << 10), "{names} of {all} bytes");
}
