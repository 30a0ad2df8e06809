//! The live blocks of one process image: address -> allocation index, size, site.
//!
//! An extendible hash table of small segments, each open-addressed with linear probing and backward-shift deletion. A full segment splits
//! in two: no pause grows with the table. Eight neighbouring places serve 256 neighbouring bytes, so blocks that lie together are
//! found together. A snapshot (for a forked child) shares the segments; whoever changes a shared one copies it first.
//!
//! 24 bytes a place, 41 bytes a live block on average while it grows. Measured by `examples/stages.rs`.

use crate::sys::prefetch;
use std::sync::Arc;

/// Places of a segment, a power of two.
const PLACES: usize = 2048;
/// A segment with more live places than this splits.
const FULL: u32 = (PLACES as u32) * 13 / 16;
/// The most bits that the directory tells segments apart by.
const MAX_DEPTH: u32 = 26;

/// A live block, apart from its address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Allocation index, below 2^48.
    pub index: u64,
    /// Requested bytes, below 2^48 (no processor addresses more).
    pub size: u64,
    /// Where it was allocated.
    pub site: u32,
}

/// The largest size that is kept; a hostile client's larger ones are cut to it.
pub const MAX_SIZE: u64 = (1 << 48) - 1;

/// `low` = index << 16 | size & 0xffff, `high` = site << 32 | size >> 16. Address 0 marks an empty place.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    address: u64,
    low: u64,
    high: u64,
}

impl Place {
    fn new(address: u64, block: Block) -> Place {
        let low = block.index << 16 | (block.size & 0xffff);
        Place { address, low, high: u64::from(block.site) << 32 | (block.size >> 16 & 0xffff_ffff) }
    }

    fn block(&self) -> Block {
        let size = (self.high & 0xffff_ffff) << 16 | (self.low & 0xffff);
        Block { index: self.low >> 16, size, site: (self.high >> 32) as u32 }
    }
}

type Places = Box<[Place; PLACES]>;

fn empty_places() -> Places {
    let places = vec![Place::default(); PLACES].into_boxed_slice();
    places.try_into().unwrap_or_else(|_| Box::new([Place::default(); PLACES]))
}

#[derive(Debug)]
enum Held {
    Own(Places),
    Shared(Arc<Places>),
}

#[derive(Debug)]
struct Segment {
    places: Held,
    count: u32,
    /// Leading bits of the hash that all its blocks have in common.
    depth: u32,
}

impl Segment {
    #[inline(always)]
    fn places(&self) -> &[Place; PLACES] {
        match &self.places {
            Held::Own(places) => places,
            Held::Shared(places) => places,
        }
    }

    #[inline(always)]
    fn places_mut(&mut self) -> &mut [Place; PLACES] {
        if let Held::Shared(places) = &self.places {
            self.places = Held::Own((**places).clone());
        }
        match &mut self.places {
            Held::Own(places) => places,
            Held::Shared(places) => &mut **Arc::make_mut(places),
        }
    }
}

/// The table.
#[derive(Debug)]
pub struct Index {
    segments: Vec<Segment>,
    /// Segment of each value of the hash's leading bits.
    directory: Vec<u32>,
    depth: u32,
    /// Odd, unknown to clients: they cannot aim at one segment.
    multiplier: u64,
    count: u64,
    /// Blocks that found no place: only a client that lies can get here.
    refused: u64,
}

impl Default for Index {
    fn default() -> Self {
        Index::new(random_odd())
    }
}

fn random_odd() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    // Near the golden ratio, so that neighbours spread well, but not known.
    0x9e37_79b9_7f4a_7c15 ^ (RandomState::new().hash_one(0u8) & 0xffff_fffe)
}

impl Index {
    fn new(multiplier: u64) -> Index {
        let first = Segment { places: Held::Own(empty_places()), count: 0, depth: 0 };
        Index { segments: vec![first], directory: vec![0], depth: 0, multiplier, count: 0, refused: 0 }
    }

    /// Live blocks.
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Whether nothing is live.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Blocks that could not be kept.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    #[inline(always)]
    fn hash(&self, address: u64) -> u64 {
        let spread = (address >> 8).wrapping_mul(self.multiplier);
        spread ^ spread >> 29
    }

    #[inline(always)]
    fn segment_of(&self, hash: u64) -> usize {
        // A shift by 64 would be no shift: two steps.
        self.directory[(hash >> 1 >> (63 - self.depth)) as usize] as usize
    }

    /// The first place that a block may lie at: the hash chooses eight, the address one of them.
    #[inline(always)]
    fn home(hash: u64, address: u64) -> usize {
        ((hash as usize >> 17 << 3) | (address as usize >> 5 & 7)) & (PLACES - 1)
    }

    /// Asks for the memory that a call for this address will need.
    #[inline(always)]
    pub fn prefetch(&self, address: u64) {
        let hash = self.hash(address);
        prefetch(&self.segments[self.segment_of(hash)].places()[Index::home(hash, address)]);
    }

