//! Collects the daemon's metrics from the owners of its state.

use super::Service;
use crate::metrics::{self, LabeledMetric, Labels, OwnMetric};
use crate::push::Pusher;
use crate::retention::Share;
use crate::ship::Shipper;
use heaptape_recorder::os::aside;
use heaptape_recorder::os::clock;
use std::sync::atomic::Ordering::Relaxed;

fn by<'a>(label: &'static str, rows: impl Iterator<Item = (&'a str, u64)>) -> Vec<(Labels, f64)> {
    rows.map(|(value, count)| (vec![(label, value.to_owned())], count as f64)).collect()
}

impl Service {
    /// Returns the metrics in the format of Prometheus.
    pub(super) fn metrics(&self) -> String {
        metrics::text(self.registry.past(), self.registry.current(), &self.own_metrics(), &self.labeled_metrics())
    }

    /// Returns the metrics that everybody on the machine may read: without labels, functions, and
    /// the names of other users' programs.
    pub(super) fn public_metrics(&self) -> String {
        let own = nix::unistd::geteuid().as_raw();
        let past = self.registry.past().anonymous(own);
        let current = self.registry.current().map(|process| process.anonymous(own));
        metrics::text(&past, current, &self.own_metrics(), &self.common_metrics())
    }

    /// Returns the metrics by program and by user, and those of everybody.
    fn labeled_metrics(&self) -> Vec<LabeledMetric> {
        let held = self.registry.clients().iter().filter_map(|client| {
            let labels = [("program", client.name.clone()), ("label", client.label.clone())];
            Some((labels, client.held?))
        });
        let held = held.map(|(labels, budget)| {
            let mut labels: Labels = labels.into();
            labels.push(("budget", budget.to_owned()));
            labels
        });
        // Processes of one program and label share a row.
        let held: std::collections::BTreeSet<Labels> = held.collect();
        let mut all = self.common_metrics();
        all.push(LabeledMetric::gauge(
            "program_held",
            "Programs that a limit reduces",
            held.into_iter().map(|labels| (labels, 1.0)).collect(),
        ));
        all.extend(self.incidents.metrics());
        all.extend(self.disk_metrics());
        all.extend(self.verdicts.labeled());
        all
    }

    /// Returns the metrics with labels that say nothing of programs.
    fn common_metrics(&self) -> Vec<LabeledMetric> {
        let build = vec![("version", env!("CARGO_PKG_VERSION").into()), ("wire", wire::WIRE_VERSION.to_string())];
        vec![
            LabeledMetric::gauge("build_info", "Version of the daemon", vec![(build, 1.0)]),
            LabeledMetric::counter(
                "budget_hits_by_name_total",
                "Number of times that a limit was reached",
                by("budget", self.budgets.hits()),
            ),
            LabeledMetric::counter(
                "unrecorded_total",
                "Processes that run unrecorded",
                by("reason", self.registry.unrecorded()),
            ),
        ]
    }

    /// Returns the metrics of the limits of what is kept on disk.
    fn disk_metrics(&self) -> [LabeledMetric; 4] {
        let retained = self.epochs.disk().retained().clone();
        let of_users = |value: &dyn Fn(u32, &Share) -> f64| -> Vec<(Labels, f64)> {
            let row = |(uid, share): (&u32, &Share)| (vec![("uid", uid.to_string())], value(*uid, share));
            retained.shares.iter().map(row).collect()
        };
        let disk = self.epochs.disk();
        [
            LabeledMetric::counter(
                "epochs_removed_by_limit_total",
                "Epochs that were removed, by the setting that they exceeded",
                by("limit", retained.removed.iter().map(|(limit, count)| (limit.key(), *count))),
            ),
            LabeledMetric::gauge(
                "user_disk_bytes",
                "Bytes of a user's epochs",
                of_users(&|_, share| share.used as f64),
            ),
            LabeledMetric::gauge(
                "user_disk_limit_bytes",
                "Bytes that a user's epochs may take",
                of_users(&|_, share| share.limit as f64),
            ),
            LabeledMetric::gauge(
                "user_disk_full",
                "Whether events of a user are not stored any more",
                of_users(&|uid, _| f64::from(u8::from(disk.is_full(uid)))),
            ),
        ]
    }

    /// Returns the metrics of the daemon itself.
    pub(super) fn own_metrics(&self) -> Vec<OwnMetric> {
        let mut own_metrics = Vec::new();
        own_metrics.extend(self.event_metrics());
        own_metrics.extend(self.writing_metrics());
        own_metrics.extend(self.unrecorded_metrics());
        own_metrics.extend(self.epoch_metrics());
        own_metrics.extend(self.own_resources());
        own_metrics.extend(self.stream_metrics());
        own_metrics.push(OwnMetric::gauge(
            "parts_ending",
            "Processes that ended and are not written yet",
            self.registry.ending_count() as f64,
        ));
        let hits: u64 = self.budgets.hits().map(|(_, count)| count).sum();
        own_metrics.push(OwnMetric::counter("budget_hits_total", "Times that a budget was hit", hits as f64));
        own_metrics.extend(self.shipper.iter().flat_map(Shipper::metrics));
        own_metrics.extend(self.pusher.iter().flat_map(Pusher::metrics));
        own_metrics.extend(self.verdicts.metrics());
        own_metrics
    }

