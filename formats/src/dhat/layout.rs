//! The members of the JSON object, described here and nowhere else.

use crate::sniff::Answer;
use serde::{Deserialize, Serialize};

/// The version that is read and written.
pub const VERSION: u64 = 2;
/// The first member of every file.
pub const FIRST_MEMBER: &[u8] = b"\"dhatFileVersion\"";

/// A file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct File {
    /// Version of the file.
    #[serde(rename = "dhatFileVersion")]
    pub version: u64,
    /// `heap`, `rust-heap`, or what else was counted (`copy`, `ad-hoc`).
    pub mode: String,
    /// What happened at a point: `Allocated`.
    pub verb: String,
    /// Whether lifetimes were recorded: `tl`, `mb` to `ebk` are there.
    pub bklt: bool,
    /// Whether accesses were recorded.
    pub bkacc: bool,
    /// Name of one byte, of several, and of blocks, where they are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bu: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[allow(missing_docs)]
    pub bsu: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[allow(missing_docs)]
    pub bksu: Option<String>,
    /// Unit of times.
    pub tu: String,
    /// A million of them.
    #[serde(rename = "Mtu")]
    pub mtu: String,
    /// Lifetimes up to here are short.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tuth: Option<u64>,
    /// The command line.
    pub cmd: String,
    /// Process id.
    pub pid: u64,
    /// Time of the end.
    pub te: u64,
    /// Time of the greatest live bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tg: Option<u64>,
    /// Program points.
    pub pps: Vec<Point>,
    /// The frames that points name; the first is `[root]`.
    pub ftbl: Vec<String>,
}

/// A program point: a stack and its sums. What is not there is not known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Point {
    /// Bytes in all.
    pub tb: u64,
    /// Blocks in all.
    pub tbk: u64,
    /// Lifetimes of all blocks in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tl: Option<u64>,
    /// The most bytes at any time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mb: Option<u64>,
    /// Blocks then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mbk: Option<u64>,
    /// Bytes at the time of the greatest live bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gb: Option<u64>,
    /// Blocks then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gbk: Option<u64>,
    /// Bytes at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eb: Option<u64>,
    /// Blocks at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ebk: Option<u64>,
    /// The stack, innermost first: places in `ftbl`.
    pub fs: Vec<u32>,
}

/// An object whose first member is the version, with any blanks between.
pub fn sniff(bytes: &[u8]) -> Answer {
    let mut rest = bytes;
    for token in [&b"{"[..], FIRST_MEMBER] {
        rest = rest.trim_ascii_start();
        if let Some(behind) = rest.strip_prefix(token) {
            rest = behind;
        } else if token.starts_with(rest) {
            return if bytes.len() > 4096 { Answer::No } else { Answer::More };
        } else {
            return Answer::No;
        }
    }
    Answer::Yes
}
