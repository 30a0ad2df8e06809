//! The recordings of processes that run now, for `--live` of the reports: those of `record` and `attach`,
//! and those that the daemon serves.

use crate::control::Control;
use anyhow::anyhow;
use heaptape_analyzer::epochs::{self, EpochQuery};
use heaptape_daemon::protocol::{Entry, Identity, Process, Request, Response, Which};
use heaptape_formats::recording::{RECORDING, Recording};
use heaptape_recorder::run::launch::has_recorder;
use heaptape_recorder::run::{Answer, Question, Silence};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The recorder names a new process in the recording within a quarter of a second of its own time.
const NAMED_LIMIT: Duration = Duration::from_secs(2);

/// Makes whoever records them write what is known of the processes of a name, pid, label or folder.
/// Returns the folders to read.
///
/// # Errors
/// Nobody records such a process now, its recorder does not answer, or the references could not be read.
pub(super) fn paths(which: &str, control: Option<PathBuf>, question: Question) -> anyhow::Result<Vec<PathBuf>> {
    let mut silent = None;
    // Whoever names a daemon means that one.
    if control.is_none() {
        match ask_recorders(which, question) {
            Ok(Some(folder)) => return Ok(vec![folder]),
            Ok(None) => {}
            // The daemon may still know the process.
            Err(error) if error.is::<Silence>() => silent = Some(error),
            Err(error) => return Err(error),
        }
    }
    let is_named = control.is_some();
    let control = Control::at(control);
    let unserved = match chosen(which, &control) {
        Ok((state, served)) if !served.is_empty() => {
            if question == Question::References {
                read_references(which, &control)?;
            }
            return folders(which, &control, &state, &served);
        }
        Ok(_) => unknown(which),
        Err(error) => error,
    };
    Err(silent.or_else(|| unreached(which).filter(|_| !is_named)).unwrap_or(unserved))
}

/// Returns what is said of a process, by its pid, that nobody who answers records.
fn unreached(which: &str) -> Option<anyhow::Error> {
    let pid: u32 = which.parse().ok()?;
    if !Path::new(&format!("/proc/{pid}")).exists() {
        return Some(anyhow!("there is no process {pid}"));
    }
    Some(match Answer::is_expected(pid) {
        Some(false) => anyhow!(
            "process {pid} is not recorded, neither by `record` or `attach` nor by a daemon that answers; \
             `heaptape attach {pid}` records it from now on"
        ),
        Some(true) => anyhow!(
            "process {pid} is recorded, but not by this user: ask as the user of its recorder or as root, or read \
             the recording without --live"
        ),
        None => anyhow!("process {pid} is another user's: ask as that user, or as root"),
    })
}

/// Makes the daemon write these processes. Returns their folders, of all segments.
///
/// # Errors
/// When nothing of them is recorded.
fn folders(which: &str, control: &Control, state: &Path, served: &[Process]) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for process in served {
        // It may end in this moment; then what is recorded of it is its end. A flight recording is
        // read where it is: kept at each question, it would fill the disk.
        let which = Which(process.pid.to_string());
        let _ = control.ask(&Request::Snapshot { which, leaves_flights: true, references: false });
        found.extend(recorded(state, process)?);
    }
    if found.is_empty() {
        return Err(anyhow!("nothing is recorded of '{which}': its mode is off"));
    }
    Ok(found)
}

/// Makes the daemon read which block holds which in the processes of a name, pid or label.
///
/// # Errors
/// When no daemon answers, or when it could not read one of them.
fn read_references(which: &str, control: &Control) -> anyhow::Result<()> {
    let request = Request::Snapshot { which: Which(which.to_owned()), leaves_flights: true, references: true };
    let response = control.ask(&request)?;
    match response.errors() {
        [] => match response {
            Response::Error(refusal) => Err(anyhow!(refusal.error)),
            _ => Ok(()),
        },
        [first, ..] => Err(anyhow!("which block holds which could not be read: {first}")),
    }
}

