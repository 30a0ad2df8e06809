//! Writer of profiles. The tables keep their order, so that a file that was read is written byte
//! for byte.

use super::layout::{MAGIC, Profile};

impl Profile {
    /// Appends the file to `out`. Numbers that do not fit a 32-bit ABI lose their high bits, but no
    /// number that was read from such a file does.
    pub fn write(&self, out: &mut Vec<u8>) {
        let word = usize::from(self.abi.word_size);
        let numbers =
            10 + 2 * self.bins.allocated.len() + 17 * self.data.len() + 6 * self.sites.len() + self.symbols.len();
        out.reserve(2 * MAGIC.len() + numbers * word + self.strings.len() + self.trailing.len());
        let abi = self.abi;
        let put = |out: &mut Vec<u8>, numbers: &[u64]| match (abi.big_endian, abi.word_size) {
            (false, 8) => numbers.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes())),
            (true, 8) => numbers.iter().for_each(|word| out.extend_from_slice(&word.to_be_bytes())),
            _ => numbers.iter().for_each(|&word| abi.put_word(out, word)),
        };
        out.extend_from_slice(MAGIC);
        put(out, &[1, self.version]);
        put(out, &self.bounds);
        put(out, &[self.bins.allocated.len() as u64]);
        if !self.bins.allocated.is_empty() {
            put(out, &self.bins.allocated);
            put(out, &[self.bins.allocated_big]);
            put(out, &self.bins.freed);
            put(out, &[self.bins.freed_big]);
        }
        put(out, &[self.data.len() as u64]);
        for data in &self.data {
            put(out, &[data.index]);
            for sums in [&data.allocated, &data.freed] {
                put(out, &sums.counts);
                put(out, &sums.totals);
            }
        }
        put(out, &[self.sites.len() as u64]);
        for site in &self.sites {
            put(out, &[site.index, site.parent, site.address, site.symbol, site.name, site.data]);
        }
        put(out, &[self.symbols.len() as u64]);
        put(out, &self.symbols);
        put(out, &[self.strings.len() as u64]);
        out.extend_from_slice(&self.strings);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&self.trailing);
    }
}
