//! The reader of traces: what is kept of a stream reads without an error.
#![no_main]

use heaptape_formats::mtrc;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    drop(mtrc::dump(bytes, &mut std::io::sink()));
    drop(mtrc::rewrite(bytes));
    if let Ok(validation) = mtrc::validate(bytes) {
        let kept = &bytes[..validation.bytes as usize];
        assert!(mtrc::validate(kept).is_ok_and(|again| again.ending.is_ok() && again.bytes == validation.bytes));
    }
});
