//! A page holds what the reports say, over the whole run and over any range of its slots.

use crate::made;

use heaptape_analyzer::Progress;
use heaptape_analyzer::event::Range;
use heaptape_analyzer::export::html::{Held, read};
use heaptape_analyzer::export::{self, Options};
use heaptape_analyzer::open;
use heaptape_analyzer::report::summary::summarize;
use heaptape_analyzer::report::{Query, View, leaks};
use heaptape_analyzer::sums_within;
use heaptape_analyzer::symbols::{Detail, Symbolizer};
use heaptape_analyzer::text::Style;
use heaptape_formats::recording::{NotTraced, Recording};
use heaptape_formats::tape;
use made::{Step, program};
use proptest::prelude::*;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Exports the page of recordings and verifies it. Returns the page and the result of the export.
fn exported(paths: &[&Path]) -> (String, export::Written) {
    let out = tempfile::tempdir().unwrap();
    let file = out.path().join("page.html");
    let paths: Vec<PathBuf> = paths.iter().map(|path| path.to_path_buf()).collect();
    let exporter = export::exporter("html").unwrap();
    let written = export::run(exporter, &paths, &Options::default(), Some(&file), true).unwrap();
    assert!(!written.verdicts.is_empty() && written.verdicts.iter().all(|verdict| verdict.holds()), "{written:?}");
    (std::fs::read_to_string(file).unwrap(), written)
}

fn page(path: &Path) -> Held {
    read(&exported(&[path]).0).unwrap()
}

/// Returns the answer of `heaptape leaks --json`.
fn leaks_json(path: &Path) -> Value {
    let query = Query::of(path, View::json(0));
    let mut json = Vec::new();
    leaks::run(&query, &leaks::Options::default(), &mut json, Style::PLAIN).unwrap();
    serde_json::from_slice(&json).unwrap()
}

fn list<'a>(of: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    of[name].as_array().into_iter().flatten()
}

fn number(of: &Value, name: &str) -> u64 {
    of[name].as_u64().unwrap_or(0)
}

/// Returns the leaks of `heaptape leaks --json`, and what was freed at exit.
fn reported(report: &Value) -> impl Iterator<Item = &Value> {
    list(report, "leaks").chain(list(report, "freed_at_exit")).filter(|leak| leak["kept_on_purpose"].is_null())
}

/// Returns verdict, bytes, blocks and growth of the leaks of a page and of `heaptape leaks --json`,
/// sorted.
fn judged(report: &Value, page: &Value) -> [Vec<(String, u64, u64, u64)>; 2] {
    let row = |leak: &Value, grown| {
        (leak["verdict"].to_string(), number(leak, "bytes"), number(leak, "blocks"), number(leak, grown))
    };
    let mut rows: [Vec<_>; 2] = [
        list(page, "leaks").map(|leak| row(leak, "grown")).collect(),
        reported(report).map(|leak| row(leak, "grown_bytes")).collect(),
    ];
    rows.iter_mut().for_each(|rows| rows.sort());
    rows
}

/// Returns the sums by verdict of `heaptape leaks --json`, as the page has them.
fn by_verdict(report: &Value) -> BTreeMap<String, [u64; 3]> {
    let mut sums: BTreeMap<String, [u64; 3]> = BTreeMap::new();
    for leak in reported(report) {
        let sum = sums.entry(leak["verdict"].to_string()).or_default();
        sum[0] += number(leak, "bytes") + number(leak, "grown_bytes");
        sum[1] += number(leak, "blocks");
        sum[2] += number(leak, "stacks");
    }
    sums
}

/// Returns the folders of all golden recordings.
fn golden() -> Vec<PathBuf> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/tape/v1");
    let mut all: Vec<PathBuf> = std::fs::read_dir(golden).unwrap().map(|entry| entry.unwrap().path()).collect();
    all.retain(|path| path.join("recording.json").is_file());
    assert!(all.len() >= 10, "{all:?}");
    all.sort();
    all
}

