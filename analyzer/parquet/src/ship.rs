//! Ships the sealed epochs of a daemon to one place for many hosts: the tables of call sites,
//! stacks, processes and marks. Each epoch is shipped exactly once, by the names of its files.

pub(crate) mod ledger;
pub(crate) mod target;

use crate::export::{PROCESSES, Partition, StackTables, path_component, process_row};
use crate::ids::{self, Hash};
use crate::sites::{self, SITES};
use crate::table::{Cell, Field, Table, fields, signed, text};
use anyhow::Context;
use heaptape_analyzer::Recording;
use heaptape_analyzer::epochs::{self, EpochQuery};
use heaptape_formats::recording::{Mark, RECORDING};
use ledger::Ledger;
use serde::Serialize;
use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use target::Target;

/// The columns of the table of marks, such as those of deploys.
const MARKS: &[Field] = fields! { moment_ns: "i64", name: "text" };

/// The tables in the order in which they are shipped: a reader of a table has what it refers to.
const TABLES: [&str; 4] = ["stacks", "marks", "processes", "sites"];

/// What is shipped, and where to.
pub(crate) struct Shipment {
    /// State folder of the daemon.
    pub state: PathBuf,
    /// The destination as it was given.
    pub to: String,
    /// The destination to which files are sent.
    pub target: Target,
    /// Name of the host; by default that in the recordings.
    pub host: Option<String>,
}

/// What one attempt to ship has done.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Shipped {
    /// Number of epochs that were shipped now.
    pub epochs: u64,
    /// Number of files that were stored.
    pub files: u64,
    pub bytes: u64,
    /// Number of files that were there already.
    pub known_files: u64,
    /// Number of sealed epochs that are not shipped yet.
    pub waiting: u64,
    /// Number of epochs that could not be read, and are left out.
    pub unreadable: u64,
    /// Number of epochs that were removed before they were shipped, since the first time.
    pub removed_unshipped: u64,
    /// Why the rest was not shipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The folder with the files of an epoch until they are shipped.
struct Staged {
    folder: tempfile::TempDir,
    /// Paths below the folder, which are the names of the files.
    names: Vec<PathBuf>,
    date: String,
    /// Stacks whose names have been shipped on that day.
    stacks: HashSet<i64>,
}

/// Returns the sealed epochs of a state folder, as `UID/EPOCH`.
fn sealed(state: &Path) -> anyhow::Result<BTreeSet<String>> {
    let all = epochs::find(state, &EpochQuery::default()).with_context(|| state.display().to_string())?;
    let name = |path: PathBuf| {
        let about: heaptape_formats::recording::Recording =
            serde_json::from_slice(&std::fs::read(path.join(RECORDING)).ok()?).ok()?;
        about.ended_unix_ns?;
        Some(path.strip_prefix(state).ok()?.to_str()?.to_owned())
    };
    Ok(all.into_iter().filter_map(name).collect())
}

/// Ships all epochs that are sealed and not shipped yet, the oldest first.
///
/// # Errors
/// Returns an error if the state folder cannot be read or written. A destination that stores
/// nothing is an error in the result.
pub(crate) fn run(shipment: &Shipment) -> anyhow::Result<Shipped> {
    let mut ledger = Ledger::open(&shipment.state, &shipment.to)?;
    let on_disk = sealed(&shipment.state)?;
    let (waiting, removed) = ledger.compare(&on_disk);
    if removed > 0 {
        eprintln!("heaptape-parquet: {removed} epochs were removed before they were shipped");
    }
    ledger.save()?;
    let mut done = Shipped::default();
    // Reading all recordings of a day is the work of hours: the newest must not wait for that.
    for epoch in waiting {
        if let Err(error) = ship_epoch(shipment, &epoch, &mut ledger, &mut done) {
            done.error = Some(format!("{error:#}"));
            break;
        }
        ledger.save()?;
    }
    (done.waiting, done.removed_unshipped) = (ledger.waiting(), ledger.removed_unshipped());
    Ok(done)
}

