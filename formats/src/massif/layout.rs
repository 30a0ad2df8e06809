//! Layout of Massif's output.
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
//!  n0: 2 in 1 offset, below massif's threshold (1.00%)
//! ```
//! A node has the number of children after `n`, indented by one space more. The bytes of a node are
//! the sum of theirs. The children of the root are the innermost frames, and their children the
//! callers.

use crate::prefix::Match;

/// Line before and after the number of a snapshot.
pub const RULE: &str = "#-----------";
/// Text of the root of a tree.
pub const ROOT: &str = "(heap allocation functions) malloc/new/new[], --alloc-fns, etc.";
/// Maximum depth of a tree. Massif's own limit is 200 frames.
pub const MAX_DEPTH: usize = 4096;

/// Header lines of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Options of Massif: `desc:`.
    pub desc: String,
    /// Command line of the program: `cmd:`.
    pub cmd: String,
    /// Unit of all times: `time_unit:`.
    pub time_unit: String,
}

/// Whether a snapshot has a tree of call stacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    /// The snapshot has no tree.
    #[default]
    Empty,
    /// The snapshot has a tree.
    Detailed,
    /// The snapshot has a tree and is the peak.
    Peak,
}

impl Kind {
    /// Returns the name in the file.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Empty => "empty",
            Kind::Detailed => "detailed",
            Kind::Peak => "peak",
        }
    }
}

/// One node of a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// Number of its children.
    pub children: u32,
    /// Depth in the tree; 0 is the root.
    pub depth: usize,
    /// Live bytes of the node.
    pub bytes: u64,
    /// Text of the line after the bytes.
    pub text: String,
}

/// The heap at one point in time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Number of the snapshot.
    pub number: u64,
    /// Time in the unit of the header.
    pub time: u64,
    /// Live bytes of the heap.
    pub heap: u64,
    /// Bytes that the allocator adds to them.
    pub extra: u64,
    /// Bytes of the threads' stacks.
    pub stacks: u64,
    /// Whether the snapshot has a tree.
    pub kind: Kind,
    /// Nodes of the tree, parents first.
    pub tree: Vec<Node>,
}

/// Matches `desc:` and `cmd:` at the start of the first two lines.
pub fn sniff(bytes: &[u8]) -> Match {
    let begins_with = |bytes: &[u8], key: &[u8]| {
        if bytes.starts_with(key) {
            Match::Yes
        } else if key.starts_with(bytes) {
            Match::NeedMore
        } else {
            Match::No
        }
    };
    match begins_with(bytes, b"desc:") {
        Match::Yes => {}
        result => return result,
    }
    match bytes.iter().position(|&byte| byte == b'\n') {
        Some(end) => begins_with(&bytes[end + 1..], b"cmd:"),
        None if bytes.len() > 65536 => Match::No,
        None => Match::NeedMore,
    }
}
