//! Allocators by name: the library that has them, and the settings that they take from the
//! environment.

use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Folders in which libraries of the system are.
const FOLDERS: [&str; 7] = [
    "/usr/local/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib/x86_64-linux-gnu",
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
];

/// A setting, or a variable of the environment: its name and its value.
type Setting = (String, String);

struct Known {
    name: &'static str,
    /// First characters of the file names of its library, best first; none for the C library's own.
    libraries: &'static [&'static str],
    /// Package of Debian and Ubuntu that has it.
    package: &'static str,
    /// Turns settings into variables of the environment.
    variables: fn(&[Setting]) -> Vec<Setting>,
}

const KNOWN: [Known; 4] = [
    Known { name: "glibc", libraries: &[], package: "libc6", variables: glibc_variables },
    Known { name: "jemalloc", libraries: &["libjemalloc.so"], package: "libjemalloc2", variables: jemalloc_variables },
    Known {
        name: "mimalloc",
        libraries: &["libmimalloc.so"],
        package: "libmimalloc2.0",
        variables: |settings| prefixed("MIMALLOC_", settings),
    },
    Known {
        name: "tcmalloc",
        libraries: &["libtcmalloc_minimal.so", "libtcmalloc.so"],
        package: "libtcmalloc-minimal4",
        variables: |settings| prefixed("TCMALLOC_", settings),
    },
];

fn glibc_variables(settings: &[Setting]) -> Vec<Setting> {
    let tunables: Vec<String> = settings.iter().map(|(name, value)| format!("glibc.malloc.{name}={value}")).collect();
    if tunables.is_empty() { Vec::new() } else { vec![("GLIBC_TUNABLES".into(), tunables.join(":"))] }
}

fn jemalloc_variables(settings: &[Setting]) -> Vec<Setting> {
    let options: Vec<String> = settings.iter().map(|(name, value)| format!("{name}:{value}")).collect();
    if options.is_empty() { Vec::new() } else { vec![("MALLOC_CONF".into(), options.join(","))] }
}

fn prefixed(prefix: &str, settings: &[Setting]) -> Vec<Setting> {
    settings.iter().map(|(name, value)| (format!("{prefix}{}", name.to_uppercase()), value.clone())).collect()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocator {
    /// The text that it was parsed from.
    pub name: String,
    /// The library that is preloaded, or `None` for the C library's allocator.
    pub library: Option<PathBuf>,
    /// Variables of the environment that hold its settings.
    pub variables: Vec<Setting>,
}

/// The text names no allocator of this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocatorError {
    /// No allocator has this name.
    #[error("no allocator is called '{0}': glibc, jemalloc, mimalloc, tcmalloc, or the path of a library")]
    Unknown(String),
    /// No library of the allocator is installed.
    #[error("{name} is not installed (package {package})")]
    NotInstalled {
        name: &'static str,
        /// Package of Debian and Ubuntu.
        package: &'static str,
    },
    /// The library is not there.
    #[error("there is no library {}", .0.display())]
    NoLibrary(PathBuf),
    /// A setting has no value.
    #[error("'{0}' is not a setting: write NAME=VALUE")]
    NotASetting(String),
    /// The settings of this allocator are not known.
    #[error("a library that is given by its path takes no settings here: set its variables in the environment")]
    NoSettings,
}

/// Returns the newest library in the folders of the system whose file name begins so.
fn library(prefixes: &[&str], folders: &[PathBuf]) -> Option<PathBuf> {
    let named = |prefix: &&str| {
        let files = folders.iter().flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten());
        let paths = files.map(|file| file.path());
        paths.filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(*prefix))).max()
    };
    prefixes.iter().find_map(named)
}

fn folders() -> Vec<PathBuf> {
    let own = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    std::env::split_paths(&own).filter(|path| path.is_absolute()).chain(FOLDERS.map(PathBuf::from)).collect()
}

/// Parses `NAME[:SETTING=VALUE]…`: `glibc:arena_max=2`, `jemalloc:dirty_decay_ms=0:narenas=1`,
/// `mimalloc:purge_delay=0`, or the path of a library.
impl FromStr for Allocator {
    type Err = AllocatorError;

