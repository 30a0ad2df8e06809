//! Allocators that the user describes, and blocks that one allocator allocates and another one
//! frees.

use heaptape_formats::recording as formats;
use heaptape_tests::wait::until;
use heaptape_tests::{Daemon, Program, Recording, Target, target, test_env};
use serde_json::Value;
use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The functions of `crosses.c`.
pub(super) const DESCRIPTION: &str = "# Names, and what their arguments are
allocator boxes
allocate    box_take(box, size)
allocate    box_take_array(box, count, size)
allocate-at box_put(block, alignment, size)
resize      box_grow(box, block, old, size)
free        box_drop(box, block, size)    # a free with a size
";

fn recorded(options: &[&str]) -> Recording {
    let folder = test_env::folder();
    let path = folder.path().join("boxes.alloc");
    std::fs::write(&path, DESCRIPTION).expect("a description");
    let program = Program::new(target::c("crosses")).option("--allocator").option(path.to_str().expect("a plain path"));
    let program = options.iter().fold(program, |program, option| program.option(option));
    let plain = program.plain().success();
    let recording = program.recorded();
    heaptape_tests::same(&plain, &recording.outcome);
    recording.complete()
}

fn json(recording: &Recording, command: &[&str]) -> Value {
    serde_json::from_str(&recording.heaptape(command).success().text()).expect("JSON")
}

/// Each call of a described function is one event, with the size that its arguments have.
#[test]
fn described_allocator_is_recorded_exactly() {
    let recording = recorded(&[]);
    let about = recording.about();
    let [allocator] = &about.processes[0].allocators[..] else { panic!("one allocator: {about:#?}") };
    assert_eq!((&allocator.name[..], allocator.found, allocator.hooked), ("boxes", 5, 5), "{allocator:#?}");
    // 40 + 30 + 1 allocations, 10 resizes, 25 + 10 + 30 frees.
    assert_eq!(allocator.events, 71 + 10 + 65, "{allocator:#?}");
    let events = recording.heaptape(&["sizes", "--allocator", "boxes", "--json"]).success().text();
    let sizes: Value = serde_json::from_str(&events).expect("JSON");
    assert!(sizes.to_string().contains("\"allocs\""), "{sizes:#}");
    let leaks = json(&recording, &["leaks", "--allocator", "boxes", "--json"]);
    let leak = &leaks["leaks"][0];
    assert_eq!((leak["bytes"].as_u64(), leak["blocks"].as_u64()), (Some(1234), Some(1)), "{leaks:#}");
    let report = json(&recording, &["report", "--json"]);
    let process = &report["processes"][0];
    let bytes = 40 * 100 + 25 * 64 + 10 * (50 + 70) + 30 * 33 + 20 * 77 + 1234;
    // Standard output has a buffer of 1,024 to 4,096 bytes besides.
    let buffer = process["bytes_allocated"].as_u64().and_then(|all| all.checked_sub(bytes));
    assert!(buffer.is_some_and(|buffer| (1024..=4096).contains(&buffer)), "{process:#}");
}

/// A compiler that knows a function keeps values in the registers that it does not change. They are
/// the same after a hooked call.
#[test]
fn hooked_functions_change_no_other_register() {
    let folder = test_env::folder();
    let path = folder.path().join("registers.alloc");
    std::fs::write(&path, "allocator registers\nallocate reg_take(size)\nfree reg_drop(block)\n").expect("a file");
    let program = Program::new(target::c("keeps_registers")).arg("2000");
    let plain = program.plain().success();
    assert_eq!(plain.text(), "0\n");
    let program = program.option("--allocator").option(path.to_str().expect("a plain path"));
    let recording = program.recorded();
    heaptape_tests::same(&plain, &recording.outcome);
    // Its code in assembly has no unwind data, so `verify` says that stacks end early.
    recording.report().processes.iter().for_each(heaptape_tests::Process::assert_accounting);
    let allocator = &recording.about().processes[0].allocators[0];
    assert_eq!((allocator.hooked, allocator.events), (2, 4000), "{allocator:#?}");
}

