//! Blocks that one allocator allocated and another one freed or resized. Most allocators crash, or
//! damage their own memory, when they get such a block; some pass it on.

use crate::annotations::{Domain, MALLOC};
use crate::event::Span;
use crate::load::Process;
use crate::model::crossings::{Crossed, Crossing, Crossings};
use crate::report::frames::{FrameJson, SourceLines, call_site, call_site_line, stack_json};
use crate::symbols::Symbolizer;
use crate::text::{Color, Screen, bytes, counted, shorten};
use heaptape_formats::recording::Allocator;
use heaptape_formats::tape::Entry;
use serde::Serialize;
use std::cmp::Reverse;
use std::io;

/// Number of call sites that are printed for each pair of allocators.
const TOP: usize = 3;

/// Blocks of one call site that another allocator freed or resized.
pub struct CrossedBlocks<'a> {
    process: &'a Process,
    crossing: Crossing,
    crossed: Crossed,
}

/// The JSON of [`CrossedBlocks`].
#[derive(Serialize)]
pub(super) struct CrossedJson<'a> {
    process: u32,
    #[serde(rename = "image")]
    folder: &'a str,
    allocated_by: &'a str,
    freed_by: &'a str,
    blocks: u64,
    bytes: u64,
    stack: Vec<FrameJson>,
    freed_at: Option<Vec<FrameJson>>,
}

/// Returns the model for a process, if it has several allocators.
pub(super) fn model(process: &Process, span: Span) -> Option<Crossings> {
    let allocators = std::array::from_fn(|entry| number(process, entry as u8));
    (!process.about.allocators.is_empty()).then(|| Crossings::new(allocators, span))
}

/// Returns the number of the allocator that an entry belongs to: 0 for the C library's, else one
/// more than its number in the recording. A library that replaces the C library's has the same one
/// for its other functions.
fn number(process: &Process, entry: u8) -> Option<u8> {
    const MALLOC: u8 = Entry::Malloc as u8;
    const NEW_ARRAY: u8 = Entry::NewArray as u8;
    const FREE: u8 = Entry::Free as u8;
    const DELETE_ARRAY: u8 = Entry::DeleteArray as u8;
    match entry {
        MALLOC..=NEW_ARRAY | FREE..=DELETE_ARRAY => Some(0),
        _ => {
            let inside = Domain::of(entry).inside?;
            let is_shared = |one: &Allocator| one.number == inside && one.shares_malloc;
            Some(if process.about.allocators.iter().any(is_shared) { 0 } else { inside + 1 })
        }
    }
}

fn name(process: &Process, number: u8) -> &str {
    let allocators = &process.about.allocators;
    let inside = number.checked_sub(1).and_then(|number| allocators.iter().find(|one| one.number == number));
    inside.map_or(MALLOC, |allocator| &allocator.name)
}

impl<'a> CrossedBlocks<'a> {
    /// Returns what the model found, most bytes first. The order does not depend on the process.
    pub(super) fn all(process: &'a Process, model: Crossings) -> Vec<CrossedBlocks<'a>> {
        let blocks = |(crossing, crossed)| CrossedBlocks { process, crossing, crossed };
        let mut all: Vec<CrossedBlocks> = model.found.into_iter().map(blocks).collect();
        all.sort_by_key(CrossedBlocks::order);
        all
    }

    /// Returns the key that sorts them, most bytes first.
    pub(super) const fn order(&self) -> (Reverse<u64>, Crossing) {
        (Reverse(self.crossed.bytes), self.crossing)
    }

    pub const fn process(&self) -> &'a Process {
        self.process
    }

    /// Returns the call site of the allocation.
    pub const fn site(&self) -> u32 {
        self.crossing.site
    }

    pub const fn blocks(&self) -> u64 {
        self.crossed.blocks
    }

    /// Returns what crossed on one line.
    pub fn line(&self, symbols: &mut Symbolizer) -> String {
        format!("{}, {}: {}", self.crossed.text(), self.pair(false), self.call_sites(symbols))
    }

    /// Returns the JSON, with the stacks named.
    pub(super) fn json(&self, symbols: &mut Symbolizer) -> CrossedJson<'a> {
        let CrossedBlocks { process, crossing, crossed } = *self;
        let mut stack = |site| stack_json(symbols, process.stacks(), site);
        CrossedJson {
            process: process.about.pid,
            folder: &process.about.folder,
            allocated_by: name(process, crossing.allocated_by),
            freed_by: name(process, crossing.freed_by),
            blocks: crossed.blocks,
            bytes: crossed.bytes,
            stack: stack(crossing.site),
            freed_at: (crossing.freed_at != 0).then(|| stack(crossing.freed_at)),
        }
    }

    /// Returns the names of both allocators, with the process if there are several.
    fn pair(&self, several: bool) -> String {
        let CrossedBlocks { process, crossing: Crossing { allocated_by, freed_by, .. }, .. } = self;
        let of = if several { format!(", in {} (pid {})", process.name(), process.about.pid) } else { String::new() };
        format!("allocated by {} and freed by {}{of}", name(process, *allocated_by), name(process, *freed_by))
    }

    /// Returns where the blocks are allocated and, if that is known, freed.
    fn call_sites(&self, symbols: &mut Symbolizer) -> String {
        let mut line = |site, count| {
            let call_site = call_site(symbols, self.process.stacks(), site, count);
            call_site_line(&call_site, &SourceLines::default(), symbols.names())
        };
        match self.crossing.freed_at {
            0 => line(self.crossing.site, 2),
            freed_at => format!("{}, freed in {}", line(self.crossing.site, 2), line(freed_at, 1)),
        }
    }
}

impl Crossed {
    fn add(&mut self, other: Crossed) {
        self.blocks += other.blocks;
        self.bytes = self.bytes.saturating_add(other.bytes);
    }

    fn text(&self) -> String {
        format!("{} in {}", bytes(self.bytes), counted(self.blocks, "block"))
    }
}

fn add_row(rows: &mut Vec<(String, Crossed)>, text: String, crossed: Crossed) {
    match rows.iter_mut().find(|row| row.0 == text) {
        Some(row) => row.1.add(crossed),
        None => rows.push((text, crossed)),
    }
}

/// Prints the pairs of allocators, each with its call sites, most bytes first.
///
/// # Errors
/// Returns an error when the screen cannot be written.
pub(super) fn print(
    all: &[CrossedBlocks],
    several: bool,
    symbols: &mut Symbolizer,
    screen: &mut Screen,
) -> io::Result<()> {
    let mut pairs = Vec::new();
    all.iter().for_each(|one| add_row(&mut pairs, one.pair(several), one.crossed));
    let width = screen.style.width.saturating_sub(4);
    for (pair, crossed) in pairs {
        screen.spans(&[(Color::Yellow, &format!("{} were {pair}", crossed.text()))])?;
        let mut rows = Vec::new();
        let own = all.iter().filter(|one| one.pair(several) == pair);
        own.for_each(|one| add_row(&mut rows, one.call_sites(symbols), one.crossed));
        rows.sort_by_key(|(_, crossed)| Reverse(crossed.bytes));
        for (text, crossed) in rows.iter().take(TOP) {
            screen.line(&format!("    {}", shorten(&format!("{}: {text}", crossed.text()), width)))?;
        }
        if rows.len() > TOP {
            screen.line(&format!("    and {} (--json)", counted((rows.len() - TOP) as u64, "more call site")))?;
        }
    }
    if all.iter().any(|one| one.crossing.freed_at == 0) {
        screen.line("    record --free-stacks names where they are freed")?;
    }
    Ok(())
}
