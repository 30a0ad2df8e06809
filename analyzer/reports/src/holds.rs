//! `heaptape holds`: who holds the blocks that are live when a program ends, and which of them
//! nobody holds.

mod since;

use crate::print::{Report, print_reports};
use heaptape_analyzer::report::frames::{FrameJson, stack_json};
use heaptape_analyzer::report::holders::{Amount, Holders};
use heaptape_analyzer::report::lost::{self, Confidence, Lost, LostGroup};
use heaptape_analyzer::report::segments::{UNKNOWN_BEFORE, is_attached};
use heaptape_analyzer::report::stack_text::text_stack;
use heaptape_analyzer::report::summary::ending_of;
use heaptape_analyzer::report::{Error, Outcome, PointInTime, Query, Unanswerable};
use heaptape_analyzer::symbols::Symbolizer;
use heaptape_analyzer::text::{Screen, Style, bytes, count, counted, percent};
use heaptape_analyzer::{Process, Recording};
use heaptape_formats::core_file::Signal;
use heaptape_formats::recording::Exit;
use serde::Serialize;
use since::GrownRow;
use std::collections::HashMap;
use std::io::{self, Write};
use std::path::PathBuf;

/// Frames of a stack in text.
const FRAMES: usize = 4;
/// Ways in which the blocks of one call site are held that are shown in text.
const PATHS: usize = 2;

/// What is shown.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Only blocks of this function or type, or the one at this address.
    pub of: Option<String>,
    /// Only lost blocks.
    pub lost: bool,
    /// Only cycles.
    pub cycles: bool,
    /// Group what is held by type instead of by call site.
    pub by_type: bool,
    /// An earlier recording of the program: only what is held more than in it.
    pub since: Option<PathBuf>,
}

#[derive(Serialize)]
struct RootRow {
    name: String,
    kind: &'static str,
    module: String,
    blocks: u64,
    bytes: u64,
    /// What only this root leads to.
    only_blocks: u64,
    only_bytes: u64,
    /// The other root that leads to most of it, of up to 128 that are tried, unless only this one leads to at least a half.
    #[serde(skip_serializing_if = "String::is_empty")]
    also_by: String,
    /// How much of it that one leads to.
    #[serde(skip_serializing_if = "is_zero")]
    also_bytes: u64,
}

impl RootRow {
    /// Returns the name, and who else holds most of it.
    fn text(&self) -> String {
        match 10 * self.also_bytes >= self.bytes && self.also_bytes > 0 {
            true => format!("{}; {} of it also by {}", self.name, bytes(self.also_bytes), self.also_by),
            false => self.name.clone(),
        }
    }
}

#[derive(Serialize)]
struct PathRow {
    blocks: u64,
    bytes: u64,
    /// From the blocks to what holds them; the last one is the root.
    steps: Vec<String>,
    /// Address of a block that is held so.
    example: String,
}

/// The held blocks of one call site, or of one type.
#[derive(Default, Serialize)]
struct HeldRow {
    label: String,
    /// Type, if it is known, or `block of` a function.
    what: String,
    blocks: u64,
    bytes: u64,
    /// With all that is held only through them.
    retained_blocks: u64,
    retained_bytes: u64,
    /// Number of different ways in which they are held.
    ways: u64,
    paths: Vec<PathRow>,
    stack: Vec<FrameJson>,
}

