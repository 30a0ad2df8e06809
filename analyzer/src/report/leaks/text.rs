//! The leak report as text.

use super::entries::{Entries, Entry, entries};
use super::evidence::Evidence;
use super::totals::{self, VerdictTotal};
use super::{Held, Leak, LeakReport, Options, crossings, mapped_leaks, source};
use crate::charts::sparkline;
use crate::load::{Process, Recording};
use crate::missing::Missing;
use crate::model::axis::SLICES;
use crate::model::leaks::EXAMPLES;
use crate::model::verdict::{FLOOR_BYTES, FLOOR_SECONDS, FLOOR_SHARE, Verdict};
use crate::report::frames::{call_site, call_site_line, frame_line};
use crate::report::mapped::{self, MappedRow};
use crate::report::segments::{UNKNOWN_BEFORE, is_attached};
use crate::report::stack_text::text_stack;
use crate::report::{Query, hints, mapping_filter, print_missing, print_own_malloc, print_state};
use crate::short_name::NameLength;
use crate::symbols::{Frame, Symbolizer};
use crate::text::{Color, Screen, bytes, count, counted, duration, percent, shorten};
use heaptape_formats::recording::Exit;
use std::io;

/// Number of entries with source lines.
const WITH_SOURCE: usize = 5;
/// Default number of frames of each stack.
const FRAMES: usize = 8;
/// Default number of leaks in the report.
const TOP: usize = 10;
/// The headline names what grew and was freed only at exit if it is at least [`FLOOR_BYTES`] and
/// this fraction of the peak: 1/100.
const GROWN_SHARE: u64 = 100;
/// Maximum number of processes whose inherited blocks have a line each.
const MAX_HEIRS: usize = 4;

/// Prints the report as text: leaks, mappings, and what is missing.
///
/// # Errors
/// Returns an error when the screen cannot be written.
pub(super) fn print(
    mut found: LeakReport,
    recordings: &[Recording],
    query: &Query,
    options: &Options,
    symbols: &mut Symbolizer,
    screen: &mut Screen,
) -> io::Result<()> {
    found.leaks.retain(|leak| leak.kept.is_none());
    let (processes, has_blocks) = (found.processes(), query.scope.mappings.has_blocks());
    if has_blocks {
        print_leaks(&found, options, symbols, screen)?;
    }
    let rows: Vec<MappedRow> = mapped_leaks(query, &processes, symbols).into_iter().map(|leak| leak.row).collect();
    if rows.is_empty() && !has_blocks {
        mapped::print_nothing(screen, &processes)?;
    }
    if !has_blocks {
        mapping_filter::print_unseen(screen, &processes)?;
    }
    let sum = mapped::sum_text(rows.iter());
    let heading = format!("mapped by the program itself and never unmapped: {sum}");
    mapped::print(screen, &heading, &rows, options.top.unwrap_or(mapped::DEFAULT_ROWS))?;
    for recording in recordings {
        print_missing(screen, "", &recording.missing)?;
    }
    query.scope.processes.note(&processes).iter().try_for_each(|note| screen.line(note))?;
    if has_blocks { print_hints(&found, symbols, screen) } else { Ok(()) }
}

