//! speedscope in a real browser shows an exported file. Without Chromium or speedscope nothing is
//! tested; `scripts/dev browser` installs both.

use heaptape_tests::browser::{Browser, Screen};
use heaptape_tests::{Program, target, test_env};
use serde_json::Value;
use std::fs;

const DESK: Screen = Screen { width: 1400, height: 1000, dark: false };

/// Bytes of a function and what it calls, by the file: of its first profile.
fn total(file: &Value, function: &str) -> u64 {
    let frames = file["shared"]["frames"].as_array().expect("frames");
    let profile = &file["profiles"][0];
    let names = |stack: &Value| -> bool {
        let mut indexes = stack.as_array().into_iter().flatten().filter_map(Value::as_u64);
        indexes.any(|at| frames[at as usize]["name"] == function)
    };
    let rows =
        profile["samples"].as_array().into_iter().flatten().zip(profile["weights"].as_array().into_iter().flatten());
    rows.filter(|(stack, _)| names(stack)).filter_map(|(_, weight)| weight.as_u64()).sum()
}

/// `56.96 MB` as bytes.
fn bytes(shown: &str) -> f64 {
    let (number, unit) = shown.split_once(' ').expect("a number and a unit");
    let power = ["B", "KB", "MB", "GB"].iter().position(|known| *known == unit).expect("a unit of bytes");
    number.replace(',', "").parse::<f64>().expect("a number") * 1024f64.powi(power as i32)
}

#[test]
fn speedscope_in_the_browser_shows_the_sums() {
    let page = test_env::kept().join("speedscope/dist/release/index.html");
    if !page.is_file() || !Browser::is_there() {
        return;
    }
    let recording = Program::new(target::c("threads")).args(["4", "500"]).recorded().success().complete();
    let file = recording.directory.path().join("threads.speedscope.json");
    let outcome = recording.heaptape(&["export", "--to", "speedscope", "-o", file.to_str().expect("a path")]);
    assert_eq!(outcome.code(), 0, "{outcome}");
    let text = fs::read_to_string(&file).expect("the file");
    // As speedscope's own command hands a file to its page.
    let load = recording.directory.path().join("load.js");
    let encoded = format!("btoa(unescape(encodeURIComponent({})))", Value::from(text.clone()));
    fs::write(&load, format!("speedscope.loadFileFromBase64('threads.speedscope.json', {encoded})"))
        .expect("the script");

    let mut browser = Browser::open(&page, &format!("#localProfilePath={}", load.display()), DESK);
    browser.wait("document.body !== null && document.body.innerText.includes('alloc-bytes')");
    browser.key("3");
    browser.wait("document.body.innerText.includes('Symbol Name')");
    let rows = "[...document.querySelectorAll('tr')].map((row) => [...row.cells].map((cell) => cell.innerText.trim()))";
    let rows: Vec<Vec<String>> = serde_json::from_value(browser.value(rows)).expect("a table");
    let row = rows.iter().find(|row| row.last().is_some_and(|name| name == "takes"));
    let shown = row.unwrap_or_else(|| panic!("takes is not in the table: {rows:?}"))[0].clone();
    let shown = bytes(shown.split(" (").next().unwrap_or_default());
    let sum = total(&serde_json::from_str(&text).expect("JSON"), "takes") as f64;
    assert!(
        sum > 0.0 && (shown - sum).abs() <= sum / 100.0,
        "speedscope shows {shown} bytes of takes, the file has {sum}"
    );
}
