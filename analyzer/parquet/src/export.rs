//! Writes the tables of a process: events, allocations, call sites, stacks, frames, and the process
//! itself.

use crate::ids;
use crate::sites::{self, Identity, SITES};
use crate::table::{Cell, Field, Table, fields, signed, small, text};
use heaptape_analyzer::event::{Event, Kind, Range};
use heaptape_analyzer::model::Model;
use heaptape_analyzer::model::live_set::Block;
use heaptape_analyzer::replay;
use heaptape_analyzer::symbols::{Detail, Frame, Symbolizer, module_of};
use heaptape_analyzer::{Missing, Process, Progress, Recording, recording_around};
use heaptape_analyzer::{Roles, Sums, blamed, sums_within};
use heaptape_formats::date::Date;
use heaptape_formats::recording::is_epoch;
use heaptape_formats::tape::Entry;
use parquet::data_type::ByteArray;
use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

/// Maximum number of frames of a stack. Recordings have fewer, but a corrupt file may have more.
const MAX_DEPTH: usize = 2048;

/// The columns of the table of events. `kind` is `alloc`, `resize`, `free`, `implied` (a free that
/// was inferred), `unmatched`, or `carried` (a block from before the recording, and no event).
const EVENTS: &[Field] = fields! {
    time_ns: "i64", number: "i64", kind: "text", function: "text", thread: "i32", allocation: "i64", address: "i64", size: "i64",
    weight: "i64", stack: "i64", pid: "i32",
};
/// The columns of the table of allocations. The lifetime includes all reallocations.
const ALLOCATIONS: &[Field] = fields! {
    born_ns: "i64", died_ns: "i64?", lifetime_ns: "i64?", allocation: "i64", address: "i64", size: "i64", resizes: "i32", thread: "i32",
    died_on: "i64?", stack: "i64", function: "text", pid: "i32", carried: "i32",
};
/// The columns of the table of stacks: the frames innermost first, the functions outermost first,
/// and the frame that is blamed.
pub(crate) const STACKS: &[Field] = fields! {
    stack: "i64", caller: "i64", depth: "i32", frames: "[i64]", function: "text", file: "text", line: "i32", folded: "text",
};
/// The columns of the table of frames. A frame with inlined functions has several rows, innermost
/// first.
const FRAMES: &[Field] = fields! {
    frame: "i64", inlined: "i32", module: "text", build_id: "text", offset: "i64", function: "text", file: "text", line: "i32",
};
/// The columns of the table of processes.
pub(crate) const PROCESSES: &[Field] = fields! {
    started_unix_ns: "i64", duration_ns: "i64", pid: "i32", ppid: "i32", folder: "text", exe: "text", command: "text", host_name: "text",
    origin: "text", exit: "text", complete: "i32", process: "i64", label: "text", build: "text", running: "i32", live_bytes: "i64",
    live_blocks: "i64", allocated_bytes: "i64", peak_bytes: "i64", lost_events: "i64",
};

/// The partition of a recording.
pub(crate) struct Partition {
    /// Day of the start.
    pub date: String,
    /// Name of the host.
    pub host: String,
    /// Name of the recording.
    pub recording: String,
}

impl Partition {
    /// Returns the partition by the day of the start, the host, and the name of the recording. The
    /// folder of a process is in that of its recording, so that files of several do not collide.
    pub(crate) fn of(recording: &Recording, path: &Path) -> Partition {
        let around = if recording.about.is_none() { recording_around(path) } else { None };
        let path = around.as_ref().map_or(path, |(path, _)| path);
        let about = recording.about.as_ref().or(around.as_ref().map(|(_, about)| about));
        let started = about.map(|about| about.started_unix_ns).filter(|&at| at > 0);
        let started =
            started.or_else(|| recording.processes.first().map(|process| process.clock.start_unix_ns)).unwrap_or(0);
        let canonical = path.canonicalize().ok();
        let path = canonical.as_deref().unwrap_or(path);
        let mut name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // Epochs of several users have the same names.
        let user = path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
        if is_epoch(&name) && user.parse::<u32>().is_ok() {
            name = format!("{user}-{name}");
        }
        let host = about.map(|about| about.host.clone()).filter(|host| !host.is_empty());
        Partition {
            date: date(started / 1_000_000_000),
            host: path_component(&host.unwrap_or_else(|| "unknown".into())),
            recording: path_component(&name),
        }
    }

