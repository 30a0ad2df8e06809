//! The preload library is inside this binary. The dynamic linker needs a file: it is written once,
//! into a folder that only its owner can write to, under a name with a hash of its content.

use heaptape_formats::replace::{Durability, Writers, replace_file};
use std::fs::{DirBuilder, File, Permissions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

static LIBRARY: &[u8] = include_bytes!(concat!(env!("HEAPTAPE_LIBRARIES"), "/libheaptape.so"));
/// The library that the recorder maps into static programs. It needs no file.
pub(crate) static STANDALONE: &[u8] = include_bytes!(concat!(env!("HEAPTAPE_LIBRARIES"), "/libheaptape-static.so"));
/// Environment variable with the path of another library to preload.
const ENV_LIBRARY: &str = "HEAPTAPE_LIBRARY";

/// Returns the path of the library's file, and writes it if needed.
///
/// # Errors
/// No folder can hold it, or HEAPTAPE_LIBRARY names no file.
pub(crate) fn path() -> anyhow::Result<PathBuf> {
    if let Some(path) = std::env::var_os(ENV_LIBRARY).filter(|path| !path.is_empty()) {
        let path = std::path::absolute(path)?;
        anyhow::ensure!(path.is_file(), "{} ({ENV_LIBRARY}) is not a file", path.display());
        return Ok(path);
    }
    if let Some(path) = installed() {
        return Ok(path);
    }
    let mut last = anyhow::anyhow!("no folder can hold the preload library");
    for folder in folders() {
        match write(&folder) {
            Ok(path) => return Ok(path),
            Err(error) => {
                last = anyhow::Error::new(error)
                    .context(format!("cannot write the preload library to {}", folder.display()))
            }
        }
    }
    Err(last)
}

/// Returns the library that a package installed beside this command (`bin/heaptape`,
/// `lib/heaptape/libheaptape.so`), if it is the one inside, and only its owner can change it.
fn installed() -> Option<PathBuf> {
    let folder = std::env::current_exe().ok()?.parent()?.parent()?.join("lib").join("heaptape");
    let path = folder.join("libheaptape.so");
    let is_safe = |path: &Path| {
        let found = std::fs::symlink_metadata(path).ok();
        found.is_some_and(|found| [0, owner()].contains(&found.uid()) && found.mode() & 0o022 == 0)
    };
    let is_ours = is_usable(&path) && is_safe(&folder) && is_safe(&path);
    (is_ours && is_library(&path)).then_some(path)
}

/// Returns whether a file has the bytes of the library. It reads few bytes at once: new memory for
/// the whole file would take more time than the comparison.
fn is_library(path: &Path) -> bool {
    let Ok(mut file) = File::open(path) else { return false };
    let mut rest = LIBRARY;
    let mut bytes = [0; 64 << 10];
    loop {
        match file.read(&mut bytes) {
            Ok(0) => return rest.is_empty(),
            Ok(count) => match rest.split_at_checked(count) {
                Some((next, after)) if *next == bytes[..count] => rest = after,
                _ => return false,
            },
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return false,
        }
    }
}

/// Returns whether LD_PRELOAD can name a path: it separates paths by blanks and colons.
fn is_usable(path: &Path) -> bool {
    path.is_absolute() && !path.as_os_str().as_bytes().iter().any(|byte| b" \t\n:".contains(byte))
}

/// Returns the folders to try.
fn folders() -> impl Iterator<Item = PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let own = format!("heaptape-{}", owner());
    let folders = [
        // A program that root records may drop its privileges, and must still be able to load the
        // library.
        is_for_all().then(|| PathBuf::from("/var/cache/heaptape")),
        variable("XDG_CACHE_HOME").map(|folder| folder.join("heaptape")),
        variable("HOME").map(|folder| folder.join(".cache").join("heaptape")),
        variable("TMPDIR").map(|folder| folder.join(&own)),
        Some(PathBuf::from("/tmp").join(&own)),
        Some(PathBuf::from("/tmp").join(format!("{own}-{}", std::process::id()))),
    ];
    folders.into_iter().flatten().filter(|folder| is_usable(folder))
}

/// Returns the folder in which the recorder stores the symbols of large programs, unless there is
/// none that belongs to the user.
pub(crate) fn symbols_folder() -> Option<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|folder| folder.is_absolute());
    let folder = match variable("XDG_CACHE_HOME") {
        Some(folder) => folder.join("heaptape"),
        None if is_for_all() => PathBuf::from("/var/cache/heaptape"),
        None => variable("HOME")?.join(".cache").join("heaptape"),
    };
    Some(folder.join("symbols"))
}

/// Returns the effective user id: the owner of this process's folder in /proc.
fn owner() -> u32 {
    std::fs::metadata("/proc/self").map_or(0, |me| me.uid())
}

/// Returns whether processes of other users may have to load it.
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
        return Err(std::io::Error::new(std::io::ErrorKind::PermissionDenied, "other users can write to this folder"));
    }
    let path = folder.join(concat!("libheaptape-", env!("HEAPTAPE_LIBRARY_HASH"), ".so"));
    if is_for_all() {
        std::fs::set_permissions(folder, Permissions::from_mode(0o755))?;
    }
    if is_library(&path) {
        return Ok(path);
    }
    replace_file(&path, Writers::Several, Durability::BeforeRename, |file| {
        file.write_all(LIBRARY)?;
        if is_for_all() { file.set_permissions(Permissions::from_mode(0o644)) } else { Ok(()) }
    })?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_bytes_are_the_library() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("library");
        assert!(!is_library(&path));
        let mut other = LIBRARY.to_vec();
        other[LIBRARY.len() - 1] ^= 1;
        let longer = [LIBRARY, b"x"].concat();
        for (bytes, is_same) in
            [(LIBRARY, true), (&LIBRARY[..LIBRARY.len() - 1], false), (&other, false), (&longer, false), (b"", false)]
        {
            std::fs::write(&path, bytes).expect("a file");
            assert_eq!(is_library(&path), is_same, "{} bytes", bytes.len());
        }
    }
}
