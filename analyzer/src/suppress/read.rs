//! Files of suppressions. Which dialect a file is in is told by its lines: a brace alone begins a block of valgrind's.

use super::{Kind, Rule, Step};
use crate::pattern::Pattern;

/// Why a file is no file of suppressions.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{origin}: {why}")]
pub struct Error {
    /// File and line.
    pub origin: String,
    /// What is wrong there.
    pub why: &'static str,
}

/// Reads rules about leaks; rules about anything else are passed over.
///
/// # Errors
/// At the first line that is no suppression.
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
            // Rules of the other sanitizers may stand in the same file.
            Some((kind, _))
                if !kind.is_empty() && kind.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_') => {}
            _ => {
                return Err(Error {
                    origin,
                    why: "neither leak:PATTERN nor the brace that begins a block of valgrind's",
                });
            }
        }
    }
    Ok(rules)
}

/// The rest of a block, behind its brace; none when it is not about leaks.
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
            // Whether a block is still reachable is not known here: a rule holds for all kinds.
            Some(("match-leak-kinds", _)) => continue,
            // Extra lines of other kinds of errors (system calls' parameters).
            _ if about_leaks == Some(false) => continue,
            _ => return Err(Error { origin, why: "a block holds fun:, obj:, src: and ... lines" }),
        };
        steps.push(step);
    }
    Err(Error { origin, why: "a block without its closing brace" })
}
