//! Files of tools that we know and do not read, or not as allocations: whose they are, and what to
//! do instead.

use crate::Format;

/// What to do with the files of tools that only count instructions.
const NO_HEAP: &str = "it counts instructions and has no heap: run valgrind --tool=massif or --tool=dhat";

/// First bytes of files, what they are, and what to do.
const KNOWN: [(&[u8], &str, &str); 13] = [
    (b"# callgrind format", "of callgrind", NO_HEAP),
    (b"version: 1\ncreator: callgrind", "of callgrind", NO_HEAP),
    (b"desc: I1 cache:", "of cachegrind", NO_HEAP),
    (
        b"--------------------------------------------------------------------------------\nCommand:",
        "what ms_print prints",
        "give the massif.out file that it was made from",
    ),
    (b"memray\0", "of memray", "memray shows it; heaptape record -- python3 -X perf SCRIPT records the same run"),
    (b"PERFILE2", "of perf", "it samples the processor and has no heap: heaptape record -- PROGRAM"),
    (b"JAVA PROFILE 1.0", "a heap dump of Java (HPROF)", "it has objects without call stacks: Eclipse MAT reads it"),
    (b"FLR\0", "of Java Flight Recorder", "JDK Mission Control reads it"),
    (
        b"{\"snapshot\":{\"meta\"",
        "a heap snapshot of V8",
        "it has objects without call stacks: Chrome's Memory tab reads it",
    ),
    (
        b"{\"head\":{\"callFrame\"",
        "a sampled heap profile of V8",
        "Chrome's Memory tab reads it; heaptape record -- node --perf-basic-prof SCRIPT records the same run",
    ),
    (b"\x7fELF", "a program, library or core", "heaptape record -- PROGRAM records it"),
    (b"#!", "a script", "heaptape record -- SCRIPT records it"),
    (b"PK\x03\x04", "a zip archive", "unpack it"),
];

/// Returns what to do with a file that we read, but that has no allocations.
///
/// # Examples
///
/// ```
/// use heaptape_formats::{Format, foreign};
///
/// assert!(foreign::without_heap(Format::Gmon).is_some_and(|text| text.contains("heaptape gprof")));
/// assert_eq!(foreign::without_heap(Format::Mtrc), None);
/// ```
pub const fn without_heap(format: Format) -> Option<&'static str> {
    match format {
        Format::Gmon => Some("this is a gmon.out file of gprof: heaptape gprof PROGRAM FILE shows it"),
        Format::Dcpi => Some("this is a profile of DCPI: heaptape dcpiprof FILE shows it"),
        Format::Core => Some("this is a core: heaptape core FILE says what the crash did with its heap"),
        _ => None,
    }
}

/// Returns what a file is, and what to do, by its first bytes.
///
/// # Examples
///
/// ```
/// use heaptape_formats::foreign;
///
/// assert!(foreign::advice(b"PERFILE2\x68").is_some_and(|text| text.starts_with("this is a file of perf: ")));
/// assert_eq!(foreign::advice(b"MTRC\x01"), None);
/// ```
pub fn advice(start: &[u8]) -> Option<String> {
    let start = start.trim_ascii_start();
    let (_, what, advice) = KNOWN.iter().find(|(first, ..)| start.starts_with(first))?;
    let file = if what.starts_with("of ") { "a file " } else { "" };
    Some(format!("this is {file}{what}: {advice}"))
}
