//! A recording and what the command says of it.

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
    /// How the command ended.
    pub outcome: Outcome,
    /// The recording.
    pub folder: PathBuf,
    /// Keeps the folder.
    pub place: TempDir,
}

/// `heaptape report --json`.
#[derive(Clone, Debug, Deserialize)]
pub struct Report {
    /// One for each process image.
    pub processes: Vec<Process>,
}

/// One process image of a report.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// Its parent's.
    #[serde(default)]
    pub ppid: u32,
    /// Path or name of the program.
    pub exe: String,
    /// Nothing is missing.
    pub complete: bool,
    /// `{"code": n}` or `{"signal": n}`.
    #[serde(default)]
    pub exit: serde_json::Value,
    /// Allocations.
    pub allocs: u64,
    /// Resizes.
    pub resizes: u64,
    /// Frees.
    pub frees: u64,
    /// Requested bytes of allocations and resizes.
    pub bytes_allocated: u64,
    /// Blocks never freed.
    pub live_blocks: u64,
    /// Their bytes.
    pub live_bytes: u64,
    /// Greatest sum of live bytes.
    pub peak_bytes: u64,
    /// Most live blocks at any time.
    pub peak_blocks: u64,
    /// Events that happened.
    pub emitted_events: u64,
    /// Events that were recorded.
    pub recorded_events: u64,
    /// Events that were lost.
    pub lost_events: u64,
    /// Events passed over by sampling.
    #[serde(default)]
    pub sampled_out_events: u64,
    /// Blocks of the parent that were not freed.
    #[serde(default)]
    pub inherited_blocks: u64,
    /// Their bytes.
    #[serde(default)]
    pub inherited_bytes: u64,
    /// Frees of blocks that nobody knew.
    #[serde(default)]
    pub unknown_frees: u64,
}

impl Process {
    /// The program's name without folders.
    pub fn name(&self) -> &str {
        self.exe.rsplit('/').next().unwrap_or_default()
    }

    /// All events that are in the recording.
    pub fn events(&self) -> u64 {
        self.allocs + self.resizes + self.frees
    }

    /// The ledger: what happened is recorded or counted as lost.
    #[track_caller]
    pub fn ledger(&self) {
        assert_eq!(
            self.emitted_events,
            self.recorded_events + self.lost_events,
            "the ledger does not balance: {self:#?}"
        );
        assert_eq!(
            self.recorded_events,
            self.events(),
            "recorded events are allocations, resizes and frees: {self:#?}"
        );
    }
}

impl Report {
    /// The only image of this program.
    #[track_caller]
    pub fn only(&self, name: &str) -> &Process {
        let mut found = self.processes.iter().filter(|process| process.name() == name);
        match (found.next(), found.next()) {
            (Some(process), None) => process,
            _ => panic!("one image of {name} was expected: {self:#?}"),
        }
    }

    /// All images of this program.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Process> {
        self.processes.iter().filter(move |process| process.name() == name)
    }
}

/// One entry of `heaptape leaks --json`.
#[derive(Clone, Debug, Deserialize)]
pub struct Leak {
    /// Bytes never freed.
    pub bytes: u64,
    /// Blocks never freed.
    pub blocks: u64,
    /// What the command thinks of it.
    pub verdict: String,
    /// Innermost frame first.
    pub stack: Vec<Frame>,
}

/// One frame of a stack.
#[derive(Clone, Debug, Deserialize)]
pub struct Frame {
    /// Function, when it is known.
    #[serde(default)]
    pub function: Option<String>,
    /// Source file, when it is known.
    #[serde(default)]
    pub file: Option<String>,
    /// Line, when it is known.
    #[serde(default)]
    pub line: Option<u64>,
    /// Module, when it is known.
    #[serde(default)]
    pub module: Option<String>,
}

impl Leak {
    /// The functions' names, innermost first, `?` where none is known.
    pub fn functions(&self) -> Vec<&str> {
        self.stack.iter().map(|frame| frame.function.as_deref().unwrap_or("?")).collect()
    }
}

impl Recording {
    /// Runs a word of the command on the recording.
    pub fn heaptape(&self, words: &[&str]) -> Outcome {
        heaptape(words.iter().map(OsStr::new).chain([self.folder.as_os_str()]))
    }

    /// `heaptape report --json`.
    #[track_caller]
    pub fn report(&self) -> Report {
        let said = self.heaptape(&["report", "--json"]);
        assert!(said.code() < 2, "heaptape report: {said}\nof {}", self.outcome);
        serde_json::from_slice(&said.stdout).unwrap_or_else(|error| panic!("heaptape report --json: {error}\n{said}"))
    }

    /// `heaptape leaks --json`.
    #[track_caller]
    pub fn leaks(&self) -> Vec<Leak> {
        self.leaks_as(&["--depth", "2000"])
    }

    /// The same, with options.
    #[track_caller]
    pub fn leaks_as(&self, options: &[&str]) -> Vec<Leak> {
        #[derive(Deserialize)]
        struct Leaks {
            leaks: Vec<Leak>,
        }
        let said = self.heaptape(&[&["leaks", "--json"], options].concat());
        assert!(said.code() < 2, "heaptape leaks: {said}\nof {}", self.outcome);
        serde_json::from_slice::<Leaks>(&said.stdout)
            .unwrap_or_else(|error| panic!("heaptape leaks --json: {error}\n{said}"))
            .leaks
    }

    /// Insists that `heaptape verify` calls the recording whole, and that every ledger balances
    /// with nothing lost.
    #[track_caller]
    pub fn whole(self) -> Recording {
        let said = self.heaptape(&["verify"]);
        assert_eq!(said.code(), 0, "heaptape verify: {said}\nof {}", self.outcome);
        for process in &self.report().processes {
            process.ledger();
            assert_eq!(process.lost_events, 0, "{process:#?}");
            assert!(process.complete, "{process:#?}");
        }
        self
    }

    /// Insists on the program's exit status and on nothing on standard error.
    #[track_caller]
    pub fn success(self) -> Recording {
        assert_eq!(self.outcome.code(), 0, "{}", self.outcome);
        self
    }

    /// `recording.json`.
    #[track_caller]
    pub fn about(&self) -> heaptape_formats::recording::Recording {
        let bytes = fs::read(self.folder.join("recording.json")).expect("recording.json");
        serde_json::from_slice(&bytes).expect("recording.json as it should be")
    }

    /// Why a program of this name was not recorded, once for each process.
    #[track_caller]
    pub fn not_traced(&self, name: &str) -> Vec<String> {
        let all = self.about().not_traced.into_iter();
        all.filter(|process| process.exe.rsplit('/').next() == Some(name)).map(|process| process.why).collect()
    }

    /// The files named `name` of all process images.
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

    /// Bytes on disk.
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

/// Runs the command.
pub fn heaptape<W: AsRef<OsStr>>(words: impl IntoIterator<Item = W>) -> Outcome {
    let mut command = Command::new(test_env::command());
    command.args(words);
    finish(command, b"")
}
