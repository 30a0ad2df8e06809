//! Validation of a profile that arrives in several reads, in constant memory: every field is where
//! it belongs, and every reference is to an existing record. Only [`Profile::read`], which has the
//! whole profile, can see that no index occurs twice and that callers form no loop.
//!
//! [`Profile::read`]: super::Profile::read

use super::layout::*;
use super::reader::NO_FILE;
use crate::{Abi, Ending, Error, Format, Kind, ReadError, Validation};
use std::io::{self, BufReader, ErrorKind, Read};

/// Size of the read buffer in bytes.
const BUFFER: usize = 64 << 10;

/// Reason for an early end of the validation.
enum Stop {
    Truncated(u64, &'static str),
    ReadError(ReadError),
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Stop::ReadError(ReadError::Io(error))
    }
}

fn bad(offset: u64, field: &'static str, kind: Kind) -> Stop {
    Stop::ReadError(ReadError::Format(Error { format: Format::Mptl, offset, field, kind }))
}

/// The greatest reference to a later table of the file, and its offset.
#[derive(Clone, Copy, Default)]
struct Greatest {
    value: u64,
    offset: u64,
}

impl Greatest {
    fn update(&mut self, value: u64, offset: u64) {
        if value > self.value {
            *self = Greatest { value, offset };
        }
    }

    fn within(self, most: u64, what: Reference) -> Result<(), Stop> {
        let Greatest { value, offset } = self;
        if value <= most { Ok(()) } else { Err(bad(offset, what.field, Kind::Bad(value, what.expected))) }
    }
}

struct Validator<'a> {
    input: BufReader<&'a mut dyn Read>,
    offset: u64,
    abi: Abi,
}

/// Validates a profile up to the end mark. Bytes after it are not looked at.
///
/// # Errors
/// When reading fails, or the bytes do not start with a header of a known version.
pub fn validate(mut from: impl Read) -> Result<Validation, ReadError> {
    validate_from(&mut from)
}

/// The loops over the tables are compiled here, with optimization, and not for each caller.
fn validate_from(from: &mut dyn Read) -> Result<Validation, ReadError> {
    let mut validator = Validator { input: BufReader::with_capacity(BUFFER, from), offset: 0, abi: Abi::LE64 };
    validator.head().map_err(|stop| match stop {
        Stop::Truncated(offset, field) => {
            ReadError::Format(Error { format: Format::Mptl, offset, field, kind: Kind::Truncated })
        }
        Stop::ReadError(failure) => failure,
    })?;
    match validator.tables() {
        Ok(()) => Ok(Validation { ending: Ok(Ending::Complete), bytes: validator.offset }),
        Err(Stop::Truncated(offset, field)) => {
            Ok(Validation { ending: Ok(Ending::Truncated { offset, field }), bytes: validator.offset })
        }
        Err(Stop::ReadError(ReadError::Format(error))) => Ok(Validation { bytes: error.offset, ending: Err(error) }),
        Err(Stop::ReadError(failure)) => Err(failure),
    }
}

