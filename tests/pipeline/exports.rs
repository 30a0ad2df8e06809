//! Every export of one real recording: opened by the tool that it is for, whose sums must be those
//! of `heaptape report --json`; or, where the tool is a web page, by what that page's format
//! demands. A new export gets a row in [`client`].

use heaptape_analyzer::export::{EXPORTERS, Shape};
use heaptape_tests::recording::heaptape;
use heaptape_tests::{Outcome, Process, Program, Recording, Target, target, test_env};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// A program with threads, resizes, leaks, known stacks and one process.
fn recording() -> &'static (Recording, Process) {
    static RECORDING: OnceLock<(Recording, Process)> = OnceLock::new();
    RECORDING.get_or_init(|| {
        let recording = Program::new(target::c("threads")).args(["4", "500"]).recorded().success().whole();
        let process = recording.report().only("threads").clone();
        assert!(process.live_bytes > 0 && process.resizes > 0, "{process:#?}");
        (recording, process)
    })
}

/// What a tool says of a file.
#[track_caller]
fn says(tool: &str, arguments: &[&dyn AsRef<OsStr>]) -> String {
    let mut command = Command::new(test_env::need(tool));
    command.args(arguments.iter().map(|argument| argument.as_ref()));
    let said = command.env("NO_COLOR", "1").output().unwrap_or_else(|error| panic!("{tool}: {error}"));
    let error = String::from_utf8_lossy(&said.stderr);
    assert!(said.status.success(), "{tool}: {}\n{error}", said.status);
    String::from_utf8_lossy(&said.stdout).into_owned()
}

#[track_caller]
fn exported(to: &str, more: &[&str], out: &Path) -> Outcome {
    let mut words: Vec<&OsStr> = ["export", "--to", to, "-o"].map(OsStr::new).to_vec();
    words.push(out.as_os_str());
    words.extend(more.iter().map(OsStr::new));
    words.push(recording().0.folder.as_os_str());
    heaptape(words)
}

