//! The list of findings that are still allowed: `LINT FILE COUNT`, sorted, one line each.

use crate::Finding;
use std::collections::BTreeMap;

const LIST: &str = "ci/lint-exceptions.txt";
const HEAD: &str = "# Findings of ci/lints that are still there, by lint and file. Counts only get lower:\n\
                    # `cargo run -p heaptape-lints -- --shrink` writes the lower ones.\n";

/// A lint and a file.
type Key = (String, String);

/// Compares findings and list, and prints what differs. Returns whether nothing does.
///
/// # Errors
/// Returns an error if the list cannot be read.
pub fn check(findings: &[Finding]) -> Result<bool, String> {
    let (allowed, found) = (read()?, count(findings));
    let (mut is_good, mut fewer) = (true, 0);
    for (key, &count) in &found {
        let most = allowed.get(key).copied().unwrap_or(0);
        if count > most {
            is_good = false;
            for finding in findings.iter().filter(|finding| finding.lint == key.0 && finding.file == key.1) {
                println!("{}:{}: {}: {}", finding.file, finding.line, finding.lint, finding.text);
            }
            println!("lints: {} has {count} findings of {}, {most} allowed", key.1, key.0);
        }
    }
    for (key, &most) in &allowed {
        let count = found.get(key).copied().unwrap_or(0);
        if count < most {
            fewer += most - count;
        }
    }
    if fewer > 0 {
        println!("lints: {fewer} findings fewer than {LIST} allows: run heaptape-lints --shrink");
    }
    if is_good {
        println!("lints: {} findings are excepted, none is new", findings.len());
    }
    Ok(is_good)
}

/// Writes the list with the lower of the listed and the found counts.
///
/// # Errors
/// Returns an error if the list cannot be read or written.
pub fn shrink(findings: &[Finding]) -> Result<(), String> {
    let text = shrunk(read()?, &count(findings));
    std::fs::write(LIST, text).map_err(|e| format!("cannot write {LIST}: {e}"))
}

fn shrunk(listed: BTreeMap<Key, usize>, found: &BTreeMap<Key, usize>) -> String {
    let mut text = HEAD.to_string();
    for ((lint, file), most) in listed {
        let count = found.get(&(lint.clone(), file.clone())).copied().unwrap_or(0).min(most);
        if count > 0 {
            text += &format!("{lint} {file} {count}\n");
        }
    }
    text
}

fn count(findings: &[Finding]) -> BTreeMap<Key, usize> {
    let mut counts = BTreeMap::new();
    for finding in findings {
        *counts.entry((finding.lint.to_string(), finding.file.clone())).or_insert(0) += 1;
    }
    counts
}

/// Reads the list. Without the file, nothing is allowed.
fn read() -> Result<BTreeMap<Key, usize>, String> {
    match std::fs::read_to_string(LIST) {
        Ok(text) => parse(&text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(BTreeMap::new()),
        Err(error) => Err(format!("cannot read {LIST}: {error}")),
    }
}

fn parse(text: &str) -> Result<BTreeMap<Key, usize>, String> {
    let mut counts = BTreeMap::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [lint, file, count] = fields[..] else {
            return Err(format!("{LIST}:{}: '{line}' is not LINT FILE COUNT", number + 1));
        };
        let count = count.parse().map_err(|e| format!("{LIST}:{}: count '{count}': {e}", number + 1))?;
        counts.insert((lint.to_string(), file.to_string()), count);
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_shrinks_to_its_head_and_is_read_back() {
        let found = |count| BTreeMap::from([(("banned-word".to_string(), "a.rs".to_string()), count)]);
        let shrunk_to = |count| shrunk(parse("banned-word a.rs 3\nwide-tuple b.rs 1\n").unwrap(), &found(count));
        assert_eq!(shrunk_to(2), format!("{HEAD}banned-word a.rs 2\n"));
        assert_eq!(shrunk_to(4), format!("{HEAD}banned-word a.rs 3\n"));
        assert_eq!(shrunk_to(0), HEAD);
        assert_eq!(parse(HEAD).unwrap(), BTreeMap::new());
        assert!(parse("banned-word a.rs\n").is_err());
    }
}
