//! `diff` and `free-sites` of a million events: every row, its numbers, names and place are those
//! of a plain replay.

use heaptape_formats::mtrc::layout::{ALLOC, FREE, RESIZE};
use heaptape_tests::plain::{self, Frame, Happened};
use heaptape_tests::recording::heaptape;
use heaptape_tests::{Program, Recording, Target};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

/// Events of each recording, about: a round of the program makes two, or one.
const ROUNDS: &str = "560000";

fn recorded(seed: &str, favourite: &str, threads: u32, words: &[&str]) -> (PathBuf, Recording) {
    let program = Target::program("shares.c").build();
    let rounds = (ROUNDS.parse::<u32>().expect("a number") / threads).to_string();
    let run = Program::new(&program).args([seed, &rounds, favourite, &threads.to_string()]);
    let run = words.iter().fold(run, |run, word| run.option(word));
    (program, run.recorded().success().whole())
}

fn image(recording: &Recording) -> PathBuf {
    recording.files("events.tape").pop().and_then(|file| file.parent().map(Path::to_path_buf)).expect("one image")
}

fn ask(words: &[&str], folders: &[&Path]) -> Value {
    let said = heaptape(words.iter().map(std::ffi::OsStr::new).chain(folders.iter().map(|folder| folder.as_os_str())));
    serde_json::from_slice(&said.success().stdout).expect("JSON")
}

/// Live bytes, live blocks, bytes, allocations and resizes.
type Numbers = [f64; 4];

