//! `heaptape holds`: who holds the blocks that are live when a program ends, and which of them
//! nobody holds.

mod not_recorded;
mod since;
mod text;

use crate::print::{Report, print_reports};
use heaptape_analyzer::report::frames::{FrameJson, stack_json};
use heaptape_analyzer::report::holders::{Amount, Holders};
use heaptape_analyzer::report::lost::{self, Lost, LostGroup};
use heaptape_analyzer::report::segments::{UNKNOWN_BEFORE, is_attached};
use heaptape_analyzer::report::stack_text::text_stack;
use heaptape_analyzer::report::{Error, Outcome, PointInTime, Query, Unanswerable};
use heaptape_analyzer::symbols::Symbolizer;
use heaptape_analyzer::text::{Screen, Style};
use heaptape_analyzer::{Process, Recording};
use not_recorded::Ending;
use serde::Serialize;
use since::GrownRow;
use std::collections::HashMap;
use std::io::{self, Write};
use std::path::PathBuf;

/// Frames of a stack in text.
const FRAMES: usize = 4;

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
    /// The other root that leads to most of it, of up to 128 that are tried, unless only this one leads to nine tenths and more.
    #[serde(skip_serializing_if = "String::is_empty")]
    also_by: String,
    /// How much of it that one leads to.
    #[serde(skip_serializing_if = "is_zero")]
    also_bytes: u64,
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
    Err(not_recorded::error(&without))
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
