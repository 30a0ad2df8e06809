//! mleak's view of an mpatrol log: the blocks that were allocated and not freed, each with its call
//! stack.
//!
//! The log is text. These parts of it are read:
//!
//! ```text
//! ALLOC: malloc (52, 16 bytes, 4 bytes) [main|test1.c|36]   index, size, alignment; site
//! <tab>0x0804942F main+31                                         stack
//!
//! returns 0x080620E8
//!
//! FREE: free (0x080620E8) [main|test1.c|37]
//! <tab>0x08049457 main+71
//!
//!     0x080620E8 (16 bytes) {malloc:52:0} [main|test1.c|36]   freed, unless after ERROR:
//! <tab>0x0804942F main+31
//!
//! unfreed allocations: 1 (16 bytes)                      list at the end, by mpatrol itself
//!     0x08062100 (16 bytes) {malloc:53:0} [main|test1.c|38]
//! <tab>0x08049431 main+33
//! ```
//!
//! Like mleak, the view ignores reallocations: a block is shown with its first address and size.

mod from_recording;

pub use from_recording::view_recording;

use std::collections::{BTreeMap, HashMap};
use std::io::{self, BufRead, Read, Write};

/// Maximum number of bytes of a line that are read; the rest of a longer one is skipped.
const MAX_LINE: u64 = 1 << 20;

/// Options of the view `mleak`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Ignores the list of unfreed allocations at the end of the log.
    pub ignore: bool,
    /// Maximum number of frames to show of each stack; `None` means all.
    pub max_stack: Option<usize>,
}

/// Prints the blocks that a log shows as unfreed.
///
/// # Errors
/// Returns an error if reading the log or writing to `out` fails.
pub fn view(mut log: impl BufRead, options: &Options, out: &mut dyn Write) -> io::Result<()> {
    let mut scan = Scan { options: *options, ..Scan::default() };
    let mut line = Vec::new();
    while (&mut log).take(MAX_LINE).read_until(b'\n', &mut line)? > 0 {
        if line.len() as u64 == MAX_LINE && !line.ends_with(b"\n") {
            log.skip_until(b'\n')?;
        }
        let text = line.strip_suffix(b"\n").unwrap_or(&line);
        scan.line(text.strip_suffix(b"\r").unwrap_or(text));
        line.clear();
    }
    scan.end_free();
    print(&scan.blocks.values().collect::<Vec<_>>(), options, out)
}

/// A block, with texts as they appear in the log.
#[derive(Clone, Debug, Default)]
struct Block {
    address: Vec<u8>,
    size: u64,
    /// The text from `{function:index:resizes}` to the end of the line.
    origin: Vec<u8>,
    stack: Vec<Vec<u8>>,
}

/// The part of the log that is being read.
#[derive(Clone, Debug, Default)]
enum Section {
    /// A part that is ignored.
    #[default]
    Nothing,
    /// After `ALLOC:` and before `returns`: the allocation index and the block, without its
    /// address.
    Alloc(u64, Block),
    /// After `FREE:` and before the description of the block: the address.
    Free(Vec<u8>),
    /// In the list of unfreed allocations: the block whose stack is being read, if it is a new one.
    List(Option<u64>),
}

#[derive(Debug, Default)]
struct Scan {
    options: Options,
    section: Section,
    /// Live blocks by order of appearance.
    blocks: BTreeMap<u64, Block>,
    /// Order of appearance by allocation index.
    order_of: HashMap<u64, u64>,
    /// The newest allocation index at each address.
    index_at: HashMap<Vec<u8>, u64>,
    /// Number of blocks that have appeared so far.
    appeared: u64,
}

