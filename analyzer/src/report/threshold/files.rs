//! Verdicts of thresholds for other programs: JUnit's XML and SARIF.

use super::{Judged, Verdicts};
use crate::text::clean;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => out.push(c),
            c if matches!(clean(c.encode_utf8(&mut [0; 4])), std::borrow::Cow::Owned(_)) => {
                out.push(char::REPLACEMENT_CHARACTER);
            }
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            c => out.push(c),
        }
    }
    out
}

fn sentence(threshold: &Judged) -> String {
    let mut text = String::new();
    for culprit in &threshold.culprits {
        let _ = writeln!(text, "{}", culprit.text);
        for line in &culprit.stack {
            let _ = writeln!(text, "    {line}");
        }
    }
    text
}

/// JUnit: a test case a threshold.
pub fn junit(verdicts: &Verdicts) -> String {
    let failed = verdicts.thresholds.iter().filter(|threshold| threshold.failed).count();
    let head = format!("name=\"heaptape\" tests=\"{}\" failures=\"{failed}\"", verdicts.thresholds.len());
    let mut out =
        format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites {head}>\n<testsuite {head} errors=\"0\">\n");
    for threshold in &verdicts.thresholds {
        let name = escaped(&threshold.threshold);
        let _ = write!(out, "<testcase classname=\"heaptape\" name=\"{name}\"");
        if threshold.failed {
            let (shown, sentence) = (escaped(&threshold.shown), escaped(&sentence(threshold)));
            let _ = write!(out, ">\n<failure message=\"{name}: it is {shown}\">{sentence}</failure>\n</testcase>\n");
        } else {
            out += "/>\n";
        }
    }
    if !verdicts.missing.is_empty() {
        let lines: Vec<String> = verdicts.missing.iter().map(|missing| escaped(missing)).collect();
        let _ = writeln!(out, "<system-err>{}</system-err>", lines.join("\n"));
    }
    out + "</testsuite>\n</testsuites>\n"
}

/// SARIF 2.1.0: a result for each culprit of a threshold that failed; for the threshold itself
/// where nobody in particular is to blame. Files below `root` are named relative to it, as services
/// that show them in a repository need it.
pub fn sarif(verdicts: &Verdicts, root: Option<&Path>) -> String {
    let mut results = Vec::new();
    for threshold in verdicts.thresholds.iter().filter(|threshold| threshold.failed) {
        let rule = rule_id(threshold);
        let message = format!("{}: it is {}", threshold.threshold, threshold.shown);
        if threshold.culprits.is_empty() {
            results.push(json!({"ruleId": rule, "level": "error", "message": {"text": clean(&message)}}));
        }
        for culprit in &threshold.culprits {
            let text = format!("{} ({message})", culprit.text);
            let mut result = json!({
                "ruleId": rule,
                "level": "error",
                "message": {"text": clean(&text)},
                "properties": {"kind": culprit.kind, "stack": culprit.stack},
            });
            if let Some(file) = &culprit.file {
                let mut place = json!({"artifactLocation": artifact(file, root)});
                if let Some(line) = culprit.line.filter(|&line| line > 0) {
                    place["region"] = json!({"startLine": line});
                }
                result["locations"] = json!([{"physicalLocation": place}]);
            }
            results.push(result);
        }
    }
    let mut rules: Vec<String> = verdicts.thresholds.iter().map(rule_id).collect();
    rules.sort();
    rules.dedup();
    let rules: Vec<Value> = rules.into_iter().map(|id| json!({"id": id})).collect();
    let driver = json!({"name": "heaptape", "version": env!("CARGO_PKG_VERSION"), "rules": rules});
    let run = json!({
        "tool": {"driver": driver},
        "results": results,
        "invocations": [{
            "executionSuccessful": true,
            "toolExecutionNotifications": verdicts.missing.iter()
                .map(|missing| json!({"level": "warning", "message": {"text": clean(missing)}})).collect::<Vec<_>>(),
        }],
    });
    let log = json!({"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]});
    format!("{log:#}\n")
}

fn rule_id(threshold: &Judged) -> String {
    let end = threshold.threshold.find(['<', '>', '=', '!']).unwrap_or(threshold.threshold.len());
    format!("heaptape/{}", threshold.threshold[..end].trim())
}

/// Where a file is: relative to the source's root where it lies below it.
fn artifact(file: &str, root: Option<&Path>) -> Value {
    let below = root.and_then(|root| Path::new(file).strip_prefix(root).ok()).and_then(Path::to_str);
    match below {
        Some(below) => json!({"uri": uri(below), "uriBaseId": "%SRCROOT%"}),
        None => json!({"uri": uri(file)}),
    }
}

/// A path as SARIF wants it: what is no plain letter of a path is written as %XX.
fn uri(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/-._~".contains(&byte);
    let mut out = if path.starts_with('/') { "file://".to_string() } else { String::new() };
    for byte in path.bytes() {
        if plain(byte) {
            out.push(byte.into());
        } else {
            let _ = write!(out, "%{byte:02X}");
        }
    }
    out
}
