//! How long a program asks the kernel to let it wait. What it waits in fact depends on what else the
//! machine does, and tells nothing.

use crate::{Outcome, Program, test_env};
use std::path::Path;

/// Runs a program with the library and this socket. Returns its result, and the milliseconds that it
/// asked the kernel to wait, with the library in it.
pub fn with_library(program: &Path, socket: &Path) -> (Outcome, u64) {
    let folder = test_env::folder();
    let file = folder.path().join("calls");
    let variable = |name: &str, value: &Path| format!("{name}={}", value.display());
    let outcome = Program::new("strace")
        .args(["-f", "-e", "trace=poll,ppoll,select,pselect6,nanosleep,clock_nanosleep,futex", "-o"])
        .arg(&file)
        .args(["-E", &variable("LD_PRELOAD", test_env::library()), "-E", &variable("HEAPTAPE_SOCKET", socket)])
        .arg(program)
        .plain();
    let text = std::fs::read_to_string(&file).expect("strace's output");
    (outcome, text.lines().map(asked_ms).sum())
}

/// Returns the milliseconds of a call in strace's words: `poll([…], 1, 50) = 0 (Timeout)`,
/// `nanosleep({tv_sec=0, tv_nsec=1000000}, NULL) = 0`. A wait without end counts as an hour.
fn asked_ms(line: &str) -> u64 {
    let number = |name: &str| {
        let (_, rest) = line.split_once(name)?;
        rest.split(|character: char| !character.is_ascii_digit()).next()?.parse::<u64>().ok()
    };
    let name = line.split_whitespace().find_map(|word| word.split_once('(')).map_or("", |(name, _)| name);
    let polled = || line.split("], ").nth(1)?.split([' ', ',', ')']).nth(2)?.parse::<i64>().ok();
    match (name, number("tv_sec="), number("tv_nsec=")) {
        ("", ..) => 0,
        (_, Some(seconds), Some(nanoseconds)) => seconds * 1000 + nanoseconds / 1_000_000,
        ("poll", ..) => polled().and_then(|milliseconds| milliseconds.try_into().ok()).unwrap_or(3_600_000),
        ("futex", ..) if line.contains("FUTEX_WAKE") => 0,
        _ => 3_600_000,
    }
}

#[cfg(test)]
mod tests {
    use super::asked_ms;

    #[test]
    fn waits_are_read_in_the_words_of_strace() {
        for (line, milliseconds) in [
            ("7 poll([{fd=3, events=POLLIN}], 1, 49) = 0 (Timeout)", 49),
            ("7 poll([{fd=3, events=POLLIN}], 1, 50) = 1 ([{fd=3, revents=POLLIN}])", 50),
            ("7 poll([{fd=3, events=POLLIN}], 1, -1) = 1 ([{fd=3, revents=POLLIN}])", 3_600_000),
            ("7 nanosleep({tv_sec=0, tv_nsec=1000000}, NULL) = 0", 1),
            ("7 futex(0x7f, FUTEX_WAKE_PRIVATE, 1) = 0", 0),
            ("7 futex(0x7f, FUTEX_WAIT_PRIVATE, 1, NULL) = 0", 3_600_000),
            ("7 +++ exited with 0 +++", 0),
        ] {
            assert_eq!(asked_ms(line), milliseconds, "{line}");
        }
    }
}
