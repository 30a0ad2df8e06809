//! Power loss: what is written is brought to the disk every 5 seconds or 16 MiB, by a thread of its own, so that a slow disk holds nobody up.
//!
//! The trace goes before the tape that names its chunks; a commit that got to the disk before its bytes did is known by its checksum. An
//! error here means that what the kernel had taken may be gone: it is told once and never tried again, for the kernel forgets it.

use crossbeam_channel::{Sender, bounded};
use std::fs::File;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Most time and bytes that power loss may cost.
const EVERY: Duration = Duration::from_secs(5);
const BYTES: usize = 16 << 20;
/// Files that may wait; with more the disk is behind anyway.
const WAITING: usize = 64;

/// When an image's files were last brought to the disk.
#[derive(Debug)]
pub struct Sync {
    since: Instant,
    bytes: usize,
}

impl Default for Sync {
    fn default() -> Sync {
        Sync { since: Instant::now(), bytes: 0 }
    }
}

impl Sync {
    /// Counts what was written; true when it is time.
    pub fn is_due(&mut self, bytes: usize) -> bool {
        self.bytes += bytes;
        let is_due = self.bytes >= BYTES || self.since.elapsed() >= EVERY;
        if is_due {
            *self = Sync::default();
        }
        is_due
    }
}

/// Has files brought to the disk, in this order. Nobody waits.
pub fn now<'a>(files: impl Iterator<Item = &'a File>) {
    static QUEUE: OnceLock<Option<Sender<File>>> = OnceLock::new();
    let queue = QUEUE.get_or_init(|| {
        let (queue, files) = bounded::<File>(WAITING);
        let body = move || {
            for file in files {
                if let Err(error) = file.sync_data() {
                    tracing::warn!("the disk could not keep what was written before: {error}");
                }
            }
        };
        std::thread::Builder::new().name("sync".into()).spawn(body).ok().map(|_| queue)
    });
    if let Some(queue) = queue {
        files.filter_map(|file| file.try_clone().ok()).for_each(|file| drop(queue.try_send(file)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn due_by_bytes_and_by_time() {
        let mut sync = Sync::default();
        assert!(!sync.is_due(BYTES - 1) && sync.is_due(1) && !sync.is_due(1));
        sync.since -= EVERY;
        assert!(sync.is_due(0) && !sync.is_due(0));
    }
}