fn json(path: &Path) -> Value {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Each exporter writes, and what it wrote adds up to what was recorded, by its own way of reading
/// back.
#[test]
fn each_is_conserved() {
    for exporter in EXPORTERS.iter().filter(|exporter| !matches!(exporter.name(), "parquet")) {
        let folder = test_env::folder();
        let is_read_back = exporter.is_read_back();
        let verify: &[&str] = if is_read_back { &["--verify"] } else { &[] };
        let out = folder.path().join(exporter.name());
        let said = exported(exporter.name(), verify, &out);
        assert_eq!(said.code(), 0, "{}: {said}", exporter.name());
        let proofs = said.error().matches("conserved").count();
        assert!(proofs > 0 || !is_read_back, "{}: {said}", exporter.name());
        assert_eq!(out.is_dir(), exporter.needs().shape == Shape::Folder, "{}", exporter.name());
    }
}

/// Each exporter's file is read by its client.
#[test]
fn each_is_opened_by_its_client() {
    let process = &recording().1;
    for exporter in EXPORTERS {
        let Some(client) = client(exporter.name()) else { continue };
        let folder = test_env::folder();
        let out = folder.path().join(format!("file.{}", exporter.extension()));
        let said = exported(exporter.name(), &[], &out);
        assert_eq!(said.code(), 0, "{}: {said}", exporter.name());
        client(&out, process);
    }
}

type Client = fn(&Path, &Process);

/// THE rows: none for formats that are opened by tests of their own.
fn client(name: &str) -> Option<Client> {
    Some(match name {
        "mtrc" | "mptl" | "gmon" | "dcpi" | "html" | "parquet" => return None,
        "pprof" => pprof,
        "collapsed" => collapsed,
        "svg" => svg,
        "speedscope" => speedscope,
        "firefox" => firefox,
        "dhat" => dhat,
        "heaptrack" => heaptrack,
        "callgrind" => callgrind,
        "massif" => massif,
        "csv" => csv,
        "json" => json_lines,
        _ => panic!("{name}: which tool opens it? Give it a row here"),
    })
}

fn pprof(file: &Path, process: &Process) {
    let raw = says("go", &[&"tool", &"pprof", &"-raw", &file]);
    let samples = raw.split("Samples:\n").nth(1).and_then(|rest| rest.split("Locations\n").next()).expect("samples");
    let names: Vec<&str> = samples.lines().next().expect("value types").split_whitespace().collect();
    assert_eq!(names[..3], ["alloc_objects/count", "alloc_space/bytes", "inuse_objects/count"]);
    assert!(names[3].starts_with("inuse_space/bytes"), "{names:?}");
    let mut sums = [0u64; 4];
    for line in samples.lines().skip(1).filter(|line| line.contains(": ") && !line.contains(":[")) {
        let values = line.split(':').next().unwrap_or_default().split_whitespace();
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum += value.parse::<u64>().unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }
    let allocs = process.allocs + process.resizes;
    assert_eq!(sums, [allocs, process.bytes_allocated, process.live_blocks, process.live_bytes]);
    let top = says("go", &[&"tool", &"pprof", &"-top", &"-sample_index=alloc_space", &"-unit=B", &file]);
    assert!(top.contains(&format!("of {}B total", process.bytes_allocated)), "{top}");
    assert!(top.contains("File: threads") && top.contains("Build ID: "), "{top}");
    assert!(top.lines().any(|line| line.ends_with(" takes")), "{top}");
    let tags = says("go", &[&"tool", &"pprof", &"-tags", &"-sample_index=alloc_space", &file]);
    assert!(tags.contains("thread: Total") && tags.contains(&format!(": {}", process.pid)), "{tags}");
    assert!(tags.lines().filter(|line| line.contains(": thread")).count() > 4, "{tags}");
}

fn folded_sum(text: &str) -> u64 {
    text.lines().map(|line| line.rsplit(' ').next().and_then(|amount| amount.parse::<u64>().ok()).expect(line)).sum()
}

fn collapsed(file: &Path, process: &Process) {
    let text = fs::read_to_string(file).expect("the stacks");
    assert_eq!(folded_sum(&text), process.bytes_allocated);
    assert!(text.lines().any(|line| line.starts_with("threads;") && line.contains(";work;takes;")), "{text}");
    for (what, amount) in [
        ("alloc-count", process.allocs + process.resizes),
        ("live-bytes", process.live_bytes),
        ("live-count", process.live_blocks),
        ("leak-bytes", process.live_bytes),
        ("peak-bytes", process.peak_bytes),
    ] {
        let folder = test_env::folder();
        let out = folder.path().join("file");
        assert_eq!(exported("collapsed", &["--what", what], &out).code(), 0);
        assert_eq!(folded_sum(&fs::read_to_string(&out).expect("the stacks")), amount, "{what}");
    }
}

fn svg(file: &Path, process: &Process) {
    let titles = says("python3", &[&"-c", &TITLES, &file]);
    let all = titles.lines().find(|title| title.starts_with("all (")).expect("the root");
    let figures: String = all.chars().filter(char::is_ascii_digit).collect();
    assert_eq!(figures, format!("{}100", process.bytes_allocated), "{all}");
    assert!(titles.lines().any(|title| title.starts_with("takes (")), "{titles}");
}

/// Titles of an SVG file, by a strict parser.
const TITLES: &str = "
import sys, xml.etree.ElementTree as tree
for title in tree.parse(sys.argv[1]).iter('{http://www.w3.org/2000/svg}title'): print(title.text)
";

fn items<'v>(value: &'v Value, names: &[&str]) -> &'v [Value] {
    let found = names.iter().fold(value, |value, name| &value[*name]);
    found.as_array().unwrap_or_else(|| panic!("{names:?}: {found}"))
}

