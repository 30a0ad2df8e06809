//! Reader of Massif's output, one snapshot at a time.

use super::layout::{Header, Kind, MAX_DEPTH, Node, Snapshot};
use crate::{Ending, Error, Format, Kind as Wrong, Result};

/// Reader of the snapshots of a file.
///
/// # Examples
///
/// ```
/// use heaptape_formats::massif::Reader;
///
/// let bytes = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/import/valgrind-massif.out"))?;
/// let (mut reader, mut peak) = (Reader::new(&bytes)?, 0);
/// while let Some(snapshot) = reader.next()? {
///     peak = peak.max(snapshot.heap);
/// }
/// assert_eq!(peak, 10_001);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    head: Header,
    ending: Option<Ending>,
}

impl<'a> Reader<'a> {
    /// Creates a reader and reads the header lines.
    ///
    /// # Errors
    /// When the bytes do not start with the header lines of Massif.
    pub fn new(bytes: &'a [u8]) -> Result<Reader<'a>> {
        let mut reader = Reader { bytes, at: 0, head: Header::default(), ending: None };
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        reader.head.desc = text(reader.value("desc", b"desc:")?);
        reader.head.cmd = text(reader.value("cmd", b"cmd:")?);
        reader.head.time_unit = text(reader.value("time_unit", b"time_unit:")?);
        Ok(reader)
    }

    /// Returns the header lines.
    pub const fn head(&self) -> &Header {
        &self.head
    }

    /// Returns how the file ended, once there is no further snapshot.
    pub const fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// Reads the next snapshot. Returns `None` at the end of the file and where it is truncated. A
    /// truncated tree has its complete nodes.
    ///
    /// # Errors
    /// When the bytes are not Massif's output.
    #[allow(clippy::should_implement_trait, reason = "it can fail")]
    pub fn next(&mut self) -> Result<Option<Snapshot>> {
        if self.ending.is_some() {
            return Ok(None);
        }
        while self.peek().is_some_and(|line| line.is_empty() || line.starts_with(b"#")) {
            self.line("rule")?;
        }
        if self.at >= self.bytes.len() {
            self.ending = Some(Ending::Complete);
            return Ok(None);
        }
        let start = self.at;
        let mut snapshot = Snapshot::default();
        match self.snapshot(&mut snapshot) {
            Ok(()) => Ok(Some(snapshot)),
            Err(Error { kind: Wrong::Truncated, field, offset, .. }) => {
                let is_whole = field == "tree";
                let offset = if is_whole { offset } else { start as u64 };
                self.ending = Some(Ending::Truncated { offset, field });
                Ok(is_whole.then_some(snapshot))
            }
            Err(error) => Err(error),
        }
    }

    fn snapshot(&mut self, snapshot: &mut Snapshot) -> Result<()> {
        snapshot.number = self.number("snapshot", b"snapshot=")?;
        while self.peek().is_some_and(|line| line.starts_with(b"#")) {
            self.line("rule")?;
        }
        snapshot.time = self.number("time", b"time=")?;
        snapshot.heap = self.number("mem_heap_B", b"mem_heap_B=")?;
        snapshot.extra = self.number("mem_heap_extra_B", b"mem_heap_extra_B=")?;
        snapshot.stacks = self.number("mem_stacks_B", b"mem_stacks_B=")?;
        let offset = self.at;
        snapshot.kind = match self.value("heap_tree", b"heap_tree=")? {
            b"empty" => return Ok(()),
            b"detailed" => Kind::Detailed,
            b"peak" => Kind::Peak,
            _ => return Err(self.wrong(offset, "heap_tree", "not one of empty, detailed and peak")),
        };
        // Children that have not been read yet, at each depth.
        let mut open: Vec<u32> = vec![1];
        while let Some(left) = open.last_mut() {
            if *left == 0 {
                open.pop();
                continue;
            }
            *left -= 1;
            let depth = open.len() - 1;
            let offset = self.at;
            let line = self.line("tree")?;
            let node = node(line).ok_or_else(|| self.wrong(offset, "tree", "not a node of a tree"))?;
            if node.depth != depth || depth > MAX_DEPTH {
                return Err(self.wrong(
                    offset,
                    "tree",
                    "a node at another depth than the number of children of its parent implies",
                ));
            }
            open.push(node.children);
            snapshot.tree.push(node);
        }
        Ok(())
    }

    fn peek(&self) -> Option<&'a [u8]> {
        let rest = self.bytes.get(self.at..)?;
        let end = rest.iter().position(|&byte| byte == b'\n')?;
        Some(&rest[..end])
    }

    fn line(&mut self, field: &'static str) -> Result<&'a [u8]> {
        match self.peek() {
            Some(line) => {
                self.at += line.len() + 1;
                Ok(line)
            }
            None => Err(Error { format: Format::Massif, offset: self.at as u64, field, kind: Wrong::Truncated }),
        }
    }

    fn wrong(&self, at: usize, field: &'static str, what: &str) -> Error {
        Error { format: Format::Massif, offset: at as u64, field, kind: Wrong::Text(what.into()) }
    }

    /// Reads the next line, which must start with `key`, and returns the rest of it.
    fn value(&mut self, field: &'static str, key: &[u8]) -> Result<&'a [u8]> {
        let offset = self.at;
        let line = self.line(field)?;
        let value = line.strip_prefix(key).ok_or_else(|| self.wrong(offset, field, "not the expected line"))?;
        Ok(value.trim_ascii())
    }

    fn number(&mut self, field: &'static str, key: &[u8]) -> Result<u64> {
        let offset = self.at;
        let value = self.value(field, key)?;
        decimal(value).ok_or_else(|| self.wrong(offset, field, "not a decimal number"))
    }
}

fn decimal(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Parses `n2: 1002 text`, which is indented by its depth.
fn node(line: &[u8]) -> Option<Node> {
    let depth = line.iter().take_while(|&&byte| byte == b' ').count();
    let rest = line[depth..].strip_prefix(b"n")?;
    let colon = rest.iter().position(|&byte| byte == b':')?;
    let children = u32::try_from(decimal(&rest[..colon])?).ok()?;
    let rest = rest[colon + 1..].strip_prefix(b" ")?;
    let end = rest.iter().position(|&byte| byte == b' ').unwrap_or(rest.len());
    let text = String::from_utf8_lossy(rest.get(end + 1..).unwrap_or_default()).into_owned();
    Some(Node { children, depth, bytes: decimal(&rest[..end])?, text })
}
