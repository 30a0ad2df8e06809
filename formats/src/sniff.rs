//! Detection of formats by content. Each format looks at the first bytes and reports yes, no, or
//! that it needs more bytes.

pub use crate::prefix::Match;
use crate::prefix::begins_with;
use crate::{Abi, Format, core_file, dcpi, dhat, heap_text, heaptrack, leak_log, massif, pprof, tape};

/// Result of the detection by all formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detection {
    /// The file has this format.
    Known(Format),
    /// The file may have this format, which has no magic bytes. No other format matches.
    Weak(Format),
    /// The file has none of the known formats.
    Unknown,
    /// The result depends on further bytes.
    NeedMore,
}

/// Judges a prefix of a file for one format.
type Detector = fn(&[u8]) -> Match;

/// The list of formats: a new format is one line here. The order matters only among weak matches.
const FORMATS: [(Format, Detector); 13] = [
    (Format::Tape, |bytes| begins_with(bytes, &tape::FILE_MAGIC)),
    (Format::Mtrc, |bytes| begins_with(bytes, b"MTRC")),
    (Format::Mptl, |bytes| begins_with(bytes, b"MPTL")),
    (Format::Core, core_file::sniff),
    (Format::Dhat, dhat::layout::sniff),
    (Format::Heaptrack, heaptrack::sniff),
    (Format::Massif, massif::sniff),
    (Format::HeapText, heap_text::sniff),
    (Format::LeakLog, leak_log::sniff),
    (Format::Dcpi, dcpi::sniff),
    (Format::Recording, recording),
    (Format::Pprof, pprof::sniff),
    (Format::Gmon, gmon),
];

/// Detects the format of a file from its first bytes. After a result other than
/// [`Detection::NeedMore`], every longer prefix has the same result, except that
/// [`Detection::Weak`] may become unknown.
///
/// # Examples
///
/// ```
/// use heaptape_formats::Format;
/// use heaptape_formats::sniff::{Detection, sniff};
///
/// assert_eq!(sniff(b"MT"), Detection::NeedMore);
/// assert_eq!(sniff(b"MTRC"), Detection::Known(Format::Mtrc));
/// assert_eq!(sniff(&[0xff; 64]), Detection::Unknown);
/// ```
pub fn sniff(prefix: &[u8]) -> Detection {
    let mut detection = Detection::Unknown;
    for (format, detect) in FORMATS {
        match detect(prefix) {
            Match::Yes => return Detection::Known(format),
            Match::NeedMore => detection = Detection::NeedMore,
            Match::Weak if detection == Detection::Unknown => detection = Detection::Weak(format),
            Match::Weak | Match::No => {}
        }
    }
    detection
}

/// Returns the format of a complete file. A file that is too short for detection has none.
///
/// # Examples
///
/// ```
/// use heaptape_formats::{Format, sniff};
///
/// let profile = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/mpatrol/basic.mpt"))?;
/// assert_eq!(sniff::format(&profile), Some(Format::Mptl));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn format(bytes: &[u8]) -> Option<Format> {
    match sniff(bytes) {
        Detection::Known(format) | Detection::Weak(format) => Some(format),
        // A program may have printed something before its leak report.
        Detection::Unknown | Detection::NeedMore => leak_log::find(bytes).map(|_| Format::LeakLog),
    }
}

/// Matches an object whose first member is `"format": "heaptape recording"`, with any whitespace
/// between.
fn recording(bytes: &[u8]) -> Match {
    let mut rest = bytes;
    for token in [&b"{"[..], b"\"format\"", b":", b"\"heaptape recording\""] {
        rest = rest.trim_ascii_start();
        match begins_with(rest, token) {
            Match::Yes => rest = &rest[token.len()..],
            // Endless whitespace is not the start of a recording, and must not request more bytes
            // for ever.
            Match::NeedMore if bytes.len() > 4096 => return Match::No,
            result => return result,
        }
    }
    Match::Yes
}

/// Matches the magic bytes, or the header that the first histogram of a BSD file has in one of the
/// four ABIs.
fn gmon(bytes: &[u8]) -> Match {
    match begins_with(bytes, b"gmon") {
        Match::No => {}
        result => return result,
    }
    let matches = Abi::ALL.map(|abi| bsd_histogram(bytes, abi));
    let any = |result| matches.contains(&result);
    if any(Match::Weak) {
        Match::Weak
    } else if any(Match::NeedMore) {
        Match::NeedMore
    } else {
        Match::No
    }
}

