//! How fast traces are written and read on this machine: `cargo run --release --example mtrc_speed`.
//! Chunks of 16384 events without names, as the recorder writes them, in a buffer that stays warm.

use heaptape_formats::mtrc::{Options, Place, Reader, Record, Writer};
use std::time::{Duration, Instant};

const EVENTS: u64 = 16384;
const CHUNKS: u64 = 600;

fn main() {
    for padding in [false, true] {
        let options = Options { padding, ..Options::default() };
        let mut writer = Writer::new(options);
        let mut out = Vec::new();
        writer.header(&mut out);
        let (mut wrote, mut read, mut bytes, mut sum, mut seed) = (Duration::ZERO, Duration::ZERO, 0, 0u64, 1u64);
        for chunk in 0..CHUNKS {
            out.clear();
            writer.new_chunk();
            let start = Instant::now();
            for event in chunk * EVENTS..(chunk + 1) * EVENTS {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
                let place = Place::thread(1);
                let (address, size) = (0x5555_0000_0000 + (seed >> 40 << 4), seed >> 52);
                match event % 8 {
                    0 => writer.resize(&mut out, event, address, size, &place),
                    1 | 2 | 4 | 6 => writer.alloc(&mut out, event, address, size, &place),
                    _ => writer.free(&mut out, event / 2, &place),
                }
            }
            wrote += start.elapsed();
            bytes += out.len();
            let start = Instant::now();
            let mut reader = Reader::chunk(options.header, &out, 0);
            while let Ok(Some(record)) = reader.next() {
                sum = sum.wrapping_add(match record {
                    Record::Alloc { index, address, size, place } => index ^ address ^ size ^ place.thread,
                    Record::Resize { index, address, size, .. } => index ^ address ^ size,
                    Record::Free { index, .. } => index,
                    Record::Heap { .. } | Record::Internal { .. } => 0,
                });
            }
            read += start.elapsed();
        }
        let events = (EVENTS * CHUNKS) as f64;
        let ns = |time: Duration| time.as_nanos() as f64 / events;
        let size = bytes as f64 / events;
        println!(
            "padding {padding}: {size:.1} bytes, write {:.1} ns, read {:.1} ns an event ({sum:x})",
            ns(wrote),
            ns(read)
        );
    }
}
