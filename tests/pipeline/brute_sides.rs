//! `diff` and `free-sites` of a million events: every row with its numbers, names and position
//! equals a plain replay.

use heaptape_formats::mtrc::layout::{ALLOC, FREE, RESIZE};
use heaptape_tests::plain::{self, Frame, PlainEvent};
use heaptape_tests::recording::heaptape;
use heaptape_tests::{Program, Recording, Target};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

/// Rounds of the program, each of which makes one or two events.
const ROUNDS: &str = "560000";

fn recorded(seed: &str, favourite: &str, threads: u32, arguments: &[&str]) -> (PathBuf, Recording) {
    let program = Target::program("shares.c").build();
    let rounds = (ROUNDS.parse::<u32>().expect("a number") / threads).to_string();
    let run = Program::new(&program).args([seed, &rounds, favourite, &threads.to_string()]);
    let run = arguments.iter().fold(run, |run, word| run.option(word));
    (program, run.recorded().success().complete())
}

fn process_folder(recording: &Recording) -> PathBuf {
    recording.files("events.tape").pop().and_then(|file| file.parent().map(Path::to_path_buf)).expect("one process")
}

fn ask(arguments: &[&str], folders: &[&Path]) -> Value {
    let output =
        heaptape(arguments.iter().map(std::ffi::OsStr::new).chain(folders.iter().map(|folder| folder.as_os_str())));
    serde_json::from_slice(&output.success().stdout).expect("JSON")
}

/// Live bytes, live blocks, bytes, allocations and resizes.
type Numbers = [f64; 4];

/// Returns the numbers of each line of each function, and the peak.
fn side(events: &[PlainEvent], names: &HashMap<u32, Vec<Frame>>) -> (BTreeMap<String, BTreeMap<u32, Numbers>>, f64) {
    let mut live: HashMap<u64, (u64, u32)> = HashMap::new();
    let mut sites: HashMap<u32, Numbers> = HashMap::new();
    let (mut now, mut peak) = (0, 0);
    for event in events {
        let old = match event.tag {
            FREE => live.remove(&event.index),
            _ => live.insert(event.index, (event.size, event.site)),
        };
        assert_eq!(old.is_some(), event.tag != ALLOC);
        if let Some((size, site)) = old {
            let row = sites.get_mut(&site).expect("it allocated");
            (row[0], row[1]) = (row[0] - size as f64, row[1] - 1.0);
            now -= size;
        }
        if event.tag != FREE {
            let size = event.size as f64;
            let row = sites.entry(event.site).or_default();
            *row = [row[0] + size, row[1] + 1.0, row[2] + size, row[3] + 1.0];
            now += event.size;
        }
        peak = peak.max(now);
    }
    let mut functions: BTreeMap<String, BTreeMap<u32, Numbers>> = BTreeMap::new();
    for (site, numbers) in sites {
        let (function, line) = names[&site].first().expect("the program's own").clone();
        let row = functions.entry(function).or_default().entry(line).or_default();
        row.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
    }
    (functions, peak as f64)
}

/// A row of the difference: function, line, before, after.
type Row = (String, u32, Numbers, Numbers);

type Side = BTreeMap<String, BTreeMap<u32, Numbers>>;

/// Returns all rows, in order of the functions. Lines that only one side has are paired if both
/// sides have such lines.
fn rows(a: &Side, b: &Side) -> Vec<Row> {
    let (mut rows, none) = (Vec::new(), BTreeMap::new());
    for function in a.keys().chain(b.keys()).collect::<BTreeSet<_>>() {
        let (a, b) = (a.get(function).unwrap_or(&none), b.get(function).unwrap_or(&none));
        let only_a = a.keys().filter(|line| !b.contains_key(line)).count();
        let only_b = b.keys().filter(|line| !a.contains_key(line)).count();
        let moved = only_a > 0 && only_b > 0;
        assert!(!moved || a.len() == b.len(), "lines of each function can be paired");
        let row = |from: &u32, to: &u32| {
            let (before, after) = (a.get(from).copied().unwrap_or_default(), b.get(to).copied().unwrap_or_default());
            (function.clone(), if b.contains_key(to) { *to } else { *from }, before, after)
        };
        match moved {
            true => rows.extend(a.keys().zip(b.keys()).map(|(from, to)| row(from, to))),
            false => {
                rows.extend(a.keys().chain(b.keys()).collect::<BTreeSet<_>>().into_iter().map(|line| row(line, line)))
            }
        }
    }
    rows
}