/// What the schema of speedscope's files demands.
fn speedscope(file: &Path, process: &Process) {
    let file = json(file);
    assert_eq!(file["$schema"], "https://www.speedscope.app/file-format-schema.json");
    let frames = items(&file, &["shared", "frames"]);
    assert!(frames.iter().all(|frame| frame["name"].is_string()));
    let line = frames.iter().find(|frame| frame["name"] == "takes").expect("a function of the program");
    assert!(line["line"].as_u64().is_some() && line["file"].as_str().is_some_and(|file| file.ends_with("threads.c")));
    let mut sums = Vec::new();
    for profile in items(&file, &["profiles"]) {
        assert_eq!(profile["type"], "sampled");
        let (samples, weights) = (items(profile, &["samples"]), items(profile, &["weights"]));
        assert_eq!(samples.len(), weights.len());
        let places = samples.iter().flat_map(|sample| sample.as_array().expect("a stack"));
        assert!(
            places.clone().count() > 0 && places.into_iter().all(|at| (at.as_u64().unwrap() as usize) < frames.len())
        );
        let sum: u64 = weights.iter().filter_map(Value::as_u64).sum();
        assert_eq!(profile["endValue"].as_u64(), Some(sum));
        sums.push((profile["name"].as_str().unwrap().split(':').next().unwrap().to_string(), sum));
    }
    for (name, amount) in [
        ("alloc-bytes", process.bytes_allocated),
        ("live-bytes", process.live_bytes),
        ("peak-bytes", process.peak_bytes),
    ] {
        assert!(sums.contains(&(name.to_string(), amount)), "{name} {amount}: {sums:?}");
    }
}

/// The tables of a thread agree, and the profiler's way of finding what is retained gives what
/// lives.
fn firefox(file: &Path, process: &Process) {
    let file = json(file);
    let thread = &items(&file, &["threads"])[0];
    let strings = items(thread, &["stringArray"]);
    for (table, columns) in [
        ("stackTable", &["prefix", "frame"][..]),
        (
            "frameTable",
            &[
                "address",
                "inlineDepth",
                "category",
                "subcategory",
                "func",
                "nativeSymbol",
                "innerWindowID",
                "line",
                "column",
            ],
        ),
        ("funcTable", &["name", "isJS", "relevantForJS", "resource", "fileName", "lineNumber", "columnNumber"]),
        ("resourceTable", &["lib", "name", "host", "type"]),
        ("nativeAllocations", &["time", "weight", "stack", "memoryAddress", "threadId"]),
        ("samples", &["stack", "time"]),
    ] {
        let length = thread[table]["length"].as_u64().expect("a length") as usize;
        columns.iter().for_each(|column| assert_eq!(items(thread, &[table, column]).len(), length, "{table}.{column}"));
    }
    let within = |table: &str, column: &str, limit: usize| {
        let places = items(thread, &[table, column]).iter().filter_map(Value::as_i64).filter(|&place| place >= 0);
        assert!(places.into_iter().all(|place| (place as usize) < limit), "{table}.{column} has {limit}");
    };
    let length = |table: &str| thread[table]["length"].as_u64().unwrap() as usize;
    within("stackTable", "frame", length("frameTable"));
    within("frameTable", "func", length("funcTable"));
    within("funcTable", "name", strings.len());
    within("funcTable", "fileName", strings.len());
    within("funcTable", "resource", length("resourceTable"));
    within("resourceTable", "lib", items(&file, &["libs"]).len());
    within("nativeAllocations", "stack", length("stackTable"));
    for (at, prefix) in items(thread, &["stackTable", "prefix"]).iter().enumerate() {
        assert!(prefix.as_u64().is_none_or(|prefix| prefix < at as u64), "stack {at} before its caller {prefix}");
    }
    let (mut taken, mut retained) = (0, std::collections::HashMap::new());
    let mut before = 0.0;
    for at in 0..length("nativeAllocations") {
        let of = |column: &str| &items(thread, &["nativeAllocations", column])[at];
        let weight = of("weight").as_i64().unwrap();
        let time = of("time").as_f64().unwrap();
        assert!(time >= before, "{time} behind {before}");
        before = time;
        match weight > 0 {
            true => {
                taken += weight;
                assert!(retained.insert(of("memoryAddress").as_u64(), weight).is_none());
            }
            false => assert_eq!(retained.remove(&of("memoryAddress").as_u64()), Some(-weight)),
        }
    }
    assert_eq!(taken as u64, process.bytes_allocated);
    assert_eq!(retained.values().sum::<i64>() as u64, process.live_bytes);
    let live: i64 =
        items(&file, &["counters"])[0]["samples"]["count"].as_array().unwrap().iter().filter_map(Value::as_i64).sum();
    assert_eq!(live as u64, process.live_bytes);
}

