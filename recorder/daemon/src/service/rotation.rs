//! Starts and ends epochs. Processes then continue in another folder, perhaps in another mode, and
//! flight recordings are kept.

use super::Service;
use crate::archive::KeptFlight;
use crate::clients::{Ended, FlightEnd};
use crate::config::Choice;
use crate::epoch::Epoch;
use crossbeam_channel::bounded;
use formats::recording::{Exit, Kept};
use heaptape_recorder::digest::ProcessCommand;
use heaptape_recorder::os::clock::{self, Moment};
use heaptape_recorder::os::crash;
use heaptape_recorder::os::permissions::remove_segment;
use heaptape_recorder::pipeline::Command;
use heaptape_recorder::session::SessionId;
use heaptape_recorder::session::options::Mode;
use heaptape_recorder::store::writer::{Callback, Stored};
use std::sync::Arc;
use std::time::Instant;

/// Maximum number of lines in a minute about one user's flight recordings.
const MAX_LOGGED: u32 = 16;

/// Returns the note that a flight recording is kept now.
fn kept_now(why: &str) -> Kept {
    Kept { unix_ns: clock::unix_ns(), why: why.to_owned() }
}

impl Service {
    /// Handles a segment whose last byte is written.
    pub(super) fn stored(&mut self, mut stored: Stored) {
        let id = stored.session;
        self.epochs.count_segment(&stored);
        let closing = self.epochs.take_pending(&stored);
        let (ending, client) = (self.registry.ending(id), self.registry.client(id));
        let ended = ending.filter(|_| stored.is_over).map(|ending| ending.ended);
        let label = ending.map(|ending| &ending.label).or(client.map(|client| &client.label));
        let label = label.cloned().unwrap_or_default();
        // A segment that ended by a change of mode may still belong to the old epoch.
        let of_client =
            client.map(|client| self.epochs.closing_with(&stored.segment).unwrap_or_else(|| Arc::clone(&client.epoch)));
        let of_ending = ending.map(|ending| Arc::clone(&ending.epoch));
        let Some(epoch) = closing.or(of_ending).or(of_client) else { return };
        if stored.is_over {
            self.process_written(&epoch, &mut stored);
        }
        self.epochs.segment_stored(epoch, stored, label, ended);
        self.complete_flushes();
    }

    /// Handles a process that has ended and is written.
    fn process_written(&mut self, epoch: &Arc<Epoch>, stored: &mut Stored) {
        let ending = self.registry.written(stored.session);
        let unknown = Ended { exit: Exit::Unknown, memory: None };
        let ended = ending.as_ref().map_or(unknown, |ending| ending.ended);
        if ended.exit != Exit::Running {
            let clients = self.registry.clients();
            self.successor.forget_journal(&stored.segment, |pid| clients.iter().any(|client| client.pid() == pid));
        }
        let keeps = ending.as_ref().map_or(FlightEnd::Nothing, |ending| ending.keeps);
        if keeps != FlightEnd::Nothing && !stored.segments.is_empty() {
            let (name, label) = ending.map(|ending| (ending.name, ending.label)).unwrap_or_default();
            let (mut folders, symbols) = (stored.segments.clone(), stored.symbols.take());
            let kept = if keeps == FlightEnd::All {
                self.incidents.flight_kept(epoch.uid, &name, &label, "exit");
                if let Some(more) = self.log.permits("flight", epoch.uid, MAX_LOGGED) {
                    let (name, dir) = (name.escape_debug(), epoch.dir.display());
                    tracing::info!("the flight recording of {name}, which has ended, is kept in {dir}{more}");
                }
                Some(kept_now(&ended.cause()))
            } else {
                folders.drain(..folders.len() - 1).for_each(|folder| remove_segment(&folder));
                None
            };
            let flight = KeptFlight { folders, symbols, kept, ended };
            self.epochs.adopt(epoch, stored.session, flight, Callback::new(|| {}));
        } else if ended.exit != Exit::Running || !self.successor.takes_over() {
            // The next daemon continues with the flight recording of a process that runs. Of one
            // that was left it is over.
            stored.segments.iter().for_each(|folder| remove_segment(folder));
        }
    }

    /// Ends the epochs of all users; `on_done` is called for each of them. Returns why those of
    /// some users go on; for them it is dropped.
    pub(super) fn rotate_all(&mut self, on_done: &mut dyn FnMut(u32) -> Callback) -> Vec<String> {
        let users = self.epochs.users();
        users.into_iter().filter_map(|uid| self.rotate(uid, on_done(uid)).err()).collect()
    }

