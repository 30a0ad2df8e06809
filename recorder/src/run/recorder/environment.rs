//! What changed the environment of a program so that it runs unrecorded, and what to do.

use wire::hello::UntracedReason;

/// Beginnings of the names of programs that run scripts.
const INTERPRETERS: &[&str] = &[
    "sh", "bash", "dash", "ash", "ksh", "mksh", "zsh", "fish", "busybox", "python", "perl", "ruby", "node", "php",
    "lua", "tclsh",
];

/// Maximum number of characters of a value that a message repeats.
const MAX_VALUE: usize = 200;

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

/// Returns the program with this command line as the end of a clause: the script that it runs, if
/// it is an interpreter.
pub(super) fn culprit(command: &[String]) -> String {
    // A login shell has a dash before its name.
    let name = command.first().map(|name| base_name(name).trim_start_matches('-')).unwrap_or_default();
    let is_version = |rest: &str| rest.chars().all(|c| c.is_ascii_digit() || c == '.');
    let is_interpreter = INTERPRETERS.iter().any(|known| name.strip_prefix(known).is_some_and(is_version));
    if name.is_empty() || !is_interpreter {
        return if name.is_empty() { String::new() } else { format!(" by {name}") };
    }
    let mut arguments = command.iter().skip(1).map(String::as_str);
    match arguments.find(|argument| !argument.starts_with('-') || takes_code(argument)) {
        Some(script) if is_file_name(script) => format!(" in {}", base_name(script)),
        Some(_) => format!(" in a command of {name}"),
        None => format!(" by {name}"),
    }
}

/// Returns whether an option of an interpreter is followed by program text: `-c` of shells and Python,
/// `-e` and `-E` of Perl, Ruby, Lua and node, `-r` of PHP, also behind others (`-lne`).
fn takes_code(option: &str) -> bool {
    match option.strip_prefix("--") {
        Some(long) => matches!(long, "eval" | "print" | "run"),
        None => option.len() <= 5 && option.ends_with(['c', 'e', 'E', 'r', 'p']),
    }
}

/// Returns whether an argument looks like the path of a script, as program text hardly does.
fn is_file_name(argument: &str) -> bool {
    let is_usual = |c: char| c.is_alphanumeric() || "/._-+@=,:~%".contains(c);
    !argument.starts_with('-') && !base_name(argument).is_empty() && argument.chars().all(is_usual)
}

/// Returns why a program is not recorded whose `LD_PRELOAD` has another value.
pub(super) fn replaced(preload: &[u8], culprit: &str) -> String {
    let value: String = String::from_utf8_lossy(preload).chars().take(MAX_VALUE).collect();
    let libraries = value.split([':', ' ']).filter(|library| !library.is_empty());
    let names: Vec<&str> = libraries.map(base_name).collect();
    format!("LD_PRELOAD was replaced by {}{culprit}: append instead: LD_PRELOAD=$LD_PRELOAD:{value}", names.join(":"))
}

/// Returns why a program is not recorded whose environment lacks a variable.
pub(super) fn removed(why: UntracedReason, culprit: &str) -> String {
    let keep = "LD_PRELOAD=$LD_PRELOAD HEAPTAPE_SOCKET=$HEAPTAPE_SOCKET";
    format!("{}{culprit}: keep it, as in 'env -i {keep} …'", why.text())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn culprit_is_the_script_or_the_program() {
        for (command, expected) in [
            ("/bin/sh ./bin/start.sh", " in start.sh"),
            ("/usr/bin/bash -eu start", " in start"),
            ("-bash", " by bash"),
            ("sh -c run", " in a command of sh"),
            ("bash -x -c run", " in a command of bash"),
            ("bash -lc run", " in a command of bash"),
            ("perl -e system('env/x');", " in a command of perl"),
            ("perl -lne print", " in a command of perl"),
            ("perl -w ./bin/job.pl", " in job.pl"),
            ("ruby -e `x`", " in a command of ruby"),
            ("node --eval x", " in a command of node"),
            ("php -r exec('/bin/x');", " in a command of php"),
            ("python3 a(b)/);", " in a command of python3"),
            ("python3 dir/", " in a command of python3"),
            ("python3.11 -u serve.py", " in serve.py"),
            ("/usr/bin/env LD_PRELOAD=libjemalloc.so.2 ./prog", " by env"),
            ("shellcheck x", " by shellcheck"),
            ("", ""),
        ] {
            let command: Vec<String> = command.split_whitespace().map(str::to_owned).collect();
            assert_eq!(culprit(&command), expected, "{command:?}");
        }
    }

    #[test]
    fn replaced_libraries_are_named_by_their_files() {
        assert_eq!(
            replaced(b"/usr/lib/libjemalloc.so.2", " in start.sh"),
            "LD_PRELOAD was replaced by libjemalloc.so.2 in start.sh: append instead: \
             LD_PRELOAD=$LD_PRELOAD:/usr/lib/libjemalloc.so.2"
        );
        assert!(replaced(b"liba.so /x/libb.so", "").starts_with("LD_PRELOAD was replaced by liba.so:libb.so: append"));
        assert!(replaced(&[b'x'; 4000], "").len() < 1000);
        let removed = removed(UntracedReason::Environment, " by env");
        assert!(removed.starts_with("LD_PRELOAD was removed from its environment by env: keep it, as in"), "{removed}");
    }
}
