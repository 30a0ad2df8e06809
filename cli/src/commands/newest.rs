//! The recordings that commands read when none is named: the newest ones of the current folder.

use anyhow::bail;
use heaptape_analyzer::text::clean;
use heaptape_formats::recording::RECORDING;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Extension of a recording in one file.
const PACKED: &str = "heaptape";

/// Returns the paths; if there is none, the newest recording of the current folder, which is named
/// on standard error.
pub(crate) fn or_newest(paths: Vec<PathBuf>) -> anyhow::Result<Vec<PathBuf>> {
    if !paths.is_empty() {
        return Ok(paths);
    }
    let mut found = recordings(Path::new("."));
    let Some(newest) = found.pop() else {
        bail!("no recording in this folder: name one, or make one with `heaptape record -- PROG`")
    };
    eprintln!("heaptape: {}, the newest recording here", clean(&newest.display().to_string()));
    Ok(vec![newest])
}

/// Returns the newest recording of the current folder.
pub(super) fn newest() -> Option<PathBuf> {
    recordings(Path::new(".")).pop()
}

/// Returns the two newest recordings of the current folder, the older one first.
pub(super) fn two() -> anyhow::Result<(PathBuf, PathBuf)> {
    let mut found = recordings(Path::new("."));
    let (Some(new), Some(old)) = (found.pop(), found.pop()) else {
        bail!("fewer than two recordings in this folder: name two, or two points in time of one (--from, --until)")
    };
    let name = |path: &Path| clean(&path.display().to_string()).into_owned();
    eprintln!("heaptape: from {} to {}, the newest recordings here", name(&old), name(&new));
    Ok((old, new))
}

/// Returns the recordings in a folder, the newest last. The folder may be one itself.
fn recordings(folder: &Path) -> Vec<PathBuf> {
    let changed =
        |path: &Path| path.metadata().ok().filter(|about| about.is_file()).and_then(|about| about.modified().ok());
    if changed(&folder.join(RECORDING)).is_some() {
        return vec![folder.to_owned()];
    }
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| PathBuf::from(entry.file_name()));
    let mut found: Vec<(SystemTime, PathBuf)> = names
        .filter_map(|name| {
            let path = folder.join(&name);
            if let Some(time) = changed(&path.join(RECORDING)) {
                return Some((time, name));
            }
            // `record --pack` writes both.
            let is_packed = path.extension().is_some_and(|extension| extension == PACKED);
            let is_twin = path.with_extension("").join(RECORDING).is_file();
            changed(&path).filter(|_| is_packed && !is_twin).map(|time| (time, name))
        })
        .collect();
    found.sort();
    found.into_iter().map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::time::Duration;

    #[test]
    fn newest_recording_is_last_and_other_folders_are_none() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str, seconds: u64| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            let file = File::create(path).expect("a file");
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).expect("a time");
        };
        at("b/recording.json", 20);
        at("a/recording.json", 30);
        at("a.heaptape", 31);
        at("c.heaptape", 10);
        at("src/main.c", 99);
        at("notes.txt", 99);
        assert_eq!(recordings(folder.path()), ["c.heaptape", "b", "a"].map(PathBuf::from));
        let inside = folder.path().join("a");
        assert_eq!(recordings(&inside), [inside.as_path()]);
        assert_eq!(recordings(&folder.path().join("src")), [] as [PathBuf; 0]);
    }
}
