//! Encoding of the bins of a histogram, which all forms share.

use crate::Abi;

/// Appends the bins in the byte order of the ABI.
pub(super) fn put_bins(out: &mut Vec<u8>, abi: Abi, bins: &[u16]) {
    if abi.big_endian {
        out.extend(bins.iter().flat_map(|bin| bin.to_be_bytes()));
    } else {
        out.extend(bins.iter().flat_map(|bin| bin.to_le_bytes()));
    }
}
