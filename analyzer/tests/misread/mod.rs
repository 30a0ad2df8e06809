//! Reproduces how the real 64-bit mptrace misreads numbers from 2^31 on.

use heaptape_formats::mtrc::{Place, Record};

/// Returns the number that the real 64-bit tool decodes. It shifts each 7-bit group as a 32-bit
/// integer, by its position modulo 32, and sign-extends the result. A 32-bit tool that reads 32-bit
/// numbers is not affected.
pub fn number(value: u64) -> u64 {
    (0..10u32).fold(0, |sum, group| {
        let bits = (value >> (7 * group).min(63)) as u32 & 0x7f;
        let bits = if group == 9 { (value >> 63) as u32 } else { bits };
        sum | i64::from((bits << (7 * group % 32)).cast_signed()).cast_unsigned()
    })
}

/// Returns a record in which every number is misread.
pub fn record<'a>(record: &Record<'a>) -> Record<'a> {
    let place_of = |place: Place<'a>| Place { thread: number(place.thread), line: number(place.line), ..place };
    match *record {
        Record::Heap { address, size } => Record::Heap { address: number(address), size: number(size) },
        Record::Internal { address, size } => Record::Internal { address: number(address), size: number(size) },
        Record::Alloc { index, address, size, place } => {
            Record::Alloc { index: number(index), address: number(address), size: number(size), place: place_of(place) }
        }
        Record::Resize { index, address, size, place } => Record::Resize {
            index: number(index),
            address: number(address),
            size: number(size),
            place: place_of(place),
        },
        Record::Free { index, place } => Record::Free { index: number(index), place: place_of(place) },
    }
}
