//! The reader of `events.tape`.
#![no_main]

use heaptape_formats::tape;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    drop(tape::dump(bytes, &mut std::io::sink()));
    if let Ok(mut reader) = tape::Reader::new(bytes) {
        while !matches!(reader.step(), tape::Step::End(_)) {}
    }
});