#[derive(Serialize)]
struct LostRow {
    what: String,
    is_cycle: bool,
    confidence: &'static str,
    /// Why it is called so.
    sign: String,
    times: u64,
    blocks: u64,
    bytes: u64,
    example: String,
    label: String,
    stack: Vec<FrameJson>,
    #[serde(skip)]
    lines: Vec<String>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[derive(Default, Serialize)]
struct HoldsReport {
    /// When the program was as it is shown, if that is not its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<PointInTime>,
    /// Whether they are those of a core of which nothing was recorded.
    #[serde(skip)]
    is_core: bool,
    blocks: u64,
    bytes: u64,
    held_blocks: u64,
    held_bytes: u64,
    lost_blocks: u64,
    lost_bytes: u64,
    cycle_blocks: u64,
    cycle_bytes: u64,
    /// What a register of a waiting thread may hold, which cannot be read.
    undecided_blocks: u64,
    undecided_bytes: u64,
    /// What only words in unused memory of vectors, of texts, and behind what was requested lead to.
    stale_blocks: u64,
    stale_bytes: u64,
    /// What pointers in a disguise lead to, and in which.
    #[serde(skip_serializing_if = "is_zero")]
    hidden_blocks: u64,
    #[serde(skip_serializing_if = "is_zero")]
    hidden_bytes: u64,
    #[serde(skip_serializing_if = "str::is_empty")]
    disguise: &'static str,
    /// The environment that the program made before `setenv` copied it.
    replaced_blocks: u64,
    replaced_bytes: u64,
    /// Bytes of blocks whose type is known.
    typed_bytes: u64,
    references: u64,
    /// Why no block is called lost: references may be missing. Empty if none are.
    lacks: String,
    roots: Vec<RootRow>,
    held: Vec<HeldRow>,
    lost: Vec<LostRow>,
    /// What is held more than in the earlier recording, with `--since`.
    #[serde(skip_serializing_if = "Option::is_none")]
    grown: Option<Vec<GrownRow>>,
    /// Since when its blocks are known, if that is not its start.
    #[serde(skip)]
    since: Option<&'static str>,
    #[serde(skip)]
    top: usize,
    #[serde(skip)]
    options: Options,
    /// What the next command is about.
    #[serde(skip)]
    path: String,
}

/// The answer for a process; `None` if there is none.
#[derive(Serialize)]
struct Answer {
    holds: Option<HoldsReport>,
}

impl Report for Answer {
    fn print(&self, screen: &mut Screen) -> io::Result<()> {
        match &self.holds {
            Some(report) => report.print(screen),
            // One of several processes; the error says it of the only one.
            None => Ok(()),
        }
    }

    fn lacks(&self) -> Option<&'static str> {
        self.holds.is_none().then_some("did not record which block holds which")
    }
}

/// Why there is no answer.
const NOT_RECORDED: &str = "it was not recorded which block holds which";
/// What helps.
const REMEDY: &str = "that is read at the end of a program under record --references that ends by exit or by the return of main \
                      and is not linked statically; of one that runs, heaptape holds --live PID reads it";

/// Runs `heaptape holds`.
///
/// # Errors
/// [`Error::Unanswerable`] when no selected process has references, or nothing is of what was asked
/// for. Or a recording cannot be read, or `out` cannot be written.
pub fn run(query: &Query, options: &Options, out: &mut dyn Write, style: Style) -> Result<Outcome, Error> {
    let (mut is_there, mut without) = (false, Vec::new());
    let before = options.since.as_deref().map(heaptape_analyzer::open).transpose()?;
    let mut of_name: HashMap<String, usize> = HashMap::new();
    let outcome = print_reports(query, out, style, false, |process, symbols, _| {
        let mut holds = report(process, symbols, query.view.top, options)?;
        if let (Some(before), Some(holds)) = (&before, &mut holds) {
            let number = of_name.entry(process.name()).or_default();
            holds.grown = Some(grown(before, process, *number, symbols, query.view.top)?);
            *number += 1;
        }
        match holds {
            Some(_) => is_there = true,
            None => without.push(Ending::of(process)),
        }
        Ok((Answer { holds }, Vec::new()))
    })?;
    if is_there {
        return Ok(outcome);
    }
    Err(not_recorded(&without))
}

/// How a process ended of which no references are there.
struct Ending {
    text: String,
    is_by_signal: bool,
    /// What to ask of its core, if it may have left one.
    of_core: String,
}