    /// Ends the epoch of a user. The next one starts with the processes that run.
    ///
    /// # Errors
    /// Why there is no next one, e.g. a full disk. The old one goes on then, so that nothing is
    /// written to an epoch that is closed, and a second later there is another attempt.
    pub(super) fn rotate(&mut self, uid: u32, on_done: Callback) -> Result<(), String> {
        let running = self.registry.select(|client| client.uid == uid);
        let (old, new) = match self.epochs.renew(uid, !running.is_empty()) {
            Ok(Some(renewed)) => renewed,
            Ok(None) => {
                on_done.call();
                return Ok(());
            }
            Err(error) => {
                let why = format!("user {uid}: no new epoch can be made, the current one goes on: {error}");
                if let Some(more) = self.log.permits("epoch", uid, 1) {
                    tracing::error!("{why}{more}");
                }
                return Err(why);
            }
        };
        let mut pending = self.registry.ending_in(&old);
        if let Some(new) = new {
            for id in running {
                let segment = self.registry.client(id).map(|client| client.session.folder.clone());
                if self.move_to_epoch(id, &new) {
                    pending.extend(segment.map(|segment| (id, segment)));
                }
            }
        }
        self.epochs.close(old, pending, on_done);
        Ok(())
    }

    /// Continues a process in another epoch. Returns whether that starts a segment.
    fn move_to_epoch(&mut self, id: SessionId, epoch: &Arc<Epoch>) -> bool {
        let Some(client) = self.registry.client_mut(id) else { return false };
        client.epoch = Arc::clone(epoch);
        let choice = client.choice;
        if choice.mode == Mode::Flight {
            self.epochs.list(epoch, &client.session, client.session.info());
            return false;
        }
        self.rotate_process(id, choice, Callback::new(|| {}));
        true
    }

    /// Continues a process in another folder, in the mode of the choice.
    fn rotate_process(&mut self, id: SessionId, choice: Choice, on_done: Callback) {
        let Some(client) = self.registry.client_mut(id) else { return on_done.call() };
        let (uid, epoch) = (client.uid, Arc::clone(&client.epoch));
        let folder = self.epochs.folder(uid, &epoch, choice.mode, client.pid(), &client.name);
        let mut options = choice.options(&self.config, &client.label);
        (options.reader, options.quota) = (epoch.reader, Some(self.epochs.quota(uid)));
        options.names = Some(self.epochs.names(&epoch));
        if choice.sampling == client.choice.sampling {
            options.sample_bytes = client.interval;
        } else {
            client.interval = choice.interval();
        }
        // A profile continues to count from the attach; a trace starts anew.
        let starts = choice.mode.has_events().then(|| Moment::now(&self.admissions.clock));
        let session = Arc::new(client.session.next_segment(folder, Arc::new(options), starts));
        client.choice = choice;
        client.session = Arc::clone(&session);
        self.epochs.list(&epoch, &session, session.info());
        self.send(Command::Process(id, ProcessCommand::Rotate(session, on_done)));
    }

    /// Changes what is kept of a running process.
    pub(super) fn change(&mut self, id: SessionId, choice: Choice, on_done: Callback) {
        self.rotate_process(id, choice, on_done);
        if let Some(client) = self.registry.client(id) {
            client.session.options.overflow.set(client.session.mapping.header());
            client.command();
            client.keep();
        }
    }

    /// Keeps the events of a flight recording.
    pub(super) fn keep_flight(&mut self, id: SessionId, cause: &'static str, why: &str, on_done: Callback) {
        let Some(client) = self.registry.client_mut(id) else { return on_done.call() };
        client.kept = Some(Instant::now());
        self.incidents.flight_kept(client.uid, &client.name, &client.label, cause);
        if let Some(more) = self.log.permits("flight", client.uid, MAX_LOGGED) {
            let (name, pid) = (client.name.escape_debug(), client.pid());
            tracing::info!("the flight recording of {name} ({pid}) is kept: {why}{more}");
        }
        let adopt = self.epochs.adopter(&client.epoch, id, kept_now(why), on_done);
        let (reply, folders) = bounded(1);
        // The reply is sent by the stage that has written the files.
        let wait = move || {
            if let Ok(kept) = folders.recv() {
                adopt(kept);
            }
        };
        if crash::spawn("keep", wait).is_ok() {
            self.send_command(id, ProcessCommand::KeepFlight(reply));
        }
    }
}
