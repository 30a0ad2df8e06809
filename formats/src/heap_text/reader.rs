//! Reader of text heap profiles, one line at a time.

use super::layout::{Counts, Dialect, Header, MAGIC, MAPPINGS, Mapping, Name, Record, Sample};
use crate::{Ending, Error, Format, Kind, Result};

/// Maximum number of frames of a sample. The writers have at most 1,024.
const MAX_FRAMES: usize = 1 << 14;
/// Maximum length of a line that defines a variable for paths.
const MAX_VARIABLE: usize = 4096;

/// Reader of the records of a file.
///
/// # Examples
///
/// ```
/// use heaptape_formats::heap_text::{Reader, Record};
///
/// let file = b"heap profile: 1: 64 [2: 96] @ heapprofile\n 1: 64 [2: 96] @ 0x1234 0x5678\n";
/// let mut reader = Reader::new(file)?;
/// let Some(Record::Sample(sample)) = reader.next()? else { panic!("a sample") };
/// assert_eq!((sample.live.bytes, sample.allocated.bytes), (64, 96));
/// assert_eq!(sample.addresses, [0x1234, 0x5678]);
/// assert_eq!(reader.next()?, None);
/// # Ok::<(), heaptape_formats::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    head: Header,
    /// The stack that the counts after it belong to (jemalloc). `None` before the first one.
    stack: Option<Vec<u64>>,
    is_mapped: bool,
    /// The last variable before the mapped files, such as `$source`, and its value.
    variable: (String, String),
    ending: Option<Ending>,
}

impl<'a> Reader<'a> {
    /// Creates a reader and reads the first line.
    ///
    /// # Errors
    /// When the first line is not that of a heap profile.
    pub fn new(bytes: &'a [u8]) -> Result<Reader<'a>> {
        let wrong = |kind| Error { format: Format::HeapText, offset: 0, field: "header", kind };
        let dialect = MAGIC.iter().find(|(magic, _)| bytes.starts_with(magic)).ok_or_else(|| wrong(Kind::Magic))?.1;
        let mut reader = Reader {
            bytes,
            at: 0,
            head: Header::default(),
            stack: None,
            is_mapped: false,
            variable: Default::default(),
            ending: None,
        };
        let line = reader.line().ok_or_else(|| wrong(Kind::Truncated))?;
        let text = String::from_utf8_lossy(line);
        let what = match dialect {
            Dialect::Jemalloc => text.trim(),
            Dialect::Java => "heapz",
            Dialect::Gperftools => text.rsplit_once('@').map_or("", |(_, what)| what.trim()),
        };
        let (kind, period) = what.split_once('/').unwrap_or((what, ""));
        reader.head = Header { dialect, kind: kind.into(), period: period.parse().unwrap_or(0) };
        Ok(reader)
    }

    /// Returns the first line.
    pub const fn head(&self) -> &Header {
        &self.head
    }

    /// Returns how the file ended, once there is no further record.
    pub const fn ending(&self) -> Option<Ending> {
        self.ending
    }

    /// Reads the next record. Returns `None` at the end of the file, and where it is truncated.
    ///
    /// # Errors
    /// When a line is neither a sample nor anything else that such files have.
    #[allow(clippy::should_implement_trait, reason = "it can fail")]
    pub fn next(&mut self) -> Result<Option<Record>> {
        while self.ending.is_none() {
            let start = self.at;
            let Some(line) = self.line() else {
                let is_whole = self.at >= self.bytes.len();
                let cut = Ending::Truncated { offset: start as u64, field: "line" };
                self.ending = Some(if is_whole { Ending::Complete } else { cut });
                break;
            };
            let line = line.trim_ascii();
            if MAPPINGS.contains(&line) {
                self.is_mapped = true;
            } else if self.is_mapped {
                if let Some(mut mapping) = mapping(line) {
                    mapping.path = self.with_variable(mapping.path);
                    return Ok(Some(Record::Mapping(mapping)));
                }
                let text = String::from_utf8_lossy(line);
                if let Some((name, value)) = text.split_once('=').filter(|_| line.len() <= MAX_VARIABLE) {
                    self.variable = (format!("${name}"), value.to_owned());
                }
            } else if let Some(comment) = line.strip_prefix(b"#") {
                if let Some(name) = go_frame(comment) {
                    return Ok(Some(Record::Frame(name)));
                }
            } else if !line.is_empty() {
                let record = match self.head.dialect {
                    Dialect::Gperftools => gperftools(line).map(|sample| Some(Record::Sample(sample))),
                    Dialect::Jemalloc => self.jemalloc(line),
                    Dialect::Java => java(line),
                };
                let kind = || Kind::Text("neither a sample nor a mapped file".into());
                let error = || Error { format: Format::HeapText, offset: start as u64, field: "line", kind: kind() };
                if let Some(record) = record.ok_or_else(error)? {
                    return Ok(Some(record));
                }
            }
        }
        Ok(None)
    }

    /// Returns a path with the value of the variable that it begins with.
    fn with_variable(&self, path: String) -> String {
        let (name, value) = &self.variable;
        match path.strip_prefix(&**name).filter(|_| !name.is_empty()) {
            Some(rest) => format!("{value}{rest}"),
            None => path,
        }
    }

    /// Returns the next line that is whole.
    fn line(&mut self) -> Option<&'a [u8]> {
        let rest = self.bytes.get(self.at..)?;
        let end = rest.iter().position(|&byte| byte == b'\n')?;
        self.at += end + 1;
        Some(&rest[..end])
    }

