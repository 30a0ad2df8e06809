//! `heaptape daemon epochs`: lists the daemon's epochs, as paths for other commands:
//! `heaptape leaks $(heaptape daemon epochs --program redis-server)`.

use crate::Outcome;
use anyhow::anyhow;
use heaptape_analyzer::epochs::{self, EpochQuery};
use heaptape_daemon::config::Config;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Options of `heaptape daemon epochs`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// State folder of the daemon
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Only the N newest epochs of each user
    #[arg(long, value_name = "N")]
    last: Option<usize>,
    /// Only this epoch and newer ones; the start of its name is enough (20261121)
    #[arg(long, value_name = "EPOCH")]
    from: Option<String>,
    /// Only this epoch and older ones
    #[arg(long, value_name = "EPOCH", alias = "to")]
    until: Option<String>,
    /// Only epochs of this user; without the right to list all users, the own ones
    #[arg(long, value_name = "UID")]
    user: Option<u32>,
    /// Processes of this program (* and ? are wildcards) instead of whole epochs
    #[arg(long, value_name = "NAME")]
    program: Option<String>,
    /// Processes with this label instead of whole epochs
    #[arg(long, value_name = "LABEL")]
    label: Option<String>,
    /// List also profiles that a later one of the process includes
    #[arg(long)]
    each: bool,
    /// List the folders of DCPI profiles instead
    #[arg(long)]
    dcpi: bool,
}

/// Creates the error about a state folder that cannot be read.
pub(super) fn no_epochs(state: &Path, error: &std::io::Error) -> anyhow::Error {
    let advice = "`heaptape daemon` writes epochs; --state DIR names the folder of a daemon that keeps them elsewhere";
    anyhow!("no epochs in {}: {error}; {advice}", state.display())
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    let state = args.state.unwrap_or_else(|| Config::default().state);
    let Args { last, from, until, user, program, label, each, dcpi, .. } = args;
    let is_narrowed = last.is_some() || from.is_some() || until.is_some() || user.is_some();
    let is_narrowed = is_narrowed || program.is_some() || label.is_some() || dcpi;
    let is_of_processes = program.is_some() || label.is_some();
    let mut query = EpochQuery { last, from, to: until, user, program, label, each, dcpi, ..EpochQuery::default() };
    let mut found = epochs::find(&state, &query);
    if query.user.is_none() && found.as_ref().is_err_and(|error| error.kind() == ErrorKind::PermissionDenied) {
        query.user = Some(nix::unistd::geteuid().as_raw());
        found = epochs::find(&state, &query);
    }
    let found = found.map_err(|error| no_epochs(&state, &error))?;
    found.iter().for_each(|path| println!("{}", path.display()));
    if found.is_empty() {
        let what = if is_narrowed { "no epoch or process matches" } else { "no epochs yet" };
        let advice = if is_of_processes {
            "; a process is listed from its first snapshot on, which `heaptape daemon snapshot` writes"
        } else {
            ""
        };
        eprintln!("heaptape: {what} in {}{advice}", state.display());
        return Ok(Outcome::NoAnswer);
    }
    Ok(Outcome::Done)
}