    fn from_str(text: &str) -> Result<Self, AllocatorError> {
        if text.contains('/') {
            let path = Path::new(text);
            return match std::fs::canonicalize(path) {
                Ok(path) => Ok(Allocator { name: text.into(), library: Some(path), variables: Vec::new() }),
                Err(_) if text.contains(".so:") => Err(AllocatorError::NoSettings),
                Err(_) => Err(AllocatorError::NoLibrary(path.into())),
            };
        }
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let known = KNOWN.iter().find(|known| known.name == name);
        let known = known.ok_or_else(|| AllocatorError::Unknown(name.into()))?;
        let setting = |part: &str| {
            let (name, value) = part.split_once('=').ok_or_else(|| AllocatorError::NotASetting(part.into()))?;
            Ok((name.to_owned(), value.to_owned()))
        };
        let settings = parts.map(setting).collect::<Result<Vec<_>, _>>()?;
        let library = match known.libraries {
            [] => None,
            names => Some(
                library(names, &folders())
                    .ok_or(AllocatorError::NotInstalled { name: known.name, package: known.package })?,
            ),
        };
        Ok(Allocator { name: text.into(), library, variables: (known.variables)(&settings) })
    }
}

/// Returns the known allocators that are installed, with their default settings, and why each other
/// one is not among them.
pub fn installed() -> (Vec<Allocator>, Vec<AllocatorError>) {
    let mut missing = Vec::new();
    let found = KNOWN.iter().filter_map(|known| known.name.parse().map_err(|error| missing.push(error)).ok());
    (found.collect(), missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(name: &str, settings: &[(&str, &str)]) -> Vec<(String, String)> {
        let settings: Vec<_> = settings.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        KNOWN.iter().find(|known| known.name == name).map(|known| (known.variables)(&settings)).unwrap_or_default()
    }

    #[test]
    fn settings_become_the_variables_of_each_allocator() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let two = [("a", "1"), ("b", "2")];
        assert_eq!(variables("glibc", &two), [pair("GLIBC_TUNABLES", "glibc.malloc.a=1:glibc.malloc.b=2")]);
        assert_eq!(variables("jemalloc", &two), [pair("MALLOC_CONF", "a:1,b:2")]);
        assert_eq!(variables("mimalloc", &[("purge_delay", "0")]), [pair("MIMALLOC_PURGE_DELAY", "0")]);
        assert_eq!(variables("tcmalloc", &[("release_rate", "10")]), [pair("TCMALLOC_RELEASE_RATE", "10")]);
        assert!(KNOWN.iter().all(|known| variables(known.name, &[]).is_empty()));
    }

    #[test]
    fn names_are_parsed_and_mistakes_are_named() {
        let glibc = "glibc:arena_max=2".parse::<Allocator>().expect("the C library is there");
        assert_eq!((glibc.name.as_str(), glibc.library), ("glibc:arena_max=2", None));
        assert_eq!("hoard".parse::<Allocator>(), Err(AllocatorError::Unknown("hoard".into())));
        assert_eq!("glibc:2".parse::<Allocator>(), Err(AllocatorError::NotASetting("2".into())));
        let path = "/nonexistent/libx.so";
        assert_eq!(path.parse::<Allocator>(), Err(AllocatorError::NoLibrary(path.into())));
        assert_eq!("/nonexistent/libx.so:a=1".parse::<Allocator>(), Err(AllocatorError::NoSettings));
    }

    #[test]
    fn newest_library_of_the_best_name_is_found() {
        let folder = tempfile::tempdir().expect("a folder");
        for name in ["libtc.so.3", "libtc.so.4", "libtc_minimal.so.4", "other"] {
            std::fs::write(folder.path().join(name), "").expect("a file");
        }
        let folders = [folder.path().to_owned()];
        assert_eq!(
            library(&["libtc_minimal.so", "libtc.so"], &folders),
            Some(folder.path().join("libtc_minimal.so.4"))
        );
        assert_eq!(library(&["libtc.so"], &folders), Some(folder.path().join("libtc.so.4")));
        assert_eq!(library(&["libje.so"], &folders), None);
    }
}
