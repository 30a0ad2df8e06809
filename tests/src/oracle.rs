//! The counting preload of `programs/count.c`: counts that are independent of the recorder. It is
//! preloaded after the library in the same process, so that both see the same calls of one run.

use crate::{Process, Program, Recording, Report, Target, test_env};
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub pid: u64,
    /// Process ID of the parent.
    pub ppid: u64,
    /// Number of allocations.
    pub allocs: u64,
    /// Number of reallocations.
    pub resizes: u64,
    pub frees: u64,
    /// Sum of the requested bytes.
    pub bytes: u64,
    /// Number of live blocks at the end.
    pub live_blocks: u64,
    /// Bytes of the live blocks at the end.
    pub live_bytes: u64,
    /// Maximum of live bytes at any time.
    pub peak_bytes: u64,
    /// Maximum of live blocks at any time.
    pub peak_blocks: u64,
    /// Number of blocks of the parent that are not freed.
    pub inherited_blocks: u64,
    pub inherited_bytes: u64,
    /// Number of frees of unknown blocks.
    pub unknown_frees: u64,
    /// Path of the program.
    pub exe: String,
}

/// Builds the counting preload and returns its path.
pub fn library() -> PathBuf {
    Target::library("count.c").build()
}

impl Counts {
    /// Returns the program's name without folders.
    pub fn name(&self) -> &str {
        self.exe.rsplit('/').next().unwrap_or_default()
    }

    /// Reads `struct counts`.
    fn read(bytes: &[u8]) -> Option<Counts> {
        const MAGIC: u64 = u64::from_le_bytes(*b"COUNT1\0\0");
        let mut numbers = bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap_or_default()));
        (numbers.next()? == MAGIC).then_some(())?;
        let mut next = || numbers.next();
        let mut counts = Counts {
            pid: next()?,
            ppid: next()?,
            allocs: next()?,
            resizes: next()?,
            frees: next()?,
            bytes: next()?,
            live_blocks: next()?,
            live_bytes: next()?,
            peak_bytes: next()?,
            peak_blocks: next()?,
            inherited_blocks: next()?,
            inherited_bytes: next()?,
            unknown_frees: next()?,
            exe: String::new(),
        };
        let name = bytes.get(14 * 8..)?.split(|&byte| byte == 0).next()?;
        counts.exe = String::from_utf8_lossy(name).into_owned();
        Some(counts)
    }

    /// Reads all files of a folder.
    pub fn read_all(folder: &Path) -> Vec<Counts> {
        let mut all: Vec<Counts> = std::fs::read_dir(folder)
            .expect("the counts' folder")
            .map(|entry| {
                let path = entry.expect("an entry").path();
                let bytes = std::fs::read(&path).expect("a file of counts");
                Counts::read(&bytes).unwrap_or_else(|| panic!("{}: not a file of counts", path.display()))
            })
            .collect();
        all.sort_by_key(|counts| counts.pid);
        all
    }

    fn events(&self) -> [u64; 4] {
        [self.allocs, self.resizes, self.frees, self.bytes]
    }

    fn live(&self) -> [u64; 5] {
        [self.live_blocks, self.live_bytes, self.inherited_blocks, self.inherited_bytes, self.unknown_frees]
    }

    fn peak(&self) -> [u64; 2] {
        [self.peak_bytes, self.peak_blocks]
    }
}

/// Which counts must be equal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Events, live blocks, inherited blocks; for programs with threads, whose order two observers
    /// may see differently.
    Live,
    Peak,
}

impl Program {
    /// Returns the program with the counting preload after all other preloaded libraries. Counts go
    /// to `folder`.
    pub fn counted(self, folder: &Path) -> Program {
        const LINE: &str =
            "export LD_PRELOAD=\"${LD_PRELOAD:+$LD_PRELOAD:}$COUNT_LIBRARY\"; unset COUNT_LIBRARY; exec \"$@\"";
        self.launched_by(&["sh", "-c", LINE, "sh"]).env("COUNT_DIR", folder).env("COUNT_LIBRARY", library())
    }

    /// Runs the program recorded and counted at once, and asserts that both counts of each process
    /// are equal.
    #[track_caller]
    pub fn recorded_like_counted(&self, depth: Depth) -> (Recording, Report, Vec<Counts>) {
        let folder = test_env::folder();
        let recording = self.clone().counted(folder.path()).recorded();
        let counts = Counts::read_all(folder.path());
        let report = recording.report();
        equal(&report, &counts, depth, &recording);
        (recording, report, counts)
    }
}

fn figures(process: &Process) -> Counts {
    Counts {
        pid: process.pid.into(),
        ppid: process.ppid.into(),
        allocs: process.allocs,
        resizes: process.resizes,
        frees: process.frees,
        bytes: process.bytes_allocated,
        live_blocks: process.live_blocks,
        live_bytes: process.live_bytes,
        peak_bytes: process.peak_bytes,
        peak_blocks: process.peak_blocks,
        inherited_blocks: process.inherited_blocks,
        inherited_bytes: process.inherited_bytes,
        unknown_frees: process.unknown_frees,
        exe: process.exe.clone(),
    }
}

/// Asserts that each counted process is recorded with the same counts. Processes of one pid and
/// program are distinguished by the counts alone.
#[track_caller]
pub fn equal(report: &Report, counts: &[Counts], depth: Depth, recording: &Recording) {
    assert!(!counts.is_empty(), "nothing was counted: {}", recording.outcome);
    let mut recorded: Vec<Counts> = report.processes.iter().map(figures).collect();
    for counted in counts {
        let same = |found: &Counts| {
            found.pid == counted.pid
                && found.name() == counted.name()
                && found.ppid == counted.ppid
                && found.events() == counted.events()
                && found.live() == counted.live()
                && (depth != Depth::Peak || found.peak() == counted.peak())
        };
        match recorded.iter().position(same) {
            Some(index) => drop(recorded.swap_remove(index)),
            None => {
                let near: Vec<_> =
                    report.processes.iter().filter(|found| u64::from(found.pid) == counted.pid).collect();
                panic!(
                    "the counts and the recording differ\n======== counted: {counted:#?}\n======== recorded: {near:#?}\n{}",
                    recording.outcome
                );
            }
        }
    }
}
