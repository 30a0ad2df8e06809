//! The folders of the sockets and of the state, with the permissions that others need.

use super::config::Config;
use heaptape_recorder::os::permissions::make_folder;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Creates the folder of a file, which only the daemon's user can enter if it is new.
///
/// # Errors
/// The error of the creation, with the path.
pub(crate) fn make_parent_folder(path: &Path) -> io::Result<()> {
    let Some(folder) = path.parent() else { return Ok(()) };
    if let Some(above) = folder.parent() {
        std::fs::create_dir_all(above).map_err(|error| named(above, &error))?;
    }
    make_folder(folder, None).map_err(|error| named(folder, &error))
}

/// Creates the folder of the epochs, also if it was removed while the daemon runs.
///
/// # Errors
/// The error of the creation or of the permissions, with the path.
pub(crate) fn make_state_folder(state: &Path, serves_all: bool) -> io::Result<()> {
    if let Some(above) = state.parent() {
        std::fs::create_dir_all(above).map_err(|error| named(above, &error))?;
    }
    make_folder(state, None).map_err(|error| named(state, &error))?;
    if serves_all {
        // The folders of the users are closed to all others.
        add_permissions(state, 0o011).map_err(|error| named(state, &error))?;
    }
    Ok(())
}

/// Lets all users reach the programs' socket in a folder, if the daemon serves them.
pub(crate) fn open_folder_of(socket: &Path, config: &Config) -> io::Result<()> {
    if config.serves_all { add_permissions(socket.parent().unwrap_or(Path::new("/")), 0o055) } else { Ok(()) }
}

/// Closes the folder of the control socket to others, if it is that socket's own. It may be one
/// that others use, too: that of the programs' socket, or `/tmp`.
pub(crate) fn close_folder_of(control: &Path, config: &Config) {
    let folder = control.parent().unwrap_or(Path::new("/"));
    let is_own = std::fs::read_dir(folder).is_ok_and(|entries| entries.flatten().all(|entry| entry.path() == control));
    if is_own && config.socket.parent() != Some(folder) {
        let _ = std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o700));
    }
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Adds permissions to those of a folder. It may be one that others use, as `/tmp` is: what they
/// may do is not taken away.
fn add_permissions(folder: &Path, wanted: u32) -> io::Result<()> {
    let mode = std::fs::metadata(folder)?.permissions().mode();
    if mode & wanted == wanted {
        return Ok(());
    }
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(mode & 0o7777 | wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_others_keep_their_permissions() {
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        for (before, wanted, after) in
            [(0o1777, 0o055, 0o1777), (0o700, 0o055, 0o755), (0o700, 0o011, 0o711), (0o755, 0o011, 0o755)]
        {
            let set = std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(before));
            set.and_then(|()| add_permissions(folder.path(), wanted)).unwrap_or_else(|error| panic!("{error}"));
            let mode = std::fs::metadata(folder.path()).map(|of| of.permissions().mode() & 0o7777);
            assert_eq!(mode.ok(), Some(after), "{before:o} and {wanted:o}");
        }
    }
}
