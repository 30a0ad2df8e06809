//! The files and folders of a recording: a directory with `recording.json` and one folder for each
//! process. This module alone defines how the processes of one recording are named and related.
//!
//! ```text
//! heaptape.sqlite3.4711/
//!   recording.json   README
//!   sysroot/               files of modules below their own paths, when the recording was packed
//!   4711.sqlite3/          pid and program; `.2`, `.3` … if both occur again (exec, pid reuse)
//!     trace.mtrc[.zst|.lz4]   profile.mptl[.zst]   events.tape   symbols.tape   references.tape
//!     events.journal.N       while it is recorded, and when the recorder was killed
//! ```
//!
//! The daemon keeps the recordings of a user as a series of epochs:
//!
//! ```text
//! STATE/1000/                 folder of a user
//!   202611211100/             an epoch: its start (UTC); `-0002`, … if several began then
//!     recording.json          sealed once it contains the end
//!     4711.redis-server/      one process
//!     all.sh/                 sums of the ended processes of a program
//!     dcpi/                   a DCPI profile for each module and event
//! ```

use serde::{Deserialize, Serialize};

/// Name of the folder of DCPI profiles in an epoch.
pub const DCPI_FOLDER: &str = "dcpi";
/// Name of the folder of flight recordings, next to the epochs of a user.
pub const FLIGHTS: &str = "flight";
/// Prefix of the name of a folder with the sums of a program.
pub const PROGRAM_PREFIX: &str = "all.";

/// [`ProcessInfo::origin`] of a trace or profile that another program sent. It has no tape.
pub const STREAM: &str = "stream";

/// Returns whether a name is that of an epoch: the minute in which it began, and from the second
/// one of that minute on a dash and its number.
pub fn is_epoch(name: &str) -> bool {
    let is_number = |text: &str, digits| text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
    match name.split_once('-') {
        None => is_number(name, 12),
        Some((minute, number)) => is_number(minute, 12) && is_number(number, 4),
    }
}

/// Name of the file that describes a recording.
pub const RECORDING: &str = "recording.json";
/// Name of the trace of a process. A compressed one has the suffix of its codec.
pub const TRACE: &str = "trace.mtrc";
/// Name of the profile of a process. A compressed one has the suffix of zstd.
pub const PROFILE: &str = "profile.mptl";
/// Name of the tape of a process.
pub const TAPE: &str = "events.tape";
/// Prefix of the names of the files with the events after the last commit record of [`TAPE`]
/// ([`crate::tape::journal`]).
pub const JOURNAL: &str = "events.journal";
/// Name of the file with the symbols that a recording keeps of its modules: a tape of
/// [`crate::tape::Symbols`].
pub const SYMBOLS: &str = "symbols.tape";
/// Name of the file that tells which block holds which: a tape of [`crate::tape::References`].
pub const REFERENCES: &str = "references.tape";
/// Name of the folder beside the epochs of a user that has the symbols of programs and libraries by
/// build-id: in a folder for each, the file [`SYMBOLS`].
pub const NAMES: &str = "names";

/// Returns the name of the folder of a build-id in [`NAMES`].
pub fn build_id_folder(build_id: &[u8]) -> String {
    build_id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Name of the file that is locked while [`SYMBOLS`] is being written.
pub const SYMBOLS_LOCK: &str = ".symbols";

/// Name of the report that a crashed recorder leaves in the recording.
pub const CRASH_REPORT: &str = "crash-report.txt";
/// Name of the file that says how to read a recording: [`README_TEXT`].
pub const README: &str = "README";
/// What to do with the files of a recording, for whoever comes upon its folder.
pub const README_TEXT: &str = "\
A recording of heaptape: `heaptape report DIR` and `heaptape leaks DIR` show it; DIR is this folder.
Each process has a folder. profile.mptl and trace.mtrc are files for mpatrol's mprof and mptrace.
A trace above 1 MiB is kept as trace.mtrc.columns. To make a trace.mtrc for mptrace from it:
    heaptape export --format mtrc -o trace.mtrc DIR
or record with --mtrc, which writes trace.mtrc while the program runs, whatever its size.
";
/// Name of the file that reserves disk space for the last records of a running recording.
pub const RESERVE: &str = ".reserve";
/// Name of the folder to which `heaptape pack` copies the files of modules.
pub const SYSROOT: &str = "sysroot";

/// Content of the file `recording.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Recording {
    /// The constant text `heaptape recording`.
    pub format: String,
    /// Version of the layout of this file: 1.
    pub version: u32,
    /// Version of heaptape that made the recording.
    pub heaptape: String,
    /// Command line that was run; empty for the daemon.
    pub command: Vec<String>,
    /// Working directory of the command.
    pub cwd: String,
    /// Host name of the machine.
    pub host: String,
    /// Start of the recording, in nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// End of the recording, in nanoseconds since 1970. `None` while it runs, or if the recorder
    /// was killed.
    pub ended_unix_ns: Option<u64>,
    /// Processes in the order in which they attached.
    #[serde(rename = "images")]
    pub processes: Vec<ProcessInfo>,
    /// Processes of the tree that were not recorded.
    pub not_traced: Vec<NotTraced>,
}

