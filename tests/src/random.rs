//! Random numbers for tests. Tests of other crates include this file by its path,
//! so what is public here may be unreachable there.
#![allow(unreachable_pub)]

/// A xorshift generator: the same numbers in every run, on every machine. The seed is not 0.
pub struct Random(pub u64);

impl Random {
    /// Returns the next 64 bits.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a number below `bound`; 0 if that is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }
}
