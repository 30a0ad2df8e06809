//! A recording, and the answers of the command about it.

use crate::run::{Outcome, finish};
use crate::test_env;
use serde::Deserialize;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A finished run of `heaptape record`.
pub struct Recording {
    /// Result of the command.
    pub outcome: Outcome,
    pub folder: PathBuf,
    /// Temporary directory that holds the recording, removed with the value.
    pub directory: TempDir,
}

/// Answer of `heaptape report --json`.
#[derive(Clone, Debug, Deserialize)]
pub struct Report {
    pub processes: Vec<Process>,
}

#[derive(Clone, Debug, Default, Deserialize)]
pub struct Process {
    pub pid: u32,
    /// Process ID of the parent.
    #[serde(default)]
    pub ppid: u32,
    /// Path or name of the program.
    pub exe: String,
    /// Whether nothing is missing.
    pub complete: bool,
    /// Folders of the segments, if there are several.
    #[serde(default)]
    pub segments: Vec<String>,
    /// When and why a flight recording was kept.
    #[serde(default)]
    pub kept: serde_json::Value,
    /// Exit status: `{"code": n}` or `{"signal": n}`.
    #[serde(default)]
    pub exit: serde_json::Value,
    /// Number of allocations.
    pub allocs: u64,
    /// Number of reallocations.
    pub resizes: u64,
    pub frees: u64,
    /// Requested bytes of allocations and resizes.
    pub bytes_allocated: u64,
    /// Number of blocks that were never freed.
    pub live_blocks: u64,
    /// Bytes of the blocks that were never freed.
    pub live_bytes: u64,
    /// Maximum of live bytes at any time.
    pub peak_bytes: u64,
    /// Maximum of live blocks at any time.
    pub peak_blocks: u64,
    /// Number of events of the program.
    pub emitted_events: u64,
    pub recorded_events: u64,
    /// Number of events that were dropped.
    pub lost_events: u64,
    #[serde(default)]
    pub sampled_out_events: u64,
    /// Number of blocks of the parent that were not freed.
    #[serde(default)]
    pub inherited_blocks: u64,
    #[serde(default)]
    pub inherited_bytes: u64,
    /// Number of frees of unknown blocks.
    #[serde(default)]
    pub unknown_frees: u64,
}

impl Process {
    /// Returns the program's name without folders.
    pub fn name(&self) -> &str {
        self.exe.rsplit('/').next().unwrap_or_default()
    }

    pub fn events(&self) -> u64 {
        self.allocs + self.resizes + self.frees
    }

    /// Asserts that emitted events are recorded or counted as dropped.
    #[track_caller]
    pub fn assert_accounting(&self) {
        assert_eq!(
            self.emitted_events,
            self.recorded_events + self.lost_events,
            "the accounting does not balance: {self:#?}"
        );
        assert_eq!(
            self.recorded_events,
            self.events(),
            "recorded events are allocations, resizes and frees: {self:#?}"
        );
    }
}

impl Report {
    /// Returns the only process of this program.
    #[track_caller]
    pub fn only(&self, name: &str) -> &Process {
        let mut found = self.processes.iter().filter(|process| process.name() == name);
        match (found.next(), found.next()) {
            (Some(process), None) => process,
            _ => panic!("one process of {name} was expected: {self:#?}"),
        }
    }

    /// Returns all processes of this program.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Process> {
        self.processes.iter().filter(move |process| process.name() == name)
    }
}

/// One entry of `heaptape leaks --json`.
#[derive(Clone, Debug, Deserialize)]
pub struct Leak {
    /// Bytes of the blocks that were never freed.
    pub bytes: u64,
    /// Number of blocks that were never freed.
    pub blocks: u64,
    pub verdict: String,
    /// Frames of the call stack, innermost first.
    pub stack: Vec<Frame>,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Frame {
    /// Function, if it is known.
    #[serde(default)]
    pub function: Option<String>,
    /// Source file, if it is known.
    #[serde(default)]
    pub file: Option<String>,
    /// Line, if it is known.
    #[serde(default)]
    pub line: Option<u64>,
    /// Module, if it is known.
    #[serde(default)]
    pub module: Option<String>,
}

impl Leak {
    /// Returns the names of the functions, innermost first, and `?` for an unknown one.
    pub fn functions(&self) -> Vec<&str> {
        self.stack.iter().map(|frame| frame.function.as_deref().unwrap_or("?")).collect()
    }
}

impl Recording {
    /// Runs a command of heaptape on the recording.
    pub fn heaptape(&self, arguments: &[&str]) -> Outcome {
        heaptape(arguments.iter().map(OsStr::new).chain([self.folder.as_os_str()]))
    }

