//! The summary of recordings as text.

use super::{ProcessSummary, Rankings, Summary, ending};
use crate::annotations::NamedSums;
use crate::load::{MappingSums, Process, Recording};
use crate::missing::Missing;
use crate::processes::{ProcessFilter, folded_line};
use crate::report::coverage::Coverage;
use crate::report::mapped::{self, MappedRow, ReturnedRow};
use crate::report::mapping_filter::print_unseen;
use crate::report::{Scope, print_lines, print_missing, print_own_malloc};
use crate::text::{Screen, bytes, clean, count, counted, duration, percent};
use heaptape_formats::recording::{self, Allocator};
use heaptape_formats::tape::Codec;
use std::io;

/// Maximum number of processes that are listed one by one.
const MAX_PROCESSES: usize = 8;
/// Maximum number of notes that are printed.
const MAX_NOTES: usize = 3;
/// Maximum number of heaps and labels of a process that are printed, each.
const MAX_NAMED: usize = 10;
/// Maximum number of allocators inside programs that are printed.
const MAX_ALLOCATORS: usize = 8;

/// Returns what was recorded: the command line as one line of limited length, or the folder of an
/// epoch, because a daemon runs no command.
fn subject(summary: &Summary, recordings: &[Recording]) -> String {
    const MAX_NAMES: usize = 3;
    const MAX_CHARACTERS: usize = 100;
    if !summary.command.is_empty() {
        let parts: Vec<&str> = summary.command.iter().flat_map(|part| part.split_ascii_whitespace()).collect();
        let line = parts.join(" ");
        return match line.char_indices().nth(MAX_CHARACTERS) {
            Some((end, _)) => format!("{}…", &line[..end]),
            None => line,
        };
    }
    let name = |recording: &Recording| {
        let name = recording.path.file_name().unwrap_or(recording.path.as_os_str());
        name.to_string_lossy().into_owned()
    };
    let mut names: Vec<String> = recordings.iter().take(MAX_NAMES).map(name).collect();
    if recordings.len() > MAX_NAMES {
        names.push(format!("{} more", recordings.len() - MAX_NAMES));
    }
    names.join(", ")
}

pub(super) fn print(summary: &Summary, recordings: &[Recording], scope: &Scope, screen: &mut Screen) -> io::Result<()> {
    match &summary.processes[..] {
        [] => screen.heading("no process was recorded")?,
        [process] => {
            let mut head = process.name.clone();
            if process.pid != 0 {
                head += &format!(" (pid {})", process.pid);
            }
            // The files of other tools may have neither end nor duration.
            if process.pid != 0
                && (process.exit.is_some() || process.duration_ns > 0 || process.origin == recording::STREAM)
            {
                head += &format!(", {} after {}", ending(process), lifetime(process));
            }
            screen.heading(&head)?;
        }
        processes => {
            let number = counted(processes.len() as u64, "process");
            screen.heading(&format!("{number} of {}", subject(summary, recordings)))?;
            processes_table(processes, recordings, &scope.processes, screen)?;
        }
    }
    if !scope.mappings.has_blocks() {
        mappings(summary, screen)?;
        let processes: Vec<&Process> = recordings.iter().flat_map(|recording| &recording.processes).collect();
        mapped_sites(summary, &processes, screen)?;
    } else if !summary.processes.is_empty() {
        numbers(summary, screen)?;
    }
    rankings(&summary.top, screen)?;
    allocators(summary, screen)?;
    coverage(summary, screen)?;
    for process in &summary.processes {
        named_sums("heap", &process.heaps, screen)?;
        named_sums("label", &process.labels, screen)?;
    }
    let own_malloc = summary.processes.iter().filter(|process| process.own_malloc);
    print_own_malloc(screen, own_malloc.map(|process| (&*process.name, process.pid)))?;
    for recording in recordings {
        let several = if recordings.len() > 1 { format!("{}: ", recording.path.display()) } else { String::new() };
        let known = |one: &&Missing| **one != Missing::NoProcess || recordings.len() > 1;
        print_missing(screen, &several, &recording.missing.iter().filter(known).cloned().collect::<Vec<_>>())?;
    }
    for process in &summary.processes {
        let of = if summary.processes.len() > 1 { format!("{}: ", process.folder) } else { String::new() };
        print_lines(screen, &of, &process.missing)?;
        if let Some(few) = process.early_ends.as_ref().filter(|found| !found.are_many()) {
            screen.line(&format!("note: {of}{few}"))?;
        }
    }
    for note in summary.notes.iter().take(MAX_NOTES) {
        screen.line(&format!("note: {note}"))?;
    }
    if let [recording] = recordings
        && recording.about.is_some()
        && !summary.processes.is_empty()
    {
        let path = recording.path.display();
        screen.line(&format!("recorded in {path}   next: heaptape leaks {path}"))?;
        // mpatrol's users find `trace.mtrc.columns` there, which mptrace refuses.
        if recording.processes.iter().any(|process| process.tape.codec().is_some_and(|codec| codec != Codec::Plain)) {
            let out = if recording.processes.len() > 1 { "traces" } else { "trace.mtrc" };
            screen.line(&format!("for mptrace: heaptape export --format mtrc -o {out} {path}"))?;
        }
    }
    Ok(())
}

