//! Banned words and the width of comments.

use crate::Finding;
use crate::source::Source;
use proc_macro2::TokenTree;
use regex::Regex;
use std::sync::LazyLock;

/// Columns of a line that holds a comment.
const WIDTH: usize = 100;

/// Words of the project's old dialect, with what replaces them. `docs/glossary.md` has the terms.
const BANNED: &[(&str, &str)] = &[
    (r"(?:un)?told", "emitted, reported, pending"),
    (r"wish(?:es)?", "options, request"),
    (r"gives", "returns"),
    (r"g[ia]ven? back|gives back|giving back|give-backs?", "free, deallocation"),
    (r"lies", "is at, is stored"),
    (r"stands", "is at, is stored"),
    (r"whoever", "name who"),
    (r"whatever", "name what"),
    (r"so many", "a count"),
    (r"so long", "as long, a duration"),
    (r"hands? on", "passes on"),
    (r"mend(?:s|ed|ing)?", "repair"),
    (r"telephones?", "call"),
    (r"superuser", "root"),
    (r"processor time", "CPU time"),
    (r"patience", "timeout, deadline"),
    (r"cradle", "bootstrap arena"),
    (r"lanes?", "mode, queue, worker"),
    (r"siblings", "name them"),
    (r"strangers?", "unknown"),
    (r"memos?", "stack cache"),
    (r"foreign", "compat, external"),
    (r"homeless", "unassigned"),
    (r"odd", "slow path, unusual"),
    (r"keepers?", "survivor process, fd store"),
    (r"stamps?|stamped", "timestamp"),
    (r"births?", "allocation"),
    (r"courses?", "history"),
    (r"asked", "requested, query"),
    (r"behind", "after"),
    (r"gates?", "activation, threshold"),
    (r"takings?", "allocation"),
];

/// Segments of identifiers that mark the old dialect.
const BANNED_SEGMENTS: &[(&str, &str)] = &[
    ("told", "emitted, reported"),
    ("wish", "options"),
    ("said", "name the value"),
    ("asked", "query, requested"),
    ("place", "index, offset, address, path"),
    ("places", "indexes, offsets, addresses, paths"),
    ("cradle", "bootstrap"),
    ("lane", "mode, queue, worker"),
    ("lanes", "modes, queues, workers"),
    ("gate", "activation, threshold"),
    ("gates", "activations, thresholds"),
    ("memo", "cache"),
    ("memos", "caches"),
    ("nest", "deferred"),
    ("nested", "deferred"),
    ("odd", "slow"),
    ("obey", "apply"),
    ("patience", "timeout"),
    ("keeper", "survivor, fd_store"),
    ("homeless", "unassigned"),
    ("stamp", "timestamp"),
    ("stamps", "timestamps"),
    ("births", "allocations"),
    ("eaten", "suppressed"),
    ("foreign", "compat"),
    ("words", "commands, machine words"),
    ("workshop", "test_env"),
    ("stranger", "unknown"),
    ("homeless", "unassigned"),
];

/// Literals that keep their words, because files have them: keys in the JSON of reports, the
/// kernel's name of the vDSO, and the description in exported Massif files.
const QUOTED: &[&str] = &[r#""births""#, r#""gate""#, r#""gates""#, r#""linux-gate""#, "heaptape; bytes asked for,"];

struct Words {
    any: Regex,
    each: Vec<(Regex, &'static str)>,
}

static WORDS: LazyLock<Words> = LazyLock::new(|| {
    let whole = |pattern: &str| Regex::new(&format!(r"(?i)\b(?:{pattern})\b")).expect("a pattern of the list");
    let all: Vec<&str> = BANNED.iter().map(|(pattern, _)| *pattern).collect();
    let each = BANNED.iter().map(|(pattern, instead)| (whole(pattern), *instead)).collect();
    Words { any: whole(&all.join("|")), each }
});

/// Text between backquotes: code, whose names the other lints judge.
static CODE: LazyLock<Regex> = LazyLock::new(|| Regex::new("`[^`]*`").expect("a constant pattern"));

/// Checks comments, documentation, strings and identifiers of a Rust file.
pub fn rust(source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for comment in source.comments() {
        words(&source.file, comment.line, comment.text, &mut findings);
    }
    for leaf in source.leaves() {
        match &leaf.tree {
            TokenTree::Literal(literal) => {
                let text = literal.to_string();
                // Documentation comments are literals too.
                if text.starts_with(['"', 'r', 'b', 'c']) {
                    for (offset, line) in text.lines().enumerate() {
                        let line = QUOTED.iter().fold(line.to_string(), |line, quoted| line.replace(quoted, ""));
                        words(&source.file, source.line(leaf.range.start) + offset, &line, &mut findings);
                    }
                }
            }
            TokenTree::Ident(name) => segments(source, &name.to_string(), leaf.range.start, &mut findings),
            _ => {}
        }
    }
    let is_comment = |line: &str| line.trim_start().starts_with("//") || line.contains(" // ");
    for (number, line) in source.text.lines().enumerate() {
        if is_comment(line) && !line.contains('"') {
            width(&source.file, number + 1, line, &mut findings);
        }
    }
    findings
}

/// Checks the prose of a page: fenced blocks show what programs print.
pub fn markdown(file: &str, text: &str) -> Vec<Finding> {
    let (mut findings, mut is_code) = (Vec::new(), false);
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            words(file, number + 1, line, &mut findings);
        }
    }
    findings
}

