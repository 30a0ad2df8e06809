//! `record --force`, `attach --force`: a recording that is replaced by the next one.

use anyhow::{Context, bail};
use heaptape_formats::recording::RECORDING;
use heaptape_recorder::run::launch::has_recorder;
use std::path::Path;

/// Makes place for a recording, if `dir` is one and the user says that it is to be replaced.
///
/// # Errors
/// It is to be kept, it is no recording, it is still being recorded, or it cannot be removed.
pub fn make_place(dir: &Path, force: bool) -> anyhow::Result<()> {
    let Ok(found) = std::fs::symlink_metadata(dir) else { return Ok(()) };
    let name = dir.display();
    let is_recording = found.is_dir() && dir.join(RECORDING).is_file();
    if !force {
        if is_recording {
            bail!("{name} exists already: choose another folder with -o, or replace it with -f");
        }
        return Ok(());
    }
    if !is_recording {
        bail!("{name} is no recording: -f replaces nothing else; choose another folder with -o");
    }
    if has_recorder(dir) {
        bail!("{name} is still being recorded: choose another folder with -o");
    }
    std::fs::remove_dir_all(dir).with_context(|| format!("{name} cannot be replaced"))
}
