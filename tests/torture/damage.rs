//! Recordings that are cut or flipped: whatever is whole is read, the rest is named, and nothing
//! panics or hangs.

use heaptape_tests::recording::heaptape;
use heaptape_tests::{Program, Recording, target, torture};
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// A small recording with more than one chunk's worth of kinds of records.
fn sample() -> Recording {
    Program::new(target::c("known_stacks")).recorded().success().whole()
}

/// What every reader says of the damaged folder: an exit code of its own, soon.
fn read(folder: &Path, what: &str) {
    for words in [&["verify"][..], &["report", "--json"], &["leaks", "--json"]] {
        let outcome = heaptape(words.iter().map(OsStr::new).chain([folder.as_os_str()]));
        assert!(outcome.code() <= 2, "{what}: heaptape {words:?}: {outcome}");
        assert!(outcome.wall < Duration::from_secs(5), "{what}: heaptape {words:?} took {:?}", outcome.wall);
        assert!(outcome.code() != 2 || outcome.error().starts_with("heaptape:"), "{what}: one clear line: {outcome}");
    }
}

/// Damages one file of the recording in `times` ways, reads, and puts it back.
fn damage(recording: &Recording, file: &str, times: usize, how: impl Fn(&[u8], usize) -> (Vec<u8>, String)) -> u64 {
    let path = recording.files(file).remove(0);
    let whole = fs::read(&path).expect("the file");
    for time in 0..times {
        let (bytes, what) = how(&whole, time);
        fs::write(&path, bytes).expect("the damaged file");
        read(&recording.folder, &format!("{file}, {what}"));
    }
    fs::write(&path, whole).expect("the whole file");
    times as u64
}

#[test]
fn cut_anywhere() {
    let recording = sample();
    let mut tried = 0;
    for file in ["events.tape", "trace.mtrc", "profile.mptl"] {
        tried += damage(&recording, file, 150, |whole, time| {
            let at = whole.len() * time / 150;
            (whole[..at].to_vec(), format!("cut at {at} of {}", whole.len()))
        });
    }
    torture::passed(37, "files cut", tried);
}

#[test]
fn flipped_anywhere() {
    let recording = sample();
    let mut tried = 0;
    for file in ["events.tape", "trace.mtrc", "profile.mptl"] {
        tried += damage(&recording, file, 300, |whole, time| {
            let at = time.wrapping_mul(2_654_435_761) % whole.len();
            let mut bytes = whole.to_vec();
            bytes[at] ^= 1 << (time % 8);
            (bytes, format!("bit {} of byte {at} flipped", time % 8))
        });
    }
    torture::passed(37, "bits flipped", tried);
}

#[test]
fn files_missing() {
    let recording = sample();
    for file in ["events.tape", "trace.mtrc", "profile.mptl"] {
        let path = recording.files(file).remove(0);
        let whole = fs::read(&path).expect("the file");
        fs::remove_file(&path).expect("it goes away");
        read(&recording.folder, &format!("{file} missing"));
        fs::write(&path, whole).expect("the whole file");
    }
    fs::remove_file(recording.folder.join("recording.json")).expect("it goes away");
    read(&recording.folder, "recording.json missing");
    torture::passed(37, "files missing", 4);
}
