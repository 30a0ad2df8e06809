//! The continuation of a recording whose recorder was killed.

use super::Recorder;
use super::census::Census;
use crate::run::admission;
use crate::session::keeper::{CommandLink, Held};
use crate::session::options::Options;
use formats::recording::{RECORDING, Recording};
use std::io;
use std::path::Path;

/// Why a process is not recorded whose recorder was killed before the process had its area.
pub const KILLED: &str = "its recorder was killed while the process attached";

impl Recorder {
    /// Continues a recording whose recorder was killed.
    ///
    /// # Errors
    /// When the recording cannot be read, or has its end already.
    pub fn resume(dir: &Path, socket: &Path, options: Options) -> io::Result<Recorder> {
        let recording: Recording = serde_json::from_slice(&std::fs::read(dir.join(RECORDING))?)?;
        if recording.ended_unix_ns.is_some() {
            return Err(io::Error::other("the recording has its end"));
        }
        let first_pid = recording.processes.first().map(|process_info| process_info.pid);
        let mut recorder = Recorder::with(dir, socket, options, recording)?;
        recorder.first_pid = first_pid;
        // Nobody listened meanwhile.
        recorder.census = Census::default();
        Ok(recorder)
    }

    /// Connects the recorder to the command, which keeps the descriptors of each process.
    pub fn connect_command(&mut self, link: CommandLink) {
        self.keeper.connect(link);
    }

    /// Continues with a process of a killed recorder.
    pub fn take_over(&mut self, held: Held<()>) {
        admission::resume(self, held);
    }
}
