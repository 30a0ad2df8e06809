//! Builds the preload library, and the standalone one for static programs, and hands them to the
//! command as bytes, so that one file is all that is installed.

use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}

/// The two libraries: the name of the file, and the features.
const LIBRARIES: [(&str, &str); 2] = [("libheaptape.so", ""), ("libheaptape-static.so", "standalone")];

/// Empties `folder`, unless what is in it was built from the sources in `root`. Cargo names what it
/// builds by the path within a workspace and compares times of files only, so it would take crates
/// of another checkout that was made later and built earlier (`cargo install --git`) for these.
fn empty_if_of_another_checkout(root: &Path, folder: &Path) {
    let record = folder.join("sources");
    let sources = fs::canonicalize(root).unwrap_or_else(|error| panic!("{}: {error}", root.display()));
    let sources = sources.as_os_str().as_encoded_bytes();
    if fs::read(&record).is_ok_and(|of| of == sources) {
        return;
    }
    if let Err(error) = fs::remove_dir_all(folder) {
        assert!(error.kind() == ErrorKind::NotFound, "{}: {error}", folder.display());
    }
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(&record, sources));
    written.unwrap_or_else(|error| panic!("{}: {error}", record.display()));
}

/// Builds a library into `folder`. It has a target folder and flags of its own: those of the
/// command's build, and a compiler wrapper, must not apply to it.
fn build(root: &Path, folder: &Path, features: &str, offline: bool) -> bool {
    let mut cargo = Command::new(variable("CARGO"));
    cargo.args(["rustc", "--quiet", "--profile", "preload", "-p", "heaptape-preload", "--lib", "--target"]);
    cargo.arg(variable("TARGET")).arg("--manifest-path").arg(root.join("Cargo.toml")).arg("--target-dir").arg(folder);
    // The outer cargo has checked the version of Rust, unless scripts/minimum-rust prevents that.
    cargo.arg("--ignore-rust-version").args(["--features", features]);
    if offline {
        cargo.arg("--offline");
    }
    for name in ["CARGO_ENCODED_RUSTFLAGS", "RUSTFLAGS", "RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "CARGO_TARGET_DIR"]
    {
        cargo.env_remove(name);
    }
    // A build folder that is set for all of a user's builds is locked by the outer cargo.
    cargo.env("CARGO_BUILD_BUILD_DIR", folder);
    cargo.status().is_ok_and(|status| status.success())
}

fn main() {
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR")).join("..");
    let folder = PathBuf::from(variable("OUT_DIR")).join("preload");
    // Not every linker adds one unasked (Zig's does not), and without it nobody finds the symbols:
    // dh_strip makes no -dbgsym package.
    println!("cargo:rustc-link-arg-bins=-Wl,--build-id=sha1");
    for source in ["preload", "Cargo.toml"] {
        println!("cargo:rerun-if-changed={}", root.join(source).display());
    }
    empty_if_of_another_checkout(&root, &folder);
    // One after the other in one folder, so that the second build uses the dependencies of the
    // first one. Two builds of the same dependencies took 2 s of CPU more.
    for (name, features) in LIBRARIES {
        // The packages are there already: the same lock file names them for the command's own
        // build. Else they are fetched.
        let is_built = build(&root, &folder, features, true) || build(&root, &folder, features, false);
        assert!(is_built, "{name} cannot be built");
        let built = folder.join(variable("TARGET")).join("preload").join("libheaptape.so");
        let file = PathBuf::from(variable("OUT_DIR")).join(name);
        fs::copy(&built, &file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
    println!("cargo:rustc-env=HEAPTAPE_LIBRARIES={}", variable("OUT_DIR"));
    // Each `heaptape record` needs the hash, and would take a millisecond for it.
    let library = PathBuf::from(variable("OUT_DIR")).join("libheaptape.so");
    let library = fs::read(&library).unwrap_or_else(|error| panic!("{}: {error}", library.display()));
    let mut hasher = DefaultHasher::new();
    hasher.write(&library);
    println!("cargo:rustc-env=HEAPTAPE_LIBRARY_HASH={:016x}", hasher.finish());
}
