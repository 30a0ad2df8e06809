//! Programs that report through `heaptape.h`: blocks of their own heaps, pools, labels, marks. All
//! counts are known from `annotated.c`.

use heaptape_tests::recording::Process;
use heaptape_tests::{Program, Recording, Target, same, target, test_env};
use serde_json::Value;

/// Records the program, which does nothing else with its heap.
fn recorded(arguments: &[&str]) -> Recording {
    let program = Program::new(target::c("annotated")).args(arguments);
    let plain = program.plain().success();
    let recording = program.recorded();
    same(&plain, &recording.outcome);
    recording.complete()
}

fn json(recording: &Recording, command: &[&str]) -> Value {
    let text = recording.heaptape(&[command, &["--json"]].concat()).success().text();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{command:?}: {error}: {text}"))
}

/// Returns the sizes of allocations and reallocations that a question is about, each with their
/// number.
fn sizes(recording: &Recording, options: &[&str]) -> Vec<(u64, u64)> {
    let report = json(recording, &[&["sizes", "--top", "100"], options].concat());
    let rows = report["processes"][0]["common"].as_array().unwrap_or_else(|| panic!("{report:#}")).iter();
    let number = |row: &Value, key: &str| row[key].as_u64().unwrap_or_else(|| panic!("{row:#}"));
    let mut rows: Vec<(u64, u64)> = rows.map(|row| (number(row, "from"), number(row, "allocs"))).collect();
    rows.sort_unstable();
    rows
}

/// What a process counts: allocations, reallocations, frees, live blocks and bytes.
fn counts(process: &Process) -> [u64; 5] {
    [process.allocs, process.resizes, process.frees, process.live_blocks, process.live_bytes]
}

#[test]
fn blocks_of_heaps_and_pools_are_counted_exactly() {
    let recording = recorded(&["all"]);
    let report = recording.report();
    // malloc: the pool and 6 blocks of `take`. Heaps: 3 times 100, 8, and one with a label. The
    // pool and one block are resized. Free: 2 times 100 by reset, 1, and 3 by range.
    let live = [100 * 24, 3 * 100 + 104 + 50, 1001 + 1002 + 1003 + 1004 + 1005 + 1007].iter().sum();
    assert_eq!(counts(&report.processes[0]), [7 + 300 + 9, 2, 204, 1 + 100 + 5 + 6, live]);
    assert_eq!(sizes(&recording, &["--allocator", "scratch"]), [(24, 300)]);
    assert_eq!(sizes(&recording, &["--allocator", "named"]), [(50, 1), (100, 8), (104, 1)]);
    assert_eq!(sizes(&recording, &["--allocator", "s*", "--allocator", "nam*"]).len(), 4);
    let without_heap = [0, 1001, 1002, 1003, 1004, 1005, 1007].map(|size| (size, 1));
    assert_eq!(sizes(&recording, &["--allocator", "malloc"]), without_heap);
    let text = recording.heaptape(&["report"]).success().text();
    assert!(text.contains("heap scratch") && text.contains("heap named"), "{text}");
    let outcome = recording.heaptape(&["sizes", "--allocator", "scrach"]);
    assert!(outcome.code() == 2 && outcome.error().contains("scratch"), "{outcome}");
}

/// Freeing a pool frees the blocks in it, and the pool's own block is known then.
#[test]
fn blocks_go_with_their_pool() {
    let recording = recorded(&["all", "free"]);
    let report = recording.report();
    let live = 1001 + 1002 + 1003 + 1004 + 1005 + 1007;
    assert_eq!(counts(&report.processes[0]), [316, 2, 204 + 105 + 1, 6, live]);
    let verified = recording.heaptape(&["verify"]).success().text();
    assert!(verified.contains(" 0 unmatched"), "{verified}");
}

#[test]
fn labels_are_frames_of_the_events_of_their_thread() {
    let recording = recorded(&["labels"]);
    assert_eq!(sizes(&recording, &["--label", "request"]), [(50, 1), (1002, 1), (1003, 1), (1004, 1)]);
    let inner = "an inner label with a text of more than fifteen bytes";
    assert_eq!(sizes(&recording, &["--label", inner]), [(50, 1), (1003, 1)]);
    let leaks = recording.leaks_as(&["--all"]);
    let of = |bytes| leaks.iter().find(|leak| leak.bytes == bytes).unwrap_or_else(|| panic!("{bytes}: {leaks:#?}"));
    let outer = |bytes| of(bytes).functions().into_iter().rev().take(2).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(outer(1003), ["label request".to_owned(), format!("label {inner}")]);
    assert_eq!(of(1001).functions()[..2], ["take", "main"]);
    assert!(!outer(1005).iter().any(|name| name.starts_with("label")), "{leaks:#?}");
    let inclusive = recording.heaptape(&["sites", "--inclusive"]).success().text();
    assert!(inclusive.contains("label request"), "{inclusive}");
    let outcome = recording.heaptape(&["leaks", "--label", "reqest"]);
    assert!(outcome.code() == 2 && outcome.error().contains("request"), "{outcome}");
}

