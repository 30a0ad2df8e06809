//! Target programs: sources of `tests/programs`, built once and kept by the hash of everything that
//! they are made of.

use crate::test_env;
use std::collections::hash_map::DefaultHasher;
use std::ffi::OsString;
use std::fs::{self, File};
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of the distribution's libraries, and its loader.
pub const LIBRARIES: &str = ARCHITECTURE.0;
pub const LOADER: &str = ARCHITECTURE.1;
pub(crate) const OF_HEADERS: &str = ARCHITECTURE.2;
const ARCHITECTURE: (&str, &str, &str) = if cfg!(target_arch = "aarch64") {
    ("/usr/lib/aarch64-linux-gnu", "/lib/ld-linux-aarch64.so.1", "-idirafter/usr/include/aarch64-linux-gnu")
} else {
    ("/usr/lib/x86_64-linux-gnu", "/lib64/ld-linux-x86-64.so.2", "-idirafter/usr/include/x86_64-linux-gnu")
};

/// Flags of all targets: those of a distribution (no frame pointers), but no allocation may be
/// optimized away.
const FLAGS: [&str; 10] = [
    "-O2",
    "-g",
    "-fomit-frame-pointer",
    "-fno-builtin",
    "-fno-optimize-sibling-calls",
    "-D_GNU_SOURCE",
    "-pthread",
    "-Wall",
    "-Wextra",
    "-Wno-alloc-size-larger-than",
];

/// A program or library of `tests/programs` that is yet to be built.
pub struct Target {
    source: PathBuf,
    name: String,
    compiler: String,
    flags: Vec<OsString>,
    needs: Vec<PathBuf>,
    libraries: Vec<OsString>,
}

impl Target {
    /// Creates a program from its file name: C is compiled by `gcc`, C++ by `g++`, Rust by `rustc`.
    pub fn program(file: &str) -> Target {
        let source = test_env::programs().join(file);
        let extension = source.extension().and_then(|text| text.to_str()).unwrap_or_default();
        let (compiler, flags): (&str, Vec<&str>) = match extension {
            "c" => ("gcc", [&FLAGS[..], &["-std=gnu11"]].concat()),
            "cpp" => ("g++", [&FLAGS[..], &["-std=c++17"]].concat()),
            "rs" => ("rustc", vec!["--edition=2024", "-O", "-g", "-Cforce-frame-pointers=no"]),
            _ => panic!("{file}: no compiler is known for it"),
        };
        let name = source.file_stem().and_then(|text| text.to_str()).expect("a name").to_owned();
        Target {
            source,
            name,
            compiler: compiler.to_owned(),
            flags: flags.into_iter().map(OsString::from).collect(),
            needs: Vec::new(),
            libraries: Vec::new(),
        }
    }

    /// Creates a shared library from its file name.
    pub fn library(file: &str) -> Target {
        let mut target = Target::program(file).flag("-shared").flag("-fPIC");
        target.name = format!("lib{}.so", target.name);
        target
    }

    /// Sets the name of the built file.
    pub fn named(mut self, name: &str) -> Target {
        name.clone_into(&mut self.name);
        self
    }

    pub fn by(mut self, compiler: &str) -> Target {
        compiler.clone_into(&mut self.compiler);
        self
    }

    /// Adds a flag of the compiler.
    pub fn flag(mut self, flag: impl Into<OsString>) -> Target {
        self.flags.push(flag.into());
        self
    }

    /// Links a shared library that was built here. The program finds it at run time.
    pub fn with(mut self, library: &Path) -> Target {
        let folder = library.parent().expect("a built library has a folder").as_os_str();
        let mut search = OsString::from("-Wl,--no-as-needed,-rpath,");
        search.push(folder);
        self.needs.push(library.to_owned());
        self.flag(search)
    }

    /// Links libraries of the system (`-lm`), which come after the source.
    pub fn libraries(mut self, names: &[&str]) -> Target {
        self.libraries.extend(names.iter().map(OsString::from));
        self
    }

    /// Builds the target, unless it was built before, and returns its path.
    pub fn build(self) -> PathBuf {
        let mut hash = DefaultHasher::new();
        (&self.name, &self.compiler, &self.flags, &self.needs, &self.libraries).hash(&mut hash);
        let headers = fs::read_dir(test_env::programs())
            .expect("the sources")
            .filter_map(|entry| entry.ok().map(|entry| entry.path()));
        let mut headers: Vec<PathBuf> = headers.filter(|path| path.extension().is_some_and(|end| end == "h")).collect();
        headers.sort_unstable();
        headers.push(test_env::programs().join("../../preload/include/heaptape.h"));
        for file in std::iter::once(&self.source).chain(&headers) {
            fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display())).hash(&mut hash);
        }
        let folder = test_env::kept().join(format!("{}-{:016x}", self.name, hash.finish()));
        let built = folder.join(&self.name);
        if built.exists() {
            return built;
        }
        fs::create_dir_all(&folder).expect("a folder for the target");
        // Each test is a process, and two may want the same target. A program that's replaced while
        // another test records it would count as a deleted file, so only one of them builds it.
        let lock = File::create(folder.join("lock")).expect("the lock of the target");
        lock.lock().expect("the lock of the target");
        if built.exists() {
            return built;
        }
        let unfinished = folder.join(format!("unfinished-{}", std::process::id()));
        let result = Command::new(&self.compiler)
            .args(&self.flags)
            .arg("-o")
            .arg(&unfinished)
            .arg(&self.source)
            .args(&self.needs)
            .args(&self.libraries)
            .output()
            .unwrap_or_else(|error| panic!("{}: {error}; run scripts/install-tools", self.compiler));
        assert!(
            result.status.success(),
            "{} {}: {}\n{}",
            self.compiler,
            self.source.display(),
            result.status,
            String::from_utf8_lossy(&result.stderr)
        );
        fs::rename(&unfinished, &built).expect("the built file gets its name");
        built
    }
}

/// The flag of programs whose branches and returns the processor checks.
pub const PROTECTED: &str =
    if cfg!(target_arch = "x86_64") { "-fcf-protection=full" } else { "-mbranch-protection=standard" };

/// Builds a C program without further flags.
pub fn c(name: &str) -> PathBuf {
    Target::program(&format!("{name}.c")).build()
}

/// Builds a C program whose symbols are all bound before `main`.
///
/// Lazy binding saves the vector registers of the CPU on the caller's stack: 0.9 KiB with
/// AVX, 2.7 KiB with AVX-512. A program that tests how little stack the hooks need must not depend
/// on that.
pub fn bound_at_start(name: &str) -> PathBuf {
    Target::program(&format!("{name}.c")).flag("-Wl,-z,now").build()
}

/// Builds a C program with an allocator that may be called in signal handlers and left by jumps.
pub fn signal_safe(name: &str) -> PathBuf {
    let allocator = Target::library("signal_safe_allocator.c").build();
    // The loader's code that binds a symbol at its first call needs a register that is not followed.
    Target::program(&format!("{name}.c")).with(&allocator).flag("-Wl,-z,now").build()
}
