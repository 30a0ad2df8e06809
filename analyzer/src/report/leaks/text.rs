//! The leak report as text.

use super::evidence::Evidence;
use super::{Leak, LeakReport, Options};
use crate::charts::sparkline;
use crate::missing::Missing;
use crate::model::leaks::SLICES;
use crate::model::verdict::{FLOOR_BYTES, FLOOR_SECONDS, FLOOR_SHARE, Verdict};
use crate::report::frames::{SourceLines, call_site, call_site_line};
use crate::report::stack_text::text_stack;
use crate::report::{hints, print_missing, print_own_malloc, print_sampled};
use crate::symbols::Symbolizer;
use crate::text::{Screen, bytes, count, counted, duration, percent, shorten};
use heaptape_formats::recording::Exit;
use std::io;

/// Default number of frames of each stack.
const FRAMES: usize = 8;
/// Default number of leaks in the report.
const TOP: usize = 10;
/// The headline names what grew and was freed only at exit if it is at least this fraction of the
/// peak: 1/100.
const GROWN_SHARE: u64 = 100;

/// Prints the report on leaks as text.
///
/// # Errors
/// Returns an error when the screen cannot be written.
pub(super) fn print(
    found: &LeakReport,
    options: &Options,
    symbols: &mut Symbolizer,
    screen: &mut Screen,
) -> io::Result<()> {
    let LeakReport { leaks, freed_at_exit, missing, .. } = found;
    screen.heading(&headline(found, symbols))?;
    let several = missing.len() > 1;
    let mut entries: Vec<&Leak> = leaks.iter().chain(freed_at_exit).collect();
    entries.sort_by_key(|leak| leak.order());
    let top = options.top.unwrap_or(TOP).min(entries.len());
    for (number, leak) in entries[..top].iter().enumerate() {
        let mut head = format!("{}. {}", number + 1, amount(leak, found));
        if leak.sites > 1 {
            head += &format!(", {} stacks", leak.sites);
        }
        one(leak, head, several, options, symbols, screen)?;
    }
    let rest: Vec<String> = [false, true].into_iter().filter_map(|grown| more(&entries[top..], grown)).collect();
    if !rest.is_empty() {
        screen.line(&format!("and {} (--top N)", rest.join("; ")))?;
    }
    if entries[..top].iter().any(|leak| leak.verdict == Verdict::TooLittle) {
        screen.line(&format!(
            "too little to tell: grew in a run shorter than {}, or by less than {} and {}% of the peak",
            duration((FLOOR_SECONDS * 1e9) as u64),
            bytes(FLOOR_BYTES),
            FLOOR_SHARE * 100.0
        ))?;
    }
    for (process, _) in missing {
        if let Some(inherited) = &process.tape.inherited
            && inherited.blocks > 0
        {
            screen.line(&format!(
                "{} (pid {}) got {} in {} from its parent: inherited, no leak of its own",
                process.name(),
                process.about.pid,
                bytes(inherited.bytes),
                counted(inherited.blocks, "block")
            ))?;
        }
    }
    super::suppressed::print(found, screen)?;
    for (process, missing) in missing {
        let of = if several { format!("{}: ", process.about.folder) } else { String::new() };
        print_sampled(screen, &of, process)?;
        print_missing(screen, &of, missing)?;
    }
    let own_malloc: Vec<_> = missing.iter().filter(|(process, _)| process.about.own_malloc).collect();
    let own_malloc: Vec<_> = own_malloc.iter().map(|(process, _)| (process.name(), process.about.pid)).collect();
    print_own_malloc(screen, own_malloc.iter().map(|(name, pid)| (name.as_ref(), *pid)))?;
    let hint = missing.iter().find_map(|(process, _)| hints::find(process, process.known_sites(), symbols));
    hint.iter().try_for_each(|hint| screen.line(&format!("note: {hint}")))
}

/// Returns the first line: how much was never freed, and what to look at first.
fn headline(found: &LeakReport, symbols: &mut Symbolizer) -> String {
    let LeakReport { leaks, freed_at_exit, total, missing, .. } = found;
    let truncated = missing.iter().any(|(_, missing)| missing.contains(&Missing::NoEnd));
    let runs = missing.iter().any(|(process, _)| process.about.exit == Some(Exit::Running));
    let when = match (truncated, runs) {
        (true, _) => "still live at the end of the truncated recording",
        (false, true) => "still live",
        (false, false) => "never freed",
    };
    let (all, blocks) = (bytes(total.bytes), counted(total.blocks, "block"));
    let mut line = format!("{all} in {blocks} {when}, from {}", counted(total.stacks, "stack"));
    let mut blamed = |leak: &Leak| {
        let call_site = call_site(symbols, leak.process.stacks(), leak.site, 1);
        call_site_line(&call_site, &SourceLines::default())
    };
    if let Some(worst) = leaks.first().filter(|leak| leak.verdict <= Verdict::Slow) {
        line += &format!("; {}: {}", worst.verdict.name(), blamed(worst));
    }
    if let Some(worst) = freed_at_exit.first().filter(|_| total.grown_bytes >= found.peak_bytes / GROWN_SHARE) {
        let grown = bytes(total.grown_bytes);
        line += &format!("; {grown} grew through the run and were freed only at exit: {}", blamed(worst));
    }
    line
}

