//! What the real 64-bit mptrace makes of numbers from 2^31 on.

use heaptape_formats::mtrc::{Location, Record};

/// What the real 64-bit tool decodes: each 7-bit group is shifted as a 32-bit int, by its position
/// modulo 32, and extended with its sign. (A 32-bit tool reading 32-bit numbers has no such
/// trouble.)
pub(super) fn number(value: u64) -> u64 {
    (0..10u32).fold(0, |sum, group| {
        let bits = (value >> (7 * group).min(63)) as u32 & 0x7f;
        let bits = if group == 9 { (value >> 63) as u32 } else { bits };
        sum | i64::from((bits << (7 * group % 32)).cast_signed()).cast_unsigned()
    })
}

pub(super) fn record<'a>(record: &Record<'a>) -> Record<'a> {
    let location_of =
        |location: Location<'a>| Location { thread: number(location.thread), line: number(location.line), ..location };
    match *record {
        Record::Heap { address, size } => Record::Heap { address: number(address), size: number(size) },
        Record::Internal { address, size } => Record::Internal { address: number(address), size: number(size) },
        Record::Alloc { index, address, size, location } => Record::Alloc {
            index: number(index),
            address: number(address),
            size: number(size),
            location: location_of(location),
        },
        Record::Resize { index, address, size, location } => Record::Resize {
            index: number(index),
            address: number(address),
            size: number(size),
            location: location_of(location),
        },
        Record::Free { index, location } => Record::Free { index: number(index), location: location_of(location) },
    }
}