fn ship_epoch(shipment: &Shipment, epoch: &str, ledger: &mut Ledger, done: &mut Shipped) -> anyhow::Result<()> {
    let path = shipment.state.join(epoch);
    let recording = match heaptape_analyzer::open(&path) {
        Ok(recording) => recording,
        // Retention may have removed it meanwhile; the next comparison counts it.
        Err(_) if !path.exists() => return Ok(()),
        Err(error) => {
            eprintln!("heaptape-parquet: {}: left out: {error}", path.display());
            done.unreadable += 1;
            ledger.unreadable(epoch);
            return Ok(());
        }
    };
    let staged = stage(shipment, &recording, &path, ledger)?;
    for name in &staged.names {
        let file = staged.folder.path().join(name);
        if shipment.target.put(&name.to_string_lossy(), &file).with_context(|| name.display().to_string())? {
            done.files += 1;
            done.bytes += std::fs::metadata(&file).map_or(0, |about| about.len());
        } else {
            done.known_files += 1;
        }
    }
    ledger.shipped(epoch, &staged.date, staged.stacks);
    done.epochs += 1;
    Ok(())
}

/// Returns the name of an epoch's files: that of no other epoch, also of another host of the same
/// name.
fn file_name(recording: &Recording, partition: &Partition) -> String {
    let machine = std::fs::read("/etc/machine-id").unwrap_or_default();
    let started = recording.about.as_ref().map_or(0, |about| about.started_unix_ns);
    let hash = Hash::new().bytes(machine.trim_ascii()).bytes(&[0]).bytes(partition.host.as_bytes()).bytes(&[0]);
    format!("epoch-{:016x}", hash.bytes(partition.recording.as_bytes()).bytes(&started.to_le_bytes()).finish())
}

/// Writes the tables of an epoch to a folder.
fn stage(shipment: &Shipment, recording: &Recording, path: &Path, ledger: &Ledger) -> anyhow::Result<Staged> {
    let mut partition = Partition::of(recording, path);
    if let Some(host) = &shipment.host {
        partition.host = path_component(host);
    }
    let folder = tempfile::tempdir().context("a folder for the tables")?;
    let name = file_name(recording, &partition);
    let names = TABLES.map(|table| partition.file(table, &name));
    let [stacks_file, marks_file, processes_file, sites_file] = names.each_ref().map(|name| folder.path().join(name));
    let mut stacks = StackTables::create(&stacks_file, None)?;
    stacks.leave_out(ledger.stacks(&partition.date));
    let mut processes = Table::create(&processes_file, PROCESSES, None)?;
    let mut table = Table::create(&sites_file, SITES, None)?;
    for process in &recording.processes {
        let (ids, mut used) = (ids::of(process.stacks()), HashSet::new());
        let identity = partition.identity(process);
        let sums = sites::write(process, &identity, &ids, &mut table, &mut used)?;
        stacks.add(process, &ids, &used)?;
        process_row(process, &identity, &partition, &sums, sums.missing.is_empty(), &mut processes)?;
    }
    table.finish()?;
    processes.finish()?;
    let stacks = stacks.finish()?;
    write_marks(shipment, recording, &marks_file)?;
    Ok(Staged { folder, names: names.to_vec(), date: partition.date, stacks })
}

/// Writes the marks that were set in an epoch. There is a file without any, too, since many readers
/// want one.
fn write_marks(shipment: &Shipment, recording: &Recording, file: &Path) -> anyhow::Result<()> {
    // A mark ends the epoch, so its time is about that of the end.
    let about = recording.about.as_ref();
    let from = about.map_or(0, |about| about.started_unix_ns);
    let to = about.and_then(|about| about.ended_unix_ns).unwrap_or(0);
    let marks = epochs::marks(&shipment.state)?;
    let mut table = Table::create(file, MARKS, None)?;
    for Mark { name, unix_ns } in marks.iter().filter(|mark| (from..to).contains(&mark.unix_ns)) {
        table.row([Cell::Number(signed(*unix_ns)), text(name)])?;
    }
    table.finish()
}
