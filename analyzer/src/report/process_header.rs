//! The fields with which the JSON of each process begins.

use crate::load::Process;
use crate::missing::Missing;
use serde::Serialize;

/// The fields with which the JSON of each process begins.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessHeader {
    pub pid: u32,
    /// Path of the executable.
    pub exe: String,
    /// Folder of the process in the recording.
    pub folder: String,
    /// Mean number of bytes between samples; 0 when every event was recorded. In a sampled
    /// recording, bytes are estimates, and blocks are those of the sample.
    pub sample_bytes: u64,
    /// Whether nothing is missing from the recording of the process.
    pub complete: bool,
    pub missing: Vec<String>,
    /// Why calls that map memory are not recorded; absent if they are.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub unseen_mappings: String,
}

impl ProcessHeader {
    /// Returns the header of the report on a process.
    pub fn of(process: &Process, missing: &[Missing]) -> Self {
        ProcessHeader {
            pid: process.about.pid,
            exe: process.about.exe.clone(),
            folder: process.about.folder.clone(),
            sample_bytes: process.tape.process.sample_bytes,
            complete: missing.is_empty(),
            missing: missing.iter().map(ToString::to_string).collect(),
            unseen_mappings: process.about.unseen_mappings.clone(),
        }
    }
}
