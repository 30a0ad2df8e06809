//! The error that no process has references, and what would have helped.

use super::{path_of, unanswerable};
use heaptape_analyzer::Process;
use heaptape_analyzer::report::Error;
use heaptape_analyzer::report::summary::ending_of;
use heaptape_formats::core_file::Signal;
use heaptape_formats::recording::Exit;

/// Why there is no answer.
const NOT_RECORDED: &str = "it was not recorded which block holds which";
/// What helps.
const REMEDY: &str = "heaptape record --references reads that when a program calls exit or returns from main (not of a static one), \
                      and heaptape holds --live PID while one runs";

/// How a process ended of which no references are there.
pub(super) struct Ending {
    text: String,
    is_by_signal: bool,
    /// What to ask of its core, if it may have left one.
    of_core: String,
}

impl Ending {
    pub(super) fn of(process: &Process) -> Ending {
        let about = &process.about;
        let is_out_of_memory = about.last_memory.is_some_and(|memory| memory.out_of_memory);
        let number = match about.exit {
            Some(Exit::Signal(number)) => Some(number),
            _ => None,
        };
        let signal = number.and_then(|number| i32::try_from(number).ok());
        let is_crash = signal.is_some_and(|number| Signal { number, code: 0, address: None }.is_crash());
        let ending = about.exit.map(|exit| format!(", {}", ending_of(exit, is_out_of_memory))).unwrap_or_default();
        Ending {
            text: format!("{} (pid {}){ending}", process.name(), about.pid),
            is_by_signal: number.is_some(),
            of_core: match is_crash {
                true => format!("; if it left a core, heaptape holds --core CORE {} reads it there", path_of(process)),
                false => String::new(),
            },
        }
    }
}

/// Returns the error that no process has references, with how it ended that would tell why.
pub(super) fn error(without: &[Ending]) -> Error {
    let one = without.iter().find(|one| one.is_by_signal).or(without.first().filter(|_| without.len() == 1));
    let why = one.map_or(NOT_RECORDED.into(), |one| format!("{NOT_RECORDED} in {}", one.text));
    let of_core = one.map_or("", |one| &one.of_core);
    unanswerable(&why, &format!("{REMEDY}{of_core}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_says_how_the_program_ended() {
        let ended = |exit| {
            let mut process = Process::nothing();
            (process.about.pid, process.about.exe, process.about.exit) = (7, "/bin/shop".into(), Some(exit));
            Ending::of(&process)
        };
        let told = |ends: &[Ending]| error(ends).to_string();
        let killed = told(&[ended(Exit::Signal(9))]);
        assert!(
            killed.contains("in shop (pid 7), ended by signal 9: heaptape record --references reads that when"),
            "{killed}"
        );
        assert!(!killed.contains("--core"), "{killed}");
        let crashed = told(&[ended(Exit::Code(0)), ended(Exit::Signal(11))]);
        assert!(crashed.contains("ended by signal 11") && crashed.contains("heaptape holds --core CORE"), "{crashed}");
        let left = told(&[ended(Exit::Code(3))]);
        assert!(left.contains("in shop (pid 7), exit 3: "), "{left}");
        assert!(told(&[]).starts_with("it was not recorded which block holds which: "));
    }
}
