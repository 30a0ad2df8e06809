//! Where the files lie that name a module's functions and lines. Each must have the build-id that
//! was recorded.

use super::elf::Elf;
use crate::stacks::Module;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Where distributions put separate debug files.
const DEBUG_ROOT: &str = "/usr/lib/debug";

/// What a user says about names: where files are looked for besides their own paths, and which
/// functions are wrappers.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// Functions and modules that only pass memory on, besides those that are known: names, with
    /// `*` and `?`.
    pub wrappers: Vec<String>,
    /// A folder that stands for `/`, searched first.
    pub sysroot: Option<Arc<Path>>,
    /// Whether servers named by `DEBUGINFOD_URLS` are asked: by elfutils' `debuginfod-find`, which
    /// keeps what it gets in its cache and gives up after `DEBUGINFOD_TIMEOUT`.
    pub debuginfod: bool,
    /// Whether a server kept somebody waiting until that: then none is asked again.
    pub silent: Arc<AtomicBool>,
}

/// What was found.
pub struct Search {
    /// Paths and files.
    pub files: Vec<(PathBuf, Elf)>,
    /// Whether the first is the module's own.
    pub own: bool,
    /// Why its own is not there.
    pub why: Option<Why>,
    /// What a reader should know.
    pub notes: Vec<String>,
}

/// The path as it is below a root.
fn below(root: &Path, path: &Path) -> PathBuf {
    // A recording's paths may hold `..`: nothing outside of the root is read for them.
    let inside = path.components().filter_map(|part| match part {
        std::path::Component::Normal(name) => Some(name),
        _ => None,
    });
    root.join(inside.collect::<PathBuf>())
}

/// Why a module's own file is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// There is none, or none that can be read.
    Unreadable,
    /// There is one with this build-id, which is not the recorded one.
    Another(Vec<u8>),
    /// There is one without a build-id, which is not the recorded one.
    Changed,
}

/// Whether a file was changed after this time, nanoseconds since 1970; not when that is not known.
fn is_younger(path: &Path, than_unix_ns: u64) -> bool {
    let changed = std::fs::metadata(path).and_then(|about| about.modified()).ok();
    let changed = changed.and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
    than_unix_ns > 0 && changed.is_some_and(|changed| changed.as_nanos() > u128::from(than_unix_ns))
}

/// Looks for a module's files. `fingerprint`: what [`Elf::fingerprint`] said of the file that was
/// recorded.
pub fn search(path: &str, module: &Module, origin: &Origin, fingerprint: Option<(u64, u32)>) -> Search {
    search_in(path, module, origin, fingerprint, None, None)
}

/// The same with files that the recorder has opened, which are looked at first: the module's own,
/// and its separate debug information.
pub fn search_in(
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
    // Names in brackets ([vdso]) are no files.
    if path.starts_with('/') {
        let given = file.map(Path::to_path_buf).into_iter();
        let given = given.chain(roots().map(|root| below(root, Path::new(path)))).map(|place| (place, false));
        // Without a build-id a file that the recorder had open is the only one that is known to be
        // the right one.
        let is_known = file.is_none() || !build_id.is_empty();
        let live = is_known.then(|| (PathBuf::from(path), build_id.is_empty() && fingerprint.is_none()));
        for (place, must_be_old) in given.chain(live) {
            match Elf::open(&place) {
                Some(_) if must_be_old && is_younger(&place, module.since_unix_ns) => found.why = Some(Why::Changed),
                Some(elf) if same(&elf) => {
                    found.files.push((place, elf));
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
    let rooted = roots().flat_map(|root| plain.iter().map(|place| below(root, place)));
    let places: Vec<PathBuf> = rooted.chain(plain.clone()).collect();
    // A debug file has the sections of the file that it was taken from, but not its bytes.
    let fits = |elf: &Elf| build_id.is_empty() || elf.build_id == build_id;
    let lies_there = |place: &PathBuf| Elf::open(place).filter(fits).map(|elf| (place.clone(), elf));
    let first = found.files.first().map(|(own, _)| own.clone());
    let mut separate = debug_file
        .map(Path::to_path_buf)
        .iter()
        .chain(&places)
        .filter(|place| first.as_ref() != Some(place))
        .find_map(lies_there);
    let has_lines = found.files.first().is_some_and(|(_, elf)| elf.section_size(".debug_info") > 0);
    if separate.is_none() && origin.debuginfod && !has_lines && build_id.len() > 1 {
        match debuginfod(build_id, &origin.silent) {
            Ok(place) => {
                separate = lies_there(&place);
                if separate.is_none() {
                    found.notes.push(format!("{path}: what a debuginfod server gave is not its debug information"));
                }
            }
            Err(why) => found.notes.push(format!("{path}: {why}")),
        }
    }
    found.files.extend(separate);
    found
}

/// The digits of a build-id.
pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Seconds for which a server may keep silent, where `DEBUGINFOD_TIMEOUT` does not say.
const PATIENCE: u64 = 30;

/// Asks the servers; none are asked when none are named, and none once more when one kept silent.
fn debuginfod(build_id: &[u8], silent: &AtomicBool) -> Result<PathBuf, String> {
    if std::env::var_os("DEBUGINFOD_URLS").is_none_or(|urls| urls.is_empty()) {
        return Err("DEBUGINFOD_URLS names no server".into());
    }
    if silent.load(Ordering::Relaxed) {
        return Err("the debuginfod servers do not answer".into());
    }
    let mut command = Command::new("debuginfod-find");
    command.args(["debuginfo", &hexadecimal(build_id)]).stdin(Stdio::null()).stderr(Stdio::null());
    let patience = std::env::var("DEBUGINFOD_TIMEOUT").ok().and_then(|seconds| seconds.parse().ok());
    let patience = patience.filter(|&seconds| seconds > 0).unwrap_or(PATIENCE);
    command.env("DEBUGINFOD_TIMEOUT", patience.to_string());
    let asked = Instant::now();
    let said = command.output().map_err(|error| format!("debuginfod-find (elfutils): {error}"))?;
    let place = String::from_utf8_lossy(&said.stdout).trim().to_string();
    if said.status.success() && place.starts_with('/') {
        return Ok(place.into());
    }
    if asked.elapsed() >= Duration::from_secs(patience) {
        silent.store(true, Ordering::Relaxed);
        return Err("the debuginfod servers do not answer".into());
    }
    Err("the debuginfod servers have no debug information of it".into())
}

/// Files that a file points to and lines come from: shared debug information, packages and files of
/// split units.
pub fn beside(path: &Path, elf: &Elf) -> Vec<PathBuf> {
    let mut all = Vec::new();
    let folder = path.parent().unwrap_or(Path::new("/"));
    all.extend(elf.alternative_link().map(|link| folder.join(link)));
    all.push(package(path));
    all.retain(|place| place.is_file());
    all
}

/// The package of a file's split units: its path with `.dwp` behind it.
pub fn package(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".dwp");
    name.into()
}

/// Where the separate debug file may lie.
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
