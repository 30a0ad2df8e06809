//! `heaptape env`: what to put into a service's drop-in so that the daemon records it.

use crate::{Outcome, library};
use heaptape_recorder::daemon::config::{Choice, Config};
use std::path::PathBuf;

/// Its options.
#[derive(clap::Args)]
pub struct Args {
    /// Where programs find the daemon
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The preload library; by default the one that this command carries, put where all users can read it when that is possible
    #[arg(long, value_name = "FILE")]
    library: Option<PathBuf>,
    /// What is kept of the program, whatever the daemon's rules say
    #[arg(long)]
    mode: Option<Choice>,
    /// A name of your own for it
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    /// As lines for a shell instead of a systemd drop-in
    #[arg(long)]
    shell: bool,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
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
    println!("# systemctl edit SERVICE, then restart it");
    println!("[Service]");
    for (name, value) in &variables {
        // systemd expands % and reads quotes and backslashes.
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%");
        println!("Environment=\"{name}={value}\"");
    }
    Ok(Outcome::Done)
}