/// Function -> line -> numbers; and the peak.
fn side(events: &[Happened], names: &HashMap<u32, Vec<Frame>>) -> (BTreeMap<String, BTreeMap<u32, Numbers>>, f64) {
    let mut live: HashMap<u64, (u64, u32)> = HashMap::new();
    let mut sites: HashMap<u32, Numbers> = HashMap::new();
    let (mut now, mut peak) = (0, 0);
    for event in events {
        let old = match event.letter {
            FREE => live.remove(&event.index),
            _ => live.insert(event.index, (event.size, event.site)),
        };
        assert_eq!(old.is_some(), event.letter != ALLOC);
        if let Some((size, site)) = old {
            let row = sites.get_mut(&site).expect("it allocated");
            (row[0], row[1]) = (row[0] - size as f64, row[1] - 1.0);
            now -= size;
        }
        if event.letter != FREE {
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

/// All rows, in order of the functions; a line that one side alone has is another's where both have
/// one such.
fn rows(a: &Side, b: &Side) -> Vec<Row> {
    let (mut rows, none) = (Vec::new(), BTreeMap::new());
    for function in a.keys().chain(b.keys()).collect::<BTreeSet<_>>() {
        let (a, b) = (a.get(function).unwrap_or(&none), b.get(function).unwrap_or(&none));
        let only_a = a.keys().filter(|line| !b.contains_key(line)).count();
        let only_b = b.keys().filter(|line| !a.contains_key(line)).count();
        let moved = only_a > 0 && only_b > 0;
        assert!(!moved || a.len() == b.len(), "the program has no function of which nobody can tell");
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

/// The answer against all rows: totals, noise, classes, order, every number.
fn same(said: &Value, (a, peak_a): &(Side, f64), (b, peak_b): &(Side, f64)) -> usize {
    let rows = rows(a, b);
    let sum = |of: &dyn Fn(&Row) -> Numbers| {
        rows.iter().map(of).fold([0.0; 4], |sum, one| std::array::from_fn(|at| sum[at] + one[at]))
    };
    let delta = |row: &Row| -> Numbers { std::array::from_fn(|at| row.3[at] - row.2[at]) };
    let (whole_a, whole_b) = (sum(&|row| row.2), sum(&|row| row.3));
    assert_eq!((numbers(&said["a"]), numbers(&said["b"])), (whole_a, whole_b), "the sides");
    assert_eq!(said["peak_bytes"], serde_json::json!([peak_a, peak_b]));
    assert_eq!(said["scale"], 1.0);
    let is_quiet = |row: &&Row| {
        (0..4).all(|at| {
            let change = delta(row)[at].abs();
            change <= 0.01 * row.2[at].max(row.3[at]) || change <= 0.001 * whole_a[at].max(whole_b[at])
        })
    };
    let (quiet, mut loud): (Vec<&Row>, Vec<&Row>) = rows.iter().partition(is_quiet);
    assert_eq!(said["quiet_sites"], quiet.len());
    let quiet = quiet.iter().map(|row| delta(row));
    let quiet = quiet.fold([0.0; 4], |sum, one| std::array::from_fn(|at| sum[at] + one[at]));
    assert_eq!(numbers(&said["quiet"]), quiet);
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
    let found = said["changes"].as_array().expect("a list");
    assert_eq!(found.len(), loud.len());
    for (found, row) in found.iter().zip(&loud) {
        let wanted = match (row.2, row.3) {
            ([0.0, 0.0, 0.0, 0.0], _) => "new",
            (_, [0.0, 0.0, 0.0, 0.0]) => "gone",
            _ => "changed",
        };
        assert_eq!((&found["status"], &found["functions"]), (&wanted.into(), &serde_json::json!([row.0])), "{row:?}");
        // Written and read as the answer was: the reader is right to the last bit but one.
        let range: Value = serde_json::from_str(&serde_json::json!(range(row)).to_string()).expect("a number");
        assert_eq!((&found["line"], &found["range"]), (&row.1.into(), &range), "{row:?}");
        let all = ["a", "b", "delta"].map(|part| numbers(&found[part]));
        assert_eq!(all, [row.2, row.3, delta(row)], "{row:?}");
    }
    loud.len()
}

#[test]
fn a_diff_of_two_runs_and_of_two_moments() {
    let (program, first) = recorded("1", "1", 1, &[]);
    let (_, second) = recorded("2", "2", 1, &[]);
    let read = |recording: &Recording| (plain::events(&image(recording)), plain::names(&image(recording), &program));
    let ((events, names), (others, other_names)) = (read(&first), read(&second));
    assert!(events.len() > 1_000_000 && others.len() > 1_000_000);
    let (a, b) = (side(&events, &names), side(&others, &other_names));
    let said = ask(&["diff", "--json"], &[&first.folder, &second.folder]);
    assert!(same(&said, &a, &b) >= 5, "new ones, gone ones, changed ones");
    let statuses = said["changes"].as_array().expect("a list").iter().map(|change| change["status"].clone());
    assert_eq!(statuses.collect::<std::collections::HashSet<_>>().len(), 3);
    let said = ask(&["diff", "--json"], &[&first.folder, &first.folder]);
    assert_eq!(same(&said, &a, &a), 0);
    for (from, to) in [(700_000, 730_001), (1, 2), (12_345, 1_000_000)] {
        let said = ask(&["diff", "--json", "--from", &from.to_string(), "--to", &to.to_string()], &[&first.folder]);
        same(&said, &side(&events[..from], &names), &side(&events[..to], &names));
    }
}

#[test]
fn free_sites_of_threads_that_free_each_others_blocks() {
    let (program, recording) = recorded("3", "1", 4, &["--free-stacks"]);
    let (events, names) = (plain::events(&image(&recording)), plain::names(&image(&recording), &program));
    assert!(events.len() > 1_000_000);
    for (words, range) in [(&[][..], 0..events.len()), (&["--from", "400000", "--to", "900001"][..], 400_000..900_001)]
    {
        // Index -> size, site, thread of the allocation or latest resize.
        let mut live: HashMap<u64, (u64, u32, u64)> = HashMap::new();
        // Site of the free -> site of the allocation -> blocks, bytes, blocks of other threads.
        let mut pairs: BTreeMap<u32, BTreeMap<u32, [u64; 3]>> = BTreeMap::new();
        let mut unknown = 0;
        for event in &events[range] {
            if event.letter == RESIZE || event.letter == ALLOC {
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
        let said = ask(&[&["free-sites", "--json", "--top", "1000"][..], words].concat(), &[&recording.folder]);
        let process = &said["processes"][0];
        assert_eq!(process["unknown"], unknown);
        let found = process["sites"].as_array().expect("a list");
        assert!(found.len() >= 2 && found.len() == wanted.len(), "{found:?}");
        for (found, (numbers, _, site)) in found.iter().zip(wanted) {
            let of =
                ["blocks", "bytes", "blocks_of_other_threads"].map(|field| found[field].as_u64().expect("a number"));
            assert_eq!(of, numbers, "{found}");
            assert!(numbers[2] > 0, "threads free each other's");
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