    /// The block at an address.
    pub fn get(&self, address: u64) -> Option<Block> {
        let hash = self.hash(address);
        let segment = &self.segments[self.segment_of(hash)];
        let (places, mut at) = (segment.places(), Index::home(hash, address));
        loop {
            let place = &places[at & (PLACES - 1)];
            if place.address == address && address != 0 {
                return Some(place.block());
            }
            if place.address == 0 {
                return None;
            }
            at += 1;
        }
    }

    /// Puts a block at an address; gives the one that was there.
    #[inline]
    pub fn insert(&mut self, address: u64, block: Block) -> Option<Block> {
        if address == 0 {
            self.refused += 1;
            return None;
        }
        let hash = self.hash(address);
        let number = self.segment_of(hash);
        let segment = &mut self.segments[number];
        let (places, mut at) = (segment.places_mut(), Index::home(hash, address));
        loop {
            let place = &mut places[at & (PLACES - 1)];
            if place.address == address {
                let old = place.block();
                *place = Place::new(address, block);
                return Some(old);
            }
            if place.address == 0 {
                *place = Place::new(address, block);
                break;
            }
            at += 1;
        }
        segment.count += 1;
        self.count += 1;
        if segment.count > FULL {
            self.make_room(address);
        }
        None
    }

    /// Takes the block at an address out.
    #[inline]
    pub fn remove(&mut self, address: u64) -> Option<Block> {
        let hash = self.hash(address);
        let number = self.segment_of(hash);
        let multiplier = self.multiplier;
        let segment = &mut self.segments[number];
        let mut at = Index::home(hash, address);
        // Looked for before a shared segment is copied: a child asks for what it never had.
        let found = loop {
            let place = &segment.places()[at & (PLACES - 1)];
            if place.address == 0 {
                return None;
            }
            if place.address == address {
                break place.block();
            }
            at += 1;
        };
        let places = segment.places_mut();
        let mut hole = at & (PLACES - 1);
        let mut next = hole;
        loop {
            next = (next + 1) & (PLACES - 1);
            let place = places[next];
            if place.address == 0 {
                break;
            }
            let spread = (place.address >> 8).wrapping_mul(multiplier);
            let home = Index::home(spread ^ spread >> 29, place.address);
            // It may move into the hole only when its home does not lie behind the hole.
            if next.wrapping_sub(home) & (PLACES - 1) >= next.wrapping_sub(hole) & (PLACES - 1) {
                places[hole] = place;
                hole = next;
            }
        }
        places[hole] = Place::default();
        segment.count -= 1;
        self.count -= 1;
        Some(found)
    }

    /// Splits the segment of an address until it has room. A segment that cannot be told apart any further gives the block up.
    #[cold]
    #[inline(never)]
    fn make_room(&mut self, address: u64) {
        loop {
            let number = self.segment_of(self.hash(address));
            if self.segments[number].count <= FULL {
                return;
            }
            let may_double = self.directory.len() <= 64 * self.segments.len() + 1024 && self.depth < MAX_DEPTH;
            if self.segments[number].depth == self.depth && !may_double {
                if self.remove(address).is_some() {
                    self.refused += 1;
                }
                return;
            }
            self.split(number);
        }
    }

    fn split(&mut self, number: usize) {
        if self.segments[number].depth == self.depth {
            self.directory = self.directory.iter().flat_map(|segment| [*segment; 2]).collect();
            self.depth += 1;
        }
        let depth = self.segments[number].depth + 1;
        let (mut halves, mut counts) = ([empty_places(), empty_places()], [0; 2]);
        for place in self.segments[number].places().iter().filter(|place| place.address != 0) {
            let hash = self.hash(place.address);
            let half = (hash >> (64 - depth) & 1) as usize;
            let mut at = Index::home(hash, place.address);
            while halves[half][at & (PLACES - 1)].address != 0 {
                at += 1;
            }
            halves[half][at & (PLACES - 1)] = *place;
            counts[half] += 1;
        }
        let [low, high] = halves;
        let new = self.segments.len() as u32;
        self.segments[number] = Segment { places: Held::Own(low), count: counts[0], depth };
        self.segments.push(Segment { places: Held::Own(high), count: counts[1], depth });
        // The directory's entries of one segment lie together; the upper half of them goes to the new one.
        let bit = 1usize << (self.depth - depth);
        for (bits, segment) in self.directory.iter_mut().enumerate() {
            if *segment as usize == number && bits & bit != 0 {
                *segment = new;
            }
        }
    }

    /// A copy that shares all segments until one side changes them.
    pub fn snapshot(&mut self) -> Index {
        let mut segments = Vec::with_capacity(self.segments.len());
        for Segment { places, count, depth } in std::mem::take(&mut self.segments) {
            let places = match places {
                Held::Own(places) => Arc::new(places),
                Held::Shared(places) => places,
            };
            segments.push(Segment { places: Held::Shared(Arc::clone(&places)), count, depth });
            self.segments.push(Segment { places: Held::Shared(places), count, depth });
        }
        Index { segments, directory: self.directory.clone(), ..*self }
    }

    /// Every live block, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, Block)> + '_ {
        let places = self.segments.iter().flat_map(|segment| segment.places().iter());
        places.filter(|place| place.address != 0).map(|place| (place.address, place.block()))
    }
}

#[cfg(test)]
mod tests;