/// Name of the allocators of a file that was not searched.
const UNKNOWN: &str = "unknown";

/// Prints the allocators inside the programs: which were hooked, and what was not. Processes that
/// run the same program have the same ones.
fn allocators(summary: &Summary, screen: &mut Screen) -> io::Result<()> {
    let mut shown: Vec<&Allocator> = Vec::new();
    for process in &summary.processes {
        for allocator in &process.allocators {
            if shown.contains(&allocator) || shown.len() >= MAX_ALLOCATORS {
                continue;
            }
            shown.push(allocator);
            let Allocator { name, module, found, hooked, refused, events, .. } = allocator;
            let module = module.rsplit('/').next().unwrap_or_default();
            if *hooked > 0 {
                let functions = counted((*found).into(), "function");
                let events = counted(*events, "event");
                screen.line(&format!("inside     {name} in {module}: {hooked} of {functions} hooked, {events}"))?;
            }
            let Some(first) = refused.first() else { continue };
            let names = match *found {
                0 if name == UNKNOWN => "its allocators, if it has any".to_owned(),
                0 => format!("{name} inside of it"),
                _ => {
                    let more = if refused.len() > 1 { ", …" } else { "" };
                    format!("{} of {name} ({}{more})", counted(refused.len() as u64, "function"), first.function)
                }
            };
            screen.warning(&format!("! {module}: {names} not recorded: {}", first.why))?;
        }
    }
    Ok(())
}

/// Share of the memory of a process that may be no recorded block without a warning: 1/10.
const UNSEEN_SHARE: u64 = 10;
/// Bytes of such memory that are not worth a warning.
const UNSEEN_BYTES: u64 = 1 << 20;

/// Memory of a process below which the share is that of variables and of the allocator's tables.
const SMALL: u64 = 8 << 20;

/// Prints how much memory of each process was ever a recorded block. Without an allocator inside
/// the program, only where much was not.
fn coverage(summary: &Summary, screen: &mut Screen) -> io::Result<()> {
    let several = summary.processes.len() > 1;
    let mut shown = 0;
    for process in &summary.processes {
        let Some(Coverage { own_bytes, never_block_bytes, .. }) = process.coverage else { continue };
        let is_low = never_block_bytes > UNSEEN_BYTES.max(own_bytes / UNSEEN_SHARE);
        let is_shown = own_bytes >= SMALL && (is_low || !process.allocators.is_empty());
        if !is_shown || shown >= MAX_ALLOCATORS {
            continue;
        }
        shown += 1;
        let of = if several { format!(" of {} (pid {})", process.name, process.pid) } else { String::new() };
        let seen = percent(own_bytes - never_block_bytes.min(own_bytes), own_bytes);
        let (own, unseen) = (bytes(own_bytes), bytes(never_block_bytes));
        let line =
            format!("seen       {seen} of {own} of memory{of} held recorded blocks; {unseen} never did (heaptape rss)");
        if is_low { screen.warning(&line)? } else { screen.line(&line)? }
    }
    Ok(())
}