fn print_leaks(found: &LeakReport, options: &Options, symbols: &mut Symbolizer, screen: &mut Screen) -> io::Result<()> {
    let totals = totals::by_verdict(found);
    for line in headline(found, &totals, symbols) {
        screen.heading(&line)?;
    }
    totals::print(&totals, symbols, screen)?;
    let several = found.missing.len() > 1;
    let Entries { listed, hidden, hidden_names } = entries(&totals, options, symbols);
    let top = options.top.unwrap_or(TOP).min(listed.len());
    let all = listed.iter().fold(leaked(&totals).bytes, |all, entry| all.max(entry.bytes));
    for (number, entry) in listed[..top].iter().enumerate() {
        one(entry, number + 1, all, several, options, symbols, screen)?;
    }
    let rest: Vec<String> = [false, true].into_iter().filter_map(|grown| more(&listed[top..], grown)).collect();
    if !rest.is_empty() {
        screen.line(&format!("and {} (--top N)", rest.join("; ")))?;
    }
    if hidden > 0 {
        let entries = if hidden == 1 { "1 entry is".into() } else { format!("{} entries are", count(hidden)) };
        screen.line(&format!("{entries} not listed: {} (--all)", hidden_names.join(", ")))?;
    }
    if listed[..top].iter().any(|entry| entry.verdict() == Verdict::TooLittle && !entry.largest().is_probable) {
        screen.line(&format!(
            "too little to tell: grew in a run shorter than {}, or by less than {} and {}% of the peak",
            duration((FLOOR_SECONDS * 1e9) as u64),
            bytes(FLOOR_BYTES),
            FLOOR_SHARE * 100.0
        ))?;
    }
    crossings::print(&found.crossed, several, symbols, screen)?;
    print_inherited(found, screen)?;
    super::suppressed::print(found, screen)?;
    for (process, missing) in &found.missing {
        let of = if several { format!("{}: ", process.about.folder) } else { String::new() };
        print_state(screen, &of, process)?;
        if is_attached(process) {
            screen.line(&format!("{of}{UNKNOWN_BEFORE}"))?;
        }
        print_missing(screen, &of, missing)?;
    }
    let own_malloc: Vec<_> = found.missing.iter().filter(|(process, _)| process.about.own_malloc).collect();
    let own_malloc: Vec<_> = own_malloc.iter().map(|(process, _)| (process.name(), process.about.pid)).collect();
    print_own_malloc(screen, own_malloc.iter().map(|(name, pid)| (name.as_ref(), *pid)))
}

/// Prints how to record more than what was seen, which comes last.
fn print_hints(found: &LeakReport, symbols: &mut Symbolizer, screen: &mut Screen) -> io::Result<()> {
    let hints = |(process, _): &(&Process, _)| hints::find(process, process.known_sites(), symbols);
    let hints = found.missing.iter().map(hints).find(|hints| !hints.is_empty()).unwrap_or_default();
    hints.iter().chain(&found.note_of_holders).try_for_each(|hint| screen.line(&format!("note: {hint}")))
}