impl Ending {
    fn of(process: &Process) -> Ending {
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
fn not_recorded(without: &[Ending]) -> Error {
    let one = without.iter().find(|one| one.is_by_signal).or(without.first().filter(|_| without.len() == 1));
    let why = one.map_or(NOT_RECORDED.into(), |one| format!("{NOT_RECORDED} in {}", one.text));
    let of_core = one.map_or("", |one| &one.of_core);
    unanswerable(&why, &format!("{REMEDY}{of_core}"))
}

fn unanswerable(why: &str, remedy: &str) -> Error {
    Unanswerable::NoReferences { why: why.into(), remedy: remedy.into() }.into()
}

/// Returns what is held more than in an earlier recording.
fn grown(
    before: &Recording,
    process: &Process,
    number: usize,
    symbols: &mut Symbolizer,
    top: usize,
) -> Result<Vec<GrownRow>, Error> {
    let earlier = since::same_program(before, process, number).map(|earlier| Holders::of(earlier, symbols));
    let remedy = "record the program earlier with --references, or let it do less";
    let path = before.path.display();
    let earlier = match earlier {
        Some(Ok(Some(earlier))) => earlier,
        Some(Err(why)) => return Err(unanswerable(&why, remedy)),
        Some(Ok(None)) => return Err(unanswerable(&format!("{path} did not record which block holds which"), remedy)),
        None => return Err(unanswerable(&format!("{path} has no process of {}", process.name()), remedy)),
    };
    // `report` has just read it.
    let Ok(Some(later)) = Holders::of(process, symbols) else { return Ok(Vec::new()) };
    Ok(since::rows(&earlier, &later, top))
}

/// Returns what to give to the command to ask again.
fn path_of(process: &Process) -> String {
    let is_file = process.core.is_some() && !process.has_events();
    let path = if is_file { &process.path } else { process.path.parent().unwrap_or(&process.path) };
    path.display().to_string()
}

fn report(
    process: &Process,
    symbols: &mut Symbolizer,
    top: usize,
    options: &Options,
) -> Result<Option<HoldsReport>, Error> {
    let mut holders = match Holders::of(process, symbols) {
        Ok(Some(holders)) => holders,
        Ok(None) => return Ok(None),
        Err(why) => return Err(unanswerable(&why, "record the program again with --references")),
    };
    let lost = lost::find(&mut holders);
    holders.share();
    let graph = &holders.snapshot.graph;
    let mut all = Amount::default();
    graph.blocks.iter().for_each(|block| all.add(&block));
    let mut held = Amount::default();
    let mut typed_bytes = 0;
    for (number, block) in (0..).zip(graph.blocks.iter()) {
        if holders.is_held(number) {
            held.add(&block);
        }
        if holders.label(number).is_type {
            typed_bytes += block.size;
        }
    }
    let chosen = chosen(&holders, options)?;
    let mut roots: Vec<RootRow> = holders
        .groups
        .iter()
        .filter(|group| group.held.blocks > 0)
        .map(|group| RootRow {
            name: group.name.clone(),
            kind: group.kind,
            module: group.module.clone(),
            blocks: group.held.blocks,
            bytes: group.held.bytes,
            only_blocks: group.only.blocks,
            only_bytes: group.only.bytes,
            also_by: group.also.map(|(other, _)| holders.groups[other as usize].name.clone()).unwrap_or_default(),
            also_bytes: group.also.map(|(_, amount)| amount.bytes).unwrap_or_default(),
        })
        .collect();
    roots.sort_by(|a, b| (b.bytes, &a.name).cmp(&(a.bytes, &b.name)));
    let held_rows =
        if options.lost || options.cycles { Vec::new() } else { held_rows(&holders, symbols, &chosen, top, options) };
    let rows = lost_rows(&holders, symbols, &lost, &chosen, top, options);
    let head = &holders.snapshot.head;
    Ok(Some(HoldsReport {
        at: (!holders.snapshot.is_of_end()).then(|| PointInTime::at(process, head.tick, None)),
        is_core: process.core.is_some() && !process.has_events(),
        blocks: all.blocks,
        bytes: all.bytes,
        held_blocks: held.blocks,
        held_bytes: held.bytes,
        lost_blocks: lost.amount.blocks,
        lost_bytes: lost.amount.bytes,
        cycle_blocks: lost.in_cycles.blocks,
        cycle_bytes: lost.in_cycles.bytes,
        undecided_blocks: lost.undecided.blocks,
        undecided_bytes: lost.undecided.bytes,
        stale_blocks: lost.stale.blocks,
        stale_bytes: lost.stale.bytes,
        hidden_blocks: lost.hidden.blocks,
        hidden_bytes: lost.hidden.bytes,
        disguise: lost.disguise,
        replaced_blocks: lost.replaced.blocks,
        replaced_bytes: lost.replaced.bytes,
        typed_bytes,
        references: (graph.reference_count() + graph.roots.len()) as u64,
        lacks: lost.lacks,
        roots,
        held: held_rows,
        lost: rows,
        grown: None,
        since: known_since(process),
        top,
        options: options.clone(),
        path: path_of(process),
    }))
}

/// Returns since when the blocks of a process are known, if that is not its start.
fn known_since(process: &Process) -> Option<&'static str> {
    if is_attached(process) {
        return Some("since the attach");
    }
    let ran_already = process.live_since_unix_ns().is_some() || process.about.began_unix_ns != 0;
    ran_already.then_some("since the recording began")
}

/// Returns the blocks that the question is about; `None` for all.
fn chosen(holders: &Holders<'_>, options: &Options) -> Result<Option<Vec<u32>>, Error> {
    let Some(of) = &options.of else { return Ok(None) };
    let address = of.strip_prefix("0x").and_then(|hex| u64::from_str_radix(hex, 16).ok());
    let found: Vec<u32> = match address {
        Some(address) => holders.snapshot.graph.at(address).into_iter().collect(),
        None => {
            let count = holders.snapshot.graph.blocks.len() as u32;
            (0..count).filter(|block| holders.matches(*block, of)).collect()
        }
    };
    if found.is_empty() {
        let before = if is_attached(holders.process()) { format!("; {UNKNOWN_BEFORE}") } else { String::new() };
        let why = format!("no live block is of '{of}'{before}");
        return Err(unanswerable(
            &why,
            "heaptape holds without --of lists functions and types; an address begins with 0x",
        ));
    }
    Ok(Some(found))
}

/// Returns the held blocks by call site or type, those with the most bytes first.
fn held_rows(
    holders: &Holders<'_>,
    symbols: &mut Symbolizer,
    chosen: &Option<Vec<u32>>,
    top: usize,
    options: &Options,
) -> Vec<HeldRow> {
    let graph = &holders.snapshot.graph;
    // A type has several labels, and a line several sites.
    let key = |block: u32| if options.by_type { holders.label_number(block) } else { graph.blocks.site(block) };
    let text = |block: u32| {
        if options.by_type { &*holders.label(block).text } else { holders.site_line(graph.blocks.site(block)) }
    };
    let is_chosen = |block: &u32| {
        holders.is_held(*block) && chosen.as_ref().is_none_or(|chosen| chosen.binary_search(block).is_ok())
    };
    let all = || (0..graph.blocks.len() as u32).filter(is_chosen);
    let mut sums: HashMap<u32, (Amount, u32)> = HashMap::new();
    for block in all() {
        sums.entry(key(block)).or_insert((Amount::default(), block)).0.add(&graph.block(block));
    }
    let mut by_text: HashMap<&str, (Amount, Vec<u32>)> = HashMap::new();
    for (key, (amount, block)) in sums {
        let row = by_text.entry(text(block)).or_default();
        row.0.join(amount);
        row.1.push(key);
    }
    let mut rows: Vec<(&str, (Amount, Vec<u32>))> = by_text.into_iter().collect();
    rows.sort_by(|a, b| (b.1.0.bytes, a.0).cmp(&(a.1.0.bytes, b.0)));
    rows.truncate(top);
    let mut row_of: HashMap<u32, u32> = HashMap::new();
    for (row, (_, (_, keys))) in (0..).zip(&rows) {
        row_of.extend(keys.iter().map(|key| (*key, row)));
    }
    let set_of = |block: u32| row_of.get(&key(block)).copied().filter(|_| is_chosen(&block)).unwrap_or(u32::MAX);
    let retained = holders.retained(rows.len(), set_of);
    let placed = all().filter_map(|block| Some((*row_of.get(&key(block))? as usize, block)));
    let paths = holders.paths(rows.len(), placed);
    let rows = rows.into_iter().zip(retained).zip(paths).filter_map(|(((label, (amount, _)), retained), paths)| {
        let example = paths.first()?.example;
        Some(HeldRow {
            label: label.to_owned(),
            what: holders.label(example).text.clone(),
            blocks: amount.blocks,
            bytes: amount.bytes,
            retained_blocks: retained.blocks,
            retained_bytes: retained.bytes,
            ways: paths.len() as u64,
            paths: paths
                .into_iter()
                .take(top)
                .map(|path| PathRow {
                    blocks: path.amount.blocks,
                    bytes: path.amount.bytes,
                    steps: path.steps,
                    example: format!("{:#x}", graph.block(path.example).address),
                })
                .collect(),
            stack: stack_json(symbols, holders.process().stacks(), graph.blocks.site(example)),
        })
    });
    rows.collect()
}

fn lost_rows(
    holders: &Holders<'_>,
    symbols: &mut Symbolizer,
    lost: &Lost,
    chosen: &Option<Vec<u32>>,
    top: usize,
    options: &Options,
) -> Vec<LostRow> {
    let graph = &holders.snapshot.graph;
    let stacks = holders.process().stacks();
    let is_shown = |group: &&LostGroup| {
        (!options.cycles || group.is_cycle)
            && (!options.lost || !group.is_cycle)
            && chosen.as_ref().is_none_or(|chosen| chosen.binary_search(&group.example).is_ok())
    };
    let rows = lost.groups.iter().filter(is_shown).take(top).map(|group| LostRow {
        what: group.text.clone(),
        is_cycle: group.is_cycle,
        confidence: group.confidence.word(),
        sign: group.sign.clone(),
        times: group.times,
        blocks: group.amount.blocks,
        bytes: group.amount.bytes,
        example: format!("{:#x}", graph.block(group.example).address),
        label: holders.site_line(group.site).to_owned(),
        stack: stack_json(symbols, stacks, group.site),
        lines: text_stack(symbols, stacks, group.site, FRAMES).0,
    });
    rows.collect()
}

impl HoldsReport {
    /// Returns the answer in one sentence.
    fn headline(&self) -> String {
        if self.is_core && self.blocks == 0 && !self.lacks.is_empty() {
            return format!("the blocks in the core are not known: {}", self.lacks);
        }
        let when = match &self.at {
            None if self.is_core => "in the core".into(),
            at => at.as_ref().map_or("at the end".into(), PointInTime::text),
        };
        if self.blocks == 0 {
            let then = match self.since {
                Some(since) => format!(" that was allocated {since} is live {when}; blocks from before are not known"),
                None => format!(" is live {when}"),
            };
            return format!("nothing{then}");
        }
        let all = format!("{} live in {} {when}", bytes(self.bytes), counted(self.blocks, "block"));
        if !self.lacks.is_empty() {
            return format!(
                "{all}: {} held; what is not is not judged, since {}",
                percent(self.held_bytes, self.bytes),
                self.lacks
            );
        }
        let lost_bytes = self.lost_bytes - self.cycle_bytes;
        let lost = match (self.lost_blocks - self.cycle_blocks, self.cycle_blocks) {
            (0, 0) => "none lost".to_owned(),
            (_, 0) => format!("{} lost", bytes(lost_bytes)),
            (0, _) => format!("{} in cycles that nothing else holds", bytes(self.cycle_bytes)),
            _ => format!("{} lost, {} in cycles that nothing else holds", bytes(lost_bytes), bytes(self.cycle_bytes)),
        };
        let by = self.roots.first().map(|root| format!(", most by {}", root.name)).unwrap_or_default();
        let undecided = match self.undecided_blocks {
            0 => String::new(),
            _ => format!("; {} that only registers of waiting threads may hold", bytes(self.undecided_bytes)),
        };
        let stale = match self.stale_blocks {
            0 => String::new(),
            _ => format!("; {} that only unused memory of blocks leads to", bytes(self.stale_bytes)),
        };
        let hidden = match self.hidden_blocks {
            0 => String::new(),
            _ => format!("; {} behind pointers in a disguise ({})", bytes(self.hidden_bytes), self.disguise),
        };
        format!("{all}: {} held{by}; {lost}{hidden}{stale}{undecided}", percent(self.held_bytes, self.bytes))
    }

