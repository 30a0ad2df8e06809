//! `heaptape address`: which blocks contained an address, who allocated and who freed them.

use crate::print::{Report, print_reports};
use heaptape_analyzer::Process;
use heaptape_analyzer::model::address::{AddressHistory, Holder, Moment, Origin};
use heaptape_analyzer::report::frames::{FrameJson, stack_json};
use heaptape_analyzer::report::stack_text::text_stack;
use heaptape_analyzer::report::{Error, Outcome, PointInTime, Query, Unanswerable};
use heaptape_analyzer::symbols::Symbolizer;
use heaptape_analyzer::text::{Screen, Style, bytes, count, counted, duration};
use heaptape_formats::tape::Entry;
use serde::Serialize;
use std::io::{self, Write};

/// Which address is looked up, and how stacks are printed.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The address to look up.
    pub address: u64,
    /// Maximum number of frames of each printed stack.
    pub frames: usize,
}

/// An event in the life of a block, with its stack.
#[derive(Serialize)]
pub(crate) struct EventRow {
    pub(crate) at: PointInTime,
    /// The function that was called, if known.
    function: Option<&'static str>,
    /// Number of the thread, if known.
    thread: Option<u32>,
    thread_name: String,
    stack: Vec<FrameJson>,
    /// The lines that the text report prints for the stack.
    #[serde(skip)]
    lines: Vec<String>,
    #[serde(skip)]
    more_frames: usize,
}

impl EventRow {
    /// Returns whether nothing says who caused the event.
    pub(crate) fn has_no_stack(&self) -> bool {
        self.stack.is_empty()
    }
}

#[derive(Serialize)]
pub(crate) struct BlockRow {
    /// Address of the block, in hexadecimal.
    pub(crate) address: String,
    pub(crate) bytes: u64,
    /// Offset of the looked-up address in the block. Outside of the block, for the nearest one, it
    /// is negative or at least the size.
    pub(crate) offset: i128,
    /// `allocated`, `reallocated` or `inherited`.
    origin: &'static str,
    begin: Option<EventRow>,
    /// `live`, `freed` or `reallocated`.
    pub(crate) state: &'static str,
    /// Whether the free was not recorded, but inferred from the next use of the memory.
    end_is_inferred: bool,
    pub(crate) end: Option<EventRow>,
    /// Nanoseconds from begin to end, if both are known.
    lived_ns: Option<u64>,
}

impl BlockRow {
    /// Returns a block of which nothing was recorded.
    pub(crate) fn without_history(address: u64, bytes: u64, offset: i128, is_free: bool) -> BlockRow {
        BlockRow {
            address: format!("{address:#x}"),
            bytes,
            offset,
            origin: "allocated",
            begin: None,
            state: if is_free { "freed" } else { "live" },
            end_is_inferred: false,
            end: None,
            lived_ns: None,
        }
    }
}

#[derive(Serialize)]
struct AddressReport {
    address: String,
    /// Blocks that contained the address, newest first.
    blocks: Vec<BlockRow>,
    /// Number of older blocks that are not listed.
    older_blocks: u64,
    /// Frees and reallocations of the address while no block was known there.
    unknown_frees: Vec<EventRow>,
    /// The block that came nearest to the address, if none contained it.
    nearest: Option<BlockRow>,
}

/// What the rows of one process are made with.
pub(crate) struct Context<'a> {
    pub(crate) process: &'a Process,
    pub(crate) symbols: &'a mut Symbolizer,
    pub(crate) options: Options,
}

impl Context<'_> {
    pub(crate) fn event(&mut self, moment: &Moment) -> EventRow {
        let known = self.process.tape.threads.get(&moment.thread);
        let stacks = self.process.stacks();
        let (lines, more_frames) = match moment.site {
            0 => (Vec::new(), 0),
            site => text_stack(self.symbols, stacks, site, self.options.frames),
        };
        EventRow {
            at: PointInTime::at(self.process, moment.position.tick, Some(moment.position.number)),
            function: Entry::from_number(moment.entry).map(Entry::name),
            thread: (moment.thread != 0).then_some(moment.thread),
            thread_name: known.map(|thread| thread.name.lossy().into_owned()).unwrap_or_default(),
            stack: if moment.site == 0 { Vec::new() } else { stack_json(self.symbols, stacks, moment.site) },
            lines,
            more_frames,
        }
    }

    pub(crate) fn block(&mut self, holder: &Holder) -> BlockRow {
        let begin = holder.begin.as_ref().map(|moment| self.event(moment));
        let end = holder.end.as_ref().map(|end| self.event(&end.moment));
        let time = |row: &Option<EventRow>| row.as_ref().and_then(|row| row.at.time_ns);
        let lived_ns = time(&end).zip(time(&begin)).map(|(end, begin)| end.saturating_sub(begin));
        BlockRow {
            address: format!("{:#x}", holder.address),
            bytes: holder.size,
            offset: i128::from(self.options.address) - i128::from(holder.address),
            origin: match holder.origin {
                Origin::Allocated => "allocated",
                Origin::Resized => "reallocated",
                Origin::Inherited => "inherited",
            },
            begin,
            state: match holder.end {
                None => "live",
                Some(end) if end.is_resize => "reallocated",
                Some(_) => "freed",
            },
            end_is_inferred: holder.end.is_some_and(|end| end.is_implied),
            end,
            lived_ns,
        }
    }
}