fn dhat(file: &Path, process: &Process) {
    let client = test_env::root().join("tests/clients/dh_view.mjs");
    let viewer = ["/usr/libexec/valgrind", "/usr/lib/valgrind", "/usr/lib/x86_64-linux-gnu/valgrind"]
        .map(|folder| Path::new(folder).join("dh_view.js"));
    let viewer = viewer.iter().find(|path| path.is_file()).expect("valgrind's dh_view.js: run scripts/install-tools");
    let said: Value = serde_json::from_str(&says("node", &[&client, viewer, &file])).expect("the client's sums");
    let of = |name: &str| said[name].as_u64().unwrap_or_else(|| panic!("{name}: {said}"));
    assert_eq!([of("bytes"), of("blocks")], [process.bytes_allocated, process.allocs + process.resizes]);
    assert_eq!(
        [of("end"), of("end_blocks"), of("peak")],
        [process.live_bytes, process.live_blocks, process.peak_bytes]
    );
    let shown = said["shown"].as_str().expect("what it shows");
    assert!(shown.contains("takes (") && shown.contains("threads.c:"), "{shown}");
}

fn heaptrack(file: &Path, process: &Process) {
    let said = says("heaptrack_print", &[&"-f", &file]);
    let calls = process.allocs + process.resizes;
    assert!(said.contains(&format!("calls to allocation functions: {calls} ")), "{said}");
    let folder = test_env::folder();
    for (cost, amount) in [("allocations", calls), ("leaked", process.live_bytes), ("peak", process.peak_bytes)] {
        let out = folder.path().join(cost);
        says(
            "heaptrack_print",
            &[&"-f", &file, &"--disable-builtin-suppressions", &"--flamegraph-cost-type", &cost, &"-F", &out],
        );
        let text = fs::read_to_string(&out).expect("the stacks");
        let sum: u64 = text.lines().filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum();
        assert_eq!(sum, amount, "{cost}\n{text}");
        assert!(text.contains("takes"), "{text}");
    }
}

fn callgrind(file: &Path, process: &Process) {
    let said = says("callgrind_annotate", &[&"--show-percs=no", &file]);
    let head = said.lines().find(|line| line.starts_with("AllocBytes")).expect("the columns");
    let totals = said.lines().find(|line| line.ends_with("PROGRAM TOTALS")).expect("the totals");
    let of = |name: &str| {
        let at = head.split_whitespace().position(|found| found == name).expect(name);
        totals.split_whitespace().nth(at).expect(name).replace(',', "").parse::<u64>().expect(name)
    };
    assert_eq!(of("AllocBytes"), process.bytes_allocated);
    assert_eq!(of("AllocCount"), process.allocs + process.resizes);
    assert_eq!([of("LiveBytes"), of("PeakBytes")], [process.live_bytes, process.peak_bytes]);
    assert!(said.contains("own.h:own_malloc"), "{said}");
    let inclusive = says("callgrind_annotate", &[&"--show-percs=no", &"--inclusive=yes", &file]);
    let line = inclusive.lines().find(|line| line.contains("threads.c:work")).expect("a caller");
    let whole: u64 = line.split_whitespace().next().unwrap().replace(',', "").parse().unwrap();
    assert!(whole > process.bytes_allocated / 2 && whole <= process.bytes_allocated, "{line}");
}

fn massif(file: &Path, process: &Process) {
    let said = says("ms_print", &[&file]);
    let rows: Vec<u64> = said
        .lines()
        .filter_map(|line| {
            let cells: Vec<&str> = line.split_whitespace().collect();
            let numbers: Option<Vec<u64>> = cells.iter().map(|cell| cell.replace(',', "").parse().ok()).collect();
            numbers.filter(|numbers| numbers.len() == 6).map(|numbers| numbers[2])
        })
        .collect();
    assert_eq!(rows.iter().max(), Some(&process.peak_bytes), "{said}");
    assert_eq!(rows.last(), Some(&process.live_bytes), "{said}");
    assert!(said.contains("(peak)") && said.contains("takes ("), "{said}");
}

