//! mleak's view of an mpatrol log: the blocks that were allocated and not freed, each with its call stack.
//!
//! The log is text. What is read of it:
//!
//! ```text
//! ALLOC: malloc (52, 16 bytes, 4 bytes) [main|test1.c|36]         index, size, alignment; function, file, line
//! <tab>0x0804942F main+31                                         stack
//!
//! returns 0x080620E8
//!
//! FREE: free (0x080620E8) [main|test1.c|37]
//! <tab>0x08049457 main+71
//!
//!     0x080620E8 (16 bytes) {malloc:52:0} [main|test1.c|36]       the block that is freed; or an ERROR: then it is not
//! <tab>0x0804942F main+31
//!
//! unfreed allocations: 1 (16 bytes)                               the library's own list, at the end
//!     0x08062100 (16 bytes) {malloc:53:0} [main|test1.c|38]
//! <tab>0x08049431 main+33
//! ```
//! Resizes are not followed, as mleak does not: a block is shown with its first address and size.

mod from_recording;

pub use from_recording::view_recording;

use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufRead, Write};

/// What to show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Pass over the log's own list of unfreed allocations.
    pub ignore: bool,
    /// Frames to show of each stack; `None` is all.
    pub max_stack: Option<usize>,
}

/// Prints the blocks that a log shows as unfreed.
///
/// # Errors
/// When the log cannot be read, or `out` fails.
pub fn view(mut log: impl BufRead, options: &Options, out: &mut dyn Write) -> io::Result<()> {
    let mut scan = Scan { options: *options, ..Scan::default() };
    let mut line = Vec::new();
    while log.read_until(b'\n', &mut line)? > 0 {
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        scan.line(text.strip_suffix(b"\r").unwrap_or(text));
        line.clear();
    }
    scan.end_free();
    print(&scan.blocks.values().collect::<Vec<_>>(), options, out)
}

/// A block, in the words of the log.
#[derive(Clone, Debug, Default)]
struct Block {
    address: Vec<u8>,
    size: u64,
    /// `{function:index:resizes}` and what follows it.
    origin: Vec<u8>,
    stack: Vec<Vec<u8>>,
}

/// Where in the log we are.
#[derive(Clone, Debug, Default)]
enum Within {
    /// Nowhere of interest.
    #[default]
    Nothing,
    /// Behind `ALLOC:`, waiting for the address that is returned.
    Alloc(u64, Block),
    /// Behind `FREE:`, waiting for the block's description.
    Free(Vec<u8>),
    /// In the list of unfreed allocations; the block whose stack is being read, if it is a new one.
    List(Option<u64>),
}

#[derive(Debug, Default)]
struct Scan {
    options: Options,
    within: Within,
    /// Blocks by order of appearance, and that by allocation index; the newest index at each address.
    blocks: BTreeMap<u64, Block>,
    order_of: HashMap<u64, u64>,
    index_at: HashMap<Vec<u8>, u64>,
    appeared: u64,
}

impl Scan {
    fn line(&mut self, line: &[u8]) {
        if let Some(rest) = line.strip_prefix(b"ALLOC: ") {
            self.end_free();
            self.within = alloc(rest).map_or(Within::Nothing, |(index, block)| Within::Alloc(index, block));
        } else if let Some(rest) = line.strip_prefix(b"FREE: ") {
            self.end_free();
            self.within = between(rest, b"(", b")").map_or(Within::Nothing, |address| Within::Free(address.to_vec()));
        } else if line.starts_with(b"REALLOC: ") {
            self.end_free();
            self.within = Within::Nothing;
        } else if line.starts_with(b"ERROR: ") {
            // What failed neither allocated nor freed.
            self.within = Within::Nothing;
        } else if line.starts_with(b"unfreed allocations: ") {
            self.end_free();
            self.within = if self.options.ignore { Within::Nothing } else { Within::List(None) };
        } else if let Some(address) = line.strip_prefix(b"returns ") {
            if let Within::Alloc(index, block) = std::mem::take(&mut self.within)
                && address.iter().any(|digit| !b"0x".contains(digit))
            {
                self.add(index, Block { address: address.to_vec(), ..block });
            }
        } else {
            self.indented(line);
        }
    }

