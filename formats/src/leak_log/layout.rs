//! Layout of leak reports. Each is text among which a program may have printed its own.
//!
//! ```text
//! ==412==ERROR: LeakSanitizer: detected memory leaks            LeakSanitizer, AddressSanitizer
//! Direct leak of 70 byte(s) in 10 object(s) allocated from:
//!     #0 0x7f3a5c2b89cf in __interceptor_malloc asan_malloc_linux.cpp:69
//!     #1 0x55d0c1a6a1b6 in remember /src/shop.c:5
//!     #2 0x55d0c1a6a1d0  (/src/shop+0x11d0) (BuildId: 4f1c)     without a name
//! ```
//! ```text
//! ==5594== Memcheck, a memory error detector                    valgrind; in XML the same by tags
//! ==5594==     in use at exit: 1,016 bytes in 2 blocks
//! ==5594==   total heap usage: 12 allocs, 10 frees, 6,325 bytes allocated
//! ==5594== 1,016 (16 direct, 1,000 indirect) bytes in 1 blocks are definitely lost in loss record 2 of 2
//! ==5594==    at 0x4848899: malloc (in /usr/libexec/valgrind/vgpreload_memcheck-amd64-linux.so)
//! ==5594==    by 0x1091B3: remember (shop.c:5)
//! ```
//! ```text
//! @ ./shop:(remember+0x12)[0x117f] + 0x559902d782a0 0xa         mtrace: + - < > for realloc
//! ```
//! ```text
//! [11:16:33] Top 10 stacks with outstanding allocations:        memleak, once an interval
//!     80 bytes in 5 allocations from stack
//!         0x000055d0c1a6a1b6 remember+0x6d [shop]
//! ```

use crate::prefix::{Match, begins_with};

/// Number of bytes in which a report begins, after what the program printed.
const MOST_BEFORE: usize = 64 << 10;
/// Maximum number of frames of a stack.
pub(super) const MAX_FRAMES: usize = 1 << 12;

/// Who wrote a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tool {
    /// LeakSanitizer, also as a part of AddressSanitizer.
    #[default]
    Sanitizer,
    /// valgrind's memcheck.
    Memcheck,
    /// valgrind's memcheck with `--xml=yes`.
    MemcheckXml,
    /// glibc's `mtrace`.
    Mtrace,
    /// bcc's `memleak`.
    Memleak,
}

impl Tool {
    /// Returns the name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Tool::Sanitizer => "LeakSanitizer",
            Tool::Memcheck | Tool::MemcheckXml => "memcheck",
            Tool::Mtrace => "mtrace",
            Tool::Memleak => "memleak",
        }
    }
}

/// A number of blocks and of their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The number of these blocks.
    pub blocks: u64,
    /// The number of their bytes.
    pub bytes: u64,
}

impl Counts {
    pub(super) fn add(&mut self, bytes: u64) {
        *self = Counts { blocks: self.blocks.saturating_add(1), bytes: self.bytes.saturating_add(bytes) };
    }

    pub(super) fn remove(&mut self, bytes: u64) {
        *self = Counts { blocks: self.blocks.saturating_sub(1), bytes: self.bytes.saturating_sub(bytes) };
    }

    /// Returns the sum of two.
    #[must_use]
    pub const fn and(self, other: Counts) -> Counts {
        Counts { blocks: self.blocks.saturating_add(other.blocks), bytes: self.bytes.saturating_add(other.bytes) }
    }

    /// Returns what is left without `other`.
    #[must_use]
    pub const fn without(self, other: Counts) -> Counts {
        Counts { blocks: self.blocks.saturating_sub(other.blocks), bytes: self.bytes.saturating_sub(other.bytes) }
    }
}

/// A frame of a stack, as far as the report knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// The address in the process, or 0.
    pub address: u64,
    /// Name of the function, or empty.
    pub function: String,
    /// Source file, or empty.
    pub file: String,
    /// Line in it, or 0.
    pub line: u64,
    /// Path of the program or library, or empty.
    pub module: String,
    /// The return address as a link-time address of the module, if it is known.
    pub offset: Option<u64>,
    /// Build-id of the module; empty if it is not known.
    pub build_id: Vec<u8>,
}