/// Sums of the columns of a table, by another reader.
const COLUMNS: &str = "
import csv, json, sys
sums = {}
for row in csv.DictReader(open(sys.argv[1])):
    for name, cell in row.items():
        if cell.isdigit(): sums[name] = sums.get(name, 0) + int(cell)
    kind = row.get('kind')
    if kind: sums[kind] = sums.get(kind, 0) + 1
print(json.dumps(sums))
";

fn csv(file: &Path, process: &Process) {
    let sums = |file: &Path| serde_json::from_str::<Value>(&says("python3", &[&"-c", &COLUMNS, &file])).expect("sums");
    let said = sums(file);
    assert_eq!(said["alloc_bytes"], process.bytes_allocated);
    assert_eq!(
        [&said["live_bytes"], &said["live_count"]],
        [process.live_bytes, process.live_blocks].map(Value::from).each_ref()
    );
    let folder = test_env::folder();
    let out: PathBuf = folder.path().join("events.csv");
    assert_eq!(exported("csv", &["--events", "--verify"], &out).code(), 0);
    let said = sums(&out);
    assert_eq!(
        [&said["alloc"], &said["resize"], &said["free"], &said["size"]],
        [process.allocs, process.resizes, process.frees, process.bytes_allocated].map(Value::from).each_ref()
    );
}

fn json_lines(file: &Path, process: &Process) {
    let text = fs::read_to_string(file).expect("the lines");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    assert_eq!(lines[0]["type"], "process");
    assert_eq!(lines[0]["bytes_allocated"], process.bytes_allocated);
    let of = |name: &str| {
        lines.iter().filter(|line| line["type"] == "stack").filter_map(|line| line[name].as_u64()).sum::<u64>()
    };
    assert_eq!(
        [of("alloc_bytes"), of("live_bytes"), of("peak_bytes")],
        [process.bytes_allocated, process.live_bytes, process.peak_bytes]
    );
}

/// Two recordings make a differential flame graph: what is wider now is red, what is narrower blue.
#[test]
fn two_recordings_make_a_difference() {
    let of = |rounds: &str| Program::new(target::c("threads")).args(["2", rounds]).recorded().success();
    let (before, after) = (of("100"), of("400"));
    let folder = test_env::folder();
    let out = folder.path().join("difference.svg");
    let words = [OsStr::new("export"), "--to".as_ref(), "svg".as_ref(), "-o".as_ref(), out.as_ref()];
    let said = heaptape(words.into_iter().chain([before.folder.as_os_str(), after.folder.as_os_str()]));
    assert_eq!(said.code(), 0, "{said}");
    let titles = says("python3", &[&"-c", &TITLES, &out]);
    let all = titles.lines().find(|title| title.starts_with("all (")).expect("the root");
    let figures: String = all.split(" bytes").next().unwrap().chars().filter(char::is_ascii_digit).collect();
    assert_eq!(figures, after.report().only("threads").bytes_allocated.to_string(), "{all}");
    assert!(titles.lines().any(|title| title.starts_with("own_realloc (") && title.contains('+')), "{titles}");
}

