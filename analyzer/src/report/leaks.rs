//! `heaptape leaks`: what was never freed, by stack, with a verdict and its evidence.

use super::frames::{FrameJson, place, stack_json, text_stack};
use super::questions::{Asked, Head, When};
use super::sums::sums;
use super::{Error, Outcome, json, say_missing};
use crate::event::Span;
use crate::load::Image;
use crate::missing::Missing;
use crate::model::leaks::{History, Leaks, SLICES, Survivors};
use crate::model::verdict::{Run, Verdict, judge, slope};
use crate::progress::Progress;
use crate::replay::replay;
use crate::symbols::{Detail, Symbolizer};
use crate::text::{Screen, Style, bytes, count, counted, duration, percent};
use rustc_hash::FxHashMap;
use serde::Serialize;
use serde::ser::{SerializeSeq, Serializer};
use std::cell::RefCell;
use std::io::{self, Write};

/// Frames of each stack in the text.
const FRAMES: usize = 8;

/// Why the verdict is what it is.
#[derive(Clone, Debug, Serialize)]
pub struct Evidence {
    /// Birth of the oldest survivor.
    pub first: When,
    /// Birth of the youngest.
    pub last: When,
    /// Bytes a second by which the site grew; none without times.
    pub bytes_per_second: Option<f64>,
    /// Allocations and resizes of the site.
    pub allocs: u64,
    /// Of these, freed.
    pub freed: u64,
    /// Of these, resized away.
    pub resized: u64,
    /// Mean lifetime of the freed ones, in ns (in events without times).
    pub mean_life: Option<u64>,
    /// The longest.
    pub longest_life: Option<u64>,
    /// Age of the oldest survivor at the end, in the same unit.
    pub oldest_age: u64,
    /// Smallest survivor.
    pub smallest: u64,
    /// Largest.
    pub largest: u64,
    /// The first few threads that allocated survivors.
    pub threads: Vec<u32>,
    /// The oldest few: address and size.
    pub examples: Vec<(String, u64)>,
    /// Live bytes of the site at the end of each 16th of the run.
    pub live_bytes: [u64; SLICES],
    /// Births of survivors in each 16th of the run.
    pub births: [u64; SLICES],
    /// Where siblings were freed, most often first, when frees were recorded with stacks.
    pub freed_at: Vec<FreedAt>,
    /// Events missing from the recording; a free of a survivor may be among them.
    pub missing_events: Option<u64>,
}

/// A place where siblings were freed.
#[derive(Clone, Debug, Serialize)]
pub struct FreedAt {
    /// How many.
    pub blocks: u64,
    /// The innermost frames of the program.
    pub functions: Vec<String>,
}

/// The leaks of one stack; where they were merged, of stacks with the same innermost frames.
struct Leak<'a> {
    image: &'a Image,
    verdict: Verdict,
    site: u32,
    sites: u64,
    blocks: u64,
    bytes: u64,
    evidence: Option<Evidence>,
}

#[derive(Serialize)]
struct LeakJson<'a> {
    bytes: u64,
    blocks: u64,
    verdict: Verdict,
    process: u32,
    image: &'a str,
    stacks: u64,
    stack: Vec<FrameJson>,
    evidence: &'a Option<Evidence>,
}

#[derive(Serialize)]
struct Answer<'a> {
    leaks: Each<'a>,
    total: Total,
    processes: Vec<Head>,
}

#[derive(Clone, Copy, Default, Serialize)]
struct Total {
    bytes: u64,
    blocks: u64,
    stacks: u64,
}

/// Leaks one by one: stacks are named as they are written, so that there is never more than one in memory.
struct Each<'a>(&'a [Leak<'a>], RefCell<Symbolizer>);

impl Serialize for Each<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.len()))?;
        for leak in self.0 {
            let stack = stack_json(&mut self.1.borrow_mut(), leak.image.stacks(), leak.site);
            list.serialize_element(&LeakJson {
                bytes: leak.bytes,
                blocks: leak.blocks,
                verdict: leak.verdict,
                process: leak.image.about.pid,
                image: &leak.image.about.folder,
                stacks: leak.sites,
                stack,
                evidence: &leak.evidence,
            })?;
        }
        list.end()
    }
}

