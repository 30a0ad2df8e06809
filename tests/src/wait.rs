//! Waiting for what other processes do. How long that takes is no test's business: a machine may be
//! busy, so patience ends just before the runner's own deadline (`.config/nextest.toml`).

use std::time::{Duration, Instant};

/// How long a test waits for something that must happen.
pub const PATIENCE: Duration = Duration::from_secs(240);

/// The longest nap between two looks.
const NAP: Duration = Duration::from_millis(20);

/// Waits until `holds` returns true.
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    until_some(what, || holds().then_some(()));
}

/// Waits until `look` returns something, and returns that.
#[track_caller]
pub fn until_some<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    let mut nap = Duration::from_micros(200);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(nap);
        nap = (nap * 2).min(NAP);
    }
}