    /// Returns the path of a table's file, relative to the folder of all tables.
    pub(crate) fn file(&self, table: &str, name: &str) -> PathBuf {
        let Partition { date, host, recording } = self;
        PathBuf::from(table)
            .join(format!("date={date}"))
            .join(format!("host={host}"))
            .join(format!("recording={recording}"))
            .join(format!("{}.parquet", path_component(name)))
    }

    /// Returns the identity of a process in this recording.
    pub(crate) fn identity(&self, process: &Process) -> Identity {
        Identity::of(process, &self.host, &self.recording)
    }
}

/// Returns a name as a component of a path, with special characters replaced.
pub(crate) fn path_component(name: &str) -> String {
    let text: String = name.chars().map(|c| if c.is_alphanumeric() || "._-+".contains(c) { c } else { '_' }).collect();
    if text.trim_matches('.').is_empty() { format!("_{text}") } else { text }
}

/// Formats the day of a time in seconds since 1970, such as `2026-11-21`.
fn date(seconds: u64) -> String {
    let Date { year, month, day, .. } = Date::from_unix(seconds);
    format!("{year:04}-{month:02}-{day:02}")
}

/// The result of [`write_process`].
pub(crate) struct Written {
    pub files: Vec<PathBuf>,
    /// Errors that were found while the events were read.
    pub missing: Vec<Missing>,
}

/// Writes the tables of a process. One without events has no rows of events and allocations, and no
/// files for them.
///
/// # Errors
/// Returns an error if a file cannot be written.
pub(crate) fn write_process(
    process: &Process,
    range: &Range,
    partition: &Partition,
    out: &Path,
) -> anyhow::Result<Written> {
    let identity = partition.identity(process);
    // The key distinguishes processes of hosts that have the same name.
    let name = format!("{}-{:016x}", process.about.folder, identity.key);
    let file = |table: &str| out.join(partition.file(table, &name));
    let ids = ids::of(process.stacks());
    let mut used = HashSet::new();
    let mut tables = vec!["stacks", "frames", "processes"];
    let mut missing = Vec::new();
    // What was live at the end of a time range is in the table of allocations.
    let sums = if range.is_all() {
        tables.push("sites");
        let mut table = Table::create(&file("sites"), SITES, None)?;
        let sums = sites::write(process, &identity, &ids, &mut table, &mut used)?;
        table.finish()?;
        sums
    } else {
        sums_within(process, range, &Progress::new("adding up"))
    };
    if process.has_events() {
        tables.extend(["events", "allocations"]);
        missing = events(process, range, &ids, &mut used, [&file("events"), &file("allocations")])?;
    }
    let mut stacks = StackTables::create(&file("stacks"), Some(&file("frames")))?;
    stacks.add(process, &ids, &used)?;
    stacks.finish()?;
    let mut processes = Table::create(&file("processes"), PROCESSES, None)?;
    process_row(process, &identity, partition, &sums, missing.is_empty(), &mut processes)?;
    processes.finish()?;
    Ok(Written { files: tables.into_iter().map(file).collect(), missing })
}

/// Writes events and allocations to these two files, and adds their sites to `used`. Returns what
/// is missing.
fn events(
    process: &Process,
    range: &Range,
    ids: &[(i64, i64)],
    used: &mut HashSet<u32>,
    [events, allocations]: [&Path; 2],
) -> anyhow::Result<Vec<Missing>> {
    let mut rows = Rows {
        process,
        ids,
        events: Table::create(events, EVENTS, Some("time_ns"))?,
        allocations: Table::create(allocations, ALLOCATIONS, Some("born_ns"))?,
        names: HashMap::new(),
        pid: small(process.about.pid.into()),
        carried: process.carried(),
        failed: None,
        used,
    };
    let outcome = replay(process, process.span(range), &Progress::new("exporting events"), &mut rows);
    let mut live: Vec<(u64, Block)> = outcome.live.iter().filter(|(_, block)| !block.inherited).collect();
    live.sort_by_key(|(index, block)| (block.tick, *index));
    for (index, block) in live {
        rows.allocation(index, &block, None);
    }
    let Rows { events, allocations, failed, .. } = rows;
    failed.map_or(Ok(()), Err)?;
    events.finish()?;
    allocations.finish()?;
    Ok(outcome.missing)
}

/// A model that writes events and allocations.
struct Rows<'a> {
    process: &'a Process,
    ids: &'a [(i64, i64)],
    events: Table,
    allocations: Table,
    names: HashMap<&'static str, ByteArray>,
    pid: i32,
    /// Number of blocks at the start that are older than the recording.
    carried: u64,
    failed: Option<anyhow::Error>,
    /// Sites that are used in rows.
    used: &'a mut HashSet<u32>,
}

