//! `heaptape daemon env`: prints the environment that makes the daemon record a service.

use crate::{Outcome, library};
use heaptape_daemon::config::{self, Choice, Config};
use std::path::PathBuf;

/// Options of `heaptape daemon env`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Socket of the daemon for programs
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Preload library [default: the one inside this command, in a folder that all users can read
    /// if possible]
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    /// Mode of the program, which overrides the daemon's rules: off, profile, trace or flight
    #[arg(long)]
    mode: Option<Choice>,
    /// Label of the program in recordings
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    /// Print shell commands instead of a systemd drop-in
    #[arg(long)]
    shell: bool,
}

/// How long a service waits for a daemon that is busy, in milliseconds.
const SERVICE_ATTACH_MS: u64 = 2000;

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    config::check_own_folder().map_err(anyhow::Error::msg)?;
    let socket = args.socket.unwrap_or_else(|| Config::default().socket);
    let library = args.library.map_or_else(library::path, Ok)?;
    let mut variables =
        vec![("LD_PRELOAD", library.display().to_string()), ("HEAPTAPE_SOCKET", socket.display().to_string())];
    variables.extend(args.mode.map(|mode| ("HEAPTAPE_MODE", mode.to_string())));
    variables.extend(args.label.map(|label| ("HEAPTAPE_LABEL", label)));
    if args.shell {
        for (name, value) in &variables {
            println!("export {name}='{}'", value.replace('\'', "'\\''"));
        }
        return Ok(Outcome::Done);
    }
    // Many services start at once when the machine does, and one that no longer waits runs
    // unrecorded for its whole life. The wait for a daemon that is not there stays as it is.
    variables.push(("HEAPTAPE_ATTACH_MS", SERVICE_ATTACH_MS.to_string()));
    println!("# systemctl edit SERVICE, then restart it");
    println!("[Service]");
    for (name, value) in &variables {
        // systemd expands % and reads quotes and backslashes.
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%");
        println!("Environment=\"{name}={value}\"");
    }
    Ok(Outcome::Done)
}
