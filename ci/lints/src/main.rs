//! Checks of the repository that no compiler makes. Each finding has a lint, a file and a line.
//!
//! `ci/lint-exceptions.txt` lists how many findings of a lint each file may still have. A file with
//! more fails the check. `--shrink` lowers the counts to what is left, and never raises one.
//!
//! ```text
//! heaptape-lints            checks all files that git knows
//! heaptape-lints --list [LINT] [FILE]   prints all findings, also the excepted ones
//! heaptape-lints --shrink   lowers the counts of the list to what is found
//! ```
#![forbid(unsafe_code)]

mod docs;
mod exceptions;
mod modules;
mod prose;
mod signatures;
mod source;

use source::Source;
use std::path::Path;
use std::process::{Command, ExitCode};

/// One violation of a lint.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Finding {
    /// The file, or the folder of a crate for `module-cycle`.
    file: String,
    /// Name of the lint.
    lint: &'static str,
    /// Line in the file, from 1.
    line: usize,
    /// Description of what is wrong.
    text: String,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("lints: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &[String]) -> Result<bool, String> {
    let findings = find(&tracked_files()?)?;
    match args.first().map(String::as_str) {
        None => exceptions::check(&findings),
        Some("--shrink") => exceptions::shrink(&findings).map(|()| true),
        Some("--list") => {
            let is_selected = |finding: &Finding| {
                args[1..].iter().all(|arg| finding.lint == arg || finding.file.starts_with(arg.as_str()))
            };
            for finding in findings.iter().filter(|finding| is_selected(finding)) {
                println!("{}:{}: {}: {}", finding.file, finding.line, finding.lint, finding.text);
            }
            Ok(true)
        }
        Some(other) => Err(format!("unknown option '{other}': use --list or --shrink")),
    }
}

fn find(files: &[String]) -> Result<Vec<Finding>, String> {
    let mut findings = Vec::new();
    let mut sources = Vec::new();
    for file in files {
        let Ok(text) = std::fs::read_to_string(file) else { continue };
        if file.ends_with(".rs") {
            let source = Source::parse(file, text)?;
            findings.extend(prose::rust(&source));
            findings.extend(docs::check(&source));
            findings.extend(signatures::check(&source));
            sources.push(source);
        } else if file.ends_with(".md") {
            findings.extend(prose::markdown(file, &text));
        } else if has_hash_comments(file, &text) {
            findings.extend(prose::script(file, &text));
        }
    }
    findings.extend(modules::check(&sources));
    findings.sort();
    Ok(findings)
}

/// The file of the prose lint, which has the banned terms.
const PROSE_LINT: &str = "ci/lints/src/prose.rs";

/// Returns the files that git knows and whose words are ours. Golden files come from other tools.
fn tracked_files() -> Result<Vec<String>, String> {
    let output = Command::new("git").args(["ls-files", "-z"]).output().map_err(|e| format!("cannot run git: {e}"))?;
    let names = String::from_utf8(output.stdout).map_err(|e| format!("a file name is not UTF-8: {e}"))?;
    let files: Vec<String> = names
        .split('\0')
        .filter(|name| {
            !name.is_empty() && !name.contains("/golden/") && *name != PROSE_LINT && Path::new(name).is_file()
        })
        .map(str::to_string)
        .collect();
    match files.is_empty() {
        true => Err("git lists no files: run this in the repository's top folder".to_string()),
        false => Ok(files),
    }
}

fn has_hash_comments(file: &str, text: &str) -> bool {
    file.ends_with(".sh") || file.ends_with(".toml") || file.ends_with(".py") || text.starts_with("#!")
}
