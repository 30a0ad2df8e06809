//! From the start of a program to the end of its recording. `heaptape record` is in [`launch`],
//! `heaptape attach` in [`attach`], and [`admission`] is how both, and the daemon, take a process in.

pub mod admission;
pub mod attach;
pub mod launch;
pub(crate) mod recorder;
pub(crate) mod recording_lock;
pub mod running_process;
pub(crate) mod survivor;

pub use recorder::{Answer, KILLED, Outcome, Question, Recorder, Silence, take_references};
