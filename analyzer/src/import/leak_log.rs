//! Imports leak reports: what LeakSanitizer, memcheck, `mtrace` and bcc's `memleak` print. They
//! have what was not freed, by call stack; only `mtrace` has every call.

use super::{ReadResult, Sites, split_command};
use crate::stacks::{Module, Named, Site};
use crate::text::{bytes as bytes_text, counted};
use heaptape_formats::leak_log::{self, Counts, Frame, LeakLog, Tool};
use rustc_hash::FxHashMap;
use std::path::Path;

/// Parses a leak report.
///
/// # Errors
/// Returns an error if the bytes are no such report.
pub(super) fn read(bytes: &[u8]) -> ReadResult {
    let (log, ending) = leak_log::read(bytes)?;
    let (mut sites, mut modules) = (Sites::default(), FxHashMap::default());
    let mut listed = Counts::default();
    for leak in &log.leaks {
        let site = leak.stack.iter().rev().fold(0, |parent, frame| place(parent, frame, &mut sites, &mut modules));
        listed = listed.and(leak.live);
        add(&mut sites, site, leak.live, leak.allocated, leak.peak);
    }
    // What was live and has no record, e.g. what is still reachable.
    let rest = log.live.map(|live| live.without(listed)).filter(|rest| rest.bytes > 0 || rest.blocks > 0);
    if let Some(rest) = rest {
        let site = sites.named(0, 0, named("(not listed in the report)", "", 0));
        add(&mut sites, site, rest, rest, Counts::default());
    }
    let mut imported = sites.finish(log.tool == Tool::Mtrace);
    if let Some((allocated, frees)) = log.allocated {
        let totals = &mut imported.totals;
        (totals.allocs, totals.frees, totals.bytes_allocated) = (allocated.blocks, frees, allocated.bytes);
    }
    imported.totals.unknown_frees = log.unknown;
    imported.notes = notes(&log, rest);
    imported.pid = log.pid;
    imported.argv = split_command(&log.command);
    Ok((imported, ending))
}

fn add(sites: &mut Sites, site: u32, live: Counts, allocated: Counts, peak: Counts) {
    let freed = allocated.without(live);
    let sums = sites.sums(site);
    sums.bytes = sums.bytes.saturating_add(allocated.bytes);
    sums.allocs = sums.allocs.saturating_add(allocated.blocks);
    sums.freed_bytes = sums.freed_bytes.saturating_add(freed.bytes);
    sums.frees = sums.frees.saturating_add(freed.blocks);
    sums.peak_bytes = sums.peak_bytes.saturating_add(peak.bytes);
    sums.peak_blocks = sums.peak_blocks.saturating_add(peak.blocks);
}

fn named(function: &str, file: &str, line: u64) -> Named {
    Named { function: function.into(), file: file.into(), line }
}

/// Returns the site of a frame: by its names, or else by its place in a module.
fn place(parent: u32, frame: &Frame, sites: &mut Sites, modules: &mut FxHashMap<String, u32>) -> u32 {
    let Frame { address, function, file, line, module, offset, build_id } = frame;
    match (offset, function.is_empty() && file.is_empty()) {
        // The file of the module may have the names that the tool didn't find.
        (Some(offset), _) if !module.is_empty() && file.is_empty() => {
            let list = &mut sites.stacks.modules;
            let number = *modules.entry(module.clone()).or_insert_with(|| {
                let path = std::path::absolute(module).ok().filter(|_| module.contains('/'));
                let path = path.unwrap_or_else(|| Path::new(module).into()).into_os_string().into_encoded_bytes();
                list.push(Module { end: u64::MAX, path, build_id: build_id.clone(), ..Module::default() });
                list.len() as u32
            });
            // The names of the report are the site's if the file is gone.
            let named = (!function.is_empty()).then(|| named(function, "", 0));
            match named {
                Some(named) => sites.named(parent, *address, named),
                None => sites.site(Site { parent, module: number, address: *offset, ..Site::default() }),
            }
        }
        (_, true) => {
            let module = module.rsplit('/').next().unwrap_or_default();
            let name = if module.is_empty() { format!("{address:#x}") } else { format!("{address:#x} ({module})") };
            sites.named(parent, *address, named(&name, "", 0))
        }
        (_, false) => sites.named(parent, *address, named(function, file, *line)),
    }
}

/// Returns what the report does not have.
fn notes(log: &LeakLog, rest: Option<Counts>) -> Vec<String> {
    let shown = |Counts { blocks, bytes }: Counts| format!("{} in {}", bytes_text(bytes), counted(blocks, "block"));
    let tool = log.tool.name();
    let mut notes = Vec::new();
    let lacks = match log.tool {
        Tool::Sanitizer => "only what was lost at the end: no other allocations, no frees, no peak",
        Tool::Memcheck | Tool::MemcheckXml => {
            "what was left at the end, and sums of all calls: no frees by stack, no peak"
        }
        Tool::Mtrace => "every call with its caller alone: no stacks, no times, no calls of new that are not malloc",
        Tool::Memleak => "only what was not freed at the end of an interval, of the largest stacks: no frees, no peak",
    };
    notes.push(format!("{tool}: the report has {lacks}"));
    let mut kinds: Vec<(&str, Counts)> = Vec::new();
    for leak in log.leaks.iter().filter(|leak| !leak.kind.is_empty()) {
        match kinds.iter_mut().find(|(kind, _)| *kind == leak.kind) {
            Some((_, sum)) => *sum = sum.and(leak.live),
            None => kinds.push((&leak.kind, leak.live)),
        }
    }
    if !kinds.is_empty() {
        let kinds: Vec<String> = kinds.into_iter().map(|(kind, sum)| format!("{kind} {}", shown(sum))).collect();
        notes.push(format!("{tool} says: {}", kinds.join(", ")));
    }
    if log.tool == Tool::MemcheckXml {
        let help = "the kinds of leaks that valgrind was asked for: --show-leak-kinds=all";
        notes.push(format!("{tool}'s XML has only {help}"));
    }
    if let Some(rest) = rest {
        let help = "run valgrind with --leak-check=full --show-leak-kinds=all to see their stacks";
        notes.push(format!("{} are in its sums only: {help}", shown(rest)));
    }
    if log.processes > 1 {
        notes.push(format!("the report is about {} processes, which are summed up", log.processes));
    }
    if log.intervals > 1 {
        notes.push(format!("{} intervals: the last one is read", log.intervals));
    }
    notes
}
