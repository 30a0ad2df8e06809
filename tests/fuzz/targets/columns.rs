//! The reader of traces as columns: what is packed is unpacked to the same bytes.
#![no_main]

use heaptape_formats::{mtrc, tape::Codec};
use std::io::Read;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let mut plain = Vec::new();
    if let Ok(reader) = Codec::Columns.reader(bytes) {
        drop(reader.take(1 << 20).read_to_end(&mut plain));
    }
    drop(mtrc::restore(bytes, bytes.len(), &mut Vec::new()));
    if let Ok(mut items) = mtrc::Items::new(bytes) {
        while let Ok(Some(_)) = items.next() {}
    }
    let (mut packed, mut again) = (Vec::new(), Vec::new());
    Codec::Columns.pack(bytes, 1, &mut packed).expect("memory takes all");
    Codec::Columns.reader(&packed[..]).and_then(|mut reader| reader.read_to_end(&mut again)).expect("what was packed");
    assert_eq!(again, bytes);
});
