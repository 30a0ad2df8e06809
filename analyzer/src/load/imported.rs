//! Opens files of other tools as processes that have only sums.

use super::{Clock, Events, Failure, Process, Recording, bare, io_failure, read_failure};
use crate::import::{self, Imported};
use crate::missing::Missing;
use crate::unpack;
use heaptape_formats::{Ending, Format};
use std::io::BufReader;
use std::path::Path;

/// Opens a file of another tool.
///
/// # Errors
/// Returns an error if the file cannot be read, or is not a file of the format.
pub(crate) fn open(path: &Path, format: Format) -> Result<Process, Failure> {
    let format_error = |source| Failure::Format { path: path.display().to_string(), source };
    if format == Format::Heaptrack {
        let from = bare::open(path).map_err(|error| io_failure(path, error))?;
        let (imported, ending) =
            import::from_stream(BufReader::with_capacity(1 << 18, from)).map_err(|error| read_failure(path, error))?;
        return Ok(process(imported, path, ending, None));
    }
    let opened = unpack::open(path)?;
    let (imported, ending) = import::from_bytes(format, &opened.bytes).map_err(format_error)?;
    Ok(process(imported, path, ending, opened.damage))
}

/// Places the modules of other tools' files by their files, where the user names a folder of these.
pub(crate) fn place_modules(recordings: &mut [Recording], sysroot: Option<&Path>) {
    let Some(sysroot) = sysroot else { return };
    for process in recordings.iter_mut().flat_map(|recording| &mut recording.processes) {
        import::relink(&mut process.tape.stacks.modules, sysroot);
    }
}

fn process(imported: Imported, path: &Path, ending: Ending, damage: Option<String>) -> Process {
    let has_peak = imported.has_peak;
    let mut process = Process { path: path.to_path_buf(), events: Events::Imported { has_peak }, ..Process::nothing() };
    process.about.folder = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    process.about.pid = imported.pid;
    process.about.exe = imported.argv.first().cloned().unwrap_or_default();
    process.about.argv = imported.argv;
    // Timestamps are nanoseconds after the start.
    let ticks_per_second = if imported.duration_ns > 0 { 1_000_000_000 } else { 0 };
    process.clock = Clock { ticks_per_second, start_tick: 0, start_unix_ns: imported.started_unix_ns };
    process.tape.last_tick = imported.duration_ns;
    process.tape.stacks = imported.stacks;
    process.import_notes = imported.notes;
    process.import_suppressions = imported.suppressions;
    process.sums = Some((imported.totals, imported.sums));
    let truncated_at = match (ending, damage) {
        (_, Some(damage)) => Some(damage),
        (Ending::Truncated { offset, field }, None) => Some(format!("offset {offset} ({field})")),
        (Ending::Complete, None) => None,
    };
    if let Some(at) = truncated_at {
        process.missing.push(Missing::Truncated { name: process.about.folder.clone(), at });
    }
    process
}
