//! `heaptape send`: a trace or a profile from anywhere into the daemon's epochs.

use super::ctl::{harmless, number, text};
use crate::Outcome;
use heaptape_analyzer::load::bare;
use heaptape_analyzer::text::bytes;
use heaptape_recorder::daemon::{config::Config, send};
use std::io::{Read, stdin};
use std::path::PathBuf;

/// Its options.
#[derive(clap::Args)]
#[command(
    after_help = "The exit code is 1 when what was sent is kept and not whole, 2 when nothing of it is kept. HEAPTAPE_LABEL in the environment \
    labels it."
)]
pub struct Args {
    /// A trace (MTRC) or a profile (MPTL), packed or not; standard input without it
    file: Option<PathBuf>,
    /// The daemon's socket for programs; by default HEAPTAPE_SOCKET, or where a daemon of yours is
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let path = args.socket.or_else(|| std::env::var_os("HEAPTAPE_SOCKET").map(PathBuf::from));
    let path = path.unwrap_or_else(|| Config::default().socket);
    let from: Box<dyn Read> = match args.file.filter(|file| file.as_os_str() != "-") {
        Some(file) => bare::open(&file).map_err(|error| anyhow::anyhow!("{}: {error}", file.display()))?,
        None => bare::unpacking(stdin())?,
    };
    let answer = send::send(&path, from).map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
    if let Some(why) = answer["error"].as_str() {
        anyhow::bail!("nothing is kept: {}", harmless(why));
    }
    println!("{}", text(&answer, "folder"));
    let said = format!("{} of {}", bytes(number(&answer, "bytes")), text(&answer, "format"));
    match answer["why"].as_str() {
        None => Ok(Outcome::Done),
        Some(why) => {
            eprintln!("heaptape: {said} kept, and not whole: {}", harmless(why));
            Ok(Outcome::Partial)
        }
    }
}
