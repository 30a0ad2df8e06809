//! Converts files between formats. Several files of one format are summed.
//!
//! ```text
//! from \ to     mtrc          mptl                   gmon                 dcpi
//! recording     export        export                 export               export
//! mtrc          flavour       bins only              -                    -
//! mptl          -             sum, flavour           addresses and arcs   addresses
//! gmon          -             -                      sum, form, flavour   addresses, without arcs
//! dcpi          -             -                      addresses            sum, stride
//! ```
//!
//! A dash means that the source lacks the data of the target: events, sizes, or addresses of
//! callers. "Flavour" is a change of byte order and word size.

mod addresses;
mod dcpi;
mod gmon;
mod mptl;

use crate::export::Impossible;
use crate::export::{self, Error, Options, Out, Target, Totals, Written, verify};
use crate::missing::Missing;
use crate::unpack::{self, OpenedFile};
use heaptape_formats::gmon::Form;
use heaptape_formats::tape::FILE_MAGIC;
use heaptape_formats::{Ending, Format};
use std::io::Read;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, Default)]
pub struct ConvertOptions {
    pub export: Options,
    /// The form of a gmon.out file; that of the source if `None`.
    pub form: Option<Form>,
    /// Number of bytes between the counts of a DCPI profile.
    pub stride: Option<u32>,
    /// Reads the result back and compares the totals.
    pub verify: bool,
}

/// The result of a conversion in memory.
#[derive(Default)]
pub struct Converted {
    /// The name (within a directory) and bytes of each file.
    pub files: Vec<(String, Vec<u8>)>,
    /// Notes on data that the target format cannot represent.
    pub notes: Vec<String>,
    /// The totals that the files must have.
    pub totals: Totals,
    /// Data that is missing in the sources.
    pub missing: Vec<Missing>,
}

/// Converts files to the format `to` and writes the result.
///
/// # Errors
/// Returns an error if a file cannot be read, if the formats of the files differ, if the conversion
/// is impossible, or if writing fails.
pub fn run(to: &str, paths: &[PathBuf], options: &ConvertOptions, target: Option<&Path>) -> Result<Written, Error> {
    let exporter = export::exporter(to).ok_or_else(|| Impossible::UnknownFormat(to.to_owned()))?;
    let Some((format, opened)) = open(paths)? else {
        // Recordings, tapes and traces may be larger than memory, so the exporters read them as
        // streams.
        refuse_traces(to, paths)?;
        if to == "mtrc" && paths.len() > 1 {
            return Err(Impossible::SeveralTraces.into());
        }
        return export::run(exporter, paths, &options.export, target, options.verify);
    };
    let converted = match target_format(to) {
        Some(target) => convert(format, target, &opened, options)?,
        None => return Err(Impossible::NoConversion { from: format, to: to.to_owned() }.into()),
    };
    let folder = to == "dcpi" || converted.files.len() > 1;
    let mut out = Out::new(Target::named(to, exporter.extension(), paths, target, folder)?);
    for (name, bytes) in &converted.files {
        let mut file = if folder { out.file(name)? } else { out.stream()? };
        file.put(bytes)?;
        file.finish()?;
    }
    let mut written = Written { notes: converted.notes, missing: converted.missing, ..Written::default() };
    for file in opened.iter().filter_map(|file| file.damage.as_ref().map(|damage| (file, damage))) {
        written.missing.push(Missing::Truncated { name: file.0.name.clone(), at: file.1.clone() });
    }
    if options.verify {
        written.verdicts = verify::compare(&converted.totals, &verify::read(&out.files)?);
    }
    written.files = out.files;
    Ok(written)
}

/// Returns the format that a value of `--format` names, or `None` if no files can be converted to
/// it.
fn target_format(to: &str) -> Option<Format> {
    match to {
        "mtrc" => Some(Format::Mtrc),
        "mptl" => Some(Format::Mptl),
        "gmon" => Some(Format::Gmon),
        "dcpi" => Some(Format::Dcpi),
        _ => None,
    }
}

