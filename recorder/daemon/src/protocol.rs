//! The messages of the control socket: what `ctl` and `top` send, and what the daemon answers. Each
//! message is one line of JSON with sorted keys.
//!
//! Fields may be added. A reader ignores those that it does not know, and fills in those that an
//! older daemon does not send.

use super::config::Choice;
use formats::pattern::Pattern;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// The values of `word` in a request.
const COMMANDS: [&str; 14] = [
    "status", "list", "show", "mode", "snapshot", "attach", "detach", "epoch", "mark", "rotate", "flush", "metrics",
    "reload", "stop",
];

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "word", rename_all = "lowercase")]
pub enum Request {
    /// The state of the daemon.
    Status,
    /// The recorded processes and incoming streams.
    List,
    /// One process with its call sites.
    Show {
        /// Which process is shown.
        #[serde(default)]
        which: Which,
        /// Maximum number of call sites.
        #[serde(default = "default_sites")]
        sites: u64,
    },
    /// A change of what is kept of processes.
    Mode {
        /// Which processes are meant.
        #[serde(default)]
        which: Which,
        /// What is kept from now on.
        mode: Choice,
    },
    /// Snapshots of processes, and the events of flight recorders.
    Snapshot {
        /// Which processes are meant.
        #[serde(default)]
        which: Which,
        /// Whether flight recordings are written where they are, and are not kept. Older daemons
        /// keep them.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        leaves_flights: bool,
        /// Whether it is read which block holds which: each process stands still for a moment.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        references: bool,
    },
    /// The recording of a process that runs without the library.
    Attach {
        pid: u32,
        /// What is kept of it; the rules decide if it is missing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mode: Option<Choice>,
    },
    /// The end of the recording of attached processes, which are left as they were.
    Detach {
        /// Which processes are meant.
        which: Which,
    },
    /// The end of the epochs of all users.
    Epoch,
    /// A named point in time, at which the epochs of all users end.
    Mark { name: String },
    /// New files for the events of processes, within the epoch.
    Rotate {
        /// Which processes are meant.
        #[serde(default)]
        which: Which,
    },
    /// Everything is written to disk.
    Flush,
    /// The metrics in the format of Prometheus.
    Metrics,
    /// Those of them that everybody on the machine may read. It does not come from a socket.
    #[serde(skip)]
    PublicMetrics,
    /// The configuration is read again.
    Reload,
    /// The end of the daemon.
    Stop,
}

/// Number of call sites in the answer to `show` if the request has none.
const fn default_sites() -> u64 {
    20
}

/// Which processes a request is about: a pid, a pattern of names or labels, or `all`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Which(pub String);

impl Default for Which {
    fn default() -> Self {
        Which("all".into())
    }
}

/// What a [`Which`] is compared with.
#[derive(Clone, Copy, Debug)]
pub struct Identity<'a> {
    pub pid: u32,
    pub name: &'a str,
    /// Label of the process, empty if it has none.
    pub label: &'a str,
}

impl Which {
    /// Returns the process with this pid, else those with this name, else those with this label.
    pub fn choose<'a, T>(&self, all: &'a [T], identity: impl Fn(&T) -> Identity<'_>) -> Vec<&'a T> {
        if self.0 == "all" {
            return all.iter().collect();
        }
        let (pid, pattern) = (self.0.parse::<u32>().ok(), Pattern::whole(&self.0));
        let by: [&dyn Fn(Identity) -> bool; 3] =
            [&|one| pid == Some(one.pid), &|one| pattern.matches(one.name), &|one| {
                !one.label.is_empty() && pattern.matches(one.label)
            }];
        let mut found = by.iter().map(|fits| all.iter().filter(|one| fits(identity(one))).collect::<Vec<_>>());
        found.find(|chosen| !chosen.is_empty()).unwrap_or_default()
    }
}

impl Request {
    /// Reads the line of a request.
    ///
    /// # Errors
    /// A message for the sender, when the line is not JSON or not a request.
    pub fn read(line: &[u8]) -> Result<Request, String> {
        let value: Value = serde_json::from_slice(line).map_err(|error| format!("invalid request: {error}"))?;
        let word = value["word"].as_str().unwrap_or_default().to_owned();
        match serde_json::from_value(value) {
            Ok(request) => Ok(request),
            Err(_) if !COMMANDS.contains(&&*word) => {
                Err(format!("unknown command '{word}': must be one of {}", COMMANDS.join(", ")))
            }
            Err(error) => Err(format!("invalid request '{word}': {error}")),
        }
    }
}

/// An answer of the daemon. Its form follows from the request, so it has no tag.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Response {
    /// The answer to [`Request::Status`].
    Status(Box<Status>),
    /// The answer to [`Request::List`].
    List(Vec<Entry>),
    /// The answer to [`Request::Show`].
    Show(Box<Details>),
    /// The answer to [`Request::Metrics`].
    Metrics(String),
    /// The answer to [`Request::Mode`].
    Mode(Changed),
    /// The answer to [`Request::Attach`].
    Attached(Attached),
    /// The answer to [`Request::Detach`].
    Detached(Detached),
    /// To [`Request::Snapshot`], [`Request::Flush`] and [`Request::Rotate`].
    Processes(Processes),
    /// The answer to [`Request::Epoch`] and [`Request::Mark`].
    Epochs(Epochs),
    /// The answer to [`Request::Reload`].
    Reloaded(Reloaded),
    /// The answer to [`Request::Stop`].
    Stopped(Stopped),
    /// The request is refused, or failed.
    Error(Refusal),
}

