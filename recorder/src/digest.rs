//! Takes the merged events of a process, one batch after the other, applies them to its heap, and
//! cuts them into chunks for the store. Start with [`process::ProcessRecording`].

pub(crate) mod chunks;
pub(crate) mod process;

pub use process::{ProcessCommand, ProcessRecording, View, ViewFrame, ViewSite, carried_mappings_file};
