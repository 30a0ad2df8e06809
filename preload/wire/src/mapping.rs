//! How a mapping is described in a record: twelve bits, for which the address of a page has space.
//! The numbers are also those of the tape.

/// The memory may be read (`PROT_READ`).
pub const READ: u64 = 1;
/// The memory may be written (`PROT_WRITE`).
pub const WRITE: u64 = 2;
/// The memory may be executed (`PROT_EXEC`).
pub const EXECUTE: u64 = 4;
/// Other processes share the memory (`MAP_SHARED`).
pub const SHARED: u64 = 8;
/// The program chose the address (`MAP_FIXED`).
pub const FIXED: u64 = 16;
/// The memory has no file (`MAP_ANONYMOUS`).
pub const ANONYMOUS: u64 = 32;
/// No swap space is reserved (`MAP_NORESERVE`).
pub const NO_RESERVE: u64 = 64;
/// The pages are read at once (`MAP_POPULATE`).
pub const POPULATE: u64 = 128;
/// The memory is for a stack (`MAP_STACK`).
pub const STACK: u64 = 512;
/// The memory consists of huge pages (`MAP_HUGETLB`).
pub const HUGE: u64 = 1024;

/// The bits of an address that hold the description.
pub const BITS: u64 = 4095;

/// The flags of `mremap` that are recorded: `MREMAP_MAYMOVE`, `MREMAP_FIXED`, `MREMAP_DONTUNMAP`.
pub const MOVE_FLAGS: usize = 7;
/// The old range stays mapped (`MREMAP_DONTUNMAP`).
pub const MOVE_KEEPS: u64 = 4;

/// Bits of [`READ`], [`WRITE`] and [`EXECUTE`]. Memory with none of them is only reserved
/// (`PROT_NONE`).
pub const ACCESS: usize = 7;

/// Value of [`crate::Header::record_mappings`]: the recorder knows [`crate::Op::MAP`] up to
/// [`crate::Op::MAP_SEGMENT`].
pub const RECORD_RANGES: u32 = 1;
/// Value of [`crate::Header::record_mappings`]: it knows [`crate::Op::ADVISED`] and
/// [`crate::Op::PROTECTED`], too.
pub const RECORD_ALL: u32 = 2;

/// Returns the description of a mapping with this protection and these flags of `mmap`.
#[inline(always)]
pub const fn pack(protection: usize, flags: usize) -> usize {
    // MAP_FIXED is 0x10, MAP_ANONYMOUS 0x20. MAP_NORESERVE to MAP_HUGETLB are 0x4000 to 0x40000.
    protection & 7 | (flags & 1) << 3 | flags & 0x30 | (flags >> 14 & 0x1f) << 6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn description_has_the_flags_of_linux() {
        // Protection and flags as in <bits/mman-linux.h>.
        let packed = |protection, flags| pack(protection, flags) as u64;
        assert_eq!(packed(3, 0x22), READ | WRITE | ANONYMOUS);
        assert_eq!(packed(1, 0x01), READ | SHARED);
        assert_eq!(packed(5, 0x03), READ | EXECUTE | SHARED, "MAP_SHARED_VALIDATE");
        assert_eq!(packed(0, 0x4022 | 0x10), ANONYMOUS | NO_RESERVE | FIXED);
        assert_eq!(packed(0, 0x8000 | 0x20000 | 0x40000), POPULATE | STACK | HUGE);
        assert!(packed(usize::MAX, usize::MAX) <= BITS);
    }
}