impl Scan {
    fn line(&mut self, line: &[u8]) {
        if let Some(rest) = line.strip_prefix(b"ALLOC: ") {
            self.end_free();
            self.section = alloc(rest).map_or(Section::Nothing, |(index, block)| Section::Alloc(index, block));
        } else if let Some(rest) = line.strip_prefix(b"FREE: ") {
            self.end_free();
            self.section =
                between(rest, b"(", b")").map_or(Section::Nothing, |address| Section::Free(address.to_vec()));
        } else if line.starts_with(b"REALLOC: ") {
            self.end_free();
            self.section = Section::Nothing;
        } else if line.starts_with(b"ERROR: ") {
            // A failed operation neither allocated nor freed.
            self.section = Section::Nothing;
        } else if line.starts_with(b"unfreed allocations: ") {
            self.end_free();
            self.section = if self.options.ignore { Section::Nothing } else { Section::List(None) };
        } else if let Some(address) = line.strip_prefix(b"returns ") {
            if let Section::Alloc(index, block) = std::mem::take(&mut self.section)
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
        match &mut self.section {
            Section::Alloc(_, block) if frame => block.stack.push(line.to_vec()),
            Section::Free(_) if line.starts_with(b"    ") => {
                if let Some((index, block)) = description(line) {
                    self.section = Section::Nothing;
                    self.remove(index, &block.address);
                }
            }
            Section::List(current) if frame => {
                if let Some(block) = current.and_then(|order| self.blocks.get_mut(&order)) {
                    block.stack.push(line.to_vec());
                }
            }
            Section::List(_) if line.is_empty() => {}
            Section::List(_) => match description(line) {
                Some((index, _)) if self.order_of.contains_key(&index) => self.section = Section::List(None),
                Some((index, block)) => self.section = Section::List(Some(self.add(index, block))),
                None => self.section = Section::Nothing,
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

    /// Completes a `FREE:` without description, as at the end of a truncated log: it frees the last
    /// block that was allocated at the address.
    fn end_free(&mut self) {
        if let Section::Free(address) = &self.section
            && let Some(&index) = self.index_at.get(address)
        {
            let address = address.clone();
            self.remove(index, &address);
        }
        self.section = Section::Nothing;
    }
}

fn print(blocks: &[&Block], options: &Options, out: &mut dyn Write) -> io::Result<()> {
    let bytes: u128 = blocks.iter().map(|block| u128::from(block.size)).sum();
    writeln!(out, "unfreed allocations: {} ({bytes} {})", blocks.len(), unit(bytes))?;
    let frames = options.max_stack.unwrap_or(usize::MAX);
    for (position, block) in blocks.iter().enumerate() {
        if position > 0 && frames > 0 {
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

/// Parses the rest of an `ALLOC:` line: `malloc (52, 16 bytes, 4 bytes) [main|test1.c|36]`.
fn alloc(text: &[u8]) -> Option<(u64, Block)> {
    let numbers = between(text, b"(", b")")?;
    let mut numbers = numbers.split(|&byte| byte == b',').map(number);
    let (index, size) = (numbers.next()??, numbers.next()??);
    let (function, rest) = split(text, b" (")?;
    let (_, location) = split(rest, b") ")?;
    let origin = [b"{".as_slice(), function, format!(":{index}:0}} ").as_bytes(), location].concat();
    Some((index, Block { size, origin, ..Block::default() }))
}

/// Parses the description of a block: `    0x080620E8 (16 bytes) {malloc:52:0} [main|test1.c|36]`.
fn description(line: &[u8]) -> Option<(u64, Block)> {
    let (address, rest) = split(line.trim_ascii_start(), b" (")?;
    let size = number(rest)?;
    let (_, origin) = split(rest, b") ")?;
    let index = between(origin, b":", b":").and_then(number)?;
    let is_description = address.starts_with(b"0x") && origin.starts_with(b"{");
    is_description
        .then(|| (index, Block { address: address.to_vec(), size, origin: origin.to_vec(), stack: Vec::new() }))
}

/// Parses the decimal number at the start of a text, after white space.
fn number(text: &[u8]) -> Option<u64> {
    let text = text.trim_ascii_start();
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&text[..digits]).ok()?.parse().ok()
}

/// Splits a text at the first occurrence of `separator`.
fn split<'a>(text: &'a [u8], separator: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let start = text.windows(separator.len()).position(|window| window == separator)?;
    Some((&text[..start], &text[start + separator.len()..]))
}

/// Returns the text between the first `open` and the next `close`.
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
    fn unfreed_blocks_are_shown() {
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
    fn rest_of_a_very_long_line_is_skipped() {
        let long = "x".repeat(3 << 20) + "\n";
        let log = long + &entry(5, 10, "0x1000");
        assert!(view_of(&log, Options::default()).starts_with("unfreed allocations: 1 (10 bytes)\n"));
        let mut line = Vec::new();
        let endless = io::BufReader::new(io::repeat(0).take(64 << 20));
        view(endless, &Options::default(), &mut line).unwrap();
        assert_eq!(line, b"unfreed allocations: 0 (0 bytes)\n");
    }

    #[test]
    fn moved_block_is_freed_by_its_index() {
        let log = entry(5, 10, "0x1000")
            + "REALLOC: realloc (0x1000, 90 bytes, 8 bytes) [-|-|-]\n\n    0x1000 (10 bytes) {malloc:5:0} [f|a.c|3]\n\nreturns 0x3000\n\n";
        assert!(view_of(&log, Options::default()).starts_with("unfreed allocations: 1 (10 bytes)\n    0x1000"));
        let freed = log + "FREE: free (0x3000) [-|-|-]\n\n    0x3000 (90 bytes) {realloc:5:1} [-|-|-]\n";
        assert_eq!(view_of(&freed, Options::default()), "unfreed allocations: 0 (0 bytes)\n");
    }

    #[test]
    fn failed_calls_neither_allocate_nor_free() {
        let failed = entry(4, 7, "0x00000000");
        let log = entry(5, 10, "0x1000")
            + &failed
            + "FREE: free (0x1001) [-|-|-]\n\nERROR: [MISMAT]: free: 0x1001 does not match allocation of 0x1000\n    0x1000 (10 bytes) {malloc:5:0} [f|a.c|3]\n";
        assert!(view_of(&log, Options::default()).starts_with("unfreed allocations: 1 (10 bytes)\n"));
    }

    #[test]
    fn final_list_adds_unknown_blocks() {
        let log = entry(5, 10, "0x1000")
            + "unfreed allocations: 2 (30 bytes)\n    0x1000 (10 bytes) {malloc:5:0} [f|a.c|3]\n\t0x01 f+1\n\n    0x9000 (20 bytes) {calloc:2:0} [-|-|-]\n\t0x07 g+1\n\nsomething else\n    0x7 (1 byte) {malloc:9:0} [-|-|-]\n";
        let all = view_of(&log, Options::default());
        assert!(all.starts_with("unfreed allocations: 2 (30 bytes)\n"), "{all}");
        assert!(all.ends_with("\n\n    0x9000 (20 bytes) {calloc:2:0} [-|-|-]\n\t0x07 g+1\n"), "{all}");
        let ignored = view_of(&log, Options { ignore: true, ..Options::default() });
        assert!(ignored.starts_with("unfreed allocations: 1 (10 bytes)\n"));
    }

    #[test]
    fn log_truncated_at_any_byte_is_read() {
        let log = entry(5, 10, "0x1000")
            + &entry(6, 1, "0x2000")
            + "FREE: free (0x1000) [-|-|-]\n\t0x03 main+9\n\n    0x1000 (10 bytes) {malloc:5:0} [f|a.c|3]\n\nunfreed allocations: 1 (1 byte)\n    0x2000 (1 byte) {malloc:6:0} [-|-|-]\n";
        for end in 0..=log.len() {
            assert!(view_of(&log[..end], Options::default()).starts_with("unfreed allocations: "));
        }
    }
}
