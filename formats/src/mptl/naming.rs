//! Addition of names to a profile that has none, in one pass and without its tables in memory: the
//! profile of a compiler has a million sites.

use super::layout::{DATA_LEN, MAGIC, SITE_LEN, VERSION};
use std::collections::HashMap;
use std::hash::Hash;
use std::io::{self, Error, ErrorKind, Read, Write};

/// Source of the functions of a profile's sites.
pub trait FunctionNames {
    /// Identity of a function.
    type Key: Copy + Eq + Hash;
    /// Returns the function of a site, by the site's number and address. Sites come by ascending
    /// address.
    fn function(&mut self, number: u64, address: u64) -> Option<Self::Key>;
    /// Returns the start address of a function and its name, which ends at its first NUL. Called
    /// once for each function.
    fn name(&mut self, key: Self::Key) -> (u64, Vec<u8>);
}

const WORD: usize = size_of::<u64>();

/// Copies a profile that was written on a machine of this kind (64 bits, little-endian) and adds
/// the names of its sites. Everything else is unchanged. Symbols and names are numbered as
/// [`super::Builder`] numbers them.
///
/// # Errors
/// When reading or writing fails. [`ErrorKind::InvalidData`] if the file is of another machine, is
/// truncated, or has names already.
pub fn add_names(input: &mut impl Read, out: &mut impl Write, functions: &mut impl FunctionNames) -> io::Result<()> {
    mark(input, out)?;
    let head = numbers(input, out, 6)?;
    require(head[0] == 1 && head[1] == VERSION, "version")?;
    if head[5] > 0 {
        copy(input, out, head[5], 2)?;
        copy(input, out, 2, 1)?;
    }
    let data = numbers(input, out, 1)?[0];
    copy(input, out, data, DATA_LEN)?;
    let sites = numbers(input, out, 1)?[0];
    let mut names = Names::default();
    let mut record = [0u8; SITE_LEN * WORD];
    for _ in 0..sites {
        input.read_exact(&mut record).map_err(truncated)?;
        let word = |at: usize| u64::from_le_bytes(*record[at * WORD..].first_chunk().unwrap_or(&[0; WORD]));
        require(word(3) == 0 && word(4) == 0, "symbol of a site")?;
        if let Some(key) = functions.function(word(0), word(2)) {
            let (symbol, offset) = names.number(key, functions);
            record[3 * WORD..4 * WORD].copy_from_slice(&symbol.to_le_bytes());
            record[4 * WORD..5 * WORD].copy_from_slice(&offset.to_le_bytes());
        }
        out.write_all(&record)?;
    }
    // These tables are replaced: no symbols, and a string table that holds only the empty name.
    let mut tail = [0u8; 2 * WORD];
    input.read_exact(&mut tail).map_err(truncated)?;
    let (symbols, strings) = tail.split_at(WORD);
    require(symbols == 0u64.to_le_bytes() && strings == 1u64.to_le_bytes(), "string table")?;
    input.read_exact(&mut [0]).map_err(truncated)?;
    names.write(out)?;
    mark(input, out)
}

struct Names<K> {
    numbers: HashMap<K, (u64, u64)>,
    offsets: HashMap<Vec<u8>, u64>,
    starts: Vec<u64>,
    strings: Vec<u8>,
}

impl<K> Default for Names<K> {
    fn default() -> Self {
        Names { numbers: HashMap::new(), offsets: HashMap::new(), starts: Vec::new(), strings: vec![0] }
    }
}

impl<K: Copy + Eq + Hash> Names<K> {
    /// Returns the number of a function's symbol and the offset of its name.
    fn number(&mut self, key: K, functions: &mut impl FunctionNames<Key = K>) -> (u64, u64) {
        if let Some(known) = self.numbers.get(&key) {
            return *known;
        }
        let (start, mut name) = functions.name(key);
        name.truncate(name.iter().position(|byte| *byte == 0).unwrap_or(name.len()));
        self.starts.push(start);
        let offset = if name.is_empty() { 0 } else { self.offset(name) };
        self.numbers.insert(key, (self.starts.len() as u64, offset));
        (self.starts.len() as u64, offset)
    }

