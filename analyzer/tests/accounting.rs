//! The law of the accounting on recordings that the tests make, whole, cut and flipped.

use crate::law;
use crate::made;

use heaptape_analyzer::report::{Query, View, summary};
use heaptape_formats::recording::{Accounting, RECORDING, Recording};
use heaptape_formats::tape::{self, Codec};
use made::{Files, Options, Step, program};
use std::path::Path;

fn steps() -> Vec<Step> {
    let mut state = 11u64;
    let mut roll = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    let rolls: Vec<_> =
        (0..150).map(|_| (roll() as u8, roll() as u16 % 5000, roll() as u8, roll() as u8, roll() as u8)).collect();
    program(&rolls)
}

/// Recordings with and without gaps, complete ones and one whose recorder was killed before it
/// wrote the accounts.
fn variants() -> Vec<(&'static str, Options)> {
    let losses = vec![
        tape::Loss { thread: 1, events: 40, from_tick: 110, to_tick: 120 },
        tape::Loss { thread: 2, events: 2, from_tick: 130, to_tick: 150 },
    ];
    let left = Options { summary: false, end: false, ledger: false, ..Options::default() };
    vec![
        ("whole", Options::default()),
        ("whole, zstd", Options { codec: Codec::Zstd, ..Options::default() }),
        ("with gaps", Options { losses: losses.clone(), ..Options::default() }),
        ("with gaps, summaries between", Options { losses: losses.clone(), summary_chunks: 2, ..Options::default() }),
        ("left open", left.clone()),
        ("left open with gaps", Options { losses, ..left }),
    ]
}

fn written(folder: &Path, files: &Files, codec: Codec) {
    made::write(folder, files, codec);
}

#[test]
fn no_command_denies_a_loss_that_another_names() {
    for (name, options) in variants() {
        let files = made::files(&steps(), &options);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        written(path, &files, options.codec);
        let lost: u64 = options.losses.iter().map(|loss| loss.events).sum();
        assert_eq!(law::holds(path, name), Some(lost), "{name}");
        let try_with = |files: &Files, what: String| {
            written(path, files, options.codec);
            law::holds(path, &format!("{name}, {what}"));
        };
        for part in 0..6 {
            let cut = files.tape.len() * part / 6;
            try_with(&Files { tape: files.tape[..cut].to_vec(), ..files.clone() }, format!("tape cut at {cut}"));
            let cut = files.trace.len() * part / 6;
            try_with(&Files { trace: files.trace[..cut].to_vec(), ..files.clone() }, format!("trace cut at {cut}"));
        }
        for time in 0..8usize {
            let mut torn = files.clone();
            let at = time.wrapping_mul(2_654_435_761) % torn.tape.len();
            torn.tape[at] ^= 1 << (time % 8);
            try_with(&torn, format!("tape byte {at} flipped"));
            let mut torn = files.clone();
            let at = time.wrapping_mul(2_654_435_761) % torn.trace.len();
            torn.trace[at] ^= 1 << (time % 8);
            try_with(&torn, format!("trace byte {at} flipped"));
        }
    }
}

/// What the recorder knew at the end holds for a tape that lost its last records, and for a process
/// of which nothing was written.
#[test]
fn events_that_could_not_be_written_are_lost() {
    let options = Options::default();
    let files = made::files(&steps(), &options);
    let dir = tempfile::tempdir().unwrap();
    written(dir.path(), &files, options.codec);
    let file = dir.path().join(RECORDING);
    let mut about: Recording = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let stated = Accounting { emitted: 10_000, recorded: 9_476, lost: 524, sampled_out: 0 };
    about.processes[0].accounting = Some(stated);
    std::fs::write(&file, serde_json::to_vec(&about).unwrap()).unwrap();
    std::fs::write(dir.path().join("4711.made/events.tape"), &files.tape[..files.tape.len() / 2]).unwrap();
    let lost = law::holds(dir.path(), "a cut tape").unwrap();
    assert!(lost > 524, "{lost}");
    std::fs::remove_dir_all(dir.path().join("4711.made")).unwrap();
    assert_eq!(law::holds(dir.path(), "no folder"), Some(10_000));
}

#[test]
fn a_recording_without_a_process_is_not_complete() {
    let dir = tempfile::tempdir().unwrap();
    let about = Recording { ended_unix_ns: Some(2), started_unix_ns: 1, ..Recording::default() };
    std::fs::write(dir.path().join(RECORDING), serde_json::to_vec(&about).unwrap()).unwrap();
    let mut out = Vec::new();
    let outcome = heaptape_analyzer::report::verify::run(dir.path(), &mut out, heaptape_analyzer::text::Style::PLAIN);
    assert_eq!(outcome.unwrap(), heaptape_analyzer::report::Outcome::Incomplete);
    let text = String::from_utf8(out).unwrap();
    assert!(text.contains("no process was recorded") && !text.contains("complete"), "{text}");
    assert_eq!(law::holds(dir.path(), "no process"), Some(0));
    let mut out = Vec::new();
    summary::report(&Query::of(dir.path(), View::text(0)), &mut out, heaptape_analyzer::text::Style::PLAIN).unwrap();
    let text = String::from_utf8(out).unwrap();
    assert!(!text.contains("none lost"), "{text}");
}
