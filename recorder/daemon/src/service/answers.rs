//! The answers of the service to the commands of `ctl`.

use super::Service;
use crate::config::Choice;
use crate::control::{Answer, WriteCheck};
use crate::protocol::{
    CallSite, Changed, Details, Entry, Epochs, Frame, Identity, Process, Processes, Request, Response, Status, Stopped,
    Which,
};
use crossbeam_channel::{Sender, bounded, unbounded};
use formats::recording::Mark;
use formats::tape::RESIDENCY_REQUEST;
use heaptape_recorder::digest::{ProcessCommand, View, ViewFrame, ViewSite};
use heaptape_recorder::os::{clock, crash};
use heaptape_recorder::pipeline::Command;
use heaptape_recorder::run::take_references;
use heaptape_recorder::session::SessionId;
use heaptape_recorder::session::options::Mode;
use heaptape_recorder::store::writer::Callback;
use std::sync::Arc;

/// Maximum number of call sites in the answer to `show`.
const MAX_SITES: u64 = 1000;

/// Maximum number of pids in an error.
const MAX_LISTED: usize = 10;

/// Maximum length of the name of a mark, in bytes.
const MAX_MARK_BYTES: usize = 200;

/// Returns the callback that reports to a channel that something is done.
pub(super) fn notifier(done: &Sender<()>) -> Callback {
    let done = done.clone();
    Callback::new(move || {
        let _ = done.send(());
    })
}

impl Service {
    /// Starts the execution of a request.
    pub(super) fn answer(&mut self, request: &Request) -> Answer {
        let result = match request {
            Request::Status => Ok(Answer::Now(Response::Status(Box::new(self.status())))),
            Request::List => Ok(Answer::Now(Response::List(self.list()))),
            Request::Metrics => Ok(Answer::Now(Response::Metrics(self.metrics()))),
            Request::PublicMetrics => Ok(Answer::Now(Response::Metrics(self.public_metrics()))),
            Request::Show { which, sites } => self.show(which, *sites),
            Request::Mode { which, mode } => self.selected(which).map(|ids| self.mode(&ids, *mode)),
            Request::Snapshot { which, references: true, .. } => {
                self.selected(which).and_then(|ids| self.read_references(&ids))
            }
            Request::Snapshot { which, leaves_flights, .. } => {
                self.selected(which).map(|ids| self.snapshot(&ids, *leaves_flights))
            }
            Request::Rotate { which } => self.selected(which).map(|ids| self.rotate_traces(&ids)),
            Request::Attach { pid, mode } => self.attach_on_request(*pid, *mode),
            Request::Detach { which } => self.selected(which).and_then(|ids| self.detach_on_request(which, &ids)),
            Request::Epoch => Ok(self.end_epochs()),
            Request::Mark { name } => self.mark(name),
            Request::Flush => Ok(self.write_all()),
            Request::Reload => self.reload().map(|reloaded| Answer::Now(Response::Reloaded(reloaded))),
            Request::Stop => {
                let (done, dones) = unbounded();
                self.stopping.get_or_insert_default().push(done);
                Ok(Answer::When(dones, 1, Response::Stopped(Stopped { stopped: true })))
            }
        };
        result.unwrap_or_else(Answer::Refused)
    }

    fn list(&self) -> Vec<Entry> {
        let processes = self.registry.clients().iter().map(|client| Entry::Process(Box::new(client.describe())));
        processes.chain(self.streams.describe().map(Entry::Stream)).collect()
    }

    fn end_epochs(&mut self) -> Answer {
        let (done, dones) = unbounded();
        let check = WriteCheck::begin(self.epochs.disk());
        let users = self.epochs.users().len();
        let errors = self.rotate_all(&mut |_| notifier(&done));
        let ended = users - errors.len();
        Answer::Written(dones, ended, Response::Epochs(Epochs { epochs: ended as u64, errors }), check)
    }