/// Returns the first line: how much was never freed, and what to look at first. What does not fit
/// is in lines of its own.
pub(super) fn headline(found: &LeakReport, totals: &[VerdictTotal], symbols: &mut Symbolizer) -> Vec<String> {
    let LeakReport { leaks, freed_at_exit, total, missing, .. } = found;
    let truncated = missing.iter().any(|(_, missing)| missing.contains(&Missing::NoEnd));
    let runs = missing.iter().any(|(process, _)| process.about.exit == Some(Exit::Running));
    let is_core = missing.iter().all(|(process, _)| process.is_core_alone()) && !missing.is_empty();
    let when = match (truncated, runs) {
        _ if is_core || missing.iter().any(|(process, _)| process.core.is_some()) => "live in the core",
        _ if found.is_cut => "live at the end of the range",
        (true, _) => "still live at the end of the truncated recording",
        (false, true) => "still live",
        (false, false) => "never freed",
    };
    let Leaked { bytes: size, blocks, stacks } = leaked(totals);
    let is_known = |missing: &Missing| matches!(missing, Missing::EarlyEnds(_) | Missing::Stacks { .. });
    let is_all = missing.iter().all(|(_, missing)| missing.iter().all(is_known));
    let (never_freed, more) = match blocks {
        0 if is_all && runs => ("nothing leaked so far".to_owned(), String::new()),
        0 if is_all => ("nothing leaked".to_owned(), String::new()),
        0 => ("nothing leaked in what was recorded, which is not all".to_owned(), String::new()),
        _ => (
            format!("{} in {} {when}", bytes(size), counted(blocks, "block")),
            match is_core {
                true => format!(", of {}", counted(stacks, "size")),
                false => format!(", from {}", counted(stacks, "stack")),
            },
        ),
    };
    let unknown = || missing.iter().find_map(|(process, _)| process.core.as_ref()?.unknown());
    if is_core
        && blocks == 0
        && let Some(why) = unknown()
    {
        return vec![format!("the blocks in the core are not known: {why}")];
    }
    let held = Held::of_all(&leaks.iter().collect::<Vec<_>>()).unwrap_or_default();
    if is_core && let Some(unheld) = held.unheld() {
        return vec![format!("{never_freed}{more}; {unheld}")];
    }
    let names = symbols.names();
    let mut clause = |before: String, leak: &Leak| {
        let call_site = call_site(symbols, leak.process.stacks(), leak.site, 1);
        let less = leak.is_probable.then_some(totals::PROBABLE);
        let held = Held::in_processes(leak, leaks, symbols);
        let blamed = call_site_line(&call_site, &leak.lines, names);
        let unheld_bytes = held.as_ref().filter(|held| held.is_mostly_unheld()).map_or(0, Held::unheld_bytes);
        Clause { before, less, blamed, held: held.and_then(|held| held.most()), unheld_bytes }
    };
    let worst = leaks.first().filter(|leak| leak.verdict <= Verdict::Slow || leak.is_probable);
    let worst = worst.map(|worst| clause(worst.verdict_name().into(), worst));
    let least = FLOOR_BYTES.max(found.peak_bytes / GROWN_SHARE);
    let grown = freed_at_exit.first().filter(|_| total.grown_bytes >= least).map(|worst| {
        clause(format!("{} grew through the run and were freed only at exit", bytes(total.grown_bytes)), worst)
    });
    // What nothing holds, unless that was said of the worst one.
    let said = worst.as_ref().map_or(0, |worst| worst.unheld_bytes);
    let unheld = held.unheld().filter(|_| held.unheld_bytes() > said).and_then(|unheld| {
        let most = leaks.iter().max_by_key(|leak| leak.unheld_bytes())?;
        Some(Clause { held: None, ..clause(unheld, most) })
    });
    // What was freed only at exit outweighs little that grows slowly, or nothing.
    let is_minor = |leak: &Leak| leak.verdict > Verdict::Slow && !leak.is_probable;
    let is_slow = |leak: &Leak| leak.verdict == Verdict::Slow && leak.bytes < total.grown_bytes;
    match grown {
        Some(grown) if leaks.first().is_none_or(|leak| is_minor(leak) || is_slow(leak)) => {
            let mut lines = with_clauses(never_freed, &more, worst, [unheld, None], names);
            lines.insert(0, grown.text(names, HEADLINE));
            lines
        }
        grown => with_clauses(never_freed, &more, worst, [unheld, grown], names),
    }
}

/// Maximum length of the first line.
const HEADLINE: usize = 100;

/// A part of the first line that blames a function.
#[derive(Default)]
struct Clause {
    before: String,
    /// What may replace `before` where there is little room.
    less: Option<&'static str>,
    blamed: String,
    /// Who holds it; left out where there is no room.
    held: Option<String>,
    /// The bytes of it that nothing holds, if that is what `held` says.
    unheld_bytes: u64,
}

impl Clause {
    /// Returns the text, with scopes of the function left out to fit into `width` characters.
    fn text(&self, names: NameLength, width: usize) -> String {
        let Clause { before, blamed, held, .. } = self;
        let whole = held.as_ref().map(|held| format!("{before}: {blamed}, {held}"));
        if let Some(whole) = whole.filter(|whole| names == NameLength::Full || whole.chars().count() <= width) {
            return whole;
        }
        match names {
            NameLength::Full => format!("{before}: {blamed}"),
            NameLength::Short => {
                format!("{before}: {}", shorten(blamed, width.saturating_sub(before.chars().count() + 2)))
            }
        }
    }
}

