//! Every export of one real recording is opened by its tool, whose sums must be those of `heaptape
//! report --json`. If the tool is a web page, the format of that page is checked. A new export gets
//! a row in [`client`].

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
        let recording = Program::new(target::c("threads")).args(["4", "500"]).recorded().success().complete();
        let process = recording.report().only("threads").clone();
        assert!(process.live_bytes > 0 && process.resizes > 0, "{process:#?}");
        (recording, process)
    })
}

/// Returns the output of a tool.
#[track_caller]
fn says(tool: &str, arguments: &[&dyn AsRef<OsStr>]) -> String {
    let mut command = Command::new(test_env::need(tool));
    command.args(arguments.iter().map(|argument| argument.as_ref()));
    let output = command.env("NO_COLOR", "1").output().unwrap_or_else(|error| panic!("{tool}: {error}"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{tool}: {}\n{error}", output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[track_caller]
fn exported(to: &str, more: &[&str], out: &Path) -> Outcome {
    let mut arguments: Vec<&OsStr> = ["export", "--to", to, "-o"].map(OsStr::new).to_vec();
    arguments.push(out.as_os_str());
    arguments.extend(more.iter().map(OsStr::new));
    arguments.push(recording().0.folder.as_os_str());
    heaptape(arguments)
}

fn json(path: &Path) -> Value {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The sums of each export, as its exporter reads them back, equal the recording.
#[test]
fn every_export_conserves_its_sums() {
    for exporter in EXPORTERS.iter().filter(|exporter| !matches!(exporter.name(), "parquet")) {
        let folder = test_env::folder();
        let is_read_back = exporter.is_read_back();
        let verify: &[&str] = if is_read_back { &["--verify"] } else { &[] };
        let out = folder.path().join(exporter.name());
        let output = exported(exporter.name(), verify, &out);
        assert_eq!(output.code(), 0, "{}: {output}", exporter.name());
        let proofs = output.error().matches("conserved").count();
        assert!(proofs > 0 || !is_read_back, "{}: {output}", exporter.name());
        assert_eq!(out.is_dir(), exporter.needs().shape == Shape::Folder, "{}", exporter.name());
    }
}

/// Each exporter's file is read by its client.
#[test]
fn every_export_is_read_by_its_tool() {
    let process = &recording().1;
    for exporter in EXPORTERS {
        let Some(client) = client(exporter.name()) else { continue };
        let folder = test_env::folder();
        let out = folder.path().join(format!("file.{}", exporter.extension()));
        let output = exported(exporter.name(), &[], &out);
        assert_eq!(output.code(), 0, "{}: {output}", exporter.name());
        client(&out, process);
    }
}

type Client = fn(&Path, &Process);

/// Returns the check of a format, or none for formats with tests of their own.
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
        "perfetto" => perfetto,
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

/// Checks the schema of speedscope's files.
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
        let indexes = samples.iter().flat_map(|sample| sample.as_array().expect("a stack"));
        assert!(
            indexes.clone().count() > 0 && indexes.into_iter().all(|at| (at.as_u64().unwrap() as usize) < frames.len())
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

/// The tables of a thread agree, and the allocations that the profiler finds retained are the live
/// ones.
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
        let indexes = items(thread, &[table, column]).iter().filter_map(Value::as_i64).filter(|&index| index >= 0);
        assert!(indexes.into_iter().all(|index| (index as usize) < limit), "{table}.{column} has {limit}");
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
        assert!(time >= before, "{time} after {before}");
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
    // Whether there is a snapshot of a program that ends so soon is a matter of time.
    let names = items(&file, &["counters"]).iter().map(|counter| counter["name"].as_str().unwrap_or_default());
    let names: Vec<&str> = names.filter(|name| *name != "resident memory").collect();
    assert_eq!(names, ["malloc", "mapped by the program"]);
    let live: i64 =
        items(&file, &["counters"])[0]["samples"]["count"].as_array().unwrap().iter().filter_map(Value::as_i64).sum();
    assert_eq!(live as u64, process.live_bytes);
}

fn dhat(file: &Path, process: &Process) {
    let client = test_env::root().join("tests/clients/dh_view.mjs");
    let viewer =
        ["/usr/libexec", "/usr/lib", target::LIBRARIES].map(|folder| Path::new(folder).join("valgrind/dh_view.js"));
    let viewer = viewer.iter().find(|path| path.is_file()).expect("valgrind's dh_view.js: run scripts/install-tools");
    let answer: Value = serde_json::from_str(&says("node", &[&client, viewer, &file])).expect("the client's sums");
    let of = |name: &str| answer[name].as_u64().unwrap_or_else(|| panic!("{name}: {answer}"));
    assert_eq!([of("bytes"), of("blocks")], [process.bytes_allocated, process.allocs + process.resizes]);
    assert_eq!(
        [of("end"), of("end_blocks"), of("peak")],
        [process.live_bytes, process.live_blocks, process.peak_bytes]
    );
    let shown = answer["shown"].as_str().expect("what it shows");
    assert!(shown.contains("takes (") && shown.contains("threads.c:"), "{shown}");
}

fn heaptrack(file: &Path, process: &Process) {
    let output = says("heaptrack_print", &[&"-f", &file]);
    let calls = process.allocs + process.resizes;
    assert!(output.contains(&format!("calls to allocation functions: {calls} ")), "{output}");
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
    let output = says("callgrind_annotate", &[&"--show-percs=no", &file]);
    let head = output.lines().find(|line| line.starts_with("AllocBytes")).expect("the columns");
    let totals = output.lines().find(|line| line.ends_with("PROGRAM TOTALS")).expect("the totals");
    let of = |name: &str| {
        let at = head.split_whitespace().position(|found| found == name).expect(name);
        totals.split_whitespace().nth(at).expect(name).replace(',', "").parse::<u64>().expect(name)
    };
    assert_eq!(of("AllocBytes"), process.bytes_allocated);
    assert_eq!(of("AllocCount"), process.allocs + process.resizes);
    assert_eq!([of("LiveBytes"), of("PeakBytes")], [process.live_bytes, process.peak_bytes]);
    assert!(output.contains("own.h:own_malloc"), "{output}");
    let inclusive = says("callgrind_annotate", &[&"--show-percs=no", &"--inclusive=yes", &file]);
    let line = inclusive.lines().find(|line| line.contains("threads.c:work")).expect("a caller");
    let whole: u64 = line.split_whitespace().next().unwrap().replace(',', "").parse().unwrap();
    assert!(whole > process.bytes_allocated / 2 && whole <= process.bytes_allocated, "{line}");
}

/// The sums are read by the rules of protocol buffers, and by Perfetto's own classes where they are
/// installed.
fn perfetto(file: &Path, process: &Process) {
    let reader = test_env::programs().join("../clients/read_perfetto.py");
    let read: Value = serde_json::from_str(&says("python3", &[&reader, &file])).expect("JSON");
    let own = &read["processes"][process.pid.to_string()];
    let freed = process.bytes_allocated - process.live_bytes;
    assert_eq!((&own["allocated"], &own["freed"]), (&process.bytes_allocated.into(), &freed.into()), "{read:#}");
    assert_eq!(own["allocs"], process.allocs + process.resizes);
    assert_eq!(read["counters"]["heap: live bytes"]["last"], process.live_bytes, "{read:#}");
    assert_eq!(read["counters"]["heap: live bytes"]["most"], process.peak_bytes, "{read:#}");
    assert_eq!(read["counters"]["heap: live blocks"]["last"], process.live_blocks, "{read:#}");
    // The program maps the file of its own counts.
    assert!(read["counters"]["memory: mapped by the program"]["most"].as_u64() >= Some(4096), "{read:#}");
    assert!(read["profiles"].as_u64() >= Some(1) && read["in_order"] == true, "{read:#}");
    let stacks = own["stacks"].as_array().expect("stacks");
    let is_below = |stack: &Value| {
        let names: Vec<&str> = stack.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        names.windows(2).any(|pair| pair == ["work", "takes"])
    };
    assert!(stacks.iter().any(is_below), "the outermost frame comes first: {stacks:#?}");
}

fn massif(file: &Path, process: &Process) {
    let output = says("ms_print", &[&file]);
    let rows: Vec<u64> = output
        .lines()
        .filter_map(|line| {
            let cells: Vec<&str> = line.split_whitespace().collect();
            let numbers: Option<Vec<u64>> = cells.iter().map(|cell| cell.replace(',', "").parse().ok()).collect();
            numbers.filter(|numbers| numbers.len() == 6).map(|numbers| numbers[2])
        })
        .collect();
    assert_eq!(rows.iter().max(), Some(&process.peak_bytes), "{output}");
    assert_eq!(rows.last(), Some(&process.live_bytes), "{output}");
    assert!(output.contains("(peak)") && output.contains("takes ("), "{output}");
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
    if kind == 'free' and int(row['address'], 16) > 0: sums['addressed'] = sums.get('addressed', 0) + 1
print(json.dumps(sums))
";

fn csv(file: &Path, process: &Process) {
    let sums = |file: &Path| serde_json::from_str::<Value>(&says("python3", &[&"-c", &COLUMNS, &file])).expect("sums");
    let answer = sums(file);
    assert_eq!(answer["alloc_bytes"], process.bytes_allocated);
    assert_eq!(
        [&answer["live_bytes"], &answer["live_count"]],
        [process.live_bytes, process.live_blocks].map(Value::from).each_ref()
    );
    let folder = test_env::folder();
    let out: PathBuf = folder.path().join("events.csv");
    assert_eq!(exported("csv", &["--events", "--verify"], &out).code(), 0);
    let answer = sums(&out);
    assert_eq!(
        [&answer["alloc"], &answer["resize"], &answer["free"], &answer["addressed"], &answer["size"]],
        [process.allocs, process.resizes, process.frees, process.frees, process.bytes_allocated]
            .map(Value::from)
            .each_ref()
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
fn two_recordings_make_a_differential_flame_graph() {
    let of = |rounds: &str| Program::new(target::c("threads")).args(["2", rounds]).recorded().success();
    let (before, after) = (of("100"), of("400"));
    let folder = test_env::folder();
    let out = folder.path().join("difference.svg");
    let arguments = [OsStr::new("export"), "--to".as_ref(), "svg".as_ref(), "-o".as_ref(), out.as_ref()];
    let output = heaptape(arguments.into_iter().chain([before.folder.as_os_str(), after.folder.as_os_str()]));
    assert_eq!(output.code(), 0, "{output}");
    let titles = says("python3", &[&"-c", &TITLES, &out]);
    let all = titles.lines().find(|title| title.starts_with("all (")).expect("the root");
    let figures: String = all.split(" bytes").next().unwrap().chars().filter(char::is_ascii_digit).collect();
    assert_eq!(figures, after.report().only("threads").bytes_allocated.to_string(), "{all}");
    assert!(titles.lines().any(|title| title.starts_with("own_realloc (") && title.contains('+')), "{titles}");
}

/// `report` of an exported file has the sums of the recording.
#[test]
fn exported_files_are_imported_with_equal_sums() {
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
        let output = heaptape(["report".as_ref(), "--json".as_ref(), out.as_os_str()]);
        assert_eq!(output.code(), 0, "{name}: {output}");
        let totals = serde_json::from_slice::<Value>(&output.stdout).expect("a report")["totals"].clone();
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
        let arguments = ["export", "--to", "collapsed", "--what", "live-bytes", "--verify", "-o"].map(OsStr::new);
        let output = heaptape(arguments.into_iter().chain([again.as_os_str(), out.as_os_str()]));
        assert_eq!(output.code(), 0, "{name}: {output}");
        assert_eq!(folded_sum(&fs::read_to_string(&again).expect("the stacks")), process.live_bytes, "{name}");
    }
}

/// Files that the tools made themselves of a program whose blocks are known.
#[test]
fn files_of_other_tools_are_imported() {
    let program = Target::program("small.c").build();
    let folder = test_env::folder();
    let path_of = |name: &str| folder.path().join(name);
    let figures = |path: &Path| {
        let output = heaptape(["report".as_ref(), "--json".as_ref(), path.as_os_str()]);
        assert_eq!(output.code(), 0, "{output}");
        serde_json::from_slice::<Value>(&output.stdout).expect("a report")["totals"].clone()
    };
    let recorded = Program::new(&program).recorded();
    let truth = recorded.report().only("small").clone();
    let under = |arguments: &[&str]| {
        drop(Command::new(arguments[0]).args(&arguments[1..]).arg(&program).output().expect(arguments[0]))
    };
    let dhat = path_of("dhat.json");
    under(&["valgrind", "-q", "--tool=dhat", &format!("--dhat-out-file={}", dhat.display())]);
    let answer = figures(&dhat);
    assert_eq!(
        [&answer["bytes_allocated"], &answer["allocs"]],
        [truth.bytes_allocated, truth.allocs].map(Value::from).each_ref(),
        "{answer}"
    );
    assert_eq!(answer["live_bytes"], truth.live_bytes);
    let massif = path_of("massif.out");
    under(&["valgrind", "-q", "--tool=massif", &format!("--massif-out-file={}", massif.display())]);
    assert_eq!(figures(&massif)["peak_bytes"], truth.peak_bytes);
    under(&["heaptrack", "-o", &path_of("heaptrack").display().to_string()]);
    let made = ["heaptrack.zst", "heaptrack.gz"]
        .map(path_of)
        .into_iter()
        .find(|path| path.is_file())
        .expect("heaptrack's file");
    let answer = figures(&made);
    // heaptrack also sees what the C++ library that it needs allocates for itself: 72 KiB in one
    // block.
    assert_eq!(answer["live_bytes"], truth.live_bytes, "{answer}");
    assert!(answer["allocs"].as_u64().unwrap() - truth.allocs <= 1, "{answer}");
}

/// A command that needs events refuses a file of sums, and states why.
#[test]
fn commands_that_need_events_refuse_sums() {
    let folder = test_env::folder();
    let out = folder.path().join("p.pb.gz");
    assert_eq!(exported("pprof", &[], &out).code(), 0);
    for arguments in [&["timeline"][..], &["lifetimes"], &["export", "--to", "heaptrack"], &["export", "--to", "mptl"]]
    {
        let output = heaptape(arguments.iter().map(OsStr::new).chain([out.as_os_str()]));
        assert_eq!(output.code(), 2, "{arguments:?}: {output}");
        assert!(!output.stderr.is_empty(), "{arguments:?}");
    }
}

/// What dcpilabel and dcpi2ps did.
#[test]
fn dcpi_profiles_have_the_label_and_are_drawn() {
    let recording = Program::new("ls").option("--label").option("night").recorded().success();
    let folder = test_env::folder();
    let out = folder.path().join("dcpi").display().to_string();
    recording.heaptape(&["export", "--format", "dcpi", "-o", &out]).success();
    let text = heaptape(["dcpicat", &out]).success().text();
    assert!(text.lines().any(|line| line.starts_with("label ") && line.ends_with(" night")), "{text}");
    let profiles = fs::read_dir(&out).expect("the profiles").flatten().map(|entry| entry.path());
    let profiles: Vec<String> = profiles.map(|path| path.display().to_string()).collect();
    let picture = folder.path().join("out.svg").display().to_string();
    let arguments = ["export", "--format", "svg", "--what", "alloc-count", "-o", &picture];
    heaptape(arguments.into_iter().chain(profiles.iter().map(String::as_str))).success();
    let drawn = fs::read_to_string(&picture).expect("a picture");
    assert!(drawn.contains("alloc-count") && drawn.contains("<title>ls ("), "{drawn}");
}
