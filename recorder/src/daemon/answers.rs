//! The answers of the service to the commands of `ctl`.

use super::clients::Client;
use super::config::Choice;
use super::control::Answer;
use super::metrics;
use super::service::Service;
use crate::crash;
use crate::options::Mode;
use crate::process_recording::{ProcessCommand, View, ViewFrame};
use crate::session::SessionId;
use crate::store::Callback;
use crossbeam_channel::{Sender, bounded, unbounded};
use formats::pattern::Pattern;
use serde_json::{Value, json};
use std::sync::atomic::Ordering::Relaxed;

/// Default number of call sites in the answer to `show`.
const DEFAULT_SITES: u64 = 20;
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
    pub(super) fn answer(&mut self, request: &Value) -> Answer {
        let command = request["word"].as_str().unwrap_or_default();
        match command {
            "status" => Answer::Now(self.status()),
            "list" => {
                Answer::Now(Value::Array(self.clients.iter().map(Client::json).chain(self.streams.json()).collect()))
            }
            "metrics" => {
                let running = self.clients.iter().map(|client| (&*client.name, &*client.label, client.now(), true));
                let ending = self.ending.values();
                let ending = ending.map(|ending| (&*ending.name, &*ending.label, ending.stats.now(), false));
                let hits: Vec<(&str, u64)> = self.budgets.hits().collect();
                Answer::Now(Value::String(metrics::text(&self.past, running.chain(ending), &self.own_metrics(), &hits)))
            }
            "show" => self.show(request),
            "mode" => self.mode(request),
            "snapshot" => match self.selected(request) {
                Ok(ids) => self.snapshot(&ids),
                Err(why) => Answer::Refused(why),
            },
            "rotate" => match self.selected(request) {
                Ok(ids) => self.rotate_traces(&ids),
                Err(why) => Answer::Refused(why),
            },
            "epoch" => {
                let (done, dones) = unbounded();
                let users = self.users();
                self.rotate_all(&mut |_| notifier(&done));
                Answer::When(dones, users, json!({ "epochs": users }))
            }
            "flush" => {
                let ids: Vec<SessionId> = self.clients.iter().map(|client| client.session.id).collect();
                let (done, dones) = unbounded();
                ids.iter().for_each(|id| self.send_command(*id, ProcessCommand::Snapshot(notifier(&done))));
                self.flush(notifier(&done));
                Answer::When(dones, ids.len() + 1, json!({ "processes": ids.len() }))
            }
            "stop" => {
                let (done, dones) = unbounded();
                self.stopping.get_or_insert_default().push(done);
                Answer::When(dones, 1, json!({ "stopped": true }))
            }
            _ => Answer::Refused(format!("unknown command '{command}'")),
        }
    }

    /// Returns the processes that a request selects: `"which"` is a pid, a pattern of names, or
    /// `all`.
    fn selected(&self, request: &Value) -> Result<Vec<SessionId>, String> {
        let which = request["which"].as_str().unwrap_or("all");
        let pattern = Pattern::whole(if which == "all" { "*" } else { which });
        let number = which.parse::<u32>().ok();
        let is_selected = |client: &&Client| match number {
            Some(pid) => client.pid() == pid,
            None => pattern.matches(&client.name),
        };
        let ids: Vec<SessionId> = self.clients.iter().filter(is_selected).map(|client| client.session.id).collect();
        if ids.is_empty() && which != "all" { Err(format!("no recorded process matches '{which}'")) } else { Ok(ids) }
    }

    fn mode(&mut self, request: &Value) -> Answer {
        let choice: Choice = match request["mode"].as_str().unwrap_or_default().parse() {
            Ok(choice) => choice,
            Err(why) => return Answer::Refused(why),
        };
        let ids = match self.selected(request) {
            Ok(ids) => ids,
            Err(why) => return Answer::Refused(why),
        };
        let (done, dones) = unbounded();
        for id in &ids {
            self.change(*id, choice, notifier(&done));
            if let Some(client) = self.clients.iter_mut().find(|client| client.session.id == *id) {
                client.held = None;
            }
        }
        Answer::When(dones, ids.len(), json!({ "processes": ids.len(), "mode": choice.to_string() }))
    }

    fn snapshot(&mut self, ids: &[SessionId]) -> Answer {
        let (done, dones) = unbounded();
        let flights: Vec<SessionId> = self.flights().collect();
        for id in ids {
            if flights.contains(id) {
                self.keep_flight(*id, "requested", notifier(&done));
            } else {
                self.send_command(*id, ProcessCommand::Snapshot(notifier(&done)));
            }
        }
        self.flush(notifier(&done));
        Answer::When(dones, ids.len() + 1, json!({ "processes": ids.len() }))
    }

    /// Starts new files for the events of these processes, within the epoch.
    fn rotate_traces(&mut self, ids: &[SessionId]) -> Answer {
        let (done, dones) = unbounded();
        let traces =
            self.clients.iter().filter(|client| client.choice.mode == Mode::Trace && ids.contains(&client.session.id));
        let traces: Vec<(SessionId, Choice)> = traces.map(|client| (client.session.id, client.choice)).collect();
        traces.iter().for_each(|(id, choice)| self.change(*id, *choice, notifier(&done)));
        Answer::When(dones, traces.len(), json!({ "processes": traces.len() }))
    }

    fn show(&mut self, request: &Value) -> Answer {
        let ids = match self.selected(request) {
            Ok(ids) if ids.len() == 1 => ids,
            Ok(_) => return Answer::Refused("'show' needs exactly one process".into()),
            Err(why) => return Answer::Refused(why),
        };
        let Some(client) = self.clients.iter().find(|client| client.session.id == ids[0]) else {
            return Answer::Refused("the process has just ended".into());
        };
        let max_sites = request["sites"].as_u64().unwrap_or(DEFAULT_SITES).min(MAX_SITES) as usize;
        let client_json = client.json();
        let (reply, view) = bounded::<View>(1);
        let (answer, later) = bounded(1);
        self.send_command(ids[0], ProcessCommand::View(max_sites, reply));
        let compose = move || {
            if let Ok(view) = view.recv() {
                let _ = answer.send(view_json(client_json, &view));
            }
        };
        match crash::spawn("show", compose) {
            Ok(_) => Answer::Later(later),
            Err(error) => Answer::Refused(error.to_string()),
        }
    }

    fn status(&self) -> Value {
        let modes = [Mode::Off, Mode::Profile, Mode::Trace, Mode::Flight]
            .map(|mode| (mode.name(), self.clients.iter().filter(|client| client.choice.mode == mode).count()));
        let own_metrics: serde_json::Map<String, Value> =
            self.own_metrics().into_iter().map(|(name, _, _, value)| (name.to_owned(), json!(value))).collect();
        let hits: serde_json::Map<String, Value> =
            self.budgets.hits().map(|(what, count)| (what.to_owned(), json!(count))).collect();
        json!({
            "version": env!("CARGO_PKG_VERSION"), "pid": std::process::id(),
            "seconds": self.started.elapsed().as_secs(),
            "socket": self.config.socket.display().to_string(), "state": self.config.state.display().to_string(),
            "processes": self.clients.len(),
            "modes": modes.into_iter().map(|(name, count)| (name.to_owned(), json!(count))).collect::<serde_json::Map<_, _>>(),
            "budgets_hit": hits, "own": own_metrics,
        })
    }

    /// Returns the metrics of the daemon itself.
    fn own_metrics(&self) -> Vec<metrics::OwnMetric> {
        let sum = |value: fn(&crate::session::StatsSnapshot) -> u64| {
            // A process that has ended is counted here until it is written, and from then on in the
            // counters.
            let ending = self.ending.values().map(|ending| ending.stats.now());
            self.clients.iter().map(Client::now).chain(ending).map(|now| value(&now)).sum::<u64>() as f64
        };
        let (counters, streams) = (self.counters, self.streams.counters);
        let mut own_metrics: Vec<metrics::OwnMetric> = vec![
            ("processes", "gauge", "Processes served", self.clients.len() as f64),
            ("accepted_total", "counter", "Processes accepted", counters.accepted as f64),
            ("refused_total", "counter", "Processes refused", counters.refused as f64),
            ("recorded_events_total", "counter", "Events recorded", counters.recorded as f64 + sum(|now| now.recorded)),
            (
                "lost_events_total",
                "counter",
                "Events lost for want of space",
                counters.lost as f64 + sum(|now| now.lost),
            ),
            (
                "sampled_out_events_total",
                "counter",
                "Events skipped by sampling",
                counters.sampled_out as f64 + sum(|now| now.sampled_out),
            ),
            (
                "write_errors_total",
                "counter",
                "Segments that could not be written",
                counters.errors as f64 + self.disk.errors.load(Relaxed) as f64,
            ),
            ("flights_kept_total", "counter", "Flight recordings that were kept", counters.kept as f64),
            ("epochs_ended_total", "counter", "Epochs that were ended", counters.epochs as f64),
            ("epochs_removed_total", "counter", "Epochs that were removed", self.disk.removed.load(Relaxed) as f64),
            ("epochs", "gauge", "Epochs on disk", self.disk.epochs.load(Relaxed) as f64),
            ("disk_bytes", "gauge", "Bytes of the epochs on disk", self.disk.bytes.load(Relaxed) as f64),
            ("resident_bytes", "gauge", "Resident memory of the daemon", self.budgets.memory as f64),
            ("cpu_seconds_total", "counter", "CPU time of the daemon", self.budgets.cpu_ns as f64 / 1e9),
            ("queued_commands", "gauge", "Commands that the drain has not received", self.commands_waiting() as f64),
            ("streams", "gauge", "Traces and profiles that are being received", self.streams.count() as f64),
            ("streams_total", "counter", "Traces and profiles that were received and stored", streams.kept as f64),
            (
                "streams_cut_total",
                "counter",
                "Stored traces and profiles that are incomplete",
                streams.incomplete as f64,
            ),
            (
                "streams_refused_total",
                "counter",
                "Traces and profiles of which nothing was stored",
                streams.refused as f64,
            ),
            ("stream_bytes_total", "counter", "Bytes of the stored traces and profiles", streams.bytes as f64),
            ("parts_ending", "gauge", "Processes that ended and are not written yet", self.ending_count() as f64),
        ];
        let hits: u64 = self.budgets.hits().map(|(_, count)| count).sum();
        own_metrics.push(("budget_hits_total", "counter", "Times that a budget was hit", hits as f64));
        own_metrics
    }
}

fn view_json(mut client_json: Value, view: &View) -> Value {
    let frame = |ViewFrame { module, address, code }: &ViewFrame| {
        let known = view.modules.iter().find(|known| known.number == *module && *module != 0);
        json!({
            "code": code.as_ref().map(|name| name.lossy().into_owned()),
            "address": address,
            "module": known.map(|known| known.path.lossy().into_owned()),
            "build_id": known.map(|known| known.build_id.0.iter().map(|byte| format!("{byte:02x}")).collect::<String>()),
            "offset": known.map(|known| address.wrapping_sub(known.bias)),
        })
    };
    let sites: Vec<Value> = view
        .sites
        .iter()
        .map(|site| {
            json!({
                "site": site.site, "live_bytes": site.live_bytes, "live_blocks": site.live_blocks,
                "allocs": site.allocs, "bytes": site.bytes, "stack": site.stack.iter().map(frame).collect::<Vec<_>>(),
            })
        })
        .collect();
    client_json["call_sites"] = Value::Array(sites);
    client_json
}