const FIELDS: [&str; 4] = ["live_bytes", "live_blocks", "bytes", "allocs"];

fn numbers(of: &Value) -> Numbers {
    FIELDS.map(|field| of[field].as_f64().expect("a number"))
}

/// Compares an answer with all rows: totals, noise, classes, order, every number.
fn same(answer: &Value, (a, peak_a): &(Side, f64), (b, peak_b): &(Side, f64)) -> usize {
    let rows = rows(a, b);
    let sum = |of: &dyn Fn(&Row) -> Numbers| {
        rows.iter().map(of).fold([0.0; 4], |sum, one| std::array::from_fn(|at| sum[at] + one[at]))
    };
    let delta = |row: &Row| -> Numbers { std::array::from_fn(|at| row.3[at] - row.2[at]) };
    let (total_a, total_b) = (sum(&|row| row.2), sum(&|row| row.3));
    assert_eq!((numbers(&answer["a"]), numbers(&answer["b"])), (total_a, total_b), "the sides");
    assert_eq!(answer["peak_bytes"], serde_json::json!([peak_a, peak_b]));
    assert_eq!(answer["scale"], 1.0);
    let is_quiet = |row: &&Row| {
        (0..4).all(|at| {
            let change = delta(row)[at].abs();
            change <= 0.01 * row.2[at].max(row.3[at]) || change <= 0.001 * total_a[at].max(total_b[at])
        })
    };
    let (quiet, mut loud): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(is_quiet);
    assert_eq!(answer["quiet_sites"], quiet.len());
    let quiet = quiet.iter().map(|row| delta(row));
    let quiet = quiet.fold([0.0; 4], |sum, one| std::array::from_fn(|at| sum[at] + one[at]));
    assert_eq!(numbers(&answer["quiet"]), quiet);
    let range = |row: &Row| {
        let of = |at: usize| match row.2[at] + row.3[at] {
            0.0 => 0.0,
            both => delta(row)[at].abs() / both,
        };
        of(0).max(of(2))
    };
    // By live bytes, then by bytes and number of allocations.
    let key = |row: &Row| [0, 2, 3].map(|at| delta(row)[at].abs());
    loud.sort_by(|x, y| key(y).partial_cmp(&key(x)).expect("numbers"));
    let found = answer["changes"].as_array().expect("a list");
    assert_eq!(found.len(), loud.len());
    for (found, row) in found.iter().zip(&loud) {
        let wanted = match (row.2, row.3) {
            ([0.0, 0.0, 0.0, 0.0], _) => "new",
            (_, [0.0, 0.0, 0.0, 0.0]) => "gone",
            _ => "changed",
        };
        assert_eq!((&found["status"], &found["functions"]), (&wanted.into(), &serde_json::json!([row.0])), "{row:?}");
        // Written and parsed like the answer, since the parser may be off by the last bit.
        let range: Value = serde_json::from_str(&serde_json::json!(range(row)).to_string()).expect("a number");
        assert_eq!((&found["line"], &found["range"]), (&row.1.into(), &range), "{row:?}");
        let all = ["a", "b", "delta"].map(|part| numbers(&found[part]));
        assert_eq!(all, [row.2, row.3, delta(row)], "{row:?}");
    }
    loud.len()
}

#[test]
fn diff_of_runs_and_points_in_time_equals_a_plain_replay() {
    let (program, first) = recorded("1", "1", 1, &[]);
    let (_, second) = recorded("2", "2", 1, &[]);
    let read = |recording: &Recording| {
        (plain::events(&process_folder(recording)), plain::names(&process_folder(recording), &program))
    };
    let ((events, names), (others, other_names)) = (read(&first), read(&second));
    assert!(events.len() > 1_000_000 && others.len() > 1_000_000);
    let (a, b) = (side(&events, &names), side(&others, &other_names));
    let answer = ask(&["diff", "--json"], &[&first.folder, &second.folder]);
    assert!(same(&answer, &a, &b) >= 5, "new ones, gone ones, changed ones");
    let statuses = answer["changes"].as_array().expect("a list").iter().map(|change| change["status"].clone());
    assert_eq!(statuses.collect::<std::collections::HashSet<_>>().len(), 3);
    let answer = ask(&["diff", "--json"], &[&first.folder, &first.folder]);
    assert_eq!(same(&answer, &a, &a), 0);
    for (from, to) in [(700_000, 730_001), (1, 2), (12_345, 1_000_000)] {
        let answer = ask(&["diff", "--json", "--from", &from.to_string(), "--to", &to.to_string()], &[&first.folder]);
        same(&answer, &side(&events[..from], &names), &side(&events[..to], &names));
    }
}