/// What one call stack leaked or allocated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leak {
    /// What the tool says of it: `Direct`, `definitely lost`. Empty if it does not judge.
    pub kind: String,
    /// What was not freed.
    pub live: Counts,
    /// What was allocated in all; as much as was not freed, where the report has no more.
    pub allocated: Counts,
    /// What was live at the peak of all together; zeros if the report has no times.
    pub peak: Counts,
    /// Frames, innermost first.
    pub stack: Vec<Frame>,
}

/// A report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeakLog {
    /// Who wrote it.
    pub tool: Tool,
    /// Process ID, or 0.
    pub pid: u32,
    /// Number of processes that the report is about, of which each has its own part.
    pub processes: usize,
    /// Command line of the program, or empty.
    pub command: String,
    /// What was leaked, in order of the report.
    pub leaks: Vec<Leak>,
    /// What was not freed, if the report sums it up.
    pub live: Option<Counts>,
    /// Allocated blocks and bytes, and the number of frees, if the report sums them up.
    pub allocated: Option<(Counts, u64)>,
    /// Number of times at which the report was printed; only the last one is read.
    pub intervals: u64,
    /// Number of lines about blocks that were not seen before, such as frees.
    pub unknown: u64,
}

/// The lines by which a report is known.
const MARKS: [(&str, Tool); 9] = [
    ("ERROR: LeakSanitizer: detected memory leaks", Tool::Sanitizer),
    ("ERROR: AddressSanitizer", Tool::Sanitizer),
    ("LeakSanitizer has encountered a fatal error", Tool::Sanitizer),
    ("== Memcheck, a memory error detector", Tool::Memcheck),
    ("<valgrindoutput>", Tool::MemcheckXml),
    ("= Start\n@ ", Tool::Mtrace),
    ("= Start\n= End", Tool::Mtrace),
    (" stacks with outstanding allocations:", Tool::Memleak),
    (" byte(s) leaked in ", Tool::Sanitizer),
];

/// Matches files that begin as a report does. What a program printed before is no part of that.
pub fn sniff(bytes: &[u8]) -> Match {
    for start in [&b"= Start\n@ "[..], b"Attaching to kernel allocators", b"Attaching to pid "] {
        match begins_with(bytes, start) {
            Match::No => {}
            result => return result,
        }
    }
    // `==412==` or `=====` and a line that says which tool it is, or XML and its first element.
    const MOST: usize = 512;
    let text = bytes.trim_ascii_start();
    let may_be =
        text.starts_with(b"==") || text.starts_with(b"<?xml") || b"==".starts_with(text) || b"<?xml".starts_with(text);
    match find(&bytes[..bytes.len().min(MOST)]).filter(|_| may_be) {
        Some(_) => Match::Yes,
        None if may_be && bytes.len() < MOST => Match::NeedMore,
        None => Match::No,
    }
}

/// Returns whose report a whole file has, also after what the program printed.
pub fn find(bytes: &[u8]) -> Option<Tool> {
    let start = &bytes[..bytes.len().min(MOST_BEFORE)];
    let is_text = start.iter().all(|byte| *byte >= b' ' || byte.is_ascii_whitespace() || *byte == 0x1b);
    let text = String::from_utf8_lossy(if is_text { start } else { b"" });
    MARKS.iter().find(|(mark, _)| text.contains(mark)).map(|(_, tool)| *tool)
}

/// Returns the lines of a file without their ends, and whether the last one is whole.
pub(super) fn lines(bytes: &[u8]) -> impl Iterator<Item = std::borrow::Cow<'_, str>> {
    bytes.split(|byte| *byte == b'\n').map(|line| String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line)))
}

/// Parses a decimal number with commas, or the first one of a text.
pub(super) fn number(text: &str) -> Option<u64> {
    let digits: String = text.trim().chars().filter(|letter| *letter != ',').collect();
    digits.parse().ok()
}

/// Parses a hexadecimal number with or without `0x`.
pub(super) fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok()
}

/// Splits `file:line` or `file:line:column`.
pub(super) fn place(text: &str) -> (String, u64) {
    let numbered =
        |text: &str| text.rsplit_once(':').and_then(|(file, line)| Some((file.to_string(), line.parse().ok()?)));
    match numbered(text) {
        Some((file, line)) => numbered(&file).unwrap_or((file, line)),
        None => (text.to_string(), 0),
    }
}
