//! Pointers that a program stores in a disguise: XORed with a constant, in the other order of bytes, or
//! rotated as glibc's `PTR_MANGLE` does. Nobody finds them one by one. But if many blocks of a kind have
//! no pointer, and the same constant makes words of memory from all their addresses, that is no chance.

use rustc_hash::FxHashSet;

/// Most words that are kept. With more than these, nothing is found.
const MAX_WORDS: usize = 4 << 20;
/// Blocks from which on a constant is no chance, and how many are compared.
pub(crate) const LEAST: usize = 4;
const COMPARED: usize = 1000;
/// Most words that are looked at, for all kinds of blocks together: some seconds.
const MAX_LOOKS: usize = 64 << 20;
/// Bits of an address.
const ADDRESS_BITS: u32 = 48;

/// Words of memory that are neither addresses nor small numbers.
#[derive(Debug, Default)]
pub(crate) struct OddWords {
    words: FxHashSet<u64>,
    is_full: bool,
    looks: usize,
}

type Disguise = fn(u64) -> u64;

/// What is done to an address before or after the constant is applied. All of these keep XOR: the
/// disguised difference of two addresses is the difference of their disguises.
const DISGUISES: [(&str, Disguise); 3] = [
    ("XOR", |word| word),
    ("XOR in the other order of bytes", u64::swap_bytes),
    ("XOR and rotation", |word| word.rotate_left(17)),
];

impl OddWords {
    /// Adds the words of some memory.
    pub(crate) fn add(&mut self, memory: &[u8]) {
        for bytes in memory.chunks_exact(8) {
            let word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
            let is_small_number = (word as i64).unsigned_abs() >> ADDRESS_BITS == 0;
            if word >> ADDRESS_BITS == 0 || is_small_number {
                continue;
            }
            if self.words.len() >= MAX_WORDS {
                self.is_full = true;
                return;
            }
            self.words.insert(word);
        }
    }

    /// Returns the disguise in which nearly all of these addresses are in memory.
    pub(crate) fn disguise(&mut self, addresses: &[u64]) -> Option<&'static str> {
        let &[first, .., last] = addresses else { return None };
        self.looks = self.looks.saturating_add(DISGUISES.len() * self.words.len());
        if self.is_full || addresses.len() < LEAST || self.looks > MAX_LOOKS {
            return None;
        }
        let others = [addresses[addresses.len() / 2], last];
        let compared: Vec<u64> = addresses.iter().step_by(addresses.len().div_ceil(COMPARED)).copied().collect();
        let found = DISGUISES.iter().find(|(_, disguise)| {
            let differences = others.map(|other| disguise(first ^ other));
            self.words.iter().any(|word| {
                if !differences.iter().all(|difference| self.words.contains(&(word ^ difference))) {
                    return false;
                }
                let constant = word ^ disguise(first);
                let count = compared.iter().filter(|at| self.words.contains(&(disguise(**at) ^ constant))).count();
                10 * count >= 9 * compared.len()
            })
        });
        found.map(|(name, _)| *name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Addresses as an allocator gives them.
    fn addresses() -> Vec<u64> {
        (0..50u64).map(|number| 0x5566_7788_0010 + 0x210 * number + number % 3 * 0x40).collect()
    }

    fn memory(words: impl IntoIterator<Item = u64>) -> OddWords {
        let mut found = OddWords::default();
        words.into_iter().for_each(|word| found.add(&word.to_le_bytes()));
        found
    }

    #[test]
    fn disguises_are_recognized() {
        const MASK: u64 = 0x5a5a_1234_a5a5_9876;
        let hidden = |disguise: fn(u64) -> u64| memory(addresses().into_iter().map(disguise));
        assert_eq!(hidden(|at| at ^ MASK).disguise(&addresses()), Some("XOR"));
        assert_eq!(hidden(|at| !at).disguise(&addresses()), None, "a small number, as far as we know");
        assert_eq!(hidden(|at| at | 0xbeef << 48).disguise(&addresses()), Some("XOR"), "a tag in the high bits");
        assert_eq!(hidden(u64::swap_bytes).disguise(&addresses()), Some("XOR in the other order of bytes"));
        assert_eq!(hidden(|at| (at ^ MASK).rotate_left(17)).disguise(&addresses()), Some("XOR and rotation"));
    }

    #[test]
    fn what_is_in_memory_by_chance_is_no_disguise() {
        let own = addresses();
        assert_eq!(memory(own.iter().copied()).disguise(&own), None, "plain pointers are found otherwise");
        let numbers = (1..5000u32).map(|number| f64::from(number).to_bits());
        let texts =
            (0..5000).map(|number| u64::from_le_bytes(format!("item{number:04}").as_bytes().try_into().unwrap()));
        let noise = (1..100_000u64).map(|number| number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        assert_eq!(memory(numbers.chain(texts).chain(noise)).disguise(&own), None);
        // Half of the blocks only.
        assert_eq!(memory(own.iter().step_by(2).map(|at| at ^ 0x1234_5678_9abc_def1)).disguise(&own), None);
        assert_eq!(memory([own[0] ^ 0xabcd << 48]).disguise(&own[..1]), None);
    }

    #[test]
    fn very_many_kinds_of_blocks_are_not_all_compared() {
        let own = addresses();
        let hidden = own.iter().map(|at| at ^ 0x1234_5678_9abc_def1);
        let mut words = memory(hidden.chain((1..1_000_000u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15))));
        assert_eq!(words.disguise(&own), Some("XOR"));
        words.looks = MAX_LOOKS;
        assert_eq!(words.disguise(&own), None);
    }
}