    /// Parses a stack, or counts. Those of single threads are parts of those of all.
    fn jemalloc(&mut self, line: &[u8]) -> Option<Option<Record>> {
        if let Some(stack) = line.strip_prefix(b"@") {
            self.stack = Some(addresses(stack)?);
            return Some(None);
        }
        let rest = line.strip_prefix(b"t")?;
        let (thread, rest) = split(rest, b':')?;
        let (live, allocated) = counts(rest)?;
        // A stack has its counts once.
        let stack = if thread == b"*" { self.stack.take() } else { None };
        Some(stack.map(|addresses| Record::Sample(Sample { live, allocated, addresses })))
    }
}

fn split(text: &[u8], at: u8) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|&byte| byte == at)?;
    Some((&text[..end], &text[end + 1..]))
}

/// Parses a number. Profiles of differences may have negative ones, which count as 0.
fn number(text: &[u8]) -> Option<u64> {
    let number: i128 = std::str::from_utf8(text.trim_ascii()).ok()?.parse().ok()?;
    u64::try_from(number.max(0)).ok()
}

fn hex(text: &[u8]) -> Option<u64> {
    let digits = text.strip_prefix(b"0x").unwrap_or(text);
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

fn addresses(text: &[u8]) -> Option<Vec<u64>> {
    let words = text.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    words.take(MAX_FRAMES).map(hex).collect()
}

/// Parses `1: 64 [2: 96]`.
fn counts(text: &[u8]) -> Option<(Counts, Counts)> {
    let pair = |text: &[u8]| {
        let (blocks, bytes) = split(text, b':')?;
        Some(Counts { blocks: number(blocks)?, bytes: number(bytes)? })
    };
    let (live, rest) = split(text, b'[')?;
    Some((pair(live)?, pair(split(rest, b']')?.0)?))
}

fn gperftools(line: &[u8]) -> Option<Sample> {
    let (numbers, stack) = split(line, b'@')?;
    let (live, allocated) = counts(numbers)?;
    Some(Sample { live, allocated, addresses: addresses(stack)? })
}

/// Parses a sample, the name of an address, or `key = value`, which says nothing that is needed.
fn java(line: &[u8]) -> Option<Option<Record>> {
    if line.starts_with(b"0x") {
        let text = String::from_utf8_lossy(line);
        let (address, rest) = text.split_once(char::is_whitespace)?;
        let (function, place) = rest.trim().rsplit_once(" (").unwrap_or((rest.trim(), ""));
        let (file, line) = place_of(place.trim_end_matches(')'));
        let address = hex(address.as_bytes())?;
        return Some(Some(Record::Name(Name { address, function: function.trim().into(), file, line })));
    }
    let Some((numbers, stack)) = split(line, b'@') else { return line.contains(&b'=').then_some(None) };
    let (bytes, blocks) = split(numbers.trim_ascii(), b' ')?;
    let live = Counts { blocks: number(blocks)?, bytes: number(bytes)? };
    Some(Some(Record::Sample(Sample { live, allocated: Counts::default(), addresses: addresses(stack)? })))
}

/// Splits `file:line` at the colon.
fn place_of(text: &str) -> (String, u64) {
    let known = text.rsplit_once(':').and_then(|(file, line)| Some((file.to_owned(), line.parse().ok()?)));
    known.unwrap_or_else(|| (text.to_owned(), 0))
}

/// Parses `0x4a1b2c  main.keep+0x2b  /src/main.go:12`.
fn go_frame(comment: &[u8]) -> Option<Name> {
    let text = String::from_utf8_lossy(comment.strip_prefix(b"\t")?);
    let mut words = text.split('\t').map(str::trim).filter(|word| !word.is_empty());
    let address = hex(words.next()?.as_bytes())?;
    let function = words.next().unwrap_or("");
    let function = function.rsplit_once("+0x").map_or(function, |(function, _)| function);
    let (file, line) = place_of(words.next().unwrap_or(""));
    Some(Name { address, function: function.into(), file, line })
}

/// Parses a line of `/proc/PID/maps`, or `start-end: path`.
fn mapping(line: &[u8]) -> Option<Mapping> {
    let text = String::from_utf8_lossy(line);
    let (range, rest) = text.split_once(char::is_whitespace).unwrap_or((&text, ""));
    let (start, end) = range.trim_end_matches(':').split_once('-')?;
    let (start, end) = (hex(start.as_bytes())?, hex(end.as_bytes())?);
    let rest = rest.trim();
    if range.ends_with(':') {
        return Some(Mapping { start, end, offset: None, executable: true, path: rest.into() });
    }
    let mut fields = rest.splitn(5, char::is_whitespace);
    let (access, offset) = (fields.next()?, fields.next()?);
    let path = fields.nth(2).unwrap_or("").trim().into();
    Some(Mapping { start, end, offset: Some(hex(offset.as_bytes())?), executable: access.contains('x'), path })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(text: &str) -> (Header, Vec<Record>, Option<Ending>) {
        let mut reader = Reader::new(text.as_bytes()).expect("a profile");
        let mut all = Vec::new();
        while let Some(record) = reader.next().expect("a record") {
            all.push(record);
        }
        (reader.head().clone(), all, reader.ending())
    }

    #[test]
    fn only_counts_of_all_threads_with_a_stack_are_samples() {
        let text = "heap_v2/4096\n  t*: 3: 30 [0: 0]\n  t0: 3: 30 [0: 0]\n@ 0x10 0x20\n  t*: 2: 20 [5: 50]\n  t7: 2: 20 [5: 50]\n";
        let (head, all, ending) = records(text);
        let (live, allocated) = (Counts { blocks: 2, bytes: 20 }, Counts { blocks: 5, bytes: 50 });
        assert_eq!(all, [Record::Sample(Sample { live, allocated, addresses: vec![0x10, 0x20] })]);
        assert_eq!((head.mean(), ending), (4096, Some(Ending::Complete)));
    }

    #[test]
    fn means_depend_on_the_kind() {
        let mean = |kind: &str| {
            Reader::new(format!("heap profile: 0: 0 [0: 0] @ {kind}\n").as_bytes()).expect("one").head().mean()
        };
        let kinds = ["heapprofile", "growthz", "heap_v2/524288", "heapz_v2/524288", "heap/1048576", ""];
        assert_eq!(kinds.map(mean), [0, 0, 524_288, 524_288, 524_288, 0]);
    }

    #[test]
    fn names_and_mappings_of_all_dialects_are_read() {
        let go = "heap profile: 1: 8 [1: 8] @ heap/1048576\n1: 8 [1: 8] @ 0x4a1b2d\n#\t0x4a1b2c\tmain.keep+0x2b\t\t/src/my main.go:12\n\n# runtime.MemStats\n# Alloc = 1\n";
        let frame = Name { address: 0x4a_1b2c, function: "main.keep".into(), file: "/src/my main.go".into(), line: 12 };
        assert_eq!(records(go).1[1..], [Record::Frame(frame)]);
        let java = "--- heapz 1 ---\nformat = java\nresolution = bytes\n 7048     1 @ 0x00000003\n 0x00000003 a.b.C.put (C.java:13)\n";
        let (_, all, _) = records(java);
        let name = Name { address: 3, function: "a.b.C.put".into(), file: "C.java".into(), line: 13 };
        assert_eq!(all[1], Record::Name(name));
        let Record::Sample(sample) = &all[0] else { panic!("a sample") };
        assert_eq!(sample.live, Counts { blocks: 1, bytes: 7048 });
        let maps = "heap_v2/1\nMAPPED_LIBRARIES:\n1000-2000 r-xp 00001000 fe:00 7     /a b\n3000-4000: lib.so\n5000-6000 rw-p 0 0:0 0\n";
        let map = |start, offset, executable, path: &str| {
            Record::Mapping(Mapping { start, end: start + 0x1000, offset, executable, path: path.into() })
        };
        let wanted = [
            map(0x1000, Some(0x1000), true, "/a b"),
            map(0x3000, None, true, "lib.so"),
            map(0x5000, Some(0), false, ""),
        ];
        assert_eq!(records(maps).1, wanted);
    }

    #[test]
    fn a_cut_line_is_not_read() {
        let text = "heap profile: 1: 64 [1: 64] @ heapprofile\n 1: 64 [1: 64] @ 0x1234 0x56";
        let (_, all, ending) = records(text);
        assert_eq!((all, ending), (vec![], Some(Ending::Truncated { offset: 42, field: "line" })));
        let mut wrong = Reader::new(b"heap profile: 1: 64 [1: 64] @ heap\nhello\n").expect("a profile");
        assert!(wrong.next().is_err());
    }
}
