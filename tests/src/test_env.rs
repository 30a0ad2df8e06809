//! Paths of the project's folders, of the command and the library under test, and of the folder for
//! what the tests build and keep.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use tempfile::TempDir;

/// Returns the root of the project.
pub fn root() -> &'static Path {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    ROOT.get_or_init(|| Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in a folder").to_owned())
}

/// Returns the folder of the targets' sources.
pub fn programs() -> PathBuf {
    root().join("tests/programs")
}

/// Returns cargo's target folder.
fn cargo_target() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(folder) => root().join(folder),
        None => root().join("target"),
    }
}

/// Returns the folder in which built targets are kept between runs.
pub fn kept() -> PathBuf {
    let folder = cargo_target().join("heaptape-tests");
    std::fs::create_dir_all(&folder).expect("the folder of built targets");
    folder
}

/// Creates a folder that is removed with the value. Its path is short, since paths of sockets have
/// at most 107 bytes.
pub fn folder() -> TempDir {
    tempfile::Builder::new().prefix("heaptape-").tempdir().expect("a temporary folder")
}

/// Returns the path of the command, `heaptape`.
pub fn command() -> &'static Path {
    static COMMAND: OnceLock<PathBuf> = OnceLock::new();
    COMMAND.get_or_init(|| std::env::var_os("HEAPTAPE").map_or_else(built, |path| root().join(path)))
}

/// Returns the path of `libheaptape.so`, the library that the command carries.
pub fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        if let Some(path) = std::env::var_os("HEAPTAPE_LIBRARY") {
            return root().join(path);
        }
        let output = Command::new(command()).arg("library").output().expect("the command can be started");
        assert!(output.status.success(), "heaptape library: {}", String::from_utf8_lossy(&output.stderr));
        PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
    })
}

/// Builds the release of the command and returns its path.
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

/// Gives the programs of tests the same world everywhere, whatever the shell that started the tests has.
///
/// Without `SHELL`, bash asks for the user's entry, by a socket. What a service exports changes what node and
/// curl read at a start.
pub fn for_programs(command: &mut Command) {
    let user = std::env::var_os("USER").unwrap_or_else(|| "root".into());
    command.env("SHELL", "/bin/sh").env("USER", &user).env("LOGNAME", &user);
    if std::env::var_os("HOME").is_none() {
        command.env("HOME", "/");
    }
    for name in ["LD_PRELOAD", "HEAPTAPE_SOCKET", "NODE_EXTRA_CA_CERTS", "NODE_OPTIONS", "BASH_ENV", "ENV"] {
        command.env_remove(name);
    }
}

/// Returns the path of a command in the search path.
pub fn find(name: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// Returns the path of a command that the tests need; `scripts/install-tools` installs it.
pub fn need(name: &str) -> PathBuf {
    find(name).unwrap_or_else(|| panic!("{name} is not installed: run scripts/install-tools"))
}

/// Copies a program that is going to be executed.
///
/// Another process does it: a child that another test starts meanwhile would have the descriptor to
/// which this process writes until it executes its own program, and the kernel executes no file
/// that somebody may write to (`ETXTBSY`).
pub fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let output = Command::new("cp").arg("--").args([from.as_ref(), to.as_ref()]).output().expect("cp can be started");
    assert!(output.status.success(), "cp: {}", String::from_utf8_lossy(&output.stderr));
}

/// Writes a script that is going to be executed, as [`copy`] does.
pub fn script(path: &Path, text: &str) {
    let unfinished = path.with_extension("unfinished");
    std::fs::write(&unfinished, text).expect("a script");
    std::fs::set_permissions(&unfinished, std::fs::Permissions::from_mode(0o755)).expect("its mode");
    copy(&unfinished, path);
    std::fs::remove_file(&unfinished).expect("the first copy goes");
}
