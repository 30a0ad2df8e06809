//! Sums per call site: what was allocated there, and how much of that is gone.

use super::live_set::Block;
use super::row;
use crate::event::Event;
use crate::replay::Model;
use heaptape_formats::tape::SiteSums;

/// Sums of one site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Allocations and resizes here.
    pub allocs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Of these, freed or resized away.
    pub frees: u64,
    /// Their bytes.
    pub freed_bytes: u64,
}

/// Sums by site number; place 0 is for events without a stack.
#[derive(Debug, Default)]
pub struct CallSites {
    /// The rows.
    pub rows: Vec<Sums>,
}

impl CallSites {
    /// Begins with sums so far.
    pub fn begin(&mut self, sums: &[SiteSums]) {
        for &SiteSums { site, allocs, bytes, frees, freed_bytes, .. } in sums {
            *row(&mut self.rows, site) = Sums { allocs, bytes, frees, freed_bytes };
        }
    }

    #[inline]
    fn taken(&mut self, block: &Block) {
        let sums = row(&mut self.rows, block.site);
        sums.allocs += 1;
        sums.bytes = sums.bytes.saturating_add(block.size);
    }

    #[inline]
    fn given(&mut self, old: &Block) {
        let sums = row(&mut self.rows, old.site);
        sums.frees += 1;
        sums.freed_bytes = sums.freed_bytes.saturating_add(old.size);
    }

    /// The rows of sites that allocated, as the tape writes them.
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
        self.taken(block);
    }

    #[inline]
    fn resize(&mut self, _: &Event, old: Option<&Block>, block: &Block) {
        if let Some(old) = old {
            self.given(old);
        }
        self.taken(block);
    }

    #[inline]
    fn free(&mut self, _: &Event, old: Option<&Block>) {
        if let Some(old) = old {
            self.given(old);
        }
    }

    #[inline]
    fn prefetch(&self, site: u32, _: bool) {
        std::hint::black_box(self.rows.get(site as usize).map(|row| row.allocs));
    }
}