    /// Sets a mark: the epochs of all users end, so that the state at this time is kept.
    fn mark(&mut self, name: &str) -> Result<Answer, String> {
        if name.is_empty() || name.len() > MAX_MARK_BYTES || name.chars().any(char::is_control) {
            return Err(format!("invalid mark: must have 1 to {MAX_MARK_BYTES} bytes, and no control characters"));
        }
        for client in self.registry.clients_mut() {
            client.measure();
            client.history.mark();
        }
        let mark = Mark { name: name.to_owned(), unix_ns: clock::unix_ns() };
        tracing::info!("mark {name}: the epochs of all users end");
        let (done, dones) = unbounded();
        let check = WriteCheck::begin(self.epochs.disk());
        let users = self.epochs.users().len();
        let errors = self.rotate_all(&mut |_| notifier(&done));
        let ended = users - errors.len();
        self.epochs.mark(mark, notifier(&done));
        Ok(Answer::Written(dones, ended + 1, Response::Epochs(Epochs { epochs: ended as u64, errors }), check))
    }

    /// Returns the processes that a request selects.
    fn selected(&self, which: &Which) -> Result<Vec<SessionId>, String> {
        let found = which.choose(self.registry.clients(), |client| Identity {
            pid: client.pid(),
            name: &client.name,
            label: &client.label,
        });
        if found.is_empty() && *which != Which::default() {
            return Err(format!("no recorded process matches '{}'", which.0));
        }
        Ok(found.iter().map(|client| client.session.id).collect())
    }

    fn mode(&mut self, ids: &[SessionId], choice: Choice) -> Answer {
        let (done, dones) = unbounded();
        for id in ids {
            self.change(*id, choice, notifier(&done));
            if let Some(client) = self.registry.client_mut(*id) {
                (client.held, client.reduced) = (None, None);
            }
        }
        let changed = Changed { processes: ids.len() as u64, mode: choice.to_string() };
        Answer::When(dones, ids.len(), Response::Mode(changed))
    }

    /// Writes the current state of processes. Flight recordings are kept, or written where they
    /// are.
    fn snapshot(&mut self, ids: &[SessionId], leaves_flights: bool) -> Answer {
        let (done, dones) = unbounded();
        let check = WriteCheck::begin(self.epochs.disk());
        let flights = if leaves_flights { Vec::new() } else { self.registry.flights() };
        for id in ids {
            if flights.contains(id) {
                self.keep_flight(*id, "request", "requested", notifier(&done));
            } else {
                let (commands, id, done) = (self.stages.commands.clone(), *id, notifier(&done));
                // What is written then contains the pages.
                let then = Callback::new(move || {
                    let _ = commands.send(Command::ProcessSettled(id, ProcessCommand::Snapshot(done)));
                });
                self.stages.read_pages(id, RESIDENCY_REQUEST, then);
            }
        }
        self.epochs.flush(notifier(&done));
        Answer::Written(dones, ids.len() + 1, processes(ids.len()), check)
    }

    /// Reads which block of these processes holds which, one process after the other, and then writes
    /// the state that it belongs to.
    fn read_references(&self, ids: &[SessionId]) -> Result<Answer, String> {
        let clients = ids.iter().filter_map(|id| self.registry.client(*id));
        let sessions: Vec<_> = clients.map(|client| (client.name.clone(), Arc::clone(&client.session))).collect();
        let commands = self.stages.commands.clone();
        let (answer, later) = bounded(1);
        let read = move || {
            let (mut written, (done, dones)) = (Processes::default(), unbounded());
            for (name, session) in sessions {
                match take_references(&session, &commands) {
                    Ok(stop) => {
                        written.processes += 1;
                        written.stop_us = written.stop_us.max(stop.as_micros() as u64);
                        let write = ProcessCommand::Snapshot(notifier(&done));
                        let _ = commands.send(Command::ProcessSettled(session.id, write));
                    }
                    Err(why) => written.errors.push(format!("{name} ({}): {why}", session.process.pid)),
                }
            }
            drop(done);
            // Of a process that ends meanwhile, nothing more comes.
            while dones.recv().is_ok() {}
            let _ = answer.send(Response::Processes(written));
        };
        crash::spawn("references", read).map_err(|error| error.to_string())?;
        Ok(Answer::Later(later))
    }