/// Runs `heaptape address`: prints the blocks that contained an address.
///
/// # Errors
/// Returns [`Error::Unanswerable`] when no block of the selected processes contained the address;
/// the nearest blocks are printed then. Or a recording cannot be read, or `out` cannot be written.
pub fn run(query: &Query, options: Options, out: &mut dyn Write, style: Style) -> Result<Outcome, Error> {
    let mut found = false;
    let outcome = print_reports(query, out, style, true, |process, symbols, progress| {
        let mut model = AddressHistory::new(options.address, query.view.top);
        let outcome = query.scope.replay(process, process.span(&query.scope.range), symbols, progress, &mut model);
        found |= !model.holders.is_empty() || !model.unmatched.is_empty();
        let mut context = Context { process, symbols, options };
        let nearest = model.nearest.filter(|_| model.holders.is_empty());
        let report = AddressReport {
            address: format!("{:#x}", options.address),
            blocks: model.holders.iter().rev().map(|holder| context.block(holder)).collect(),
            older_blocks: model.older,
            unknown_frees: model.unmatched.iter().map(|moment| context.event(moment)).collect(),
            nearest: nearest.map(|holder| context.block(&holder)),
        };
        Ok((report, outcome.missing))
    })?;
    if found {
        return Ok(outcome);
    }
    Err(Unanswerable::UnknownAddress(options.address).into())
}

/// Returns the thread as reports name it.
pub(crate) fn thread(row: &EventRow) -> String {
    match (row.thread, row.thread_name.as_str()) {
        (None, _) => "an unknown thread".into(),
        (Some(number), "") => format!("thread {number}"),
        (Some(number), name) => format!("thread {number} ({name})"),
    }
}

pub(crate) fn print_stack(screen: &mut Screen, row: &EventRow) -> io::Result<()> {
    for line in &row.lines {
        screen.line(&format!("    {line}"))?;
    }
    match row.more_frames {
        0 => Ok(()),
        more => screen.line(&format!("    … {}", counted(more as u64, "outer frame"))),
    }
}

/// Returns a distance as text: exact where it may be an overrun.
fn distance(offset: i128) -> String {
    const EXACT: u64 = 1 << 20;
    match u64::try_from(offset).unwrap_or(u64::MAX) {
        near @ ..EXACT => counted(near, "byte"),
        far => bytes(far),
    }
}

/// Returns where the address is in a block of the report, or beside it.
pub(crate) fn location(row: &BlockRow) -> String {
    let size = counted(row.bytes, "byte");
    let block = format!("{size} at {}", row.address);
    match row.offset {
        0 => block,
        before if before < 0 => format!("{block}, which begins {} after it", distance(-before)),
        offset if offset < i128::from(row.bytes) => format!("byte {offset} of {block}"),
        offset => format!("{block}, which ends {} before it", distance(offset - i128::from(row.bytes))),
    }
}

pub(crate) fn print_block(screen: &mut Screen, row: &BlockRow) -> io::Result<()> {
    match &row.begin {
        None => screen.line(&format!("  {}", row.origin))?,
        Some(begin) => {
            let by = begin.function.map(|name| format!(", by {name}")).unwrap_or_default();
            screen.line(&format!("  {} {} in {}{by}", row.origin, begin.at.text(), thread(begin)))?;
            print_stack(screen, begin)?;
        }
    }
    let Some(end) = &row.end else { return screen.line("  still live") };
    if row.end_is_inferred {
        return screen.line("  freed at an unknown time: the free was not recorded");
    }
    // Two events between two timestamps have the same time.
    let lived =
        row.lived_ns.filter(|&nanos| nanos > 0).map(|nanos| format!(", after {}", duration(nanos))).unwrap_or_default();
    let by = end.function.map(|name| format!(", by {name}")).unwrap_or_default();
    screen.line(&format!("  {} {} in {}{by}{lived}", row.state, end.at.text(), thread(end)))?;
    print_stack(screen, end)
}

impl Report for AddressReport {
    fn print(&self, screen: &mut Screen) -> io::Result<()> {
        let blocks = self.blocks.len() as u64 + self.older_blocks;
        let order = if blocks > 1 { ", newest first" } else { "" };
        screen.line(&format!("{}: {} contained it{order}", self.address, counted(blocks, "block")))?;
        for (number, row) in self.blocks.iter().enumerate() {
            screen.line(&format!("{}. {}", number + 1, location(row)))?;
            print_block(screen, row)?;
        }
        if self.older_blocks > 0 {
            screen.line(&format!("and {} older (--top N)", count(self.older_blocks)))?;
        }
        for row in &self.unknown_frees {
            screen.line(&format!("freed {} in {}, where no block was known", row.at.text(), thread(row)))?;
            print_stack(screen, row)?;
        }
        if let Some(nearest) = &self.nearest {
            screen.line(&format!("the nearest block: {}", location(nearest)))?;
            print_block(screen, nearest)?;
        }
        Ok(())
    }
}
