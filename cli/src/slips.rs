//! What somebody meant who typed a command or an option that does not exist.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Commands of other tools, and what they are called here.
const SYNONYMS: &[(&str, &str)] = &[
    ("run", "record"),
    ("exec", "record"),
    ("start", "record"),
    ("trace", "record"),
    ("profile", "record"),
    ("leak", "leaks"),
    ("show", "report"),
    ("summary", "report"),
    ("stats", "report"),
    ("print", "report"),
    ("top-sites", "sites"),
    ("compare", "diff"),
    ("check", "verify"),
    ("flamegraph", "export"),
    ("html", "export"),
    ("attach", "daemon"),
];

/// Edits between a mistyped name and the one that was meant, at most.
const EDITS: usize = 2;

/// A message for an unknown command or option; nothing for other errors, which have their own.
pub fn explain(error: &clap::Error, commands: &[String], words: &[String]) -> Option<String> {
    let context = |kind: ContextKind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let typed = context(ContextKind::InvalidSubcommand)?;
            let hint = match meant(&typed, commands) {
                Some("record") => "; to record a program: heaptape record -- PROG ARGS".to_owned(),
                Some(name) => format!("; did you mean {name}?"),
                None => "; heaptape --help lists all".to_owned(),
            };
            Some(format!("no such command: {typed}{hint}"))
        }
        ErrorKind::UnknownArgument => {
            let typed = context(ContextKind::InvalidArg).filter(|typed| typed.starts_with('-'))?;
            let command = words.get(1).filter(|word| commands.contains(word)).map_or("", String::as_str);
            let near = match error.get(ContextKind::SuggestedArg) {
                Some(ContextValue::String(name)) => format!("; did you mean {name}?"),
                _ if command == "record" => {
                    "; a program whose name begins with - is given after --: heaptape record -- PROG ARGS".to_owned()
                }
                _ => format!("; heaptape {command}{}--help lists all", if command.is_empty() { "" } else { " " }),
            };
            Some(format!("unknown option {typed}{near}"))
        }
        _ => None,
    }
}

/// The command that was meant: a synonym, or else the one that is the fewest edits away.
fn meant<'a>(typed: &str, commands: &'a [String]) -> Option<&'a str> {
    let find = |name: &str| commands.iter().find(|command| *command == name);
    if let Some((_, name)) = SYNONYMS.iter().find(|(word, _)| *word == typed) {
        return find(name).map(String::as_str);
    }
    let distance = |command: &String| strsim::damerau_levenshtein(typed, command);
    let nearest = commands.iter().min_by_key(|command| distance(command))?;
    (distance(nearest) <= EDITS.min(typed.chars().count() / 2)).then_some(nearest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistyped_commands_are_recognized() {
        let commands: Vec<String> = ["record", "leaks", "mleak", "report", "peak", "top"].map(String::from).into();
        for (typed, wanted) in [
            ("leeks", Some("leaks")),
            ("laeks", Some("leaks")),
            ("recrod", Some("record")),
            ("run", Some("record")),
            ("reprot", Some("report")),
            ("x", None),
            ("something", None),
            ("html", None),
        ] {
            assert_eq!(meant(typed, &commands), wanted, "{typed}");
        }
    }
}
