//! The metrics are what Prometheus reads, and the alerts and the dashboard in `packaging` use
//! metrics that exist.

use heaptape_tests::daemon::Running;
use heaptape_tests::wait::until;
use heaptape_tests::{Daemon, target};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The metrics of a text: the type of each, and the value of each series.
#[derive(Debug, Default)]
struct Metrics {
    types: BTreeMap<String, String>,
    series: BTreeMap<String, f64>,
}

fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Reads the labels between braces: `name="value"`, separated by commas, where a value escapes
/// backslash, quote and newline and nothing else.
fn check_labels(labels: &str) {
    let mut rest = labels;
    loop {
        let (name, after) = rest.split_once("=\"").unwrap_or_else(|| panic!("no label: {labels}"));
        assert!(is_name(name), "{labels}");
        let mut characters = after.char_indices();
        let end = loop {
            match characters.next() {
                Some((at, '"')) => break at,
                Some((_, '\\')) => {
                    let escaped = characters.next().map(|(_, escaped)| escaped);
                    assert!(matches!(escaped, Some('\\' | '"' | 'n')), "{labels}");
                }
                Some((_, character)) => assert!(!character.is_control(), "{labels:?}"),
                None => panic!("no end: {labels}"),
            }
        };
        rest = &after[end + 1..];
        if rest.is_empty() {
            return;
        }
        rest = rest.strip_prefix(',').unwrap_or_else(|| panic!("no comma: {labels}"));
    }
}

impl Metrics {
    /// Reads the text format of Prometheus, version 0.0.4, strictly: each family has help and type
    /// before its series, once, and no series is there twice.
    #[track_caller]
    fn read(text: &str) -> Metrics {
        let mut metrics = Metrics::default();
        let (mut family, mut helped) = (String::new(), BTreeSet::new());
        assert!(text.ends_with('\n'), "the last line has an end");
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, text) = help.split_once(' ').unwrap_or_else(|| panic!("{line}"));
                assert!(is_name(name) && !text.is_empty() && helped.insert(name.to_owned()), "{line}");
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').unwrap_or_else(|| panic!("{line}"));
                assert!(helped.contains(name) && ["gauge", "counter"].contains(&kind), "{line}");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                assert_eq!(metrics.types.insert(name.to_owned(), kind.to_owned()), None, "{line}");
                family = name.to_owned();
            } else {
                let (series, value) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line}"));
                let name = series.split_once('{').map_or(series, |(name, labels)| {
                    check_labels(labels.strip_suffix('}').unwrap_or_else(|| panic!("{line}")));
                    name
                });
                assert_eq!(name, family, "a series of another family: {line}");
                let value: f64 = value.parse().unwrap_or_else(|error| panic!("{line}: {error}"));
                assert!(value >= 0.0, "{line}");
                assert_eq!(metrics.series.insert(series.to_owned(), value), None, "twice: {line}");
            }
        }
        metrics
    }

    /// Returns the values of the series whose labels contain a text.
    fn values(&self, name: &str, labels: &str) -> Vec<f64> {
        let series = self.series.iter().filter(|(series, _)| series.split('{').next() == Some(name));
        series.filter(|(series, _)| series.contains(labels)).map(|(_, value)| *value).collect()
    }
}

fn packaging(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging").join(name)
}

fn names(text: &str) -> BTreeSet<String> {
    let parts = text.split(|character: char| !(character.is_ascii_alphanumeric() || character == '_'));
    parts.filter(|word| word.starts_with("heaptape_")).map(str::to_owned).collect()
}

/// Runs promtool, if it is installed. Returns whether it accepts the input.
fn promtool(arguments: &[&str], input: &str) {
    let mut command = Command::new("promtool");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        eprintln!("promtool is not installed: only the parser of this test has read it");
        return;
    };
    child.stdin.take().expect("its input").write_all(input.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "promtool {arguments:?}: {output:?}");
}