impl Response {
    /// Reads the answer to a request.
    ///
    /// # Errors
    /// When the answer has another form than that of the request.
    pub fn read(request: &Request, answer: Value) -> serde_json::Result<Response> {
        if answer.get("error").is_some() {
            return serde_json::from_value(answer).map(Response::Error);
        }
        match request {
            Request::Status => serde_json::from_value(answer).map(Response::Status),
            Request::List => serde_json::from_value(answer).map(Response::List),
            Request::Show { .. } => serde_json::from_value(answer).map(Response::Show),
            Request::Metrics | Request::PublicMetrics => serde_json::from_value(answer).map(Response::Metrics),
            Request::Mode { .. } => serde_json::from_value(answer).map(Response::Mode),
            Request::Snapshot { .. } | Request::Flush | Request::Rotate { .. } => {
                serde_json::from_value(answer).map(Response::Processes)
            }
            Request::Attach { .. } => serde_json::from_value(answer).map(Response::Attached),
            Request::Detach { .. } => serde_json::from_value(answer).map(Response::Detached),
            Request::Epoch | Request::Mark { .. } => serde_json::from_value(answer).map(Response::Epochs),
            Request::Reload => serde_json::from_value(answer).map(Response::Reloaded),
            Request::Stop => serde_json::from_value(answer).map(Response::Stopped),
        }
    }

    /// Returns the answer with an error of writing, if it is about something that was written.
    pub(crate) fn with_error(mut self, error: String) -> Response {
        match &mut self {
            Response::Processes(Processes { errors, .. }) | Response::Epochs(Epochs { errors, .. }) => {
                errors.push(error);
                self
            }
            Response::Error(_) => self,
            _ => Response::error(error),
        }
    }

    /// Returns what could not be written.
    pub fn errors(&self) -> &[String] {
        match self {
            Response::Processes(Processes { errors, .. }) | Response::Epochs(Epochs { errors, .. }) => errors,
            _ => &[],
        }
    }

    /// Returns a refusal for this reason.
    pub fn error(why: impl Into<String>) -> Response {
        Response::Error(Refusal { error: why.into() })
    }
}

/// Why a request was not executed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// The message for the user.
    pub error: String,
}

/// The number of processes of which something was written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Processes {
    /// Number of processes that were written.
    pub processes: u64,
    /// The longest time for which one of them stood still, in microseconds.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub stop_us: u64,
    /// What could not be written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
}

/// The result of a change of mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    pub processes: u64,
    /// The new mode with its sampling and overflow.
    pub mode: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    pub pid: u32,
    /// Name of the process (`comm`).
    pub name: String,
    /// What is kept of it, with its sampling.
    pub mode: String,
    pub folder: String,
    /// Number of functions that were hooked.
    pub functions: u64,
    /// The longest time in which all its threads were stopped, in microseconds.
    pub stop_us: u64,
}

/// The processes that were left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Detached {
    /// Number of processes that are not recorded any more.
    pub processes: u64,
    /// The longest time in which all threads of one of them were stopped, in microseconds, from its
    /// attach on.
    pub stop_us: u64,
    /// The processes in which something remains.
    pub remains: Vec<Remains>,
}

/// What remains in a process that was left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Remains {
    pub pid: u32,
    pub why: String,
}

/// The number of epochs that were ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Epochs {
    /// Number of epochs, one for each user.
    pub epochs: u64,
    /// Which epochs go on, and what could not be written.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
}

/// What changed when the configuration was read again: sentences by key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// Settings that apply from now on.
    pub changed: BTreeMap<String, String>,
    /// Settings that apply when the daemon is started again.
    pub needs_restart: BTreeMap<String, String>,
}

/// Confirmation that the daemon ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopped {
    /// Always true; kept for older clients.
    pub stopped: bool,
}

/// The state of the daemon.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    pub version: String,
    /// Process id of the daemon.
    pub pid: u32,
    /// Seconds since the start of the daemon.
    pub seconds: u64,
    /// Path of the socket for programs.
    pub socket: String,
    /// Folder of the epochs.
    pub state: String,
    /// Number of recorded processes.
    pub processes: u64,
    /// Number of recorded processes in each mode.
    pub modes: BTreeMap<String, u64>,
    /// Times that each budget was hit.
    pub budgets_hit: BTreeMap<String, u64>,
    /// The daemon's own metrics by name.
    pub own: BTreeMap<String, f64>,
    /// Why the daemon cannot write at the moment; missing while it can.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_error: Option<String>,
    /// Processes that run unrecorded: they no longer waited for the daemon's answer, or were recorded
    /// by a daemon that left nothing to this one. The last ones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub late: Vec<Late>,
}

