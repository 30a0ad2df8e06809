//! Manual pages and completions: of every word, and such that their readers take them.

use std::io::Write;
use std::process::{Command, Output, Stdio};

fn heaptape(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_heaptape")).args(words).output().unwrap()
}

fn text(words: &[&str]) -> String {
    let said = heaptape(words);
    assert!(said.status.success(), "{words:?}: {}", String::from_utf8_lossy(&said.stderr));
    String::from_utf8(said.stdout).unwrap()
}

/// The words that `--help` lists.
fn listed() -> Vec<String> {
    let help = text(&["--help"]);
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let words: Vec<String> = lines
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next().map(str::to_string))
        .filter(|word| word != "help")
        .collect();
    assert!(words.len() > 20, "{words:?}");
    words
}

#[test]
fn each_word_has_a_page_and_examples() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    assert!(heaptape(&["man", "--output", out]).status.success());
    for word in listed() {
        let page = std::fs::read_to_string(folder.path().join(format!("heaptape-{word}.1"))).unwrap();
        assert!(page.contains(".SH NAME\n") && page.contains(".SH OPTIONS\n"), "{word}:\n{page}");
        assert!(page.contains(".SH EXAMPLES\n"), "{word}:\n{page}");
        assert!(text(&["help", &word]).contains("\nExamples:\n"), "{word}");
    }
    assert!(std::fs::read_to_string(folder.path().join("heaptape.1")).unwrap().contains("heaptape\\-export(1)"));
    assert!(text(&["man", "export"]).contains("speedscope"));
    assert_eq!(heaptape(&["man", "no-such-word"]).status.code(), Some(2));
}

#[test]
fn completions_are_taken_by_the_shell() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = text(&["completions", shell]);
        for word in listed() {
            assert!(script.contains(&word), "{shell}: {word}");
        }
    }
    // The script, then what it completes of `heaptape lea`.
    let script = text(&["completions", "bash"]);
    let ask = "\nCOMP_WORDS=(heaptape lea); COMP_CWORD=1; _heaptape heaptape lea heaptape; echo \"${COMPREPLY[@]}\"\n";
    let mut bash = Command::new("bash").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    bash.stdin.take().unwrap().write_all((script + ask).as_bytes()).unwrap();
    let said = bash.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&said.stdout).trim(), "leaks");
}
