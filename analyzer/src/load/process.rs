//! A process of a recording: its open files, and access to its events.

mod pass;

use super::chunk::{self, Decoder};
use super::core::Core;
use super::joined::Joined;
use super::running::called;
use super::tape::{self, Tape, TraceRange};
use super::{Clock, Failure, bare, io_failure, profile_file, read_failure, trace_file};
use crate::early_ends::EarlyEnds;
use crate::event::{Bound, Event, Range, Span};
use crate::kept_file::KeptFile;
use crate::missing::Missing;
use crate::progress::Progress;
use crate::saved_names::SavedNames;
use crate::stacks::Stacks;
use crate::unpack;
use heaptape_formats::recording::{self, Exit, STREAM, SYSROOT, TAPE, TRACE};
use heaptape_formats::tape::journal::{self, Splice};
use heaptape_formats::tape::{
    Codec, END_EXEC, END_EXITED, END_RUNNING, END_SIGNALLED, Mark, Process as ProcessRecord, SiteSums, Source, Step,
    Stream, Summary, Totals,
};
use heaptape_formats::{Ending, mtrc};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Source of the events of a process.
#[derive(Debug)]
pub enum Events {
    /// A trace with its tape.
    Taped {
        /// File of the tape.
        tape: Splice<KeptFile>,
        /// File of the trace. Without it, only the sums of the tape are known.
        trace: Option<Splice<KeptFile>>,
    },
    /// A trace without a tape, by its path.
    Trace(PathBuf),
    /// The traces of several segments of the process.
    Joined(Box<Joined>),
    /// No events, only the sums of several segments together, in [`Tape::summary`].
    Sums,
    /// No events, only the sums of a profile.
    Profile,
    /// No events, only the sums of a file of another tool.
    Imported {
        /// Whether the sums include the live blocks at the peak.
        has_peak: bool,
    },
    /// Neither events nor sums.
    None,
}

#[derive(Debug)]
pub struct Process {
    /// Entry of the process in `recording.json`, completed from the tape.
    pub about: recording::ProcessInfo,
    /// Folder of the process, or the single file that was opened.
    pub path: PathBuf,
    pub clock: Clock,
    /// Content of the tape; empty if there is none.
    pub tape: Tape,
    /// Sums of a profile, if there is no tape.
    pub sums: Option<(Totals, Vec<SiteSums>)>,
    pub events: Events,
    /// What is missing, as far as it was detected when the process was opened.
    pub missing: Vec<Missing>,
    /// Folders of the segments that are joined to this process, oldest first; empty for a single
    /// one.
    pub segments: Vec<String>,
    /// Folders of earlier segments that are not included, because they are in another mode. Their
    /// live blocks are in the first segment that is included.
    pub left_out: Vec<String>,
    /// What the numbers of another tool's file are estimated from, or leave out.
    pub import_notes: Vec<String>,
    /// Rules of LSan that another tool's file has for its own leaks.
    pub import_suppressions: Vec<String>,
    /// The core that has its memory. Without one, the recording may have what was read of it.
    pub core: Option<Arc<Core>>,
    /// The events until the core was written, if the program ran on.
    pub core_span: Option<Span>,
}

/// A tape with the events that only the journal has.
struct SplicedTape {
    file: Splice<KeptFile>,
    tape: Tape,
    /// Offset in the trace, and the bytes there that only the journal has.
    trace: (u64, Vec<u8>),
}