/// Matches the lowest and highest address, then the size of header and bins together: two bytes for
/// each bin, and at least two bytes of text for each bin.
fn bsd_histogram(bytes: &[u8], abi: Abi) -> Match {
    let word_size = usize::from(abi.word_size);
    let Some(fields) = bytes.get(..2 * word_size + 4) else { return Match::NeedMore };
    let (low, high) = (abi.number(&fields[..word_size]), abi.number(&fields[word_size..2 * word_size]));
    let size = abi.number(&fields[2 * word_size..]);
    let header = fields.len() as u64;
    let Some(text) = high.checked_sub(low).filter(|&text| text > 0) else { return Match::No };
    // 64 covers the longest header and the rounding of a bin.
    let is_text = fields.iter().all(|byte| byte.is_ascii_graphic() || byte.is_ascii_whitespace());
    let fits = !is_text && low > 0 && size > header && size - header <= text.saturating_add(64) && text / 256 <= size;
    if fits { Match::Weak } else { Match::No }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settled(bytes: &[u8]) -> Detection {
        let mut before = Detection::NeedMore;
        for end in 0..=bytes.len() {
            let detection = sniff(&bytes[..end]);
            match before {
                Detection::NeedMore | Detection::Weak(_) => {}
                _ => assert_eq!(detection, before, "the detection changed at {end}"),
            }
            before = detection;
        }
        before
    }

    #[test]
    fn each_format_is_known_by_its_first_bytes() {
        assert_eq!(settled(b"MTRC\x01\0\0\0\0\0\0\0"), Detection::Known(Format::Mtrc));
        assert_eq!(settled(b"MPTL\x01\0\0\0"), Detection::Known(Format::Mptl));
        assert_eq!(settled(b"HEAPTAPE\x01\0\0\0"), Detection::Known(Format::Tape));
        assert_eq!(settled(b"gmon\x01\0\0\0"), Detection::Known(Format::Gmon));
        assert_eq!(settled(b"x y\nevent e\nversion \t pdb-1.01\n"), Detection::Known(Format::Dcpi));
        assert_eq!(settled(b"{\n  \"format\" : \"heaptape recording\"}"), Detection::Known(Format::Recording));
        assert_eq!(settled(b"v 10400 3\nX ./t\n"), Detection::Known(Format::Heaptrack));
        assert_eq!(settled(b"{\"dhatFileVersion\":2\n,"), Detection::Known(Format::Dhat));
        assert_eq!(settled(b"desc: (none)\ncmd: ./t\n"), Detection::Known(Format::Massif));
        assert_eq!(settled(b"heap profile:  1: 2 [ 1: 2] @ heapprofile\n"), Detection::Known(Format::HeapText));
        assert_eq!(settled(b"heap_v2/524288\n"), Detection::Known(Format::HeapText));
        assert_eq!(settled(b"--- heapz 1 ---\n"), Detection::Known(Format::HeapText));
        assert_eq!(settled(b"= Start\n@ ./t:[0x1] + 0x2 0x3\n"), Detection::Known(Format::LeakLog));
        assert_eq!(settled(b"==5594== Memcheck, a memory error detector\n"), Detection::Known(Format::LeakLog));
        let sanitizer = b"\n=================\n==412==ERROR: LeakSanitizer: detected memory leaks\n";
        assert_eq!(settled(sanitizer), Detection::Known(Format::LeakLog));
        assert_eq!(settled(b"<?xml version=\"1.0\"?>\n\n<valgrindoutput>\n"), Detection::Known(Format::LeakLog));
        assert_eq!(format(&[b"hello\n", &sanitizer[..]].concat()), Some(Format::LeakLog));
        let pprof = [&b"\x0a\x04\x08\x01\x10\x02"[..], b"\x0a\x04\x08\x03\x10\x04", &[0x32; 20]].concat();
        assert_eq!(settled(&pprof), Detection::Weak(Format::Pprof));
        let written = crate::recording::Recording { format: "heaptape recording".into(), ..Default::default() };
        let written = serde_json::to_vec_pretty(&written).expect("plain fields");
        assert_eq!(settled(&written), Detection::Known(Format::Recording));
    }

    #[test]
    fn other_files_are_unknown() {
        for other in [
            &b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0"[..],
            b"{\"version\":1,\"nodes\":[]}",
            b"\n\nversion pdb-0.07\nimage 1\n",
        ] {
            assert_eq!(settled(other), Detection::Unknown, "{other:?}");
        }
        assert_eq!(sniff(b""), Detection::NeedMore);
        assert_eq!(format(b""), None);
        assert_eq!(format(b"MT"), None);
        assert_eq!(sniff(&[b' '; 5000]), Detection::Unknown);
        assert_eq!(sniff(&b"key value\n".repeat(10_000)), Detection::Unknown);
        assert_eq!(sniff(&[0; 64]), Detection::Unknown);
        assert_eq!(sniff(&[0xff; 64]), Detection::Unknown);
    }

    #[test]
    fn a_histogram_without_magic_is_weak() {
        for abi in Abi::ALL {
            let mut bytes = Vec::new();
            abi.put_word(&mut bytes, 0x40_11b0);
            abi.put_word(&mut bytes, 0x40_1584);
            abi.put(&mut bytes, 245 * 2 + 2 * u64::from(abi.word_size) + 4, 4);
            bytes.resize(600, 0);
            assert_eq!(settled(&bytes), Detection::Weak(Format::Gmon), "{}", abi.name());
        }
    }
}
