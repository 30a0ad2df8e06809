//! Searches for the files that name a module's functions and lines. Each must have the recorded
//! build id.

use super::debuginfod;
use super::elf::Elf;
use crate::stacks::Module;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Directory in which distributions install separate debug files.
const DEBUG_ROOT: &str = "/usr/lib/debug";

/// Options on names: where files are searched besides their own paths, and which functions are
/// allocator wrappers.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// Functions and modules that count as allocator wrappers, besides the known ones: names with
    /// `*` and `?`.
    pub wrappers: Vec<String>,
    /// A folder that replaces `/`, and is searched first.
    pub sysroot: Option<Arc<Path>>,
    /// Whether to query the servers in `DEBUGINFOD_URLS`, by elfutils' `debuginfod-find`, which
    /// caches files and has a timeout, `DEBUGINFOD_TIMEOUT`.
    pub debuginfod: bool,
    /// Whether text has names in full, however long.
    pub full_names: bool,
    /// Whether a server has timed out, so that none is queried again.
    pub silent: Arc<AtomicBool>,
}

/// The result of a search.
pub(super) struct Search {
    /// Paths and opened files.
    pub files: Vec<(PathBuf, Elf)>,
    /// Whether the first is the module's own file.
    pub own: bool,
    /// Why the module's own file is missing.
    pub why: Option<Why>,
    /// Messages for the user.
    pub notes: Vec<String>,
}

/// Returns a path below a root.
fn below(root: &Path, path: &Path) -> PathBuf {
    // Paths of a recording may contain `..`. Nothing outside of the root is read for them.
    let inside = path.components().filter_map(|part| match part {
        std::path::Component::Normal(name) => Some(name),
        _ => None,
    });
    root.join(inside.collect::<PathBuf>())
}

/// Why a module's own file is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// The file does not exist or cannot be read.
    Unreadable,
    /// The file has this build id, which is not the recorded one.
    Another(Vec<u8>),
    /// The file has no build id and is not the recorded one.
    Changed,
}

/// Returns whether a file was changed after a time in nanoseconds since 1970; false if its time is
/// unknown.
fn is_younger(path: &Path, than_unix_ns: u64) -> bool {
    let changed = std::fs::metadata(path).and_then(|about| about.modified()).ok();
    let changed = changed.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    than_unix_ns > 0 && changed.is_some_and(|changed| changed.as_nanos() > u128::from(than_unix_ns))
}

/// Searches for a module's files. `fingerprint` is the [`Elf::fingerprint`] of the recorded file.
pub(super) fn search(path: &str, module: &Module, origin: &Origin, fingerprint: Option<(u64, u32)>) -> Search {
    search_in(path, module, origin, fingerprint, None, None)
}

/// Like [`search`], but first tries files that the recorder has opened: the module's own file, and
/// its separate debug information.
pub(super) fn search_in(
    path: &str,
    module: &Module,
    origin: &Origin,
    fingerprint: Option<(u64, u32)>,
    file: Option<&Path>,
    debug_file: Option<&Path>,
) -> Search {
    let mut found = Search { files: Vec::new(), own: false, why: Some(Why::Unreadable), notes: Vec::new() };
    let build_id = &module.build_id[..];
    let same = |elf: &Elf| match fingerprint {
        _ if !build_id.is_empty() => elf.build_id == build_id,
        Some(known) => elf.fingerprint() == Some(known),
        None => true,
    };
    let roots = || origin.sysroot.iter().chain(&module.root);
    // Names in brackets ([vdso]) are not files.
    if path.starts_with('/') {
        let given = file.map(Path::to_path_buf).into_iter();
        let given = given.chain(roots().map(|root| below(root, Path::new(path)))).map(|candidate| (candidate, false));
        // Without a build id, only a file that the recorder had opened is known to be the recorded
        // one.
        let is_known = file.is_none() || !build_id.is_empty();
        let live = is_known.then(|| (PathBuf::from(path), build_id.is_empty() && fingerprint.is_none()));
        for (candidate, must_be_old) in given.chain(live) {
            match Elf::open(&candidate) {
                Some(_) if must_be_old && is_younger(&candidate, module.since_unix_ns) => {
                    found.why = Some(Why::Changed)
                }
                Some(elf) if same(&elf) => {
                    found.files.push((candidate, elf));
                    (found.own, found.why) = (true, None);
                    break;
                }
                Some(_) if build_id.is_empty() => found.why = Some(Why::Changed),
                Some(elf) => found.why = Some(Why::Another(elf.build_id)),
                None => {}
            }
        }
    }
    let link = found.files.first().and_then(|(_, elf)| elf.debug_link());
    let plain = debug_files(path, build_id, link.as_deref());
    let rooted = roots().flat_map(|root| plain.iter().map(|candidate| below(root, candidate)));
    let candidates: Vec<PathBuf> = rooted.chain(plain.clone()).collect();
    // A debug file has the sections of the file that it was taken from, but not its bytes.
    let fits = |elf: &Elf| build_id.is_empty() || elf.build_id == build_id;
    let existing = |candidate: &PathBuf| Elf::open(candidate).filter(fits).map(|elf| (candidate.clone(), elf));
    let first = found.files.first().map(|(own, _)| own.clone());
    let mut separate = debug_file
        .map(Path::to_path_buf)
        .iter()
        .chain(&candidates)
        .filter(|candidate| first.as_ref() != Some(candidate))
        .find_map(existing);
    let has_lines = found.files.first().is_some_and(|(_, elf)| elf.section_size(".debug_info") > 0);
    if separate.is_none() && origin.debuginfod && !has_lines && build_id.len() > 1 {
        match debuginfod::fetch(&hexadecimal(build_id), &origin.silent) {
            Ok(candidate) => {
                separate = existing(&candidate);
                if separate.is_none() {
                    found
                        .notes
                        .push(format!("{path}: the file from the debuginfod server is not its debug information"));
                }
            }
            Err(why) => found.notes.push(format!("{path}: {why}")),
        }
    }
    found.files.extend(separate);
    found
}

/// Returns a build id in hexadecimal digits.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the files that a file refers to and that contain lines: shared debug information, and
/// packages and files of split units.
pub(super) fn beside(path: &Path, elf: &Elf) -> Vec<PathBuf> {
    let mut all = Vec::new();
    let folder = path.parent().unwrap_or(Path::new("/"));
    all.extend(elf.alternative_link().map(|link| folder.join(link)));
    all.push(package(path));
    all.retain(|candidate| candidate.is_file());
    all
}

/// Returns the path of the package of split units: that of the file with `.dwp` appended.
pub(super) fn package(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".dwp");
    name.into()
}

/// Returns the paths at which the separate debug file may be.
fn debug_files(path: &str, build_id: &[u8], link: Option<&str>) -> Vec<PathBuf> {
    let mut candidates = Vec::new();
    if let [first, rest @ ..] = build_id
        && !rest.is_empty()
    {
        candidates.push(PathBuf::from(format!("{DEBUG_ROOT}/.build-id/{first:02x}/{}.debug", hexadecimal(rest))));
    }
    if let (Some(link), Some(folder)) = (link, Path::new(path).parent()) {
        candidates.push(folder.join(link));
        candidates.push(folder.join(".debug").join(link));
        candidates.push(Path::new(DEBUG_ROOT).join(folder.strip_prefix("/").unwrap_or(folder)).join(link));
    }
    candidates
}