impl Validator<'_> {
    /// Fills `bytes` as far as possible. Returns the number of bytes read.
    fn fill(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut held = 0;
        while let Some(rest) = bytes.get_mut(held..).filter(|rest| !rest.is_empty()) {
            match self.input.read(rest) {
                Ok(0) => break,
                Ok(count) => held += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.offset += held as u64;
        Ok(held)
    }

    fn bytes<const N: usize>(&mut self, field: &'static str) -> Result<[u8; N], Stop> {
        let (offset, mut bytes) = (self.offset, [0; N]);
        if self.fill(&mut bytes)? < N { Err(Stop::Truncated(offset, field)) } else { Ok(bytes) }
    }

    /// Reads a record of `N` numbers.
    fn numbers<const N: usize>(&mut self, field: &'static str) -> Result<[u64; N], Stop> {
        let (offset, word) = (self.offset, usize::from(self.abi.word_size));
        let mut bytes = [[0u8; 8]; DATA_LEN];
        let target = bytes.as_flattened_mut().get_mut(..N * word).unwrap_or_default();
        if self.fill(target)? < N * word {
            return Err(Stop::Truncated(offset, field));
        }
        let flat = bytes.as_flattened();
        Ok(std::array::from_fn(|at| self.abi.number(flat.get(at * word..(at + 1) * word).unwrap_or_default())))
    }

    fn word(&mut self, field: &'static str) -> Result<u64, Stop> {
        Ok(self.numbers::<1>(field)?[0])
    }

    /// Reads a count of items of at least `min_len` numbers.
    fn count(&mut self, field: &'static str, min_len: u64) -> Result<u64, Stop> {
        let offset = self.offset;
        let count = self.word(field)?;
        let bytes = count.checked_mul(min_len * u64::from(self.abi.word_size));
        match bytes.filter(|&bytes| bytes < NO_FILE) {
            Some(_) => Ok(count),
            None => Err(bad(offset, field, Kind::Bad(count, "no file is that large"))),
        }
    }

    fn head(&mut self) -> Result<(), Stop> {
        if self.bytes("magic")? != *MAGIC {
            return Err(bad(0, "magic", Kind::Magic));
        }
        let offset = self.offset;
        let mark = self.bytes::<8>("byte order mark")?;
        let Some(abi) = Abi::detect(&mark) else {
            return Err(bad(offset, "byte order mark", Kind::Text("not a machine word 1".into())));
        };
        self.abi = abi;
        let (_, rest) = mark.split_at(usize::from(abi.word_size));
        let offset = self.offset - rest.len() as u64;
        let version = if rest.is_empty() { self.word("version")? } else { abi.number(rest) };
        if !(FIRST_KNOWN..FIRST_TOO_NEW).contains(&version) {
            return Err(bad(offset, "version", Kind::Version(version)));
        }
        Ok(())
    }

    fn tables(&mut self) -> Result<(), Stop> {
        for field in ["small bound", "medium bound", "large bound"] {
            self.word(field)?;
        }
        let bins = self.count("bin size", 2)?;
        if bins > 0 {
            for (each, total) in [("allocated bins", "allocated total"), ("freed bins", "freed total")] {
                for _ in 0..bins {
                    self.word(each)?;
                }
                self.word(total)?;
            }
        }
        let data = self.count("data count", DATA_LEN as u64)?;
        for _ in 0..data {
            let offset = self.offset;
            let [index, ..] = self.numbers::<DATA_LEN>("data")?;
            numbered(offset, DATA_INDEX, index, data)?;
        }
        let (symbol, name) = self.sites(data)?;
        let symbols = self.count("symbol count", 1)?;
        symbol.within(symbols, SYMBOL)?;
        for _ in 0..symbols {
            self.word("symbol addresses")?;
        }
        let named_until = self.strings()?;
        name.within(named_until, NAME)?;
        let offset = self.offset;
        if self.bytes("end mark")? == *MAGIC { Ok(()) } else { Err(bad(offset, "end mark", Kind::Magic)) }
    }

    /// Validates the sites. Returns their greatest references to the later tables: a symbol, and a
    /// name.
    fn sites(&mut self, data: u64) -> Result<(Greatest, Greatest), Stop> {
        let (mut symbols, mut names) = <(Greatest, Greatest)>::default();
        let sites = self.count("site count", SITE_LEN as u64)?;
        let word = u64::from(self.abi.word_size);
        for _ in 0..sites {
            let offset = self.offset;
            let [index, parent, _, symbol, name, of] = self.numbers("site")?;
            numbered(offset, SITE_INDEX, index, sites)?;
            let at = |what: Reference| offset + what.word as u64 * word;
            Greatest { value: parent, offset: at(PARENT) }.within(sites, PARENT)?;
            Greatest { value: of, offset: at(SITE_DATA) }.within(data, SITE_DATA)?;
            symbols.update(symbol, at(SYMBOL));
            names.update(name, at(NAME));
        }
        Ok((symbols, names))
    }

    /// Checks the string table. Returns the last offset at which a name may start.
    fn strings(&mut self) -> Result<u64, Stop> {
        let offset = self.offset;
        let length = self.word("string table size")?;
        if length >= NO_FILE {
            return Err(bad(offset, "string table size", Kind::Bad(length, "no file is that large")));
        }
        let (start, mut last) = (self.offset, 0);
        let mut buffer = [0; 4096];
        while self.offset - start < length {
            let before = self.offset - start;
            let wanted = (length - before).min(buffer.len() as u64) as usize;
            let target = buffer.get_mut(..wanted).unwrap_or_default();
            if self.fill(target)? < wanted {
                return Err(Stop::Truncated(start, "string table"));
            }
            let found = buffer.get(..wanted).unwrap_or_default().iter().rposition(|&byte| byte == 0);
            last = found.map_or(last, |index| before + index as u64);
        }
        Ok(last)
    }
}

fn numbered(offset: u64, what: Reference, index: u64, count: u64) -> Result<(), Stop> {
    match index {
        0 => Err(bad(offset, what.field, Kind::Bad(index, what.expected))),
        _ => Greatest { value: index, offset }.within(count, what),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mptl::{Profile, needs_whole_file};

    /// Returns every profile in the golden folders.
    fn golden() -> Vec<(String, Vec<u8>)> {
        let mut found = Vec::new();
        for folder in ["mpatrol", "mpatrol/edge"] {
            let folder = format!("{}/../tests/golden/{folder}", env!("CARGO_MANIFEST_DIR"));
            for entry in std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{error}")).flatten() {
                if entry.path().extension().is_some_and(|end| end == "mpt") {
                    let bytes = std::fs::read(entry.path()).unwrap_or_else(|error| panic!("{error}"));
                    found.push((entry.file_name().to_string_lossy().into_owned(), bytes));
                }
            }
        }
        assert!(found.len() > 20, "{}", found.len());
        found
    }

    /// Returns one byte at a time, so that nothing depends on how the bytes arrive.
    struct Slow<'a>(&'a [u8]);

    impl Read for Slow<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let count = into.len().min(1);
            self.0.read(into.get_mut(..count).unwrap_or_default())
        }
    }

    #[test]
    fn ends_where_the_reader_in_memory_ends() {
        for (name, bytes) in golden() {
            match (Profile::read(&bytes), validate(Slow(&bytes))) {
                (Ok((profile, ending)), Ok(validated)) => {
                    let len = (bytes.len() - profile.trailing.len()) as u64;
                    assert_eq!(validated, Validation { ending: Ok(ending), bytes: len }, "{name}");
                }
                (Err(error), Ok(Validation { ending: Err(validated), .. }) | Err(ReadError::Format(validated))) => {
                    assert_eq!(error, validated, "{name}");
                }
                (Err(error), Ok(_)) => assert!(needs_whole_file(&error), "{name}: {error}"),
                other => panic!("{name}: {other:?}"),
            }
        }
    }

    #[test]
    fn truncation_is_reported_as_by_the_reader_in_memory() {
        for (name, bytes) in golden() {
            if Profile::read(&bytes).is_err() {
                continue;
            }
            for length in (0..bytes.len()).step_by(bytes.len() / 300 + 1) {
                let cut = &bytes[..length];
                match (Profile::read(cut), validate(cut)) {
                    (Ok((_, ending)), Ok(validated)) => {
                        assert_eq!(Ok(ending), validated.ending, "{name} cut at {length}");
                        assert!(ending.is_complete() || validated.bytes == length as u64, "{name} cut at {length}");
                    }
                    (Err(error), Err(ReadError::Format(validated))) => {
                        assert_eq!(error, validated, "{name} cut at {length}")
                    }
                    other => panic!("{name} cut at {length}: {other:?}"),
                }
            }
        }
    }

    #[test]
    fn bytes_before_an_error_are_readable() {
        let mut wrong = 0;
        for (name, bytes) in golden() {
            for offset in (0..bytes.len()).step_by(bytes.len() / 300 + 1) {
                let mut bytes = bytes.clone();
                bytes[offset] ^= 0xa5;
                if let Ok(Validation { ending: Err(error), bytes: kept }) = validate(&bytes[..]) {
                    let read = Profile::read(&bytes[..(kept as usize).min(bytes.len())]);
                    wrong += 1;
                    assert!(
                        read.as_ref().map_or_else(needs_whole_file, |(_, ending)| !ending.is_complete()),
                        "{name}, byte {offset}: {error}: {read:?}"
                    );
                }
            }
        }
        assert!(wrong > 100, "{wrong}");
    }
}