/// Why the tape of a process cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum TapeError {
    /// The tape or the journal cannot be read.
    #[error(transparent)]
    Io(#[from] std::io::Error),
    /// The bytes are not those of a tape.
    #[error(transparent)]
    Format(#[from] heaptape_formats::Error),
    /// There is neither a tape nor a journal.
    #[error("it is not there")]
    NotThere,
}

/// Opens and reads a tape and the chunks of the journal that it lacks.
fn open_tape(path: &Path, open: &[journal::Open]) -> Result<SplicedTape, TapeError> {
    let file = match KeptFile::open(path) {
        Err(error) if open.is_empty() || error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
        file => file.ok(),
    };
    let (file, trace) = match (journal::Missing::of(file.as_ref().map(|file| file as &dyn Source), open)?, file) {
        (Some(missing), file) => (Splice::new(file, missing.tape_at, missing.tape), (missing.trace_at, missing.trace)),
        (None, Some(file)) => (Splice::file(file), (0, Vec::new())),
        (None, None) => return Err(TapeError::NotThere),
    };
    let tape = tape::read(&file)?;
    Ok(SplicedTape { file, tape, trace })
}

impl Process {
    /// Opens the folder of a process.
    ///
    /// # Errors
    /// Returns [`Failure::NoTape`] if the folder has neither tape, trace nor profile. Otherwise
    /// returns the error of the trace or profile if that cannot be read.
    pub fn open(folder: &Path, about: Option<&recording::ProcessInfo>) -> Result<Process, Failure> {
        let about = about.cloned().unwrap_or_else(|| recording::ProcessInfo {
            folder: folder.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            ..recording::ProcessInfo::default()
        });
        let tape_path = folder.join(TAPE);
        if about.origin == STREAM {
            return Process::stream(folder, about);
        }
        // The journal is read first: chunks that are committed meanwhile are in the tape.
        let open = journal::open_chunks(folder);
        let SplicedTape { file, tape, trace: (kept_at, kept) } = match open_tape(&tape_path, &open) {
            Ok(spliced) => spliced,
            Err(error) => return Process::without_tape(folder, about, error),
        };
        let mut process = Process { about, path: folder.to_path_buf(), tape, ..Process::nothing() };
        process.missing.append(&mut process.tape.missing);
        let mut trace = None;
        // If the recorder was replacing one trace by another, there are two. The chunks name the
        // codec of theirs.
        let named = process.tape.codec().map(|codec| (folder.join(format!("{TRACE}{}", codec.suffix())), codec));
        match named.filter(|(path, _)| path.is_file()).or_else(|| trace_file(folder)) {
            Some((path, codec)) => match KeptFile::open(&path) {
                Ok(file) => {
                    let file = match kept.is_empty() {
                        true => Splice::file(file),
                        false => Splice::new(Some(file), kept_at, kept),
                    };
                    process.salvage_rest(&file, codec);
                    trace = Some(file);
                }
                Err(error) => process.lacks(&path, &error.to_string()),
            },
            None if kept_at == 0 && !kept.is_empty() => trace = Some(Splice::new(None, 0, kept)),
            None if process.tape.ranges.is_empty() => {}
            None => process.lacks(&folder.join(TRACE), "it is not there"),
        }
        process.events = Events::Taped { tape: file, trace };
        process.fill_from_tape();
        process.note_unhooked();
        process.note_missing_stacks();
        let early_ends = process.early_ends();
        if early_ends.are_many() {
            process.missing.push(Missing::EarlyEnds(early_ends));
        }
        process.tape.stacks.set_saved(SavedNames::of(folder), process.clock.start_unix_ns);
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        if let Some(called) = called(&name, &process.about).map(str::to_string) {
            process.tape.stacks.set_called(&process.about.exe, &called);
        }
        // Files that `heaptape pack` stored beside the processes.
        let packed = folder.parent().unwrap_or(folder).join(SYSROOT);
        if packed.is_dir() {
            process.tape.stacks.set_root(&packed);
        } else if let Some(root) = process.live_root() {
            process.tape.stacks.set_root(&root);
        }
        Ok(process)
    }

    /// Returns a process of which nothing is known.
    pub fn nothing() -> Process {
        Process {
            about: recording::ProcessInfo::default(),
            path: PathBuf::new(),
            clock: Clock::default(),
            tape: Tape::default(),
            sums: None,
            events: Events::None,
            missing: Vec::new(),
            segments: Vec::new(),
            left_out: Vec::new(),
            import_notes: Vec::new(),
            import_suppressions: Vec::new(),
            core: None,
            core_span: None,
        }
    }

    /// Returns whether a core is all that is known of it.
    pub(crate) const fn is_core_alone(&self) -> bool {
        self.core.is_some() && matches!(self.events, Events::Imported { .. })
    }

    /// Returns a process of which only the entry in `recording.json` can be read.
    pub fn empty(folder: &Path, about: &recording::ProcessInfo) -> Process {
        let mut missing =
            vec![Missing::File { name: about.folder.clone(), why: "none of its files can be read".into() }];
        if let Some(events) = about.accounting.map(|accounting| accounting.emitted).filter(|&events| events > 0) {
            missing.push(Missing::UnreadableProcess { events });
        }
        Process { about: about.clone(), path: folder.to_path_buf(), missing, ..Process::nothing() }
    }

    /// Opens a trace or a profile that was sent to the daemon. It never had a tape.
    fn stream(folder: &Path, about: recording::ProcessInfo) -> Result<Process, Failure> {
        let lacks = about.lacks.clone();
        let mut process = Process::without_tape(folder, about, TapeError::NotThere)?;
        process.missing.remove(0);
        if let Some(why) = lacks {
            let file = trace_file(folder).map(|(path, _)| path).or_else(|| profile_file(folder)).unwrap_or_default();
            process.lacks(&file, &format!("it is kept up to what could be read: {why}"));
        }
        Ok(process)
    }

    /// Opens trace and profile of a process without a tape. `error` is that of the tape.
    fn without_tape(folder: &Path, about: recording::ProcessInfo, error: TapeError) -> Result<Process, Failure> {
        let (trace, profile) = (trace_file(folder).map(|(path, _)| path), profile_file(folder));
        let mut process = match trace {
            Some(trace) => Process::trace(&trace)?,
            None => match &profile {
                Some(profile) => Process::profile(profile)?,
                None => {
                    return Err(Failure::NoTape { path: folder.display().to_string(), source: error });
                }
            },
        };
        if matches!(process.events, Events::Trace(_))
            && let Some(Ok(sums)) = profile.as_deref().map(Process::profile)
        {
            // The trace has the events, and the profile has the stacks and the sums by site.
            process.sums = sums.sums;
            process.tape.stacks = sums.tape.stacks;
        }
        process.missing.insert(0, Missing::File { name: TAPE.into(), why: error.to_string() });
        Ok(Process { about, path: folder.to_path_buf(), ..process })
    }

    /// Opens a single trace.
    ///
    /// # Errors
    /// Returns [`Failure::Io`] if it cannot be read, and [`Failure::Format`] if it has no valid
    /// header.
    pub fn trace(path: &Path) -> Result<Process, Failure> {
        let reader = bare::open(path).map_err(|error| io_failure(path, error))?;
        mtrc::Stream::new(reader).map_err(|error| read_failure(path, error))?;
        let mut process =
            Process { path: path.to_path_buf(), events: Events::Trace(path.to_path_buf()), ..Process::nothing() };
        (process.tape.stacks, process.tape.events) = bare::named_sites(path);
        process.about.folder = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(process)
    }

    /// Opens a single profile.
    ///
    /// # Errors
    /// Returns [`Failure::Unpack`] if it cannot be read or unpacked, and [`Failure::Format`] if it
    /// cannot be parsed.
    pub fn profile(path: &Path) -> Result<Process, Failure> {
        let bytes = unpack::open(path)?.bytes;
        let bare::ProfileSums { stacks, totals, sums, ending } =
            bare::profile(&bytes).map_err(|source| Failure::Format { path: path.display().to_string(), source })?;
        let mut process = Process { path: path.to_path_buf(), events: Events::Profile, ..Process::nothing() };
        process.tape.stacks = stacks;
        process.sums = Some((totals, sums));
        process.about.folder = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if let Ending::Truncated { offset, field } = ending {
            let at = format!("offset {offset} ({field})");
            process.missing.push(Missing::Truncated { name: process.about.folder.clone(), at });
        }
        Ok(process)
    }

    fn lacks(&mut self, path: &Path, why: &str) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        self.missing.push(Missing::File { name, why: why.into() });
    }

    /// Adds a range for the bytes after the last chunk, unless they are the end mark of the trace.
    fn salvage_rest(&mut self, trace: &Splice<KeptFile>, codec: Codec) {
        let offset = self.tape.stored_end();
        let there = trace.length().unwrap_or(0);
        let mut rest = Vec::new();
        if there <= offset || trace.read_up_to(offset, 512, &mut rest).is_err() {
            return;
        }
        // The trace of a process without events consists of header and end mark.
        let is_end = |plain: &[u8]| match mtrc::Header::read(plain) {
            Ok(header) if offset == 0 => plain.get(header.len()..) == Some(mtrc::layout::MAGIC),
            _ => plain == mtrc::layout::MAGIC,
        };
        let mut plain = Vec::new();
        let codec = self.tape.codec().unwrap_or(codec);
        if codec != Codec::Plain && rest.len() < 512 {
            let unpacked = codec
                .reader(&rest[..])
                .and_then(|reader| std::io::Read::read_to_end(&mut std::io::Read::take(reader, 64), &mut plain));
            drop(unpacked);
        }
        if !is_end(&rest) && !is_end(&plain) {
            let (before, tick) = (self.tape.events, self.tape.last_tick);
            self.tape.ranges.push(TraceRange::Salvage { offset, before, length: u64::MAX, codec, tick });
        }
    }

    /// Completes the entry of `recording.json` from the tape.
    fn fill_from_tape(&mut self) {
        let ProcessRecord { pid, ppid, exe, argv, ticks_per_second, start_tick, start_unix_ns, .. } =
            &self.tape.process;
        let (ticks_per_second, start_tick, start_unix_ns) = (*ticks_per_second, *start_tick, *start_unix_ns);
        self.clock = Clock { ticks_per_second, start_tick, start_unix_ns };
        let about = &mut self.about;
        if about.pid == 0 {
            (about.pid, about.ppid) = (*pid, *ppid);
        }
        if about.exe.is_empty() {
            about.exe = exe.lossy().into_owned();
            about.argv = argv.iter().map(|argument| argument.lossy().into_owned()).collect();
        }
        let exit = self.tape.end.as_ref().map(|end| match end.reason {
            END_EXITED => Exit::Code(end.status),
            END_SIGNALLED => Exit::Signal(end.status),
            END_EXEC => Exit::Exec,
            END_RUNNING => Exit::Running,
            _ => Exit::Unknown,
        });
        // The tape has the end of a process whose entry was written while it ran.
        if exit.is_some_and(|exit| about.exit.is_none() || (about.exit == Some(Exit::Running) && exit != Exit::Unknown))
        {
            about.exit = exit;
        }
    }

    /// Returns the name of the process in reports: that of its file, or of the link to it by which
    /// it was started.
    pub fn name(&self) -> String {
        if let Some(called) = called(&self.about.folder, &self.about) {
            return called.to_owned();
        }
        let exe = Path::new(&self.about.exe).file_name().unwrap_or_default().to_string_lossy();
        if exe.is_empty() { self.about.folder.clone() } else { exe.into_owned() }
    }

    /// Returns the kernel's ID and the name of a thread, as far as the recording has them.
    pub fn thread(&self, number: u32) -> (Option<u32>, String) {
        let known = self.tape.threads.get(&number);
        (known.map(|thread| thread.tid), known.map(|thread| thread.name.lossy().into_owned()).unwrap_or_default())
    }

    /// Returns whether `name` is the pid or the folder of the process.
    pub fn is(&self, name: &str) -> bool {
        self.about.folder == name
            || self.about.pid.to_string() == name
            || self.segments.iter().any(|folder| folder == name)
    }

    /// Returns whether the process is known to have ended. Blocks that were live then are leaks.
    pub fn has_ended(&self) -> bool {
        matches!(self.about.exit, Some(Exit::Code(_) | Exit::Signal(_) | Exit::Exec))
    }

    /// Returns the call sites.
    pub const fn stacks(&self) -> &Stacks {
        &self.tape.stacks
    }

    /// Returns totals and sums that need no pass over the events. These are those of the tape if
    /// they include every chunk and the tape is not damaged, or those of a profile.
    pub fn ready_sums(&self) -> Option<Summary> {
        let salvage = self.tape.ranges.iter().any(|range| matches!(range, TraceRange::Salvage { .. }));
        let damaged = self.missing.iter().any(|missing| matches!(missing, Missing::DamagedTape { .. }));
        match &self.tape.summary {
            Some(summary) if self.tape.summary_is_last && !salvage && !damaged => Some(summary.clone()),
            _ => match (&self.sums, &self.events) {
                (Some((totals, sites)), Events::Profile | Events::Imported { .. }) => {
                    Some(Summary { totals: totals.clone(), sites: sites.clone() })
                }
                _ => None,
            },
        }
    }

    /// Returns the sums by site that the files contain. They may be older than the last event, and
    /// are empty if there are none.
    pub(crate) fn known_sites(&self) -> &[SiteSums] {
        match (&self.tape.summary, &self.sums) {
            (Some(summary), _) => &summary.sites,
            (None, Some((_, sites))) => sites,
            (None, None) => &[],
        }
    }

    /// Returns the stacks that end early, by the sums that the files contain.
    pub fn early_ends(&self) -> EarlyEnds {
        EarlyEnds::of(self.stacks(), self.known_sites())
    }

    /// Returns the chunks whose bytes in the trace are not what was written. A pass over the events
    /// finds them, too.
    pub(crate) fn unusable_chunks(&self) -> Vec<Missing> {
        if let Events::Joined(joined) = &self.events {
            return joined.segments.iter().flat_map(|segment| segment.process.unusable_chunks()).collect();
        }
        let Events::Taped { trace: Some(trace), .. } = &self.events else { return Vec::new() };
        let mut decoder = Decoder::default();
        let found = self.tape.ranges.iter().filter_map(|range| match range {
            TraceRange::Committed { chunk, .. } => {
                decoder.check(trace, chunk).err().map(|error| chunk::unusable(chunk, &error))
            }
            TraceRange::Salvage { .. } => None,
        });
        found.collect()
    }

    /// Returns the tick of the last event, if the chunks of a trace show it.
    pub fn last_event_tick(&self) -> Option<u64> {
        if let Events::Joined(joined) = &self.events {
            return joined.segments.iter().rev().find_map(|segment| segment.process.last_event_tick());
        }
        self.tape.ranges.iter().rev().find_map(|range| match range {
            TraceRange::Committed { chunk, .. } => Some(chunk.last_tick),
            TraceRange::Salvage { .. } => None,
        })
    }

    /// Returns whether the sums include the peak. Those of a profile do not.
    pub(crate) const fn knows_peak(&self) -> bool {
        match self.events {
            Events::Imported { has_peak } => has_peak,
            Events::Sums => false,
            _ => self.sums.is_none(),
        }
    }

    /// Returns whether the events can be read.
    pub const fn has_events(&self) -> bool {
        matches!(self.events, Events::Taped { trace: Some(_), .. } | Events::Trace(_) | Events::Joined(_))
    }

    /// Returns whether the events have times.
    pub const fn has_times(&self) -> bool {
        self.clock.is_known()
    }

    /// Returns the first mark of this name after a tick.
    pub fn mark(&self, name: &str, after: u64) -> Option<&Mark> {
        self.tape.marks.iter().find(|mark| mark.text.0 == name.as_bytes() && mark.tick > after)
    }

    /// Converts a time range to event numbers and ticks of this process. Bounds that are times are
    /// ignored if the process has no times.
    pub fn span(&self, range: &Range) -> Span {
        let mut span = Span::ALL;
        let last = self.tape.last_tick.saturating_sub(self.clock.start_tick);
        let resolve = |bound: &Bound, from_tick: u64| match bound {
            Bound::Number(number) => (Some(*number), None),
            Bound::Time(nanos) if self.has_times() => (None, Some(self.clock.tick(*nanos))),
            Bound::BeforeEnd(nanos) if self.has_times() => {
                let end = self.clock.nanos(self.tape.last_tick);
                (None, Some(self.clock.tick(end.saturating_sub(*nanos))))
            }
            Bound::Time(_) | Bound::BeforeEnd(_) => (None, None),
            Bound::Share(share) if self.has_times() => {
                (None, Some(self.clock.start_tick.saturating_add((last as f64 * share) as u64)))
            }
            Bound::Share(share) => (Some((self.tape.events as f64 * share) as u64), None),
            Bound::Mark(name) => (None, self.mark(name, from_tick).map(|mark| mark.tick)),
        };
        if let Some(bound) = &range.from {
            let (number, tick) = resolve(bound, 0);
            span.first = number.unwrap_or(0);
            span.first_tick = tick.unwrap_or(if matches!(bound, Bound::Mark(_)) { u64::MAX } else { 0 });
        }
        if let Some(bound) = &range.to {
            let whole = *bound == Bound::Share(1.0);
            let (number, tick) = resolve(bound, span.first_tick);
            span.end = if whole { u64::MAX } else { number.unwrap_or(u64::MAX) };
            let end_tick = tick.unwrap_or_else(|| match bound {
                Bound::Mark(_) => 0,
                _ => number.map_or(u64::MAX, |number| self.tick_after(number)),
            });
            span.end_tick = if whole { u64::MAX } else { end_tick };
        }
        span
    }

    /// Calls `each` for batches of the events of a span, in order. Returns the errors that were
    /// found. Only chunks that overlap the span are read. They are decoded ahead in separate
    /// threads.
    ///
    /// # Examples
    ///
    /// ```
    /// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/tape/v1/trace");
    /// use heaptape_analyzer::{Progress, event::Span, open};
    ///
    /// let recording = open(path.as_ref())?;
    /// let mut bytes = 0;
    /// recording.processes[0].for_each(Span::ALL, &Progress::new("adding up"), &mut |events| {
    ///     bytes += events.iter().map(|event| event.bytes()).sum::<u64>();
    /// });
    /// assert_eq!(bytes, 32_217);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn for_each(&self, span: Span, progress: &Progress, each: &mut dyn FnMut(&[Event])) -> Vec<Missing> {
        self.for_each_from(None, span, progress, each)
    }

    /// Reads the record of a chunk with its columns. `offset` is its offset in the tape.
    pub fn chunk(&self, offset: u64) -> Option<heaptape_formats::tape::Chunk> {
        let Events::Taped { tape, .. } = &self.events else { return None };
        match Stream::at(tape, offset).step() {
            Ok(Step::Record(_, heaptape_formats::tape::Record::Chunk(chunk))) => Some(chunk),
            _ => None,
        }
    }
}
