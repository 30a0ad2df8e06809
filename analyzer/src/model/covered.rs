//! Which of the resident pages ever held a block, by the events of a process.

use super::Model;
use super::live_set::Block;
use crate::event::{Event, Kind};
pub use heaptape_formats::resident::Covered;

impl Model for Covered {
    fn alloc(&mut self, _: &Event, block: &Block) {
        self.add(block.address, block.size);
    }

    fn resize(&mut self, _: &Event, old: Option<&Block>, block: &Block) {
        if let Some(old) = old {
            self.remove(old.address, old.size);
        }
        self.add(block.address, block.size);
    }

    fn free(&mut self, _: &Event, old: Option<&Block>) {
        if let Some(old) = old {
            self.remove(old.address, old.size);
        }
    }

    fn inherited(&mut self, block: &Block, gone: Option<Kind>) {
        match gone {
            None => self.add(block.address, block.size),
            Some(_) => self.remove(block.address, block.size),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heaptape_formats::resident::Allocator;
    use heaptape_formats::tape::{PageKind, PageRun};

    /// A large block of glibc that grows and moves leaves its pages.
    #[test]
    fn moved_block_with_a_mapping_of_its_own_covers_its_old_pages_no_more() {
        let run = PageRun { first: 10, pages: 200, kind: PageKind::Anonymous, is_huge: false };
        let event = Event { entry: 1, thread: 1, index: 1, ..Event::of(Kind::Free) };
        let large = Block { address: 10 * 4096 + 16, size: 50 * 4096, ..Block::default() };
        for allocator in [Allocator::Glibc, Allocator::Jemalloc] {
            let mut covered = Covered::new(&[run], 4096, 100);
            covered.set_allocator(allocator);
            covered.alloc(&event, &large);
            let moved = Block { address: 120 * 4096 + 16, ..large };
            covered.resize(&event, Some(&large), &moved);
            assert_eq!(covered.count(120, 171), 51);
            assert_eq!(covered.count(10, 61) == 0, allocator == Allocator::Glibc);
            covered.free(&event, Some(&moved));
            assert_eq!(covered.count(120, 171) == 0, allocator == Allocator::Glibc);
        }
    }
}
