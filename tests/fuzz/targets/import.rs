//! Detection, and the readers of files of other heap profilers.
#![no_main]

use heaptape_formats::{Format, dhat, heap_text, heaptrack, leak_log, massif, pprof, sniff};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let sink = &mut std::io::sink();
    match sniff::format(bytes) {
        Some(Format::Pprof) => drop(pprof::dump(bytes, sink)),
        Some(Format::Heaptrack) => drop(heaptrack::dump(bytes, sink)),
        Some(Format::Dhat) => drop(dhat::dump(bytes, sink)),
        Some(Format::Massif) => drop(massif::dump(bytes, sink)),
        Some(Format::HeapText) => drop(heap_text::dump(bytes, sink)),
        Some(Format::LeakLog) => drop(leak_log::dump(bytes, sink)),
        _ => {}
    }
});
