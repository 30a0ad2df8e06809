//! One recording under several allocators, side by side.

use crate::{Allocator, LiveBytes, Measured};
use heaptape_analyzer::Process;
use heaptape_analyzer::report::resident::RecordedHeap;
use heaptape_analyzer::text::{Screen, bytes, count, counted, duration};
use serde::Serialize;
use std::io;

/// Blocks of fewer bytes that were never written are not worth a line.
const MIN_SHOWN: u64 = 1 << 20;

/// What the operations of a process take under several allocators.
#[derive(Debug, Serialize)]
pub struct Comparison {
    pub pid: u32,
    /// Name of the process: that of its file, or of the link by which it was started.
    #[serde(skip)]
    name: String,
    /// Path of the executable.
    pub exe: String,
    /// Folder of the process in the recording.
    pub folder: String,
    /// Whether nothing is missing from the recording of the process.
    pub complete: bool,
    pub missing: Vec<String>,
    /// The largest sum of the sizes of all live blocks, in bytes.
    pub live_peak_bytes: u64,
    pub live_end_bytes: u64,
    /// Bytes of blocks that are live at the end of which the snapshots of the pages show that the
    /// program did not write to them. The replay does not either.
    pub unwritten_end_bytes: u64,
    /// The resident memory of the heap in the program, as it was recorded; `None` if the recording
    /// does not have it.
    pub recorded: Option<RecordedHeap>,
    /// One entry for each allocator that was requested.
    pub allocators: Vec<Row>,
}

/// What one allocator took.
#[derive(Debug, Serialize)]
pub struct Row {
    /// The allocator with its settings, as it was requested.
    pub allocator: String,
    /// Path of its library; `null` for the C library's allocator.
    pub library: Option<String>,
    /// What was measured; left out if the replay failed.
    #[serde(flatten)]
    pub measured: Option<Measured>,
    /// Why the replay failed.
    pub error: Option<String>,
}

impl Row {
    /// Returns the row of an allocator with the result of its replay.
    pub fn of(allocator: &Allocator, result: Result<Measured, impl std::error::Error>) -> Row {
        let (measured, error) = match result {
            Ok(measured) => (Some(measured), None),
            Err(error) => (None, Some(heaptape_analyzer::text::with_causes(&error))),
        };
        let library = allocator.library.as_deref().map(|path| path.display().to_string());
        Row { allocator: allocator.name.clone(), library, measured, error }
    }
}

impl Comparison {
    /// Returns the comparison of a process, without rows yet.
    pub fn of(process: &Process, live: LiveBytes, recorded: Option<RecordedHeap>, missing: Vec<String>) -> Comparison {
        Comparison {
            pid: process.about.pid,
            name: process.name(),
            exe: process.about.exe.clone(),
            folder: process.about.folder.clone(),
            complete: missing.is_empty(),
            missing,
            live_peak_bytes: live.peak,
            live_end_bytes: live.end,
            unwritten_end_bytes: live.unwritten_end,
            recorded,
            allocators: Vec::new(),
        }
    }

    /// Prints the comparison as text, the allocator with the lowest peak first.
    ///
    /// # Errors
    /// Returns an error if writing fails.
    pub fn print(&self, screen: &mut Screen) -> io::Result<()> {
        let name = &self.name;
        screen.heading(&format!(
            "{name} (pid {}), replayed: {} requested at the peak, {} at the end",
            self.pid,
            bytes(self.live_peak_bytes),
            bytes(self.live_end_bytes),
        ))?;
        let mut measured: Vec<(&Row, Measured)> =
            self.allocators.iter().filter_map(|row| Some((row, row.measured?))).collect();
        measured.sort_by_key(|(_, measured)| measured.peak_bytes);
        let rows = measured.iter().map(|(row, measured)| {
            let Measured { peak_bytes, end_bytes, nanoseconds, page_faults, .. } = *measured;
            vec![bytes(peak_bytes), bytes(end_bytes), duration(nanoseconds), count(page_faults), row.allocator.clone()]
        });
        let recorded = self.recorded.iter().map(|recorded| {
            let RecordedHeap { allocator, peak_bytes, end_bytes, .. } = *recorded;
            vec![bytes(peak_bytes), bytes(end_bytes), String::new(), String::new(), format!("{allocator}, as recorded")]
        });
        let rows: Vec<Vec<String>> = rows.chain(recorded).collect();
        if !rows.is_empty() {
            screen.table(&["peak RSS", "RSS at the end", "time", "page faults", "allocator"], &rows)?;
        }
        for (row, measured) in measured.iter().filter(|(_, measured)| measured.failed > 0) {
            screen.line(&format!("{} failed under {}", counted(measured.failed, "allocation"), row.allocator))?;
        }
        for row in &self.allocators {
            if let Some(error) = &row.error {
                screen.line(&format!("{}: {error}", row.allocator))?;
            }
        }
        self.missing.iter().try_for_each(|missing| screen.line(&format!("! {missing}")))?;
        // On a terminal it is wrapped where that is narrow.
        let note = [
            "RSS of the heap alone, with each page of a block written when the block is allocated,",
            "except for what the program did not write of blocks from 64 KiB on, as the snapshots of its pages show",
        ];
        match screen.style.wraps {
            true => screen.line(&note.join(" "))?,
            false => note.iter().try_for_each(|line| screen.line(line))?,
        }
        let untouched = self.recorded.map_or(0, |recorded| recorded.untouched_bytes);
        match untouched.saturating_sub(self.unwritten_end_bytes) {
            rest if rest >= MIN_SHOWN => screen
                .line(&format!("the program never wrote {} of other blocks, which the replay writes", bytes(rest))),
            _ => Ok(()),
        }
    }
}