/// Prints the sums of heaps or labels, those with most bytes.
fn named_sums(what: &str, all: &[NamedSums], screen: &mut Screen) -> io::Result<()> {
    for NamedSums { name, allocs, bytes: allocated, live_blocks, live_bytes } in all.iter().take(MAX_NAMED) {
        let (allocs, allocated) = (counted(*allocs, "allocation"), bytes(*allocated));
        let live = format!("{} in {} live", bytes(*live_bytes), counted(*live_blocks, "block"));
        screen.line(&format!("{what:<10} {}: {allocs} of {allocated}, {live}", clean(name)))?;
    }
    if all.len() > MAX_NAMED {
        screen.line(&format!("  and {} more (--json)", all.len() - MAX_NAMED))?;
    }
    Ok(())
}

/// Describes how long a process ran, and how much of that time is recorded.
fn lifetime(process: &ProcessSummary) -> String {
    match process.earlier_ns {
        0 => duration(process.duration_ns),
        earlier => format!(
            "{}, of which the last {} are recorded here",
            duration(earlier.saturating_add(process.duration_ns)),
            duration(process.duration_ns)
        ),
    }
}

/// Prints the event counts and heap sizes of all processes together.
fn numbers(summary: &Summary, screen: &mut Screen) -> io::Result<()> {
    let n = &summary.totals;
    let is_exact = summary.lost_is_exact && summary.processes.iter().all(|process| process.lost_is_exact);
    let lost = match (n.lost_events, is_exact) {
        (0, true) => "none lost".to_string(),
        (0, false) => "an unknown number lost".to_string(),
        (lost, true) => format!("{} LOST", count(lost)),
        (lost, false) => format!("at least {} LOST", count(lost)),
    };
    let events = format!("events     {} recorded, {lost}: ", count(n.recorded_events));
    let kinds =
        format!("{}, {}, {}", counted(n.allocs, "allocation"), counted(n.resizes, "resize"), counted(n.frees, "free"));
    screen.line(&(events + &kinds))?;
    let has_peak = n.peak_bytes > 0 || n.bytes_allocated == 0;
    let of_one = if summary.processes.len() > 1 { " (largest process)" } else { "" };
    let peak = if has_peak { format!(", peak {}{of_one}", bytes(n.peak_bytes)) } else { String::new() };
    screen.line(&format!("bytes      {} allocated{peak}", bytes(n.bytes_allocated)))?;
    let mut left = format!("at the end {} in {} still live", bytes(n.live_bytes), counted(n.live_blocks, "block"));
    if n.inherited_blocks > 0 {
        left += &format!(
            "; {} in {} inherited from parents",
            bytes(n.inherited_bytes),
            counted(n.inherited_blocks, "block")
        );
    }
    if n.unknown_frees > 0 {
        left += &format!("; {} of unknown addresses", counted(n.unknown_frees, "free"));
    }
    screen.line(&left)?;
    mappings(summary, screen)?;
    let residents = summary.processes.iter().filter_map(|process| process.resident);
    if let Some(resident) = residents.max_by_key(|resident| resident.most_bytes) {
        let at = resident.last_ns.map(|at| format!(" {} after the start", duration(at))).unwrap_or_default();
        screen.line(&format!(
            "resident   {}{at}, most {}{of_one} (heaptape rss)",
            bytes(resident.last_bytes),
            bytes(resident.most_bytes)
        ))?;
    }
    if n.sampled_out_events > 0 {
        screen.line(&format!(
            "sampled    {} events were sampled out: bytes are estimates",
            count(n.sampled_out_events)
        ))?;
    }
    Ok(())
}

/// Prints what the processes mapped besides the blocks of their allocators.
fn mappings(summary: &Summary, screen: &mut Screen) -> io::Result<()> {
    let all = || summary.processes.iter().filter_map(|process| process.mappings);
    let sum = |number: fn(&MappingSums) -> u64| all().map(|sums| number(&sums)).fold(0, u64::saturating_add);
    let calls = sum(|sums| sums.calls);
    if calls == 0 && all().all(|sums| sums.mapped_ranges == 0 && sums.returned_calls == 0) {
        return Ok(());
    }
    let mut line = format!(
        "mappings   {} in {} by the program itself; {} in {} still mapped",
        bytes(sum(|sums| sums.bytes)),
        counted(calls, "call"),
        bytes(sum(|sums| sums.mapped_bytes)),
        counted(sum(|sums| sums.mapped_ranges), "range"),
    );
    let reserved = sum(|sums| sums.reserved_bytes);
    if reserved > 0 {
        line += &format!(", {} of addresses reserved", bytes(reserved));
    }
    let inherited = sum(|sums| sums.inherited_bytes);
    if inherited > 0 {
        line += &format!(", {} inherited from parents", bytes(inherited));
    }
    let returned = sum(|sums| sums.returned_calls);
    if returned > 0 {
        let ranges = bytes(sum(|sums| sums.returned_bytes));
        line += &format!("; {ranges} returned in {} of madvise", counted(returned, "call"));
    }
    screen.line(&line)
}

