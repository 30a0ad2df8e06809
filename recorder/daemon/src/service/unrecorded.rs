//! Names processes that run unrecorded because they couldn't reach the daemon, or don't answer. Those
//! that an earlier daemon didn't pass on are recorded again if we can open their memory.

use super::Service;
use crate::clients::Note;
use crate::orphans::Orphan;
use formats::recording::ProcessInfo;
use heaptape_recorder::digest::ProcessCommand;
use heaptape_recorder::inject::patch::Noted;
use heaptape_recorder::os::aside::Owner;
use heaptape_recorder::os::clock;
use heaptape_recorder::pipeline::Command;
use heaptape_recorder::run::admission;
use heaptape_recorder::session::keeper::{self, About, AboutFile, Entry, Held};
use heaptape_recorder::session::{Found, SessionId};
use std::io;
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

    /// Goes on with the processes that an earlier daemon recorded and did not pass on.
    pub(super) fn adopt_orphans(&mut self) {
        while let Some(orphan) = self.orphans.next() {
            let Owner { pid, uid } = orphan.owner;
            // It may have executed another program, and attached to this daemon, since it was found.
            if self.serves(pid) {
                continue;
            }
            if self.count_of(uid) >= self.config.budget.clients {
                self.name_orphan(pid, uid, "its user has too many processes");
                continue;
            }
            match self.held(orphan) {
                Ok(held) => {
                    let name = held.about.name.escape_debug().to_string();
                    admission::resume(self, held);
                    // An area whose recording was ended is refused, and named.
                    if self.serves(pid) {
                        self.adopted += 1;
                        tracing::info!(
                            "process {pid} ({name}) is recorded again: its daemon ended without passing it on"
                        );
                    }
                }
                Err(error) => {
                    let needs = match error.kind() {
                        io::ErrorKind::PermissionDenied => " (CAP_CHECKPOINT_RESTORE and CAP_SYS_PTRACE are needed)",
                        _ => "",
                    };
                    self.name_orphan(pid, uid, &format!("its memory cannot be opened: {error}{needs}"));
                }
            }
        }
    }

    /// Returns an orphan as the fd store would have kept it. What was hooked inside the program, and
    /// a mode that was set later, are not known any more.
    fn held(&mut self, orphan: Orphan) -> io::Result<Held<Note>> {
        let Orphan { owner: Owner { pid, uid }, hello_pid, end, area, process, mode, label } = orphan;
        let area = area?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let choice = self.config.choose(&process.comm, mode.as_deref());
        let info = ProcessInfo {
            pid,
            ppid: process.ppid,
            exe: text(&process.exe),
            argv: process.argv.iter().map(|argument| text(argument)).collect(),
            started_unix_ns: clock::unix_ns(),
            ..ProcessInfo::default()
        };
        let note = Note { choice, label: label.unwrap_or_default(), was_attached: false };
        let about = About { info, name: text(&process.comm), hello_pid, uid, hooks: Noted::default(), note };
        let key = format!("{pid}-{}", self.admissions.clock.now());
        let entry = match keeper::keep(self.successor.keeper(), key.clone(), &about, &area, &end) {
            Some(entry) => entry,
            None => Entry { key, about: AboutFile::new()? },
        };
        Ok(Held { entry, about, area, process: end })
    }

    pub(super) fn name_orphan(&mut self, pid: u32, uid: u32, why: &str) {
        let name = self.late.add(pid, uid, "orphaned");
        self.registry.count_unrecorded("orphaned", 1);
        if let Some(more) = self.log.permits("orphaned", uid, MAX_LOGGED) {
            let name = name.escape_debug();
            tracing::warn!(
                "process {pid} ({name}) runs unrecorded: an earlier daemon recorded it and did not pass it on, and {why}; restart it{more}"
            );
        }
    }

    /// Names the programs whose files or memory do not answer: those that run unrecorded meanwhile,
    /// and those of which something may be missing.
    pub(super) fn name_stalled(&mut self) {
        for (pid, uid) in self.inquiries.gave_up() {
            self.count_stalled(pid, uid);
        }
        for Owner { pid, uid } in self.inquiries.stuck() {
            let id = self.registry.client_of(pid).filter(|client| !client.is_stalled).map(|client| client.session.id);
            let Some(client) = id.and_then(|id| self.registry.client_mut(id)) else { continue };
            client.is_stalled = true;
            let (id, name) = (client.session.id, client.name.escape_debug().to_string());
            let what = "its memory or a file system that it uses did not answer; names and mappings may be missing";
            if let Some(more) = self.log.permits("stalled", uid, MAX_LOGGED) {
                tracing::warn!("process {pid} ({name}): {what}{more}");
            }
            self.note(id, what.to_owned());
        }
    }

    /// Counts a program that runs unrecorded since its files or its memory did not answer.
    pub(super) fn count_stalled(&mut self, pid: u32, uid: u32) {
        let name = self.late.add(pid, uid, "stalled");
        self.registry.count_refused("stalled", 1);
        if let Some(more) = self.log.permits("stalled", uid, MAX_LOGGED) {
            let name = name.escape_debug();
            tracing::warn!(
                "process {pid} ({name}) runs unrecorded: its memory or a file system that it uses did not answer{more}"
            );
        }
    }

    /// Adds a note to the recording of a process.
    pub(super) fn note(&self, id: SessionId, text: String) {
        self.send(Command::Process(id, ProcessCommand::Note(text)));
    }
}