/// `leaks` names blocks that another allocator freed or resized: where they were allocated and,
/// with the stacks of frees, where that was.
#[test]
fn blocks_that_another_allocator_frees_are_named() {
    let crossed = |recording: &Recording| -> Vec<Value> {
        let leaks = json(recording, &["leaks", "--json"]);
        leaks["crossed_allocators"].as_array().unwrap_or_else(|| panic!("crossings: {leaks:#}")).clone()
    };
    let rows = |crossed: &[Value]| -> Vec<(String, String, u64, u64, String)> {
        let text = |value: &Value| value.as_str().expect("a text").to_owned();
        let blamed = |stack: &Value| {
            let frames = stack.as_array().expect("a stack");
            let frame = frames.iter().find(|frame| frame["blamed"] == true).expect("a blamed frame");
            text(&frame["function"])
        };
        let number = |value: &Value| value.as_u64().expect("a number");
        let row = |one: &Value| {
            let (blocks, bytes) = (number(&one["blocks"]), number(&one["bytes"]));
            (text(&one["allocated_by"]), text(&one["freed_by"]), blocks, bytes, blamed(&one["stack"]))
        };
        crossed.iter().map(row).collect()
    };
    let expected = [
        ("boxes", "malloc", 40, 4000, "frees_from_box"),
        ("malloc", "boxes", 25, 1600, "drops_from_malloc"),
        ("malloc", "boxes", 10, 500, "grows_from_malloc"),
    ];
    let expected = expected.map(|(by, freed, blocks, bytes, at)| (by.into(), freed.into(), blocks, bytes, at.into()));
    let recording = recorded(&[]);
    let found = crossed(&recording);
    assert_eq!(rows(&found), expected, "{found:#?}");
    // A resize has a stack in any case.
    let has_stack: Vec<bool> = found.iter().map(|one| !one["freed_at"].is_null()).collect();
    assert_eq!(has_stack, [false, false, true], "{found:#?}");
    let text = recording.heaptape(&["leaks"]).success().text();
    for line in [
        "3.91 KiB in 40 blocks were allocated by boxes and freed by malloc",
        "frees_from_box crosses.c:",
        "2.05 KiB in 35 blocks were allocated by malloc and freed by boxes",
        "record --free-stacks names where they are freed",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    // With the stacks of frees.
    let recording = recorded(&["--free-stacks"]);
    let found = crossed(&recording);
    assert_eq!(rows(&found), expected, "{found:#?}");
    let text = recording.heaptape(&["leaks"]).success().text();
    assert!(text.contains(", freed in drops_from_malloc crosses.c:"), "{text}");
    assert!(!text.contains("--free-stacks"), "{text}");
    // As a condition in CI.
    let outcome = recording.heaptape(&["leaks", "--fail-if", "crossed > 0"]);
    assert_eq!(outcome.code(), 1, "{outcome}");
    let text = outcome.text();
    assert!(
        text.contains("FAILED: crossed = 75 (limit: > 0)") && text.contains("freed by malloc: frees_from_box"),
        "{text}"
    );
    recording.heaptape(&["leaks", "--fail-if", "crossed > 75"]).success();
    // In a range without such a free there are none.
    let none = json(&recording, &["leaks", "--until", "1", "--json"]);
    assert!(none["crossed_allocators"].is_null(), "{none:#}");
}

fn tool(name: &str, arguments: &[&OsStr]) {
    let status = Command::new(name).args(arguments).status().unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(status.success(), "{name}");
}

/// Returns the option of `objcopy` that names a separate file in the stripped one.
fn debug_link(debug: &Path) -> OsString {
    OsString::from_vec([b"--add-gnu-debuglink=", debug.as_os_str().as_bytes()].concat())
}

/// The functions of a stripped program are found by symbols that are packed into it, or in another
/// file: beside it, in its folder `.debug`, or fetched by debuginfod.
#[test]
fn stripped_programs_have_the_symbols_of_their_debug_files() {
    let folder = test_env::folder();
    let file = |name: &str| folder.path().join(name);
    let description = file("boxes.alloc");
    std::fs::write(&description, DESCRIPTION).expect("a description");
    let hooked = |program: &Path| {
        let program = Program::new(program).option("--allocator").option(description.to_str().expect("a plain path"));
        // What was found once is stored, and used also without the file that it was found in.
        let stored = test_env::folder();
        let program = program.env("XDG_CACHE_HOME", stored.path());
        let recording = program.env("DEBUGINFOD_CACHE_PATH", file("cache")).recorded().success();
        let about = recording.about();
        let found =
            about.processes.first().and_then(|process| process.allocators.iter().find(|one| one.name == "boxes"));
        found.map_or(0, |allocator| allocator.hooked)
    };
    for (kind, flags) in
        [("with", ["-g", "-O1"]), ("without", ["-Wl,--build-id=none", "-O1"]), ("static", ["-static", "-g"])]
    {
        let built = flags.iter().fold(Target::program("crosses.c"), |target, flag| target.flag(flag));
        let built = built.named(&format!("crosses-{kind}")).build();
        let (program, debug) = (file(&format!("crosses-{kind}")), file(&format!("{kind}.debug")));
        tool("objcopy", &["--only-keep-debug".as_ref(), built.as_os_str(), debug.as_os_str()]);
        let strip = || tool("strip", &["-o".as_ref(), program.as_os_str(), built.as_os_str()]);
        strip();
        assert_eq!(hooked(&program), 0, "{kind}");
        tool("objcopy", &[&debug_link(&debug), program.as_os_str()]);
        assert_eq!(hooked(&program), 5, "{kind}: a link to a file beside it");
        std::fs::create_dir_all(file(".debug")).expect("a folder");
        let moved = file(".debug").join(debug.file_name().expect("a name"));
        std::fs::rename(&debug, &moved).expect("it is moved");
        assert_eq!(hooked(&program), 5, "{kind}: a link to a file in .debug");
        // Another file of this name is not used.
        test_env::copy("/bin/true", &moved);
        assert_eq!(hooked(&program), 0, "{kind}: the file of another program");
        // As distributions pack them.
        strip();
        let symbols = file("symbols");
        tool("objcopy", &["--only-keep-debug".as_ref(), built.as_os_str(), symbols.as_os_str()]);
        tool("strip", &["--strip-debug".as_ref(), symbols.as_os_str()]);
        tool("xz", &["-f".as_ref(), symbols.as_os_str()]);
        let section = OsString::from_vec([b".gnu_debugdata=", file("symbols.xz").as_os_str().as_bytes()].concat());
        tool("objcopy", &["--add-section".as_ref(), &section, program.as_os_str()]);
        assert_eq!(hooked(&program), 5, "{kind}: packed symbols");
    }
    // What debuginfod has fetched.
    let (built, program) = (Target::program("crosses.c").build(), file("fetched"));
    tool("strip", &["-o".as_ref(), program.as_os_str(), built.as_os_str()]);
    assert_eq!(hooked(&program), 0);
    let notes = Command::new("readelf").arg("-n").arg(&built).output().expect("readelf");
    let notes = String::from_utf8_lossy(&notes.stdout).into_owned();
    let id = notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: ")).expect("a build-id");
    let cache = file("cache").join(id);
    std::fs::create_dir_all(&cache).expect("a folder");
    tool("objcopy", &["--only-keep-debug".as_ref(), built.as_os_str(), cache.join("debuginfo").as_os_str()]);
    assert_eq!(hooked(&program), 5);
}

/// A program whose symbols take longer than its start may wait runs unhooked, and is named. They
/// are found meanwhile, and stored: a later start is hooked, and records the same as any other.
#[test]
fn symbols_that_take_too_long_are_found_for_the_next_start() {
    let folder = test_env::folder();
    let description = folder.path().join("boxes.alloc");
    std::fs::write(&description, DESCRIPTION).expect("a description");
    let kinds = [
        ("-O1", "its symbol table is too large"),
        ("-static", "it is statically linked, and its symbol table is too large"),
    ];
    for (flag, why) in kinds {
        let cache = folder.path().join(flag);
        let built = Target::program("crosses.c").flag(flag).named(&format!("crosses{flag}")).build();
        let program = Program::new(&built).option("--allocator").option(description.to_str().expect("a plain path"));
        let program = program.env("XDG_CACHE_HOME", &cache);
        let counts = |recording: &Recording| {
            let about = recording.about();
            let allocators = about.processes.first().map_or(Vec::new(), |process| process.allocators.clone());
            let mut counts: Vec<_> = allocators.into_iter().map(|one| (one.name, one.hooked, one.events)).collect();
            counts.sort();
            counts
        };
        let expected = counts(&program.recorded().success());
        assert!(expected.iter().any(|(name, hooked, events)| name == "boxes" && *hooked == 5 && *events > 0));
        let hurried = program.env("HEAPTAPE_SEARCH_MS", "0");
        let first = hurried.recorded().success();
        let about = first.about();
        let refused = about.processes.iter().flat_map(|process| &process.allocators).flat_map(|one| &one.refused);
        let named = refused.map(|refused| &refused.why).chain(about.not_traced.iter().map(|other| &other.why));
        let named: Vec<&String> = named.filter(|reason| reason.starts_with(why)).collect();
        assert!(!named.is_empty(), "{flag}: {about:#?}");
        assert!(named.iter().all(|why| why.ends_with("; it is searched meanwhile, and hooked from the next start on")));
        until("a start is hooked", || counts(&hurried.recorded().success()) == expected);
    }
}

/// The daemon keeps in its state folder what it found in a separate file. The next daemon uses it
/// without that file. A damaged entry is not used, and is replaced.
#[test]
fn daemon_stores_symbols_in_its_state_folder() {
    let folder = test_env::folder();
    let file = |name: &str| folder.path().join(name);
    let (program, debug, moved) = (file("own"), file("own.debug"), file("moved"));
    // An allocator that the daemon knows by its names.
    let flags = ["malloc", "calloc", "realloc", "free"].map(|name| format!("-D{name}=je_{name}"));
    let built = flags.iter().fold(Target::program("own_malloc.c").flag("-O0"), |target, flag| target.flag(flag));
    let built = built.flag("-Wl,--build-id").named("own_je").build();
    tool("objcopy", &["--only-keep-debug".as_ref(), built.as_os_str(), debug.as_os_str()]);
    tool("objcopy", &["--strip-all".as_ref(), &debug_link(&debug), built.as_os_str(), program.as_os_str()]);
    let mut daemon = Daemon::start(&["--mode", "trace"]);
    let symbols = daemon.state().join("symbols");
    // Runs the program once, and returns whether it was hooked.
    let known = Cell::new(0);
    let is_hooked = |daemon: &Daemon| {
        let runs = || {
            daemon.query(&["flush"]);
            let users = std::fs::read_dir(daemon.state()).into_iter().flatten().flatten();
            let epochs = users.flat_map(|user| std::fs::read_dir(user.path())).flatten().flatten();
            let files = epochs.filter_map(|epoch| std::fs::read(epoch.path().join("recording.json")).ok());
            let recordings = files.filter_map(|text| serde_json::from_slice::<formats::Recording>(&text).ok());
            let mut runs: Vec<_> = recordings.flat_map(|recording| recording.processes).collect();
            runs.retain(|process| process.exe == *program.to_string_lossy());
            runs.sort_by_key(|process| process.started_unix_ns);
            runs
        };
        daemon.run(&program, &[]).success();
        until("the run is recorded", || runs().iter().filter(|run| run.accounting.is_some()).count() > known.get());
        known.set(known.get() + 1);
        let last = runs().pop().expect("the run");
        assert!(!last.own_malloc, "{last:#?}");
        last.allocators.iter().any(|one| (&one.name[..], one.hooked, one.events) == ("jemalloc", 4, 200))
    };
    // There are others, of libraries.
    let names_it =
        |path: &PathBuf| std::fs::read(path).is_ok_and(|text| String::from_utf8_lossy(&text).contains("je_"));
    let entry = || {
        let entries = std::fs::read_dir(&symbols).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).find(names_it)
    };
    until("a start is hooked", || is_hooked(&daemon));
    until("the symbols are stored", || entry().is_some());
    let entry = entry().expect("an entry");
    let whole = std::fs::read(&entry).expect("an entry");
    daemon.restart_after(|_| std::fs::rename(&debug, &moved).expect("it is moved"));
    assert!(is_hooked(&daemon), "by what is stored");
    daemon.restart_after(|_| std::fs::write(&entry, &whole[..whole.len() / 2]).expect("a damaged entry"));
    assert!(!is_hooked(&daemon), "nothing has its symbols");
    daemon.restart_after(|_| std::fs::rename(&moved, &debug).expect("it is back"));
    until("a start is hooked again", || is_hooked(&daemon));
    until("the entry is replaced", || std::fs::read(&entry).is_ok_and(|bytes| bytes == whole));
}

