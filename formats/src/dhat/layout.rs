//! Layout of a DHAT file: the members of its JSON object.

use crate::prefix::Match;
use serde::{Deserialize, Serialize};

/// Version that is read and written.
pub const VERSION: u64 = 2;
/// Name of the first member in every file.
pub const FIRST_MEMBER: &[u8] = b"\"dhatFileVersion\"";

/// Content of a DHAT file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct File {
    /// Version of the file's layout.
    #[serde(rename = "dhatFileVersion")]
    pub version: u64,
    /// Mode of DHAT: `heap`, `rust-heap`, or what else was counted (`copy`, `ad-hoc`).
    pub mode: String,
    /// Verb of the program points: `Allocated`.
    pub verb: String,
    /// Whether lifetimes were recorded, and with them `tl` and `mb` to `ebk`.
    pub bklt: bool,
    /// Whether accesses were recorded.
    pub bkacc: bool,
    /// Name of one byte; `bsu` is the plural, `bksu` that of blocks. Written only where the unit is
    /// not bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bu: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[allow(missing_docs)]
    pub bsu: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[allow(missing_docs)]
    pub bksu: Option<String>,
    /// Unit of all times.
    pub tu: String,
    /// Name of a million units of time.
    #[serde(rename = "Mtu")]
    pub mtu: String,
    /// Limit up to which a lifetime counts as short.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tuth: Option<u64>,
    /// Command line of the program.
    pub cmd: String,
    /// Process ID of the program.
    pub pid: u64,
    /// Time of the program's end.
    pub te: u64,
    /// Time of the peak of live bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tg: Option<u64>,
    /// Program points of the file.
    pub pps: Vec<Point>,
    /// Frames that program points refer to. The first one is `[root]`.
    pub ftbl: Vec<String>,
}

/// A program point: a call stack and its sums. A missing member is unknown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Point {
    /// Bytes of all blocks.
    pub tb: u64,
    /// Number of all blocks.
    pub tbk: u64,
    /// Sum of the lifetimes of all blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tl: Option<u64>,
    /// Peak of the live bytes of this program point.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mb: Option<u64>,
    /// Live blocks at the peak of this program point.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mbk: Option<u64>,
    /// Live bytes at the peak of the whole program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gb: Option<u64>,
    /// Live blocks at the peak of the whole program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gbk: Option<u64>,
    /// Live bytes at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub eb: Option<u64>,
    /// Live blocks at the end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ebk: Option<u64>,
    /// Call stack, innermost frame first: indexes in `ftbl`.
    pub fs: Vec<u32>,
}

/// Matches an object whose first member is the version, with any whitespace between.
pub fn sniff(bytes: &[u8]) -> Match {
    let mut rest = bytes;
    for token in [&b"{"[..], FIRST_MEMBER] {
        rest = rest.trim_ascii_start();
        if let Some(after) = rest.strip_prefix(token) {
            rest = after;
        } else if token.starts_with(rest) {
            return if bytes.len() > 4096 { Match::No } else { Match::NeedMore };
        } else {
            return Match::No;
        }
    }
    Match::Yes
}
