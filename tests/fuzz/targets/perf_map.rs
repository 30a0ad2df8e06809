//! The reader of perf maps.
#![no_main]

use heaptape_formats::perf_map::{Line, UnnamedAddresses};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut unnamed: UnnamedAddresses = (0..64).map(|step| 0x7f65_7802_2900 + step * 0x800).collect();
    for line in bytes.split(|byte| *byte == b'\n').filter_map(Line::read) {
        unnamed.take(line.start, line.length);
    }
});
