//! The call sites of a profile in the order in which mprof walks them, and what tells two frames apart.

use super::cells::Figures;
use crate::text::clean_name;
use heaptape_formats::mptl::{Profile, Site};
use std::fmt;

/// What tells two frames apart: the function when it is known and addresses do not matter, else the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Identity {
    Function(u64),
    Address(u64),
}

impl Identity {
    /// The number by which mprof looks a function up: that of its symbol, or the address.
    pub const fn key(self) -> u64 {
        match self {
            Identity::Function(number) | Identity::Address(number) => number,
        }
    }
}

/// A profile's sites, in ascending address order, those of equal addresses in the order of the file.
pub struct Sites<'a> {
    pub profile: &'a Profile,
    pub order: Vec<usize>,
    addresses: bool,
    places: Vec<usize>,
    data_places: Vec<usize>,
}

impl<'a> Sites<'a> {
    pub fn new(profile: &'a Profile, addresses: bool) -> Self {
        let mut order: Vec<usize> = (0..profile.sites.len()).collect();
        order.sort_by_key(|&place| profile.sites[place].address);
        let (places, data_places) = (profile.site_places(), profile.data_places());
        Sites { profile, order, addresses, places, data_places }
    }

    pub fn site(&self, place: usize) -> &'a Site {
        &self.profile.sites[place]
    }

    /// Places in order of the sites that allocated something themselves, and what.
    pub fn allocating(&self) -> impl Iterator<Item = (usize, Figures)> {
        self.order.iter().filter_map(|&place| Some((place, self.figures(place)?)))
    }

    /// Numbers of the runs that a site belongs to, by place. A run is neighbors in order that are one function; mprof sums
    /// no farther than that.
    pub fn runs(&self) -> Vec<usize> {
        let (mut runs, mut run, mut first) = (vec![0; self.order.len()], 0, None);
        for &place in &self.order {
            let identity = self.identity(self.site(place));
            if first.replace(identity).is_some_and(|before| before != identity) {
                run += 1;
            }
            runs[place] = run;
        }
        runs
    }

    fn figures(&self, place: usize) -> Option<Figures> {
        let data = *self.data_places.get(usize::try_from(self.site(place).data).ok()?.checked_sub(1)?)?;
        Some(Figures::of(&self.profile.data[data]))
    }

    /// The place of a site's caller; none for the outermost frame.
    pub fn caller(&self, place: usize) -> Option<usize> {
        self.places.get(usize::try_from(self.site(place).parent).ok()?.checked_sub(1)?).copied()
    }

    /// The site and its callers, innermost first.
    pub fn stack(&self, place: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(place), |&place| self.caller(place))
    }

    pub fn identity(&self, site: &Site) -> Identity {
        match site.symbol {
            0 => Identity::Address(site.address),
            _ if self.addresses => Identity::Address(site.address),
            symbol => Identity::Function(symbol),
        }
    }

    /// The function's name, with the distance from its start if addresses matter; an address where no name is known.
    pub fn name(&self, site: &Site) -> impl fmt::Display + 'a {
        let start = if self.addresses { self.profile.symbol(site.symbol) } else { None };
        let distance = start.map_or(0, |start| site.address.wrapping_sub(start).cast_signed());
        Name {
            text: self.profile.name(site.name),
            address: site.address,
            digits: 2 * usize::from(self.profile.flavour.word),
            distance,
        }
    }
}

struct Name<'a> {
    text: Option<&'a [u8]>,
    address: u64,
    digits: usize,
    distance: i64,
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(text) = self.text else { return write!(f, "0x{:0digits$X}", self.address, digits = self.digits) };
        f.write_str(&clean_name(text))?;
        if self.distance == 0 { Ok(()) } else { write!(f, "{:+}", self.distance) }
    }
}
