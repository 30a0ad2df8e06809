//! Programs with an allocator inside: linked statically, as Rust's global allocator, or their
//! own. The functions are found by their symbols and hooked by a jump in their first bytes.

use heaptape_tests::recording::Leak;
use heaptape_tests::{Outcome, Program, Recording, Target, is_full, own, same, target, test_env};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program that is linked with a static archive of the distribution.
fn linked(source: &str, archive: &str) -> Program {
    let path = Path::new(target::LIBRARIES).join(archive);
    assert!(path.exists(), "{} is missing: run scripts/install-tools", path.display());
    let path = path.to_str().expect("a plain path");
    Program::new(Target::program(source).libraries(&[path, "-lstdc++", "-lm"]).build())
}

/// Archives, with the name under which `report` lists the allocator.
const ARCHIVES: [(&str, &str); 2] = [("libjemalloc_pic.a", "jemalloc"), ("libtcmalloc_minimal.a", "tcmalloc")];

/// Asserts that one allocator was found, and that all its functions are hooked.
fn is_hooked(recording: &Recording, name: &str) {
    let about = recording.about();
    let process = about.processes.first().expect("a process");
    let allocators = &process.allocators;
    assert!(allocators.iter().all(|one| one.events > 0), "{about:#?}");
    assert!(!process.own_malloc, "{about:#?}");
    assert_eq!(allocators.iter().map(|one| &one.name[..]).collect::<Vec<_>>(), [name], "{about:#?}");
    assert!(allocators[0].found > 0 && allocators[0].hooked == allocators[0].found, "{allocators:#?}");
    crosses_nothing(recording);
}

/// Asserts that each block was freed by the allocator that allocated it.
fn crosses_nothing(recording: &Recording) {
    let leaks = recording.heaptape(&["leaks", "--json"]).success().text();
    let leaks: Value = serde_json::from_str(&leaks).expect("JSON");
    assert!(leaks["crossed_allocators"].is_null(), "{:#}", leaks["crossed_allocators"]);
}

/// Asserts that what an allocator maps is counted, and is not listed as the program's: neither
/// inside of a request, nor in a constructor or a thread of its own. In a program with an `mmap` of
/// its own (gperftools) and in a static one, the reports say that nothing is recorded.
fn maps_for_itself(recording: &Recording, unseen: &str) {
    let report: Value =
        serde_json::from_str(&recording.heaptape(&["report", "--json"]).success().text()).expect("JSON");
    let process = &report["processes"][0];
    let lines = recording.heaptape(&["leaks", "--mappings", "only"]).success().text();
    assert_eq!(process["unseen_mappings"].as_str().unwrap_or_default(), unseen, "{process:#}");
    assert_eq!(lines.contains("maps itself is not recorded"), !unseen.is_empty(), "{lines}");
    if !unseen.is_empty() {
        assert!(lines.contains(unseen), "{lines}");
        return;
    }
    assert!(process["mappings"]["allocator_calls"].as_u64() > Some(0), "{process:#}");
    let internal = ["_rjem_", "je_", "_mi_", "mi_", "unix_mmap", "jemalloc_", "malloc_init", "os_pages", "background_"];
    for row in report["mapped"].as_array().into_iter().flatten() {
        let functions: Vec<&str> =
            row["stack"].as_array().into_iter().flatten().filter_map(|frame| frame["function"].as_str()).collect();
        let is_own = |function: &&str| !internal.iter().any(|prefix| function.starts_with(prefix));
        assert!(functions.iter().all(is_own), "{functions:#?}");
    }
}

#[test]
fn linked_in_allocators_are_recorded_exactly() {
    for (archive, name) in ARCHIVES {
        for (source, arguments) in [("pairs.c", ["20000", "4"]), ("threads.c", ["4", "3000"])] {
            let folder = test_env::folder();
            let file = folder.path().join("own");
            let program = linked(source, archive).args(arguments).env("OWN_FILE", &file);
            let recording = program.recorded_counting(&file);
            let recording = recording.complete();
            own::equal(&own::read(&file), &own::recorded(&recording));
            is_hooked(&recording, name);
            let own_mmap = "it has an mmap of its own, which it calls instead";
            maps_for_itself(&recording, if name == "tcmalloc" { own_mmap } else { "" });
        }
    }
}

/// Each operator is one event, with the size that the program requested, and exceptions pass
/// through the hooks.
#[test]
fn operators_of_linked_in_allocators_are_recorded_once() {
    for (archive, name) in ARCHIVES {
        let recording = linked("each_operator.cpp", archive).recorded().complete();
        is_hooked(&recording, name);
        let leaks = recording.leaks();
        for bytes in [5003, 5009, 5011, 5021, 5023, 5039, 5051, 5059] {
            let found = leaks.iter().filter(|leak| leak.bytes == bytes && leak.blocks == 1).count();
            assert_eq!(found, 1, "{archive}: {bytes} bytes by new, once: {leaks:#?}");
        }
        for source in ["bad_alloc.cpp", "exceptions.cpp"] {
            let program = linked(source, archive);
            same(&program.plain(), &program.recorded().outcome);
        }
    }
}

