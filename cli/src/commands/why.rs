//! `heaptape why`: what became of a program, on one screen.

use super::common::print;
use super::newest;
use crate::Outcome;
use crate::control::Control;
use heaptape_analyzer::is_recording;
use heaptape_analyzer::report::{Error, Unanswerable};
use heaptape_daemon::config::Config;
use heaptape_daemon::protocol::{Request, Response};
use heaptape_recorder::target::proc::{self, Process};
use heaptape_reports::why::{self, WhyQuery};
use std::path::{Path, PathBuf};

/// Options of `heaptape why`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Recording; or pid, name (* and ? are wildcards) or label of a program that the daemon
    /// recorded [default: the newest recording in this folder]
    #[arg(value_name = "DIR|NAME|PID|LABEL")]
    which: Option<String>,
    /// State folder of the daemon, by default that of the daemon that answers
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Control socket of the daemon, which writes what it knows first; without an answer the state
    /// folder is read as it is
    #[arg(long, value_name = "PATH")]
    control: Option<PathBuf>,
    /// Only processes of this user; without the right to list all users, the own ones
    #[arg(long, value_name = "UID")]
    user: Option<u32>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    let Args { which, state, control, mut user, json } = args;
    let is_named = state.is_some() || control.is_some();
    let which = match which {
        Some(which) => which,
        None => newest::or_newest(Vec::new())?.remove(0).display().to_string(),
    };
    if !is_named && is_recording(Path::new(&which)) {
        let query = WhyQuery { recording: Some(which.into()), json, ..WhyQuery::new(&resident_bytes) };
        return print(false, |out, style| why::run(&query, out, style));
    }
    // A state folder that is named may be that of another daemon.
    let running = if state.is_none() || control.is_some() { written_state(control) } else { None };
    let state = state.or(running).unwrap_or_else(|| Config::default().state);
    match std::fs::read_dir(&state) {
        Err(error) if error.kind() != std::io::ErrorKind::PermissionDenied => {
            return Err(super::epochs::no_epochs(&state, &error));
        }
        Err(_) if user.is_none() => user = Some(nix::unistd::geteuid().as_raw()),
        _ => {}
    }
    let ask = |which: String| {
        let query = WhyQuery { state: state.clone(), user, which, json, ..WhyQuery::new(&resident_bytes) };
        print(false, |out, style| why::run(&query, out, style))
    };
    // A program that has renamed itself since its start is recorded by its first name.
    let named = proc::with_name(which.as_bytes());
    let answered = ask(which);
    let is_unknown = |error: &anyhow::Error| {
        matches!(error.downcast_ref(), Some(Error::Unanswerable(Unanswerable::UnknownProcess { .. })))
    };
    match answered {
        // Others of this name may not be recorded.
        Err(error) if is_unknown(&error) => {
            named.into_iter().map(|pid| ask(pid.to_string())).find(Result::is_ok).unwrap_or(Err(error))
        }
        answered => answered,
    }
}

/// Makes the daemon write what it knows. Returns its state folder if it answers.
fn written_state(control: Option<PathBuf>) -> Option<PathBuf> {
    let control = Control::at(control);
    let Ok(Response::Status(status)) = control.ask(&Request::Status) else { return None };
    // A daemon that cannot write has still written what is there.
    let _ = control.ask(&Request::Flush);
    Some(PathBuf::from(status.state))
}

/// Returns the resident bytes of a process that started at a clock tick of the boot with this ID;
/// `None` if it does not run.
fn resident_bytes(pid: u32, started: u64, boot: &str) -> Option<u64> {
    if started == 0 || boot != proc::boot_id() || Process::read(pid).start_ticks != started {
        return None;
    }
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}
