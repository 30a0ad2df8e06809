//! Writes the table of call sites, which every mode fills: what each stack of a process held and
//! had allocated at one point in time. It also identifies processes across hosts.

use crate::ids::Hash;
use crate::table::{Cell, Field, Table, fields, signed, small, text};
use heaptape_analyzer::{Process, Progress, Sums, sums};
use heaptape_formats::recording::Exit;
use heaptape_formats::tape::SiteSums;
use std::collections::{HashMap, HashSet};

/// The columns of the table of call sites. Times are nanoseconds since 1970. The sums count from
/// `counted_ns` on, and include the blocks that were live then.
pub(crate) const SITES: &[Field] = fields! {
    moment_ns: "i64", stack: "id", live_bytes: "i64", live_blocks: "i64", allocated_bytes: "i64", allocations: "i64",
    counted_ns: "i64", process: "i64", running: "i32", pid: "i32", program: "text", label: "text", build: "text",
    live_error: "i64",
};

/// What identifies a process in the tables of many hosts, and when its sums were taken.
pub(crate) struct Identity {
    /// Number of the process, which is the same in all tables and epochs.
    pub key: i64,
    /// Time of the sums, in nanoseconds since 1970.
    pub moment_ns: i64,
    /// Time from which the sums count, in nanoseconds since 1970.
    pub counted_ns: i64,
    /// Whether the process ran at the time of the sums.
    pub is_running: bool,
    /// Name of the program.
    pub program: String,
    /// Label that the program was given.
    pub label: String,
    /// Build-id of the program's file; empty if it is not known.
    pub build: String,
}

impl Identity {
    /// Returns the identity of a process in a recording. `host` and `recording` are the names of
    /// its partition.
    pub(crate) fn of(process: &Process, host: &str, recording: &str) -> Identity {
        let about = &process.about;
        let start = process.clock.start_unix_ns;
        let last = start.saturating_add(process.clock.nanos(process.tape.last_tick));
        let is_running = matches!(about.exit, Some(Exit::Running) | None);
        let label = process.tape.process.label.lossy().into_owned();
        Identity {
            key: key(process, host, recording),
            moment_ns: signed(if process.clock.is_known() { last } else { about.ended_unix_ns.unwrap_or(0) }),
            counted_ns: signed(start),
            is_running,
            program: process.name(),
            label: if label.is_empty() { about.label.clone() } else { label },
            build: build(process),
        }
    }
}

/// Returns the number of a process: a hash of host, boot, process ID, start and program. Without
/// the boot, the folder in the recording is used instead of boot and start.
fn key(process: &Process, host: &str, recording: &str) -> i64 {
    let about = &process.about;
    let hash = Hash::new().bytes(b"p").bytes(host.as_bytes()).bytes(&[0]).bytes(about.exe.as_bytes()).bytes(&[0]);
    match process.tape.segment.as_ref().filter(|segment| !segment.boot.0.is_empty() && about.pid != 0) {
        Some(segment) => {
            let hash = hash.bytes(&segment.boot.0).bytes(&about.pid.to_le_bytes());
            hash.bytes(&segment.start_ticks.to_le_bytes()).finish()
        }
        None => {
            let hash = hash.bytes(recording.as_bytes()).bytes(&[0]).bytes(about.folder.as_bytes());
            hash.bytes(&process.clock.start_unix_ns.to_le_bytes()).finish()
        }
    }
}

/// Returns the build-id of the program's file.
fn build(process: &Process) -> String {
    let exe = process.about.exe.as_bytes();
    let exe = exe.strip_suffix(b" (deleted)").unwrap_or(exe);
    let modules = &process.stacks().modules;
    let module = modules.iter().find(|module| module.path == exe && !module.build_id.is_empty());
    module.iter().flat_map(|module| &module.build_id).map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the standard error of the live bytes of each site of a sampled process, as the recorder
/// knows it. Where it does not, each sample counts for the mean number of bytes between two.
fn errors(process: &Process) -> impl Fn(u32, u64) -> u64 {
    let sample_bytes = process.tape.process.sample_bytes;
    let known = process.tape.history_errors.iter();
    let known: HashMap<u32, u64> = known.filter_map(|row| Some((row.site, *row.bytes.last()?))).collect();
    move |site, live| match (sample_bytes, known.get(&site)) {
        (0, _) => 0,
        (_, Some(error)) => *error,
        (interval, None) => (live as f64 * interval as f64).sqrt() as u64,
    }
}

/// Writes a row for each stack of a process, and adds the sites that have a row to `used`. Returns
/// the sums of the process.
///
/// # Errors
/// Returns an error if writing fails.
pub(crate) fn write(
    process: &Process,
    identity: &Identity,
    ids: &[(i64, i64)],
    table: &mut Table,
    used: &mut HashSet<u32>,
) -> anyhow::Result<Sums> {
    let sums = sums(process, &Progress::new("adding up"));
    let Identity { key, moment_ns, counted_ns, is_running, program, label, build } = identity;
    let stack = |site: u32| ids.get(site as usize).map_or(0, |ids| ids.1);
    let error = errors(process);
    // In the order of the stacks their differences are small.
    let mut rows: Vec<&SiteSums> = sums.sites.iter().collect();
    rows.sort_by_key(|row| stack(row.site));
    for row in rows {
        let SiteSums { site, allocs, bytes, frees, freed_bytes, .. } = row;
        used.insert(*site);
        let live = bytes.saturating_sub(*freed_bytes);
        table.row([
            Cell::Number(*moment_ns),
            Cell::Number(stack(*site)),
            Cell::Number(signed(live)),
            Cell::Number(signed(allocs.saturating_sub(*frees))),
            Cell::Number(signed(*bytes)),
            Cell::Number(signed(*allocs)),
            Cell::Number(*counted_ns),
            Cell::Number(*key),
            Cell::Small(i32::from(*is_running)),
            Cell::Small(small(process.about.pid.into())),
            text(program),
            text(label),
            text(build),
            Cell::Number(signed(error(*site, live))),
        ])?;
    }
    Ok(sums)
}
