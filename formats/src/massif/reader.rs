//! Reads Massif's output, a snapshot at a time.

use super::layout::{DEEPEST, Head, Kind, Node, Snapshot};
use crate::{Ending, Error, Format, Kind as Wrong, Result};

/// Steps over the snapshots of a file.
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    head: Head,
    ending: Option<Ending>,
}

impl<'a> Reader<'a> {
    /// Reads the first lines.
    ///
    /// # Errors
    /// When they are not what a file begins with.
    pub fn new(bytes: &'a [u8]) -> Result<Reader<'a>> {
        let mut reader = Reader { bytes, at: 0, head: Head::default(), ending: None };
        let text = |value: &[u8]| String::from_utf8_lossy(value).into_owned();
        reader.head.desc = text(reader.value("desc", b"desc:")?);
        reader.head.cmd = text(reader.value("cmd", b"cmd:")?);
        reader.head.time_unit = text(reader.value("time_unit", b"time_unit:")?);
        Ok(reader)
    }

    /// The first lines.
    pub const fn head(&self) -> &Head {
        &self.head
    }

    /// How the file ended, once there is no further snapshot.
    pub const fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// The next snapshot; none at the end, and at a cut. Of a tree that is cut the nodes that are whole are given.
    ///
    /// # Errors
    /// When the bytes are no such file.
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
            Err(Error { kind: Wrong::Cut, field, offset, .. }) => {
                let is_whole = field == "tree";
                let offset = if is_whole { offset } else { start as u64 };
                self.ending = Some(Ending::Cut { offset, field });
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
        let place = self.at;
        snapshot.kind = match self.value("heap_tree", b"heap_tree=")? {
            b"empty" => return Ok(()),
            b"detailed" => Kind::Detailed,
            b"peak" => Kind::Peak,
            _ => return Err(self.wrong(place, "heap_tree", "neither empty, detailed nor peak")),
        };
        // Children that are still to come, at each depth.
        let mut open: Vec<u32> = vec![1];
        while let Some(left) = open.last_mut() {
            if *left == 0 {
                open.pop();
                continue;
            }
            *left -= 1;
            let depth = open.len() - 1;
            let place = self.at;
            let line = self.line("tree")?;
            let node = node(line).ok_or_else(|| self.wrong(place, "tree", "no node of a tree"))?;
            if node.depth != depth || depth > DEEPEST {
                return Err(self.wrong(place, "tree", "a node at another depth than its parent says"));
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
            None => Err(Error { format: Format::Massif, offset: self.at as u64, field, kind: Wrong::Cut }),
        }
    }

    fn wrong(&self, at: usize, field: &'static str, what: &str) -> Error {
        Error { format: Format::Massif, offset: at as u64, field, kind: Wrong::Text(what.into()) }
    }

    /// What stands behind a word on the next line.
    fn value(&mut self, field: &'static str, word: &[u8]) -> Result<&'a [u8]> {
        let place = self.at;
        let line = self.line(field)?;
        let value = line.strip_prefix(word).ok_or_else(|| self.wrong(place, field, "another line stands here"))?;
        Ok(value.trim_ascii())
    }

    fn number(&mut self, field: &'static str, word: &[u8]) -> Result<u64> {
        let place = self.at;
        let value = self.value(field, word)?;
        decimal(value).ok_or_else(|| self.wrong(place, field, "no number"))
    }
}

fn decimal(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// `n2: 1002 text`, behind as many blanks as it is deep.
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
