//! How the programs of a hunt are linked: with which allocator, and whether statically.

use super::Case;
use crate::target::{LIBRARIES, OF_HEADERS};
use crate::{Target, test_env};
use std::path::Path;

/// The compiler of programs with the GNU C library.
const GCC: &str = "gcc";
/// The compiler of programs with musl. Headers of the kernel are those of the other library.
const MUSL: &str = "musl-gcc";

/// How the programs of a hunt are linked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Linkage {
    pub name: &'static str,
    compiler: &'static str,
    flags: &'static [&'static str],
    /// The file of an allocator in the distribution's folder.
    library: Option<&'static str>,
}

/// Programs with the C library's allocator.
pub(super) const ORDINARY: Linkage = Linkage { name: "harm_steps", compiler: GCC, flags: &[], library: None };

/// Programs with other allocators, and static ones.
const OTHERS: [Linkage; 6] = [
    Linkage { name: "harm_jemalloc", library: Some("libjemalloc_pic.a"), ..ORDINARY },
    Linkage { name: "harm_tcmalloc", library: Some("libtcmalloc_minimal.a"), ..ORDINARY },
    Linkage { name: "harm_mimalloc", library: Some("libmimalloc.so.2"), ..ORDINARY },
    Linkage { name: "harm_static", flags: &["-static"], ..ORDINARY },
    Linkage { name: "harm_static_pie", flags: &["-static-pie"], ..ORDINARY },
    Linkage {
        name: "harm_static_musl",
        compiler: MUSL,
        flags: &["-static", "-idirafter/usr/include", OF_HEADERS],
        library: None,
    },
];

impl Linkage {
    /// Returns the programs of this name, or else those with the C library's allocator.
    pub fn named(name: &str) -> Linkage {
        OTHERS.into_iter().find(|linkage| linkage.name == name).unwrap_or(ORDINARY)
    }

    /// Returns programs with other allocators, and static ones, as far as what they are linked with
    /// is installed.
    pub fn others() -> impl Iterator<Item = Linkage> {
        let is_installed = |linkage: &Linkage| {
            linkage.path().is_none_or(|path| Path::new(&path).exists()) && test_env::find(linkage.compiler).is_some()
        };
        OTHERS.into_iter().filter(is_installed)
    }

    /// Returns whether nothing but the kernel loads the programs: nothing can be preloaded.
    pub fn is_static(&self) -> bool {
        !self.flags.is_empty()
    }

    /// Returns whether the programs of a case can be linked so. Signal-safe cases have an allocator
    /// of their own, static programs load no plugins, and musl has no coroutines.
    pub fn allows(&self, case: &Case) -> bool {
        if *self == ORDINARY {
            return true;
        }
        let is_plugin = |name: &str| matches!(name, "dlopen" | "dlclose" | "plugin");
        let loads = self.is_static() && case.any(|step| is_plugin(&step.name));
        let switches = self.compiler == MUSL && case.any(|step| step.name == "coroutines");
        !(case.is_signal_safe || loads || switches)
    }

    pub fn link(&self, target: Target) -> Target {
        let target = target.named(self.name).by(self.compiler);
        let target = self.flags.iter().fold(target, |target, flag| target.flag(*flag));
        match self.path() {
            Some(path) => target.libraries(&[&path, "-lstdc++", "-lm"]),
            None => target.libraries(&["-lm"]),
        }
    }

    fn path(&self) -> Option<String> {
        self.library.map(|library| format!("{LIBRARIES}/{library}"))
    }
}