/// How leaks are shown.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Stacks are merged when so many innermost frames of the program are the same; 0: only when they are the same
    /// throughout.
    pub depth: usize,
    /// How many are listed; JSON lists all unless this was asked for.
    pub top: Option<usize>,
}

/// Rows of the text when nobody asked for another number.
const TOP: usize = 10;

/// `heaptape leaks`.
///
/// # Errors
/// When nothing can be read, or `out` fails.
pub fn run(asked: &Asked, options: Options, out: &mut dyn Write, style: Style) -> Result<Outcome, Error> {
    let recordings = asked.open()?;
    let mut symbols = Symbolizer::new(Detail::Full);
    let progress = Progress::new("reading events");
    let mut leaks: Vec<Leak> = Vec::new();
    let mut missing: Vec<(&Image, Vec<Missing>)> = Vec::new();
    for image in asked.images(&recordings)? {
        let lacking = if image.has_events() {
            of_events(image, asked, options.depth, &mut symbols, &progress, &mut leaks)
        } else {
            of_sums(image, &progress, &mut leaks)
        };
        missing.push((image, lacking));
    }
    drop(progress);
    leaks.sort_by_key(|leak| (std::cmp::Reverse(leak.bytes.saturating_mul(leak.verdict.weight())), leak.site));
    let mut total = Total::default();
    for leak in &leaks {
        total.bytes = total.bytes.saturating_add(leak.bytes);
        total.blocks += leak.blocks;
        total.stacks += leak.sites;
    }
    let lacking =
        missing.iter().map(|(_, missing)| missing.len()).chain(recordings.iter().map(|r| r.missing.len())).sum();
    if asked.json {
        let shown = &leaks[..options.top.unwrap_or(leaks.len()).min(leaks.len())];
        let processes = missing.iter().map(|(image, missing)| Head::of(image, missing)).collect();
        json::print(out, &Answer { leaks: Each(shown, RefCell::new(symbols)), total, processes })?;
    } else {
        let mut screen = Screen::new(out, style);
        print(&leaks, total, options, &missing, &mut symbols, &mut screen)?;
        for recording in &recordings {
            say_missing(&mut screen, "", &recording.missing)?;
        }
    }
    Ok(Outcome::of(lacking))
}

/// Sites that are told together.
#[derive(Default)]
struct Group {
    /// The site with the most bytes, and how many these are.
    site: u32,
    greatest: u64,
    sites: u64,
    survivors: Survivors,
    history: History,
}

/// Leaks of an image with events.
fn of_events<'a>(
    image: &'a Image,
    asked: &Asked,
    depth: usize,
    symbols: &mut Symbolizer,
    progress: &Progress,
    leaks: &mut Vec<Leak<'a>>,
) -> Vec<Missing> {
    let by_tick = image.has_times();
    let (start, end) = match by_tick {
        true => (image.clock.start_tick, image.tape.last_tick),
        false => (0, image.tape.events),
    };
    let span = image.span(&asked.range);
    let mut model = Leaks::new(by_tick, start, end, image.tape.process.free_sites);
    let outcome = replay(image, span.with_history(), progress, &mut model);
    let mut missing = image.missing.clone();
    missing.extend(outcome.missing);
    let run = run_of(by_tick, start, end, &missing);
    let born = Span { end: u64::MAX, end_tick: u64::MAX, ..span };
    let mut groups: FxHashMap<(Vec<String>, u32, bool), Group> = FxHashMap::default();
    let mut survivors: Vec<((u32, bool), Survivors)> = model.survivors(&outcome.live, born).into_iter().collect();
    survivors.sort_by_key(|(key, _)| *key);
    for ((site, inherited), survivors) in survivors {
        let names = if depth == 0 { Vec::new() } else { place(symbols, image.stacks(), site, depth).names };
        let key = (names, if depth == 0 { site } else { 0 }, inherited);
        let group = groups.entry(key).or_insert_with(|| Group { site, ..Group::default() });
        if survivors.bytes > group.greatest {
            (group.site, group.greatest) = (site, survivors.bytes);
        }
        group.sites += 1;
        group.survivors.merge(&survivors);
        if let Some(history) = model.rows.get(site as usize) {
            group.history.merge(history);
        }
    }
    for Group { site, sites, survivors, history, .. } in groups.into_values() {
        let verdict = judge(&run, &history, &survivors);
        let evidence = Some(evidence(image, &run, &history, &survivors, freed_at(image, &model, site, symbols)));
        leaks.push(Leak { image, verdict, site, sites, blocks: survivors.blocks, bytes: survivors.bytes, evidence });
    }
    missing
}

