//! Searches for the files that name a module's functions and lines. Each must have the recorded
//! build id.

use super::debuginfod;
use super::elf::Elf;
use crate::stacks::Module;
use std::collections::HashMap;
use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};

/// Directory in which distributions install separate debug files.
pub(super) const DEBUG_ROOT: &str = "/usr/lib/debug";

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
    /// The files of the sysroot's own folder.
    pub flat: Arc<FlatFolders>,
    /// Whether a server has timed out, so that none is queried again.
    pub silent: Arc<AtomicBool>,
}

pub(super) struct Search {
    pub files: Vec<(PathBuf, Elf)>,
    /// Whether the first is the module's own file.
    pub own: bool,
    /// Why the module's own file is missing.
    pub why: Option<Why>,
    /// Messages for the user.
    pub notes: Vec<String>,
}

pub(crate) fn below(root: &Path, path: &Path) -> PathBuf {
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

/// Size and times of a file: when its content changed, and when it or its name did, in nanoseconds
/// since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Version {
    bytes: u64,
    changed: u64,
    renamed: u64,
}

impl Version {
    fn of(path: &Path) -> Option<Version> {
        use std::os::unix::fs::MetadataExt;
        let about = std::fs::metadata(path).ok()?;
        let time = |seconds: i64, nanos: i64| (seconds as u64).wrapping_mul(1_000_000_000).wrapping_add(nanos as u64);
        let changed = time(about.mtime(), about.mtime_nsec());
        Some(Version { bytes: about.len(), changed, renamed: time(about.ctime(), about.ctime_nsec()).max(changed) })
    }
}

/// How a file without build-id was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FoundAt {
    /// The recorder had it open.
    Given,
    /// It is below another root, where a copy may have another time.
    Rooted,
    /// It is at the recorded path, where another one may have been since.
    Live,
}

