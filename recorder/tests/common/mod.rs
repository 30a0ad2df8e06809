//! A recorder in a folder of its own, a client that plays the traced process, and a reader of what
//! was recorded.

#![allow(dead_code)]

pub(crate) mod back;
pub(crate) mod fake;

use heaptape_recorder::run::{Outcome, Recorder};
use heaptape_recorder::session::options::Options;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// A recorder at work on a thread of its own.
pub(crate) struct TestRecorder {
    folder: tempfile::TempDir,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<Outcome>>,
}

impl TestRecorder {
    pub(crate) fn new(options: Options) -> TestRecorder {
        let folder = tempfile::tempdir().expect("a folder");
        let dir = folder.path().join("recording");
        std::fs::create_dir(&dir).expect("a folder");
        let socket = folder.path().join("socket");
        let stop = Arc::new(AtomicBool::new(false));
        let mut recorder = Recorder::start(&dir, &socket, options, vec!["fake".into()]).expect("a recorder");
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(SeqCst) {
                recorder.serve(&[], Duration::from_millis(5)).expect("serves");
            }
            recorder.finish()
        });
        TestRecorder { folder, stop, thread: Some(thread) }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.folder.path().join("recording")
    }

    /// Stops it, and returns its outcome and all processes read back.
    pub(crate) fn finish(&mut self) -> (Outcome, Vec<back::Back>) {
        self.stop.store(true, SeqCst);
        let outcome = self.thread.take().expect("runs").join().expect("no panic");
        let folders =
            outcome.recording.processes.iter().map(|process| back::read(&self.dir().join(&process.folder))).collect();
        (outcome, folders)
    }
}

/// A generator of numbers (xorshift) that are the same in every run.
pub(crate) struct Random(pub u64);

impl Random {
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % sides
    }
}