/// Leaks of a profile: what was allocated and not freed, without evidence.
fn of_sums<'a>(image: &'a Image, progress: &Progress, leaks: &mut Vec<Leak<'a>>) -> Vec<Missing> {
    let sums = sums(image, progress);
    for row in &sums.sites {
        let (blocks, bytes) = (row.allocs.saturating_sub(row.frees), row.bytes.saturating_sub(row.freed_bytes));
        if blocks > 0 {
            leaks.push(Leak {
                image,
                verdict: Verdict::Uncertain,
                site: row.site,
                sites: 1,
                blocks,
                bytes,
                evidence: None,
            });
        }
    }
    sums.missing
}

pub(crate) fn run_of(by_tick: bool, start: u64, end: u64, missing: &[Missing]) -> Run {
    let mut run = Run { start, end, by_tick, hidden: 0, hidden_until: 0 };
    for one in missing.iter().filter(|one| one.hides_events()) {
        let events = match one {
            Missing::Lost { events, .. } | Missing::Chunk { events, .. } => *events,
            _ => u64::MAX,
        };
        run.hidden = run.hidden.saturating_add(events);
        let until = one.ticks().filter(|_| by_tick).map_or(u64::MAX, |(_, until)| until);
        run.hidden_until = run.hidden_until.max(until);
    }
    run
}

pub(crate) fn freed_at(image: &Image, model: &Leaks, site: u32, symbols: &mut Symbolizer) -> Vec<FreedAt> {
    let places = model.freed_at(site);
    let named = places
        .into_iter()
        .take(3)
        .map(|(at, blocks)| FreedAt { blocks, functions: place(symbols, image.stacks(), at, 2).names });
    named.collect()
}

pub(crate) fn evidence(
    image: &Image,
    run: &Run,
    history: &History,
    survivors: &Survivors,
    freed_at: Vec<FreedAt>,
) -> Evidence {
    let unit = |value: u64| if run.by_tick { image.clock.span_nanos(value) } else { value };
    let died = history.died > 0;
    let (first, last) = (survivors.first, survivors.last);
    let oldest = if run.by_tick { first.0 } else { first.1 };
    Evidence {
        first: When::at(image, first.0, Some(first.1)),
        last: When::at(image, last.0, Some(last.1)),
        bytes_per_second: run.by_tick.then(|| slope(run, history) * image.clock.ticks_per_second as f64),
        allocs: history.allocs,
        freed: history.died,
        resized: history.resized,
        mean_life: died.then(|| unit(history.lived / history.died.max(1))),
        longest_life: died.then(|| unit(history.longest_life)),
        oldest_age: unit(run.end.saturating_sub(oldest)),
        smallest: survivors.smallest,
        largest: survivors.largest,
        threads: survivors.threads.clone(),
        examples: survivors.examples.iter().map(|&(_, address, size)| (format!("{address:#x}"), size)).collect(),
        live_bytes: history.series,
        births: survivors.births,
        freed_at,
        missing_events: (run.hidden > 0 && run.hidden < u64::MAX).then_some(run.hidden),
    }
}