    fn offset(&mut self, name: Vec<u8>) -> u64 {
        let next = self.strings.len() as u64;
        let offset = *self.offsets.entry(name.clone()).or_insert(next);
        if offset == next {
            self.strings.extend_from_slice(&name);
            self.strings.push(0);
        }
        offset
    }

    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        out.write_all(&(self.starts.len() as u64).to_le_bytes())?;
        self.starts.iter().try_for_each(|start| out.write_all(&start.to_le_bytes()))?;
        out.write_all(&(self.strings.len() as u64).to_le_bytes())?;
        out.write_all(&self.strings)
    }
}

fn mark(input: &mut impl Read, out: &mut impl Write) -> io::Result<()> {
    let mut mark = [0; MAGIC.len()];
    input.read_exact(&mut mark).map_err(truncated)?;
    require(mark == *MAGIC, "magic")?;
    out.write_all(&mark)
}

fn numbers(input: &mut impl Read, out: &mut impl Write, count: usize) -> io::Result<Vec<u64>> {
    let mut bytes = vec![0; count * WORD];
    input.read_exact(&mut bytes).map_err(truncated)?;
    out.write_all(&bytes)?;
    Ok(bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect())
}

fn copy(input: &mut impl Read, out: &mut impl Write, records: u64, record_len: usize) -> io::Result<()> {
    let bytes = records.checked_mul((record_len * WORD) as u64).ok_or_else(|| invalid("number of records"))?;
    let copied = io::copy(&mut input.take(bytes), out)?;
    if copied == bytes { Ok(()) } else { Err(truncated(ErrorKind::UnexpectedEof.into())) }
}

fn require(holds: bool, field: &'static str) -> io::Result<()> {
    if holds { Ok(()) } else { Err(invalid(field)) }
}

fn invalid(field: &'static str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("MPTL: {field}: not a profile without names that this machine wrote"))
}

fn truncated(error: Error) -> Error {
    if error.kind() == ErrorKind::UnexpectedEof {
        Error::new(ErrorKind::InvalidData, "MPTL: the file ends here")
    } else {
        error
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Bins, Builder, Profile};
    use super::*;

    const ROWS: [(u64, u64); 7] = [(0, 0x50), (1, 0x1050), (2, 0x51), (0, 0x3000), (2, 0x1051), (5, 0x52), (1, 0x9000)];

    struct TestFunctions;

    impl FunctionNames for TestFunctions {
        type Key = u64;
        fn function(&mut self, _: u64, address: u64) -> Option<u64> {
            (address < 0x9000).then_some(address >> 12)
        }
        fn name(&mut self, key: u64) -> (u64, Vec<u8>) {
            // Two functions have the same name, and one has an empty name.
            (key << 12, [&b"one"[..], b"two", b"", b"one"][key as usize].to_vec())
        }
    }

    fn profile(named: bool) -> Vec<u8> {
        let mut builder = Builder::new([32, 256, 2048], Bins::new(16));
        let mut symbols = HashMap::new();
        for (parent, address) in ROWS {
            let key = TestFunctions.function(0, address).filter(|_| named);
            let symbol = key.map(|key| {
                let (start, name) = TestFunctions.name(key);
                *symbols.entry(key).or_insert_with(|| builder.symbol(start, &name))
            });
            builder.site(parent, address, symbol);
        }
        (0..40).for_each(|block| builder.alloc(block % 8, block * 3));
        let mut out = Vec::new();
        builder.build().write(&mut out);
        out
    }

    #[test]
    fn names_equal_those_of_the_builder() {
        let mut out = Vec::new();
        add_names(&mut profile(false).as_slice(), &mut out, &mut TestFunctions).expect("a profile without names");
        assert_eq!(out, profile(true));
        assert!(Profile::read(&out).is_ok());
    }

    #[test]
    fn other_and_truncated_files_are_refused() {
        let bytes = profile(false);
        let refused = |bytes: &[u8]| {
            let done = add_names(&mut &bytes[..], &mut io::sink(), &mut TestFunctions);
            done.expect_err("another's").kind() == ErrorKind::InvalidData
        };
        assert!((0..bytes.len()).all(|end| refused(&bytes[..end])));
        assert!(refused(&profile(true)));
        let mut wild = bytes.clone();
        wild[44..52].copy_from_slice(&u64::MAX.to_le_bytes());
        assert!(refused(&wild));
    }
}
