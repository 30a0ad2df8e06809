//! JSON lines, for `jq` and data frames. Each line has one object: of a process, and then of each
//! of its stacks or events.

use super::rows::{self, EventRow};
use super::{Error, Exporter, Measure, Needs, Out, Shape, Source, Totals, measure};
use crate::report::stack_json;
use crate::unpack;
use serde_json::{Value, json};
use std::path::PathBuf;

/// The exporter of JSON lines.
pub struct Export;

impl Exporter for Export {
    fn name(&self) -> &'static str {
        "json"
    }

    fn extension(&self) -> &'static str {
        "jsonl"
    }

    fn summary(&self) -> &'static str {
        "JSON lines: an object a process, and a stack, or with --events an event"
    }

    fn needs(&self) -> Needs {
        Needs { events: false, shape: Shape::One }
    }

    fn write(&self, source: &mut Source<'_>, out: &mut Out) -> Result<(), Error> {
        let each_event = source.options.each_event;
        let measures = if each_event { Vec::new() } else { measure::all(source, out) };
        let mut file = out.stream()?;
        for process in source.processes.clone() {
            let sums = source.sums(process);
            let about = &process.about;
            let totals = &sums.totals;
            let (accounting, mapped) = (sums.accounting.all(), &process.tape.mappings);
            let value = json!({
                "type": "process", "process": process.name(), "pid": about.pid, "ppid": about.ppid, "exe": about.exe,
                "folder": about.folder, "argv": about.argv, "exit": about.exit, "started_unix_ns": process.clock.start_unix_ns,
                "allocs": totals.allocs, "resizes": totals.resizes, "frees": totals.frees,
                "bytes_allocated": totals.bytes_allocated, "live_blocks": totals.live_blocks, "live_bytes": totals.live_bytes,
                "peak_bytes": totals.peak_bytes, "peak_blocks": totals.peak_blocks,
                "emitted_events": accounting.emitted, "recorded_events": accounting.recorded,
                "mapped_bytes": mapped.is_known().then_some(mapped.sums.mapped_bytes),
                "reserved_bytes": mapped.is_known().then_some(mapped.sums.reserved_bytes),
                "lost_events": accounting.lost, "sampled_out_events": accounting.sampled_out,
                "missing": sums.missing.iter().map(ToString::to_string).collect::<Vec<_>>(),
            });
            file.put(line(&value).as_bytes())?;
        }
        if each_event {
            rows::each_event(source, &mut |row: &EventRow<'_>| {
                let EventRow { process, pid, event, kind, function, time_ns, .. } = row;
                let value = json!({
                    "type": "event", "process": process, "pid": pid, "time_ns": time_ns, "number": event.number, "kind": kind,
                    "function": function, "thread": event.thread, "index": event.index, "address": format!("{:#x}", event.address),
                    "size": event.size, "site": event.site,
                });
                file.put(line(&value).as_bytes())
            })?;
        } else {
            let mut failed = None;
            for process in source.processes.clone() {
                let (sums, ended) = (source.sums(process), process.has_ended());
                for row in &sums.sites {
                    let mut value = json!({ "type": "stack", "process": process.name(), "pid": process.about.pid, "site": row.site });
                    for what in &measures {
                        value[what.name().replace('-', "_")] = what.of(row, ended).into();
                    }
                    value["stack"] = json!(stack_json(&mut source.symbols, process.stacks(), row.site));
                    failed = failed.or_else(|| file.put(line(&value).as_bytes()).err());
                }
            }
            failed.map_or(Ok(()), Err)?;
        }
        file.finish()
    }

    fn totals(&self, source: &mut Source<'_>) -> Result<Totals, Error> {
        rows::totals(source)
    }

    fn held(&self, _: &Source<'_>, files: &[PathBuf]) -> Result<Totals, Error> {
        let mut totals = Totals::default();
        for path in files {
            let opened = unpack::open(path)?;
            for line in opened.bytes.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
                let value: Value =
                    serde_json::from_slice(line).map_err(|error| Error::Json(opened.name.clone(), error))?;
                if value["type"] == "event" {
                    rows::count(&mut totals, value["kind"].as_str().unwrap_or(""), value["size"].as_u64().unwrap_or(0));
                }
                for what in Measure::ALL.iter().filter(|_| value["type"] == "stack") {
                    if let Some(amount) = value[what.name().replace('-', "_")].as_u64() {
                        totals.add(what.name(), amount.into());
                    }
                }
            }
        }
        Ok(totals)
    }
}

fn line(value: &Value) -> String {
    format!("{value}\n")
}