/// `report` measures how much of the memory ever was a recorded block: half of it, and all of it
/// once the program's own allocator is described.
#[test]
fn report_measures_how_much_was_seen() {
    let folder = test_env::folder();
    let path = folder.path().join("arena.alloc");
    std::fs::write(&path, "allocator arena\nallocate arena_take(arena, size)\n").expect("a description");
    let program = Program::new(target::c("half_seen")).arg("16");
    let coverage = |recording: &Recording| {
        let report = json(recording, &["report", "--json"]);
        let coverage = &report["processes"][0]["coverage"];
        let number = |key: &str| coverage[key].as_u64().unwrap_or_else(|| panic!("{key}: {report:#}"));
        (number("own_bytes") >> 10, number("never_block_bytes") >> 10)
    };
    // 16 MiB of the arena, 4,096 blocks of 4,000 bytes, and little else.
    let all_of_it = 31 << 10..34 << 10;
    let half = program.recorded().complete();
    let (own, unseen) = coverage(&half);
    assert!(all_of_it.contains(&own) && (16 << 10..17 << 10).contains(&unseen), "{own} and {unseen} KiB");
    let text = half.heaptape(&["report"]).success().text();
    let line = text.lines().find(|line| line.starts_with("seen ")).unwrap_or_else(|| panic!("{text}"));
    assert!(line.contains("of memory held recorded blocks; 16.") && line.contains(" MiB never did"), "{line}");
    let all = program.option("--allocator").option(path.to_str().expect("a plain path")).recorded().complete();
    let (own, unseen) = coverage(&all);
    assert!(all_of_it.contains(&own) && unseen < 1 << 10, "{own} and {unseen} KiB");
    let text = all.heaptape(&["report"]).success().text();
    assert!(text.contains("arena in half_seen: 1 of 1 function hooked, 4,096 events"), "{text}");
    assert!(text.lines().any(|line| line.starts_with("seen       9")), "{text}");
}

/// A description with a fault, and one that is not there, start no program.
#[test]
fn invalid_descriptions_are_named() {
    let folder = test_env::folder();
    let path = folder.path().join("boxes.alloc");
    let run = |text: &str| {
        std::fs::write(&path, text).expect("a description");
        let recorder = Program::new(test_env::command()).args(["record", "--allocator"]).arg(&path);
        recorder.args(["--", "echo", "started"]).plain()
    };
    for (text, why) in [
        ("allocator boxes\nallocate box_take(box)\n", "line 2: box_take: an argument must be 'size'"),
        ("allocate box_take(size)\n", "there is no line 'allocator NAME'"),
    ] {
        let outcome = run(text);
        assert_eq!(outcome.code(), 2, "{outcome}");
        assert!(outcome.error().contains(why) && outcome.text().is_empty(), "{outcome}");
    }
}
