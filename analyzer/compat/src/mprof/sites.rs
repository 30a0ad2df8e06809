//! The call sites of a profile in mprof's order, and the identity of frames.

use super::cells::Figures;
use heaptape_analyzer::text::clean_name;
use heaptape_formats::mptl::{Profile, Site};
use std::fmt;

/// The identity of a frame: its function if that is known and addresses are not compared, else its
/// address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Identity {
    /// The number of the function's symbol.
    Function(u64),
    Address(u64),
}

impl Identity {
    /// Returns the key by which mprof looks a function up: the number of its symbol, or the
    /// address.
    pub(super) const fn key(self) -> u64 {
        match self {
            Identity::Function(number) | Identity::Address(number) => number,
        }
    }
}

/// The sites of a profile, sorted by address; sites of equal addresses keep the order of the file.
pub(super) struct Sites<'a> {
    pub profile: &'a Profile,
    /// Indexes of the sites in sorted order.
    pub order: Vec<usize>,
    addresses: bool,
    site_indexes: Vec<usize>,
    data_indexes: Vec<usize>,
}

impl<'a> Sites<'a> {
    /// Sorts the sites of a profile. If `addresses` is set, frames are identified by address
    /// instead of by function.
    pub(super) fn new(profile: &'a Profile, addresses: bool) -> Self {
        let mut order: Vec<usize> = (0..profile.sites.len()).collect();
        order.sort_by_key(|&index| profile.sites[index].address);
        let (site_indexes, data_indexes) = (profile.site_positions(), profile.data_positions());
        Sites { profile, order, addresses, site_indexes, data_indexes }
    }

    /// Returns the site with an index.
    ///
    /// # Panics
    /// Panics if the index is out of range.
    pub(super) fn site(&self, index: usize) -> &'a Site {
        &self.profile.sites[index]
    }

    /// Iterates over the sites that allocated something themselves, in sorted order, with their
    /// amounts.
    pub(super) fn allocating(&self) -> impl Iterator<Item = (usize, Figures)> {
        self.order.iter().filter_map(|&index| Some((index, self.figures(index)?)))
    }

    /// Returns for each site the number of its run. A run is a maximal sequence of adjacent sites
    /// of the same function; mprof sums up within runs only.
    pub(super) fn runs(&self) -> Vec<usize> {
        let (mut runs, mut run, mut first) = (vec![0; self.order.len()], 0, None);
        for &index in &self.order {
            let identity = self.identity(self.site(index));
            if first.replace(identity).is_some_and(|before| before != identity) {
                run += 1;
            }
            runs[index] = run;
        }
        runs
    }

    fn figures(&self, index: usize) -> Option<Figures> {
        let data = *self.data_indexes.get(usize::try_from(self.site(index).data).ok()?.checked_sub(1)?)?;
        Some(Figures::of(&self.profile.data[data]))
    }

    /// Returns the index of a site's caller, or `None` for the outermost frame.
    pub(super) fn caller(&self, index: usize) -> Option<usize> {
        self.site_indexes.get(usize::try_from(self.site(index).parent).ok()?.checked_sub(1)?).copied()
    }

    /// Iterates over the indexes of the site and its callers, innermost first.
    pub(super) fn stack(&self, index: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(index), |&index| self.caller(index))
    }

    /// Returns the identity of a site's innermost frame.
    pub(super) fn identity(&self, site: &Site) -> Identity {
        match site.symbol {
            0 => Identity::Address(site.address),
            _ if self.addresses => Identity::Address(site.address),
            symbol => Identity::Function(symbol),
        }
    }

    /// Returns the function's name, followed by the offset from its start if addresses are
    /// compared. Without a name it returns the address.
    pub(super) fn name(&self, site: &Site) -> impl fmt::Display + 'a {
        let start = if self.addresses { self.profile.symbol(site.symbol) } else { None };
        let offset = start.map_or(0, |start| site.address.wrapping_sub(start).cast_signed());
        Name {
            text: self.profile.name(site.name),
            address: site.address,
            digits: 2 * usize::from(self.profile.abi.word_size),
            offset,
        }
    }
}

struct Name<'a> {
    text: Option<&'a [u8]>,
    address: u64,
    digits: usize,
    offset: i64,
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(text) = self.text else { return write!(f, "0x{:0digits$X}", self.address, digits = self.digits) };
        f.write_str(&clean_name(text))?;
        if self.offset == 0 { Ok(()) } else { write!(f, "{:+}", self.offset) }
    }
}
