//! The reader of gmon.out files: a file that was read is written byte for byte.
#![no_main]

use heaptape_formats::gmon;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(file) = gmon::read(bytes, gmon::Hints::default()) {
        drop(gmon::dump(&file, &mut std::io::sink()));
        assert_eq!(gmon::write(&file).expect("its own form"), bytes);
        drop(gmon::Union::default().add(&file));
    }
});
