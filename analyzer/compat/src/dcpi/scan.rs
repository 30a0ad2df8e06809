//! `dcpiscan`: lists programs and libraries with the identity by which profiles name them.

use super::Result;
use super::text::Table;
use heaptape_analyzer::symbols::{ObjectFile, hexadecimal};
use heaptape_analyzer::text::clean_columns;
use heaptape_formats::regular;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

/// Maximum depth to which directories are searched.
const MAX_DEPTH: usize = 64;

/// Prints identity, start and size of the text, and path of each ELF file that is named or is below
/// a named directory. Returns what could not be read.
///
/// # Errors
/// Returns an error if writing to `out` fails.
pub fn print(paths: &[PathBuf], comma_separated: bool, no_header: bool, out: &mut dyn Write) -> Result<Vec<String>> {
    let heading = ["identity", "tstart", "tsize", "image"].map(str::to_owned).to_vec();
    let mut scan = Scan { table: Table::new(heading, 1), faults: Vec::new() };
    for path in paths {
        scan.visit(path, MAX_DEPTH, true);
    }
    if comma_separated {
        scan.table.comma_separated(!no_header, out)?;
    } else {
        scan.table.aligned(!no_header, out)?;
    }
    Ok(scan.faults)
}

struct Scan {
    table: Table,
    faults: Vec<String>,
}

impl Scan {
    fn visit(&mut self, path: &Path, depth: usize, is_named: bool) {
        // A symbolic link could form a cycle, and its target is listed where it is.
        if !is_named && path.is_symlink() {
            return;
        }
        if path.is_dir() {
            let entries = match std::fs::read_dir(path) {
                Ok(entries) => entries,
                Err(error) => return self.faults.push(format!("{}: {error}", path.display())),
            };
            let mut below: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
            below.sort();
            let below = below.iter().filter(|_| depth > 0);
            below.for_each(|path| self.visit(path, depth - 1, false));
        } else if let Err(error) = self.image(path, is_named) {
            self.faults.push(format!("{}: {error}", path.display()));
        }
    }

    /// Adds a file if it is an image. Other files are faults only if they are named.
    fn image(&mut self, path: &Path, is_named: bool) -> std::result::Result<(), String> {
        let mut start = Vec::new();
        let opened = regular::open(path).and_then(|file| file.take(4).read_to_end(&mut start));
        match opened {
            Ok(_) if start == *b"\x7fELF" => {}
            Ok(_) if is_named => return Err("not an ELF file".into()),
            Ok(_) => return Ok(()),
            Err(error) if is_named => return Err(error.to_string()),
            Err(_) => return Ok(()),
        }
        let bytes = regular::read(path).map_err(|error| error.to_string())?;
        let file = ObjectFile::parse_elf(&bytes).map_err(|error| error.to_string())?;
        let text = file.text_sections();
        let (Some(first), Some(last)) = (text.first(), text.last()) else { return Ok(()) };
        let identity = file.build_id().map_err(|error| error.to_string())?;
        self.table.row(vec![
            identity.map_or_else(|| "0".to_owned(), |id| hexadecimal(&id)),
            format!("{:#x}", first.start),
            (last.end - first.start).to_string(),
            clean_columns(&path.to_string_lossy()),
        ]);
        Ok(())
    }
}
