//! How fast profiles are read and written on this machine: `cargo run --release --example mptl_speed`.

use heaptape_formats::mptl::{Bins, Builder, Profile, layout};
use std::time::Instant;

fn main() {
    let sites = 1_000_000;
    let mut builder = Builder::new(layout::BOUNDS, Bins::new(layout::BINS));
    let symbols: Vec<_> =
        (0..20_000u64).map(|n| builder.symbol(0x400000 + n * 64, format!("f{n}").as_bytes())).collect();
    let mut seed = 1u64;
    for site in 0..sites {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let symbol = symbols[(seed >> 40) as usize % symbols.len()];
        let index = builder.site((seed >> 33) % (site + 1), 0x400000 + (seed >> 40), Some(symbol));
        builder.alloc(index, seed >> 52);
    }
    let start = Instant::now();
    let profile = builder.build();
    println!("build {:.0} ns a site", start.elapsed().as_nanos() as f64 / sites as f64);
    let mut out = Vec::new();
    for _ in 0..4 {
        out.clear();
        let start = Instant::now();
        profile.write(&mut out);
        let rate = |start: Instant| out.len() as f64 / start.elapsed().as_secs_f64() / 1e6;
        let write = rate(start);
        let start = Instant::now();
        let (read, _) = Profile::read(&out).unwrap();
        println!("{} MB: write {write:.0} MB/s, read {:.0} MB/s", out.len() / 1_000_000, rate(start));
        assert!(read == profile);
    }
}