/// Returns whether a file without build-id is that of a module, by what was known of it when it was
/// mapped, or else by its age.
fn is_recorded(module: &Module, elf: &Elf, version: Option<Version>, found_at: FoundAt) -> bool {
    let (known, Some(found)) = (&module.file, version) else { return false };
    if (known.head != 0 && elf.head() != known.head) || (known.bytes != 0 && found.bytes != known.bytes) {
        return false;
    }
    match (found_at, known.changed_unix_ns, module.since_unix_ns) {
        (FoundAt::Rooted, ..) | (_, 0, 0) | (FoundAt::Given, 0, _) => true,
        (FoundAt::Live, 0, since) => found.renamed <= since,
        (_, changed, _) => found.changed == changed,
    }
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
    let same = |elf: &Elf, path: &Path, found_at: FoundAt| match fingerprint {
        _ if !build_id.is_empty() => elf.build_id == build_id,
        Some(known) => elf.fingerprint() == Some(known),
        None => is_recorded(module, elf, Version::of(path), found_at),
    };
    let roots = || origin.sysroot.iter().chain(&module.root);
    // Names in brackets ([vdso]) are not files, and below /proc are those of this process.
    if path.starts_with('/') && !path.starts_with("/proc/") {
        let given = file.map(|file| (file.to_path_buf(), FoundAt::Given)).into_iter();
        let rooted = roots().map(|root| (below(root, Path::new(path)), FoundAt::Rooted));
        // Without a build id, only a file that the recorder had opened is known to be the recorded
        // one.
        let is_known = file.is_none() || !build_id.is_empty();
        let live = is_known.then(|| (PathBuf::from(path), FoundAt::Live));
        for (candidate, found_at) in given.chain(rooted).chain(live) {
            match Elf::open(&candidate) {
                Some(elf) if same(&elf, &candidate, found_at) => {
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
    let plain = debug_files(path, build_id, link.as_ref().map(|(name, _)| name.as_str()));
    let rooted = roots().flat_map(|root| plain.iter().map(|candidate| below(root, candidate)));
    let roots_by_id = roots().flat_map(|root| in_folder(root, path, build_id));
    let candidates: Vec<PathBuf> = rooted.chain(roots_by_id).chain(plain.clone()).collect();
    let flat =
        || origin.sysroot.iter().filter(|_| build_id.len() > 1).find_map(|root| origin.flat.find(root, build_id));
    // A debug file has the sections of the file that it was taken from, but not its bytes. The link
    // has its checksum, for files without a build-id.
    let fits = |elf: &Elf, candidate: &Path| match &link {
        _ if !build_id.is_empty() => elf.build_id == build_id,
        Some((_, crc)) => checksum(candidate) == Some(*crc),
        None => false,
    };
    // A file that was cut has its build-id and nothing else.
    let has_names = |elf: &Elf| [".debug_info", ".symtab"].iter().any(|section| elf.section_size(section) > 0);
    let existing = |candidate: &PathBuf| {
        let elf = Elf::open(candidate).filter(|elf| has_names(elf) && fits(elf, candidate))?;
        Some((candidate.clone(), elf))
    };
    let first = found.files.first().map(|(own, _)| own.clone());
    let mut separate = debug_file
        .map(Path::to_path_buf)
        .iter()
        .chain(&candidates)
        .filter(|candidate| first.as_ref() != Some(candidate))
        .find_map(existing)
        .or_else(|| flat().as_ref().and_then(existing));
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

/// Returns the CRC-32 of a file; `None` if it is too large for that, or cannot be read.
fn checksum(path: &Path) -> Option<u32> {
    const MOST: u64 = 1 << 30;
    let mut file = std::fs::File::open(path).ok()?;
    (file.metadata().ok()?.len() <= MOST).then_some(())?;
    let (mut hasher, mut bytes) = (crc32fast::Hasher::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut bytes).ok()? {
            0 => return Some(hasher.finalize()),
            count => hasher.update(&bytes[..count]),
        }
    }
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
    all.extend(elf.alternative_link().map(|(link, _)| folder.join(link)));
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

/// Returns the path of debug information below a folder that is organized by build-id.
pub(super) fn by_build_id(root: &Path, build_id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = build_id.split_first().filter(|(_, rest)| !rest.is_empty())?;
    Some(root.join(format!(".build-id/{first:02x}/{}.debug", hexadecimal(rest))))
}

/// The files of folders that hold debug information under any names, by build-id.
#[derive(Debug, Default)]
pub struct FlatFolders(Mutex<HashMap<PathBuf, ByBuildId>>);

/// The files of one folder.
type ByBuildId = HashMap<Vec<u8>, PathBuf>;

impl FlatFolders {
    /// Returns the file with a build-id in a folder; all of them are opened, once.
    fn find(&self, folder: &Path, build_id: &[u8]) -> Option<PathBuf> {
        let mut folders = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let files = folders.entry(folder.to_path_buf()).or_insert_with(|| {
            let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().take(MOST_IN_FOLDER);
            let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
            // Of several files the one with the longest name: `prog.debug` rather than `prog`.
            paths.sort_by_key(|path| path.as_os_str().len());
            let of = |path: PathBuf| Elf::open(&path).map(|elf| (elf.build_id, path));
            paths.into_iter().filter_map(of).collect()
        });
        files.get(build_id).cloned()
    }
}

/// Maximum number of files of a folder that are looked at.
const MOST_IN_FOLDER: usize = 4096;

/// Returns the paths in a folder of debug files at which that of a module may be: by its build-id,
/// as gdb and debuginfod organize it, and by its file name.
fn in_folder(root: &Path, path: &str, build_id: &[u8]) -> Vec<PathBuf> {
    let Some((first, rest)) = build_id.split_first().filter(|(_, rest)| !rest.is_empty()) else { return Vec::new() };
    let name = Path::new(path).file_name().unwrap_or_default().to_string_lossy();
    let hex = hexadecimal(build_id);
    let by_id = [
        format!(".build-id/{first:02x}/{}.debug", hexadecimal(rest)),
        format!("{first:02x}/{}.debug", hexadecimal(rest)),
        format!("{hex}/debuginfo"),
        format!("{hex}.debug"),
    ];
    by_id.into_iter().chain([format!("{name}.debug"), name.into_owned()]).map(|name| root.join(name)).collect()
}

/// Returns the paths at which the separate debug file may be.
fn debug_files(path: &str, build_id: &[u8], link: Option<&str>) -> Vec<PathBuf> {
    let mut candidates: Vec<PathBuf> = by_build_id(Path::new(DEBUG_ROOT), build_id).into_iter().collect();
    // Without a build-id, nothing tells whether a file without a link belongs to the module.
    if let (Some(folder), Some(name), false) =
        (Path::new(path).parent(), Path::new(path).file_name(), build_id.is_empty())
    {
        let with = |suffix: &str| folder.join([name, suffix.as_ref()].into_iter().collect::<OsString>());
        let hidden = folder.join(".debug");
        let hidden_debug = hidden.join([name, ".debug".as_ref()].into_iter().collect::<OsString>());
        candidates.extend([with(".debug"), hidden.join(name), hidden_debug, with(".unstripped")]);
    }
    if let (Some(link), Some(folder)) = (link, Path::new(path).parent()) {
        candidates.push(folder.join(link));
        candidates.push(folder.join(".debug").join(link));
        candidates.push(Path::new(DEBUG_ROOT).join(folder.strip_prefix("/").unwrap_or(folder)).join(link));
    }
    candidates
}
