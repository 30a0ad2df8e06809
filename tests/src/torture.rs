//! The torture suite: its rows, when they run, and what passed. A test that belongs to a row writes
//! a note when it has passed ([`passed`]); `scripts/dev torture` makes docs/torture.md from the
//! notes.

use crate::test_env;
use std::fs;
use std::io::Write;
use std::path::PathBuf;

/// When a row runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// With every submission, `scripts/dev test`.
    Quick,
    /// A short form with every submission, the long one by `scripts/dev torture`.
    Both,
    /// By `scripts/dev torture` only.
    Long,
}

use Schedule::{Both, Long, Quick};

pub struct Row {
    /// Number, which never changes.
    pub number: u32,
    /// Condition that it tries.
    pub name: &'static str,
    /// When it runs.
    pub schedule: Schedule,
}

const fn row(number: u32, name: &'static str, schedule: Schedule) -> Row {
    Row { number, name, schedule }
}

pub const ROWS: &[Row] = &[
    row(1, "ordinary programs: same output and exit status, nothing lost", Both),
    row(2, "large programs: Java, Node, Ruby, PHP, PostgreSQL, redis, nginx, a browser, sudo, a sandbox", Long),
    row(3, "SIGKILL of the program at random times: everything published is recorded", Both),
    row(4, "SIGKILL of the command and of its survivor process", Both),
    row(5, "SIGKILL of recorder and program", Both),
    row(6, "no recorder: no socket, a file that is not a socket, no permission", Quick),
    row(7, "a stopped recorder: the program does not wait forever", Both),
    row(8, "a socket whose queue is full and never accepts", Quick),
    row(10, "thread churn", Both),
    row(11, "many threads at once", Both),
    row(12, "stacks of 16 KiB, alternate stacks, coroutines", Quick),
    row(13, "signal storm: handlers allocate in the middle of a hook", Both),
    row(14, "siglongjmp, asynchronous cancellation and exceptions out of hooks", Both),
    row(15, "fork storm in a program with threads", Both),
    row(16, "all kinds of fork", Both),
    row(17, "fork in a handler that interrupts a hook", Both),
    row(18, "servers that fork", Long),
    row(19, "exec chains and many short processes", Both),
    row(20, "setuid: the library is inert", Quick),
    row(21, "programs that close all descriptors", Quick),
    row(22, "namespaces and other roots", Quick),
    row(23, "sandboxes and single-thread needs", Quick),
    row(24, "limits of address space, data, files, descriptors, stack", Quick),
    row(25, "the interface's edges and errno", Quick),
    row(26, "before constructors and after destructors", Quick),
    row(27, "200 libraries with thread-local variables", Quick),
    row(28, "two libraries alternately at one address", Both),
    row(29, "other allocators, musl, static programs", Quick),
    row(30, "other preloaded libraries, before and after heaptape's", Quick),
    row(31, "valgrind, gdb, strace, ASan", Quick),
    row(33, "a full disk", Quick),
    row(34, "errors of the disk at each write", Both),
    row(35, "no memory for the recorder, or a reader", Both),
    row(36, "power loss: disks that lose, reorder and tear what was not synced", Both),
    row(37, "truncated recordings, and recordings with flipped bits", Long),
    row(39, "a client that rewrites its own area at full speed", Both),
    row(40, "a flooded socket", Quick),
    row(42, "another user", Quick),
    row(43, "names that try to control the reader's terminal", Quick),
    row(45, "clock steps, and a stopped process tree", Quick),
    row(46, "100,000,000 events through 8 threads, every one in a checksum", Both),
    row(48, "losses, exact in random schedules", Both),
    row(50, "programs that start while no daemon runs", Quick),
    row(57, "the library's system calls", Quick),
    row(59, "a random mix of the others: generated programs, bare and recorded", Both),
    row(61, "signals, dispositions and descriptors of a program that `record` starts, as by exec", Quick),
    row(62, "the floating-point state", Quick),
    row(63, "stacks that no thread owns: no system call, no fault", Quick),
    row(64, "one user's flood of the daemon, and its disk, beside other users", Both),
    row(65, "recordings under their default name, many at once", Both),
    row(66, "libraries opened and closed: operators of their own, closes that stay fast", Quick),
];

/// Rows of the suite that other commands run.
const ELSEWHERE: &[(u32, &str, &str)] = &[
    (38, "readers fed with mutated files", "`scripts/dev fuzz`"),
    (
        44,
        "wrong sizes, counts and nesting",
        "`cargo test -p heaptape-analyzer damage`, `cargo test -p heaptape-formats`",
    ),
    (56, "the library's imports, exports, versions, sizes", "`ci/audit-preload.sh`"),
    (
        58,
        "the protocol in every order that the memory model allows (loom)",
        "`scripts/loom`, `cargo test -p heaptape-wire --test model`",
    ),
    (60, "each promise has its tests", "`ci/promises.sh`"),
];

/// Rows that do not run, and why.
const NOT_RUN: &[(&str, &str)] = &[
    ("32", "in row 2"),
    ("9", "the limits of the wait are in rows 7 and 8; no option sets them separately"),
    ("54, 55", "starvation and memory pressure: no harness for them; an allocator that fails is row 35"),
    (
        "41, 47, 49, 53",
        "budgets, days of operation, upgrades, a sandboxed recorder: for the daemon, see docs/daemon.md",
    ),
    ("51, 52", "other CPU architectures"),
];