/// The page tells what `heaptape leaks` tells: verdicts, sums, and what is missing.
#[test]
fn page_and_report_judge_leaks_alike() {
    let mut verdicts = BTreeSet::new();
    for path in golden() {
        let name = path.display();
        let (report, held) = (leaks_json(&path), page(&path));
        let [own, wanted] = judged(&report, &held.page);
        assert_eq!(own.len(), wanted.len().min(200), "{name}");
        if wanted.len() <= 200 {
            assert_eq!(own, wanted, "{name}");
        }
        let sums = by_verdict(&report);
        verdicts.extend(sums.keys().cloned());
        let row =
            |sum: &Value| (sum["verdict"].to_string(), ["bytes", "blocks", "stacks"].map(|name| number(sum, name)));
        assert_eq!(list(&held.page, "verdicts").map(row).collect::<BTreeMap<_, _>>(), sums, "{name}");
        assert_eq!(number(&held.page, "grown_bytes"), number(&report["total"], "grown_bytes"), "{name}");
        let never_freed = |at: usize| {
            let own = sums.iter().filter(|(verdict, _)| *verdict != "\"freed-at-exit\"");
            own.map(|(_, sum)| sum[at]).sum::<u64>()
        };
        assert_eq!(
            [never_freed(0), never_freed(1), never_freed(2)],
            ["bytes", "blocks", "stacks"].map(|name| number(&report["total"], name)),
            "{name}"
        );
        assert_eq!(
            list(&held.page["recordings"][0], "missing").collect::<Vec<_>>(),
            list(&report, "missing").collect::<Vec<_>>(),
            "{name}"
        );
        for (own, wanted) in list(&held.page, "processes").zip(list(&report, "processes")) {
            assert_eq!((&own["pid"], &own["complete"]), (&wanted["pid"], &wanted["complete"]), "{name}");
        }
    }
    assert!(verdicts.len() >= 2, "{verdicts:?}");
}

/// Rows by the address of their innermost frame, and by the thread that allocated. All frames of
/// made recordings are addresses.
fn rows(held: &Held) -> BTreeMap<(String, u32), usize> {
    let column = |name: &str| &held.columns[name];
    let title = |row: usize| {
        let frame = column("node.frame")[column("row.node")[row] as usize] as usize;
        held.strings[column("frame.function")[frame] as usize].clone()
    };
    let thread = |row: usize| {
        let group = &held.page["processes"][0]["groups"][column("row.threads")[row] as usize];
        assert_eq!(group["threads"].as_array().map(Vec::len), Some(1), "made threads have no names: {group}");
        group["threads"][0].as_u64().unwrap() as u32
    };
    (0..column("row.node").len()).map(|row| ((title(row), thread(row)), row)).collect()
}

