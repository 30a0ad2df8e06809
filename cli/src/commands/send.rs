//! `heaptape daemon send`: sends a trace or a profile to the daemon, which stores it in the current
//! epoch.

use crate::Outcome;
use crate::control::no_answer;
use heaptape_analyzer::text::{bytes, clean};
use heaptape_analyzer::{open_file, unpacking};
use heaptape_daemon::{config::Config, send};
use heaptape_formats::recording::{RECORDING, Recording};
use std::io::{Read, stdin};
use std::path::{Path, PathBuf};

/// Options of `heaptape daemon send`.
#[derive(clap::Args)]
#[command(
    after_help = "The exit status is 1 when only a part was stored, and 2 when nothing was. HEAPTAPE_LABEL in the environment is the label. \
    Without --name, a file of a recording is stored under the program that the recording names, any other under `heaptape`."
)]
pub(super) struct Args {
    /// Trace (MTRC) or profile (MPTL), compressed or not [default: standard input]
    file: Option<PathBuf>,
    /// Program that made it, a name or a path: it is stored under this name (PID.NAME, `epochs
    /// --program NAME`)
    #[arg(long, value_name = "PROG")]
    name: Option<String>,
    /// Socket of the daemon for programs [default: HEAPTAPE_SOCKET, or that of your own daemon]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    let path = args.socket.or_else(|| std::env::var_os("HEAPTAPE_SOCKET").map(PathBuf::from));
    let path = path.unwrap_or_else(|| Config::default().socket);
    let name = args.name.or_else(|| args.file.as_deref().and_then(program_of)).unwrap_or_default();
    let from: Box<dyn Read> = match args.file.filter(|file| file.as_os_str() != "-") {
        Some(file) => open_file(&file).map_err(|error| anyhow::anyhow!("{}: {error}", file.display()))?,
        None => unpacking(Box::new(stdin()))?,
    };
    let socket = send::connect(&path).map_err(|error| no_answer(&path, "--socket", &error))?;
    let answer = send::send(&socket, &name, from).map_err(|error| anyhow::anyhow!("{}: {error}", path.display()))?;
    if let Some(why) = answer["error"].as_str() {
        anyhow::bail!("the daemon at {} stored nothing: {}", path.display(), clean(why));
    }
    let text = |key: &str| clean(answer[key].as_str().unwrap_or_default()).into_owned();
    println!("{}", text("folder"));
    let stored = format!("{} of {}", bytes(answer["bytes"].as_u64().unwrap_or(0)), text("format"));
    match answer["why"].as_str() {
        None => Ok(Outcome::Done),
        Some(why) => {
            eprintln!("heaptape: stored {stored}, incomplete: {}", clean(why));
            Ok(Outcome::Partial)
        }
    }
}

/// Returns the program that a recording names for one of its files.
fn program_of(file: &Path) -> Option<String> {
    let folder = file.canonicalize().ok()?.parent()?.to_owned();
    let bytes = std::fs::read(folder.parent()?.join(RECORDING)).ok()?;
    let recording: Recording = serde_json::from_slice(&bytes).ok()?;
    let name = folder.file_name()?.to_str()?;
    recording.processes.into_iter().find(|process| process.folder == name).map(|process| process.exe)
}