/// Returns lines that begin with `first`, each of at most [`HEADLINE`] characters where names allow
/// that. `more` is left out for a clause that needs its room.
fn with_clauses(
    first: String,
    more: &str,
    worst: Option<Clause>,
    others: [Option<Clause>; 2],
    names: NameLength,
) -> Vec<String> {
    let fits = |text: &str| names == NameLength::Full || text.chars().count() <= HEADLINE;
    let mut lines = vec![format!("{first}{more}")];
    if let Some(worst) = worst {
        let whole = format!("{first}{more}; {}", worst.text(names, usize::MAX));
        let room = HEADLINE.saturating_sub(first.chars().count() + 2);
        let short = format!("{first}; {}", worst.text(names, room));
        let blamed = || worst.blamed.clone();
        let less = worst.less.map(|less| Clause { before: less.into(), blamed: blamed(), ..Clause::default() });
        let less = less.map(|less| format!("{first}; {}", less.text(names, room)));
        match less {
            _ if fits(&whole) => lines = vec![whole],
            _ if fits(&short) => lines = vec![short],
            Some(less) if fits(&less) => lines = vec![less],
            _ => lines.push(worst.text(names, HEADLINE)),
        }
    }
    for other in others.into_iter().flatten() {
        let last = lines.len() - 1;
        let whole = format!("{}; {}", lines[last], other.text(names, usize::MAX));
        match fits(&whole) {
            true => lines[last] = whole,
            false => lines.push(other.text(names, HEADLINE)),
        }
    }
    lines
}

/// What was never freed, without what exec released.
struct Leaked {
    bytes: u64,
    blocks: u64,
    stacks: u64,
}

fn leaked(totals: &[VerdictTotal]) -> Leaked {
    let leaks = totals.iter().flat_map(|total| &total.leaks).filter(|leak| !leak.is_released_by_exec());
    leaks.filter(|leak| leak.blocks > 0).fold(Leaked { bytes: 0, blocks: 0, stacks: 0 }, |sum, leak| Leaked {
        bytes: sum.bytes.saturating_add(leak.bytes),
        blocks: sum.blocks + leak.blocks,
        stacks: sum.stacks + leak.stacks(),
    })
}

/// Returns the amount of an entry. `all` is the sum of all leaks.
fn amount(entry: &Entry, all: u64) -> String {
    if entry.verdict() == Verdict::FreedAtExit {
        return format!("grew to {}, and was freed only when the program ended", bytes(entry.grown));
    }
    let (size, blocks) = (bytes(entry.bytes), counted(entry.blocks, "block"));
    if entry.largest().is_released_by_exec() {
        return format!("{size} in {blocks}, released by exec");
    }
    format!("{size} in {blocks}, {} of all", percent(entry.bytes, all))
}

/// Describes the entries that are not printed: those that grew and were freed at exit if `grown`,
/// else the others.
fn more(entries: &[Entry], grown: bool) -> Option<String> {
    let own: Vec<&Entry> = entries.iter().filter(|entry| (entry.verdict() == Verdict::FreedAtExit) == grown).collect();
    let (size, blocks) = own.iter().fold((0u64, 0), |(size, blocks), entry| {
        (size.saturating_add(entry.bytes.max(entry.grown)), blocks + entry.blocks)
    });
    match (own.len(), grown) {
        (0, _) => None,
        (count, true) => Some(format!("{count} more freed at exit that grew to at most {} together", bytes(size))),
        (count, false) => Some(format!("{count} more with {} in {}", bytes(size), counted(blocks, "block"))),
    }
}

/// Prints what processes got from their parents.
fn print_inherited(found: &LeakReport, screen: &mut Screen) -> io::Result<()> {
    let heirs = found.missing.iter().filter_map(|(process, _)| {
        let inherited = process.tape.inherited.as_ref().filter(|inherited| inherited.blocks > 0)?;
        Some((process, inherited))
    });
    let heirs: Vec<_> = heirs.collect();
    for (process, inherited) in heirs.iter().filter(|_| heirs.len() <= MAX_HEIRS) {
        screen.line(&format!(
            "{} (pid {}) got {} in {} from its parent: inherited, no leak of its own",
            process.name(),
            process.about.pid,
            bytes(inherited.bytes),
            counted(inherited.blocks, "block")
        ))?;
    }
    if heirs.len() > MAX_HEIRS {
        let size = heirs.iter().fold(0u64, |sum, (_, inherited)| sum.saturating_add(inherited.bytes));
        let blocks = heirs.iter().map(|(_, inherited)| inherited.blocks).sum();
        let (size, blocks) = (bytes(size), counted(blocks, "block"));
        screen.line(&format!(
            "{} processes got {size} in {blocks} from their parents: inherited, no leaks of their own",
            heirs.len()
        ))?;
    }
    Ok(())
}