#[test]
fn metrics_are_read_by_prometheus_and_alerts_use_them() {
    let daemon =
        Daemon::start(&["--clients", "3", "--mode", "profile", "--verdict-interval", "1s", "--snapshot", "1s"]);
    let start = |label: &str, mode: &str| {
        let mut command = daemon.command(&target::c("leaks_slowly"));
        command.env("HEAPTAPE_LABEL", label).env("HEAPTAPE_MODE", mode).args(["100000", "2", "5000"]);
        Running(command.spawn().expect("it starts"))
    };
    let read = || {
        let text = daemon.ctl(&["metrics"]).success().text().to_owned();
        (Metrics::read(&text), text)
    };
    let strange = start("a\"b\\c\nd", "profile");
    let flight = start("flown", "flight");
    let dormant = start("dormant", "off");
    until("all are served", || daemon.list("leaks_slowly").len() == 3);
    let fourth = start("fourth", "profile");
    until("the fourth is refused", || daemon.query(&["status"])["budgets_hit"]["clients"] == 1);
    until("memory is seen", || read().0.values("heaptape_program_resident_bytes", "flown") > vec![100_000.0]);
    daemon.query(&["snapshot"]);
    until("it is written", || read().0.values("heaptape_last_write_timestamp_seconds", "") > vec![1.0]);
    until("the disk was looked at", || read().0.values("heaptape_disk_free_bytes", "") > vec![1.0]);
    let (metrics, text) = read();
    promtool(&["check", "metrics"], &text);
    let labels = r#"program="leaks_slowly",label="a\"b\\c\nd""#;
    assert_eq!(metrics.values("heaptape_program_processes", labels), [1.0], "{text}");
    assert_eq!(metrics.values("heaptape_unrecorded_total", "reason=\"clients\""), [1.0], "{text}");
    assert_eq!(metrics.values("heaptape_budget_hits_by_name_total", "clients"), [1.0], "{text}");
    assert_eq!(metrics.values("heaptape_build_info", "version=\"").len(), 1, "{text}");
    let kept = metrics.values("heaptape_flight_kept_timestamp_seconds", "label=\"flown\",cause=\"request\"");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("a time").as_secs_f64();
    assert!(kept.len() == 1 && (now - kept[0]).abs() < 120.0, "{kept:?} {now}");
    // What the programs hold is judged, also of a flight recording. The sum of the verdicts is
    // about what is live.
    let suspect = r#"program="leaks_slowly",label="a\"b\\c\nd",verdict=""#;
    let site = r#"program="leaks_slowly",label="a\"b\\c\nd",site=""#;
    let flown = suspect.replace(r#"a\"b\\c\nd"#, "flown");
    until("they are judged", || {
        let now = read().0;
        now.values("heaptape_program_site_live_bytes", site).iter().any(|bytes| *bytes > 0.0)
            && [suspect, flown.as_str()]
                .iter()
                .all(|labels| now.values("heaptape_program_suspect_bytes", labels).iter().sum::<f64>() > 0.0)
    });
    let (metrics, text) = read();
    promtool(&["check", "metrics"], &text);
    let verdicts = |verdict: &str| metrics.values("heaptape_program_suspect_bytes", &format!("{suspect}{verdict}\""));
    assert_eq!((verdicts("growing").len(), verdicts("slow").len()), (1, 1), "{text}");
    let sites: Vec<&String> = metrics.series.keys().filter(|series| series.contains(site)).collect();
    assert!(sites.len() <= 5 && sites.iter().any(|series| series.contains("function=\"keeps\"")), "{sites:?}");
    assert_eq!(metrics.values("heaptape_flights_kept_total", ""), [1.0], "the verdicts keep none: {text}");
    // Nothing is known of a process in mode off, which is named.
    let unjudged = r#"label="dormant",reason="mode-off""#;
    assert_eq!(metrics.values("heaptape_program_unjudged_processes", unjudged), [1.0], "{text}");
    assert!(metrics.values("heaptape_unjudged_processes", "") >= vec![1.0], "{text}");
    assert!(metrics.values("heaptape_program_suspect_bytes", "dormant").is_empty(), "{text}");
    // Counters of ended processes stay.
    let before = metrics;
    drop((strange, flight, dormant, fourth));
    until("all are over", || daemon.query(&["status"])["processes"] == 0);
    until("all are written", || daemon.query(&["status"])["own"]["parts_ending"] == 0.0);
    let (after, _) = read();
    for (series, value) in &before.series {
        let name = series.split('{').next().unwrap_or_default();
        let now = after.series.get(series).copied();
        assert!(after.types[name] != "counter" || now >= Some(*value), "{series}: {value}, then {now:?}");
    }
    // What is in the packages uses metrics that there are, in expressions that Prometheus reads.
    let alerts = std::fs::read_to_string(packaging("prometheus-alerts.yml")).expect("the alerts");
    let dashboard = std::fs::read_to_string(packaging("grafana-dashboard.json")).expect("the dashboard");
    for name in names(&alerts).union(&names(&dashboard)) {
        assert!(after.types.contains_key(name), "there is no metric {name}");
    }
    promtool(&["check", "rules", packaging("prometheus-alerts.yml").to_str().expect("a path")], "");
    let figures = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("alerts/tests.yml");
    promtool(&["test", "rules", figures.to_str().expect("a path")], "");
    let dashboard: Value = serde_json::from_str(&dashboard).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let ids: BTreeSet<_> = panels.iter().filter_map(|panel| panel["id"].as_u64()).collect();
    assert_eq!(ids.len(), panels.len(), "each panel has its own id");
    let mut rules = "groups:\n  - name: panels\n    rules:\n".to_owned();
    for target in panels.iter().flat_map(|panel| panel["targets"].as_array().expect("targets")) {
        let expression = target["expr"].as_str().expect("an expression").replace("$program", ".*");
        rules += &format!("      - record: panel:{}\n        expr: {}\n", rules.len(), Value::from(expression));
    }
    let folder = heaptape_tests::test_env::folder();
    let file = folder.path().join("panels.yml");
    std::fs::write(&file, rules).expect("the expressions");
    promtool(&["check", "rules", file.to_str().expect("a path")], "");
}
