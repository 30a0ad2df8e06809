//! Earlier spellings of commands. Those of a group once stood beside all others (`heaptape ctl
//! list`, `heaptape mprof`), and scripts and units still write them so.

use std::ffi::OsString;

/// Commands that are in the group `daemon` now.
const DAEMON: [&str; 5] = ["env", "epochs", "ship", "push", "send"];
/// Commands that are in the group `compat` now.
const COMPAT: [&str; 9] =
    ["mprof", "mptrace", "mleak", "gprof", "dcpiprof", "dcpilist", "dcpicat", "dcpidiff", "dcpiscan"];
/// DCPI's commands for its daemon, and ours that do the same.
const DCPI: [(&str, &[&str]); 5] = [
    ("dcpictl", &["daemon"]),
    ("dcpiepoch", &["daemon", "epoch"]),
    ("dcpiflush", &["daemon", "flush"]),
    ("dcpiquit", &["daemon", "stop"]),
    ("dcpilabel", &["record", "--label"]),
];

/// Returns the command line in the present spelling.
pub(crate) fn current(mut args: Vec<OsString>) -> Vec<OsString> {
    let text = |args: &[OsString], at: usize| args.get(at).and_then(|arg| arg.to_str()).unwrap_or_default().to_owned();
    let is_help = ["help", "man"].contains(&text(&args, 1).as_str());
    let at = if is_help { 2 } else { 1 };
    let next = text(&args, at + 1);
    match text(&args, at).as_str() {
        "ctl" => {
            args[at] = "daemon".into();
            if !is_help {
                request_first(&mut args);
            }
        }
        // The daemon's options are those of `start`.
        "daemon"
            if !is_help && !["-h", "--help"].contains(&next.as_str()) && (next.is_empty() || next.starts_with('-')) =>
        {
            args.insert(at + 1, "start".into());
        }
        name if DCPI.iter().any(|(theirs, _)| *theirs == name) => {
            let ours = DCPI.iter().filter(|(theirs, _)| *theirs == name).flat_map(|(_, ours)| *ours);
            args.splice(at..=at, ours.filter(|word| !is_help || !word.starts_with('-')).map(OsString::from));
            // What follows the label is a program with its own options.
            if name == "dcpilabel" && !is_help && args.len() > at + 3 && args[at + 3] != "--" {
                args.insert(at + 3, "--".into());
            }
        }
        name if DAEMON.contains(&name) => args.insert(at, "daemon".into()),
        name if COMPAT.contains(&name) => args.insert(at, "compat".into()),
        _ => {}
    }
    args
}

/// Moves the options that stood between `ctl` and the request (`ctl --json status`) behind the
/// request.
fn request_first(args: &mut Vec<OsString>) {
    let mut end = 2;
    while args.get(end).is_some_and(|arg| arg.to_str().is_some_and(|text| text.starts_with('-'))) {
        end += if args[end] == "--control" { 2 } else { 1 };
    }
    if end < args.len() {
        args[2..=end].rotate_right(1);
    } else if !args[2..].iter().any(|arg| arg == "-h") {
        // There was no request.
        args.truncate(2);
        args.push("--help".into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_spellings_are_those_of_the_groups() {
        for (earlier, now) in [
            ("ctl status", "daemon status"),
            ("ctl --json --control /x status", "daemon status --json --control /x"),
            ("ctl --control=/x mode redis trace", "daemon mode --control=/x redis trace"),
            ("ctl list --json", "daemon list --json"),
            ("ctl", "daemon --help"),
            ("ctl --json", "daemon --help"),
            ("ctl -h", "daemon -h"),
            ("ctl --control", "daemon --help"),
            ("daemon", "daemon start"),
            ("daemon --socket /s", "daemon start --socket /s"),
            ("daemon --help", "daemon --help"),
            ("daemon start --socket /s", "daemon start --socket /s"),
            ("epochs --last 2", "daemon epochs --last 2"),
            ("env", "daemon env"),
            ("dcpiepoch", "daemon epoch"),
            ("dcpiflush --json", "daemon flush --json"),
            ("dcpiquit", "daemon stop"),
            ("dcpictl status", "daemon status"),
            ("dcpilabel night ./job -x", "record --label night -- ./job -x"),
            ("man dcpiepoch", "man daemon epoch"),
            ("dcpilabel night -- ./job", "record --label night -- ./job"),
            ("dcpilabel -h", "record --label -h"),
            ("help dcpilabel", "help record"),
            ("dcpiscan /usr/bin", "compat dcpiscan /usr/bin"),
            ("mprof -v run1", "compat mprof -v run1"),
            ("help ctl", "help daemon"),
            ("help daemon", "help daemon"),
            ("man gprof", "man compat gprof"),
            ("record -- ctl status", "record -- ctl status"),
            ("why redis", "why redis"),
            ("", ""),
        ] {
            let line = |text: &str| -> Vec<OsString> {
                std::iter::once("heaptape").chain(text.split_whitespace()).map(OsString::from).collect()
            };
            assert_eq!(current(line(earlier)), line(now), "{earlier}");
        }
    }
}
