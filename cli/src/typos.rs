//! Suggestions for mistyped commands and options.

use clap::error::{ContextKind, ContextValue, ErrorKind};
use heaptape_analyzer::is_recording;
use heaptape_recorder::run::launch::open_program;
use std::ffi::OsStr;
use std::path::Path;

/// Command names of other tools, each with the command that does the same here.
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
    ("flamegraph", "open"),
    ("html", "open"),
    ("page", "open"),
    ("view", "open"),
];

/// Maximum edit distance between a mistyped command and its suggestion.
const MAX_EDITS: usize = 2;

/// Returns the message for an unknown command or option. Other errors have a message of clap's.
/// `commands` are those of the group, if the command line names one.
pub(crate) fn explain(
    error: &clap::Error,
    group: Option<&str>,
    commands: &[String],
    args: &[String],
) -> Option<String> {
    let context = |kind: ContextKind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let typed = context(ContextKind::InvalidSubcommand)?;
            let hint = match suggest(&typed, commands) {
                Some(name) if group.is_some() => format!("; did you mean {name}?"),
                None if group.is_some() => format!("; heaptape {} -h lists all", group.unwrap_or_default()),
                _ if !typed.starts_with('-') && is_recording(Path::new(&typed)) => {
                    format!("; it's a recording: heaptape leaks {typed}, or heaptape open {typed}")
                }
                _ if typed.contains('/') && Path::new(&typed).is_file() => {
                    format!("; to record a program: heaptape record -- {}", from(&typed, args))
                }
                Some("record") => "; to record a program: heaptape record -- PROG ARGS".to_owned(),
                Some(name) => format!("; did you mean {name}?"),
                None if open_program(OsStr::new(&typed)).is_some() => {
                    format!("; to record the program {typed}: heaptape record -- {}", from(&typed, args))
                }
                None => "; heaptape help all lists all".to_owned(),
            };
            Some(format!("unknown command '{typed}'{hint}"))
        }
        ErrorKind::UnknownArgument => {
            let typed = context(ContextKind::InvalidArg).filter(|typed| typed.starts_with('-'))?;
            let is_known = |arg: &&String| group.is_some() || commands.contains(arg);
            let command = args.get(1).filter(is_known).map_or("", String::as_str);
            let near = match error.get(ContextKind::SuggestedArg) {
                Some(ContextValue::String(name)) => format!("; did you mean {name}?"),
                _ if command == "record" => {
                    "; put -- before a program whose name begins with -: heaptape record -- PROG ARGS".to_owned()
                }
                _ => format!("; heaptape {command}{}--help lists all", if command.is_empty() { "" } else { " " }),
            };
            Some(format!("unknown option {typed}{near}"))
        }
        _ => None,
    }
}

/// Returns the words of the command line from a program's name on, as a shell reads them.
fn from(program: &str, args: &[String]) -> String {
    let words = args.iter().skip_while(|arg| *arg != program);
    let quoted = |word: &String| {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-./=:,+@%".contains(&byte);
        match !word.is_empty() && word.bytes().all(is_plain) {
            true => word.clone(),
            false => format!("'{}'", word.replace('\'', "'\\''")),
        }
    };
    words.map(quoted).collect::<Vec<_>>().join(" ")
}

/// Returns the most likely command: a synonym, else the one with the smallest edit distance.
fn suggest<'a>(typed: &str, commands: &'a [String]) -> Option<&'a str> {
    let find = |name: &str| commands.iter().find(|command| *command == name);
    if let Some((_, name)) = SYNONYMS.iter().find(|(synonym, _)| *synonym == typed) {
        return find(name).map(String::as_str);
    }
    let distance = |command: &String| strsim::damerau_levenshtein(typed, command);
    let nearest = commands.iter().min_by_key(|command| distance(command))?;
    (distance(nearest) <= MAX_EDITS.min(typed.chars().count() / 2)).then_some(nearest)
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
            assert_eq!(suggest(typed, &commands), wanted, "{typed}");
        }
    }
}
