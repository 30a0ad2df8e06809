//! Parses suppression files. The dialect is recognized line by line: a single brace starts a
//! Valgrind block.

use super::{Kind, Rule, Step};
use heaptape_formats::pattern::Pattern;

/// A syntax error in a suppression file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: {why}")]
pub struct Error {
    /// File and line of the error.
    pub origin: String,
    /// Description of the error.
    pub why: &'static str,
}

/// Parses the rules about leaks and ignores all others. `name` is the file name, for messages.
///
/// # Errors
/// Returns an error for the first line that is not a suppression.
pub fn read(name: &str, text: &str) -> Result<Vec<Rule>, Error> {
    let mut rules = Vec::new();
    let mut lines = text.lines().map(str::trim).zip(1u32..);
    while let Some((line, number)) = lines.next() {
        let origin = format!("{name}:{number}");
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if line == "{" {
            rules.extend(block(&mut lines, origin)?);
            continue;
        }
        match line.split_once(':') {
            Some(("leak", pattern)) => {
                let kind = Kind::Lsan(Pattern::found(pattern.trim()));
                rules.push(Rule::new(pattern.trim(), origin, kind));
            }
            // The same file may contain rules of other sanitizers.
            Some((kind, _))
                if !kind.is_empty() && kind.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_') => {}
            _ => {
                return Err(Error { origin, why: "expected leak:PATTERN, or the brace that starts a Valgrind block" });
            }
        }
    }
    Ok(rules)
}

/// Parses the rest of a Valgrind block after its opening brace. Returns `None` if it is not about
/// leaks.
fn block<'a>(lines: &mut impl Iterator<Item = (&'a str, u32)>, origin: String) -> Result<Option<Rule>, Error> {
    let mut name = None;
    let mut about_leaks = None;
    let mut steps = Vec::new();
    for (line, _) in lines {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if line == "}" {
            let name = name.unwrap_or_default();
            return Ok(about_leaks.unwrap_or(false).then(|| Rule::new(name, origin, Kind::Valgrind(steps))));
        }
        if name.is_none() {
            name = Some(line);
            continue;
        }
        if about_leaks.is_none() {
            let (tools, kind) = line.split_once(':').unwrap_or(("", line));
            let tool = tools.is_empty() || tools.split(',').any(|tool| tool.eq_ignore_ascii_case("memcheck"));
            about_leaks = Some(tool && kind.trim() == "Leak");
            continue;
        }
        let step = match line.split_once(':') {
            _ if line == "..." => Step::Any,
            Some(("fun", pattern)) => Step::Function(Pattern::whole(pattern)),
            Some(("obj", pattern)) => Step::Module(Pattern::whole(pattern)),
            Some(("src", pattern)) => match pattern.rsplit_once(':') {
                Some((file, line)) if line.parse::<u32>().is_ok() => {
                    Step::Source(Pattern::whole(file), line.parse().ok())
                }
                _ => Step::Source(Pattern::whole(pattern), None),
            },
            // Recordings do not show whether a block is still reachable, so a rule applies to all
            // kinds.
            Some(("match-leak-kinds", _)) => continue,
            // Extra lines of other kinds of errors, such as parameters of system calls.
            _ if about_leaks == Some(false) => continue,
            _ => return Err(Error { origin, why: "expected a fun:, obj:, src: or ... line in a block" }),
        };
        steps.push(step);
    }
    Err(Error { origin, why: "block without closing brace" })
}
