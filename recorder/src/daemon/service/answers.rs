//! The answers of the service to the commands of `ctl`.

use super::Service;
use crate::crash;
use crate::daemon::config::Choice;
use crate::daemon::control::Answer;
use crate::daemon::metrics::{self, OwnMetric};
use crate::daemon::protocol::{
    CallSite, Changed, Details, Entry, Epochs, Frame, Process, Processes, Request, Response, Status, Stopped, Which,
};
use crate::options::Mode;
use crate::process_recording::{ProcessCommand, View, ViewFrame, ViewSite};
use crate::session::SessionId;
use crate::store::Callback;
use crossbeam_channel::{Sender, bounded, unbounded};
use formats::pattern::Pattern;
use std::sync::atomic::Ordering::Relaxed;

/// Maximum number of call sites in the answer to `show`.
const MAX_SITES: u64 = 1000;

fn notifier(done: &Sender<()>) -> Callback {
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
            Request::Show { which, sites } => self.show(which, *sites),
            Request::Mode { which, mode } => self.selected(which).map(|ids| self.mode(&ids, *mode)),
            Request::Snapshot { which } => self.selected(which).map(|ids| self.snapshot(&ids)),
            Request::Rotate { which } => self.selected(which).map(|ids| self.rotate_traces(&ids)),
            Request::Epoch => Ok(self.end_epochs()),
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

    /// Returns the metrics in the format of Prometheus.
    fn metrics(&self) -> String {
        let hits: Vec<(&str, u64)> = self.budgets.hits().collect();
        metrics::text(self.registry.past(), self.registry.current(), &self.own_metrics(), &hits)
    }

    /// Ends the epochs of all users.
    fn end_epochs(&mut self) -> Answer {
        let (done, dones) = unbounded();
        let users = self.epochs.users().len();
        self.rotate_all(&mut |_| notifier(&done));
        Answer::When(dones, users, Response::Epochs(Epochs { epochs: users as u64 }))
    }

    /// Writes all processes to disk.
    fn write_all(&mut self) -> Answer {
        let ids = self.registry.select(|_| true);
        let (done, dones) = unbounded();
        ids.iter().for_each(|id| self.send_command(*id, ProcessCommand::Snapshot(notifier(&done))));
        self.epochs.flush(notifier(&done));
        Answer::When(dones, ids.len() + 1, processes(ids.len()))
    }

    /// Returns the processes that a request selects.
    fn selected(&self, Which(which): &Which) -> Result<Vec<SessionId>, String> {
        let pattern = Pattern::whole(if which == "all" { "*" } else { which });
        let number = which.parse::<u32>().ok();
        let ids = self.registry.select(|client| match number {
            Some(pid) => client.pid() == pid,
            None => pattern.matches(&client.name),
        });
        if ids.is_empty() && which != "all" { Err(format!("no recorded process matches '{which}'")) } else { Ok(ids) }
    }

    fn mode(&mut self, ids: &[SessionId], choice: Choice) -> Answer {
        let (done, dones) = unbounded();
        for id in ids {
            self.change(*id, choice, notifier(&done));
            if let Some(client) = self.registry.client_mut(*id) {
                client.held = None;
            }
        }
        let changed = Changed { processes: ids.len() as u64, mode: choice.to_string() };
        Answer::When(dones, ids.len(), Response::Mode(changed))
    }

    fn snapshot(&mut self, ids: &[SessionId]) -> Answer {
        let (done, dones) = unbounded();
        let flights = self.registry.flights();
        for id in ids {
            if flights.contains(id) {
                self.keep_flight(*id, "requested", notifier(&done));
            } else {
                self.send_command(*id, ProcessCommand::Snapshot(notifier(&done)));
            }
        }
        self.epochs.flush(notifier(&done));
        Answer::When(dones, ids.len() + 1, processes(ids.len()))
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
        let [id] = self.selected(which)?[..] else { return Err("'show' needs exactly one process".into()) };
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
        }
    }

    /// Returns the metrics of the daemon itself.
    fn own_metrics(&self) -> Vec<OwnMetric> {
        let (counters, epochs, streams) = (self.registry.counters(), self.epochs.counters(), self.streams.counters());
        let disk = self.epochs.disk();
        let mut own_metrics: Vec<OwnMetric> = vec![
            OwnMetric::gauge("processes", "Processes served", self.registry.clients().len() as f64),
            OwnMetric::counter("accepted_total", "Processes accepted", counters.accepted as f64),
            OwnMetric::counter("refused_total", "Processes refused", counters.refused as f64),
            OwnMetric::counter("recorded_events_total", "Events recorded", counters.recorded as f64),
            OwnMetric::counter("lost_events_total", "Events lost for want of space", counters.lost as f64),
            OwnMetric::counter("sampled_out_events_total", "Events skipped by sampling", counters.sampled_out as f64),
            OwnMetric::counter(
                "write_errors_total",
                "Segments that could not be written",
                epochs.errors as f64 + disk.errors.load(Relaxed) as f64,
            ),
            OwnMetric::counter("flights_kept_total", "Flight recordings that were kept", self.kept_flights as f64),
            OwnMetric::counter("epochs_ended_total", "Epochs that were ended", epochs.ended as f64),
            OwnMetric::counter("epochs_removed_total", "Epochs that were removed", disk.removed.load(Relaxed) as f64),
            OwnMetric::gauge("epochs", "Epochs on disk", disk.epochs.load(Relaxed) as f64),
            OwnMetric::gauge("disk_bytes", "Bytes of the epochs on disk", disk.bytes.load(Relaxed) as f64),
            OwnMetric::gauge("resident_bytes", "Resident memory of the daemon", self.budgets.memory() as f64),
            OwnMetric::counter("cpu_seconds_total", "CPU time of the daemon", self.budgets.cpu_ns() as f64 / 1e9),
            OwnMetric::gauge(
                "queued_commands",
                "Commands that the drain has not received",
                self.stages.commands.len() as f64,
            ),
            OwnMetric::gauge("streams", "Traces and profiles that are being received", self.streams.count() as f64),
            OwnMetric::counter(
                "streams_total",
                "Traces and profiles that were received and stored",
                streams.kept as f64,
            ),
            OwnMetric::counter(
                "streams_cut_total",
                "Stored traces and profiles that are incomplete",
                streams.incomplete as f64,
            ),
            OwnMetric::counter(
                "streams_refused_total",
                "Traces and profiles of which nothing was stored",
                streams.refused as f64,
            ),
            OwnMetric::counter("stream_bytes_total", "Bytes of the stored traces and profiles", streams.bytes as f64),
            OwnMetric::gauge(
                "parts_ending",
                "Processes that ended and are not written yet",
                self.registry.ending_count() as f64,
            ),
        ];
        let hits: u64 = self.budgets.hits().map(|(_, count)| count).sum();
        own_metrics.push(OwnMetric::counter("budget_hits_total", "Times that a budget was hit", hits as f64));
        own_metrics
    }
}

/// Returns the answer with a number of processes.
fn processes(count: usize) -> Response {
    Response::Processes(Processes { processes: count as u64 })
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
        stack: site.stack.iter().map(frame).collect(),
    };
    Details { process, call_sites: view.sites.iter().map(call_site).collect() }
}
