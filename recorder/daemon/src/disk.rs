//! How full the disk is: what each user has stored and may store, and whether the last write worked.
//! The archive publishes it for other threads.

use super::config::Keep;
use super::log_limit::LogLimit;
use super::retention::{Limit, Share};
use crossbeam_channel::{Receiver, Sender, bounded};
use heaptape_recorder::os::clock;
use heaptape_recorder::session::Quota;
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

#[derive(Debug, Default)]
pub(crate) struct Disk {
    /// Number of bytes of all epochs.
    pub bytes: AtomicU64,
    pub epochs: AtomicU64,
    /// Number of errors of writing.
    pub errors: AtomicU64,
    /// Number of free bytes of the file system, for this user.
    pub free: AtomicU64,
    /// When the epochs were last written without an error, in seconds since 1970.
    pub written: AtomicU64,
    quotas: Mutex<HashMap<u32, Arc<Quota>>>,
    /// What the last sweep found, and what all of them removed.
    retained: Mutex<Retained>,
    /// Gets a message when an epoch was sealed.
    sealed: OnceLock<Sender<()>>,
    /// Gets a message when a write waits until the epochs are measured.
    wanted: OnceLock<Sender<()>>,
    failure: Mutex<Failure>,
    /// Folders of open epochs that were removed.
    gone: Mutex<Vec<PathBuf>>,
}

/// The last error of writing.
#[derive(Debug, Default)]
struct Failure {
    text: String,
    /// Whether nothing was written without an error since then.
    is_current: bool,
    log: LogLimit,
}

/// What is kept for each user, and what was not kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct Retained {
    pub shares: BTreeMap<u32, Share>,
    /// Number of epochs that were removed, by the limit that they exceeded.
    pub removed: BTreeMap<Limit, u64>,
    /// Maximum number of bytes of all epochs because of the space that stays free, if that is less
    /// than otherwise.
    pub bytes: Option<u64>,
}

/// Returns the receiver of a channel that keeps one message. The first receiver remains the only one.
fn receiver(of: &OnceLock<Sender<()>>) -> Receiver<()> {
    let (sender, receiver) = bounded(1);
    let _ = of.set(sender);
    receiver
}

impl Disk {
    /// Returns the quotas of all users.
    pub(crate) fn quotas(&self) -> MutexGuard<'_, HashMap<u32, Arc<Quota>>> {
        self.quotas.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the quota of a user, which is an equal share until it is measured.
    pub(crate) fn quota(&self, uid: u32, keep: Keep) -> Arc<Quota> {
        let bytes = self.retained().bytes.map_or(keep.bytes, |bytes| bytes.min(keep.bytes));
        let mut quotas = self.quotas();
        let others = quotas.len();
        let first = || Arc::new(Quota::new(Keep { bytes, ..keep }.first(others), self.wanted.get().cloned()));
        Arc::clone(quotas.entry(uid).or_insert_with(first))
    }

    /// Notes an error of writing. The same user's disk may fail several times a second: one line in
    /// a minute is enough.
    pub(crate) fn note_error(&self, path: &Path, error: &io::Error) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.text = format!("{}: {error}", path.display());
        failure.is_current = true;
        if let Some(more) = failure.log.permits("write", 0, 1) {
            tracing::error!("an epoch cannot be written: {}{more}", failure.text);
        }
        self.errors.fetch_add(1, Relaxed);
    }

    /// Notes the error of a result, if it is one.
    pub(crate) fn note_result(&self, path: &Path, result: io::Result<()>) {
        if let Err(error) = result {
            self.note_error(path, &error);
        }
    }

    /// Notes that everything was written.
    pub(crate) fn note_success(&self) {
        self.written.store(clock::unix_ns() / 1_000_000_000, Relaxed);
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).is_current = false;
    }

    /// Returns the last error of writing.
    pub(crate) fn last_error(&self) -> String {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).text.clone()
    }

    /// Returns why nothing can be written at the moment; `None` if it can.
    pub(crate) fn current_error(&self) -> Option<String> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.is_current.then(|| failure.text.clone())
    }

    /// Notes that the folder of an open epoch was removed.
    pub(crate) fn note_gone(&self, folder: &Path) {
        self.gone.lock().unwrap_or_else(PoisonError::into_inner).push(folder.to_owned());
    }

    /// Notes that an epoch was sealed.
    pub(crate) fn note_sealed(&self) {
        // A full channel has the message already.
        let _ = self.sealed.get().map(|sealed| sealed.try_send(()));
    }

    /// Returns the folders of open epochs that were found removed since the last call.
    pub(crate) fn gone(&self) -> Vec<PathBuf> {
        std::mem::take(&mut *self.gone.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns what is kept for each user, and what was not kept.
    pub(crate) fn retained(&self) -> MutexGuard<'_, Retained> {
        self.retained.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the receiver of a message for each sealed epoch; messages for several may be one.
    pub(crate) fn sealed(&self) -> Receiver<()> {
        receiver(&self.sealed)
    }

    /// Returns the receiver of a message for each write that waits until the epochs are measured.
    pub(crate) fn wanted(&self) -> Receiver<()> {
        receiver(&self.wanted)
    }

    /// Returns the setting that limits the bytes of a user.
    pub(crate) fn limit_of(&self, uid: u32) -> Limit {
        self.retained().shares.get(&uid).map_or(Limit::Bytes, |share| share.of)
    }

    /// Returns whether the share of a user is used up by data that must be kept.
    pub(crate) fn is_full(&self, uid: u32) -> bool {
        self.quotas().get(&uid).is_some_and(|quota| quota.is_full())
    }

    /// Returns the numbers of writes that were refused since the last call because of a user's
    /// share.
    pub(crate) fn hits(&self) -> Vec<(u32, u64)> {
        self.quotas().iter().map(|(uid, quota)| (*uid, quota.hits())).filter(|(_, hits)| *hits > 0).collect()
    }

    /// Returns whether the share of a user is nearly used up.
    pub(crate) fn is_low(&self) -> bool {
        self.quotas().values().any(|quota| quota.is_low())
    }
}