/// Prints an entry: its amount, and the stack and evidence of its largest leak.
fn one(
    entry: &Entry,
    number: usize,
    all: u64,
    several: bool,
    options: &Options,
    symbols: &mut Symbolizer,
    screen: &mut Screen,
) -> io::Result<()> {
    let leak = entry.largest();
    let mut rest = format!(": {}", amount(entry, all));
    if entry.stacks > 1 {
        rest += &format!(", from {} stacks", count(entry.stacks));
    }
    rest += &match entry.leaks.len() {
        1 if several => format!(", in {} (pid {})", leak.process.name(), leak.process.about.pid),
        1 => String::new(),
        processes => format!(", in {processes} processes of {}", leak.process.name()),
    };
    let source = if number <= WITH_SOURCE { source::lines(entry, symbols) } else { Vec::new() };
    let held = Held::of_all(&entry.leaks);
    let word = leak.fate().map(|fate| held.as_ref().map_or(fate.word().into(), |held| held.word(entry.bytes)));
    let (number, verdict) = (format!("{number}. "), word.unwrap_or_else(|| leak.verdict_name().into()));
    let color = if leak.is_probable { Color::Yellow } else { totals::color(leak.verdict) };
    screen.spans(&[(Color::Bold, number.as_str()), (color, &verdict), (Color::Bold, &rest)])?;
    let frames = options.frames.unwrap_or(if options.depth == 0 { FRAMES } else { options.depth });
    let (mut lines, more) = text_stack(symbols, leak.process.stacks(), leak.site, frames);
    let width = screen.style.width.saturating_sub(4);
    let names = symbols.names();
    let call_site = call_site(symbols, leak.process.stacks(), leak.site, 1);
    let blamed_line = match frames {
        usize::MAX => lines.iter().position(|line| *line == frame_line(&call_site.frame, names)).unwrap_or(0),
        _ => 0,
    };
    if entry.lines.count() > 1
        && let Some(line) = lines.get_mut(blamed_line)
    {
        *line = call_site_line(&call_site, &entry.lines, names);
    }
    for (at, line) in lines.into_iter().enumerate() {
        match names {
            NameLength::Full => screen.line(&format!("    {line}"))?,
            NameLength::Short => screen.line(&format!("    {}", shorten(&line, width)))?,
        }
        if at == blamed_line {
            for text in &source {
                let text: String = text.chars().take(width.saturating_sub(4)).collect();
                screen.spans(&[(Color::Faint, &format!("    {text}"))])?;
            }
            if let Some(library) = call_site.library.as_ref().filter(|_| frames != usize::MAX) {
                let line = frame_line(&Frame { inlined: false, ..library.clone() }, names);
                screen.line(&format!("        by {line}"))?;
            }
        }
    }
    match (more as u64, leak.process.stacks().is_truncated(leak.site)) {
        (0, false) => {}
        (0, true) => screen.line("    … outer frames that were not recorded")?,
        (more, false) => screen.line(&format!("    … {}", counted(more, "outer frame")))?,
        (more, true) => {
            screen.line(&format!("    … {}, and more that were not recorded", counted(more, "outer frame")))?;
        }
    }
    if entry.stacks > 1 {
        let of = if entry.leaks.len() > 1 { format!(", pid {}", leak.process.about.pid) } else { String::new() };
        screen.line(&format!("    (the largest of {} stacks{of}; --by stack lists each)", count(entry.stacks)))?;
    }
    let held = held.filter(|held| leak.fate().is_none() || held.is_divided());
    if let Some(held) = held.map(|held| held.text()).filter(|text| !text.is_empty()) {
        screen.line(&format!("    {held}"))?;
    }
    match &leak.evidence {
        Some(evidence) => explain(leak, evidence, screen),
        None if leak.process.is_core_alone() => Ok(()),
        None => screen.line(&format!("    {}", without_evidence(leak.process, leak.site))),
    }
}

/// Maximum number of sites in the history of a profile: the recorder stores those that grew most.
const MAX_HISTORY_SITES: usize = 1024;

