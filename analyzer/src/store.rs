//! The daemon's epochs on disk: which folders a question is about. Their names are times, so their
//! order is that of the epochs.

use crate::load;
use heaptape_formats::pattern::matches;
use heaptape_formats::recording::{DCPI_FOLDER, PROGRAM_PREFIX, RECORDING, Recording, STREAM, is_epoch};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// What is looked for.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Only so many of the newest epochs.
    pub last: Option<usize>,
    /// Not before this one.
    pub from: Option<String>,
    /// Not behind this one.
    pub to: Option<String>,
    /// Only this user's.
    pub user: Option<u32>,
    /// Images of programs of this name.
    pub program: Option<String>,
    /// Images with this label.
    pub label: Option<String>,
    /// A process in each of its epochs.
    pub each: bool,
    /// The folders of DCPI profiles.
    pub dcpi: bool,
}

fn folders(path: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir()
            && let Some(name) = entry.file_name().to_str()
        {
            found.push((name.to_owned(), entry.path()));
        }
    }
    found.sort();
    Ok(found)
}

/// The folders that fit, oldest first.
///
/// # Errors
/// When the daemon's folder cannot be read.
pub fn find(state: &Path, wanted: &Wanted) -> io::Result<Vec<PathBuf>> {
    let mut epochs: Vec<(String, PathBuf)> = Vec::new();
    for (user, path) in folders(state)? {
        let Ok(uid) = user.parse::<u32>() else { continue };
        // Other users' folders are closed to us.
        if wanted.user.is_none_or(|wanted| wanted == uid) {
            epochs.extend(folders(&path).unwrap_or_default().into_iter().filter(|(name, _)| is_epoch(name)));
        }
    }
    epochs.sort();
    // One that begins this moment has nothing to read yet.
    epochs.retain(|(_, path)| std::fs::read_dir(path).is_ok_and(|mut inside| inside.next().is_some()));
    let after = |name: &str| wanted.from.as_deref().is_none_or(|from| name >= from);
    let before = |name: &str| wanted.to.as_deref().is_none_or(|to| name <= to || name.starts_with(to));
    epochs.retain(|(name, _)| after(name) && before(name));
    let skipped = wanted.last.map_or(0, |last| epochs.len().saturating_sub(last));
    let epochs = epochs.into_iter().skip(skipped).map(|(_, path)| path);
    if wanted.dcpi {
        return Ok(epochs.map(|path| path.join(DCPI_FOLDER)).filter(|path| path.is_dir()).collect());
    }
    if wanted.program.is_none() && wanted.label.is_none() {
        return Ok(epochs.collect());
    }
    let mut found: Vec<(Option<(u32, u64)>, PathBuf)> = Vec::new();
    for epoch in epochs {
        found.extend(images(&epoch, wanted));
    }
    if !wanted.each {
        // A process counts on from epoch to epoch: its last image says everything.
        let mut last: BTreeMap<(u32, u64), usize> = BTreeMap::new();
        for (place, (process, _)) in found.iter().enumerate() {
            if let Some(process) = process {
                last.insert(*process, place);
            }
        }
        let is_last = |place, process: Option<(u32, u64)>| process.is_none_or(|one| last.get(&one) == Some(&place));
        let each = found.into_iter().enumerate();
        let kept = each.filter_map(|(place, (process, path))| is_last(place, process).then_some(path));
        return Ok(kept.collect());
    }
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// The images of an epoch that fit, each with the process that it is of.
fn images(epoch: &Path, wanted: &Wanted) -> Vec<(Option<(u32, u64)>, PathBuf)> {
    let read = std::fs::read(epoch.join(RECORDING)).ok();
    let about: Recording = read.and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
    let mut found = Vec::new();
    for (name, path) in folders(epoch).unwrap_or_default() {
        let listed = about.images.iter().find(|image| image.folder == name);
        let exe = listed.map(|image| image.exe.as_str()).unwrap_or_default();
        let program = exe.rsplit('/').next().unwrap_or_default();
        // PID.NAME, all.NAME: the name that the kernel gave the process.
        let short = name.split_once('.').map_or(name.as_str(), |(_, short)| short);
        let is_it = |pattern: &String| {
            matches(pattern.as_bytes(), program.as_bytes()) || matches(pattern.as_bytes(), short.as_bytes())
        };
        if name == DCPI_FOLDER || !wanted.program.as_ref().is_none_or(is_it) {
            continue;
        }
        if let Some(label) = &wanted.label {
            let sent = listed.filter(|image| image.origin == STREAM);
            let fits = match sent {
                Some(image) => image.label == *label,
                None => load::Image::open(&path, None).is_ok_and(|image| image.tape.process.label.lossy() == *label),
            };
            if !fits {
                continue;
            }
        }
        let process =
            listed.filter(|_| !name.starts_with(PROGRAM_PREFIX)).map(|image| (image.pid, image.started_unix_ns));
        found.push((process, path));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epochs_by_range_and_number() {
        let place = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        for name in
            ["7/202611210800", "7/202611210900", "7/202611210900-0002", "7/flight", "8/202611220000", "x/202611210800"]
        {
            std::fs::create_dir_all(place.path().join(name).join("1.true")).unwrap_or_else(|error| panic!("{error}"));
        }
        // Begun this moment: it is not listed yet.
        std::fs::create_dir(place.path().join("8/202611220001")).unwrap_or_else(|error| panic!("{error}"));
        let find = |wanted: Wanted| -> Vec<String> {
            let found = find(place.path(), &wanted).unwrap_or_else(|error| panic!("{error}"));
            found.iter().map(|path| path.file_name().unwrap_or_default().to_string_lossy().into_owned()).collect()
        };
        let all = ["202611210800", "202611210900", "202611210900-0002", "202611220000"];
        assert_eq!(find(Wanted::default()), all);
        assert_eq!(find(Wanted { last: Some(1), ..Wanted::default() }), all[3..]);
        assert_eq!(find(Wanted { user: Some(7), last: Some(2), ..Wanted::default() }), all[1..3]);
        let range = Wanted { from: Some("2026112109".into()), to: Some("20261121".into()), ..Wanted::default() };
        assert_eq!(find(range), all[1..3]);
    }
}