    fn indented(&mut self, line: &[u8]) {
        let frame = line.starts_with(b"\t");
        match &mut self.within {
            Within::Alloc(_, block) if frame => block.stack.push(line.to_vec()),
            Within::Free(_) if line.starts_with(b"    ") => {
                if let Some((index, block)) = description(line) {
                    self.within = Within::Nothing;
                    self.remove(index, &block.address);
                }
            }
            Within::List(current) if frame => {
                if let Some(block) = current.and_then(|order| self.blocks.get_mut(&order)) {
                    block.stack.push(line.to_vec());
                }
            }
            Within::List(_) if line.is_empty() => {}
            Within::List(_) => match description(line) {
                Some((index, _)) if self.order_of.contains_key(&index) => self.within = Within::List(None),
                Some((index, block)) => self.within = Within::List(Some(self.add(index, block))),
                None => self.within = Within::Nothing,
            },
            _ => {}
        }
    }

    fn add(&mut self, index: u64, block: Block) -> u64 {
        let order = self.appeared;
        self.appeared += 1;
        self.index_at.insert(block.address.clone(), index);
        if let Some(before) = self.order_of.insert(index, order) {
            self.blocks.remove(&before);
        }
        self.blocks.insert(order, block);
        order
    }

    fn remove(&mut self, index: u64, address: &[u8]) {
        if let Some(order) = self.order_of.remove(&index) {
            self.blocks.remove(&order);
        }
        if self.index_at.get(address) == Some(&index) {
            self.index_at.remove(address);
        }
    }

    /// A `FREE:` without a description, as at the end of a cut log, frees what was allocated last at its address.
    fn end_free(&mut self) {
        if let Within::Free(address) = &self.within
            && let Some(&index) = self.index_at.get(address)
        {
            let address = address.clone();
            self.remove(index, &address);
        }
        self.within = Within::Nothing;
    }
}

fn print(blocks: &[&Block], options: &Options, out: &mut dyn Write) -> io::Result<()> {
    let bytes: u128 = blocks.iter().map(|block| u128::from(block.size)).sum();
    writeln!(out, "unfreed allocations: {} ({bytes} {})", blocks.len(), unit(bytes))?;
    let frames = options.max_stack.unwrap_or(usize::MAX);
    for (at, block) in blocks.iter().enumerate() {
        if at > 0 && frames > 0 {
            writeln!(out)?;
        }
        out.write_all(b"    ")?;
        out.write_all(&block.address)?;
        write!(out, " ({} {}) ", block.size, unit(block.size.into()))?;
        out.write_all(&block.origin)?;
        writeln!(out)?;
        for frame in block.stack.iter().take(frames) {
            out.write_all(frame)?;
            writeln!(out)?;
        }
    }
    Ok(())
}

fn unit(bytes: u128) -> &'static str {
    if bytes == 1 { "byte" } else { "bytes" }
}

/// `malloc (52, 16 bytes, 4 bytes) [main|test1.c|36]`
fn alloc(text: &[u8]) -> Option<(u64, Block)> {
    let numbers = between(text, b"(", b")")?;
    let mut numbers = numbers.split(|&byte| byte == b',').map(number);
    let (index, size) = (numbers.next()??, numbers.next()??);
    let (function, rest) = split(text, b" (")?;
    let (_, place) = split(rest, b") ")?;
    let origin = [b"{".as_slice(), function, format!(":{index}:0}} ").as_bytes(), place].concat();
    Some((index, Block { size, origin, ..Block::default() }))
}

/// `    0x080620E8 (16 bytes) {malloc:52:0} [main|test1.c|36]`
fn description(line: &[u8]) -> Option<(u64, Block)> {
    let (address, rest) = split(line.trim_ascii_start(), b" (")?;
    let size = number(rest)?;
    let (_, origin) = split(rest, b") ")?;
    let index = between(origin, b":", b":").and_then(number)?;
    let known = address.starts_with(b"0x") && origin.starts_with(b"{");
    known.then(|| (index, Block { address: address.to_vec(), size, origin: origin.to_vec(), stack: Vec::new() }))
}

/// The decimal number that a text starts with, behind blanks.
fn number(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii_start();
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&text[..digits]).ok()?.parse().ok()
}

/// What stands before and behind the first `mark`.
fn split<'a>(text: &'a [u8], mark: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let at = text.windows(mark.len()).position(|window| window == mark)?;
    Some((&text[..at], &text[at + mark.len()..]))
}

