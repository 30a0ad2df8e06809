//! A recording: a directory with `recording.json` and one folder for each process image. How the images of one recording
//! are told apart and belong together is said here and nowhere else.
//!
//! ```text
//! heaptape.sqlite3.4711/
//!   recording.json
//!   sysroot/               files of modules below their own paths, when the recording was packed
//!   4711.sqlite3/          pid and program; `.2`, `.3` … behind it when a pid and name come again (exec, pid reuse)
//!     trace.mtrc[.zst|.lz4]   profile.mptl[.zst]   events.tape   symbols.tape
//! ```
//!
//! The daemon keeps recordings of a user one behind the other, as epochs:
//!
//! ```text
//! STATE/1000/                 a user's
//!   202611211100/             an epoch: when it began, UTC; `-0002`, … behind it when several began in that minute
//!     recording.json          sealed once it says when it ended
//!     4711.redis-server/      a process
//!     all.sh/                 the processes of a program that are over, summed
//!     dcpi/                   a DCPI profile for each image and event
//! ```

use serde::{Deserialize, Serialize};

/// Name of an epoch's folder of DCPI profiles.
pub const FLOWS: &str = "dcpi";
/// How the name of a folder begins that holds a program's sums.
pub const PROGRAM: &str = "all.";

/// Origin of an image that is a trace or a profile that somebody sent: it has no tape.
pub const STREAM: &str = "stream";

/// Whether a name is an epoch's: the minute in which it began, and behind a dash its number among those of the minute, from the second on.
pub fn is_epoch(name: &str) -> bool {
    let is_number = |text: &str, digits| text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    match name.split_once('-') {
        None => is_number(name, 12),
        Some((minute, number)) => is_number(minute, 12) && is_number(number, 4),
    }
}

/// Name of the file that describes a recording.
pub const RECORDING: &str = "recording.json";
/// Name of an image's trace; with the codec's suffix when compressed.
pub const TRACE: &str = "trace.mtrc";
/// Name of an image's profile; with zstd's suffix when compressed.
pub const PROFILE: &str = "profile.mptl";
/// Name of an image's tape.
pub const TAPE: &str = "events.tape";
/// Name of the file with the names that a recording keeps of its modules: a tape of [`crate::tape::Symbols`].
pub const SYMBOLS: &str = "symbols.tape";
/// Locked, as long as somebody writes [`SYMBOLS`].
pub const SYMBOLS_LOCK: &str = ".symbols";

/// Name of the report that a recorder which crashed leaves in the recording.
pub const CRASH_REPORT: &str = "crash-report.txt";
/// Room on the disk for the last words, while a recording is made.
pub const RESERVE: &str = ".reserve";
/// Name of the folder with the files of modules, as `heaptape pack` puts them there.
pub const SYSROOT: &str = "sysroot";

/// What `recording.json` holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Recording {
    /// Always `heaptape recording`.
    pub format: String,
    /// Version of this file's shape: 1.
    pub version: u32,
    /// Version of heaptape that recorded.
    pub heaptape: String,
    /// The command line that was run; empty for the daemon.
    pub command: Vec<String>,
    /// Its working directory.
    pub cwd: String,
    /// The machine's name.
    pub host: String,
    /// Start, nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// End; `None` while running, or when the recorder was killed.
    pub ended_unix_ns: Option<u64>,
    /// The process images, in the order of their attach.
    pub images: Vec<Image>,
    /// Processes of the tree that could not be recorded.
    pub not_traced: Vec<NotTraced>,
}

/// One program in one process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Image {
    /// Its folder in the recording.
    pub folder: String,
    /// Process id.
    pub pid: u32,
    /// Parent's process id.
    pub ppid: u32,
    /// `start`, `fork`, `exec`, `attach` or [`STREAM`]; of a stream everything else is about who sent it.
    pub origin: String,
    /// Folder of the image that it was forked or exec'd from, when that was recorded too.
    pub parent: Option<String>,
    /// Path of the executable.
    pub exe: String,
    /// The command line.
    pub argv: Vec<String>,
    /// Attach, nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// End, if it was seen.
    pub ended_unix_ns: Option<u64>,
    /// How it ended.
    pub exit: Option<Exit>,
    /// The label of whoever sent a stream; those of processes are in their tapes.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub label: String,
    /// What is wrong with a stream, or why its end is missing; what came before is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lacks: Option<String>,
    /// The accounting of its events as the recorder knew it at the end, also of events that it could not write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accounting: Option<Accounting>,
    /// Whether the program has a `malloc` of its own, so that only what that passes on is recorded.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub own_malloc: bool,
    /// When the process began, nanoseconds since 1970, if it had run for a while before `started_unix_ns`; else 0.
    #[serde(skip_serializing_if = "is_zero")]
    pub began_unix_ns: u64,
}

/// What became of the events of a process: `emitted = recorded + lost + sampled_out`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Accounting {
    /// Events that happened.
    pub emitted: u64,
    /// Events that are in the recording.
    pub recorded: u64,
    /// Events that found no room, in the ring or on the disk.
    pub lost: u64,
    /// Events skipped on purpose.
    pub sampled_out: u64,
}

impl Accounting {
    /// Adds another one.
    pub fn add(&mut self, other: Accounting) {
        self.emitted = self.emitted.saturating_add(other.emitted);
        self.recorded = self.recorded.saturating_add(other.recorded);
        self.lost = self.lost.saturating_add(other.lost);
        self.sampled_out = self.sampled_out.saturating_add(other.sampled_out);
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// How a process image ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// With this exit code.
    Code(u32),
    /// By this signal.
    Signal(u32),
    /// It went on with another program.
    Exec,
    /// It is gone; how is not known.
    Unknown,
    /// It was still running when the recording ended.
    Running,
}

/// A process that ran without being recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NotTraced {
    /// Process id.
    pub pid: u32,
    /// Path of the executable.
    pub exe: String,
    /// Why, in a few words.
    pub why: String,
}