    /// Programs and their events.
    fn event_metrics(&self) -> [OwnMetric; 6] {
        let counters = self.registry.counters();
        [
            OwnMetric::gauge("processes", "Processes served", self.registry.clients().len() as f64),
            OwnMetric::counter("accepted_total", "Processes accepted", counters.accepted as f64),
            OwnMetric::counter("refused_total", "Processes refused", counters.refused as f64),
            OwnMetric::counter("recorded_events_total", "Events recorded", counters.recorded as f64),
            OwnMetric::counter("lost_events_total", "Events lost for want of space", counters.lost as f64),
            OwnMetric::counter("sampled_out_events_total", "Events skipped by sampling", counters.sampled_out as f64),
        ]
    }

    /// Whether what was recorded gets to disk.
    fn writing_metrics(&self) -> [OwnMetric; 5] {
        let (epochs, disk) = (self.epochs.counters(), self.epochs.disk());
        [
            OwnMetric::counter(
                "write_errors_total",
                "Segments that could not be written",
                epochs.errors as f64 + disk.errors.load(Relaxed) as f64,
            ),
            OwnMetric::counter(
                "flights_kept_total",
                "Flight recordings that were kept",
                self.incidents.kept_flights() as f64,
            ),
            OwnMetric::counter("epochs_ended_total", "Epochs that were ended", epochs.ended as f64),
            OwnMetric::counter("epochs_failed_total", "Attempts to start an epoch that failed", epochs.failed as f64),
            OwnMetric::gauge(
                "write_failing",
                "Whether the last attempt to write the epochs failed",
                f64::from(u8::from(disk.current_error().is_some())),
            ),
        ]
    }

    /// What got past the daemon, or holds it up.
    fn unrecorded_metrics(&self) -> [OwnMetric; 4] {
        [
            OwnMetric::gauge(
                "late_processes",
                "Running processes that are not recorded because the daemon answered too late, or they did not, of the last ones",
                self.late.running().count() as f64,
            ),
            OwnMetric::counter(
                "orphans_recorded_total",
                "Processes that are recorded again, which an earlier daemon did not pass on",
                self.adopted as f64,
            ),
            OwnMetric::gauge(
                "stuck_reads",
                "Reads of the files and the memory of programs that do not return",
                aside::stuck().len() as f64,
            ),
            OwnMetric::counter(
                "removed_sockets_total",
                "Sockets for programs whose files were removed, and made again",
                self.entrance.removed_sockets() as f64,
            ),
        ]
    }

    /// The epochs on disk, and the space that they have.
    fn epoch_metrics(&self) -> [OwnMetric; 7] {
        let disk = self.epochs.disk();
        [
            OwnMetric::counter(
                "epochs_removed_total",
                "Epochs that were removed",
                disk.retained().removed.values().sum::<u64>() as f64,
            ),
            OwnMetric::gauge("epochs", "Epochs on disk", disk.epochs.load(Relaxed) as f64),
            OwnMetric::gauge("disk_bytes", "Bytes of the epochs on disk", disk.bytes.load(Relaxed) as f64),
            OwnMetric::gauge("disk_limit_bytes", "Bytes that the epochs may take", self.config.keep_bytes as f64),
            OwnMetric::gauge("disk_keep_free_bytes", "Bytes that stay free", self.config.keep_free as f64),
            OwnMetric::gauge("disk_free_bytes", "Free bytes of the file system", disk.free.load(Relaxed) as f64),
            OwnMetric::gauge(
                "last_write_timestamp_seconds",
                "When the list of processes was last written, in seconds since 1970",
                disk.written.load(Relaxed) as f64,
            ),
        ]
    }

    /// What the daemon itself takes.
    fn own_resources(&self) -> [OwnMetric; 4] {
        [
            OwnMetric::gauge(
                "process_start_time_seconds",
                "Start of the daemon, in seconds since 1970",
                (clock::unix_ns() as f64 / 1e9 - self.started.elapsed().as_secs_f64()).round(),
            ),
            OwnMetric::gauge("resident_bytes", "Resident memory of the daemon", self.budgets.memory() as f64),
            OwnMetric::counter("cpu_seconds_total", "CPU time of the daemon", self.budgets.cpu_ns() as f64 / 1e9),
            OwnMetric::gauge(
                "queued_commands",
                "Commands that the drain has not received",
                self.stages.commands.len() as f64,
            ),
        ]
    }

    /// Files that other programs send.
    fn stream_metrics(&self) -> [OwnMetric; 5] {
        let streams = self.streams.counters();
        [
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
        ]
    }
}
