//! Checks recordings of cases: the accounting, and the counts of the program itself.

use super::{Case, Linkage, Observation, Step};
use crate::recording::heaptape;
use crate::{Daemon, Report, test_env};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

/// What a case does that its recording cannot show completely.
#[derive(Clone, Copy, Default)]
struct Excuses {
    /// Processes are not recorded: they have no library, no rights to the recorder, or libc does
    /// not know of them.
    unrecorded: bool,
    /// Hooks are left or interrupted, or memory is short: events may be lost, and are counted. The
    /// counts of the program itself are not exact.
    lost: bool,
    /// It may not ask whether memory can be read.
    sandboxed: bool,
    /// Signals interrupt code of all kinds.
    interrupted: bool,
    /// Some of that is `swapcontext`, whose unwind data does not say that it has changed the stack.
    switching: bool,
}

impl Excuses {
    fn of(case: &Case) -> Excuses {
        let is_shut = |step: &Step| matches!(step.name.as_str(), "sandbox" | "guard" | "mount");
        let sandboxed = case.any(|step| is_shut(step) || step.is("system", 12) || step.is("system", 13));
        let limited = case.any(|step| step.name == "limit");
        let raw = case.any(|step| step.name == "rawforks" || (step.name == "fork" && step.numbers.first() != Some(&0)));
        let bare =
            case.any(|step| step.name == "exec" && matches!(step.numbers.get(1), Some(1 | 4)) || step.is("libc", 6));
        let left =
            case.any(|step| step.is("jumps", step.numbers.first().copied().unwrap_or_default()) || step.is("storm", 1));
        let cancelled = case.any(|step| step.name == "cancel" && step.numbers.get(1) == Some(&1));
        let lost = left || cancelled || sandboxed || limited;
        let interrupted = case.any(|step| step.name == "storm");
        let switching = interrupted && case.any(|step| step.name == "coroutines");
        Excuses { sandboxed, interrupted, switching, unrecorded: sandboxed || limited || raw || bare, lost }
    }
}

/// Returns a description of what is wrong with a recording.
pub(super) fn fault(case: &Case, seen: &Observation, is_sampled: bool, folder: &Path) -> Option<String> {
    let excuses = Excuses::of(case);
    let verify = heaptape([OsStr::new("verify"), folder.as_os_str()]);
    let text = verify.text();
    let mut remarks = text.lines().filter(|line| line.starts_with("! "));
    let is_excused = remarks.all(|line| {
        (excuses.lost && line.contains(" dropped: its ring was full"))
            || (excuses.unrecorded && (line.contains(" not recorded") || line.contains("never held a recorded block")))
            || is_early(line, excuses)
    });
    if verify.code() != 0 && !(verify.code() == 1 && is_excused) {
        return Some(format!("verify: {verify}"));
    }
    let output = heaptape([OsStr::new("report"), OsStr::new("--json"), folder.as_os_str()]);
    let report: Report = match serde_json::from_slice(&output.stdout) {
        Ok(report) => report,
        Err(error) => return Some(format!("report: {error}: {output}")),
    };
    for process in &report.processes {
        let accounted = process.recorded_events + process.lost_events + process.sampled_out_events;
        if process.emitted_events != accounted {
            return Some(format!("the ledger does not balance: {process:#?}"));
        }
        if process.lost_events > 0 && !excuses.lost {
            return Some(format!("events are lost: {process:#?}"));
        }
    }
    if excuses.unrecorded || excuses.lost {
        return None;
    }
    let about: Value =
        serde_json::from_slice(&fs::read(folder.join("recording.json")).unwrap_or_default()).unwrap_or_default();
    let unrecorded = about["not_traced"].as_array().map_or(0, Vec::len) as u64;
    let processes = report.processes.len() as u64;
    if processes + unrecorded < seen.counts.processes {
        let names: Vec<&str> = report.processes.iter().map(crate::Process::name).collect();
        return Some(format!("{} processes ran, {names:?} were recorded, {unrecorded} named", seen.counts.processes));
    }
    // A thread that ends before its first sample is in no account yet.
    if is_sampled {
        return None;
    }
    let sum = |of: fn(&crate::Process) -> u64| report.processes.iter().map(of).sum::<u64>();
    let (own, found) = (seen.counts, [sum(|p| p.allocs), sum(|p| p.resizes), sum(|p| p.frees)]);
    let unseen = sum(|process| process.sampled_out_events + process.lost_events);
    let missing = [own.allocs, own.resizes, own.frees].iter().zip(found).any(|(&own, found)| found + unseen < own);
    let emitted = sum(|process| process.emitted_events);
    if missing || emitted < own.allocs + own.resizes + own.frees {
        return Some(format!(
            "the program counted {own:?}, recorded are allocations, resizes and frees {found:?} of {emitted} events"
        ));
    }
    None
}