    /// Starts new files for the events of these processes, within the epoch.
    fn rotate_traces(&mut self, ids: &[SessionId]) -> Answer {
        let (done, dones) = unbounded();
        let clients = self.registry.clients().iter();
        let traces = clients.filter(|client| client.choice.mode == Mode::Trace && ids.contains(&client.session.id));
        let traces: Vec<(SessionId, Choice)> = traces.map(|client| (client.session.id, client.choice)).collect();
        traces.iter().for_each(|(id, choice)| self.change(*id, *choice, notifier(&done)));
        Answer::When(dones, traces.len(), processes(traces.len()))
    }

    fn show(&mut self, which: &Which, max_sites: u64) -> Result<Answer, String> {
        let found = self.selected(which)?;
        let [id] = found[..] else {
            let pids = found.iter().filter_map(|id| self.registry.client(*id)).map(|client| client.pid().to_string());
            let pids: Vec<String> = pids.take(MAX_LISTED).collect();
            let count = if found.is_empty() { "none is recorded".into() } else { format!("{} match", found.len()) };
            let pids = if pids.is_empty() { String::new() } else { format!(" ({})", pids.join(", ")) };
            return Err(format!("'show' needs exactly one process, and {count}{pids}"));
        };
        let client = self.registry.client(id);
        let process = client.ok_or("the process has just ended")?.describe();
        let (reply, view) = bounded::<View>(1);
        let (answer, later) = bounded(1);
        self.send_command(id, ProcessCommand::View(max_sites.min(MAX_SITES) as usize, reply));
        let compose = move || {
            if let Ok(view) = view.recv() {
                let _ = answer.send(Response::Show(Box::new(details(process, &view))));
            }
        };
        crash::spawn("show", compose).map_err(|error| error.to_string())?;
        Ok(Answer::Later(later))
    }

    fn status(&self) -> Status {
        let modes = [Mode::Off, Mode::Profile, Mode::Trace, Mode::Flight]
            .map(|mode| (mode, self.registry.clients().iter().filter(|client| client.choice.mode == mode).count()));
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            seconds: self.started.elapsed().as_secs(),
            socket: self.config.socket.display().to_string(),
            state: self.config.state.display().to_string(),
            processes: self.registry.clients().len() as u64,
            modes: modes.into_iter().map(|(mode, count)| (mode.name().to_owned(), count as u64)).collect(),
            budgets_hit: self.budgets.hits().map(|(what, count)| (what.to_owned(), count)).collect(),
            own: self.own_metrics().into_iter().map(|metric| (metric.name().to_owned(), metric.value())).collect(),
            write_error: self.epochs.disk().current_error(),
            late: self.late.running().cloned().collect(),
        }
    }
}

pub(super) fn processes(count: usize) -> Response {
    Response::Processes(Processes { processes: count as u64, ..Processes::default() })
}

fn details(process: Process, view: &View) -> Details {
    let frame = |ViewFrame { module, address, code }: &ViewFrame| {
        let known = view.modules.iter().find(|known| known.number == *module && *module != 0);
        Frame {
            code: code.as_ref().map(|name| name.lossy().into_owned()),
            address: *address,
            module: known.map(|known| known.path.lossy().into_owned()),
            build_id: known.map(|known| known.build_id.0.iter().map(|byte| format!("{byte:02x}")).collect()),
            offset: known.map(|known| address.wrapping_sub(known.bias)),
        }
    };
    let call_site = |site: &ViewSite| CallSite {
        site: site.site,
        live_bytes: site.live_bytes,
        live_blocks: site.live_blocks,
        allocs: site.allocs,
        bytes: site.bytes,
        growth: site.growth.map(|growth| growth.bytes),
        growth_seconds: site.growth.map_or(0, |growth| growth.seconds),
        stack: site.stack.iter().map(frame).collect(),
    };
    Details { process, call_sites: view.sites.iter().map(call_site).collect() }
}