#[test]
fn marks_are_bounds_of_time_ranges() {
    let recording = recorded(&["all"]);
    assert_eq!(sizes(&recording, &["--between", "first round", "second round"]), [(24, 100)]);
    assert_eq!(sizes(&recording, &["--between", "second round", "rounds done"]), [(24, 200)]);
    assert_eq!(sizes(&recording, &["--from", "mark:recording continued"]), [(1007, 1)]);
    let between = ["--between", "rounds done", "recording stopped", "--allocator", "named"];
    assert_eq!(sizes(&recording, &between), [(50, 1), (100, 8), (104, 1)]);
    for (marks, why) in [(["first", "the end"], "first round"), (["the end", "first round"], "empty")] {
        let outcome = recording.heaptape(&["sites", "--between", marks[0], marks[1]]);
        assert!(outcome.code() == 2 && outcome.error().contains(why), "{outcome}");
    }
    let timeline = json(&recording, &["timeline"]);
    let marks = timeline["processes"][0]["marks"].as_array().unwrap_or_else(|| panic!("{timeline:#}"));
    let names: Vec<&str> = marks.iter().filter_map(|mark| mark["name"].as_str()).collect();
    let rounds = ["first round", "second round", "third round", "rounds done"];
    assert_eq!(names, [&rounds[..], &["recording stopped", "recording continued", "the end"]].concat());
    assert!(recording.heaptape(&["timeline"]).success().text().contains("rounds done"));
}

/// heaptrack's functions are there for programs that call them already.
#[test]
fn reports_to_heaptrack_are_recorded() {
    let recording = Program::new(target::c("heaptrack_api")).recorded().complete();
    let report = recording.report();
    assert_eq!(counts(&report.processes[0]), [100, 30, 10, 90, 30 * 60 + 60 * 50]);
    let leaks = recording.leaks_as(&["--all"]);
    assert!(leaks.iter().all(|leak| leak.functions()[0] == "reports"), "{leaks:#?}");
}

/// A `malloc` may report: to look for the library takes no memory, and no lock of another allocation.
#[test]
fn own_malloc_may_report() {
    for compiler in ["cc", "clang"] {
        let program = Program::new(Target::program("annotated_malloc.c").by(compiler).flag("-fno-builtin").build());
        let plain = program.plain().success();
        let recording = program.recorded();
        same(&plain, &recording.outcome);
        let sizes = sizes(&recording.complete(), &[]);
        let blocks = [1234, 3210].map(|size| sizes.iter().find(|(of, _)| *of == size).map(|(_, blocks)| *blocks));
        assert_eq!(blocks, [Some(30), Some(2)], "{compiler}: {sizes:?}");
    }
}

/// The crate for Rust has the same functions, and does nothing in a program that is not recorded.
#[test]
fn crate_reports_as_the_header_does() {
    let folder = test_env::folder();
    let api = test_env::programs().join("../../preload/api");
    for linker in ["bfd", "mold"] {
        let (program, allocator) = (folder.path().join(linker), folder.path().join(format!("{linker}-allocator")));
        let target = test_env::kept().join(format!("api-{linker}"));
        let built = std::process::Command::new("cargo")
            .args(["build", "--quiet", "--examples", "--manifest-path"])
            .arg(api.join("Cargo.toml"))
            .arg("--target-dir")
            .arg(&target)
            .env("RUSTFLAGS", format!("-Clink-arg=-fuse-ld={linker}"))
            .output()
            .expect("cargo");
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        test_env::copy(target.join("debug/examples/arena"), &program);
        test_env::copy(target.join("debug/examples/allocator"), &allocator);
        let plain = Program::new(&allocator).plain().success();
        let recording = Program::new(&allocator).recorded();
        same(&plain, &recording.outcome);
        let blocks = sizes(&recording.complete(), &["--allocator", "global"]);
        assert!(blocks.contains(&(1234, 100)) && blocks.contains(&(3210, 2)), "{linker}: {blocks:?}");
        Program::new(&program).plain().success();
        let recording = Program::new(&program).recorded().complete();
        assert_eq!(sizes(&recording, &["--allocator", "rows"]), [(40, 1000)], "{linker}");
        let requests: Vec<_> = (1000..1010).map(|size| (size, 1)).collect();
        let labeled = sizes(&recording, &["--label", "request", "--allocator", "malloc"]);
        assert_eq!(labeled, requests, "{linker}");
        let last = sizes(&recording, &["--from", "mark:done", "--allocator", "rows"]);
        assert_eq!(last, [], "{linker}");
        let report = json(&recording, &["report"]);
        let heap = &report["processes"][0]["heaps"][0];
        assert_eq!((heap["name"].as_str(), heap["allocs"].as_u64()), (Some("rows"), Some(1000)), "{report:#}");
    }
}

