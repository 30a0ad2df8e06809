//! `heaptape pack`: copies the files with the symbols of a recording into the recording, so that
//! reports are the same on another machine.

use crate::load::{Failure, open};
use crate::stacks::Module;
use crate::symbols::{Detail, Origin, Symbolizer};
use heaptape_formats::recording::SYSROOT;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io;
use std::path::{Component, Path, PathBuf};

/// The result of [`pack`].
#[derive(Debug, Default)]
pub struct Packed {
    pub files: Vec<PathBuf>,
    /// Total size of the copies in bytes.
    pub bytes: u64,
    /// Descriptions of the files that were not found.
    pub missing: Vec<String>,
}

/// The error of [`pack`].
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The recording cannot be read.
    #[error(transparent)]
    Load(#[from] Failure),
    /// A file cannot be copied.
    #[error("{path}")]
    Io { path: String, source: io::Error },
    /// The recording is not a directory, so no files can be added.
    #[error("{0}: not a directory; only the directory of a recording can be packed")]
    NotADirectory(String),
}

/// Packs a recording. Every file with symbols of its call stacks is copied to its path below
/// `sysroot/` in the recording.
///
/// # Errors
/// Returns an error if the recording is not a directory or cannot be read, or if a file cannot be
/// copied.
pub fn pack(folder: &Path, origin: Origin) -> Result<Packed, Error> {
    if !folder.is_dir() {
        return Err(Error::NotADirectory(folder.display().to_string()));
    }
    let recording = open(folder)?;
    let mut symbols = Symbolizer::from(Detail::Full, origin);
    let root = folder.join(SYSROOT);
    let mut packed = Packed::default();
    let mut copies: BTreeMap<PathBuf, PathBuf> = BTreeMap::new();
    for process in &recording.processes {
        let stacks = process.stacks();
        let used: BTreeSet<u32> = (1..=stacks.len() as u32).map(|number| stacks.site(number).module).collect();
        let modules = used.into_iter().filter_map(|number| stacks.modules.get((number as usize).checked_sub(1)?));
        for module in modules {
            for (number, source) in symbols.sources(module).into_iter().enumerate() {
                let is_module = number == 0 && symbols.is_there(module);
                copies.insert(target(&root, module, &source, is_module), source);
            }
        }
    }
    for (to, from) in copies {
        if to == from {
            continue;
        }
        let failed = |source| Error::Io { path: from.display().to_string(), source };
        std::fs::create_dir_all(to.parent().unwrap_or(&root)).map_err(failed)?;
        packed.bytes += std::fs::copy(&from, &to).map_err(failed)?;
        packed.files.push(to);
    }
    packed.missing = symbols.take_notes();
    Ok(packed)
}

/// Returns the path of a copy: below the root, at the path where the symbolizer searches for it.
fn target(root: &Path, module: &Module, source: &Path, is_module: bool) -> PathBuf {
    let path = match is_module {
        true => PathBuf::from(String::from_utf8_lossy(&module.path).into_owned()),
        // A file from a debuginfod server is in the cache under a generic name.
        false if source.file_name() == Some(OsStr::new("debuginfo")) && module.build_id.len() > 1 => {
            let id: String = module.build_id.iter().map(|byte| format!("{byte:02x}")).collect();
            PathBuf::from(format!("/usr/lib/debug/.build-id/{}/{}.debug", &id[..2], &id[2..]))
        }
        false => source.strip_prefix(root).map_or_else(|_| source.to_path_buf(), Path::to_path_buf),
    };
    let mut copy = root.to_path_buf();
    for component in path.components() {
        match component {
            Component::Normal(name) => copy.push(name),
            Component::ParentDir if copy != root => drop(copy.pop()),
            _ => {}
        }
    }
    copy
}
