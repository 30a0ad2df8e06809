//! Pushes what programs allocated since the last push, and what they hold, to a server of profiles:
//! Pyroscope, or one that takes OTLP. Each push adds profiles to a queue on disk of bounded size,
//! then sends what is in the queue.

mod delta;
mod format;
mod otlp;
mod pyroscope;
mod queue;
mod state;

use crate::export::Partition;
use crate::http::Server;
use crate::ids::{self, Hash};
use crate::sites::Identity;
use anyhow::{Context, bail};
use delta::{Known, SegmentSums, advance};
use format::Profile;
use heaptape_analyzer::epochs::{self, EpochQuery};
use heaptape_analyzer::symbols::{Detail, Symbolizer};
use heaptape_analyzer::{Process, Progress, Recording, open_all, sums};
use queue::{Queue, Request};
use serde::{Deserialize, Serialize};
use state::State;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{SystemTime, UNIX_EPOCH};

/// Maximum number of processes of one push; those that hold least are left out.
const MAX_PROCESSES: usize = 1024;
/// Number of the newest epochs in which the segments of a new process are searched.
const NEWEST_EPOCHS: usize = 3;

/// Protocol of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// Pyroscope takes pprof profiles at `/ingest`.
    Pyroscope,
    /// A server of OTLP takes them at `/v1development/profiles`.
    Otlp,
}

impl FromStr for Protocol {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Protocol> {
        match text {
            "pyroscope" => Ok(Protocol::Pyroscope),
            "otlp" => Ok(Protocol::Otlp),
            _ => bail!("invalid protocol '{text}': must be pyroscope or otlp"),
        }
    }
}

/// A process that the daemon serves, as `heaptape push` lists it on standard input.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct Served {
    pub pid: u32,
    pub uid: u32,
    /// Bytes that it holds.
    pub live_bytes: u64,
}

/// What is pushed, and where to.
pub(crate) struct Push {
    /// State folder of the daemon.
    pub state: PathBuf,
    /// The server that takes the profiles.
    pub server: Server,
    /// Protocol of the server.
    pub protocol: Protocol,
    /// Name of this host; by default that in the recordings.
    pub host: Option<String>,
    /// Maximum number of bytes that wait in the queue.
    pub queue_bytes: u64,
}

/// What one push has done.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Pushed {
    /// Number of profiles that were sent.
    pub profiles: u64,
    pub bytes: u64,
    /// Number of profiles that wait in the queue.
    pub waiting: u64,
    /// Number of profiles that were dropped: the queue was full, or the server refused them.
    pub dropped: u64,
    /// Number of processes that could not be read.
    pub unreadable: u64,
    /// Why the rest was not sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The profiles of one push, by program and label.
type Groups = BTreeMap<(String, String), Profile>;

/// Returns the time in nanoseconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

/// Adds profiles of the processes to the queue, and sends what is in it.
///
/// # Errors
/// Returns an error if the state folder cannot be read or written. A server that takes nothing is
/// an error in the result.
pub(crate) fn run(push: &Push, mut served: Vec<Served>) -> anyhow::Result<Pushed> {
    let mut state = State::open(&push.state, &format!("{:?} {}", push.protocol, push.server.url))?;
    let queue = Queue::open(state.folder(), push.queue_bytes)?;
    let mut pushed = Pushed::default();
    served.sort_by_key(|process| std::cmp::Reverse(process.live_bytes));
    served.truncate(MAX_PROCESSES);
    let until = now();
    let groups = collect(push, &mut state, &served, until, &mut pushed)?;
    let host = push.host.clone().unwrap_or_default();
    for ((program, label), mut profile) in groups {
        if profile.host.is_empty() || !host.is_empty() {
            profile.host.clone_from(&host);
        }
        if profile.samples.is_empty() {
            continue;
        }
        let Request { path, content_type, body } = match push.protocol {
            Protocol::Pyroscope => pyroscope::request(&profile),
            Protocol::Otlp => otlp::request(&profile),
        };
        let key = Hash::new().bytes(program.as_bytes()).bytes(&[0]).bytes(label.as_bytes()).finish();
        // The same interval has the same name: nothing is in the queue twice if this process is
        // killed before it has noted what it did.
        let name = format!("{:020}-{key:016x}", profile.from_ns);
        pushed.dropped += queue.add(&name, &Request { path, content_type, body })?;
    }
    state.set_last(until);
    state.save()?;
    queue.send(&push.server, &mut pushed)?;
    Ok(pushed)
}

