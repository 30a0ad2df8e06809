//! One traced process: how it arrives, what it may use, what is kept for the next recorder.

pub mod boards;
pub mod chunk_journal;
pub mod disk_quota;
pub mod event_rate;
pub(crate) mod journal_files;
pub mod keeper;
pub mod listener;
pub mod name_store;
pub mod options;
pub(crate) mod socket_dir;
pub mod traced_process;
