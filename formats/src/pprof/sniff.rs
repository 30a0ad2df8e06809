//! Knows a profile again by its first field: the format has no mark.

use crate::leb128::{self, Failure};
use crate::sniff::Answer;

/// Writers begin with a value type, two small numbers of which each may be left out: field 1 in the order of the fields, field 11
/// where Go's run-time writes.
pub fn sniff(bytes: &[u8]) -> Answer {
    const SAMPLE_TYPE: u8 = 1 << 3 | 2;
    const PERIOD_TYPE: u8 = 11 << 3 | 2;
    match bytes {
        [] => Answer::More,
        [SAMPLE_TYPE | PERIOD_TYPE] => Answer::More,
        [SAMPLE_TYPE | PERIOD_TYPE, length @ 2..=22, rest @ ..] => {
            let length = usize::from(*length);
            let whole = rest.len() > length;
            match value_type(&rest[..rest.len().min(length)], whole) {
                Answer::Yes => match rest.get(length) {
                    // The next field: one of the profile's.
                    Some(key) if matches!(key >> 3, 1..=15) && matches!(key & 7, 0 | 2) => Answer::Weak,
                    Some(_) => Answer::No,
                    None => Answer::More,
                },
                answer => answer,
            }
        }
        _ => Answer::No,
    }
}

/// Fields 1 and 2, in this order, each at most once.
fn value_type(bytes: &[u8], whole: bool) -> Answer {
    let (mut rest, mut before) = (bytes, 0);
    while let Some((&key, value)) = rest.split_first() {
        if !matches!(key, 0x08 | 0x10) || key <= before {
            return Answer::No;
        }
        before = key;
        match leb128::read(value) {
            Ok((number, size)) if number < 1 << 20 => rest = &value[size..],
            Err(Failure::Cut) if !whole => return Answer::More,
            _ => return Answer::No,
        }
    }
    if whole { Answer::Yes } else { Answer::More }
}
