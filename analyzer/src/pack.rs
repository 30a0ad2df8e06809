//! `heaptape pack`: copies what names a recording's frames into the recording, so that it says the same on another machine.

use crate::load::{Failure, open};
use crate::stacks::Module;
use crate::symbols::{Detail, Origin, Symbolizer};
use heaptape_formats::recording::SYSROOT;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::io;
use std::path::{Component, Path, PathBuf};

/// What was packed.
#[derive(Debug, Default)]
pub struct Packed {
    /// Files copied, where they lie now.
    pub files: Vec<PathBuf>,
    /// Their bytes.
    pub bytes: u64,
    /// What could not be found, in words.
    pub missing: Vec<String>,
}

/// Why nothing was packed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The recording cannot be read.
    #[error(transparent)]
    Load(#[from] Failure),
    /// A file cannot be copied.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: String,
        /// What the system said.
        error: io::Error,
    },
    /// It is no folder that files could be put into.
    #[error("{0}: only a recording's folder can be packed")]
    NotADirectory(String),
}

/// Packs a recording: every file that names a frame of one of its stacks goes below `sysroot/`, under its own path.
///
/// # Errors
/// When the recording cannot be read, or a file not be copied.
pub fn pack(folder: &Path, origin: Origin) -> Result<Packed, Error> {
    if !folder.is_dir() {
        return Err(Error::NotADirectory(folder.display().to_string()));
    }
    let recording = open(folder)?;
    let mut symbols = Symbolizer::from(Detail::Full, origin);
    let root = folder.join(SYSROOT);
    let mut packed = Packed::default();
    let mut copies: BTreeMap<PathBuf, PathBuf> = BTreeMap::new();
    for image in &recording.images {
        let stacks = image.stacks();
        let used: BTreeSet<u32> = (1..=stacks.len() as u32).map(|number| stacks.site(number).module).collect();
        let modules = used.into_iter().filter_map(|place| stacks.modules.get((place as usize).checked_sub(1)?));
        for module in modules {
            for (number, source) in symbols.sources(module).into_iter().enumerate() {
                let own = number == 0 && symbols.is_there(module);
                copies.insert(target(&root, module, &source, own), source);
            }
        }
    }
    for (to, from) in copies {
        if to == from {
            continue;
        }
        let failed = |error| Error::Io { path: from.display().to_string(), error };
        std::fs::create_dir_all(to.parent().unwrap_or(&root)).map_err(failed)?;
        packed.bytes += std::fs::copy(&from, &to).map_err(failed)?;
        packed.files.push(to);
    }
    packed.missing = symbols.take_notes();
    Ok(packed)
}

/// Where a file goes: below the root under the path where it will be looked for.
fn target(root: &Path, module: &Module, source: &Path, own: bool) -> PathBuf {
    let wanted = match own {
        true => PathBuf::from(String::from_utf8_lossy(&module.path).into_owned()),
        // What a server gave lies in its cache under a name that says nothing.
        false if source.file_name() == Some(OsStr::new("debuginfo")) && module.build_id.len() > 1 => {
            let id: String = module.build_id.iter().map(|byte| format!("{byte:02x}")).collect();
            PathBuf::from(format!("/usr/lib/debug/.build-id/{}/{}.debug", &id[..2], &id[2..]))
        }
        false => source.strip_prefix(root).map_or_else(|_| source.to_path_buf(), Path::to_path_buf),
    };
    let mut below = root.to_path_buf();
    for part in wanted.components() {
        match part {
            Component::Normal(name) => below.push(name),
            Component::ParentDir if below != root => drop(below.pop()),
            _ => {}
        }
    }
    below
}
