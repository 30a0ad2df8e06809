//! Sampling by bytes. Each requested byte is a sampling point with the same small probability, so
//! the gaps between points are distributed exponentially, and a block of `s` bytes is sampled with
//! probability `1 - exp(-s / mean)`. The recorder weights it with the inverse, so that sums are
//! unbiased.
//!
//! A free must find out whether its block was sampled. A counting filter of 65,536 counters answers
//! nearly all frees with one load; the exact set decides the rest. Both belong to the process and
//! not to a thread, because any thread may free a block.

use crate::sys::{self, Need, Part};
use crate::timestamp;
use core::sync::atomic::{AtomicPtr, AtomicU16, AtomicU64, Ordering::AcqRel, Ordering::Acquire, Ordering::Relaxed};

const FILTER_LOG2: u32 = 16;
static FILTER: [AtomicU16; 1 << FILTER_LOG2] = [const { AtomicU16::new(0) }; 1 << FILTER_LOG2];

/// Number of addresses in a bucket of two cache lines. The set has 2 MiB in total. It is mapped at
/// the first sampled block, and its pages are touched as blocks are sampled.
const BUCKET: usize = 16;
const BUCKETS_LOG2: u32 = 14;
/// Number of buckets that a block may be in.
const REACH: usize = 4;
#[repr(C, align(128))]
struct Bucket([AtomicU64; BUCKET]);
static SET: AtomicPtr<Set> = AtomicPtr::new(core::ptr::null_mut());
type Set = [Bucket; 1 << BUCKETS_LOG2];

/// Returns the set of sampled blocks; `None` before the first one.
#[inline(always)]
fn set() -> Option<&'static Set> {
    // SAFETY: null, or mapped as long as the process lives; zeros are a set without blocks, and all
    // of it is atomic.
    unsafe { SET.load(Acquire).as_ref() }
}

/// Maps the set if that has not been done. Returns false if there is no memory for it.
#[cold]
pub(crate) fn make_set() -> bool {
    let bytes = size_of::<Set>();
    if set().is_none() && Need::MAP_MORE.is_allowed() {
        let Some(new) = sys::map_private(bytes, Part::Sixteenth) else { return false };
        sys::unlock(new, bytes);
        sys::advise(new, bytes, libc::MADV_NOHUGEPAGE);
        if SET.compare_exchange(core::ptr::null_mut(), new.cast(), AcqRel, Relaxed).is_err() {
            sys::unmap(new, bytes);
        }
    }
    set().is_some()
}

/// Unmaps the set, in a process in which no thread uses it any more.
#[cfg(feature = "standalone")]
pub(crate) fn give_up() {
    let set = SET.swap(core::ptr::null_mut(), AcqRel);
    if !set.is_null() {
        sys::unmap(set.cast(), size_of::<Set>());
    }
}

/// A thread's countdown to its next sampling point.
#[derive(Clone, Copy)]
pub(crate) struct Countdown {
    /// Mean number of bytes between points; 0 if every event is recorded.
    pub mean: u64,
    left: i64,
    random: u64,
}

impl Countdown {
    /// Returns a countdown that starts at a random point.
    pub(crate) fn new(mean: u64) -> Countdown {
        if mean == 0 {
            return Countdown { mean, left: 0, random: 1 };
        }
        // A sandbox may not allow the system call for the thread id. Then the time alone
        // distinguishes threads.
        let thread = if Need::THREAD.is_allowed() { sys::tid() } else { 0 };
        let mut countdown = Countdown { mean, left: 0, random: (timestamp::now() ^ u64::from(thread) << 32) | 1 };
        countdown.left = countdown.gap();
        countdown
    }

    /// Returns whether an allocation of `size` bytes contains a sampling point.
    #[inline(always)]
    pub(crate) fn hits(&mut self, size: u64) -> bool {
        self.left -= size.min(i64::MAX as u64) as i64;
        self.left < 0 && self.restart()
    }

    #[cold]
    fn restart(&mut self) -> bool {
        self.left = self.gap();
        true
    }

    /// Returns whether an allocation of `size` bytes contains no sampling point, and counts its
    /// bytes then. Otherwise nothing has changed.
    #[inline(always)]
    pub(crate) fn passes(&mut self, size: u64) -> bool {
        let left = self.left.wrapping_sub(size as i64);
        let passes = self.mean != 0 && size < i64::MAX as u64 && left >= 0;
        if passes {
            self.left = left;
        }
        passes
    }

    /// Sets the sampling interval. Returns whether it has changed, and so has to be reported.
    pub(crate) fn set_mean(&mut self, mean: u64) -> bool {
        let differs = mean != self.mean;
        if differs {
            self.mean = mean;
            self.left = self.gap();
        }
        differs
    }