/// Converts files of one format in memory.
///
/// # Errors
/// Returns an error if a file cannot be read, or if the conversion is impossible.
pub fn convert(from: Format, to: Format, files: &[OpenedFile], options: &ConvertOptions) -> Result<Converted, Error> {
    match (from, to) {
        (Format::Mptl, Format::Mptl) => mptl::to_mptl(files, options),
        (Format::Mptl, Format::Gmon) => mptl::to_gmon(files, options),
        (Format::Mptl, Format::Dcpi) => mptl::to_dcpi(files, options),
        (Format::Gmon, Format::Gmon) => gmon::to_gmon(files, options),
        (Format::Gmon, Format::Dcpi) => gmon::to_dcpi(files, options),
        (Format::Dcpi, Format::Gmon) => dcpi::to_gmon(files, options),
        (Format::Dcpi, Format::Dcpi) => dcpi::to_dcpi(files, options),
        (_, Format::Mtrc) => Err(Impossible::OnlySums(from).into()),
        (_, Format::Mptl) => Err(Impossible::NoBlockSizes(from).into()),
        _ => Err(Impossible::NoConversion { from, to: to.to_string() }.into()),
    }
}

/// Reads all files and returns them with their common format. Returns `None` if they are
/// recordings, tapes or traces, which only the exporters read.
fn open(paths: &[PathBuf]) -> Result<Option<(Format, Vec<OpenedFile>)>, Error> {
    let mut opened = Vec::new();
    let mut common: Option<Format> = None;
    let mut streamed = 0;
    for path in paths {
        if path != Path::new("-") && is_streamed(path) {
            streamed += 1;
            continue;
        }
        let file = unpack::open(path)?;
        let format = match file.format {
            Some(format @ (Format::Mtrc | Format::Tape | Format::Recording)) => {
                return Err(Impossible::NotSeekable { name: file.name, format }.into());
            }
            Some(format) => format,
            None => return Err(Impossible::UnknownFile(file.name).into()),
        };
        if let Some(other) = common.filter(|&other| other != format) {
            return Err(Impossible::OtherFormat { name: file.name, format, other }.into());
        }
        common = Some(format);
        opened.push(file);
    }
    match common {
        None => Ok(None),
        Some(_) if streamed > 0 => Err(Impossible::MixedFormats.into()),
        Some(format) => Ok(Some((format, opened))),
    }
}

/// Returns whether a path is a recording, a tape, a trace, or an imported format.
fn is_streamed(path: &Path) -> bool {
    if path.is_dir() {
        return true;
    }
    let mut start = Vec::new();
    let read = crate::load::bare::open(path).and_then(|reader| reader.take(4096).read_to_end(&mut start));
    let is_read = |format| matches!(format, Format::Mtrc | Format::Recording) || crate::import::is_supported(format);
    read.is_ok() && (start.starts_with(&FILE_MAGIC) || heaptape_formats::sniff::format(&start).is_some_and(is_read))
}

/// Rejects bare traces as source of gmon and dcpi, because they have no call stacks.
fn refuse_traces(to: &str, paths: &[PathBuf]) -> Result<(), Error> {
    for path in paths.iter().filter(|_| matches!(to, "gmon" | "dcpi")) {
        let mut start = Vec::new();
        let read = crate::load::bare::open(path).and_then(|reader| reader.take(4).read_to_end(&mut start));
        if !path.is_dir() && read.is_ok() && start == b"MTRC" {
            return Err(Impossible::NoCallers { path: path.clone(), to: to.to_owned() }.into());
        }
    }
    Ok(())
}

/// Converts the ending of a truncated file to a note on missing data.
fn truncation(name: &str, ending: Ending) -> Option<Missing> {
    match ending {
        Ending::Complete => None,
        Ending::Truncated { offset, field } => {
            Some(Missing::Truncated { name: name.into(), at: format!("offset {offset} ({field})") })
        }
    }
}

/// Adds the name of a file to an error.
fn format_error(file: &OpenedFile) -> impl Fn(heaptape_formats::Error) -> Error + '_ {
    |error| Error::Format(file.name.clone(), error)
}