fn print(
    leaks: &[Leak],
    total: Total,
    options: Options,
    missing: &[(&Image, Vec<Missing>)],
    symbols: &mut Symbolizer,
    screen: &mut Screen,
) -> io::Result<()> {
    let cut = missing.iter().any(|(_, missing)| missing.contains(&Missing::NoEnd));
    let when = if cut { "still live when the recording was cut" } else { "never freed" };
    let (all, blocks) = (bytes(total.bytes), counted(total.blocks, "block"));
    screen.heading(&format!("{all} in {blocks} {when}, from {}", counted(total.stacks, "stack")))?;
    let several = missing.len() > 1;
    let top = options.top.unwrap_or(TOP);
    for (number, leak) in leaks.iter().take(top).enumerate() {
        let mut head = format!("{}. {} in {}", number + 1, bytes(leak.bytes), counted(leak.blocks, "block"));
        head += &format!(", {} of all: {}", percent(leak.bytes, total.bytes), leak.verdict.name());
        if leak.sites > 1 {
            head += &format!(", {} stacks", leak.sites);
        }
        if several {
            head += &format!(", in {} (pid {})", leak.image.name(), leak.image.about.pid);
        }
        screen.heading(&head)?;
        let frames = if options.depth == 0 { FRAMES } else { options.depth };
        let (lines, more) = text_stack(symbols, leak.image.stacks(), leak.site, frames);
        let width = screen.style.width.saturating_sub(4);
        for line in lines {
            screen.line(&format!("    {}", crate::text::shorten(&line, width)))?;
        }
        if more > 0 && leak.sites == 1 {
            screen.line(&format!("    … {}", counted(more as u64, "outer frame")))?;
        }
        match &leak.evidence {
            Some(evidence) => explain(leak, evidence, screen)?,
            None => screen.line("    a profile holds no order and no times: nothing more can be said")?,
        }
    }
    if leaks.len() > top {
        let rest = &leaks[top..];
        let (sum, blocks) = rest.iter().fold((0u64, 0), |(a, b), leak| (a.saturating_add(leak.bytes), b + leak.blocks));
        screen.line(&format!(
            "and {} more with {} in {} (--top N)",
            rest.len(),
            bytes(sum),
            counted(blocks, "block")
        ))?;
    }
    for (image, missing) in missing {
        let of = if several { format!("{}: ", image.about.folder) } else { String::new() };
        say_missing(screen, &of, missing)?;
    }
    Ok(())
}

fn explain(leak: &Leak, evidence: &Evidence, screen: &mut Screen) -> io::Result<()> {
    let times = leak.image.has_times();
    let time = |value: u64| if times { duration(value) } else { format!("{} events", count(value)) };
    let mut born = match leak.blocks {
        1 => format!("born {}", evidence.first.text()),
        _ => format!("born {} to {}", evidence.first.text().replace(" after the start", ""), evidence.last.text()),
    };
    if let Some(rate) = evidence.bytes_per_second
        && rate >= 1.0
        && leak.verdict <= Verdict::Slow
    {
        born += &format!(", +{}/s", bytes(rate as u64));
    }
    let sizes = match (evidence.smallest, evidence.largest) {
        (a, _) if leak.blocks == 1 => format!("{a} B"),
        (a, b) if a == b => format!("{a} B each"),
        (a, b) => format!("{a} to {b} B"),
    };
    let example = evidence.examples.first().map(|(address, _)| format!(", e.g. {address}")).unwrap_or_default();
    screen.line(&format!("    {born}; {sizes}{example}"))?;
    if let (Some(mean), Some(longest)) = (evidence.mean_life, evidence.longest_life) {
        let mut siblings = format!(
            "    {} of {} allocations here were freed, after {} on average, {} at most",
            count(evidence.freed),
            count(evidence.allocs),
            time(mean),
            time(longest)
        );
        if let Some(at) = evidence.freed_at.first() {
            siblings += &format!(", mostly in {}", at.functions.join(" < "));
        }
        screen.line(&siblings)?;
    } else if evidence.resized > 0 {
        screen.line(&format!("    resized {} times", count(evidence.resized)))?;
    }
    Ok(())
}
