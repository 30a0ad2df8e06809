//! Tables of the frames and stacks of all processes. Processes that run the same program share
//! entries.

use super::pack::{Columns, packed, safe};
use crate::program_frames::{Role, is_outermost};
use crate::short_name::short_name;
use crate::stacks::Stacks;
use crate::symbols::{Frame, Symbolizer};
use rustc_hash::FxHashMap;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Maximum number of frames of a stack that are kept, from the innermost outwards.
const DEEPEST: usize = 512;
/// Maximum number of nodes of a page.
const NODES: usize = 600_000;
/// Maximum number of bytes of names in a page.
const TEXT: usize = 24 << 20;

/// Flag: the frame is of the program or of its interpreter, and not of an allocator wrapper or a
/// container.
const PROGRAM: u32 = 1;
/// Flag: the function was inlined into the next frame.
const INLINED: u32 = 2;
/// Flag: the frame is outside of a program's or thread's first function.
const OUTERMOST: u32 = 4;
/// Flag: the entry represents frames or stacks that are not in the page.
const MADE_UP: u32 = 8;
/// Bit offset of the role's rank among the flags. In a stack, the frames of the lowest rank are
/// blamed.
const RANK: u32 = 4;
/// Flag: an allocation function. Frames inner to it are blamed only if there are no others.
const ALLOCATOR: u32 = 1 << 7;
/// Flag: the function left by a jump to that of the next inner frame.
const TAIL_CALL: u32 = 1 << 8;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Row {
    function: u32,
    short: u32,
    module: u32,
    file: u32,
    line: u32,
    flags: u32,
}

/// The tables that are being built. Number 0 of each is the empty entry.
#[derive(Debug)]
pub(super) struct Names {
    strings: Vec<Rc<str>>,
    string_numbers: FxHashMap<Rc<str>, u32>,
    text: usize,
    /// Number of the short name of each function, by the number of its name.
    short_names: FxHashMap<u32, u32>,
    frames: Vec<Row>,
    frame_numbers: FxHashMap<Row, u32>,
    /// Node of the caller and frame. The number of a caller is smaller than the node's own.
    nodes: Vec<(u32, u32)>,
    node_numbers: FxHashMap<(u32, u32), u32>,
}

impl Default for Names {
    fn default() -> Self {
        let mut names = Names {
            strings: Vec::new(),
            string_numbers: FxHashMap::default(),
            text: 0,
            short_names: FxHashMap::default(),
            frames: vec![Row::default()],
            frame_numbers: FxHashMap::default(),
            nodes: vec![(0, 0)],
            node_numbers: FxHashMap::default(),
        };
        names.string("");
        names
    }
}

impl Names {
    /// Returns the number of a string, without control characters.
    fn string(&mut self, text: &str) -> u32 {
        if let Some(&known) = self.string_numbers.get(text) {
            return known;
        }
        let (number, kept) = (self.strings.len() as u32, Rc::from(text));
        self.text += text.len();
        self.strings.push(Rc::from(safe(text)));
        self.string_numbers.insert(kept, number);
        number
    }

    fn frame(&mut self, row: Row) -> u32 {
        let frames = &mut self.frames;
        *self.frame_numbers.entry(row).or_insert_with(|| {
            frames.push(row);
            frames.len() as u32 - 1
        })
    }

    fn node(&mut self, parent: u32, frame: u32) -> u32 {
        let nodes = &mut self.nodes;
        *self.node_numbers.entry((parent, frame)).or_insert_with(|| {
            nodes.push((parent, frame));
            nodes.len() as u32 - 1
        })
    }

    /// Returns the number of a function's short name. Functions occur in many frames.
    fn short(&mut self, title: &str) -> u32 {
        let function = self.string(title);
        if let Some(&short) = self.short_names.get(&function) {
            return short;
        }
        let short = self.string(&short_name(title));
        self.short_names.insert(function, short);
        short
    }

    fn known(&mut self, frame: &Frame) -> u32 {
        let title = frame.title();
        let row = Row {
            function: self.string(&title),
            short: self.short(&title),
            module: self.string(&frame.module),
            file: self.string(frame.file.as_deref().unwrap_or_default()),
            line: frame.line.unwrap_or(0),
            flags: if frame.role.rank() < Role::Wrapper.rank() { PROGRAM } else { 0 }
                | if frame.role == Role::Allocator { ALLOCATOR } else { 0 }
                | u32::from(frame.role.rank()) << RANK
                | if frame.inlined { INLINED } else { 0 }
                | if frame.tail_call { TAIL_CALL } else { 0 }
                | if is_outermost(frame) { OUTERMOST } else { 0 },
        };
        self.frame(row)
    }