/// Maximum number of call sites of mappings; JSON has all.
const MAX_MAPPED: usize = 20;

/// Prints the call sites by which memory was mapped and returned.
fn mapped_sites(summary: &Summary, processes: &[&Process], screen: &mut Screen) -> io::Result<()> {
    let rows: Vec<MappedRow> = summary.mapped.iter().map(|one| one.row.clone()).collect();
    if rows.is_empty() {
        mapped::print_nothing(screen, processes)?;
    }
    let heading = format!("mapped at the end: {}", mapped::sum_text(rows.iter()));
    mapped::print(screen, &heading, &rows, MAX_MAPPED)?;
    let rows: Vec<&ReturnedRow> = summary.returned.iter().map(|one| &one.row).collect();
    mapped::print_returned(screen, &rows, MAX_MAPPED)?;
    print_unseen(screen, processes)
}

/// Formats a number of lost events, which may be a lower bound.
fn lost(events: u64, is_exact: bool) -> String {
    match (events, is_exact) {
        (0, false) => "?".to_string(),
        (_, false) => format!(">= {}", count(events)),
        (_, true) => count(events),
    }
}

fn processes_table(
    summaries: &[ProcessSummary],
    recordings: &[Recording],
    query: &ProcessFilter,
    screen: &mut Screen,
) -> io::Result<()> {
    let processes: Vec<&Process> = recordings.iter().flat_map(|recording| &recording.processes).collect();
    let (listed, folded) = query.fold(processes.clone());
    let is_listed = |process: &Process| listed.iter().any(|listed| std::ptr::eq(*listed, process));
    let pairs = summaries.iter().zip(processes).filter(|(_, process)| is_listed(process));
    let mut order: Vec<&ProcessSummary> = pairs.map(|(summary, _)| summary).collect();
    order.sort_by_key(|process| std::cmp::Reverse(process.numbers.recorded_events));
    let rows_shown = if query.all { usize::MAX } else { MAX_PROCESSES };
    let rows: Vec<Vec<String>> = order
        .iter()
        .take(rows_shown)
        .map(|process| {
            let n = &process.numbers;
            vec![
                process.pid.to_string(),
                count(n.recorded_events),
                lost(n.lost_events, process.lost_is_exact),
                bytes(n.bytes_allocated),
                bytes(n.peak_bytes),
                bytes(n.live_bytes),
                format!("{}, {}", process.name, ending(process)),
            ]
        })
        .collect();
    screen.table(&["pid", "events", "lost", "allocated", "peak", "live at end", "program"], &rows)?;
    if order.len() > rows_shown {
        screen.line(&format!("  and {} more (--all-processes)", order.len() - rows_shown))?;
    }
    if !folded.is_empty() {
        screen.line(&format!("  {}", folded_line(&folded)))?;
    }
    Ok(())
}

/// Prints the tables of the rankings.
fn rankings(top: &Rankings, screen: &mut Screen) -> io::Result<()> {
    let lists = [
        ("Live at the end", "blocks", &top.live),
        ("Live at the peak", "blocks", &top.peak),
        ("Most allocations", "allocations", &top.allocs),
    ];
    for (heading, blocks, rows) in lists {
        if rows.is_empty() {
            continue;
        }
        let rows: Vec<Vec<String>> =
            rows.iter().map(|row| vec![bytes(row.bytes), count(row.blocks), row.call_site.clone()]).collect();
        screen.heading(heading)?;
        screen.table(&["bytes", blocks, "call site < its callers"], &rows)?;
    }
    Ok(())
}