impl Rows<'_> {
    fn name(&mut self, name: &'static str) -> Cell {
        Cell::Text(self.names.entry(name).or_insert_with(|| name.into()).clone())
    }

    fn stack(&mut self, site: u32) -> i64 {
        self.used.insert(site);
        self.ids.get(site as usize).map_or(0, |ids| ids.1)
    }

    fn event(&mut self, event: &Event, kind: &'static str) {
        if self.failed.is_some() {
            return;
        }
        let row = [
            Cell::Number(signed(self.process.clock.nanos(event.tick))),
            Cell::Number(signed(event.number)),
            self.name(kind),
            self.name(Entry::from_number(event.entry).map_or("", Entry::name)),
            Cell::Small(small(event.thread.into())),
            Cell::Number(signed(event.index)),
            Cell::Number(event.address.cast_signed()),
            Cell::Number(signed(event.size)),
            Cell::Number(signed(event.bytes())),
            Cell::Number(self.stack(event.site)),
            Cell::Small(self.pid),
        ];
        self.failed = self.events.row(row).err();
    }

    /// Writes the row of an allocation. `freed` is the event that freed it, if it is not live.
    fn allocation(&mut self, index: u64, block: &Block, freed: Option<&Event>) {
        if self.failed.is_some() {
            return;
        }
        let clock = self.process.clock;
        let allocated_ns = signed(clock.nanos(block.tick));
        let freed_ns = freed.map(|event| signed(clock.nanos(event.tick)));
        let row = [
            Cell::Number(allocated_ns),
            Cell::Maybe(freed_ns),
            Cell::Maybe(freed_ns.map(|freed_ns| freed_ns.saturating_sub(allocated_ns))),
            Cell::Number(signed(index)),
            Cell::Number(block.address.cast_signed()),
            Cell::Number(signed(block.size)),
            Cell::Small(small(block.resizes.into())),
            Cell::Small(small(block.thread.into())),
            Cell::Maybe(freed.map(|event| i64::from(event.thread))),
            Cell::Number(self.stack(block.site)),
            self.name(Entry::from_number(block.entry).map_or("", Entry::name)),
            Cell::Small(self.pid),
            Cell::Small(i32::from(block.number < self.carried)),
        ];
        self.failed = self.allocations.row(row).err();
    }
}

impl Model for Rows<'_> {
    fn alloc(&mut self, event: &Event, _: &Block) {
        self.event(event, if event.entry == Entry::Carried as u8 { "carried" } else { "alloc" });
    }

    fn resize(&mut self, event: &Event, _: Option<&Block>, _: &Block) {
        self.event(event, "resize");
    }

    fn free(&mut self, event: &Event, old: Option<&Block>) {
        // If the kind is not `Free`, the event is an allocation that reuses the index.
        if event.kind == Kind::Free {
            // The file has only the index of the block.
            let freed = Event { address: old.map_or(0, |old| old.address), ..*event };
            self.event(&freed, if event.is_implied() { "implied" } else { "free" });
        }
        if let Some(old) = old {
            self.allocation(event.index, old, Some(event));
        }
    }

    fn unmatched(&mut self, event: &Event) {
        self.event(event, "unmatched");
    }
}

/// The tables of stacks and of their frames.
pub(crate) struct StackTables {
    stacks: Table,
    /// Without it, the lists of frames are empty.
    frames: Option<Table>,
    /// Stacks and frames that are written.
    done: HashSet<i64>,
    frames_done: HashSet<i64>,
    symbols: Symbolizer,
    roles: Roles,
}

impl StackTables {
    /// Creates the files of the tables.
    ///
    /// # Errors
    /// Returns an error if a file cannot be created.
    pub(crate) fn create(stacks: &Path, frames: Option<&Path>) -> anyhow::Result<StackTables> {
        Ok(StackTables {
            stacks: Table::create(stacks, STACKS, None)?,
            frames: frames.map(|frames| Table::create(frames, FRAMES, None)).transpose()?,
            done: HashSet::new(),
            frames_done: HashSet::new(),
            symbols: Symbolizer::new(Detail::Full),
            roles: Roles::new(&[]),
        })
    }

    /// Leaves out stacks that were written elsewhere.
    pub(crate) fn leave_out(&mut self, done: HashSet<i64>) {
        self.done = done;
    }