    /// Returns the node of an entry that is not a frame of the recording, below another node (0 for
    /// none).
    fn made_up(&mut self, parent: u32, title: &str) -> u32 {
        let function = self.string(title);
        let frame = self.frame(Row { function, short: function, flags: MADE_UP, ..Row::default() });
        self.node(parent, frame)
    }

    /// Returns the node that represents small stacks with these callers.
    pub(super) fn smaller(&mut self, callers: u32) -> u32 {
        self.made_up(callers, "(smaller stacks)")
    }

    /// Returns the node of a stack; `None` when the page is full. `known` holds the nodes of the
    /// sites of the process that occurred before (0 for none), since stacks share their callers.
    pub(super) fn stack(
        &mut self,
        symbols: &mut Symbolizer,
        stacks: &Stacks,
        site: u32,
        known: &mut FxHashMap<u32, u32>,
    ) -> Option<u32> {
        if site == 0 {
            return Some(self.made_up(0, "(no stack)"));
        }
        let of = stacks.site(site);
        let tails = symbols.tail_frames(stacks, &of, None);
        if let Some(&node) = known.get(&site) {
            return Some(self.below(node, &tails));
        }
        if self.text > TEXT || self.nodes.len() + DEEPEST > NODES {
            return None;
        }
        let whole = stacks.stack(site).nth(DEEPEST).is_none();
        let (mut node, mut path, mut outer) = (0, Vec::new(), None);
        if !whole {
            node = self.made_up(0, "(outer frames)");
        }
        for (number, site) in stacks.stack(site).take(DEEPEST) {
            if whole && let Some(&caller) = known.get(&number) {
                (node, outer) = (caller, Some(site));
                break;
            }
            path.push((number, site));
        }
        for (number, site) in path.into_iter().rev() {
            if let Some(outer) = outer {
                node = self.below(node, &symbols.tail_frames(stacks, &outer, Some(&site)));
            }
            node = self.below(node, &symbols.frames(stacks, &site));
            outer = Some(site);
            if whole {
                known.insert(number, node);
            }
        }
        Some(self.below(node, &tails))
    }

    /// Returns the node of frames, innermost first, below that of their caller.
    fn below(&mut self, caller: u32, frames: &[Frame]) -> u32 {
        frames.iter().rev().fold(caller, |node, frame| {
            let frame = self.known(frame);
            self.node(node, frame)
        })
    }

    /// Returns the table of strings, packed.
    ///
    /// # Errors
    /// Returns an error when the strings cannot be serialized.
    pub(super) fn strings(&self) -> serde_json::Result<String> {
        let strings: Vec<&str> = self.strings.iter().map(|string| &**string).collect();
        Ok(packed(&serde_json::to_vec(&strings)?))
    }

    /// Returns the source lines of the program's own frames, by file.
    pub(super) fn program_lines(&self) -> BTreeMap<&str, BTreeSet<u32>> {
        let mut found: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
        for frame in self.frames.iter().filter(|frame| frame.flags & PROGRAM != 0 && frame.line > 0) {
            found.entry(&self.strings[frame.file as usize]).or_default().insert(frame.line);
        }
        found
    }

    /// Appends the tables of frames and nodes to the columns.
    pub(super) fn put(&self, columns: &mut Columns) {
        let frames = &self.frames;
        columns.put("frame.function", frames.iter().map(|row| row.function.into()));
        columns.put("frame.short", frames.iter().map(|row| row.short.into()));
        columns.put("frame.module", frames.iter().map(|row| row.module.into()));
        columns.put("frame.file", frames.iter().map(|row| row.file.into()));
        columns.put("frame.line", frames.iter().map(|row| row.line.into()));
        columns.put("frame.flags", frames.iter().map(|row| row.flags.into()));
        // Differences are small even if numbers are not.
        let back = |(at, (parent, _)): (u64, &(u32, u32))| at - u64::from(*parent);
        columns.put("node.back", (0u64..).zip(&self.nodes).map(back));
        columns.put("node.frame", self.nodes.iter().map(|node| node.1.into()));
    }
}
