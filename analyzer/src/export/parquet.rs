//! Parquet tables. A separate program writes them, because the library for the format is larger
//! than heaptape. It is searched beside this program, in the package's folder, then in `PATH`.

use super::{Error, Exporter, Needs, Out, Shape, Source, Totals};
use crate::export::Impossible;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The exporter of Parquet tables.
pub struct Export;

/// Name of the program that writes the tables.
pub const HELPER: &str = "heaptape-parquet";
/// Path of the program in the packages, relative to the folder of the command.
const PACKAGED: &str = "../lib/heaptape/heaptape-parquet";

impl Exporter for Export {
    fn name(&self) -> &'static str {
        "parquet"
    }

    fn extension(&self) -> &'static str {
        "parquet"
    }

    fn summary(&self) -> &'static str {
        "Parquet tables of events, allocations, call sites and stacks, for DuckDB and Spark"
    }

    fn needs(&self) -> Needs {
        Needs { events: false, shape: Shape::Folder }
    }

    fn write(&self, source: &mut Source<'_>, out: &mut Out) -> Result<(), Error> {
        let helper = helper().ok_or(Impossible::NoHelper(HELPER))?;
        let failed = |error| Error::Write(helper.display().to_string(), error);
        let mut command = Command::new(&helper);
        command.arg("--output").arg(out.folder()?);
        let range = source.range();
        for (option, bound) in [("--from", range.from), ("--until", range.to)] {
            if let Some(bound) = bound {
                command.args([option, &bound.to_string()]);
            }
        }
        let processes = &source.options.processes;
        for (option, name) in [("--process", &processes.process), ("--program", &processes.program)] {
            if let Some(name) = name {
                command.args([option, name]);
            }
        }
        command.arg("--").args(source.recordings.iter().map(|recording| &recording.path));
        // Its messages are shown as heaptape's own.
        let output = command.stderr(Stdio::inherit()).output().map_err(failed)?;
        out.files.extend(String::from_utf8_lossy(&output.stdout).lines().map(PathBuf::from));
        // Status 1: something is missing from the recording, which is known here.
        match output.status.code() {
            Some(0 | 1) => Ok(()),
            _ => Err(Impossible::HelperFailed { program: HELPER, status: output.status }.into()),
        }
    }

    fn is_read_back(&self) -> bool {
        false
    }

    fn totals(&self, _: &mut Source<'_>) -> Result<Totals, Error> {
        Ok(Totals::default())
    }
}

/// Returns the path of the program that writes tables, if it exists.
pub fn helper() -> Option<PathBuf> {
    let folder = std::env::current_exe().ok().and_then(|own| Some(own.parent()?.to_path_buf()));
    let own = folder.iter().flat_map(|folder| [folder.join(HELPER), folder.join(PACKAGED)]);
    let search = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&search).map(|folder| folder.join(HELPER));
    own.chain(found).find(|path| path.is_file())
}
