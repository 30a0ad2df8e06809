//! The functions that other modules may call, by symbol. The loader's own hash table answers for one
//! symbol, so that of the symbols and names of a file only those that are asked for are read.

use super::elf::{Elf, Symbol, function};
use super::section::Place;
use object::Endianness;
use rustc_hash::FxHashMap;
use std::rc::Rc;

/// Maximum number of symbols of one hash that are compared.
const MOST_SAME: usize = 1 << 16;

pub(super) enum Exports {
    Hashed(HashTable),
    /// All of them, of a file without a hash table.
    Listed(FxHashMap<Rc<[u8]>, u64>),
}

/// The table `.gnu.hash`, with the places of the symbols and names that it is about.
pub(super) struct HashTable {
    /// Words of the table, little-endian.
    words: Vec<u8>,
    symbols: Place,
    names: Place,
}

/// Returns the link-time address of a function of a file by its symbol.
pub(super) fn symbol_address(elf: &Elf, symbol: &[u8]) -> Option<u64> {
    Exports::of(elf).find(elf, symbol).or_else(|| elf.functions(false).start_of(symbol))
}

impl Exports {
    /// Returns the functions of a file that other modules may call.
    pub(super) fn of(elf: &Elf) -> Exports {
        let hashed = elf.hash_table().and_then(|(words, [symbols, names])| HashTable::new(words, symbols, names));
        hashed.map_or_else(|| Exports::Listed(elf.listed_exports()), Exports::Hashed)
    }

    /// Returns the link-time address of a function.
    pub(super) fn find(&self, elf: &Elf, symbol: &[u8]) -> Option<u64> {
        match self {
            Exports::Hashed(table) => table.find(elf, symbol),
            Exports::Listed(all) => all.get(symbol).copied(),
        }
    }
}

impl HashTable {
    /// Returns a table of these bytes; `None` if they are none.
    pub(super) fn new(words: Vec<u8>, symbols: Place, names: Place) -> Option<HashTable> {
        let table = HashTable { words, symbols, names };
        let (buckets, bloom) = (table.word(0)?, table.word(2)?);
        (buckets > 0 && bloom > 0).then_some(table)
    }

    fn word(&self, index: u64) -> Option<u64> {
        let at = usize::try_from(index.checked_mul(4)?).ok()?;
        Some(u32::from_le_bytes(self.words.get(at..at.checked_add(4)?)?.try_into().ok()?).into())
    }

    fn find(&self, elf: &Elf, symbol: &[u8]) -> Option<u64> {
        const HEAD: u64 = 4;
        let hash = hash(symbol);
        let [buckets, first, bloom, shift] = [self.word(0)?, self.word(1)?, self.word(2)?, self.word(3)?];
        // Two bits of a filter of 64-bit words say that a symbol may be there.
        let half = |bit: u64| Some(self.word(HEAD + 2 * ((hash / 64) % bloom) + bit % 64 / 32)? >> (bit % 32) & 1 == 1);
        if !half(hash)? || !half(hash.checked_shr(shift as u32)?)? {
            return None;
        }
        let (at, chains) = (HEAD + 2 * bloom, HEAD + 2 * bloom + buckets);
        let start = self.word(at + hash % buckets)?;
        for number in (start..).take(MOST_SAME) {
            let of = self.word(chains + number.checked_sub(first)?)?;
            if of | 1 == hash | 1
                && let Some(address) = self.function(elf, number, symbol)
            {
                return Some(address);
            }
            if of & 1 == 1 {
                return None;
            }
        }
        None
    }
}

impl HashTable {
    /// Returns the address of the symbol with this number, if it is that of a function of this name.
    fn function(&self, elf: &Elf, number: u64, symbol: &[u8]) -> Option<u64> {
        const ROW: u64 = size_of::<Symbol>() as u64;
        let at = number.checked_mul(ROW).filter(|at| at.saturating_add(ROW) <= self.symbols.bytes)?;
        let row = elf.read(Place { offset: self.symbols.offset.checked_add(at)?, bytes: ROW })?;
        let (row, _): (&Symbol, _) = object::from_bytes(&row).ok()?;
        let (function, _) = function(Endianness::Little, row)?;
        let (at, length) = (u64::from(function.name), symbol.len() as u64 + 1);
        if at.saturating_add(length) > self.names.bytes {
            return None;
        }
        let name = elf.read(Place { offset: self.names.offset.checked_add(at)?, bytes: length })?;
        (name.strip_prefix(symbol) == Some(b"\0")).then_some(function.start)
    }
}

fn hash(symbol: &[u8]) -> u64 {
    symbol.iter().fold(5381u32, |hash, byte| hash.wrapping_mul(33).wrapping_add((*byte).into())).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn hash_table_finds_what_the_list_has() {
        for path in ["/proc/self/exe", "/lib/x86_64-linux-gnu/libc.so.6", "/lib/aarch64-linux-gnu/libc.so.6"] {
            let Some(elf) = Elf::open(Path::new(path)) else { continue };
            let (found, listed, functions) = (Exports::of(&elf), elf.listed_exports(), elf.functions(true));
            assert!(matches!(found, Exports::Hashed(_)) || !path.contains("libc"), "{path}");
            for (symbol, address) in &listed {
                let same =
                    |found: u64| found == *address || functions.find(found).is_some_and(|one| one.start == found);
                assert!(found.find(&elf, symbol).is_some_and(same), "{path}: {}", String::from_utf8_lossy(symbol));
            }
            for absent in [&b"no_such_function"[..], b"", b"mallo", b"malloc "] {
                assert_eq!(found.find(&elf, absent), None);
            }
        }
    }

    #[test]
    fn hostile_tables_have_nothing() {
        let (symbols, names) = (Place { offset: 0, bytes: 1 << 40 }, Place { offset: 0, bytes: 1 << 40 });
        assert!(HashTable::new(Vec::new(), symbols, names).is_none());
        assert!(HashTable::new(vec![0; 64], symbols, names).is_none());
        let elf = Elf::open(Path::new("/proc/self/exe")).expect("this program");
        let table = HashTable::new(vec![0xff; 4096], symbols, names).expect("a table");
        assert_eq!(table.find(&elf, b"malloc"), None);
        let words = [vec![1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0], vec![0xff; 8], vec![0; 1 << 20]].concat();
        let table = HashTable::new(words, symbols, names).expect("a table");
        assert_eq!(table.find(&elf, b"malloc"), None);
    }
}