/// Reads the processes, and returns what they allocated since the last push and hold now.
fn collect(
    push: &Push,
    state: &mut State,
    served: &[Served],
    until: u64,
    pushed: &mut Pushed,
) -> anyhow::Result<Groups> {
    let mut groups = Groups::new();
    let mut symbols = Symbolizer::new(Detail::Quick);
    let last = state.last();
    let mut done: Vec<i64> = Vec::new();
    // Processes that have ended since then, and those that are served.
    let gone = state
        .processes()
        .into_iter()
        .filter(|(_, known)| !served.iter().any(|process| process.pid == known.pid && process.uid == known.uid));
    let gone: Vec<(u32, u32, Option<i64>)> = gone.map(|(key, known)| (known.uid, known.pid, Some(key))).collect();
    let all = gone.into_iter().chain(served.iter().map(|process| (process.uid, process.pid, None)));
    for (uid, pid, wanted) in all {
        let Some(found) = segments(push, state, uid, pid, wanted)? else {
            pushed.unreadable += u64::from(wanted.is_none());
            wanted.into_iter().for_each(|key| state.forget(key));
            continue;
        };
        if done.contains(&found.key) {
            continue;
        }
        done.push(found.key);
        add(&found, state, last, until, &mut symbols, &mut groups);
        if wanted.is_some() {
            state.forget(found.key);
        }
    }
    Ok(groups)
}

/// The segments of a process that have not been pushed completely, in the order of their starts.
struct Segments {
    key: i64,
    host: String,
    recordings: Vec<(PathBuf, Recording)>,
}

/// Finds the segments of a process: the one that the last push saw, and later ones. `wanted` is the
/// number of a process that has ended.
fn segments(push: &Push, state: &State, uid: u32, pid: u32, wanted: Option<i64>) -> anyhow::Result<Option<Segments>> {
    let known = state.of_pid(uid, pid).filter(|(key, _)| wanted.is_none_or(|wanted| wanted == *key));
    let from = known.and_then(|(_, known)| epoch_of(&known.folder));
    let last = from.is_none().then_some(NEWEST_EPOCHS);
    let query = EpochQuery { user: Some(uid), pid: Some(pid), each: true, from, last, ..EpochQuery::default() };
    let paths = epochs::find(&push.state, &query).with_context(|| push.state.display().to_string())?;
    let mut read: Vec<(Identity, String, PathBuf, Recording)> = Vec::new();
    for path in paths {
        // A flight recording that was kept is an extract, whose sums say nothing.
        let Some((recording, partition)) = open(&path) else { continue };
        let Some(process) = recording.processes.first().filter(|process| process.about.kept.is_none()) else {
            continue;
        };
        let identity = partition.identity(process);
        read.push((identity, partition.host, path, recording));
    }
    read.sort_by(|one, other| {
        (one.0.counted_ns, one.0.moment_ns, &one.2).cmp(&(other.0.counted_ns, other.0.moment_ns, &other.2))
    });
    // The newest process of this number; an ended one may have had it before.
    let key = wanted.or(read.last().map(|(identity, ..)| identity.key));
    read.retain(|(identity, ..)| Some(identity.key) == key);
    // What was before the segment that the last push saw has been pushed.
    if let Some((_, known)) = known.filter(|(known_key, _)| Some(*known_key) == key) {
        match read.iter().position(|(_, _, path, _)| *path == known.folder) {
            Some(seen) => drop(read.drain(..seen)),
            None => read.retain(|(identity, ..)| identity.counted_ns >= known.counted_ns),
        }
    }
    let Some((identity, host, ..)) = read.last() else { return Ok(None) };
    let (key, host) = (identity.key, host.clone());
    let recordings = read.into_iter().map(|(_, _, path, recording)| (path, recording)).collect();
    Ok(Some(Segments { key, host, recordings }))
}