/// One program in one process, from exec or fork to exec or exit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessInfo {
    /// Name of the folder in the recording.
    pub folder: String,
    /// Process ID, in the namespace of the recorder.
    pub pid: u32,
    /// Process ID of the parent.
    pub ppid: u32,
    /// How the recording of the process began: the name of an [`Origin`](crate::tape::Origin), or
    /// [`STREAM`]. For a stream all other fields describe its sender.
    pub origin: String,
    /// Folder of the process that forked or exec'd this one, if that was recorded, too.
    pub parent: Option<String>,
    /// Path of the executable file.
    pub exe: String,
    /// Command line of the process.
    pub argv: Vec<String>,
    /// Time of the attach, in nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// Time of the end in nanoseconds since 1970, if it was observed.
    pub ended_unix_ns: Option<u64>,
    /// How the process ended.
    pub exit: Option<Exit>,
    /// Label that the sender of a stream gave it. The labels of processes are in their tapes.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub label: String,
    /// Fault of a stream, or why its end is missing. Everything before that is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lacks: Option<String>,
    /// Accounting of the events as the recorder knew it at the end, including events that it could
    /// not write.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accounting: Option<Accounting>,
    /// Path of the library whose `malloc` the process calls; empty for static programs, and for
    /// processes that were attached while they ran.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub malloc: String,
    /// Whether the program has a `malloc` of its own. Only what that one passes on is recorded.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub own_malloc: bool,
    /// Allocators inside the program.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allocators: Vec<Allocator>,
    /// Why calls that map memory are not recorded, as a clause; empty if they are.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub unseen_mappings: String,
    /// Whether it was to be read at the end which block holds which, and the process has not waited for
    /// that: it is static, or ended otherwise than by `exit`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub lacks_references: bool,
    /// Start of the process in nanoseconds since 1970, if it had run for a while before
    /// `started_unix_ns`; else 0.
    #[serde(skip_serializing_if = "is_zero")]
    pub began_unix_ns: u64,
    /// When and why the segment of a flight recording was kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kept: Option<Kept>,
    /// The memory of the process as it was last seen, if the daemon saw it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_memory: Option<LastMemory>,
}

/// The memory of a process that has ended, as the daemon last saw it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LastMemory {
    /// Resident memory in bytes; 0 if it is not known.
    pub resident_bytes: u64,
    /// Memory limit of the control groups of the process in bytes; 0 if there is none.
    pub limit_bytes: u64,
    /// Whether the kernel killed the process because memory ran out.
    pub out_of_memory: bool,
}

/// When and why the last events of a process were kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Kept {
    /// Time in nanoseconds since 1970.
    pub unix_ns: u64,
    /// The reason, as a phrase.
    pub why: String,
}

/// Value of [`ProcessInfo::unseen_mappings`] of a process that ran already when it was attached.
/// Its blocks from before are not known either.
pub const RAN_ALREADY: &str = "it ran already when it was attached";

/// An allocator inside a program, whose functions were found by their symbols.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Allocator {
    /// Name of the allocator, or the prefix of its functions.
    pub name: String,
    /// Path of the program or library that contains it.
    pub module: String,
    /// Number of the allocator in the entries of the tape, from 0.
    pub number: u8,
    /// Number of functions that were found; 0 for an allocator without symbols, and for one in a
    /// library that was opened after the start.
    pub found: u32,
    /// Number of functions that were hooked.
    pub hooked: u32,
    /// Number of recorded events.
    pub events: u64,
    /// Functions that were not hooked, the first few.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<Refused>,
    /// Whether it is the `malloc` that the program exports, so that it is called instead of
    /// heaptape's.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_own_malloc: bool,
    /// Whether the library's `malloc` and `free` are recorded by name, so that its blocks may go to
    /// them and come from them.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub shares_malloc: bool,
}

/// A function of an allocator that was not hooked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Refused {
    /// The names of the function.
    pub function: String,
    /// Why it was not hooked.
    pub why: String,
}

/// Accounting of the events of a process: `emitted = recorded + lost + sampled_out`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Accounting {
    /// Number of events that happened.
    pub emitted: u64,
    /// Number of events in the recording.
    pub recorded: u64,
    /// Number of events that were dropped for want of space in a ring or on the disk.
    pub lost: u64,
    /// Number of events that sampling skipped on purpose.
    pub sampled_out: u64,
}

impl Accounting {
    /// Adds the counts of `other`.
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

/// Name of the file in the daemon's state folder that has the marks: a line of JSON for each, the
/// oldest one first.
pub const MARKS: &str = "marks.jsonl";

/// A named point in time, such as that of a deploy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Name of the mark.
    pub name: String,
    /// Time of the mark, in nanoseconds since 1970.
    pub unix_ns: u64,
}

impl Mark {
    /// Reads the lines of [`MARKS`]. Lines that are no mark are left out.
    pub fn read_all(text: &str) -> Vec<Mark> {
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Exit {
    /// The process exited with this code.
    Code(u32),
    /// This signal ended the process.
    Signal(u32),
    /// The process executed another program.
    Exec,
    /// The process ended; how is not known.
    Unknown,
    /// The process was still running when the recording ended.
    Running,
}

/// Value of [`NotTraced::why`] of a process that still ran when the recording ended, and would have
/// attached at its first allocation. No event of it is missing.
pub const HAD_NOT_ALLOCATED: &str =
    "it still ran when the recording ended, and had not allocated yet (record --wait waits for it)";

/// A process that ran without being recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NotTraced {
    /// Process ID of the unrecorded process; 0 if it had ended before anybody saw it.
    pub pid: u32,
    /// Path of the executable file.
    pub exe: String,
    /// Reason why it was not recorded.
    pub why: String,
}

impl NotTraced {
    /// Returns whether the process may have allocated while it was not recorded.
    pub fn may_have_allocated(&self) -> bool {
        self.why != HAD_NOT_ALLOCATED
    }
}
