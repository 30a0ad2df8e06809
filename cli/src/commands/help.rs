//! The pages of the help: the first one, with the commands of every day; all commands; filters and
//! exit statuses, which many commands share; and the help of each command.

use super::{GROUPS as COMMANDS, common, examples};
use crate::exit;
use clap::{Arg, Command};
use heaptape_analyzer::text;
use heaptape_formats::quantity;
use std::collections::HashMap;
use std::ffi::OsString;

/// The commands of every day.
const EVERYDAY: [(&str, &str); 10] = [
    ("record -- PROG ARGS", "run a program and record its heap"),
    ("attach PID", "record a program that's already running"),
    ("leaks [DIR]", "what was never freed, worst first"),
    ("peak [DIR]", "what was live when the heap was largest"),
    ("sites [DIR]", "which lines allocate most"),
    ("diff [A B]", "what changed between two runs"),
    ("timeline [DIR]", "live bytes over the run"),
    ("rss [DIR]", "why the process is larger than its heap"),
    ("open [DIR]", "all of it as a page in the browser"),
    ("top", "the programs that the daemon records, live"),
];

/// What the first page says below the commands.
const MORE: &str = "\
Without DIR, a command reads the newest recording in this folder.

  look closer      heaptape report, why, source, callers, verify, export, ...
  record services  heaptape daemon start, list, show, why, ...
  as other tools   heaptape compat mprof, gprof, ...
  help             heaptape COMMAND -h, heaptape help all";

/// Options that the reports share and their help shows nevertheless.
const SHOWN: [&str; 4] = ["paths", "json", "top", "by"];

/// Examples that the short help of a command shows.
const SHORT_EXAMPLES: usize = 2;

/// Returns the first page.
pub(crate) fn first() -> String {
    let width = EVERYDAY.iter().map(|(usage, _)| usage.len()).max().unwrap_or(0);
    let lines = EVERYDAY.iter().map(|(usage, what)| format!("  heaptape {usage:width$}  {what}\n"));
    format!("heaptape {}: {ABOUT}\n\n{}\n{MORE}\n", env!("CARGO_PKG_VERSION"), lines.collect::<String>())
}

/// What the command is.
pub(crate) const ABOUT: &str = "a tape recorder for the heap";

/// Returns the page that the command line asks for, unless clap makes it.
pub(crate) fn page(args: &[OsString]) -> Option<String> {
    let words: Vec<&str> = args.iter().skip(1).map(|arg| arg.to_str().unwrap_or_default()).collect();
    match words[..] {
        ["-h"] | ["help"] => Some(first()),
        ["--help"] | ["help", "all" | "--all" | "-a"] => Some(all(&crate::command())),
        ["help", "filters" | "filter"] => Some(filters()),
        ["help", "status"] => Some(status()),
        _ => None,
    }
}

/// Returns the page of all commands.
fn all(command: &Command) -> String {
    let mut page =
        format!("heaptape {}: {ABOUT}\n\nUsage: heaptape COMMAND [OPTIONS] [ARGS]\n", env!("CARGO_PKG_VERSION"));
    let width = text::Style::of_stdout().width;
    let line = |page: &mut String, name: &str, command: Option<&Command>| {
        let about = command.and_then(Command::get_about).map(ToString::to_string).unwrap_or_default();
        *page += &text::wrapped(&format!("  {name:16} {about}"), width);
        page.push('\n');
    };
    for (group, names) in COMMANDS {
        page += &format!("\n{group}:\n");
        for name in names.iter().map(|name| name.replace('_', "-")) {
            line(&mut page, &name, command.find_subcommand(&name));
        }
    }
    for group in GROUPS {
        page += &format!("\nheaptape {group}:\n");
        let found = command.find_subcommand(group).into_iter().flat_map(Command::get_subcommands);
        for command in found.filter(|command| command.get_name() != "help") {
            line(&mut page, command.get_name(), Some(command));
        }
    }
    let more = [
        ("COMMAND -h", "the options of a command; --help explains all of them"),
        ("help filters", "time ranges, processes, filters, names: for all reports"),
        ("help status", "exit statuses"),
        ("man COMMAND", "the manual page"),
        ("--version", "the version, and what it works with"),
    ];
    page += "\nMore help:\n";
    page.extend(more.map(|(name, what)| format!("  heaptape {name:12}  {what}\n")));
    page + &format!("\n{}\n", quantities())
}

/// Commands that are groups of commands.
pub(crate) const GROUPS: [&str; 2] = ["daemon", "compat"];

/// Returns the options that the reports share, as a command without a name.
pub(crate) fn shared() -> Command {
    let command = Command::new("filters").disable_help_flag(true).max_term_width(110);
    <common::Common as clap::Args>::augment_args(command)
        .mut_args(|arg| if SHOWN.contains(&arg.get_id().as_str()) { arg.hide(true) } else { arg })
}

