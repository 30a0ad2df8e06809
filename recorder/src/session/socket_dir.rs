//! The folder of the socket through which the programs of one `heaptape record` find their
//! recorder.
//!
//! A recorded program may change its user, so any user can connect to the socket, but only with its
//! name, which is secret: 128 random bits, in a folder that other users can traverse but not list.
//! Recorded programs have the name in their environment, which the kernel shows only to their own
//! user and to root. The kernel's list of sockets shows the name to which a socket was bound, so
//! the socket is renamed before others can traverse the folder
//! ([`listener::Listener::open_unlisted`]).
//!
//! An abstract socket could be reached from another root directory too, but `/proc/net/unix` shows
//! its name to every process of the network namespace, containers among them. Each of them could
//! connect and keep the recorder busy. So none is used. A process that cannot reach the socket is
//! named in the recording: see [`wire::board`].

use crate::session::listener;
use crate::target::proc;
use nix::errno::Errno;
use nix::sys::socket::SockType;
use std::fs::{DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The folder of the socket. It is removed on drop with all files in it.
#[derive(Debug)]
pub(crate) struct SocketDir {
    folder: PathBuf,
    socket: PathBuf,
    /// The folder, locked: services that clean up temporary files leave a locked folder alone,
    /// which would recognize a socket in use only by its name. So do other recorders while the
    /// next survivor process does not listen yet. The survivor process has the lock, too.
    _lock: Option<File>,
}

/// Why no folder for the socket could be created.
#[derive(Debug, thiserror::Error)]
pub enum SocketDirError {
    /// A path cannot be used.
    #[error("{}: {error}", .path.display())]
    Path {
        /// Path of the file or folder.
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    /// The name of each directory is too long or relative.
    #[error("no directory can hold the recorder's socket")]
    NoDirectory,
}

impl SocketDirError {
    /// Returns the conversion of an error of the system about a path.
    fn of(path: &Path) -> impl Fn(io::Error) -> SocketDirError {
        move |error| SocketDirError::Path { path: path.to_owned(), error }
    }
}

/// Prefix of the folder's name; eight hexadecimal digits follow.
const PREFIX: &str = "heaptape-";

impl SocketDir {
    /// Creates a folder in the first of these directories where that is possible: XDG_RUNTIME_DIR,
    /// TMPDIR, `/tmp`. For root, whose programs can change their user, directories that other users
    /// can traverse come first.
    pub(crate) fn make() -> Result<SocketDir, SocketDirError> {
        let mut directories: Vec<PathBuf> = directories().collect();
        if nix::unistd::geteuid().is_root() {
            directories.sort_by_key(|directory| !is_traversable(directory));
        }
        let mut last = None;
        for directory in directories {
            let (number, name) = random().map_err(SocketDirError::of(Path::new(RANDOM)))?;
            let folder = directory.join(format!("{PREFIX}{number:08x}"));
            let socket = folder.join(format!("{name:032x}"));
            // The address of a socket holds 107 bytes.
            if !folder.is_absolute() || socket.as_os_str().len() > 107 {
                continue;
            }
            match DirBuilder::new().mode(0o700).create(&folder) {
                Ok(()) => {
                    let lock = File::open(&folder).ok().filter(|folder| folder.lock_shared().is_ok());
                    return Ok(SocketDir { folder, socket, _lock: lock });
                }
                Err(error) => last = Some(SocketDirError::of(&folder)(error)),
            }
        }
        Err(last.unwrap_or(SocketDirError::NoDirectory))
    }

    /// Removes the folders that killed recorders left in the same directory.
    pub(crate) fn remove_stale(&self) {
        self.folder.parent().into_iter().for_each(|directory| remove_stale(directory, &self.folder));
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }
}

/// The variables that name a directory for the folder of a socket.
const VARIABLES: [&str; 2] = ["XDG_RUNTIME_DIR", "TMPDIR"];

/// Returns the directories in which there may be a folder of a socket.
fn directories() -> impl Iterator<Item = PathBuf> {
    let named = VARIABLES.into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    named.chain([PathBuf::from("/tmp")])
}

/// Returns whether this is the name of a folder of a socket.
fn is_name(name: &[u8]) -> bool {
    let number = name.strip_prefix(PREFIX.as_bytes()).unwrap_or_default();
    number.len() == 8 && number.iter().all(u8::is_ascii_hexdigit)
}

/// Returns the sockets of the recorders of these users, also of killed ones. A recorder may have
/// started with another `TMPDIR` than ours: so its environment counts, too.
pub(crate) fn sockets_of(users: &[u32]) -> Vec<PathBuf> {
    let recorders = proc::with_name(b"heaptape");
    let recorders = recorders.into_iter().filter(|pid| proc::owner(*pid).is_some_and(|user| users.contains(&user)));
    let theirs = recorders.flat_map(|pid| proc::variable(pid, &VARIABLES)).flatten().map(PathBuf::from);
    let mut all: Vec<PathBuf> = directories().chain(theirs).collect();
    all.sort_unstable();
    all.dedup();
    let entries = all.into_iter().filter_map(|directory| std::fs::read_dir(directory).ok()).flatten().flatten();
    // A directory may hold thousands of files of others.
    let folders = entries.filter(|entry| is_name(entry.file_name().as_bytes()));
    let owned = folders.filter(|entry| entry.metadata().is_ok_and(|meta| meta.is_dir() && users.contains(&meta.uid())));
    let inside = owned.filter_map(|folder| std::fs::read_dir(folder.path()).ok()).flatten().flatten();
    inside.map(|socket| socket.path()).collect()
}

const RANDOM: &str = "/dev/urandom";

/// Returns random numbers for the names of the folder and the socket.
fn random() -> io::Result<(u32, u128)> {
    let mut bytes = [0; 20];
    File::open(RANDOM)?.read_exact(&mut bytes)?;
    let (number, name) = bytes.split_at(4);
    let number = number.iter().fold(0, |number, byte| number << 8 | u32::from(*byte));
    Ok((number, name.iter().fold(0, |name, byte| name << 8 | u128::from(*byte))))
}

/// Returns whether all users can traverse a directory and those above it.
fn is_traversable(directory: &Path) -> bool {
    let Ok(directory) = directory.canonicalize() else { return false };
    directory.ancestors().all(|folder| folder.metadata().is_ok_and(|folder| folder.mode() & 0o001 != 0))
}

/// Removes the socket folders of killed recorders: folders of this user with such a name that
/// nobody has locked and whose socket accepts no connections. A folder without a socket belongs to
/// a recorder that is just starting, unless it is old. `own_folder` stays.
fn remove_stale(directory: &Path, own_folder: &Path) {
    const STARTING: Duration = Duration::from_secs(60);
    let own = nix::unistd::geteuid().as_raw();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        // The folder may hold thousands of files of others.
        if !is_name(entry.file_name().as_bytes()) || entry.path() == own_folder {
            continue;
        }
        let Ok(meta) = entry.metadata() else { continue };
        if !meta.is_dir() || meta.uid() != own || !matches!(meta.mode() & 0o777, listener::TRAVERSABLE | 0o700) {
            continue;
        }
        let Some(_unused) = File::open(entry.path()).ok().filter(|folder| folder.try_lock().is_ok()) else { continue };
        let mut content = std::fs::read_dir(entry.path()).into_iter().flatten().flatten().map(|file| file.path());
        let age = meta.modified().ok().and_then(|time| time.elapsed().ok()).unwrap_or_default();
        match content.next() {
            None if age > STARTING => {}
            // The folder holds nothing but the socket; any other file means that it is not ours.
            Some(socket)
                if content.next().is_none()
                    && listener::probe(&socket, SockType::SeqPacket)
                        .is_err_and(|error| error == Errno::ECONNREFUSED)
                    && (age > STARTING || socket.file_name() != Some(listener::INITIAL_NAME.as_ref())) =>
            {
                let _ = std::fs::remove_file(&socket);
            }
            _ => continue,
        }
        let _ = std::fs::remove_dir(entry.path());
    }
}

impl Drop for SocketDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    /// The socket of a killed survivor process accepts no connections until the next one listens.
    #[test]
    fn only_a_folder_that_nobody_uses_is_stale() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("heaptape-0123abcd");
        DirBuilder::new().mode(0o700).create(&folder).unwrap();
        drop(UnixListener::bind(folder.join("name")).unwrap());
        let lock = File::open(&folder).unwrap();
        lock.lock_shared().unwrap();
        let own = Path::new("own");
        remove_stale(directory.path(), own);
        assert!(folder.join("name").exists());
        drop(lock);
        remove_stale(directory.path(), &folder);
        assert!(folder.join("name").exists());
        remove_stale(directory.path(), own);
        assert!(!folder.exists());
    }
}