/// Returns whether a line of `verify` is about stacks that end early where docs/recorded.md says so: in the
/// programs that musl is linked into, since it has no unwind data, and calls back from `qsort`; where a signal
/// interrupts the loader's binding at the first call of a function, what the compiler's own objects add to each
/// library, `vfork`, whose return address is in a register, or `swapcontext`, whose return address is anything
/// then; on a stack that is new in a sandbox, which does not let anybody ask what can be read.
fn is_early(line: &str, excuses: Excuses) -> bool {
    // `! FOLDER: the stacks of … end early: COUNT in MODULE (WHY); COUNT in MODULE (WHY)`
    let places = line.split_once(" end early: ").map(|(_, places)| places);
    let is_opened = |place: &str| place.contains(" in plug") || place.contains(" in libstdc++.so.");
    let is_known = |place: &str| {
        place.contains(" in harm_static_mus")
            || place.contains(" in ld-linux-")
            || (excuses.interrupted && is_opened(place) && place.contains("no unwind data there"))
            || (excuses.interrupted && place.contains(" in libc.so.") && place.contains("needs another register"))
            || (excuses.switching && place.contains(" in no module ("))
            || (excuses.sandboxed && place.contains("(its stack cannot be read"))
    };
    places.is_some_and(|places| places.split("; ").all(is_known))
}

/// Returns a description of what is wrong with a daemon's epochs. Events that a jump out of a hook
/// or a full ring cost are lost and counted, and programs that could not be recorded are named.
/// Nothing else may be missing.
pub(super) fn epoch_fault(daemon: &Daemon) -> Option<String> {
    let epochs = daemon.epochs(&[]);
    if epochs.is_empty() {
        return Some(format!("the daemon has no epoch: {}", daemon.log()));
    }
    let excuses = Excuses { interrupted: true, switching: true, ..Excuses::default() };
    epochs.iter().find_map(|epoch| {
        let verify = heaptape([OsStr::new("verify"), epoch.as_os_str()]);
        let text = verify.text();
        let mut remarks = text.lines().filter(|line| line.starts_with("! "));
        let is_named = |line: &str| {
            line.contains(" dropped: its ring was full") || line.contains(" not recorded") || is_early(line, excuses)
        };
        let is_counted = verify.code() == 1 && remarks.all(is_named);
        if verify.code() != 0 && !is_counted {
            return Some(format!("verify of {}: {verify}", epoch.display()));
        }
        let processes = daemon.report(std::slice::from_ref(epoch)).processes;
        let is_balanced = |process: &crate::Process| {
            process.emitted_events == process.recorded_events + process.lost_events + process.sampled_out_events
        };
        let unbalanced = processes.iter().find(|process| !is_balanced(process));
        unbalanced.map(|process| format!("the ledger does not balance in {}: {process:#?}", epoch.display()))
    })
}

/// Returns the command that replays a case.
pub(super) fn replay(case: &Case, linkage: &Linkage) -> String {
    let (command, name) = (test_env::command(), linkage.name);
    format!("HEAPTAPE={} HARM_LINKED={name} scripts/dev harm replay '{case}'", command.display())
}