/// Asks the recorders of `record` and `attach` about a process, or about all of a recording in progress.
/// Returns the folder of the process, or that of the recording; `None` if it is the daemon's to answer.
///
/// # Errors
/// The references could not be read of any process, or the recording has no recorder that answers.
fn ask_recorders(which: &str, question: Question) -> anyhow::Result<Option<PathBuf>> {
    let failed = |why: String| anyhow!("which block holds which could not be read: {why}");
    let path = Path::new(which);
    if !path.join(RECORDING).is_file() {
        let Ok(pid) = which.parse() else { return Ok(None) };
        let Some(answer) = Answer::ask(pid, question)? else { return Ok(None) };
        return answer.error.map_or(Ok(Some(answer.folder)), |why| Err(failed(why)));
    }
    let until = Instant::now() + NAMED_LIMIT;
    let mut answers = answers_of(path, question)?;
    while answers.is_empty() && has_recorder(path) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(50));
        answers = answers_of(path, question)?;
    }
    let mut errors: Vec<String> = answers.iter().filter_map(|answer| answer.error.clone()).collect();
    match answers.len() - errors.len() {
        0 if answers.is_empty() => Err(anyhow!("{which}: no process is recorded here now; read it without --live")),
        0 => Err(failed(errors.swap_remove(0))),
        _ => Ok(Some(path.to_owned())),
    }
}

/// Asks about each process of a recording that has not ended.
fn answers_of(path: &Path, question: Question) -> anyhow::Result<Vec<Answer>> {
    let recording: Recording = serde_json::from_slice(&std::fs::read(path.join(RECORDING))?)?;
    let folder = path.canonicalize()?;
    let mut answers = Vec::new();
    for process in recording.processes.iter().filter(|process| process.exit.is_none()) {
        answers.extend(Answer::ask(process.pid, question)?);
    }
    // The pid of a killed recorder's process may be another one's now.
    answers.retain(|answer| answer.dir.canonicalize().is_ok_and(|dir| dir == folder));
    Ok(answers)
}

/// Returns all folders of a process: those of its flight recording, and those in epochs.
///
/// # Errors
/// When the state folder cannot be read.
pub(super) fn recorded(state: &Path, process: &Process) -> io::Result<Vec<PathBuf>> {
    // Segments may be moved to an epoch meanwhile.
    let mut found = epochs::flight(state, process.uid, process.pid);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let attached = now.saturating_sub(Duration::from_secs(process.seconds.saturating_add(1)));
    let query = EpochQuery {
        user: Some(process.uid),
        pid: Some(process.pid),
        running_at: Some(attached.as_nanos().try_into().unwrap_or(u64::MAX)),
        ..EpochQuery::default()
    };
    found.extend(epochs::find(state, &query)?);
    Ok(found)
}

/// Returns the state folder of a daemon, and the processes of a name, pid or label that it serves.
///
/// # Errors
/// When no daemon answers.
pub(super) fn chosen(which: &str, control: &Control) -> anyhow::Result<(PathBuf, Vec<Process>)> {
    let Response::Status(status) = control.ask(&Request::Status)? else {
        return Err(control.unexpected("no status"));
    };
    let Response::List(entries) = control.ask(&Request::List)? else { return Err(control.unexpected("no list")) };
    let served = entries.into_iter().filter_map(|entry| match entry {
        Entry::Process(process) => Some(*process),
        Entry::Stream(_) => None,
    });
    let served: Vec<Process> = served.collect();
    Ok((status.state.into(), choose(&served, which).into_iter().cloned().collect()))
}

/// Returns the error for processes that the daemon does not serve.
pub(super) fn unknown(which: &str) -> anyhow::Error {
    anyhow!("the daemon serves no process with the name, pid or label '{which}'; `heaptape daemon list` lists all")
}

fn choose<'a>(served: &'a [Process], which: &str) -> Vec<&'a Process> {
    Which(which.to_owned()).choose(served, |process| Identity {
        pid: process.pid,
        name: &process.name,
        label: &process.label,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pid_precedes_name_and_name_precedes_label() {
        let one = |pid, name: &str, label: &str| Process {
            pid,
            name: name.into(),
            label: label.into(),
            ..Process::default()
        };
        let served = [one(7, "redis-server", "cache"), one(8, "cache", "7"), one(9, "redis-server", "")];
        let pids = |which: &str| choose(&served, which).iter().map(|process| process.pid).collect::<Vec<_>>();
        assert_eq!((pids("7"), pids("redis-*")), (vec![7], vec![7, 9]));
        assert_eq!((pids("cache"), pids("ca*e"), pids("none")), (vec![8], vec![8], vec![]));
    }
}