/// What the tools' own files say, read by `report`: the figures are those of the export, and of the
/// tool.
#[test]
fn what_was_exported_is_imported() {
    let process = &recording().1;
    for (to, name) in [
        ("pprof", "p.pb.gz"),
        ("heaptrack", "h.gz"),
        ("heaptrack", "h.zst"),
        ("heaptrack", "h"),
        ("dhat", "d.json"),
        ("massif", "m.out"),
    ] {
        let folder = test_env::folder();
        let out = folder.path().join(name);
        assert_eq!(exported(to, &[], &out).code(), 0);
        let said = heaptape(["report".as_ref(), "--json".as_ref(), out.as_os_str()]);
        assert_eq!(said.code(), 0, "{name}: {said}");
        let totals = serde_json::from_slice::<Value>(&said.stdout).expect("a report")["totals"].clone();
        let of = |field: &str| totals[field].as_u64().unwrap_or_else(|| panic!("{name}: {field}: {totals}"));
        assert_eq!(of("live_bytes"), process.live_bytes, "{name}");
        if to != "massif" {
            assert_eq!(of("bytes_allocated"), process.bytes_allocated, "{name}");
            assert_eq!(of("allocs"), process.allocs + process.resizes, "{name}");
            assert_eq!(of("live_blocks"), process.live_blocks, "{name}");
        }
        if to != "pprof" {
            assert_eq!(of("peak_bytes"), process.peak_bytes, "{name}");
        }
        // Massif counts no blocks, of which leaks consist.
        let word = if to == "massif" { "report" } else { "leaks" };
        let leaks = heaptape([word.as_ref(), "--json".as_ref(), out.as_os_str()]);
        assert!(leaks.text().contains("takes") && leaks.text().contains("own.h"), "{name}: {leaks}");
        // And exported again.
        let again = folder.path().join("again");
        let words = ["export", "--to", "collapsed", "--what", "live-bytes", "--verify", "-o"].map(OsStr::new);
        let said = heaptape(words.into_iter().chain([again.as_os_str(), out.as_os_str()]));
        assert_eq!(said.code(), 0, "{name}: {said}");
        assert_eq!(folded_sum(&fs::read_to_string(&again).expect("the stacks")), process.live_bytes, "{name}");
    }
}

/// Files that the tools made themselves of a program whose blocks are known.
#[test]
fn files_of_the_tools_themselves_are_read() {
    let program = Target::program("small.c").build();
    let folder = test_env::folder();
    let place = |name: &str| folder.path().join(name);
    let figures = |path: &Path| {
        let said = heaptape(["report".as_ref(), "--json".as_ref(), path.as_os_str()]);
        assert_eq!(said.code(), 0, "{said}");
        serde_json::from_slice::<Value>(&said.stdout).expect("a report")["totals"].clone()
    };
    let recorded = Program::new(&program).recorded();
    let truth = recorded.report().only("small").clone();
    let under = |words: &[&str]| drop(Command::new(words[0]).args(&words[1..]).arg(&program).output().expect(words[0]));
    let dhat = place("dhat.json");
    under(&["valgrind", "-q", "--tool=dhat", &format!("--dhat-out-file={}", dhat.display())]);
    let said = figures(&dhat);
    assert_eq!(
        [&said["bytes_allocated"], &said["allocs"]],
        [truth.bytes_allocated, truth.allocs].map(Value::from).each_ref(),
        "{said}"
    );
    assert_eq!(said["live_bytes"], truth.live_bytes);
    let massif = place("massif.out");
    under(&["valgrind", "-q", "--tool=massif", &format!("--massif-out-file={}", massif.display())]);
    assert_eq!(figures(&massif)["peak_bytes"], truth.peak_bytes);
    under(&["heaptrack", "-o", &place("heaptrack").display().to_string()]);
    let made =
        ["heaptrack.zst", "heaptrack.gz"].map(place).into_iter().find(|path| path.is_file()).expect("heaptrack's file");
    let said = figures(&made);
    // heaptrack also sees what the C++ library that it needs allocates for itself: 72 KiB in one
    // block.
    assert_eq!(said["live_bytes"], truth.live_bytes, "{said}");
    assert!(said["allocs"].as_u64().unwrap() - truth.allocs <= 1, "{said}");
}

/// A report about another tool's file says what it cannot answer, and why.
#[test]
fn what_needs_events_says_so() {
    let folder = test_env::folder();
    let out = folder.path().join("p.pb.gz");
    assert_eq!(exported("pprof", &[], &out).code(), 0);
    for words in [&["timeline"][..], &["lifetimes"], &["export", "--to", "heaptrack"], &["export", "--to", "mptl"]] {
        let said = heaptape(words.iter().map(OsStr::new).chain([out.as_os_str()]));
        assert_eq!(said.code(), 2, "{words:?}: {said}");
        assert!(!said.stderr.is_empty(), "{words:?}");
    }
}
