//! Knows a profile again by its first field: the format has no mark.

use crate::leb128::{self, DecodeError};
use crate::sniff::Match;

/// Writers begin with a value type, two small numbers of which each may be left out: field 1 in the order of the fields, field 11
/// where Go's run-time writes.
pub fn sniff(bytes: &[u8]) -> Match {
    const SAMPLE_TYPE: u8 = 1 << 3 | 2;
    const PERIOD_TYPE: u8 = 11 << 3 | 2;
    match bytes {
        [] => Match::NeedMore,
        [SAMPLE_TYPE | PERIOD_TYPE] => Match::NeedMore,
        [SAMPLE_TYPE | PERIOD_TYPE, length @ 2..=22, rest @ ..] => {
            let length = usize::from(*length);
            let whole = rest.len() > length;
            match value_type(&rest[..rest.len().min(length)], whole) {
                Match::Yes => match rest.get(length) {
                    // The next field: one of the profile's.
                    Some(key) if matches!(key >> 3, 1..=15) && matches!(key & 7, 0 | 2) => Match::Weak,
                    Some(_) => Match::No,
                    None => Match::NeedMore,
                },
                result => result,
            }
        }
        _ => Match::No,
    }
}

/// Fields 1 and 2, in this order, each at most once.
fn value_type(bytes: &[u8], whole: bool) -> Match {
    let (mut rest, mut before) = (bytes, 0);
    while let Some((&key, value)) = rest.split_first() {
        if !matches!(key, 0x08 | 0x10) || key <= before {
            return Match::No;
        }
        before = key;
        match leb128::read(value) {
            Ok((number, size)) if number < 1 << 20 => rest = &value[size..],
            Err(DecodeError::Truncated) if !whole => return Match::NeedMore,
            _ => return Match::No,
        }
    }
    if whole { Match::Yes } else { Match::NeedMore }
}
