//! The references of a process that runs on: they are read in a copy of it.

use super::live_blocks;
use crate::pipeline::drain::Command;
use crate::references::{Snapshot, StoppedThread, stopped_thread, take};
use crate::run::running_process::copy::{Copy, with_copy};
use crate::session::traced_process::Session;
use crossbeam_channel::Sender;
use formats::tape::RESIDENCY_REQUEST;
use std::time::{Duration, Instant};

/// How long the process may stand still until all events so far are known.
const DIGEST_LIMIT: Duration = Duration::from_secs(1);

/// Reads the references of a process, and writes them beside its tape. The calling thread must do nothing
/// else. Returns for how long the process stood still.
///
/// # Errors
/// Why there are none. The process runs on as before.
pub fn take_references(session: &Session, commands: &Sender<Command>) -> Result<Duration, String> {
    let pid = session.process.pid;
    // What takes a while is done before the process stands still.
    live_blocks(commands, session.id, Command::ProcessSettled, DIGEST_LIMIT)
        .ok_or("its allocations are sampled: not all live blocks are known")?;
    let while_still = || {
        let live = live_blocks(commands, session.id, Command::ProcessStill, DIGEST_LIMIT)
            .ok_or("its events so far were not known in time")?;
        Ok((live, session.clock.now()))
    };
    let read = |copy: &Copy, (live, tick)| {
        let threads: Vec<StoppedThread> = copy.threads.iter().map(|(tid, own)| stopped_thread(*tid, own)).collect();
        let thread_count = (threads.len() + copy.in_kernel) as u32;
        let (threads, reader_tid, is_copy, cause) = (&*threads, copy.pid, true, RESIDENCY_REQUEST);
        let since = Instant::now();
        let snapshot = Snapshot { session, reader_tid, is_copy, tick, live, threads, thread_count, cause, since };
        take(snapshot).map(|()| copy.stop).map_err(|error| error.to_string())
    };
    let stop = with_copy(pid, while_still, read).map_err(|error| error.to_string())??;
    tracing::info!(pid, "its references were read in a copy of it; it stood still for {stop:?}");
    Ok(stop)
}
