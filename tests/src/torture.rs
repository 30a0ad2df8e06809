//! The torture suite: its rows, where they run, and what they passed. A test that belongs to a row says so when it has passed
//! ([`passed`]); `scripts/dev torture` makes docs/torture.md from the notes.

use crate::workshop;
use std::fs;
use std::io::Write;
use std::path::PathBuf;

/// Where a row runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// With every submission, `scripts/dev test`.
    Quick,
    /// A short form with every submission, the long one by `scripts/dev torture`.
    Both,
    /// By `scripts/dev torture` only.
    Long,
}

/// A row of the suite.
pub struct Row {
    /// Its number, which never changes.
    pub number: u32,
    /// What it tries.
    pub name: &'static str,
    /// Where it runs.
    pub place: Place,
}

const fn row(number: u32, name: &'static str, place: Place) -> Row {
    Row { number, name, place }
}

/// All rows.
pub const ROWS: &[Row] = &[
    row(1, "plain programs: same output and exit status, nothing lost", Place::Both),
    row(2, "large programs: Java, Node, Ruby, PHP, PostgreSQL, redis, nginx, a browser, sudo, a sandbox", Place::Long),
    row(3, "SIGKILL of the program at random times: everything published is recorded", Place::Both),
    row(4, "SIGKILL of the command and of its keeper", Place::Both),
    row(5, "SIGKILL of recorder and program", Place::Both),
    row(6, "no recorder: no socket, a socket that is none, no rights", Place::Quick),
    row(7, "a recorder that is stopped: the program is not held for ever", Place::Both),
    row(8, "a socket whose queue is full and never accepts", Place::Quick),
    row(10, "thread churn", Place::Both),
    row(11, "many threads at once", Place::Both),
    row(12, "stacks of 16 KiB, alternate stacks, coroutines", Place::Quick),
    row(13, "signal storm: handlers allocate in the middle of a hook", Place::Both),
    row(14, "siglongjmp, asynchronous cancellation and exceptions out of hooks", Place::Both),
    row(15, "fork storm in a program with threads", Place::Both),
    row(16, "all kinds of fork", Place::Both),
    row(17, "fork in a handler that interrupts a hook", Place::Both),
    row(18, "servers that fork", Place::Long),
    row(19, "exec chains and many short processes", Place::Both),
    row(20, "setuid: the library is inert", Place::Quick),
    row(21, "programs that close all descriptors", Place::Quick),
    row(22, "name spaces and other roots", Place::Quick),
    row(23, "sandboxes and single-thread needs", Place::Quick),
    row(24, "limits of address space, data, files, descriptors, stack", Place::Quick),
    row(25, "the interface's edges and errno", Place::Quick),
    row(26, "before constructors and after destructors", Place::Quick),
    row(27, "200 libraries with thread-local variables", Place::Quick),
    row(28, "two libraries in turn at one address", Place::Both),
    row(29, "other allocators, musl, static programs", Place::Quick),
    row(30, "other preloads, before and behind", Place::Quick),
    row(31, "valgrind, gdb, strace, ASan", Place::Quick),
    row(33, "a full disk", Place::Quick),
    row(34, "errors of the disk at each write", Place::Both),
    row(35, "no memory for the recorder, or a reader", Place::Both),
    row(36, "power loss: disks that drop, reorder and tear what was not brought to them", Place::Both),
    row(37, "cut and flipped recordings", Place::Long),
    row(39, "a client that rewrites its own area at full speed", Place::Both),
    row(40, "a flooded socket", Place::Quick),
    row(42, "another user", Place::Quick),
    row(43, "names that are meant to do something to their reader", Place::Quick),
    row(45, "clocks that step, and a tree that stands still", Place::Quick),
    row(46, "100,000,000 events through 8 threads, every one in a checksum", Place::Both),
    row(48, "losses, exact in random schedules", Place::Both),
    row(50, "programs that start while no daemon runs", Place::Quick),
    row(57, "the library's system calls", Place::Quick),
];

/// Rows of the suite that other commands run.
const ELSEWHERE: &[(u32, &str, &str)] = &[
    (38, "readers fed with mutated files", "`scripts/dev fuzz`"),
    (
        44,
        "sizes, counts and nesting that are lies",
        "`cargo test -p heaptape-analyzer --test damage`, `cargo test -p heaptape-formats`",
    ),
    (56, "the library's imports, exports, versions, sizes", "`ci/audit-preload.sh`"),
    (
        58,
        "the protocol in every order that the memory model allows (loom)",
        "`cargo test -p heaptape-wire --test model`",
    ),
    (60, "each promise has its tests", "`ci/promises.sh`"),
];

/// Rows that do not run, and why.
const NOT_RUN: &[(&str, &str)] = &[
    ("32", "in row 2"),
    ("9", "the wait's own limits are in rows 7 and 8; no option sets them apart"),
    ("54, 55", "starvation and memory pressure: no harness for them; an allocator that fails is row 35"),
    ("41, 47, 49, 53", "budgets, days of running, upgrades, a sandboxed recorder: the daemon's, docs/daemon.md"),
    ("51, 52", "other processors"),
    ("59", "a random mix of the others"),
];

/// The folder of the notes.
fn notes() -> PathBuf {
    let folder = workshop::kept().join("torture");
    fs::create_dir_all(&folder).expect("the folder of notes");
    folder
}

/// Notes that a row's test has passed: what it did, in a few words, and how often.
pub fn passed(number: u32, what: &str, times: u64) {
    assert!(ROWS.iter().any(|row| row.number == number), "row {number} is not in the list");
    let line = format!("{what}\t{times}\n");
    let path = notes().join(number.to_string());
    let file = fs::OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(line.as_bytes())).expect("a note");
}

/// Forgets all notes.
pub fn forget() {
    fs::remove_dir_all(notes()).expect("the notes go away");
}

/// The table of docs/torture.md.
pub fn table() -> String {
    let mut text = String::from(
        "# The torture suite\n\nMade by `scripts/dev torture`. A row is what the suite of hostile conditions tries; its checks are the tests of \
         `tests/pipeline` and `tests/torture` that passed, each with how often its condition was met.\n\n\
         | row | what | runs | passed |\n|---|---|---|---|\n",
    );
    for row in ROWS {
        let runs = match row.place {
            Place::Quick => "every submission".to_owned(),
            Place::Both => "short in every submission, long by `scripts/dev torture`".to_owned(),
            Place::Long => "`scripts/dev torture`".to_owned(),
        };
        let mut lines: Vec<(String, u64)> = Vec::new();
        for line in fs::read_to_string(notes().join(row.number.to_string())).unwrap_or_default().lines() {
            let Some((what, times)) = line.split_once('\t') else { continue };
            let times = times.parse().unwrap_or(0);
            match lines.iter_mut().find(|(known, _)| known == what) {
                Some((_, most)) => *most = times.max(*most),
                None => lines.push((what.to_owned(), times)),
            }
        }
        lines.sort();
        let passed = lines.iter().map(|(what, times)| format!("{what}: {times}")).collect::<Vec<_>>().join("; ");
        let passed = if passed.is_empty() { "-".to_owned() } else { passed };
        text += &format!("| {} | {} | {runs} | {passed} |\n", row.number, row.name);
    }
    text += "\nBy other commands:\n\n| row | what | command |\n|---|---|---|\n";
    ELSEWHERE.iter().for_each(|(number, what, command)| text += &format!("| {number} | {what} | {command} |\n"));
    text += "\nNot run:\n\n| rows | why |\n|---|---|\n";
    NOT_RUN.iter().for_each(|(rows, why)| text += &format!("| {rows} | {why} |\n"));
    text
}
