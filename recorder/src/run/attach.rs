//! `heaptape attach`: records a process that runs already, for a while, and leaves it as it was.

use crate::os::clock::Clock;
use crate::os::sync;
use crate::run::admission::LAST_HOOKS;
use crate::run::recorder::{Outcome, Recorder};
use crate::run::running_process::{AttachError, STAYS_HOOKED, STAYS_MAPPED, Stops, Target};
use crate::session::options::Options;
use crate::session::socket_dir::{SocketDir, SocketDirError};
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The longest wait for events of the process.
const INTERVAL: Duration = Duration::from_secs(1);

/// Why a process is not recorded.
#[derive(Debug, thiserror::Error)]
pub enum AttachmentError {
    /// The process cannot be attached.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// The recorder cannot be started.
    #[error("{}: {error}", .path.display())]
    Recorder {
        /// Folder of the recording.
        path: PathBuf,
        error: io::Error,
    },
    /// There is no folder for its socket.
    #[error(transparent)]
    Socket(#[from] SocketDirError),
}

/// A process that is being recorded.
#[derive(Debug)]
pub struct Attachment {
    target: Target,
    recorder: Recorder,
    has_references: bool,
    _sockets: SocketDir,
}

/// How a process was left.
#[derive(Debug)]
pub struct Left {
    /// Contents of the recording.
    pub outcome: Outcome,
    /// The longest stops of the process.
    pub stops: Stops,
    /// Why it could not be read at the end which block holds which, if that was asked for.
    pub no_references: Option<String>,
    /// What remains in the process; `None` if nothing does.
    pub remains: Option<String>,
    /// Functions of the process may still be hooked.
    pub is_hooked: bool,
}

impl Attachment {
    /// Attaches a process, and records it into an existing folder.
    ///
    /// # Errors
    /// Why it is not recorded. It runs on unchanged.
    pub fn begin(target: Target, dir: &Path, options: &Options) -> Result<Attachment, AttachmentError> {
        let failed = |error| AttachmentError::Recorder { path: dir.to_owned(), error };
        let sockets = SocketDir::make()?;
        sockets.remove_stale();
        let mut recorder = Recorder::start(dir, sockets.socket(), options.clone(), Vec::new()).map_err(failed)?;
        let (mut target, running) = target.attach(options, Clock::choose())?;
        if let Err(error) = recorder.admit_running(running) {
            // The first error says why.
            let _ = target.detach().and_then(|()| target.leave());
            return Err(failed(error));
        }
        Ok(Attachment { target, recorder, has_references: options.references, _sockets: sockets })
    }

    /// Returns the process that is recorded.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Records until `stop` is readable, the time is over, or the process has ended.
    ///
    /// # Errors
    /// The first error of the recorder's files. The recording went on all the same.
    pub fn record(&mut self, stop: BorrowedFd<'_>, time: Option<Duration>) -> io::Result<()> {
        let start = Instant::now();
        let mut result = Ok(());
        while self.recorder.is_busy() {
            let left = time.map_or(INTERVAL, |time| time.saturating_sub(start.elapsed()));
            if left.is_zero() {
                break;
            }
            match self.recorder.serve(&[stop], left.min(INTERVAL)) {
                Ok(ready) if ready.first() == Some(&true) => break,
                Ok(_) => {}
                Err(error) => {
                    result = result.and(Err(error));
                    std::thread::sleep(LAST_HOOKS);
                }
            }
        }
        result
    }

    /// Ends the recording, and leaves the process as it was.
    pub fn end(mut self) -> Left {
        let (mut remains, mut is_hooked, mut stop) = (None, false, Duration::ZERO);
        let mut no_references = None;
        if self.has_references {
            match self.recorder.read_references() {
                Some(Ok(stood_still)) => stop = stood_still,
                Some(Err(why)) => no_references = Some(why),
                None if !self.recorder.is_busy() => no_references = Some("it ended before".into()),
                None => {}
            }
        }
        if self.recorder.is_busy() {
            self.recorder.read_pages();
            let detached = self.target.detach();
            let until = Instant::now() + LAST_HOOKS;
            while Instant::now() < until && self.recorder.is_busy() {
                // Its errors are in the outcome.
                let _ = self.recorder.serve(&[], until.saturating_duration_since(Instant::now()));
            }
            let pid = self.target.pid();
            let has_ended = || !Path::new(&format!("/proc/{pid}")).exists();
            // A thread that cannot be stopped for a look may be in the library.
            remains = match detached.map(|()| self.target.leave().unwrap_or(false)) {
                Ok(true) => None,
                _ if has_ended() => None,
                Ok(false) => Some(STAYS_MAPPED.into()),
                Err(error) => {
                    is_hooked = true;
                    Some(format!("{STAYS_HOOKED}: {error}; heaptape detach {pid} restores them"))
                }
            };
        }
        let mut stops = self.target.stops();
        stops.all = stops.all.max(stop);
        let outcome = self.recorder.finish();
        sync::finish();
        Left { outcome, stops, no_references, remains, is_hooked }
    }
}