/// Opens the folder of a process.
fn open(path: &Path) -> Option<(Recording, Partition)> {
    let recording = open_all(&[path.to_owned()]).ok()?.pop()?;
    let partition = Partition::of(&recording, path);
    Some((recording, partition))
}

/// Returns the name of the epoch in which a folder is.
fn epoch_of(folder: &Path) -> Option<String> {
    Some(folder.parent()?.file_name()?.to_str()?.to_owned())
}

/// Adds what a process allocated since the last push, and what it holds, to its group.
fn add(
    found: &Segments,
    state: &mut State,
    last: Option<u64>,
    until: u64,
    symbols: &mut Symbolizer,
    groups: &mut Groups,
) {
    let Some((_, newest)) = found.recordings.last() else { return };
    let Some(newest) = newest.processes.first() else { return };
    let known = state.process(found.key).cloned();
    // The list of the epoch's processes may be older than the process; its own file is not.
    let started = found.recordings.iter().filter_map(|(_, recording)| recording.processes.first());
    let started = started.map(|process| process.clock.start_unix_ns).min().unwrap_or(0);
    // What a process allocated before the first push belongs to no interval. All of a later process
    // that is not known yet is new, also if an earlier push could not read it.
    let is_new = state.first().is_some_and(|first| started >= first);
    let mut known = known.unwrap_or_else(|| Known { is_baseline: !is_new, ..Known::default() });
    let mut group = None;
    for (number, (path, recording)) in found.recordings.iter().enumerate() {
        let Some(process) = recording.processes.first() else { continue };
        let (segment, sites) = segment_sums(process, path, recording);
        let deltas = advance(&mut known, &segment);
        let is_last = number + 1 == found.recordings.len();
        let identity_of_group = || (process.name(), label(process));
        let group = group.get_or_insert_with(identity_of_group).clone();
        let profile = groups.entry(group.clone()).or_insert_with(|| Profile {
            program: group.0,
            label: group.1,
            host: found.host.clone(),
            from_ns: last.unwrap_or(until.min(started)),
            until_ns: until,
            ..Profile::default()
        });
        for (stack, site) in sites {
            let mut values = deltas.get(&stack).copied().unwrap_or_default();
            if is_last && process.about.ended_unix_ns.is_none() {
                let held = segment.sites.get(&stack).copied().unwrap_or_default();
                (values.live_blocks, values.live_bytes) = (held.live_blocks, held.live_bytes);
            }
            profile.add(process, symbols, stack, site, &values);
        }
    }
    (known.uid, known.pid, known.is_baseline) = (newest_uid(found), newest.about.pid, false);
    state.set_process(found.key, known);
}

/// Returns the user of the newest segment: the folder of a user is above that of the epoch.
fn newest_uid(found: &Segments) -> u32 {
    let path = found.recordings.last().map(|(path, _)| path.as_path());
    let user = path.and_then(Path::parent).and_then(Path::parent).and_then(Path::file_name);
    user.and_then(|user| user.to_str()?.parse().ok()).unwrap_or(0)
}

fn label(process: &Process) -> String {
    let label = process.tape.process.label.lossy().into_owned();
    if label.is_empty() { process.about.label.clone() } else { label }
}

/// Returns the sums of a segment by stack, and a site of each stack.
fn segment_sums(process: &Process, path: &Path, recording: &Recording) -> (SegmentSums, Vec<(i64, u32)>) {
    let identity = Partition::of(recording, path).identity(process);
    let ids = ids::of(process.stacks());
    let mut segment = SegmentSums {
        folder: path.to_owned(),
        counted_ns: identity.counted_ns,
        is_carried: process.carried() > 0,
        sites: BTreeMap::new(),
    };
    let mut sites = BTreeMap::new();
    for row in &sums(process, &Progress::new("adding up")).sites {
        let stack = ids.get(row.site as usize).map_or(0, |ids| ids.1);
        sites.insert(stack, row.site);
        segment.sites.entry(stack).or_default().add(row);
    }
    (segment, sites.into_iter().collect())
}
