//! The call sites of a profile in the order in which mprof walks them, and what tells two frames apart.

use super::cells::Figures;
use heaptape_formats::mptl::{Profile, Site};
use std::fmt;

/// What tells two frames apart: the function when it is known and addresses do not matter, else the address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Identity {
    Function(u64),
    Address(u64),
}

/// A profile's sites, in ascending address order; of equal addresses the one that was created first comes first.
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
        order.sort_by_key(|&place| (profile.sites[place].address, profile.sites[place].index));
        let (places, data_places) = (profile.site_places(), profile.data_places());
        Sites { profile, order, addresses, places, data_places }
    }

    pub fn site(&self, place: usize) -> &'a Site {
        &self.profile.sites[place]
    }

    /// Sites in order.
    pub fn walk(&self) -> impl Iterator<Item = &'a Site> {
        self.order.iter().map(|&place| self.site(place))
    }

    /// Sites in order that allocated something themselves, and what.
    pub fn allocating(&self) -> impl Iterator<Item = (&'a Site, Figures)> {
        self.walk().filter_map(|site| Some((site, self.figures(site)?)))
    }

    fn figures(&self, site: &Site) -> Option<Figures> {
        let place = *self.data_places.get(usize::try_from(site.data).ok()?.checked_sub(1)?)?;
        Some(Figures::of(&self.profile.data[place]))
    }

    /// The place of a site's caller; none for the outermost frame.
    pub fn caller_place(&self, site: &Site) -> Option<usize> {
        self.places.get(usize::try_from(site.parent).ok()?.checked_sub(1)?).copied()
    }

    /// The site and its callers, innermost first.
    pub fn stack(&self, site: &'a Site) -> impl Iterator<Item = &'a Site> {
        std::iter::successors(Some(site), |site| self.caller_place(site).map(|place| self.site(place)))
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
        Name {
            text: self.profile.name(site.name),
            address: site.address,
            digits: 2 * usize::from(self.profile.flavour.word),
            distance: start.map(|start| site.address.wrapping_sub(start).cast_signed()),
        }
    }
}

struct Name<'a> {
    text: Option<&'a [u8]>,
    address: u64,
    digits: usize,
    distance: Option<i64>,
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(text) = self.text else { return write!(f, "0x{:0digits$X}", self.address, digits = self.digits) };
        f.write_str(&String::from_utf8_lossy(text))?;
        self.distance.map_or(Ok(()), |distance| write!(f, "{distance:+}"))
    }
}
