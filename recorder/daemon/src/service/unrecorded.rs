//! Names processes that run unrecorded: those that could not reach the daemon, and those that an
//! earlier one did not pass on.

use super::Service;
use heaptape_recorder::digest::process::ProcessCommand;
use heaptape_recorder::pipeline::drain::Command;
use heaptape_recorder::session::boards::Found;
use heaptape_recorder::session::traced_process::SessionId;
use std::sync::Arc;

/// Maximum number of unrecorded processes of one user that are named in the log in a minute.
const MAX_LOGGED: u32 = 16;

impl Service {
    /// Names the processes that have reported, on the board of this process or of all of them, that
    /// they are not recorded: in the log, and in the recording of the process that shares its board
    /// with them.
    pub(super) fn read_boards(&mut self, only: Option<SessionId>) {
        let clients = self.registry.clients().iter();
        let chosen = clients.filter(|client| only.is_none_or(|id| client.session.id == id));
        let owners: Vec<_> = chosen.map(|client| (Arc::clone(&client.session), client.hello_pid)).collect();
        for found in self.boards.read(owners.into_iter()) {
            let Found { session, pid, exe, why, .. } = found;
            self.registry.count_unrecorded("unreachable", 1);
            let uid = self.registry.client(session).map_or(0, |client| client.uid);
            if let Some(more) = self.log.permits("unreachable", uid, MAX_LOGGED) {
                tracing::warn!("process {pid} ({}) runs unrecorded: {why}{more}", exe.escape_debug());
            }
            self.note(session, format!("process {pid} ({exe}) was not recorded: {why}"));
        }
    }

    /// Names the processes that an earlier daemon recorded and did not pass on.
    pub(super) fn name_orphans(&mut self) {
        while let Some((pid, uid)) = self.orphans.next() {
            // It may have executed another program, and attached to this daemon, since it was found.
            if !self.serves(pid) {
                self.name_orphan(pid, uid);
            }
        }
    }

    pub(super) fn name_orphan(&mut self, pid: u32, uid: u32) {
        let name = self.late.add(pid, uid, "orphaned");
        self.registry.count_unrecorded("orphaned", 1);
        if let Some(more) = self.log.permits("orphaned", uid, MAX_LOGGED) {
            let name = name.escape_debug();
            tracing::warn!(
                "process {pid} ({name}) runs unrecorded: an earlier daemon recorded it and did not pass it on; restart it{more}"
            );
        }
    }

    /// Adds a note to the recording of a process.
    pub(super) fn note(&self, id: SessionId, text: String) {
        self.send(Command::Process(id, ProcessCommand::Note(text)));
    }
}