/// Explains why there is no evidence for a site. The history of a profile has the sites that hold
/// more than in the middle of the recorded time.
fn without_evidence(process: &Process, site: u32) -> &'static str {
    let history = &process.tape.history;
    let has_all = !history.ticks.is_empty() && history.sites.len() < MAX_HISTORY_SITES;
    let is_sampled = process.tape.process.sample_bytes != 0;
    match has_all && !history.sites.iter().any(|row| row.site == site) {
        true if is_sampled => {
            "by its sample it holds no more than in the middle of the recorded time; a profile has no further evidence"
        }
        true => "it holds no more than in the middle of the recorded time; a profile has no further evidence",
        false => "the recording holds only sums: there is no evidence",
    }
}

/// Describes the threads that allocated the blocks of a leak, by name, if the process has several.
/// The order is that of the names: that of the numbers changes from run to run.
fn threads(leak: &Leak, evidence: &Evidence) -> String {
    let known = &leak.process.tape.threads;
    let name_of = |number: &u32| known.get(number).map(|thread| thread.name.lossy().into_owned()).unwrap_or_default();
    let named = |number: &u32| {
        let name = name_of(number);
        let is_unique = known.values().filter(|thread| thread.name.lossy() == name).count() == 1;
        match name.as_str() {
            "" => number.to_string(),
            name if is_unique => name.into(),
            name => format!("{name} ({number})"),
        }
    };
    let mut numbers = evidence.threads.clone();
    numbers.sort_by_cached_key(|number| (name_of(number), *number));
    let names: Vec<String> = numbers.iter().map(named).collect();
    match &names[..] {
        [] => String::new(),
        [_] if known.len() < 2 => String::new(),
        [one] => format!(", by thread {one}"),
        several if several.len() < EXAMPLES => format!(", by threads {}", several.join(", ")),
        several => format!(", by threads {}, …", several.join(", ")),
    }
}