/// Checks comments that start with `#`.
pub fn script(file: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| line.trim_start().starts_with('#')) {
        words(file, number + 1, line, &mut findings);
        width(file, number + 1, line, &mut findings);
    }
    findings
}

fn words(file: &str, line: usize, text: &str, findings: &mut Vec<Finding>) {
    if !WORDS.any.is_match(text) {
        return;
    }
    let text = CODE.replace_all(text, "");
    for (pattern, instead) in &WORDS.each {
        for found in pattern.find_iter(&text) {
            let text = format!("'{}': say {instead}", found.as_str());
            findings.push(Finding { file: file.to_string(), lint: "banned-word", line, text });
        }
    }
}

/// Judges where a name is declared or used alike: a renamed item clears all its uses.
fn segments(source: &Source, name: &str, start: usize, findings: &mut Vec<Finding>) {
    for segment in split(name) {
        if let Some((_, instead)) = BANNED_SEGMENTS.iter().find(|(banned, _)| *banned == segment) {
            let (file, line) = (source.file.clone(), source.line(start));
            findings.push(Finding { file, lint: "banned-name", line, text: format!("'{name}': say {instead}") });
        }
    }
}

/// Splits `snake_case`, `CamelCase` and `SCREAMING_CASE` into lower-case segments.
fn split(name: &str) -> Vec<String> {
    let mut segments = vec![String::new()];
    let mut was_lower = false;
    for c in name.chars() {
        if c == '_' || (c.is_uppercase() && was_lower) {
            segments.push(String::new());
        }
        was_lower = c.is_lowercase() || c.is_ascii_digit();
        if c != '_' {
            segments.last_mut().expect("one at least").extend(c.to_lowercase());
        }
    }
    segments
}

fn width(file: &str, line: usize, text: &str, findings: &mut Vec<Finding>) {
    let columns = text.chars().count();
    // A link or a path cannot be wrapped.
    if columns > WIDTH && text.split_whitespace().all(|word| word.len() < WIDTH / 2) {
        let text = format!("{columns} columns, at most {WIDTH} in a comment");
        findings.push(Finding { file: file.to_string(), lint: "comment-width", line, text });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: &str) -> Vec<(&'static str, usize)> {
        let source = Source::parse("a/src/b.rs", code.to_string()).unwrap();
        rust(&source).iter().map(|finding| (finding.lint, finding.line)).collect()
    }

    #[test]
    fn words_are_found_in_comments_docs_and_strings_but_not_in_code_spans() {
        assert_eq!(of("// Whoever calls.\nfn f() {}\n"), [("banned-word", 1)]);
        assert_eq!(of("/// Told by `x`.\nfn f() {}\n"), [("banned-word", 1)]);
        assert_eq!(of("fn f() -> &'static str {\n    \"so many\"\n}\n"), [("banned-word", 2)]);
        assert_eq!(of("// The `told` of old.\nfn f() {}\n"), []);
        assert_eq!(of("const KEY: &str = \"gates\";\n"), []);
        assert_eq!(of("const TEXT: &str = \"two gates\";\n"), [("banned-word", 1)]);
    }

    #[test]
    fn names_are_split_into_segments() {
        assert_eq!(of("fn is_told() {}"), [("banned-name", 1)]);
        assert_eq!(of("struct PlaceOf;"), [("banned-name", 1)]);
        assert_eq!(of("fn replaced() {}"), []);
    }

    #[test]
    fn wide_comments_are_found() {
        let wide = format!("// {}\n", "word ".repeat(25));
        assert_eq!(of(&wide), [("comment-width", 1)]);
    }
}
