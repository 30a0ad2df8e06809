//! Makes the table `.eh_frame_hdr` for a program whose linker made none: GCC requests it for
//! dynamic programs and for `-static-pie`, not for `-static`. The library finds a frame description
//! by a binary search in it (Linux Standard Base, section 10.6.2).

use crate::inject::frames::Description;

/// Version and encodings: the section's address relative to its own place, four bytes, signed; the
/// number of entries, four bytes; the entries relative to the header, four bytes, signed.
const START: [u8; 4] = [1, 0x1b, 0x03, 0x3b];

/// Returns the size of the table of these descriptions in bytes.
pub(super) fn bytes(descriptions: &[Description]) -> u64 {
    12 + 8 * descriptions.len() as u64
}

/// Returns the table, as it is at the address `at`, of a program with this load bias. Descriptions
/// that are too far away are left out.
pub(super) fn table(descriptions: &[Description], bias: u64, at: u64) -> Vec<u8> {
    let distance = |address: u64| i32::try_from(address.wrapping_add(bias).wrapping_sub(at) as i64).ok();
    let rows: Vec<[i32; 2]> =
        descriptions.iter().filter_map(|one| Some([distance(one.first)?, distance(one.address)?])).collect();
    let mut out = START.to_vec();
    // Nobody reads the section's address: the rows have the addresses of the descriptions.
    out.extend(0i32.to_le_bytes());
    out.extend((rows.len() as u32).to_le_bytes());
    rows.iter().flatten().for_each(|number| out.extend(number.to_le_bytes()));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table has the layout that the library reads: sorted rows, relative to the table itself.
    #[test]
    fn table_is_relative_to_its_address() {
        let descriptions =
            [Description { first: 0x1000, address: 0x5000 }, Description { first: 1 << 40, address: 0x5020 }];
        let table = table(&descriptions, 0x40_0000, 0x3f_0000);
        let number = |at: usize| i32::from_le_bytes(table[at..at + 4].try_into().unwrap_or_default());
        assert_eq!((&table[..4], number(8), table.len()), (&START[..], 1, 20), "the far one is left out");
        assert_eq!((number(12), number(16)), (0x1_1000, 0x1_5000));
        assert_eq!(bytes(&descriptions), 28);
    }
}