/// Compilers make a constant of the function's address in a program at a fixed address, and linkers
/// bind it to null, each in a way of its own.
#[test]
fn header_works_with_other_compilers_and_linkers() {
    test_env::need("mold");
    for compiler in ["cc", "clang"] {
        for position in [&["-no-pie", "-fno-pie"][..], &["-pie", "-fpie"]] {
            for linker in ["bfd", "gold", "lld", "mold"] {
                let mut target = Target::program("annotated.c").by(compiler).flag(format!("-fuse-ld={linker}"));
                for flag in position {
                    target = target.flag(flag);
                }
                let program = Program::new(target.build()).args(["all"]);
                program.plain().success();
                let recording = program.recorded().complete();
                let counted = counts(&recording.report().processes[0]);
                assert_eq!(counted[..3], [316, 2, 204], "{compiler} {position:?} {linker}");
            }
        }
    }
}

/// The header is one of C++ too, and of strict C.
#[test]
fn header_works_in_other_languages() {
    for flags in [&["-no-pie", "-fno-pic"][..], &["-std=c99", "-pedantic-errors", "-O2"], &["-masm=intel"]] {
        // Only processors of Intel's kind have two syntaxes.
        if flags == ["-masm=intel"] && !cfg!(target_arch = "x86_64") {
            continue;
        }
        let mut target = Target::program("annotated.c");
        for flag in flags {
            target = target.flag(flag);
        }
        let recording = Program::new(target.build()).args(["all"]).recorded().complete();
        assert_eq!(counts(&recording.report().processes[0])[..3], [316, 2, 204], "{flags:?}");
    }
    let folder = test_env::folder();
    let source = folder.path().join("x.cpp");
    let include = test_env::programs().join("../../preload/include");
    let text = "#include \"heaptape.h\"\n#include <vector>\nint main() { heaptape_label_push(\"all of it\"); \
                std::vector<char> v(1234); char *p = &v[100]; heaptape_alloc(\"mine\", p, 77); return v[0]; }\n";
    std::fs::write(&source, text).expect("a source");
    let program = folder.path().join("x");
    let built = std::process::Command::new("c++")
        .args(["-std=c++11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-g", "-I"])
        .arg(&include)
        .args([std::path::Path::new("-o"), &program, &source])
        .output()
        .expect("c++");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let recording = Program::new(&program).recorded().complete();
    assert_eq!(sizes(&recording, &["--label", "all of it"]), [(77, 1), (1234, 1)]);
    assert_eq!(sizes(&recording, &["--allocator", "mine"]), [(77, 1)]);
}

/// The page draws a line for each mark at its time, and the legend names the first ones.
#[test]
fn marks_are_lines_on_the_page() {
    let recording = recorded(&["all"]);
    let page = recording.directory.path().join("page.html");
    let to = ["export", "--format", "html", "-o", page.to_str().expect("a plain path")];
    recording.heaptape(&to).success();
    let root = test_env::root();
    let scripts = ["data.js", "format.js", "state.js", "canvas.js", "timeline.js"];
    let scripts = scripts.map(|script| root.join("analyzer/src/export/html").join(script));
    let output =
        Program::new(test_env::need("node")).arg(root.join("tests/clients/marks.mjs")).arg(&page).args(scripts);
    let output = output.plain().success().text();
    let drawn: Value = serde_json::from_str(&output).unwrap_or_else(|error| panic!("{error}: {output}"));
    let timeline = json(&recording, &["timeline"]);
    let marks = timeline["processes"][0]["marks"].as_array().unwrap_or_else(|| panic!("{timeline:#}"));
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value}: {drawn:#}"));
    let lines: Vec<f64> = drawn["lines"].as_array().expect("lines").iter().map(number).collect();
    assert_eq!(lines.len(), marks.len(), "{drawn:#}");
    for (mark, line) in marks.iter().zip(&lines) {
        let expected = number(&mark["at"]["time_ns"]) / number(&drawn["length"]) * 1000.0;
        assert!((line - expected).abs() <= 1.5, "{mark}: {expected}, drawn at {line}");
    }
    // The name is shortened where it is near the right edge.
    let first = &drawn["texts"][0];
    let text = first[0].as_str().map(|text| text.trim_end_matches('…')).expect("a text");
    assert!(!text.is_empty() && "first round".starts_with(text), "{drawn:#}");
    assert_eq!(number(&first[1]), lines[0] + 4.0, "{drawn:#}");
    let legend = drawn["legend"].as_str().expect("a legend");
    assert!(legend.contains("first round (") && legend.contains(" and 1 more"), "{legend}");
}
