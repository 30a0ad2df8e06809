//! The check of a recording as text.

use super::{Checked, CheckedAccounting, CheckedProcess, CheckedThread, Counts};
use crate::text::{Screen, count, counted};
use std::cmp::Reverse;
use std::io;

/// Maximum number of threads that are printed one by one.
const MAX_THREADS: usize = 20;

pub(super) fn print(checked: &Checked, screen: &mut Screen) -> io::Result<()> {
    for process in &checked.processes {
        print_process(process, screen)?;
    }
    checked.missing.iter().try_for_each(|what| screen.warning(&format!("! {what}")))?;
    for process in &checked.processes {
        let warning = |what: &String| screen.warning(&format!("! {}: {what}", process.folder));
        process.missing.iter().try_for_each(warning)?;
    }
    checked.notes.iter().try_for_each(|note| screen.line(&format!("note: {note}")))?;
    match checked.faults() {
        0 => screen.line("complete"),
        several => screen.line(&format!("readable, with {several} things missing or wrong")),
    }
}

/// Prints the accounting of a process, and its totals.
fn print_process(process: &CheckedProcess, screen: &mut Screen) -> io::Result<()> {
    if let Some(accounting) = &process.accounting {
        print_accounting(accounting, screen)?;
    }
    let folder = &process.folder;
    let allocations = counted(process.allocs, "allocation");
    let resizes = counted(process.resizes, "resize");
    let frees = counted(process.frees, "free");
    let live = counted(process.live_blocks, "live block");
    screen.line(&match process.only_sums {
        true => format!("{folder}: sums of {allocations}, {resizes}, {frees}, without events; {live} at the end"),
        false => {
            let unmatched = count(process.unmatched);
            format!("{folder}: {allocations}, {resizes}, {frees}, {unmatched} unmatched; {live} at the end")
        }
    })?;
    match process.interpolated_times {
        0 => {}
        several => {
            screen.line(&format!("{folder}: {} without a timestamp, interpolated", counted(several, "event")))?
        }
    }
    // Many of them are among what is missing.
    match &process.early_ends {
        Some(few) if !few.are_many() => screen.line(&format!("{folder}: {few}")),
        _ => Ok(()),
    }
}

/// Prints the events of each thread.
fn print_accounting(accounting: &CheckedAccounting, screen: &mut Screen) -> io::Result<()> {
    let mut threads: Vec<&CheckedThread> = accounting.threads.iter().collect();
    threads.sort_by_key(|thread| Reverse(thread.counts.emitted_events));
    let row = |counts: Counts, who: String| {
        let Counts { emitted_events, recorded_events, lost_events, sampled_out_events } = counts;
        let mut row = [emitted_events, recorded_events, lost_events, sampled_out_events].map(count).to_vec();
        row.push(who);
        row
    };
    let more = threads.len().saturating_sub(MAX_THREADS);
    let each = |thread: &CheckedThread| {
        let CheckedThread { number, name, counts } = thread;
        let who = if *number == 0 { "no thread".to_string() } else { format!("thread {number} {name}") };
        row(*counts, who)
    };
    let mut rows: Vec<Vec<String>> = threads.into_iter().take(MAX_THREADS).map(each).collect();
    let all = if more > 0 { format!("all, {more} threads more among them") } else { "all".into() };
    rows.push(row(accounting.all, all));
    screen.table(&["emitted", "recorded", "lost", "sampled out", "accounting"], &rows)?;
    if !accounting.lost_is_exact {
        screen.line("more may be lost: the number of events in what is missing is unknown")?;
    }
    Ok(())
}
