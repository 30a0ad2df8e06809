//! `heaptape send`: a trace or a profile from anywhere into the daemon's epochs.

use super::ctl::{harmless, no_answer, number, text};
use crate::Outcome;
use heaptape_analyzer::load::bare;
use heaptape_analyzer::text::bytes;
use heaptape_formats::recording::{RECORDING, Recording};
use heaptape_recorder::daemon::{config::Config, send};
use std::io::{Read, stdin};
use std::path::{Path, PathBuf};

/// Its options.
#[derive(clap::Args)]
#[command(
    after_help = "The exit code is 1 when what was sent is kept and not whole, 2 when nothing of it is kept. HEAPTAPE_LABEL in the environment \
    labels it. Without --name a file of a recording is filed under the program that the recording names, any other under `heaptape`."
)]
pub struct Args {
    /// A trace (MTRC) or a profile (MPTL), packed or not; standard input without it
    file: Option<PathBuf>,
    /// The program that made it, a name or a path: what it is filed under (PID.NAME, `epochs --program NAME`)
    #[arg(long, value_name = "PROG")]
    name: Option<String>,
    /// The daemon's socket for programs; by default HEAPTAPE_SOCKET, or where a daemon of yours is
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let path = args.socket.or_else(|| std::env::var_os("HEAPTAPE_SOCKET").map(PathBuf::from));
    let path = path.unwrap_or_else(|| Config::default().socket);
    let name = args.name.or_else(|| args.file.as_deref().and_then(program_of)).unwrap_or_default();
    let from: Box<dyn Read> = match args.file.filter(|file| file.as_os_str() != "-") {
        Some(file) => bare::open(&file).map_err(|error| anyhow::anyhow!("{}: {error}", file.display()))?,
        None => bare::unpacking(stdin())?,
    };
    let socket = send::connect(&path).map_err(|error| no_answer(&path, "--socket", &error))?;
    let answer = send::send(&socket, &name, from).map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
    if let Some(why) = answer["error"].as_str() {
        anyhow::bail!("nothing is kept by the daemon at {}: {}", path.display(), harmless(why));
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

/// The program that a recording names for one of its files.
fn program_of(file: &Path) -> Option<String> {
    let folder = file.canonicalize().ok()?.parent()?.to_owned();
    let bytes = std::fs::read(folder.parent()?.join(RECORDING)).ok()?;
    let recording: Recording = serde_json::from_slice(&bytes).ok()?;
    let name = folder.file_name()?.to_str()?;
    recording.images.into_iter().find(|image| image.folder == name).map(|image| image.exe)
}
