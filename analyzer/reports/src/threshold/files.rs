//! Results of thresholds as files for other programs: JUnit XML and SARIF.

use super::{ThresholdResult, ThresholdResults};
use heaptape_analyzer::text::clean;
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;

/// Why a condition that does not hold is no answer.
const UNSEEN: &str = "a program was not seen";

/// Escapes text for XML, and replaces control characters.
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

/// Returns the call sites that made a condition hold, with their stacks, as lines of text.
fn sentence(threshold: &ThresholdResult) -> String {
    let mut text = String::new();
    for culprit in &threshold.culprits {
        let _ = writeln!(text, "{}", culprit.text);
        for line in &culprit.stack {
            let _ = writeln!(text, "    {line}");
        }
    }
    text
}

/// Returns a JUnit document with one test case for each threshold.
pub fn junit(results: &ThresholdResults) -> String {
    let failed = results.thresholds.iter().filter(|threshold| threshold.failed).count();
    let unanswered = results.thresholds.iter().filter(|threshold| results.is_unanswered(threshold)).count();
    let tests = results.thresholds.len();
    let head = format!("name=\"heaptape\" tests=\"{tests}\" failures=\"{failed}\" errors=\"{unanswered}\"");
    let mut out = format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites {head}>\n<testsuite {head}>\n");
    for threshold in &results.thresholds {
        let name = escaped(&threshold.threshold);
        let _ = write!(out, "<testcase classname=\"heaptape\" name=\"{name}\"");
        if threshold.failed {
            let (shown, sentence) = (escaped(&threshold.shown), escaped(&sentence(threshold)));
            let _ = write!(out, ">\n<failure message=\"{name}: it is {shown}\">{sentence}</failure>\n</testcase>\n");
        } else if results.is_unanswered(threshold) {
            let shown = escaped(&threshold.shown);
            let _ = write!(out, ">\n<error message=\"{name}: it is {shown}, but {UNSEEN}\"/>\n</testcase>\n");
        } else {
            out += "/>\n";
        }
    }
    if !results.missing.is_empty() {
        let lines: Vec<String> = results.missing.iter().map(|missing| escaped(missing)).collect();
        let _ = writeln!(out, "<system-err>{}</system-err>", lines.join("\n"));
    }
    out + "</testsuite>\n</testsuites>\n"
}

/// Returns a SARIF 2.1.0 log with one result for each call site that made a threshold fail, or one
/// for the threshold if there is none. Paths below `root` are relative to it, as services need them
/// that show results in a repository.
pub fn sarif(results: &ThresholdResults, root: Option<&Path>) -> String {
    let mut sarif_results = Vec::new();
    for threshold in results.thresholds.iter().filter(|threshold| threshold.failed) {
        let rule = rule_id(threshold);
        let message = format!("{}: it is {}", threshold.threshold, threshold.shown);
        if threshold.culprits.is_empty() {
            sarif_results.push(json!({"ruleId": rule, "level": "error", "message": {"text": clean(&message)}}));
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
                let mut location = json!({"artifactLocation": artifact(file, root)});
                if let Some(line) = culprit.line.filter(|&line| line > 0) {
                    location["region"] = json!({"startLine": line});
                }
                result["locations"] = json!([{"physicalLocation": location}]);
            }
            sarif_results.push(result);
        }
    }
    let mut rules: Vec<String> = results.thresholds.iter().map(rule_id).collect();
    rules.sort();
    rules.dedup();
    let rules: Vec<Value> = rules.into_iter().map(|id| json!({"id": id})).collect();
    let driver = json!({"name": "heaptape", "version": env!("CARGO_PKG_VERSION"), "rules": rules});
    let run = json!({
        "tool": {"driver": driver},
        "results": sarif_results,
        "invocations": [{
            "executionSuccessful": !results.unseen || results.failed(),
            "toolExecutionNotifications": results.missing.iter()
                .map(|missing| json!({"level": if results.unseen { "error" } else { "warning" }, "message": {"text": clean(missing)}})).collect::<Vec<_>>(),
        }],
    });
    let log = json!({"$schema": "https://json.schemastore.org/sarif-2.1.0.json", "version": "2.1.0", "runs": [run]});
    format!("{log:#}\n")
}

/// Returns the SARIF rule of a threshold: `heaptape/` and the metric.
fn rule_id(threshold: &ThresholdResult) -> String {
    let end = threshold.threshold.find(['<', '>', '=', '!']).unwrap_or(threshold.threshold.len());
    format!("heaptape/{}", threshold.threshold[..end].trim())
}

/// Returns the location of a file in SARIF, relative to the root of the sources if it is below it.
fn artifact(file: &str, root: Option<&Path>) -> Value {
    let relative = root.and_then(|root| Path::new(file).strip_prefix(root).ok()).and_then(Path::to_str);
    match relative {
        Some(relative) => json!({"uri": uri(relative), "uriBaseId": "%SRCROOT%"}),
        None => json!({"uri": uri(file)}),
    }
}

/// Returns a path as a URI for SARIF: bytes other than letters, digits and `/-._~` are written as
/// %XX.
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