    fn print_lost(&self, screen: &mut Screen) -> io::Result<()> {
        for row in &self.lost {
            let kind = if row.is_cycle { "cycle" } else { "lost" };
            let times = if row.times == 1 { String::new() } else { format!("{} times ", count(row.times)) };
            screen.line(&format!("  {kind}, {}: {times}{}", row.confidence, row.what))?;
            screen.line(&format!("    {} in {}; {}", bytes(row.bytes), counted(row.blocks, "block"), row.sign))?;
            for line in &row.lines {
                screen.line(&format!("      {line}"))?;
            }
        }
        Ok(())
    }
}

impl Report for HoldsReport {
    fn print(&self, screen: &mut Screen) -> io::Result<()> {
        screen.line(&self.headline())?;
        if let Some(grown) = &self.grown {
            return since::print(grown, screen);
        }
        let is_all = !self.options.lost && !self.options.cycles && self.options.of.is_none();
        if is_all && !self.roots.is_empty() {
            let rows: Vec<Vec<String>> = self
                .roots
                .iter()
                .take(self.top)
                .map(|row| vec![bytes(row.bytes), count(row.blocks), bytes(row.only_bytes), row.text()])
                .collect();
            screen.heading("Held by")?;
            screen.table(&["bytes", "blocks", "only by it", "nearest root"], &rows)?;
        }
        if !self.held.is_empty() {
            screen.heading("What is held, and how")?;
        }
        for row in &self.held {
            screen.line(&format!("  {} in {}: {}", bytes(row.bytes), counted(row.blocks, "block"), row.label))?;
            if row.retained_blocks > row.blocks {
                let (size, blocks) = (bytes(row.retained_bytes), counted(row.retained_blocks, "block"));
                screen.line(&format!("    {size} in {blocks} with what only they hold"))?;
            }
            for path in row.paths.iter().take(PATHS) {
                if row.ways > 1 {
                    screen.line(&format!("    {} of them:", count(path.blocks)))?;
                }
                for (number, step) in path.steps.iter().enumerate() {
                    let arrow = if number == 0 { "" } else { "<- " };
                    screen.line(&format!("      {arrow}{step}"))?;
                }
            }
            if row.ways > PATHS as u64 {
                screen.line(&format!("    and in {}", counted(row.ways - PATHS as u64, "other way")))?;
            }
        }
        if !self.lost.is_empty() {
            screen.heading("Held by nothing")?;
            self.print_lost(screen)?;
        } else if self.options.lost || self.options.cycles {
            screen.line(if self.options.cycles { "no cycle holds itself" } else { "no block is lost" })?;
        }
        if self.replaced_blocks > 0 {
            let (size, blocks) = (bytes(self.replaced_bytes), counted(self.replaced_blocks, "block"));
            screen.line(&format!("{size} in {blocks}: the environment before setenv copied it, which nobody frees"))?;
        }
        if self.bytes > 0 {
            let (typed, references) = (percent(self.typed_bytes, self.bytes), counted(self.references, "reference"));
            screen.line(&format!("types are known for {typed} of the bytes; {references}"))?;
        }
        if self.lost.iter().any(|row| row.confidence == Confidence::Possible.word()) {
            screen.line("possible: a program may hide a pointer, e.g. by XOR or in unused bits")?;
        }
        let next =
            if is_all { "one of them: heaptape holds --of FUNCTION|TYPE|0xADDRESS" } else { "all: heaptape holds" };
        screen.line(&format!("{next} {}", self.path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(report: &HoldsReport) -> String {
        let mut out = Vec::new();
        report.print(&mut Screen::new(&mut out, Style::PLAIN)).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_third_way_is_one_other_way() {
        let path = |step: &str| PathRow { blocks: 1, bytes: 8, steps: vec![step.into()], example: String::new() };
        let row = |ways| HeldRow { ways, paths: vec![path("global a"), path("global b")], ..HeldRow::default() };
        let of = |ways| text(&HoldsReport { held: vec![row(ways)], ..HoldsReport::default() });
        assert!(of(3).contains("    and in 1 other way\n"), "{}", of(3));
        assert!(of(4).contains("    and in 2 other ways\n"), "{}", of(4));
    }

    #[test]
    fn nothing_held_has_no_table_and_no_types() {
        let text = text(&HoldsReport { top: 10, ..HoldsReport::default() });
        assert!(text.starts_with("nothing is live at the end\n"), "{text}");
        assert!(!text.contains("Held by") && !text.contains("types are known"), "{text}");
    }

    #[test]
    fn the_error_says_how_the_program_ended() {
        let ended = |exit| {
            let mut process = Process::nothing();
            (process.about.pid, process.about.exe, process.about.exit) = (7, "/bin/shop".into(), Some(exit));
            Ending::of(&process)
        };
        let error = |ends: &[Ending]| not_recorded(ends).to_string();
        let killed = error(&[ended(Exit::Signal(9))]);
        assert!(killed.contains("in shop (pid 7), ended by signal 9: that is read at the end"), "{killed}");
        assert!(!killed.contains("--core"), "{killed}");
        let crashed = error(&[ended(Exit::Code(0)), ended(Exit::Signal(11))]);
        assert!(crashed.contains("ended by signal 11") && crashed.contains("heaptape holds --core CORE"), "{crashed}");
        let left = error(&[ended(Exit::Code(3))]);
        assert!(left.contains("in shop (pid 7), exit 3: "), "{left}");
        assert!(error(&[]).starts_with("it was not recorded which block holds which: "));
    }
}