    /// Returns the answer of `heaptape report --json`.
    #[track_caller]
    pub fn report(&self) -> Report {
        let output = self.heaptape(&["report", "--json"]);
        assert!(output.code() < 2, "heaptape report: {output}\nof {}", self.outcome);
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("heaptape report --json: {error}\n{output}"))
    }

    /// Returns the answer of `heaptape leaks --json`.
    #[track_caller]
    pub fn leaks(&self) -> Vec<Leak> {
        self.leaks_as(&["--depth", "2000"])
    }

    /// Returns the answer of `heaptape leaks --json` with further options.
    #[track_caller]
    pub fn leaks_as(&self, options: &[&str]) -> Vec<Leak> {
        #[derive(Deserialize)]
        struct Leaks {
            leaks: Vec<Leak>,
        }
        let output = self.heaptape(&[&["leaks", "--json"], options].concat());
        assert!(output.code() < 2, "heaptape leaks: {output}\nof {}", self.outcome);
        serde_json::from_slice::<Leaks>(&output.stdout)
            .unwrap_or_else(|error| panic!("heaptape leaks --json: {error}\n{output}"))
            .leaks
    }

    /// Asserts that `heaptape verify` finds the recording complete, and that nothing was dropped.
    #[track_caller]
    pub fn complete(self) -> Recording {
        let output = self.heaptape(&["verify"]);
        assert_eq!(output.code(), 0, "heaptape verify: {output}\nof {}", self.outcome);
        for process in &self.report().processes {
            process.assert_accounting();
            assert_eq!(process.lost_events, 0, "{process:#?}");
            assert!(process.complete, "{process:#?}");
        }
        self
    }

    /// Asserts that the exit status is 0.
    #[track_caller]
    pub fn success(self) -> Recording {
        assert_eq!(self.outcome.code(), 0, "{}", self.outcome);
        self
    }

    /// Returns the content of `recording.json`.
    #[track_caller]
    pub fn about(&self) -> heaptape_formats::recording::Recording {
        let bytes = fs::read(self.folder.join("recording.json")).expect("recording.json");
        serde_json::from_slice(&bytes).expect("recording.json as it should be")
    }

    /// Returns why a program of this name was not recorded, once for each process.
    #[track_caller]
    pub fn not_traced(&self, name: &str) -> Vec<String> {
        let all = self.about().not_traced.into_iter();
        all.filter(|process| process.exe.rsplit('/').next() == Some(name)).map(|process| process.why).collect()
    }

    /// Returns the files of all processes whose names begin with `name`.
    pub fn files(&self, name: &str) -> Vec<PathBuf> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            found.extend(
                fs::read_dir(entry.path())
                    .into_iter()
                    .flatten()
                    .flatten()
                    .map(|file| file.path())
                    .filter(|path| path.file_name().is_some_and(|found| found.to_string_lossy().starts_with(name))),
            );
        }
        found.sort();
        found
    }

    /// Returns the size of the recording on disk in bytes.
    pub fn bytes(&self) -> u64 {
        fn sum(folder: &Path) -> u64 {
            fs::read_dir(folder)
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| match entry.metadata() {
                    Ok(data) if data.is_dir() => sum(&entry.path()),
                    Ok(data) => data.len(),
                    Err(_) => 0,
                })
                .sum()
        }
        sum(&self.folder)
    }
}

/// Runs heaptape with these arguments.
pub fn heaptape<W: AsRef<OsStr>>(arguments: impl IntoIterator<Item = W>) -> Outcome {
    let mut command = Command::new(test_env::command());
    command.args(arguments);
    finish(command, b"")
}
