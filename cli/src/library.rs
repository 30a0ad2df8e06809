//! The preload library inside this binary, and the file that the loader needs: written once into a folder that only we can write to,
//! under a name that its content gives it.

use std::fs::{DirBuilder, OpenOptions, Permissions};
use std::hash::{DefaultHasher, Hasher};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

static LIBRARY: &[u8] = include_bytes!(env!("HEAPTAPE_LIBRARY_FILE"));
/// Environment variable: another library to preload.
const ENV_LIBRARY: &str = "HEAPTAPE_LIBRARY";

/// Where the library lies.
pub fn path() -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os(ENV_LIBRARY).filter(|path| !path.is_empty()) {
        let path = std::path::absolute(path)?;
        anyhow::ensure!(path.is_file(), "{} ({ENV_LIBRARY}) is no file", path.display());
        return Ok(path);
    }
    let mut last = anyhow::anyhow!("no folder for the preload library");
    for folder in folders() {
        match write(&folder) {
            Ok(path) => return Ok(path),
            Err(error) => {
                last = anyhow::Error::new(error).context(format!("{}: the preload library", folder.display()))
            }
        }
    }
    Err(last)
}

/// Folders to try. LD_PRELOAD separates by blanks and colons, so no path may have any.
fn folders() -> impl Iterator<Item = PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let own = format!("heaptape-{}", owner());
    let places = [
        // What the superuser records may give its rights up, and its loader must still find the library.
        is_for_all().then(|| PathBuf::from("/var/cache/heaptape")),
        variable("XDG_CACHE_HOME").map(|place| place.join("heaptape")),
        variable("HOME").map(|place| place.join(".cache").join("heaptape")),
        variable("TMPDIR").map(|place| place.join(&own)),
        Some(PathBuf::from("/tmp").join(&own)),
        Some(PathBuf::from("/tmp").join(format!("{own}-{}", std::process::id()))),
    ];
    let usable = |place: &PathBuf| {
        place.is_absolute() && !place.as_os_str().as_bytes().iter().any(|byte| b" \t\n:".contains(byte))
    };
    places.into_iter().flatten().filter(usable)
}

/// Our user's number: that of a process file which the kernel just made for us.
fn owner() -> u32 {
    std::fs::metadata("/proc/self").map_or(0, |me| me.uid())
}

/// Whether other users' processes may come to load it.
fn is_for_all() -> bool {
    owner() == 0
}

fn write(folder: &Path) -> std::io::Result<PathBuf> {
    if let Some(above) = folder.parent() {
        std::fs::create_dir_all(above)?;
    }
    if let Err(error) = DirBuilder::new().mode(0o700).create(folder)
        && error.kind() != std::io::ErrorKind::AlreadyExists
    {
        return Err(error);
    }
    let found = std::fs::symlink_metadata(folder)?;
    if !found.is_dir() || found.uid() != owner() || found.mode() & 0o022 != 0 {
        return Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, "others can write to this folder"));
    }
    let mut hasher = DefaultHasher::new();
    hasher.write(LIBRARY);
    let path = folder.join(format!("libheaptape-{:016x}.so", hasher.finish()));
    if is_for_all() {
        std::fs::set_permissions(folder, Permissions::from_mode(0o755))?;
    }
    if std::fs::read(&path).is_ok_and(|bytes| bytes == LIBRARY) {
        return Ok(path);
    }
    let temporary = folder.join(format!(".new-{}", std::process::id()));
    let _ = std::fs::remove_file(&temporary);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    file.write_all(LIBRARY)?;
    if is_for_all() {
        file.set_permissions(Permissions::from_mode(0o644))?;
    }
    std::fs::rename(&temporary, &path)?;
    Ok(path)
}
