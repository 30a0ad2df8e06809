//! Sums by call site: what was allocated there, and how much of it was freed.

use super::live_set::Block;
use super::row;
use crate::event::Event;
use crate::model::Model;
use heaptape_formats::tape::SiteSums;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Number of allocations and reallocations.
    pub allocs: u64,
    /// Number of allocated bytes.
    pub bytes: u64,
    /// Number of these blocks that were freed or reallocated.
    pub frees: u64,
    /// Number of bytes of the blocks that were freed or reallocated.
    pub freed_bytes: u64,
}

/// The model that computes the sums of all sites.
#[derive(Debug, Default)]
pub struct CallSites {
    /// The sums by site number. Row 0 is for events without a stack.
    pub rows: Vec<Sums>,
}

impl CallSites {
    /// Starts with the sums of all events before the first one.
    pub fn begin(&mut self, sums: &[SiteSums]) {
        for &SiteSums { site, allocs, bytes, frees, freed_bytes, .. } in sums {
            *row(&mut self.rows, site) = Sums { allocs, bytes, frees, freed_bytes };
        }
    }

    #[inline]
    fn add(&mut self, block: &Block) {
        let sums = row(&mut self.rows, block.site);
        sums.allocs += 1;
        sums.bytes = sums.bytes.saturating_add(block.size);
    }

    #[inline]
    fn remove(&mut self, old: &Block) {
        let sums = row(&mut self.rows, old.site);
        sums.frees += 1;
        sums.freed_bytes = sums.freed_bytes.saturating_add(old.size);
    }

    /// Returns the sums of the sites that have any, as records of the tape.
    pub fn sums(&self) -> Vec<SiteSums> {
        let rows = self.rows.iter().zip(0u32..).filter(|(row, _)| row.allocs > 0 || row.frees > 0);
        rows.map(|(row, site)| {
            let Sums { allocs, bytes, frees, freed_bytes } = *row;
            SiteSums { site, allocs, bytes, frees, freed_bytes, peak_blocks: 0, peak_bytes: 0 }
        })
        .collect()
    }
}

impl Model for CallSites {
    #[inline]
    fn alloc(&mut self, _: &Event, block: &Block) {
        self.add(block);
    }

    #[inline]
    fn resize(&mut self, _: &Event, old: Option<&Block>, block: &Block) {
        if let Some(old) = old {
            self.remove(old);
        }
        self.add(block);
    }

    #[inline]
    fn free(&mut self, _: &Event, old: Option<&Block>) {
        if let Some(old) = old {
            self.remove(old);
        }
    }

    #[inline]
    fn prefetch(&self, site: u32, _: bool) {
        std::hint::black_box(self.rows.get(site as usize).map(|row| row.allocs));
    }
}
