//! How fast traces are written and read on this machine: `cargo run --release --example mtrc_speed`.
use heaptape_formats::mtrc::{Options, Place, Reader, Record, Writer};
use std::time::Instant;

fn main() {
    let count = 8_000_000u64;
    for padding in [false, true] {
        let mut writer = Writer::new(Options { padding, ..Options::default() });
        let mut out = Vec::with_capacity(count as usize * 20);
        writer.header(&mut out);
        let start = Instant::now();
        let mut seed = 1u64;
        for event in 0..count {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
            let place = Place::thread(1);
            match seed >> 60 {
                0..8 => writer.alloc(&mut out, event, 0x5555_0000_0000 + (seed >> 40 << 4), seed >> 52, &place),
                8 => writer.resize(&mut out, event, 0x7fff_0000_0000 + (seed >> 40 << 4), seed >> 50, &place),
                _ => writer.free(&mut out, event / 2, &place),
            }
        }
        writer.end(&mut out);
        let wrote = start.elapsed();
        let start = Instant::now();
        let mut reader = Reader::new(&out).unwrap();
        let mut sum = 0u64;
        while let Some(record) = reader.next().unwrap() {
            sum = sum.wrapping_add(match record {
                Record::Alloc { index, address, size, place } => index ^ address ^ size ^ place.thread,
                Record::Resize { index, address, size, .. } => index ^ address ^ size,
                Record::Free { index, .. } => index,
                Record::Heap { .. } | Record::Internal { .. } => 0,
            });
        }
        let read = start.elapsed();
        let ns = |time: std::time::Duration| time.as_nanos() as f64 / count as f64;
        println!(
            "padding {padding}: {:.1} bytes, write {:.1} ns, read {:.1} ns an event ({sum})",
            out.len() as f64 / count as f64,
            ns(wrote),
            ns(read)
        );
    }
}