fn explain(leak: &Leak, evidence: &Evidence, screen: &mut Screen) -> io::Result<()> {
    let time = |value: u64| if evidence.unit == "ns" { duration(value) } else { counted(value, "event") };
    if leak.blocks > 0 {
        let mut allocated = match leak.blocks {
            1 => format!("allocated {}", evidence.first.text()),
            _ => format!("allocated {} to {}", evidence.first.amount(), evidence.last.text()),
        };
        if let Some(rate) = evidence.bytes_per_second
            && rate >= 1.0
            && (leak.verdict <= Verdict::Slow || leak.is_probable)
        {
            allocated += &format!(", +{}/s", bytes(rate as u64));
            if let Some(error) = evidence.bytes_per_second_error.filter(|error| *error >= 1.0) {
                allocated += &format!(" (standard error {}/s)", bytes(error as u64));
            }
        }
        let sizes = match (evidence.smallest, evidence.largest) {
            (Some(a), _) if leak.blocks == 1 => format!("; {a} B"),
            (Some(a), Some(b)) if a == b => format!("; {a} B each"),
            (Some(a), Some(b)) => format!("; {a} to {b} B"),
            _ => String::new(),
        };
        let example = evidence.examples.first().map(|(address, _)| format!(", e.g. {address}")).unwrap_or_default();
        let threads = threads(leak, evidence);
        screen.line(&format!("    {allocated}{sizes}{example}{threads}"))?;
    }
    if let Some(since) = &evidence.judged_since {
        screen.line(&format!("    judged since {}: events were lost before", since.text()))?;
    }
    if (leak.blocks > 2 || leak.verdict == Verdict::FreedAtExit)
        && let Some(line) = sparkline(screen.style, &evidence.live_bytes, SLICES)
    {
        screen.line(&format!("    live bytes over the run: {line}"))?;
    }
    if let (Some(mean), Some(longest)) = (evidence.mean_lifetime, evidence.longest_lifetime) {
        let mut line = format!(
            "    {} of {} here {} freed, after {} on average, {} at most",
            count(evidence.freed),
            counted(evidence.allocs, "allocation"),
            if evidence.freed == 1 { "was" } else { "were" },
            time(mean),
            time(longest)
        );
        if let Some(at) = evidence.freed_at.first() {
            line += &format!(", mostly in {}", at.functions.join(" < "));
        }
        screen.line(&line)?;
    } else if evidence.freed > 0 {
        let (freed, allocs) = (count(evidence.freed), count(evidence.allocs));
        let were = if evidence.freed == 1 { "was" } else { "were" };
        screen.line(&format!("    {freed} of {allocs} allocations here {were} freed"))?;
    } else if evidence.resized > 0 {
        screen.line(&format!("    reallocated {}", counted(evidence.resized, "time")))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use heaptape_formats::tape::SiteHistory;

    #[test]
    fn site_without_history_has_not_grown() {
        let mut process = Process::nothing();
        assert!(without_evidence(&process, 7).contains("only sums"));
        process.tape.history.ticks = vec![1, 2, 3];
        assert!(without_evidence(&process, 7).starts_with("it holds no more"));
        // A site may seem not to have grown by chance, so the words name the sample.
        process.tape.process.sample_bytes = 512;
        assert!(without_evidence(&process, 7).starts_with("by its sample it holds no more"));
        process.tape.process.sample_bytes = 0;
        let row = |site| SiteHistory { site, ..SiteHistory::default() };
        process.tape.history.sites = vec![row(7)];
        assert!(without_evidence(&process, 7).contains("only sums"));
        process.tape.history.sites = (0..MAX_HISTORY_SITES as u32).map(|site| row(site + 8)).collect();
        assert!(without_evidence(&process, 7).contains("only sums"), "others grew more");
    }

    #[test]
    fn the_first_line_blames_and_stays_short() {
        let clause =
            |blamed: &str| Some(Clause { before: "growing".into(), blamed: blamed.into(), ..Clause::default() });
        let lines = |worst: Option<Clause>, grown: Option<Clause>| {
            with_clauses(
                "1.00 MiB in 9 blocks never freed".into(),
                ", from 3 stacks",
                worst,
                [None, grown],
                NameLength::Short,
            )
        };
        let first = "1.00 MiB in 9 blocks never freed";
        assert_eq!(lines(None, None), [format!("{first}, from 3 stacks")]);
        assert_eq!(lines(clause("f a.c:3"), None), [format!("{first}, from 3 stacks; growing: f a.c:3")]);
        assert_eq!(
            lines(clause("f a.c:3"), clause("g a.c:9")),
            [format!("{first}, from 3 stacks; growing: f a.c:3; growing: g a.c:9")]
        );
        let long = "shop::warehouse::inventory::Table::insert_all table.h:1,2";
        assert_eq!(lines(clause(long), None), [format!("{first}; growing: {long}")]);
        let longer = "shop::warehouse::inventory::replication::Table::insert_all table.h:1,2";
        let shown = "shop::warehouse::inventory::repl…::insert_all table.h:1,2";
        assert_eq!(lines(clause(longer), None), [format!("{first}; growing: {shown}")]);
        assert_eq!(
            lines(clause(longer), clause(longer)),
            [format!("{first}; growing: {shown}"), format!("growing: {longer}")]
        );
        let long_words =
            Clause { before: "w".repeat(40), less: Some("probably growing"), blamed: long.into(), ..Clause::default() };
        let shown = "shop::warehouse::invent…::insert_all table.h:1,2";
        assert_eq!(lines(Some(long_words), None), [format!("{first}; probably growing: {shown}")]);
        // Who holds it stands there where it fits.
        let held =
            |blamed: &str| clause(blamed).map(|clause| Clause { held: Some("held by global cache".into()), ..clause });
        assert_eq!(
            lines(held("f a.c:3"), None),
            [format!("{first}, from 3 stacks; growing: f a.c:3, held by global cache")]
        );
        assert_eq!(lines(held(long), None), [format!("{first}; growing: {long}")]);
        // The own name is kept even if it is longer than a line.
        let endless = "a".repeat(120) + " a.c:3";
        assert_eq!(lines(clause(&endless), None), [format!("{first}, from 3 stacks"), format!("growing: {endless}")]);
    }
}
