//! Builder of profiles. It numbers as the real library does: sites and data in order of appearance,
//! site records by ascending address, symbols and names by first use in that order.

use super::layout::{Bins, Data, Profile, Site, Sums};
use std::collections::HashMap;

/// Handle of a function that [`Builder::symbol`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Symbol(usize);

#[derive(Clone, Debug)]
struct Frame {
    parent: u64,
    address: u64,
    symbol: Option<Symbol>,
    data: u64,
}

/// Collects the sites, symbols and sums of a profile.
///
/// # Examples
///
/// ```
/// use heaptape_formats::mptl::{Bins, Builder, Profile};
///
/// let mut builder = Builder::new([32, 256, 2048], Bins::new(1024));
/// let symbol = builder.symbol(0x1000, b"main");
/// let main = builder.site(0, 0x1010, Some(symbol));
/// builder.alloc(main, 100);
/// builder.alloc(main, 200);
/// builder.free(main, 100);
///
/// let mut bytes = Vec::new();
/// builder.build().write(&mut bytes);
/// let (profile, _) = Profile::read(&bytes)?;
/// assert_eq!(profile.data[0].allocated.total() - profile.data[0].freed.total(), 200);
/// # Ok::<(), heaptape_formats::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Builder {
    bounds: [u64; 3],
    bins: Bins,
    frames: Vec<Frame>,
    data: Vec<Data>,
    symbols: Vec<(u64, Vec<u8>)>,
}

impl Builder {
    /// Creates a builder with the bounds of the size classes, and with bins that are empty or were
    /// counted elsewhere.
    pub fn new(bounds: [u64; 3], bins: Bins) -> Builder {
        Builder { bounds, bins, frames: Vec::new(), data: Vec::new(), symbols: Vec::new() }
    }

    /// Adds a function that starts at `start`. The name ends at its first NUL; an empty one is no
    /// name.
    pub fn symbol(&mut self, start: u64, name: &[u8]) -> Symbol {
        let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
        self.symbols.push((start, name.to_vec()));
        Symbol(self.symbols.len() - 1)
    }

    /// Adds the next site, called from site `parent` (0: the outermost frame). Returns its index:
    /// 1, 2, 3 … A parent that does not exist yet counts as none.
    pub fn site(&mut self, parent: u64, address: u64, symbol: Option<Symbol>) -> u64 {
        let parent = if parent <= self.frames.len() as u64 { parent } else { 0 };
        let symbol = symbol.filter(|symbol| symbol.0 < self.symbols.len());
        self.frames.push(Frame { parent, address, symbol, data: 0 });
        self.frames.len() as u64
    }

    /// Counts one allocated block in the bins and at its site (0: in the bins only). Like mpatrol,
    /// it counts a block of 0 bytes as one of 1 byte.
    pub fn alloc(&mut self, site: u64, size: u64) {
        let (bounds, size) = (self.bounds, size.max(1));
        self.bins.alloc(size);
        if let Some(data) = self.data_of(site) {
            data.allocated.add(&bounds, size);
        }
    }

    /// Counts one freed block in the bins and at the site that allocated it.
    pub fn free(&mut self, site: u64, size: u64) {
        let (bounds, size) = (self.bounds, size.max(1));
        self.bins.free(size);
        if let Some(data) = self.data_of(site) {
            data.freed.add(&bounds, size);
        }
    }

    /// Sets the sums of a site that were counted elsewhere. The bins must then have been counted
    /// there, too.
    pub fn sums(&mut self, site: u64, allocated: Sums, freed: Sums) {
        if let Some(data) = self.data_of(site) {
            (data.allocated, data.freed) = (allocated, freed);
        }
    }

    fn data_of(&mut self, site: u64) -> Option<&mut Data> {
        let frame = self.frames.get_mut(usize::try_from(site).ok()?.checked_sub(1)?)?;
        if frame.data == 0 {
            frame.data = self.data.len() as u64 + 1;
            self.data.push(Data { index: frame.data, ..Data::default() });
        }
        self.data.get_mut(frame.data as usize - 1)
    }

    /// Returns the profile with its tables in the order of the real library.
    pub fn build(&self) -> Profile {
        let mut order: Vec<usize> = (0..self.frames.len()).collect();
        order.sort_by_key(|&index| self.frames[index].address);
        let mut profile = Profile { bounds: self.bounds, bins: self.bins.clone(), ..Profile::default() };
        profile.data.clone_from(&self.data);
        profile.sites.reserve_exact(order.len());
        let mut numbers = vec![(0, 0); self.symbols.len()];
        let mut offsets: HashMap<&[u8], u64> = HashMap::new();
        for index in order {
            let Frame { parent, address, symbol, data } = self.frames[index];
            let (symbol, name) = symbol.map_or((0, 0), |Symbol(number)| {
                let (start, name) = &self.symbols[number];
                if numbers[number].0 == 0 {
                    profile.symbols.push(*start);
                    let strings = &mut profile.strings;
                    let offset = if name.is_empty() { 0 } else { *offsets.entry(name).or_insert(strings.len() as u64) };
                    if offset == strings.len() as u64 {
                        strings.extend_from_slice(name);
                        strings.push(0);
                    }
                    numbers[number] = (profile.symbols.len() as u64, offset);
                }
                numbers[number]
            });
            profile.sites.push(Site { index: index as u64 + 1, parent, address, symbol, name, data });
        }
        profile
    }
}
