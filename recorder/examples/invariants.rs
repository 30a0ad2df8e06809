//! Reads a recording event by event, checks the invariants of every complete recording, and prints
//! the totals of each process:
//! `cargo run --release -p heaptape-recorder --example invariants -- DIR`.

#[path = "../tests/common/back.rs"]
mod back;

use heaptape_formats::recording::{RECORDING, Recording};
use std::path::PathBuf;

fn main() {
    for dir in std::env::args_os().skip(1).map(PathBuf::from) {
        let bytes = std::fs::read(dir.join(RECORDING)).expect("a recording");
        let recording: Recording = serde_json::from_slice(&bytes).expect("a recording");
        for process in &recording.processes {
            let back = back::read(&dir.join(&process.folder));
            back.check_invariants();
            let totals = back.totals();
            let emitted: u64 = back.accounts.values().map(|account| account.emitted).sum();
            let recorded: u64 = back.accounts.values().map(|account| account.recorded).sum();
            let lost: u64 = back.accounts.values().map(|account| account.lost).sum();
            println!(
                "{}: allocs {} resizes {} frees {} bytes {} live {}/{} peak {}/{} unknown {} implied {} inherited {} \
                 emitted {emitted} recorded {recorded} lost {lost} sites {} modules {} {:?}{}",
                process.folder,
                totals.allocs,
                totals.resizes,
                totals.frees,
                totals.bytes_allocated,
                totals.live_blocks,
                totals.live_bytes,
                totals.peak_blocks,
                totals.peak_bytes,
                totals.unknown_frees,
                totals.implied_frees,
                totals.inherited_blocks,
                back.sites.len(),
                back.modules.len(),
                process.exit,
                back.notes.iter().map(|note| format!(" note: {note}")).collect::<String>(),
            );
        }
    }
}