/// A process that runs unrecorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Late {
    pub pid: u32,
    pub uid: u32,
    /// Name of the process (`comm`).
    pub name: String,
    /// When the daemon found that, in nanoseconds since 1970.
    pub unix_ns: u64,
    /// Why: `late`, `stalled` since its files or memory did not answer, or `orphaned` by the end of the
    /// daemon that recorded it.
    pub reason: String,
}

/// An entry of the answer to [`Request::List`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Entry {
    /// A trace or profile that is being received.
    Stream(Stream),
    Process(Box<Process>),
}

/// A trace or profile that is being received.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stream {
    /// Process id of the sender, or of the program that it names.
    pub pid: u32,
    /// User id of the sender.
    pub uid: u32,
    pub name: String,
    pub label: String,
    /// Path of the program.
    pub exe: String,
    /// The mode, which is `stream`.
    pub mode: String,
    /// Seconds since the first byte.
    pub seconds: u64,
    /// Number of bytes received.
    pub received: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Process {
    pub pid: u32,
    pub uid: u32,
    /// Name of the process (`comm`).
    pub name: String,
    /// Label of the process, or its systemd unit.
    pub label: String,
    /// Path of its control group.
    pub cgroup: String,
    /// Path of the program.
    pub exe: String,
    /// Name by which the program was started (`argv[0]`, without its folder), if that is neither
    /// its own nor that of the process. Older daemons do not send it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub called: String,
    pub folder: String,
    pub mode: String,
    /// What a thread does when its ring is full.
    pub overflow: String,
    /// Current sampling interval in bytes; 0 if every event is recorded.
    pub interval: u64,
    /// Seconds since it attached.
    pub seconds: u64,
    /// The budget because of which its mode was reduced, if any.
    pub held: Option<String>,
    /// Whether the daemon attached it after it had started.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub attached: bool,
    /// Bytes allocated and not freed.
    pub live_bytes: u64,
    /// Blocks allocated and not freed.
    pub live_blocks: u64,
    /// Time from which its live blocks are known, if that is not its start.
    pub live_since_unix_ns: Option<u64>,
    /// Maximum of its live bytes.
    pub peak_bytes: u64,
    /// Resident memory in bytes; 0 if it is not known. Older daemons do not send it.
    #[serde(skip_serializing_if = "is_zero")]
    pub resident_bytes: u64,
    /// The resident memory at the last snapshot of the pages by use, in bytes, with the names of
    /// `heaptape rss --json`. Empty if it is not known; older daemons do not send it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub resident_parts: BTreeMap<String, u64>,
    /// Number of recorded allocations.
    pub allocs: u64,
    /// Number of recorded frees.
    pub frees: u64,
    /// Number of allocated bytes.
    pub bytes: u64,
    /// Number of events recorded.
    pub recorded: u64,
    /// Number of events lost for want of space.
    pub lost: u64,
    /// Number of events skipped by sampling.
    pub sampled_out: u64,
    /// Number of call sites.
    pub sites: u64,
    /// Number of call sites whose live bytes grow.
    pub sites_growing: u64,
    /// Number of threads seen.
    pub threads: u64,
    /// Growth of the live bytes in the last `growth_seconds`.
    pub growth: i64,
    /// Seconds over which the growth was measured, at most 60. Older daemons do not send it.
    pub growth_seconds: Option<u64>,
    /// Growth of the live bytes in the last `hour` and `day`, since the `start` of the process or
    /// since when its blocks are known, and since the last `mark`, as far as it is known.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub growths: BTreeMap<String, i64>,
    /// Number of allocations per second.
    pub allocs_a_second: u64,
    /// Bytes allocated per second.
    pub bytes_a_second: u64,
    pub events_a_second: u64,
    /// Events lost per second.
    pub lost_a_second: u64,
}

/// A process with its call sites.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Details {
    /// The process that was selected.
    #[serde(flatten)]
    pub process: Process,
    /// Call sites of the process with the most live bytes.
    pub call_sites: Vec<CallSite>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CallSite {
    pub site: u32,
    /// Bytes allocated here and not freed.
    pub live_bytes: u64,
    /// Blocks allocated here and not freed.
    pub live_blocks: u64,
    /// Number of recorded allocations.
    pub allocs: u64,
    /// Number of allocated bytes.
    pub bytes: u64,
    /// Growth of the live bytes since the last check, one minute ago at most. It is `None` before
    /// the first check.
    pub growth: Option<i64>,
    pub growth_seconds: u64,
    /// Call stack, innermost frame first.
    pub stack: Vec<Frame>,
}

/// A frame of a call stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Frame {
    /// Name of code that is in no file.
    pub code: Option<String>,
    pub address: u64,
    pub module: Option<String>,
    /// Build-id of the module, in hexadecimal digits.
    pub build_id: Option<String>,
    /// Address in the module's file.
    pub offset: Option<u64>,
}

/// Returns the line of a message, without its end. Keys are sorted.
///
/// # Errors
/// When the message cannot be serialized.
pub fn line(message: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(&serde_json::to_value(message)?)
}

#[cfg(test)]
mod tests;
