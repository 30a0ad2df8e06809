//! Places: the project's folders, the command and the library under test, a folder for what the
//! tests build and keep.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use tempfile::TempDir;

/// The project's root.
pub fn root() -> &'static Path {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    ROOT.get_or_init(|| Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate lies in a folder").to_owned())
}

/// The folder of the targets' sources.
pub fn programs() -> PathBuf {
    root().join("tests/programs")
}

/// Where cargo builds.
fn cargo_target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => root().join(folder),
        None => root().join("target"),
    }
}

/// Where targets are kept between runs.
pub fn kept() -> PathBuf {
    let folder = cargo_target().join("heaptape-tests");
    std::fs::create_dir_all(&folder).expect("the folder of built targets");
    folder
}

/// A folder that goes away with the value. Its path is short: socket paths end at 107 bytes.
pub fn folder() -> TempDir {
    tempfile::Builder::new().prefix("heaptape-").tempdir().expect("a temporary folder")
}

/// The command, `heaptape`.
pub fn command() -> &'static Path {
    static COMMAND: OnceLock<PathBuf> = OnceLock::new();
    COMMAND.get_or_init(|| std::env::var_os("HEAPTAPE").map_or_else(built, |path| root().join(path)))
}

/// The library, `libheaptape.so`: the very one that the command carries.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        if let Some(path) = std::env::var_os("HEAPTAPE_LIBRARY") {
            return root().join(path);
        }
        let said = Command::new(command()).arg("library").output().expect("the command can be started");
        assert!(said.status.success(), "heaptape library: {}", String::from_utf8_lossy(&said.stderr));
        PathBuf::from(String::from_utf8_lossy(&said.stdout).trim())
    })
}

/// The release build of the command.
fn built() -> PathBuf {
    let status = Command::new(env!("CARGO"))
        .args(["build", "--release", "-p", "heaptape"])
        .current_dir(root())
        .env_remove("RUSTFLAGS")
        .status()
        .expect("cargo can be started");
    assert!(status.success(), "cargo build: {status}");
    cargo_target().join("release/heaptape")
}

/// Where a command lies, by the search path.
pub fn find(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// The command, which the tests need: `scripts/install-tools` installs it.
pub fn need(name: &str) -> PathBuf {
    find(name).unwrap_or_else(|| panic!("{name} is not installed: run scripts/install-tools"))
}
