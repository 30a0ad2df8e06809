//! An arena whose blocks heaptape records: `heaptape record -- arena`, then `heaptape report DIR`.

use std::cell::{Cell, UnsafeCell};

/// Hands out parts of one block, and takes all of them back at once.
struct Arena {
    memory: Box<[UnsafeCell<u8>]>,
    used: Cell<usize>,
}

const NAME: &std::ffi::CStr = c"rows";

impl Arena {
    fn new(bytes: usize) -> Arena {
        let memory: Box<[UnsafeCell<u8>]> = (0..bytes).map(|_| UnsafeCell::new(0)).collect();
        heaptape_api::pool(memory.as_ptr().cast());
        Arena { memory, used: Cell::new(0) }
    }

    fn block(&self, bytes: usize) -> Option<&[Cell<u8>]> {
        let start = self.used.get();
        let block = self.memory.get(start..start + bytes)?;
        self.used.set(start + bytes.next_multiple_of(8));
        heaptape_api::alloc(Some(NAME), block.as_ptr().cast(), bytes);
        // SAFETY: both types are transparent over the same byte.
        Some(unsafe { &*(block as *const [UnsafeCell<u8>] as *const [Cell<u8>]) })
    }

    fn reset(&mut self) {
        heaptape_api::reset(NAME);
        self.used.set(0);
    }
}

fn main() {
    let mut arena = Arena::new(1 << 16);
    for request in 0..10 {
        let _label = heaptape_api::label(c"request");
        heaptape_api::mark(c"request begins");
        arena.reset();
        for row in 0..100 {
            let block = arena.block(40).expect("the arena is large enough");
            block[0].set(row);
        }
        drop(vec![0u8; 1000 + request]);
    }
    heaptape_api::mark(c"done");
}
