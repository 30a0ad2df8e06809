//! Massif output for `ms_print`: live bytes at a hundred points in time of the run, with stacks at
//! ten of these, at the peak and at the end.

use super::dhat::frame_text;
use super::{Error, Exporter, Needs, Out, Shape, Source, Totals, verify};
use crate::event::{Event, Position, Span};
use crate::load::Process;
use crate::model::Model;
use crate::model::live_set::Block;
use crate::model::peak::Peak;
use crate::model::row;
use crate::replay::replay;
use crate::symbols::Symbolizer;
use heaptape_formats::massif::layout::ROOT;
use heaptape_formats::massif::{self, Header, Node, Snapshot, TreeKind};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The exporter of Massif output.
pub struct Export;

/// Number of snapshots, as in Massif.
const SNAPSHOTS: u64 = 100;
/// Every tenth snapshot is detailed: it has a tree of stacks.
const DETAILED: u64 = 10;
/// Massif's threshold: stacks that hold less than a hundredth of a snapshot are merged.
const THRESHOLD: u64 = 100;
/// Maximum number of frames of a stack, as in Massif.
const DEEPEST: usize = 30;

impl Exporter for Export {
    fn name(&self) -> &'static str {
        "massif"
    }

    fn extension(&self) -> &'static str {
        "massif.out"
    }

    fn summary(&self) -> &'static str {
        "Massif's output, for ms_print and massif-visualizer"
    }

    fn needs(&self) -> Needs {
        Needs { events: true, shape: Shape::OnePerProcess }
    }

    fn write(&self, source: &mut Source<'_>, out: &mut Out) -> Result<(), Error> {
        let Some(&process) = source.processes.first() else { return Ok(()) };
        let span = process.span(&source.range());
        let mut moments = Snapshots::new(process, span);
        let mut peak = Peak::within(Span::ALL);
        let outcome = replay(process, span, source.progress(), &mut (&mut moments, &mut peak));
        moments.end();
        let mut taken = std::mem::take(&mut moments.taken);
        let (held, at) = peak.peak();
        let shares = peak.shares().filter(|share| share.at_peak.bytes > 0);
        let at_peak = LiveBytes {
            order: moments.order(at),
            at: moments.time.of(at),
            live: held.bytes,
            sites: Some(shares.map(|share| (share.site, share.at_peak.bytes)).collect()),
            is_peak: true,
        };
        // The last snapshot is that of the end, also if the peak is in the same millisecond.
        let before = taken.partition_point(|one| one.order <= at_peak.order).min(taken.len() - 1);
        taken.insert(before, at_peak);
        let mut text = String::new();
        massif::write_header(
            &mut text,
            &Header {
                desc: "heaptape; bytes asked for, without what the allocator adds".into(),
                cmd: crate::text::clean(&process.about.argv.join(" ")).into_owned(),
                time_unit: if process.has_times() { "ms" } else { "i" }.into(),
            },
        );
        let mut file = out.stream()?;
        for (number, one) in (0..).zip(taken) {
            let kind = match (&one.sites, one.is_peak) {
                (None, _) => TreeKind::Empty,
                (Some(_), true) => TreeKind::Peak,
                (Some(_), false) => TreeKind::Detailed,
            };
            let tree = one.sites.as_ref().map(|sites| tree(process, &mut source.symbols, sites, one.live));
            let tree = tree.unwrap_or_default();
            massif::write_snapshot(
                &mut text,
                &Snapshot { number, time: one.at, heap: one.live, extra: 0, stacks: 0, kind, tree },
            );
            file.put(text.as_bytes())?;
            text.clear();
        }
        source.found(&outcome.missing);
        file.finish()
    }

    fn totals(&self, source: &mut Source<'_>) -> Result<Totals, Error> {
        let mut totals = Totals::default();
        for process in source.processes.clone() {
            let sums = source.sums(process);
            totals.add("live-bytes", sums.totals.live_bytes.into());
            totals.add("peak-bytes", sums.totals.peak_bytes.into());
        }
        Ok(totals)
    }

    fn held(&self, _: &Source<'_>, files: &[PathBuf]) -> Result<Totals, Error> {
        Ok(verify::read(files)?.only(&["live-bytes", "peak-bytes"]))
    }
}

/// The unit of time: milliseconds, or events without a clock.
#[derive(Clone, Copy)]
struct Time(Option<crate::load::Clock>);

impl Time {
    fn of(self, at: Position) -> u64 {
        self.0.map_or(at.number, |clock| clock.nanos(at.tick) / 1_000_000)
    }
}

/// The live bytes at a point in time, and those of each site in a detailed snapshot.
struct LiveBytes {
    /// Position in the order of the snapshots: a tick, or the number of an event without a clock.
    order: u64,
    at: u64,
    live: u64,
    sites: Option<Vec<(u32, u64)>>,
    is_peak: bool,
}

/// Takes snapshots at equal distances.
struct Snapshots {
    time: Time,
    by_tick: bool,
    start: u64,
    width: u64,
    next: u64,
    sites: Vec<u64>,
    live: u64,
    last: Position,
    taken: Vec<LiveBytes>,
}

