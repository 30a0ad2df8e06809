//! Layout of text heap profiles. Counts are blocks, then bytes: in use, and in brackets allocated.
//!
//! ```text
//! heap profile:  3:  4149 [ 5:  6325] @ heapprofile        gperftools; heap_v2/524288 if sampled
//!   3:  4149 [ 5:  6325] @ 0x5595a6ddd17a 0x5595a6ddd19a   innermost first: return addresses
//! #   0x4a1b2c  main.keep+0x2b  /src/main.go:12            Go's names, after their sample
//!
//! MAPPED_LIBRARIES:                                        or --- Memory map: ---
//! 5595a6ddd000-5595a6dde000 r-xp 00001000 fe:00 10249 /usr/bin/program
//! source=/home
//! 00400000-00fcb000: $source/program                       the short form
//! ```
//! ```text
//! heap_v2/524288                                           jemalloc, with the mean of its sampling
//!   t*: 77: 14998 [0: 0]                                   all threads; before the first stack: all
//! @ 0x7fbd884a2630 0x7fbd884a2d21
//!   t*: 10: 1446 [0: 0]
//!   t0: 10: 1446 [0: 0]                                    one thread
//! ```
//! ```text
//! --- heapz 1 ---                                          Java: bytes, then blocks
//! format = java
//!    7048     1 @ 0x00000003 0x00000004
//!  0x00000003 com.example.Cache.put (Cache.java:13)
//! ```

use crate::prefix::{Match, begins_with};

/// The first bytes of a file, by dialect.
pub(super) const MAGIC: [(&[u8], Dialect); 3] =
    [(b"heap profile:", Dialect::Gperftools), (b"heap_v2/", Dialect::Jemalloc), (b"--- heapz ", Dialect::Java)];
/// Lines before the mapped files.
pub(super) const MAPPINGS: [&[u8]; 2] = [b"MAPPED_LIBRARIES:", b"--- Memory map: ---"];
/// Mean bytes between the samples of Java's profiles, which do not state it.
const JAVA_MEAN: u64 = 512 << 10;

/// Who writes files like this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// The files of gperftools, and of Go.
    #[default]
    Gperftools,
    /// The files of jemalloc.
    Jemalloc,
    /// The files of Java.
    Java,
}

/// The first line of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// Who wrote the file.
    pub dialect: Dialect,
    /// What the file counts: `heapprofile`, `heap_v2`, `heap` (Go), `growthz` and others.
    pub kind: String,
    /// The number after the kind, or 0 if there is none.
    pub period: u64,
}

impl Header {
    /// Returns the mean number of bytes between two samples. Up to 1 all blocks are in the file.
    pub fn mean(&self) -> u64 {
        match (self.dialect, &*self.kind) {
            (Dialect::Java, _) => JAVA_MEAN,
            (_, "heap_v2" | "heapz_v2") => self.period,
            // Go's runtime writes twice its rate.
            (_, "heap") => self.period / 2,
            _ => 0,
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
    /// Returns what a sample with a mean of `mean` bytes stands for. A block is in the sample with
    /// a probability of `1 - exp(-size / mean)`; `jeprof` and pprof correct this in the same way.
    ///
    /// # Examples
    ///
    /// ```
    /// use heaptape_formats::heap_text::Counts;
    ///
    /// let sampled = Counts { blocks: 1, bytes: 7048 };
    /// assert_eq!(sampled.estimate(512 << 10), Counts { blocks: 75, bytes: 527_820 });
    /// assert_eq!(sampled.estimate(0), sampled);
    /// ```
    #[must_use]
    pub fn estimate(self, mean: u64) -> Counts {
        if mean <= 1 || self.blocks == 0 || self.bytes == 0 {
            return self;
        }
        let size = self.bytes as f64 / self.blocks as f64;
        let scale = -1.0 / (-size / mean as f64).exp_m1();
        let scaled = |value: u64| (value as f64 * scale).round() as u64;
        Counts { blocks: scaled(self.blocks), bytes: scaled(self.bytes) }
    }
}

/// What was allocated by one call stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// What is in use.
    pub live: Counts,
    /// What was allocated in all. Zeros if the file does not count it.
    pub allocated: Counts,
    /// Return addresses, innermost first.
    pub addresses: Vec<u64>,
}

/// The name of an address: of a frame of the sample before it (Go), or of an address anywhere.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Name {
    /// The address in the process.
    pub address: u64,
    /// Name of the function, or empty.
    pub function: String,
    /// Source file, or empty.
    pub file: String,
    /// Line in it, or 0.
    pub line: u64,
}

/// A file that was mapped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// First address of the mapping.
    pub start: u64,
    /// First address after the mapping.
    pub end: u64,
    /// Offset in the file, or `None` in the short form, which has the range of the whole file.
    pub offset: Option<u64>,
    /// Whether it has code.
    pub executable: bool,
    /// Path of the file, or empty.
    pub path: String,
}

/// A line of the file that means something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// What was allocated by one call stack.
    Sample(Sample),
    /// A frame of the sample before it, innermost first. Inlined ones have the same address.
    Frame(Name),
    /// The name of an address.
    Name(Name),
    /// A file that was mapped.
    Mapping(Mapping),
}

/// Matches the first bytes of the first line.
pub fn sniff(bytes: &[u8]) -> Match {
    let all = MAGIC.map(|(magic, _)| begins_with(bytes, magic));
    let found = |wanted| all.contains(&wanted);
    if found(Match::Yes) {
        Match::Yes
    } else if found(Match::NeedMore) {
        Match::NeedMore
    } else {
        Match::No
    }
}
