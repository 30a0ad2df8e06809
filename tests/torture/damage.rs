//! Truncated recordings, and recordings with flipped bits: intact parts are read, the rest is
//! named, and nothing panics or hangs.

use heaptape_tests::recording::heaptape;
use heaptape_tests::{Program, Recording, target, torture};
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// A small recording with more than one chunk's worth of kinds of records.
fn sample() -> Recording {
    Program::new(target::c("known_stacks")).recorded().success().complete()
}

/// Asserts that each command ends soon with a status of its own.
fn read(folder: &Path, what: &str) {
    for arguments in [&["verify"][..], &["report", "--json"], &["leaks", "--json"]] {
        let outcome = heaptape(arguments.iter().map(OsStr::new).chain([folder.as_os_str()]));
        assert!(outcome.code() <= 2, "{what}: heaptape {arguments:?}: {outcome}");
        assert!(outcome.wall < Duration::from_secs(5), "{what}: heaptape {arguments:?} took {:?}", outcome.wall);
        assert!(outcome.code() != 2 || outcome.error().starts_with("heaptape:"), "{what}: one clear line: {outcome}");
    }
}

/// Damages one file of the recording in `times` ways, reads, and puts it back.
fn damage(recording: &Recording, file: &str, times: usize, how: impl Fn(&[u8], usize) -> (Vec<u8>, String)) -> u64 {
    let path = recording.files(file).remove(0);
    let original = fs::read(&path).expect("the file");
    for time in 0..times {
        let (bytes, what) = how(&original, time);
        fs::write(&path, bytes).expect("the damaged file");
        read(&recording.folder, &format!("{file}, {what}"));
    }
    fs::write(&path, original).expect("the original file");
    times as u64
}

#[test]
fn files_truncated_anywhere_are_read_without_panic() {
    let recording = sample();
    let mut tried = 0;
    for file in ["events.tape", "trace.mtrc", "profile.mptl"] {
        tried += damage(&recording, file, 150, |original, time| {
            let at = original.len() * time / 150;
            (original[..at].to_vec(), format!("truncated to {at} of {}", original.len()))
        });
    }
    torture::passed(37, "truncated files", tried);
}

#[test]
fn files_with_flipped_bits_are_read_without_panic() {
    let recording = sample();
    let mut tried = 0;
    for file in ["events.tape", "trace.mtrc", "profile.mptl"] {
        tried += damage(&recording, file, 300, |original, time| {
            let at = time.wrapping_mul(2_654_435_761) % original.len();
            let mut bytes = original.to_vec();
            bytes[at] ^= 1 << (time % 8);
            (bytes, format!("bit {} of byte {at} flipped", time % 8))
        });
    }
    torture::passed(37, "flipped bits", tried);
}

#[test]
fn recordings_with_missing_files_are_read_without_panic() {
    let recording = sample();
    for file in ["events.tape", "trace.mtrc", "profile.mptl"] {
        let path = recording.files(file).remove(0);
        let original = fs::read(&path).expect("the file");
        fs::remove_file(&path).expect("it goes away");
        read(&recording.folder, &format!("{file} missing"));
        fs::write(&path, original).expect("the original file");
    }
    fs::remove_file(recording.folder.join("recording.json")).expect("it goes away");
    read(&recording.folder, "recording.json missing");
    torture::passed(37, "missing files", 4);
}