/// Returns the amount and the verdict of an entry.
fn amount(leak: &Leak, found: &LeakReport) -> String {
    if leak.verdict == Verdict::FreedAtExit {
        return format!(
            "grew to {}, and was freed only when the program ended: {}",
            bytes(leak.grown),
            leak.verdict.name()
        );
    }
    let (size, blocks) = (bytes(leak.bytes), counted(leak.blocks, "block"));
    format!("{size} in {blocks}, {} of all: {}", percent(leak.bytes, found.total.bytes), leak.verdict.name())
}

/// Describes the entries that are not listed: those that grew and were freed at exit if `grown`,
/// else the others.
fn more(entries: &[&Leak], grown: bool) -> Option<String> {
    let own: Vec<&&Leak> = entries.iter().filter(|leak| (leak.verdict == Verdict::FreedAtExit) == grown).collect();
    let (size, blocks) = own.iter().fold((0u64, 0), |(size, blocks), leak| {
        (size.saturating_add(leak.bytes.max(leak.grown)), blocks + leak.blocks)
    });
    match (own.len(), grown) {
        (0, _) => None,
        (count, true) => Some(format!("{count} more freed at exit that grew to at most {} together", bytes(size))),
        (count, false) => Some(format!("{count} more with {} in {}", bytes(size), counted(blocks, "block"))),
    }
}

fn one(
    leak: &Leak,
    mut head: String,
    several: bool,
    options: &Options,
    symbols: &mut Symbolizer,
    screen: &mut Screen,
) -> io::Result<()> {
    if several {
        head += &format!(", in {} (pid {})", leak.process.name(), leak.process.about.pid);
    }
    screen.heading(&head)?;
    let frames = options.frames.unwrap_or(if options.depth == 0 { FRAMES } else { options.depth });
    let (lines, more) = text_stack(symbols, leak.process.stacks(), leak.site, frames);
    let width = screen.style.width.saturating_sub(4);
    for line in lines {
        screen.line(&format!("    {}", shorten(&line, width)))?;
    }
    if more > 0 && leak.sites == 1 {
        screen.line(&format!("    … {}", counted(more as u64, "outer frame")))?;
    }
    match &leak.evidence {
        Some(evidence) => explain(leak, evidence, screen),
        None => screen.line("    the recording holds only sums: there is no evidence"),
    }
}

fn explain(leak: &Leak, evidence: &Evidence, screen: &mut Screen) -> io::Result<()> {
    let time = |value: u64| if evidence.unit == "ns" { duration(value) } else { counted(value, "event") };
    if leak.blocks > 0 {
        let mut allocated = match leak.blocks {
            1 => format!("allocated {}", evidence.first.text()),
            _ => format!(
                "allocated {} to {}",
                evidence.first.text().replace(" after the start", ""),
                evidence.last.text()
            ),
        };
        if let Some(rate) = evidence.bytes_per_second
            && rate >= 1.0
            && leak.verdict <= Verdict::Slow
        {
            allocated += &format!(", +{}/s", bytes(rate as u64));
        }
        let sizes = match (evidence.smallest, evidence.largest) {
            (Some(a), _) if leak.blocks == 1 => format!("; {a} B"),
            (Some(a), Some(b)) if a == b => format!("; {a} B each"),
            (Some(a), Some(b)) => format!("; {a} to {b} B"),
            _ => String::new(),
        };
        let example = evidence.examples.first().map(|(address, _)| format!(", e.g. {address}")).unwrap_or_default();
        let threads = match &evidence.threads[..] {
            [] | [_] => String::new(),
            several => format!(", by threads {}", several.iter().map(u32::to_string).collect::<Vec<_>>().join(" ")),
        };
        screen.line(&format!("    {allocated}{sizes}{example}{threads}"))?;
    }
    if (leak.blocks > 2 || leak.verdict == Verdict::FreedAtExit)
        && let Some(line) = sparkline(screen.style, &evidence.live_bytes, SLICES)
    {
        screen.line(&format!("    live bytes over the run: {line}"))?;
    }
    if let (Some(mean), Some(longest)) = (evidence.mean_lifetime, evidence.longest_lifetime) {
        let mut line = format!(
            "    {} of {} allocations here were freed, after {} on average, {} at most",
            count(evidence.freed),
            count(evidence.allocs),
            time(mean),
            time(longest)
        );
        if let Some(at) = evidence.freed_at.first() {
            line += &format!(", mostly in {}", at.functions.join(" < "));
        }
        screen.line(&line)?;
    } else if evidence.freed > 0 {
        let (freed, allocs) = (count(evidence.freed), count(evidence.allocs));
        screen.line(&format!("    {freed} of {allocs} allocations here were freed"))?;
    } else if evidence.resized > 0 {
        screen.line(&format!("    reallocated {} times", count(evidence.resized)))?;
    }
    Ok(())
}