/// A build of the Rust program.
#[derive(Clone, Copy, Debug)]
struct Build {
    /// The allocator, or `system` for that of the C library.
    allocator: &'static str,
    profile: &'static str,
    /// Whether it is a static program with musl.
    is_musl: bool,
}

/// The target of static programs with musl.
const MUSL: &str = "x86_64-unknown-linux-musl";

/// Returns whether Rust's library for musl is installed.
fn has_musl() -> bool {
    let output = Command::new("rustc").args(["--print", "target-libdir", "--target", MUSL]).output().expect("rustc");
    let folder = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    Path::new(&folder).is_dir() && test_env::find("musl-gcc").is_some()
}

/// Returns the distribution's jemalloc with the names that the crate gives to its own: a minute of
/// compilation less. The long form compiles the crate's.
fn renamed_jemalloc() -> PathBuf {
    let names = [
        "aligned_alloc",
        "calloc",
        "dallocx",
        "free",
        "mallctl",
        "mallctlbymib",
        "mallctlnametomib",
        "malloc",
        "malloc_conf",
        "malloc_message",
        "malloc_stats_print",
        "malloc_usable_size",
        "mallocx",
        "memalign",
        "nallocx",
        "posix_memalign",
        "rallocx",
        "realloc",
        "sallocx",
        "sdallocx",
        "valloc",
        "xallocx",
    ];
    let built = test_env::kept().join("libjemalloc_prefixed.a");
    if !built.exists() {
        let unfinished = built.with_extension("unfinished");
        test_env::copy(Path::new(target::LIBRARIES).join("libjemalloc_pic.a"), &unfinished);
        // Rust programs have no C++ operators.
        Program::new("ar").arg("d").arg(&unfinished).arg("jemalloc_cpp.pic.o").plain().success();
        let renamed = names.map(|name| format!("--redefine-sym={name}=_rjem_{name}"));
        Program::new("objcopy").args(renamed).arg(&unfinished).plain().success();
        std::fs::rename(&unfinished, &built).expect("the built file gets its name");
    }
    built
}

/// Builds the Rust program.
fn rust(Build { allocator, profile, is_musl }: Build) -> PathBuf {
    let folder = test_env::kept().join("inside").join(allocator);
    let mut cargo = Command::new("cargo");
    if allocator == "jemalloc" && !is_full() {
        cargo.env("JEMALLOC_OVERRIDE", renamed_jemalloc()).env("CARGO_ENCODED_RUSTFLAGS", "-Clink-arg=-lm");
    }
    cargo.args(["build", "--quiet", "--locked", "--profile", profile, "--manifest-path"]);
    cargo.arg(test_env::programs().join("inside/Cargo.toml")).arg("--target-dir").arg(&folder);
    if allocator != "system" {
        cargo.args(["--features", allocator]);
    }
    if is_musl {
        cargo.args(["--target", MUSL]);
    }
    let result = cargo.output().expect("cargo");
    assert!(result.status.success(), "{}", String::from_utf8_lossy(&result.stderr));
    folder.join(if is_musl { MUSL } else { "" }).join(profile).join("inside")
}

/// Returns allocations, resizes, frees and bytes of the events of an allocator inside.
fn counted_inside(recording: &Recording, number: u8) -> [u64; 4] {
    let file = recording.directory.path().join("events.json");
    let out = file.to_str().expect("a plain path");
    recording.heaptape(&["export", "--format", "json", "--events", "-o", out]).success();
    let mut counts = [0; 4];
    let prefix = format!("allocator {}: ", number + 1);
    for line in std::fs::read_to_string(&file).expect("events").lines() {
        let event: Value = serde_json::from_str(line).expect("JSON");
        let Some(kind) = event["function"].as_str().and_then(|name| name.strip_prefix(&prefix)) else {
            continue;
        };
        let kind = ["allocate", "resize", "free"].iter().position(|known| *known == kind).expect("a known kind");
        counts[kind] += 1;
        counts[3] += if kind == 2 { 0 } else { event["size"].as_u64().expect("a size") };
    }
    counts
}

fn own_counts(outcome: &Outcome) -> [u64; 4] {
    let error = outcome.error();
    let line = error.lines().find(|line| line.split(' ').count() == 4).unwrap_or_else(|| panic!("no counts: {error}"));
    let numbers: Vec<u64> = line.split(' ').map(|number| number.parse().expect("a number")).collect();
    numbers.try_into().expect("four numbers")
}

