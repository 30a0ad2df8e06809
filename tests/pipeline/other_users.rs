//! Other users, and hostile names of programs.

use heaptape_tests::{Program, is_root, target, test_env, torture};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// The name of a program contains a path, escape sequences and bidirectional marks.
#[test]
fn hostile_program_name_is_neutralized() {
    let folder = test_env::folder();
    let name = OsStr::from_bytes(b"..\\..\x1b]0;owned\x07\n\r=cmd()\xe2\x80\xae<script>");
    let path = folder.path().join(name);
    test_env::copy(target::c("small"), &path);
    let recording = Program::new(&path).arg("3").recorded();
    assert_eq!(recording.outcome.code(), 3);
    for entry in std::fs::read_dir(&recording.folder).expect("the recording").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let is_harmless = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        assert!(name.chars().all(is_harmless) && !name.starts_with('.'), "{name:?}");
    }
    let mut output = 0;
    for arguments in [
        &["report"][..],
        &["leaks"],
        &["verify"],
        &["peak"],
        &["sites"],
        &["timeline"],
        &["threads"],
        &["report", "--json"],
    ] {
        let outcome = recording.heaptape(arguments);
        assert!(outcome.code() < 2, "{arguments:?}: {outcome}");
        let text = outcome.text() + &outcome.error();
        let is_trick = |c: char| (c.is_control() && c != '\n' && c != '\t') || c == '\u{202e}';
        assert!(
            !text.contains(is_trick),
            "{arguments:?}: {:?}",
            text.chars().filter(|c| is_trick(*c)).collect::<String>()
        );
        output += 1;
    }
    torture::passed(43, "reports about a program with a hostile name", output);
}

/// Another user can neither read a recording nor find the socket of its recorder.
#[test]
fn another_user_can_neither_read_nor_reach_a_recording() {
    if !is_root() || test_env::find("setpriv").is_none() {
        return;
    }
    // The parent directory is accessible, so that only the rights of the recording protect it.
    let folder = test_env::folder();
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).expect("rights");
    let destination = folder.path().join("r");
    let other = "setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all --bounding-set=-all env -i PATH=\"$PATH\" sh -c";
    let line = format!(
        r#"{other} 'ls "$0" && echo listed; cat "$0"/recording.json && echo read; touch "$0"/x && echo written; rm -rf "$0"; ls -d "$0"' "$1"
        folder=${{HEAPTAPE_SOCKET%/*}} name=${{HEAPTAPE_SOCKET##*/}}
        ls "$folder" | wc -l
        found=$({other} 'ls "$0"; ls "$0"/*; rm -rf "$0"; cat /proc/net/unix; cat /proc/[0-9]*/environ; cat /proc/[0-9]*/cmdline' "$folder" |
            tr '\0' '\n')
        case $found in *"$folder/socket"*) echo the name that it was bound to;; esac
        case $found in *"$name"*) echo the name of the socket;; esac
        [ -e "$folder/socket" ] && echo still there
        echo done"#
    );
    let recorder = Program::new(test_env::command()).args(["record", "-q", "-o"]).arg(&destination).arg("--");
    let outcome = recorder.args(["sh", "-c", &line, "sh"]).arg(&destination).plain().success();
    let text = outcome.text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(
        lines,
        [destination.to_str().expect("a path"), "1", "the name that it was bound to", "done"],
        "{outcome}"
    );
    assert!(destination.join("recording.json").is_file(), "{outcome}");
    torture::passed(42, "denied attempts of another user", 9);
}