impl Snapshots {
    fn new(process: &Process, span: Span) -> Snapshots {
        let by_tick = process.has_times();
        let (start, end) = match by_tick {
            true => (span.first_tick.max(process.clock.start_tick), span.end_tick.min(process.tape.last_tick)),
            false => (span.first, span.end.min(process.tape.events)),
        };
        let width = end.saturating_sub(start).div_ceil(SNAPSHOTS).max(1);
        let time = Time(by_tick.then_some(process.clock));
        let last =
            Position { number: process.tape.events.min(span.end), tick: process.tape.last_tick.min(span.end_tick) };
        Snapshots { time, by_tick, start, width, next: 0, sites: Vec::new(), live: 0, last, taken: Vec::new() }
    }

    /// Takes the snapshots that are due before an event.
    #[inline]
    fn before(&mut self, at: Position) {
        let now = self.order(at);
        while self.next < SNAPSHOTS && now >= self.start.saturating_add(self.next * self.width) {
            let due = self.start.saturating_add(self.next * self.width);
            let due = if self.by_tick { Position { number: 0, tick: due } } else { Position { number: due, tick: 0 } };
            self.take(due, self.next % DETAILED == DETAILED - 1);
            self.next += 1;
        }
    }

    fn order(&self, at: Position) -> u64 {
        if self.by_tick { at.tick } else { at.number }
    }

    fn take(&mut self, at: Position, detailed: bool) {
        let sites =
            || self.sites.iter().zip(0u32..).filter(|(bytes, _)| **bytes > 0).map(|(bytes, site)| (site, *bytes));
        let sites = detailed.then(|| sites().collect());
        self.taken.push(LiveBytes {
            order: self.order(at),
            at: self.time.of(at),
            live: self.live,
            sites,
            is_peak: false,
        });
    }

    fn end(&mut self) {
        let last = self.last;
        self.before(last);
        self.take(last, true);
    }

    fn add_block(&mut self, block: &Block) {
        let bytes = row(&mut self.sites, block.site);
        *bytes = bytes.saturating_add(block.size);
        self.live = self.live.saturating_add(block.size);
    }

    fn remove_block(&mut self, old: Option<&Block>) {
        if let Some(old) = old {
            let bytes = row(&mut self.sites, old.site);
            *bytes = bytes.saturating_sub(old.size);
            self.live = self.live.saturating_sub(old.size);
        }
    }
}

impl Model for Snapshots {
    fn alloc(&mut self, event: &Event, block: &Block) {
        self.before(event.position());
        self.add_block(block);
    }

    fn resize(&mut self, event: &Event, old: Option<&Block>, block: &Block) {
        self.before(event.position());
        self.remove_block(old);
        self.add_block(block);
    }

    fn free(&mut self, event: &Event, old: Option<&Block>) {
        self.before(event.position());
        self.remove_block(old);
    }
}

/// Bytes of a frame, and the branches of its callers.
#[derive(Default)]
struct FrameBytes {
    bytes: u64,
    callers: BTreeMap<String, FrameBytes>,
}

/// Returns live bytes as a tree from the innermost frames outwards.
fn tree(process: &Process, symbols: &mut Symbolizer, sites: &[(u32, u64)], live: u64) -> Vec<Node> {
    let stacks = process.stacks();
    let mut root = FrameBytes::default();
    for &(site, bytes) in sites {
        root.bytes = root.bytes.saturating_add(bytes);
        let mut branch = &mut root;
        let mut depth = 0;
        'frames: for (_, site) in stacks.stack(site) {
            for frame in symbols.frames(stacks, &site).iter() {
                branch = branch.callers.entry(frame_text(site.address, frame)).or_default();
                branch.bytes = branch.bytes.saturating_add(bytes);
                depth += 1;
                if depth == DEEPEST {
                    break 'frames;
                }
            }
        }
        if depth == 0 {
            let none = root.callers.entry("0x0: (no stack)".into()).or_default();
            none.bytes = none.bytes.saturating_add(bytes);
        }
    }
    let mut nodes = Vec::new();
    list(&root, ROOT, 0, live / THRESHOLD, &mut nodes);
    nodes
}

fn list(branch: &FrameBytes, text: &str, depth: usize, least: u64, nodes: &mut Vec<Node>) {
    let mut large: Vec<(&String, &FrameBytes)> =
        branch.callers.iter().filter(|(_, caller)| caller.bytes >= least).collect();
    large.sort_by_key(|(_, caller)| std::cmp::Reverse(caller.bytes));
    let small = branch.callers.len() - large.len();
    let children = (large.len() + usize::from(small > 0)) as u32;
    nodes.push(Node { children, depth, bytes: branch.bytes, text: text.to_string() });
    let listed: u64 = large.iter().map(|(_, caller)| caller.bytes).sum();
    for (text, caller) in large {
        list(caller, text, depth + 1, least, nodes);
    }
    if small > 0 {
        let locations = if small == 1 { "1 place,".to_string() } else { format!("{small} places, all") };
        let text = format!("in {locations} below massif's threshold (1.00%)");
        let rest: u64 = branch.callers.values().map(|caller| caller.bytes).sum::<u64>().saturating_sub(listed);
        nodes.push(Node { children: 0, depth: depth + 1, bytes: rest, text });
    }
}
