//! A global allocator that says what it does, beside what its memory comes from.

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;

struct Reports;

// SAFETY: all memory is the system allocator's.
unsafe impl GlobalAlloc for Reports {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as our caller promises.
        let block = unsafe { System.alloc(layout) };
        heaptape_api::pool(block);
        heaptape_api::alloc(Some(c"global"), block, layout.size());
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        heaptape_api::free(block);
        // SAFETY: as our caller promises.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static GLOBAL: Reports = Reports;

fn main() {
    let kept: Vec<Box<[u8; 1234]>> = (0..100).map(|_| Box::new([1; 1234])).collect();
    drop(black_box([Box::new([1u8; 3210]), Box::new([2; 3210])]));
    println!("{} blocks", black_box(kept).len());
}
