//! `heaptape record` and `attach`: from the start of a program to the end of its recording.

pub mod admission;
pub mod attach;
pub mod launch;
pub mod recorder;
pub mod running_process;
pub(crate) mod survivor;
