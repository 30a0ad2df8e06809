//! The folder of the socket through which the programs of one `heaptape record` find their recorder.

use crate::attach;
use crate::launch::{Refused, refuse};
use nix::errno::Errno;
use std::fs::DirBuilder;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A folder for the socket that nobody else can look into; goes away with its content.
#[derive(Debug)]
pub struct SocketDir(PathBuf);

/// Start of its name; eight hexadecimal digits follow.
const PREFIX: &str = "heaptape-";
const SOCKET: &str = "socket";

impl SocketDir {
    /// Makes one in the first directory that takes it: XDG_RUNTIME_DIR, TMPDIR, `/tmp`.
    pub fn make() -> Result<SocketDir, Refused> {
        let places = ["XDG_RUNTIME_DIR", "TMPDIR"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
        let mut last = None;
        for place in places.chain([PathBuf::from("/tmp")]) {
            sweep(&place);
            let random = RandomState::new().hash_one(std::process::id());
            let path = place.join(format!("{PREFIX}{:08x}", random as u32));
            // The socket's address holds 107 bytes.
            if !path.is_absolute() || path.as_os_str().len() > 96 {
                continue;
            }
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(SocketDir(path)),
                Err(error) => last = Some(refuse(&path, &error)),
            }
        }
        Err(last.unwrap_or_else(|| Refused::new("no directory for the socket".into(), 2)))
    }

    /// Path of the socket.
    pub fn socket(&self) -> PathBuf {
        self.0.join(SOCKET)
    }
}

/// Removes the socket folders in a folder that recorders left behind when they were killed: our own folders of that name, with a socket that nobody
/// listens at. One without a socket belongs to a recorder that is just starting, unless it is old.
fn sweep(place: &Path) {
    const STARTING: Duration = Duration::from_secs(60);
    let own = nix::unistd::geteuid().as_raw();
    for entry in std::fs::read_dir(place).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.as_bytes().strip_prefix(PREFIX.as_bytes()).unwrap_or_default();
        let Ok(meta) = entry.metadata() else { continue };
        let is_ours = number.len() == 8 && number.iter().all(u8::is_ascii_hexdigit) && meta.is_dir();
        if !is_ours || meta.uid() != own || meta.mode() & 0o777 != 0o700 {
            continue;
        }
        let socket = entry.path().join(SOCKET);
        let age = meta.modified().ok().and_then(|time| time.elapsed().ok()).unwrap_or_default();
        let is_dead = match attach::knock(&socket, nix::sys::socket::SockType::SeqPacket) {
            Err(Errno::ECONNREFUSED) => true,
            Err(Errno::ENOENT) => age > STARTING,
            _ => false,
        };
        if is_dead {
            // Nothing but the socket: a folder that holds anything else is not ours.
            let _ = std::fs::remove_file(&socket);
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}

impl Drop for SocketDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
