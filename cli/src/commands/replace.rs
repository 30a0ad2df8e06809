//! `record --force`, `attach --force`: a recording that is replaced by the next one.

use anyhow::{Context, bail};
use heaptape_formats::recording::{
    CRASH_REPORT, JOURNAL, PROFILE, README, RECORDING, REFERENCES, RESERVE, Recording, SYMBOLS, SYMBOLS_LOCK, SYSROOT,
    TAPE, TRACE,
};
use heaptape_recorder::run::launch::has_recorder;
use std::path::{Path, PathBuf};

/// Makes place for a recording, if `dir` is one and the user says that it is to be replaced.
///
/// # Errors
/// It is to be kept, it is no recording, it is still being recorded, or it cannot be removed.
pub(crate) fn make_place(dir: &Path, force: bool) -> anyhow::Result<()> {
    let Ok(found) = std::fs::symlink_metadata(dir) else { return Ok(()) };
    let name = dir.display();
    let is_recording = found.is_dir() && dir.join(RECORDING).is_file();
    if !force {
        if is_recording {
            bail!("{name} exists already: choose another folder with -o, or replace it with -f");
        }
        return Ok(());
    }
    let about = std::fs::read(dir.join(RECORDING)).unwrap_or_default();
    if !is_recording || serde_json::from_slice::<Recording>(&about).is_err() {
        bail!("{name} is no recording: -f replaces nothing else; choose another folder with -o");
    }
    if has_recorder(dir) {
        bail!("{name} is still being recorded: choose another folder with -o");
    }
    if let Some(other) = foreign(dir)? {
        bail!(
            "{} is in {name} and not of the recording: move it away, or choose another folder with -o",
            other.display()
        );
    }
    std::fs::remove_dir_all(dir).with_context(|| format!("{name} cannot be replaced"))
}

/// Returns something in the folder of a recording that heaptape does not write there, if any.
fn foreign(dir: &Path) -> anyhow::Result<Option<PathBuf>> {
    const FILES: [&str; 9] =
        [RECORDING, README, CRASH_REPORT, REFERENCES, RESERVE, TAPE, SYMBOLS, SYMBOLS_LOCK, SYSROOT];
    // With the suffix of a codec, or a number.
    const PREFIXES: [&str; 3] = [TRACE, PROFILE, JOURNAL];
    let list = |dir: &Path| -> anyhow::Result<Vec<PathBuf>> {
        let entries = std::fs::read_dir(dir).with_context(|| format!("{} cannot be read", dir.display()))?;
        Ok(entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<_, _>>()?)
    };
    let is_ours = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        FILES.contains(&&*name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    };
    for path in list(dir)?.into_iter().filter(|path| !is_ours(path)) {
        // The folder of a process has files only.
        let is_folder = path.symlink_metadata().is_ok_and(|found| found.is_dir());
        let Some(other) = (if is_folder { list(&path)?.into_iter().find(|path| !is_ours(path)) } else { Some(path) })
        else {
            continue;
        };
        return Ok(Some(other));
    }
    Ok(None)
}
