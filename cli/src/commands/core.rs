//! `heaptape core`: what a crashed process did with its heap.

use super::common::{Common, frames, print};
use super::newest;
use crate::Outcome;
use heaptape_analyzer::report;
use heaptape_formats::core_file::CoreFile;
use heaptape_reports::core_file::{self, Options};
use std::path::PathBuf;

/// Options of `heaptape core`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// The core file of a process: of a crash, or of gcore. Without a recording, the blocks of glibc's malloc are found in the core itself
    #[arg(value_name = "CORE")]
    core: PathBuf,
    /// Frames of each stack to print; all includes wrappers and the interpreter's own
    #[arg(long, value_name = "N|all", default_value = "8", value_parser = frames)]
    frames: usize,
    #[command(flatten)]
    common: Common,
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    let Args { core, frames, mut common } = args;
    let file = CoreFile::open(&core).map_err(|error| anyhow::anyhow!("{}: {error}", core.display()))?;
    let is_recorded = |newest: PathBuf| {
        let opened = heaptape_analyzer::open(&newest).ok();
        opened.is_some_and(|recording| recording.processes.iter().any(|process| process.about.pid == file.pid))
    };
    if common.names_none() && !newest::newest().is_some_and(is_recorded) {
        common.read_instead(core.clone());
    }
    let is_crash = file.signal.is_some_and(|signal| signal.is_crash());
    let strict = common.strict();
    let mut query = common.query(3)?;
    if file.pid != 0 && query.scope.processes.process.is_none() {
        query.scope.processes.process = Some(file.pid.to_string());
    }
    // What a crash is about is in its registers; of a program that ran on, it is all that is live.
    if !is_crash && query.scope.paths.iter().any(|path| heaptape_analyzer::is_recording(path)) {
        report::ask_of_core(&mut query, &core)?;
    }
    let options = Options { frames, path: &core };
    print(strict, |out, style| core_file::run(&file, &query, options, out, style))
}
