//! The lines of Massif's output, described here and nowhere else.
//!
//! ```text
//! desc: options            of Massif
//! cmd: program arguments
//! time_unit: i             i instructions, ms milliseconds, B bytes allocated and freed
//! #-----------
//! snapshot=0
//! #-----------
//! time=0
//! mem_heap_B=0             live bytes
//! mem_heap_extra_B=0       what the allocator adds to them
//! mem_stacks_B=0
//! heap_tree=empty          or detailed, or peak: a tree follows
//! n2: 1002 (heap allocation functions) malloc/new/new[], --alloc-fns, etc.
//!  n0: 1000 0x109180: leaf (t.c:4)
//!  n0: 2 in 1 place, below massif's threshold (1.00%)
//! ```
//! A node has as many children as its `n` says, a blank deeper; its bytes are the sum of theirs. The root's children are the
//! innermost frames, theirs the callers.

use crate::sniff::Answer;

/// The line around a snapshot's number.
pub const RULE: &str = "#-----------";
/// What the root of a tree says.
pub const ROOT: &str = "(heap allocation functions) malloc/new/new[], --alloc-fns, etc.";
/// How deep a tree may be: Massif's own limit is 200 frames.
pub const DEEPEST: usize = 4096;

/// The first lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// `desc:`
    pub desc: String,
    /// `cmd:`
    pub cmd: String,
    /// `time_unit:`
    pub time_unit: String,
}

/// How much a snapshot says of stacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// Nothing.
    #[default]
    Empty,
    /// A tree.
    Detailed,
    /// A tree, and it is the peak.
    Peak,
}

impl Kind {
    /// The word of the file.
    pub const fn word(self) -> &'static str {
        match self {
            Kind::Empty => "empty",
            Kind::Detailed => "detailed",
            Kind::Peak => "peak",
        }
    }
}

/// A node of a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Its children.
    pub children: u32,
    /// How deep it lies; 0 is the root.
    pub depth: usize,
    /// Bytes.
    pub bytes: u64,
    /// What stands behind them.
    pub text: String,
}

/// A moment of the run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Its number.
    pub number: u64,
    /// When.
    pub time: u64,
    /// Live bytes.
    pub heap: u64,
    /// Bytes that the allocator adds.
    pub extra: u64,
    /// Bytes of stacks.
    pub stacks: u64,
    /// Whether a tree follows.
    pub kind: Kind,
    /// The tree, parents first.
    pub tree: Vec<Node>,
}

/// `desc:` and on the next line `cmd:`.
pub fn sniff(bytes: &[u8]) -> Answer {
    let begins = |bytes: &[u8], word: &[u8]| {
        if bytes.starts_with(word) {
            Answer::Yes
        } else if word.starts_with(bytes) {
            Answer::More
        } else {
            Answer::No
        }
    };
    match begins(bytes, b"desc:") {
        Answer::Yes => {}
        answer => return answer,
    }
    match bytes.iter().position(|&byte| byte == b'\n') {
        Some(end) => begins(&bytes[end + 1..], b"cmd:"),
        None if bytes.len() > 65536 => Answer::No,
        None => Answer::More,
    }
}
