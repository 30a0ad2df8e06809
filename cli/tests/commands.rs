//! Manual pages and completions exist for every command, and their readers accept them.

use std::io::Write;
use std::process::{Command, Output, Stdio};

fn heaptape(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_heaptape")).args(args).output().unwrap()
}

fn text(args: &[&str]) -> String {
    let output = heaptape(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the commands that `help all` lists, with those of groups as `daemon list`.
fn listed() -> Vec<String> {
    let page = text(&["help", "all"]);
    let mut commands = Vec::new();
    let mut group = String::new();
    let lines = page.lines().skip_while(|line| *line != "Every day:").take_while(|line| *line != "More help:");
    for line in lines {
        if let Some(name) = line.strip_suffix(':') {
            group = name.strip_prefix("heaptape ").map(|name| format!("{name} ")).unwrap_or_default();
        } else if line.starts_with("  ") && !line.starts_with("   ") {
            commands.extend(line.split_whitespace().next().map(|name| format!("{group}{name}")));
        }
    }
    assert!(commands.len() > 60, "{commands:?}");
    commands
}

#[test]
fn each_command_has_a_page_and_examples() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    assert!(heaptape(&["man", "--output", out]).status.success());
    let page = |name: &str| std::fs::read_to_string(folder.path().join(format!("heaptape{name}.1"))).unwrap();
    for command in listed() {
        let written = page(&format!("-{}", command.replace(' ', "-")));
        assert!(written.contains(".SH NAME\n") && written.contains(".SH EXAMPLES\n"), "{command}:\n{written}");
        let words: Vec<&str> = command.split(' ').collect();
        assert_eq!(text(&[&["man"], &words[..]].concat()), written, "{command}");
        for help in [[&["help"], &words[..]].concat(), [&words[..], &["--help"]].concat()] {
            let help = text(&help);
            assert!(help.starts_with("Examples:\n") || help.contains("\nExamples:\n"), "{command}");
        }
    }
    assert!(page("").contains("heaptape\\-export(1)"));
    assert!(page("-filters").contains("min\\-age") && !page("-leaks").contains("min\\-age"));
    assert!(page("-status").contains("EXIT STATUS"));
    assert!(page("-leaks").contains(".SH SYNOPSIS\nheaptape leaks [OPTIONS] [DIR|FILE]...\n"), "{}", page("-leaks"));
    assert!(text(&["man", "export"]).contains("speedscope"));
    assert_eq!(heaptape(&["man", "no-such-command"]).status.code(), Some(2));
}

#[test]
fn the_first_page_is_printed_without_a_command() {
    let output = heaptape(&[]);
    let page = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0));
    assert!(page.lines().count() <= 20 && page.contains("heaptape record -- PROG ARGS"), "{page}");
    for args in [["-h"].as_slice(), &["help"]] {
        assert_eq!(text(args), page);
    }
    assert!(text(&["help", "status"]).contains("--fail-if"));
    assert!(text(&["help", "filters"]).contains("--min-age"));
    assert_eq!(text(&["--help"]), text(&["help", "all"]));
}

/// Scripts and units of earlier versions have these command lines.
#[test]
fn earlier_names_of_commands_work() {
    for (earlier, now) in [
        (vec!["mprof", "-V"], vec!["compat", "mprof", "-V"]),
        (vec!["mptrace", "-V"], vec!["compat", "mptrace", "-V"]),
        (vec!["mleak", "-V"], vec!["compat", "mleak", "-V"]),
        (vec!["gprof", "--help"], vec!["compat", "gprof", "--help"]),
        (vec!["dcpiprof", "--help"], vec!["compat", "dcpiprof", "--help"]),
        (vec!["dcpilist", "-help"], vec!["compat", "dcpilist", "-help"]),
        (vec!["dcpicat", "-h"], vec!["compat", "dcpicat", "-h"]),
        (vec!["dcpidiff", "-h"], vec!["compat", "dcpidiff", "-h"]),
        (vec!["ctl", "list", "-h"], vec!["daemon", "list", "-h"]),
        (vec!["ctl", "--json", "status", "-h"], vec!["daemon", "status", "--json", "-h"]),
        (vec!["ctl", "-h"], vec!["daemon", "-h"]),
        (vec!["daemon", "--socket", "/x", "--help"], vec!["daemon", "start", "--help"]),
        (vec!["epochs", "-h"], vec!["daemon", "epochs", "-h"]),
        (vec!["ship", "-h"], vec!["daemon", "ship", "-h"]),
        (vec!["push", "-h"], vec!["daemon", "push", "-h"]),
        (vec!["send", "-h"], vec!["daemon", "send", "-h"]),
        (
            vec!["env", "--shell", "--library", "/l", "--socket", "/s"],
            vec!["daemon", "env", "--shell", "--library", "/l", "--socket", "/s"],
        ),
        (vec!["man", "ctl"], vec!["man", "daemon"]),
        (vec!["help", "epochs"], vec!["help", "daemon", "epochs"]),
    ] {
        assert_eq!(text(&earlier), text(&now), "{earlier:?}");
    }
    let earlier = heaptape(&["ctl", "--control", "/no/such/socket", "status"]);
    assert_eq!(earlier.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&earlier.stderr).contains("no daemon answers at /no/such/socket"));
}

#[test]
fn shells_accept_the_completions() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = text(&["completions", shell]);
        for command in listed() {
            assert!(script.contains(command.split(' ').next_back().unwrap()), "{shell}: {command}");
        }
    }
    // The script, then its completion of these words.
    let script = text(&["completions", "bash"]);
    for (words, wanted) in [
        ("heaptape lea", "leaks"),
        ("heaptape daemon epochs --stat", "--state"),
        ("heaptape peak --min-a", "--min-age"),
    ] {
        let count = words.split(' ').count() - 1;
        let (last, previous) = (words.split(' ').next_back().unwrap(), words.split(' ').rev().nth(1).unwrap());
        let request = format!(
            "\nCOMP_WORDS=({words}); COMP_CWORD={count}; _heaptape heaptape {last} {previous}; echo \"${{COMPREPLY[@]}}\"\n"
        );
        let mut bash = Command::new("bash").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        bash.stdin.take().unwrap().write_all((script.clone() + &request).as_bytes()).unwrap();
        let output = bash.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), wanted, "{words}");
    }
}

#[test]
fn version_has_protocol_and_recordings() {
    let (protocol, minor) = (heaptape_recorder::WIRE_VERSION, heaptape_recorder::WIRE_MINOR);
    let version = env!("CARGO_PKG_VERSION");
    let tape = heaptape_formats::tape::FILE_VERSION;
    assert_eq!(text(&["-V"]), format!("heaptape {version}\n"));
    let long = text(&["--version"]);
    let lines: Vec<&str> = long.lines().collect();
    assert_eq!(lines.len(), 3, "{long}");
    assert_eq!(lines[0], format!("heaptape {version}"));
    assert!(lines[1].starts_with(&format!("protocol {protocol}.{minor}: ")), "{long}");
    assert!(lines[2].starts_with(&format!("tape {tape}: ")), "{long}");
}
