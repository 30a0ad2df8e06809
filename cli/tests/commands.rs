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

/// Returns the commands that `--help` lists.
fn listed() -> Vec<String> {
    let help = text(&["--help"]);
    let lines = help.lines().skip_while(|line| *line != "Record:").take_while(|line| *line != "Options:");
    let commands: Vec<String> = lines
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next().map(str::to_string))
        .filter(|name| name != "help")
        .collect();
    assert!(commands.len() > 20, "{commands:?}");
    commands
}

#[test]
fn each_command_has_a_page_and_examples() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    assert!(heaptape(&["man", "--output", out]).status.success());
    for command in listed() {
        let page = std::fs::read_to_string(folder.path().join(format!("heaptape-{command}.1"))).unwrap();
        assert!(page.contains(".SH NAME\n") && page.contains(".SH OPTIONS\n"), "{command}:\n{page}");
        assert!(page.contains(".SH EXAMPLES\n"), "{command}:\n{page}");
        for help in [["help", &command], [&command, "--help"]] {
            let help = text(&help);
            assert!(help.starts_with("Examples:\n") || help.contains("\nExamples:\n"), "{command}");
        }
    }
    assert!(std::fs::read_to_string(folder.path().join("heaptape.1")).unwrap().contains("heaptape\\-export(1)"));
    assert!(text(&["man", "export"]).contains("speedscope"));
    assert_eq!(heaptape(&["man", "no-such-command"]).status.code(), Some(2));
}

#[test]
fn shells_accept_the_completions() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = text(&["completions", shell]);
        for command in listed() {
            assert!(script.contains(&command), "{shell}: {command}");
        }
    }
    // The script, then its completion of `heaptape lea`.
    let script = text(&["completions", "bash"]);
    let request =
        "\nCOMP_WORDS=(heaptape lea); COMP_CWORD=1; _heaptape heaptape lea heaptape; echo \"${COMPREPLY[@]}\"\n";
    let mut bash = Command::new("bash").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    bash.stdin.take().unwrap().write_all((script + request).as_bytes()).unwrap();
    let output = bash.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "leaks");
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