/// Returns the folder of the notes.
fn notes() -> PathBuf {
    let folder = test_env::kept().join("torture");
    fs::create_dir_all(&folder).expect("the folder of notes");
    folder
}

/// Writes the note that a test of a row has passed: what it checked, and how often.
pub fn passed(number: u32, what: &str, times: u64) {
    assert!(ROWS.iter().any(|row| row.number == number), "row {number} is not in the list");
    let line = format!("{what}\t{times}\n");
    let path = notes().join(number.to_string());
    let file = fs::OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(line.as_bytes())).expect("a note");
}

/// A section of docs/torture.md whose table another command makes, in a file of notes.
struct Section {
    heading: &'static str,
    note: &'static str,
    command: &'static str,
    text: &'static str,
}

const SECTIONS: [Section; 4] = [
    Section {
        heading: "Real programs, bare and recorded",
        note: "real.md",
        command: "scripts/dev real",
        text: "Programs and test suites of `tests/real/programs.txt` run bare and under `heaptape record`, with the same standard output, \
               standard error and exit status. *Lost* are events for which a ring had no space while the recorder was starved and the program could not \
               see that it lives; they are counted. *Named* are processes that ran without the library: static ones that were stripped, sanitized ones, those in a \
               sandbox that forbids the attach, those without `LD_PRELOAD`, as the programs themselves arrange it.",
    },
    Section {
        heading: "A month of the daemon",
        note: "month.md",
        command: "scripts/dev month",
        text: "Thirty days in some minutes, with servers under load and planted faults.",
    },
    Section {
        heading: "Stacks beside other unwinders",
        note: "stacks.md",
        command: "scripts/dev stacks",
        text: "Real programs run under `heaptape record`. At sampled calls, unwinders that share no code with heaptape \
               walk the same stack in the same process: libunwind, libgcc's, and where these two disagree, gdb for some of them. The recorded stack of the \
               call is compared with theirs frame by frame, innermost first. *Where* names the frames whose callers the unwinders don't agree on.\n\n\
               - *to libunwind, not libgcc*: in code without unwind data (a JIT's), libgcc stops, and libunwind and heaptape go on by the frame pointer.\n\
               - *only ours is whole*: the others stop there or go on at an address that is no code, and ours reaches the frame where the thread's other stacks begin.\n\
               - The last three are faults of heaptape: *ours ends early*, *differ*, *not in the recording*.",
    },
    Section {
        heading: "Lost blocks beside LeakSanitizer",
        note: "holders.md",
        command: "scripts/dev holders",
        text: "Unmodified programs of `tests/holders/programs.txt` run once with the run-time of AddressSanitizer preloaded, whose LeakSanitizer looks for lost \
               blocks at their end, and once under `heaptape record --references`. The sums over the processes of each are compared, exactly.",
    },
];

impl Section {
    /// Returns what its command wrote after its last run of all programs, else the section of an
    /// earlier table.
    fn text(&self, before: Option<&str>) -> String {
        let Section { heading, note, command, text } = self;
        let start = format!("\n## {heading}\n");
        if let Ok(table) = fs::read_to_string(notes().join(note)) {
            return format!("{start}\nMade by `{command}`. {text}\n\n{table}");
        }
        let earlier = before.and_then(|before| {
            let (_, rest) = before.split_once(&start)?;
            let end = rest.find("\n## ").unwrap_or(rest.len());
            Some(format!("{start}{}", &rest[..end]))
        });
        earlier.unwrap_or_else(|| format!("{start}\nNot run: `{command}`.\n"))
    }
}

/// Removes all notes.
pub fn forget() {
    fs::remove_dir_all(notes()).expect("the notes go away");
}

/// Returns the checks of a row in an earlier table, with how often each condition was met.
fn earlier(table: &str, number: u32) -> Vec<(String, u64)> {
    let start = format!("| {number} | ");
    let line = table.lines().find(|line| line.starts_with(&start) && line.matches(" | ").count() == 3);
    let cell = line.and_then(|line| line.rsplit(" | ").next()).and_then(|cell| cell.strip_suffix(" |"));
    let checks = cell.unwrap_or_default().split("; ").filter_map(|check| check.rsplit_once(": "));
    checks.filter_map(|(what, times)| Some((what.to_owned(), times.parse().ok()?))).collect()
}

/// Returns the table of docs/torture.md. With `before`, the table of an earlier run, rows that did
/// not run since keep their figures.
pub fn table(before: Option<&str>) -> String {
    let mut text = String::from(
        "# The torture suite\n\nMade by `scripts/dev torture`. Each row is a hostile condition. Its last column lists what the tests of \
         `tests/pipeline` and `tests/torture` checked when they passed, with the number of times. After a run of only some tests, \
         `torture-table update` keeps the numbers of the last run for the others.\n\n\
         | row | condition | runs | checked |\n|---|---|---|---|\n",
    );
    for row in ROWS {
        let runs = match row.schedule {
            Quick => "every submission".to_owned(),
            Both => "short in every submission, long by `scripts/dev torture`".to_owned(),
            Long => "`scripts/dev torture`".to_owned(),
        };
        let mut lines: Vec<(String, u64)> = before.map(|table| earlier(table, row.number)).unwrap_or_default();
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
    SECTIONS.iter().fold(text, |text, section| text + &section.text(before))
}
