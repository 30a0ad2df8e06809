//! One traced process: it connects ([`listener`]), gets its shared memory ([`traced_process`]) with
//! options and limits, and leaves what the next recorder needs with a [`keeper`].

pub(crate) mod boards;
pub mod chunk_journal;
pub(crate) mod disk_quota;
pub(crate) mod event_rate;
pub(crate) mod journal_files;
pub mod keeper;
pub mod listener;
pub mod name_store;
pub mod options;
pub(crate) mod socket_dir;
pub(crate) mod traced_process;

pub use boards::{Boards, Found};
pub use disk_quota::Quota;
pub use event_rate::{Limit, UserLimit};
pub use traced_process::{Ids, SHORT_LIFE, Session, SessionId, Stats, StatsSnapshot};