    /// Adds the used stacks of a process.
    ///
    /// # Errors
    /// Returns an error if writing fails.
    pub(crate) fn add(&mut self, process: &Process, ids: &[(i64, i64)], used: &HashSet<u32>) -> anyhow::Result<()> {
        let all = process.stacks();
        let mut sites: Vec<u32> = used.iter().copied().filter(|&site| site != 0).collect();
        sites.sort_unstable();
        for number in sites {
            let (_, stack) = ids.get(number as usize).copied().unwrap_or_default();
            if !self.done.insert(stack) {
                continue;
            }
            let mut list = Vec::new();
            let mut titles = Vec::new();
            let mut named_frames: Vec<Frame> = Vec::new();
            for (number, site) in all.stack(number).take(MAX_DEPTH) {
                let (frame, _) = ids.get(number as usize).copied().unwrap_or_default();
                list.push(frame);
                let named = self.symbols.frames(all, &site);
                named_frames.extend(named.iter().cloned());
                titles.extend(named.iter().map(|frame| frame.title().replace(';', ":")));
                let Some(frames) = self.frames.as_mut().filter(|_| self.frames_done.insert(frame)) else { continue };
                let module = module_of(all, &site);
                let build_id: String =
                    module.iter().flat_map(|module| &module.build_id).map(|byte| format!("{byte:02x}")).collect();
                for (inlined, frame_named) in (0..).zip(named.iter()) {
                    frames.row([
                        Cell::Number(frame),
                        Cell::Small(inlined),
                        text(&frame_named.module),
                        text(&build_id),
                        Cell::Number(frame_named.offset.cast_signed()),
                        text(&frame_named.title()),
                        text(frame_named.file.as_deref().unwrap_or_default()),
                        Cell::Small(small(frame_named.line.unwrap_or(0).into())),
                    ])?;
                }
            }
            // This is the frame that reports blame.
            let blamed = blamed(named_frames.iter().map(|frame| self.roles.of(frame)), 1);
            let frame = blamed.first().map(|&position| named_frames[position].clone()).unwrap_or_default();
            titles.reverse();
            let parent = all.site(number).parent;
            self.stacks.row([
                Cell::Number(stack),
                Cell::Number(if parent < number { ids.get(parent as usize).map_or(0, |ids| ids.1) } else { 0 }),
                Cell::Small(small(list.len() as u64)),
                Cell::List(if self.frames.is_some() { list } else { Vec::new() }),
                text(&frame.function.unwrap_or_default()),
                text(&frame.file.unwrap_or_default()),
                Cell::Small(small(frame.line.unwrap_or(0).into())),
                text(&titles.join(";")),
            ])?;
        }
        Ok(())
    }

    /// Writes the ends of the files. Returns the stacks that were written or left out.
    ///
    /// # Errors
    /// Returns an error if writing fails.
    pub(crate) fn finish(self) -> anyhow::Result<HashSet<i64>> {
        self.stacks.finish()?;
        self.frames.map_or(Ok(()), Table::finish)?;
        Ok(self.done)
    }
}

/// Writes the row of a process.
///
/// # Errors
/// Returns an error if writing fails.
pub(crate) fn process_row(
    process: &Process,
    identity: &Identity,
    partition: &Partition,
    sums: &Sums,
    is_complete: bool,
    table: &mut Table,
) -> anyhow::Result<()> {
    let about = &process.about;
    let totals = &sums.totals;
    let exit = about.exit.map_or(String::new(), |exit| format!("{exit:?}").to_lowercase());
    table.row([
        Cell::Number(signed(process.clock.start_unix_ns)),
        Cell::Number(signed(process.clock.nanos(process.tape.last_tick))),
        Cell::Small(small(about.pid.into())),
        Cell::Small(small(about.ppid.into())),
        text(&about.folder),
        text(&about.exe),
        text(&about.argv.join(" ")),
        text(&partition.host),
        text(&about.origin),
        text(&exit),
        Cell::Small(i32::from(is_complete && process.missing.is_empty())),
        Cell::Number(identity.key),
        text(&identity.label),
        text(&identity.build),
        Cell::Small(i32::from(identity.is_running)),
        Cell::Number(signed(totals.live_bytes)),
        Cell::Number(signed(totals.live_blocks)),
        Cell::Number(signed(totals.bytes_allocated)),
        Cell::Number(signed(totals.peak_bytes)),
        Cell::Number(signed(sums.accounting.all().lost)),
    ])
}

#[cfg(test)]
pub(crate) fn date_of(seconds: u64) -> String {
    date(seconds)
}
