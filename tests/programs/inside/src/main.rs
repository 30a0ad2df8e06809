//! A Rust program with its allocator inside: jemalloc, mimalloc or snmalloc, as the feature says,
//! or without a feature that of the C library. Four threads allocate. Every request is counted on
//! the way to the allocator. At the end the program prints allocations, resizes, frees and bytes,
//! and leaves 500 blocks of 456 bytes.

use std::alloc::{GlobalAlloc, Layout};
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[cfg(feature = "jemalloc")]
static INNER: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;
#[cfg(feature = "mimalloc")]
static INNER: mimalloc::MiMalloc = mimalloc::MiMalloc;
#[cfg(feature = "snmalloc")]
static INNER: snmalloc_rs::SnMalloc = snmalloc_rs::SnMalloc;
#[cfg(not(any(feature = "jemalloc", feature = "mimalloc", feature = "snmalloc")))]
static INNER: std::alloc::System = std::alloc::System;

static ALLOCS: AtomicU64 = AtomicU64::new(0);
static RESIZES: AtomicU64 = AtomicU64::new(0);
static FREES: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

fn count(number: &AtomicU64, bytes: usize) {
    number.fetch_add(1, Relaxed);
    BYTES.fetch_add(bytes as u64, Relaxed);
}

struct Counting;

// SAFETY: every call is passed on unchanged to an allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(&ALLOCS, layout.size());
        // SAFETY: as the caller ensures.
        unsafe { INNER.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(&ALLOCS, layout.size());
        // SAFETY: as the caller ensures.
        unsafe { INNER.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(&RESIZES, size);
        // SAFETY: as the caller ensures.
        unsafe { INNER.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(&FREES, 0);
        // SAFETY: as the caller ensures.
        unsafe { INNER.dealloc(block, layout) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

#[repr(align(64))]
struct Aligned([u8; 128]);

#[inline(never)]
fn leaks_here(count: usize) {
    for _ in 0..count {
        std::mem::forget(std::hint::black_box(vec![7u8; 456]));
    }
}

#[inline(never)]
fn work(seed: u64) -> usize {
    let mut kept: Vec<Vec<u8>> = Vec::new();
    let mut sum = 0;
    for round in 0..5_000u64 {
        let mut one = vec![0u8; (round.wrapping_mul(seed) % 700 + 1) as usize];
        one.push(1);
        one.extend_from_slice(&[3; 50]);
        sum += one.len();
        match round % 21 {
            0 | 3 | 6 => kept.push(one),
            7 => sum += std::hint::black_box(Box::new(Aligned([1; 128]))).0.len(),
            20 => kept.clear(),
            _ => {}
        }
    }
    sum
}

fn main() {
    let threads: Vec<_> = (1..=4).map(|seed| std::thread::spawn(move || work(seed * 7919))).collect();
    let sum: usize = threads.into_iter().map(|thread| thread.join().expect("a thread")).sum();
    leaks_here(500);
    std::hint::black_box(sum);
    let [allocs, resizes, frees, bytes] = [&ALLOCS, &RESIZES, &FREES, &BYTES].map(|number| number.load(Relaxed));
    // Standard error has no buffer, and numbers are formatted without an allocation.
    let _ = writeln!(std::io::stderr(), "{allocs} {resizes} {frees} {bytes}");
    unsafe extern "C" {
        fn _exit(code: i32) -> !;
    }
    // SAFETY: the process ends here, so that what Rust's library frees at its end is not counted.
    unsafe { _exit(0) }
}