    /// Returns an exponentially distributed number with this mean. Computed in integers, because
    /// the floating-point registers belong to the program.
    #[inline(never)]
    fn gap(&mut self) -> i64 {
        const LN_2: u128 = 0xb172_17f7;
        const LARGEST: u64 = 1 << 56;
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        // 52 random bits make a number in (0, 1]. This is the negative of its binary logarithm,
        // with 32 fractional bits.
        let negative = (52 << 32) - logarithm((self.random >> 12) + 1);
        ((u128::from(negative) * LN_2 * u128::from(self.mean.min(LARGEST))) >> 64) as i64
    }
}

/// Returns the binary logarithm of a number that is not 0, with 32 fractional bits. Each squaring
/// of the mantissa yields one of them.
fn logarithm(value: u64) -> u64 {
    let zeros = value.leading_zeros();
    let mut mantissa = u128::from(value << zeros);
    (0..32).fold(u64::from(63 - zeros), |sum, _| {
        mantissa = (mantissa * mantissa) >> 63;
        let bit = mantissa >> 64;
        mantissa >>= bit;
        sum << 1 | bit as u64
    })
}

#[inline(always)]
const fn hash(address: u64) -> u64 {
    (address >> 3).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn buckets(address: u64) -> impl Iterator<Item = &'static Bucket> {
    let start = (hash(address) >> (64 - BUCKETS_LOG2)) as usize;
    set().into_iter().flat_map(move |set| (0..REACH).map(move |step| &set[(start + step) & ((1 << BUCKETS_LOG2) - 1)]))
}

/// Adds a block to the set. Returns false if there is no space for it.
pub(crate) fn insert(address: u64) -> bool {
    if set().is_none() && !make_set() {
        return false;
    }
    let entry = buckets(address)
        .flat_map(|bucket| &bucket.0)
        .find(|entry| entry.load(Relaxed) == 0 && entry.compare_exchange(0, address, AcqRel, Relaxed).is_ok());
    if entry.is_some() {
        FILTER[(hash(address) >> (64 - FILTER_LOG2)) as usize].fetch_add(1, AcqRel);
    }
    entry.is_some()
}

/// Returns whether a block may have been sampled.
#[inline(always)]
pub(crate) fn is_likely(address: u64) -> bool {
    FILTER[(hash(address) >> (64 - FILTER_LOG2)) as usize].load(Acquire) != 0
}

/// Removes a block from the set. Returns whether it was there.
#[inline(always)]
pub(crate) fn remove(address: u64) -> bool {
    is_likely(address) && remove_exact(address)
}

#[cold]
fn remove_exact(address: u64) -> bool {
    let found = buckets(address)
        .flat_map(|bucket| &bucket.0)
        .any(|entry| entry.load(Relaxed) == address && entry.compare_exchange(address, 0, AcqRel, Relaxed).is_ok());
    if found {
        FILTER[(hash(address) >> (64 - FILTER_LOG2)) as usize].fetch_sub(1, AcqRel);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms() {
        for value in [1u64, 2, 3, 7, 1000, 1 << 51, (1 << 52) - 1, 1 << 52, u64::MAX] {
            let found = logarithm(value) as f64 / (1u64 << 32) as f64;
            assert!((found - (value as f64).log2()).abs() < 1e-9, "{value}: {found}");
        }
    }

    #[test]
    fn sums_are_unbiased() {
        const MEAN: f64 = 4096.0;
        for size in [16u64, 1000, 4096, 50_000] {
            let weight = size as f64 / (1.0 - (-(size as f64) / MEAN).exp());
            let (mut sum, mut total) = (0.0, 0.0);
            for seed in 1..=40u64 {
                let mut countdown =
                    Countdown { mean: MEAN as u64, left: 0, random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1 };
                countdown.left = countdown.gap();
                for _ in 0..20_000 {
                    total += size as f64;
                    sum += if countdown.hits(size) { weight } else { 0.0 };
                }
            }
            // 800,000 blocks: the deviation of the sum is below 2 % for the smallest size; five of
            // them.
            let chance = 1.0 - (-(size as f64) / MEAN).exp();
            let deviation = ((1.0 - chance) / (chance * 800_000.0)).sqrt();
            assert!((sum / total - 1.0).abs() < 5.0 * deviation + 0.001, "size {size}: {}", sum / total);
        }
    }

    #[test]
    fn the_set_is_exact() {
        let addresses = || (1..20_000u64).map(|number| 0x5555_0000_0000 + number * 48);
        let inserted = addresses().filter(|address| insert(*address)).count();
        assert_eq!(inserted, 19_999);
        assert!(!remove(0x5555_0000_0000));
        assert!(addresses().all(remove));
        assert!(!addresses().any(remove));
    }
}
