//! Detection of profiles by their first field, since the format has no magic bytes.

use crate::leb128::{self, DecodeError};
use crate::prefix::Match;

/// Matches a value type, two small numbers each of which may be absent. Writers begin with it: with
/// field 1 if they follow the order of the fields, with field 11 in the case of Go's runtime.
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
                    // The next field must be one of a profile.
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

/// Matches fields 1 and 2, in this order, each at most once.
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
