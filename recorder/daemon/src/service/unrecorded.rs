//! Names what is not as a program expects: processes that could not reach the daemon, and requests
//! that were not understood.

use super::Service;
use heaptape_recorder::digest::process::ProcessCommand;
use heaptape_recorder::pipeline::drain::Command;
use heaptape_recorder::session::boards::Found;
use heaptape_recorder::session::traced_process::SessionId;
use std::sync::Arc;

/// Maximum number of unrecorded processes that are named at once in the log.
const MAX_LOGGED: usize = 16;

impl Service {
    /// Names the processes that have reported, on the board of this process or of all of them, that
    /// they are not recorded: in the log, and in the recording of the process that shares its board
    /// with them.
    pub(super) fn read_boards(&mut self, only: Option<SessionId>) {
        let clients = self.registry.clients().iter();
        let chosen = clients.filter(|client| only.is_none_or(|id| client.session.id == id));
        let owners: Vec<_> = chosen.map(|client| (Arc::clone(&client.session), client.hello_pid)).collect();
        for (number, found) in self.boards.read(owners.into_iter()).into_iter().enumerate() {
            let Found { session, pid, exe, why, .. } = found;
            self.registry.count_unrecorded("unreachable", 1);
            if number < MAX_LOGGED {
                tracing::warn!("process {pid} ({}) runs unrecorded: {why}", exe.escape_debug());
            }
            self.note(session, format!("process {pid} ({exe}) was not recorded: {why}"));
        }
    }

    /// Adds a note to the recording of a process.
    pub(super) fn note(&self, id: SessionId, text: String) {
        self.send(Command::Process(id, ProcessCommand::Note(text)));
    }
}
