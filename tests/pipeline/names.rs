//! A recording keeps its names: whatever becomes of the program's file, every question says the
//! same; and where names are missing, a line says which and what would help.

use heaptape_tests::daemon::until;
use heaptape_tests::recording::heaptape;
use heaptape_tests::{Daemon, Outcome, Program, Recording, Target, test_env};
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

fn tool(name: &str, words: &[&OsStr]) {
    let said = Command::new(test_env::need(name)).args(words).output().expect("the tool");
    assert!(said.status.success(), "{name}: {}", String::from_utf8_lossy(&said.stderr));
}

fn ask(words: &[&str], paths: &[&Path]) -> Outcome {
    heaptape(words.iter().map(OsStr::new).chain(paths.iter().map(|path| path.as_os_str()))).success()
}

/// Everything that shows names.
fn all(folder: &Path) -> String {
    let questions: [&[&str]; 9] = [
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
    questions.iter().map(|words| format!("{words:?}\n{}", ask(words, &[folder]).text())).collect()
}

/// A copy of a target that may be deleted.
fn copy(place: &Path, target: Target) -> PathBuf {
    let program = place.join("shop");
    fs::copy(target.build(), &program).expect("a copy");
    program
}

fn recorded(program: &Path) -> Recording {
    Program::new(program).recorded().success().whole()
}

/// Asks before and after the program is deleted, and once it was built anew; gives the answers.
fn is_the_same_without(program: &Path, other: &Path) -> String {
    let recording = recorded(program);
    let before = all(&recording.folder);
    fs::remove_file(program).expect("it goes");
    assert_eq!(all(&recording.folder), before, "deleted");
    fs::copy(other, program).expect("another build");
    assert_eq!(all(&recording.folder), before, "built anew");
    before
}

#[test]
fn a_c_program_that_is_gone_has_its_names() {
    let place = test_env::folder();
    let other = Target::program("leaks/shop.c").flag("-DMORE").flag("-O0").build();
    let said = is_the_same_without(&copy(place.path(), Target::program("leaks/shop.c")), &other);
    assert!(said.contains("load_order shop.c:"), "{said}");
}

#[test]
fn a_cpp_program_that_is_gone_has_its_inlined_functions() {
    let place = test_env::folder();
    let other = Target::program("leaks/containers.cpp").flag("-O0").build();
    let program = copy(place.path(), Target::program("leaks/containers.cpp").flag("-O2"));
    let said = is_the_same_without(&program, &other);
    assert!(said.contains("containers.cpp:") && said.contains("\"inlined\": true"), "{said}");
}

#[test]
fn a_rust_program_that_is_gone_has_its_names() {
    let place = test_env::folder();
    let target = || Target::program("words.rs");
    let other = target().flag("-Copt-level=0").build();
    let said = is_the_same_without(&copy(place.path(), target()), &other);
    assert!(said.contains("words.rs:"), "{said}");
}

#[test]
fn a_program_without_build_id_is_not_mixed_up_with_its_next_build() {
    let place = test_env::folder();
    let target = || Target::program("leaks/shop.c").flag("-Wl,--build-id=none");
    let other = target().flag("-DMORE").flag("-O0").build();
    let program = copy(place.path(), target());
    let said = is_the_same_without(&program, &other);
    assert!(said.contains("load_order shop.c:"), "{said}");
    // Without names of its own a recording trusts no file that is younger.
    let recording = recorded(&program);
    forget(&recording);
    fs::copy(target().build(), &program).expect("another build");
    let said = recording.heaptape(&["leaks"]).success();
    assert!(!said.text().contains("load_order"), "{said}");
    let error = said.error();
    assert!(error.contains("no symbols for") && error.contains("(no build-id)"), "{error}");
}

#[test]
fn a_stripped_program_and_its_debug_file_that_are_gone_have_their_names() {
    let place = test_env::folder();
    let program = copy(place.path(), Target::program("leaks/shop.c"));
    let debug = place.path().join("shop.debug");
    tool("objcopy", &["--only-keep-debug".as_ref(), program.as_os_str(), debug.as_os_str()]);
    tool("strip", &[program.as_os_str()]);
    let link = format!("--add-gnu-debuglink={}", debug.display());
    tool("objcopy", &[link.as_ref(), program.as_os_str()]);
    let recording = recorded(&program);
    let before = all(&recording.folder);
    assert!(before.contains("load_order shop.c:"), "{before}");
    fs::remove_file(&debug).expect("it goes");
    assert_eq!(all(&recording.folder), before);
    fs::remove_file(&program).expect("it goes");
    assert_eq!(all(&recording.folder), before);
}

#[test]
fn a_program_that_deletes_itself_has_its_names() {
    let place = test_env::folder();
    let program = copy(place.path(), Target::program("leaks/shop.c"));
    let script = format!("{0} & child=$!; rm {0}; wait $child", program.display());
    let recording = Program::shell(&script).recorded().success();
    let said = ask(&["leaks"], &[&recording.folder]);
    assert!(said.text().contains("load_order shop.c:"), "{said}");
}

#[test]
fn a_rebuilt_program_is_compared_by_its_names() {
    let place = test_env::folder();
    let old = recorded(&copy(place.path(), Target::program("leaks/shop.c")));
    let new = recorded(&copy(place.path(), Target::program("leaks/shop.c").flag("-DMORE").flag("-O0")));
    let said = ask(&["diff", "--json"], &[&old.folder, &new.folder]);
    let answer: serde_json::Value = serde_json::from_slice(&said.stdout).expect("JSON");
    let changes = answer["changes"].as_array().expect("a list");
    assert_eq!((changes.len(), &changes[0]["functions"][0]), (1, &"load_order".into()), "{said}");
    assert_eq!(said.error(), "");
}

#[test]
fn a_program_in_another_mount_namespace_has_its_names() {
    let tried = Command::new("unshare").args(["-m", "true"]).output();
    if !tried.is_ok_and(|said| said.status.success()) {
        eprintln!("SKIPPED: unshare may make no mount namespace here: names of programs in containers are not tried");
        return;
    }
    let place = test_env::folder();
    let (inside, program) = (place.path().join("inside"), Target::program("leaks/shop.c").build());
    fs::create_dir(&inside).expect("a folder");
    let (from, to) = (program.display(), inside.display());
    let script = format!("mount -t tmpfs none {to} && cp {from} {to}/shop && {to}/shop");
    let recording = Program::new("unshare").args(["-m", "sh", "-c", &script]).recorded().success();
    assert!(!inside.join("shop").exists(), "it was never seen here");
    let said = ask(&["leaks"], &[&recording.folder]);
    assert!(said.text().contains("load_order shop.c:"), "{said}");
    let plain = recorded(&program);
    let lines = |folder: &Path, question: &str| -> Vec<String> {
        let said = ask(&[question, "--function", "load_order"], &[folder]).text();
        said.lines().filter(|line| line.contains("shop.c:")).map(str::to_owned).collect()
    };
    for question in ["leaks", "peak", "sites"] {
        let here = lines(&plain.folder, question);
        assert!(!here.is_empty(), "{question}");
        assert_eq!(lines(&recording.folder, question), here, "{question}");
    }
}

/// Where a recording keeps its names, once all are there.
fn kept(recording: &Recording) -> Vec<PathBuf> {
    let started = Instant::now();
    while !recording.files(".symbols").is_empty() {
        assert!(started.elapsed() < Duration::from_secs(60), "the names are never there");
        std::thread::sleep(Duration::from_millis(10));
    }
    recording.files("symbols.tape")
}

/// Takes the names out of a recording, as if its recorder had been killed.
fn forget(recording: &Recording) {
    let files = kept(recording);
    assert!(!files.is_empty(), "it had names");
    files.iter().for_each(|file| fs::remove_file(file).expect("they go"));
}

#[test]
fn missing_names_are_named() {
    let place = test_env::folder();
    let program = copy(place.path(), Target::program("leaks/shop.c").flag("-Wl,--build-id=0xabcd1234"));
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
    let said = recording.heaptape(&["report"]).success();
    assert!(said.text().contains("no symbols for"), "{said}");
    // Another build in its place.
    fs::copy(Target::program("leaks/shop.c").flag("-Wl,--build-id=0x5678").build(), &program).expect("a copy");
    let error = recording.heaptape(&["leaks"]).success().error();
    assert!(error.contains("abcd1234") && error.contains("5678"), "{error}");
}

#[test]
fn damaged_names_are_said_and_the_files_are_used() {
    let place = test_env::folder();
    let program = copy(place.path(), Target::program("leaks/shop.c"));
    let recording = recorded(&program);
    let here = all(&recording.folder);
    let file = &kept(&recording)[0];
    let whole = fs::read(file).expect("names");
    for cut in [0, 3, 16, 20, whole.len() / 3, whole.len() / 2, whole.len() - 1] {
        fs::write(file, &whole[..cut]).expect("a file");
        let said = recording.heaptape(&["leaks"]).success();
        assert!(here.contains(&said.text()), "cut at {cut}: {said}");
    }
    let mut broken = whole;
    let middle = broken.len() / 2;
    broken[middle] ^= 0x55;
    fs::write(file, &broken).expect("a file");
    let said = recording.heaptape(&["leaks"]).success();
    assert!(here.contains(&said.text()), "{said}");
    assert!(said.error().contains("symbols.tape"), "{said}");
}

#[test]
fn a_hostile_program_costs_its_own_lines_alone() {
    let place = test_env::folder();
    let program = copy(place.path(), Target::program("leaks/shop.c").flag("-O1"));
    let garbage = place.path().join("garbage");
    for (section, byte) in [(".debug_info", 0xff), (".debug_abbrev", 0x01), (".debug_line", 0x80), (".debug_info", 0)] {
        fs::write(&garbage, vec![byte; 200_000]).expect("garbage");
        let update = format!("{section}={}", garbage.display());
        tool("objcopy", &["--update-section".as_ref(), update.as_ref(), program.as_os_str()]);
        let recording = recorded(&program);
        fs::remove_file(&program).expect("it goes");
        let said = ask(&["leaks"], &[&recording.folder]);
        assert!(said.text().contains("load_order"), "{section}: {said}");
        copy(place.path(), Target::program("leaks/shop.c").flag("-O1"));
    }
}

#[test]
fn epochs_keep_the_names_of_programs_that_are_gone() {
    for mode in ["trace", "profile", "flight"] {
        let mut daemon = Daemon::start(&["--mode", mode, "--flight-death", "any"]);
        let place = test_env::folder();
        let program = copy(place.path(), Target::program("leaks/shop.c"));
        daemon.run(&program, &[]).success();
        fs::remove_file(&program).expect("it goes");
        daemon.ask(&["epoch"]);
        let names = || daemon.word(&["sites"], &daemon.epochs(&[])).text();
        until(mode, || names().contains("load_order shop.c:"));
        daemon.stop();
    }
}

#[test]
fn an_epoch_keeps_the_names_of_a_process_that_goes_on() {
    let mut daemon = Daemon::start(&["--mode", "profile"]);
    let place = test_env::folder();
    let program = place.path().join("slow");
    fs::copy(Target::program("leaks_slowly.c").build(), &program).expect("a copy");
    let running = daemon.spawn(&program, &["1000", "5"], None);
    until("it is served", || daemon.list("slow").iter().any(|process| process["live_blocks"].as_u64() > Some(20)));
    fs::remove_file(&program).expect("it goes");
    daemon.ask(&["epoch"]);
    let first = daemon.epochs(&[]).into_iter().min().expect("an epoch");
    let names = || daemon.word(&["leaks"], std::slice::from_ref(&first)).text();
    until("its names", || names().contains("keeps leaks_slowly.c:"));
    drop(running);
    daemon.stop();
}

#[test]
fn names_take_little_room() {
    let place = test_env::folder();
    let source = place.path().join("source.cpp");
    fs::write(
        &source,
        "#include <map>\n#include <regex>\n#include <iostream>\nint main() { std::map<int, std::regex> all; }\n",
    )
    .expect("a source");
    let object = place.path().join("object.o");
    let compiler = Program::new(test_env::need("g++")).args(["-O1", "-c", "-o"]).arg(&object).arg(&source);
    let recording = compiler.recorded().success().whole();
    let size = |path: &PathBuf| fs::metadata(path).expect("a file").len();
    let names: u64 = kept(&recording).iter().map(size).sum();
    let all = recording.bytes();
    assert!(names > 0 && names <= (all / 50).max(64 << 10), "{names} of {all} bytes");
}