/// Returns the page of the options that the reports share.
fn filters() -> String {
    let options = shared().help_template("{all-args}").render_long_help();
    format!("Time ranges, processes, names and filters of all reports.\n\n{options}\n{}\n", quantities())
}

/// Returns how sizes and times are written.
fn quantities() -> String {
    let width = text::Style::of_stdout().width;
    quantity::HELP.lines().map(|line| text::wrapped(line, width)).collect::<Vec<_>>().join("\n")
}

fn status() -> String {
    format!("{}\n\nResults go to standard output, messages to standard error.\n", exit::help())
}

/// Returns the command with its help: examples on top, and what many commands share as the name of
/// its page.
pub(crate) fn complete(command: Command) -> Command {
    let shared = shared();
    let about = |arg: &Arg| arg.get_help().map(ToString::to_string);
    let shared = shared.get_arguments().filter(|arg| !arg.is_hide_set());
    let shared = shared.filter_map(|arg| Some((arg.get_id().to_string(), about(arg)?))).collect();
    command.mut_subcommands(|command| with_help("", command, &shared))
}

/// Returns a command of a group with its help. `shared` has the options of all reports with what
/// their help says.
fn with_help(group: &str, command: Command, shared: &HashMap<String, String>) -> Command {
    let path = format!("{group}{}", command.get_name());
    let below = format!("{path} ");
    let command = command.mut_subcommands(|command| with_help(&below, command, shared));
    let is_shared = |arg: &Arg| {
        let text = shared.get(arg.get_id().as_str());
        text.is_some() && text == arg.get_help().map(ToString::to_string).as_ref()
    };
    let has_shared = command.get_arguments().any(is_shared);
    let mut command = command.mut_args(|arg| {
        if is_shared(&arg) { arg.hide_short_help(true).hide_long_help(true) } else { under_own_heading(arg) }
    });
    let more = if has_shared { "Time ranges, processes, filters, names: heaptape help filters\n" } else { "" };
    let more = format!("{more}Exit status: heaptape help status");
    let own = command.get_after_help().map(|text| format!("{text}\n\n")).unwrap_or_default();
    let examples = |most: usize| {
        let text = examples::of(&path, most);
        if text.is_empty() { text } else { format!("{text}\n\n") }
    };
    command = command.before_help(examples(SHORT_EXAMPLES)).before_long_help(examples(usize::MAX));
    command = command.after_help(more.clone()).after_long_help(format!("{own}{more}"));
    command.help_template("{about-with-newline}\n{before-help}{usage-heading} {usage}\n\n{all-args}{after-help}")
}

/// Takes the heading of the shared filters off an option of one command: it stands for all options
/// that come after the filters.
fn under_own_heading(arg: Arg) -> Arg {
    if arg.get_help_heading() == Some(common::FILTERS) { arg.help_heading(None::<&str>) } else { arg }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_page_is_short_and_its_commands_exist() {
        let page = first();
        assert!(page.lines().count() <= 20 && page.lines().all(|line| line.len() <= 80), "{page}");
        let command = crate::command();
        for (usage, _) in EVERYDAY {
            let name = usage.split(' ').next().unwrap_or_default();
            assert!(command.find_subcommand(name).is_some(), "{name}");
        }
    }

    #[test]
    fn short_help_fits_on_one_screen() {
        fn check(command: &Command, path: &str, faults: &mut Vec<String>) {
            for below in command.get_subcommands().filter(|below| below.get_name() != "help") {
                let path = format!("{path} {}", below.get_name());
                let help = below.clone().term_width(100).render_help().to_string();
                let lines = help.lines().count();
                if lines > 40 {
                    faults.push(format!("{path}: {lines} lines"));
                }
                check(below, &path, faults);
            }
        }
        let mut faults = Vec::new();
        check(&crate::command(), "heaptape", &mut faults);
        assert!(faults.is_empty(), "{}", faults.join("\n"));
    }

    #[test]
    fn shared_options_are_on_their_page_and_in_no_other_help() {
        let page = filters();
        let mut command = crate::command();
        command.build();
        let leaks = command.find_subcommand_mut("leaks").expect("a command").render_long_help().to_string();
        for option in
            ["--from", "--until", "--between", "--process", "--function", "--min-age", "--wrapper", "--strict"]
        {
            assert!(page.contains(option) && !leaks.contains(&format!("  {option}")), "{option}\n{page}\n{leaks}");
        }
        assert!(
            leaks.contains("--json") && !page.contains("--json") && leaks.contains("heaptape help filters"),
            "{leaks}"
        );
    }
}
