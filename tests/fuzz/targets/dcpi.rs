//! The reader of DCPI profiles: a file that was read is written byte for byte.
#![no_main]

use heaptape_formats::dcpi;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    drop(dcpi::dump(bytes, None, &mut std::io::sink()));
    if let Ok(profile) = dcpi::read(bytes) {
        assert!(profile.samples().count() as u64 <= profile.total_offsets);
        drop(dcpi::write(&profile));
    }
});