#[test]
fn free_sites_across_threads_equal_a_plain_replay() {
    let (program, recording) = recorded("3", "1", 4, &["--free-stacks"]);
    let (events, names) =
        (plain::events(&process_folder(&recording)), plain::names(&process_folder(&recording), &program));
    assert!(events.len() > 1_000_000);
    for (arguments, range) in
        [(&[][..], 0..events.len()), (&["--from", "400000", "--to", "900001"][..], 400_000..900_001)]
    {
        // Index -> size, site, thread of the allocation or latest resize.
        let mut live: HashMap<u64, (u64, u32, u64)> = HashMap::new();
        // Site of the free -> site of the allocation -> blocks, bytes, blocks of other threads.
        let mut pairs: BTreeMap<u32, BTreeMap<u32, [u64; 3]>> = BTreeMap::new();
        let mut unknown = 0;
        for event in &events[range] {
            if event.tag == RESIZE || event.tag == ALLOC {
                live.insert(event.index, (event.size, event.site, event.thread));
                continue;
            }
            let old = live.remove(&event.index);
            unknown += u64::from(event.site == 0);
            if let Some((size, from, thread)) = old
                && event.site != 0
            {
                let row = pairs.entry(event.site).or_default().entry(from).or_default();
                *row = [row[0] + 1, row[1] + size, row[2] + u64::from(thread != event.thread)];
            }
        }
        // By the three innermost functions: the numbers, and the site that freed most.
        let mut groups: BTreeMap<Vec<&str>, ([u64; 3], u64, u32)> = BTreeMap::new();
        for (&at, from) in &pairs {
            let sum = from.values().fold([0; 3], |sum, row| [sum[0] + row[0], sum[1] + row[1], sum[2] + row[2]]);
            let key = names[&at].iter().take(3).map(|(function, _)| function.as_str()).collect();
            let (all, most, site) = groups.entry(key).or_default();
            all.iter_mut().zip(sum).for_each(|(all, one)| *all += one);
            if sum[0] > *most {
                (*most, *site) = (sum[0], at);
            }
        }
        let mut wanted: Vec<_> = groups.into_values().collect();
        wanted.sort_by_key(|&(numbers, _, site)| (std::cmp::Reverse(numbers[0]), site));
        let answer = ask(&[&["free-sites", "--json", "--top", "1000"][..], arguments].concat(), &[&recording.folder]);
        let process = &answer["processes"][0];
        assert_eq!(process["unknown"], unknown);
        let found = process["sites"].as_array().expect("a list");
        assert!(found.len() >= 2 && found.len() == wanted.len(), "{found:?}");
        for (found, (numbers, _, site)) in found.iter().zip(wanted) {
            let of =
                ["blocks", "bytes", "blocks_of_other_threads"].map(|field| found[field].as_u64().expect("a number"));
            assert_eq!(of, numbers, "{found}");
            assert!(numbers[2] > 0, "threads free blocks of each other");
            let most = pairs[&site].iter().map(|(from, row)| (row[0], std::cmp::Reverse(*from))).max().expect("a pair");
            assert_eq!(found["mostly_blocks"], most.0);
            let (function, line) = &names[&most.1.0][0];
            let caller = names[&most.1.0].get(1).map_or(String::new(), |(function, _)| format!(" < {function}"));
            assert_eq!(found["mostly_from"], format!("{function} shares.c:{line}{caller}"));
            let (function, line) = &names[&site][0];
            let frame = found["stack"].as_array().expect("a list").iter().find(|frame| frame["program"] == true);
            let frame = frame.expect("a frame of the program");
            assert_eq!((&frame["function"], &frame["line"]), (&function.as_str().into(), &(*line).into()));
        }
    }
}