fn between<'a>(text: &'a [u8], open: &[u8], close: &[u8]) -> Option<&'a [u8]> {
    Some(split(split(text, open)?.1, close)?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view_of(log: &str, options: Options) -> String {
        let mut out = Vec::new();
        view(log.as_bytes(), &options, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    fn entry(index: u64, size: u64, address: &str) -> String {
        let unit = unit(size.into());
        format!(
            "ALLOC: malloc ({index}, {size} {unit}, 8 bytes) [f|a.c|3]\n\t0x01 f+1\n\t0x02 main+2\n\nreturns {address}\n\n"
        )
    }

    #[test]
    fn what_is_not_freed_is_shown() {
        let log = entry(5, 10, "0x1000")
            + &entry(6, 1, "0x2000")
            + "FREE: free (0x1000) [-|-|-]\n\t0x03 main+9\n\n    0x1000 (10 bytes) {malloc:5:0} [f|a.c|3]\n\t0x01 f+1\n\n";
        let shown =
            "unfreed allocations: 1 (1 byte)\n    0x2000 (1 byte) {malloc:6:0} [f|a.c|3]\n\t0x01 f+1\n\t0x02 main+2\n";
        assert_eq!(view_of(&log, Options::default()), shown);
        let short = Options { max_stack: Some(1), ..Options::default() };
        assert_eq!(view_of(&log, short), shown.replace("\t0x02 main+2\n", ""));
    }

    #[test]
    fn a_block_that_moved_is_freed_by_its_index() {
        let log = entry(5, 10, "0x1000")
            + "REALLOC: realloc (0x1000, 90 bytes, 8 bytes) [-|-|-]\n\n    0x1000 (10 bytes) {malloc:5:0} [f|a.c|3]\n\nreturns 0x3000\n\n";
        assert!(view_of(&log, Options::default()).starts_with("unfreed allocations: 1 (10 bytes)\n    0x1000"));
        let freed = log + "FREE: free (0x3000) [-|-|-]\n\n    0x3000 (90 bytes) {realloc:5:1} [-|-|-]\n";
        assert_eq!(view_of(&freed, Options::default()), "unfreed allocations: 0 (0 bytes)\n");
    }

    #[test]
    fn failures_neither_allocate_nor_free() {
        let failed = entry(4, 7, "0x00000000");
        let log = entry(5, 10, "0x1000")
            + &failed
            + "FREE: free (0x1001) [-|-|-]\n\nERROR: [MISMAT]: free: 0x1001 does not match allocation of 0x1000\n    0x1000 (10 bytes) {malloc:5:0} [f|a.c|3]\n";
        assert!(view_of(&log, Options::default()).starts_with("unfreed allocations: 1 (10 bytes)\n"));
    }

    #[test]
    fn the_list_adds_what_is_not_known_yet() {
        let log = entry(5, 10, "0x1000")
            + "unfreed allocations: 2 (30 bytes)\n    0x1000 (10 bytes) {malloc:5:0} [f|a.c|3]\n\t0x01 f+1\n\n    0x9000 (20 bytes) {calloc:2:0} [-|-|-]\n\t0x07 g+1\n\nsomething else\n    0x7 (1 byte) {malloc:9:0} [-|-|-]\n";
        let all = view_of(&log, Options::default());
        assert!(all.starts_with("unfreed allocations: 2 (30 bytes)\n"), "{all}");
        assert!(all.ends_with("\n\n    0x9000 (20 bytes) {calloc:2:0} [-|-|-]\n\t0x07 g+1\n"), "{all}");
        let own = view_of(&log, Options { ignore: true, ..Options::default() });
        assert!(own.starts_with("unfreed allocations: 1 (10 bytes)\n"));
    }

    #[test]
    fn a_log_cut_at_any_byte_is_read() {
        let log = entry(5, 10, "0x1000")
            + &entry(6, 1, "0x2000")
            + "FREE: free (0x1000) [-|-|-]\n\t0x03 main+9\n\n    0x1000 (10 bytes) {malloc:5:0} [f|a.c|3]\n\nunfreed allocations: 1 (1 byte)\n    0x2000 (1 byte) {malloc:6:0} [-|-|-]\n";
        for cut in 0..=log.len() {
            assert!(view_of(&log[..cut], Options::default()).starts_with("unfreed allocations: "));
        }
    }
}