fn title(site: u32) -> String {
    if site == 0 { "(no stack)".into() } else { format!("{:#x}", 0x1000 * u64::from(site)) }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sums {
    allocs: u64,
    bytes: u64,
    frees: u64,
    freed: u64,
    left: u64,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn sums_are_those_of_the_reports(rolls in prop::collection::vec(any::<(u8, u16, u8, u8, u8)>(), 1..400)) {
        let steps = program(&rolls);
        let (_dir, path) = made::recording(&steps, &made::Options::default());
        let held = page(&path);
        let recordings = [open(&path).unwrap()];
        let summary = serde_json::to_value(summarize(&recordings, Symbolizer::new(Detail::Full), &Progress::silent("test"))).unwrap();
        prop_assert_eq!(&held.page["recordings"][0]["totals"], &summary["totals"]);
        let [own, report] = judged(&leaks_json(&path), &held.page);
        prop_assert_eq!(own, report);
        for (name, value) in summary["processes"][0].as_object().unwrap() {
            prop_assert_eq!(&held.page["processes"][0][name], value, "{}", name);
        }
        let process = &recordings[0].processes[0];
        let rows = rows(&held);
        let all = sums_within(process, &Range::ALL, &Progress::silent("test"));
        let titles: BTreeSet<&String> = rows.keys().map(|(title, _)| title).collect();
        prop_assert_eq!(titles.len(), all.sites.len());
        for site in &all.sites {
            let own: Vec<usize> = rows.iter().filter(|((own, _), _)| *own == title(site.site)).map(|(_, row)| *row).collect();
            let of = |name: &str| own.iter().map(|&row| held.columns[name][row]).sum::<u64>();
            prop_assert_eq!((of("row.allocs"), of("row.bytes")), (site.allocs, site.bytes));
            prop_assert_eq!((of("row.frees"), of("row.freed_bytes")), (site.frees, site.freed_bytes));
            prop_assert_eq!((of("row.peak_blocks"), of("row.peak_bytes")), (site.peak_blocks, site.peak_bytes));
            prop_assert_eq!(of("row.left_bytes"), site.bytes - site.freed_bytes);
        }
    }

    /// A range added up from its cells is what a plain walk over the steps finds in it, for each
    /// thread.
    #[test]
    fn ranges_add_up(rolls in prop::collection::vec(any::<(u8, u16, u8, u8, u8)>(), 1..300), from in 0u32..255, length in 1u32..255) {
        let mut steps = program(&rolls);
        // Events with equal ticks are spread up to the next one, maybe into the next slot.
        (0..).zip(&mut steps).for_each(|(number, step)| *step.tick_mut() += number);
        let (_dir, path) = made::recording(&steps, &made::Options::default());
        let held = page(&path);
        let process = &open(&path).unwrap().processes[0];
        let (slots, slices) = (held.page["axis"]["slots"].as_f64().unwrap(), held.page["axis"]["slices"].as_f64().unwrap());
        let length_ns = held.page["axis"]["length"].as_f64().unwrap();
        let slot = |tick: u64| {
            let at = tick.saturating_sub(process.clock.start_tick) as f64;
            let slice = (at * (1.0 / (length_ns * (1.0 + 1e-9) / slices))).floor().min(slices - 1.0);
            (slice * slots / slices) as u32
        };
        let to = (from + length).min(slots as u32);
        let mut expected: BTreeMap<(u32, u32), Sums> = BTreeMap::new();
        let mut live: BTreeMap<u64, (u64, (u32, u32), u32)> = BTreeMap::new();
        for step in &steps {
            let now = slot(step.tick());
            let inside = from <= now && now < to;
            let gone = |live: &mut BTreeMap<u64, (u64, (u32, u32), u32)>, index: u64, expected: &mut BTreeMap<(u32, u32), Sums>| {
                let (size, site, born) = live.remove(&index)?;
                if inside {
                    let sums = expected.entry(site).or_default();
                    (sums.frees, sums.freed) = (sums.frees + 1, sums.freed + size);
                }
                Some(born)
            };
            let (index, size, site, born) = match *step {
                Step::Alloc { index, size, site, thread, .. } => (index, size, (site, thread), now),
                Step::Resize { index, size, site, thread, .. } => (index, size, (site, thread), gone(&mut live, index, &mut expected).unwrap_or(now)),
                Step::Free { index, .. } | Step::Implied { index, .. } => {
                    gone(&mut live, index, &mut expected);
                    continue;
                }
                Step::Inherited { .. } | Step::Unmatched { .. } => continue,
            };
            live.insert(index, (size, site, born));
            if inside {
                let sums = expected.entry(site).or_default();
                (sums.allocs, sums.bytes) = (sums.allocs + 1, sums.bytes + size);
            }
        }
        for (_, (size, site, born)) in live {
            if from <= born && born < to {
                expected.entry(site).or_default().left += size;
            }
        }
        let column = |name: &str| &held.columns[name];
        let mut cell = 0;
        let mut found: BTreeMap<usize, Sums> = BTreeMap::new();
        for (row, &count) in column("row.cells").iter().enumerate() {
            for at in cell..cell + count as usize {
                let slot = column("cell.slot")[at] as u32;
                if from <= slot && slot < to {
                    let sums = found.entry(row).or_default();
                    sums.allocs += column("cell.allocs")[at];
                    sums.bytes += column("cell.bytes")[at];
                    sums.frees += column("cell.frees")[at];
                    sums.freed += column("cell.freed_bytes")[at];
                    sums.left += column("cell.left_bytes")[at];
                }
            }
            cell += count as usize;
        }
        let rows = rows(&held);
        let expected: BTreeMap<usize, Sums> =
            expected.into_iter().filter(|(_, sums)| *sums != Sums::default()).map(|((site, thread), sums)| (rows[&(title(site), thread)], sums)).collect();
        found.retain(|_, sums| *sums != Sums::default());
        prop_assert_eq!(found, expected);
    }
}

fn small() -> Vec<Step> {
    vec![
        Step::Alloc { index: 1, size: 100, site: 4, thread: 1, tick: 101 },
        Step::Alloc { index: 2, size: 1, site: 5, thread: 2, tick: 102 },
        Step::Resize { index: 1, size: 300, site: 6, thread: 1, tick: 103 },
        Step::Alloc { index: 3, size: 50, site: 4, thread: 1, tick: 104 },
        Step::Free { index: 3, thread: 1, tick: 105 },
    ]
}

#[test]
fn two_recordings_share_their_stacks() {
    let (_a, before) = made::recording(&small(), &made::Options::default());
    let (_b, after) = made::recording(&small()[..3], &made::Options::default());
    let (file, written) = exported(&[&before, &after]);
    assert!(written.is_whole(), "{written:?}");
    let held = read(&file).unwrap();
    assert_eq!(held.page["recordings"].as_array().unwrap().len(), 2);
    let bytes: Vec<&Value> = (0..2).map(|at| &held.page["recordings"][at]["totals"]["bytes_allocated"]).collect();
    assert_eq!(bytes, [&Value::from(451), &Value::from(401)]);
    let of = |process: u64| -> Vec<u64> {
        let pairs = held.columns["row.process"].iter().zip(&held.columns["row.node"]);
        pairs.filter(|(own, _)| **own == process).map(|(_, node)| *node).collect()
    };
    assert_eq!(of(0), of(1));
    let three = [before.clone(), after, before];
    let refused = export::run(export::exporter("html").unwrap(), &three, &Options::default(), None, false);
    assert!(refused.unwrap_err().to_string().contains("compares two"));
}

#[test]
fn gaps_are_on_the_page() {
    let losses = vec![tape::Loss { thread: 2, events: 77, from_tick: 102, to_tick: 104 }];
    let (_dir, path) = made::recording(&small(), &made::Options { losses, ..made::Options::default() });
    let (file, written) = exported(&[&path]);
    assert!(!written.is_whole());
    let held = read(&file).unwrap();
    let process = &held.page["processes"][0];
    assert_eq!(process["lost_events"], 77);
    assert_eq!(process["losses"][0]["events"], 77);
    assert!(process["missing"][0].as_str().unwrap().contains("77 events of thread 2"));
    assert!(process["losses"][0]["span"][0].as_f64() < process["losses"][0]["span"][1].as_f64());
}

#[test]
fn a_profile_makes_a_page_without_times() {
    let (_dir, path) = made::recording(&small(), &made::Options::default());
    let held = page(&path.join("4711.made/profile.mptl"));
    let process = &held.page["processes"][0];
    assert_eq!((&process["has_events"], &process["bytes_allocated"]), (&Value::from(false), &Value::from(451)));
    assert!(held.columns["row.bytes"].iter().sum::<u64>() > 0 && held.columns["cell.slot"].is_empty());
}

/// Names in a recording are in the page as data, never as markup.
#[test]
fn hostile_names_are_data() {
    let (_dir, path) = made::recording(&small(), &made::Options::default());
    let file = path.join("recording.json");
    let hostile = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u{202e}";
    let mut about: Recording = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    about.command = vec![hostile.into(), "}}{{data}}".into()];
    (about.host, about.cwd) = (hostile.into(), hostile.into());
    about.not_traced = vec![NotTraced { pid: 1, exe: hostile.into(), why: hostile.into() }];
    about.processes[0].exe = hostile.into();
    about.processes[0].argv = vec![hostile.into()];
    std::fs::write(&file, serde_json::to_vec(&about).unwrap()).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let hostile_path = elsewhere.path().join("<img src=x onerror=alert(3)>");
    std::fs::rename(&path, &hostile_path).unwrap();
    let (file, _) = exported(&[&hostile_path]);
    std::fs::rename(&hostile_path, &path).unwrap();
    assert!(!file.contains("<script>alert") && !file.contains("<img") && !file.contains('\u{202e}'));
    assert_eq!(file.matches("<script").count(), 4);
    let held = read(&file).unwrap();
    let shown = held.page["recordings"][0]["command"].as_str().unwrap();
    assert_eq!(shown, format!("{} }}}}{{{{data}}}}", hostile.replace('\u{202e}', "\u{fffd}")));
    assert!(file.contains("&lt;img src=x"));
}
