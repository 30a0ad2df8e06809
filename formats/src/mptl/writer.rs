//! Writer of profiles. The tables keep their order, so that a file that was read is written byte
//! for byte. A large profile without names is written from where its numbers are.

use super::layout::{Data, MAGIC, Profile, Site, Sums};
use crate::Abi;

fn put(abi: Abi, out: &mut Vec<u8>, numbers: &[u64]) {
    match (abi.big_endian, abi.word_size) {
        (false, 8) => numbers.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes())),
        (true, 8) => numbers.iter().for_each(|word| out.extend_from_slice(&word.to_be_bytes())),
        _ => numbers.iter().for_each(|&word| abi.put_word(out, word)),
    }
}

fn put_data(abi: Abi, out: &mut Vec<u8>, data: &Data) {
    put(abi, out, &[data.index]);
    for sums in [&data.allocated, &data.freed] {
        put(abi, out, &sums.counts);
        put(abi, out, &sums.totals);
    }
}

fn put_site(abi: Abi, out: &mut Vec<u8>, site: &Site) {
    put(abi, out, &[site.index, site.parent, site.address, site.symbol, site.name, site.data]);
}

impl Profile {
    /// Appends the file to `out`. Numbers that do not fit a 32-bit ABI lose their high bits, but no
    /// number that was read from such a file does.
    pub fn write(&self, out: &mut Vec<u8>) {
        let abi = self.abi;
        self.put_head(self.data.len(), self.sites.len(), out);
        self.data.iter().for_each(|data| put_data(abi, out, data));
        put(abi, out, &[self.sites.len() as u64]);
        self.sites.iter().for_each(|site| put_site(abi, out, site));
        self.put_rest(out);
    }

    /// Appends the file to `out`, with `count` sites instead of those of the profile, as a
    /// [`super::Builder`] would number them. `site` returns the parent and the address of the sites
    /// 1, 2, 3 …, `sums` what was allocated at them and freed. So no table is in memory twice.
    pub fn write_with_sites(
        &self,
        count: usize,
        site: impl Fn(usize) -> (u64, u64),
        sums: impl Fn(usize) -> Option<(Sums, Sums)>,
        out: &mut Vec<u8>,
    ) {
        let abi = self.abi;
        let with_data = (1..=count).filter(|number| sums(*number).is_some()).count();
        self.put_head(with_data, count, out);
        let (mut data_of, mut index) = (vec![0u32; count], 0);
        for (number, data_of) in (1..=count).zip(&mut data_of) {
            if let Some((allocated, freed)) = sums(number) {
                index += 1;
                *data_of = index;
                put_data(abi, out, &Data { index: index.into(), allocated, freed });
            }
        }
        let mut order: Vec<(u64, u32)> = (1..=count).map(|number| (site(number).1, number as u32)).collect();
        order.sort_unstable();
        put(abi, out, &[count as u64]);
        for (address, number) in order {
            let number = number as usize;
            let parent = site(number).0;
            let (index, data) = (number as u64, data_of[number - 1].into());
            let parent = if parent < index { parent } else { 0 };
            put_site(abi, out, &Site { index, parent, address, symbol: 0, name: 0, data });
        }
        self.put_rest(out);
    }

    /// Appends what is before the data records, and reserves space for the whole file.
    fn put_head(&self, data: usize, sites: usize, out: &mut Vec<u8>) {
        let abi = self.abi;
        let numbers = 10 + 2 * self.bins.allocated.len() + 17 * data + 6 * sites + self.symbols.len();
        out.reserve(2 * MAGIC.len() + numbers * usize::from(abi.word_size) + self.strings.len() + self.trailing.len());
        abi.put_start(out, MAGIC, self.version);
        put(abi, out, &self.bounds);
        put(abi, out, &[self.bins.allocated.len() as u64]);
        if !self.bins.allocated.is_empty() {
            put(abi, out, &self.bins.allocated);
            put(abi, out, &[self.bins.allocated_big]);
            put(abi, out, &self.bins.freed);
            put(abi, out, &[self.bins.freed_big]);
        }
        put(abi, out, &[data as u64]);
    }

    /// Appends what is after the sites.
    fn put_rest(&self, out: &mut Vec<u8>) {
        let abi = self.abi;
        put(abi, out, &[self.symbols.len() as u64]);
        put(abi, out, &self.symbols);
        put(abi, out, &[self.strings.len() as u64]);
        out.extend_from_slice(&self.strings);
        out.extend_from_slice(MAGIC);
        out.extend_from_slice(&self.trailing);
    }
}