/// Records a build, and asserts that all functions of its allocators are hooked, and that its leak
/// has the stack of the program.
fn recorded(build: Build) -> (Recording, [u64; 4]) {
    let recording = Program::new(rust(build)).recorded();
    let own = own_counts(&recording.outcome);
    let recording = recording.complete();
    let about = recording.about();
    let process = about.processes.first().expect("a process");
    assert!(!process.own_malloc && !process.allocators.is_empty(), "{about:#?}");
    assert!(process.allocators.iter().all(|one| one.hooked == one.found && one.hooked > 0), "{about:#?}");
    let leaks = recording.leaks();
    let known = leaks.iter().find(|leak| (leak.blocks, leak.bytes) == (500, 228_000));
    let is_named = |leak: &Leak| {
        let functions = leak.stack.iter().filter_map(|frame| frame.function.as_deref());
        functions.into_iter().any(|function| function.contains("leaks_here"))
    };
    assert!(known.is_some_and(is_named), "{build:?}: {leaks:#?}");
    let text = recording.heaptape(&["leaks"]).success().text();
    assert!(text.contains("leaks_here") && !text.contains("GlobalAlloc"), "{build:?}: {text}");
    crosses_nothing(&recording);
    maps_for_itself(&recording, if build.is_musl { "it is a static program" } else { "" });
    (recording, own)
}

/// Asserts that all requests of a Rust program are recorded as those of its allocator, and returns
/// the counts of the C library's own allocator in it, if that is hooked, too.
fn is_exact(build: Build) -> [u64; 4] {
    let (recording, own) = recorded(build);
    let allocators = &recording.about().processes[0].allocators;
    let inside = allocators.iter().find(|one| one.name == build.allocator);
    let inside = inside.unwrap_or_else(|| panic!("{build:?}: {allocators:#?}"));
    assert_eq!(counted_inside(&recording, inside.number), own, "{build:?}");
    assert_eq!(inside.events, own[..3].iter().sum::<u64>(), "{build:?}");
    let other = allocators.iter().find(|one| one.name != build.allocator);
    other.map_or([0; 4], |other| counted_inside(&recording, other.number))
}

/// Every request of a Rust program is recorded, also with fat LTO. The short form leaves the plain
/// build to the test with jemalloc.
#[test]
fn rust_programs_with_mimalloc_are_recorded_exactly() {
    for &profile in if is_full() { &["release", "fat"][..] } else { &["fat"] } {
        assert_eq!(is_exact(Build { allocator: "mimalloc", profile, is_musl: false }), [0; 4]);
    }
}

#[test]
fn rust_program_with_jemalloc_is_recorded_exactly() {
    assert_eq!(is_exact(Build { allocator: "jemalloc", profile: "release", is_musl: false }), [0; 4]);
}

/// In a static program musl's own `malloc` is hooked besides the program's allocator. What musl
/// itself requests from it is the same in a program without another allocator.
#[test]
fn static_rust_programs_with_musl_are_recorded_exactly() {
    if !has_musl() {
        return;
    }
    let build = Build { allocator: "mimalloc", profile: "release", is_musl: true };
    let of_libc = is_exact(build);
    let (recording, own) = recorded(Build { allocator: "system", ..build });
    let allocators = &recording.about().processes[0].allocators;
    assert_eq!(allocators.len(), 1, "{allocators:#?}");
    let both: [u64; 4] = std::array::from_fn(|index| own[index] + of_libc[index]);
    assert_eq!(counted_inside(&recording, allocators[0].number), both, "{own:?} and {of_libc:?} of libc");
}

/// A system that forbids to change code leaves the program as it is, and the recording says so.
#[test]
fn programs_that_may_not_change_their_code_run_unhooked() {
    let program = linked("bad_alloc.cpp", "libtcmalloc_minimal.a");
    let plain = program.plain().success();
    let launcher = target::c("forbids_code");
    let probe = program.as_arguments_of(Program::new(&launcher)).plain();
    if probe.code() == 77 {
        return;
    }
    let recording = program.as_arguments_of(Program::new(&launcher)).recorded();
    same(&plain, &recording.outcome);
    let about = recording.about();
    let process = about.processes.last().expect("a process");
    assert!(process.own_malloc && process.allocators[0].hooked == 0, "{about:#?}");
    assert!(process.allocators[0].refused[0].why.contains("does not let the process change its code"), "{about:#?}");
    let text = recording.heaptape(&["report"]).text();
    assert!(text.contains("has its own malloc"), "{text}");
}

/// A forked child has the hooks of its parent.
#[test]
fn forked_children_keep_the_hooks() {
    let recording = linked("fork_kinds.c", "libjemalloc_pic.a").args(["fork", "5"]).recorded().success();
    let about = recording.about();
    let forked: Vec<_> = about.processes.iter().filter(|process| process.origin == "fork").collect();
    assert!(!forked.is_empty(), "{about:#?}");
    for process in forked {
        assert!(!process.own_malloc && process.allocators.iter().all(|one| one.hooked > 0), "{process:#?}");
    }
    let report = recording.report();
    assert!(report.processes.iter().all(|process| process.allocs > 0), "{report:#?}");
}
