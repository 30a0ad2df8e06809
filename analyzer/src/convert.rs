//! Files of one format as files of another. Several files of one format are added up.
//!
//! ```text
//! from \ to     mtrc          mptl                   gmon                 dcpi
//! recording     export        export                 export               export
//! mtrc          flavour       bins only              -                    -
//! mptl          -             sum, flavour           addresses and arcs   addresses
//! gmon          -             -                      sum, form, flavour   addresses, without arcs
//! dcpi          -             -                      addresses            sum, stride
//! ```
//! What stands as `-` lacks what the target consists of: events, sizes, or the addresses of callers.

pub mod addresses;
pub mod dcpi;
pub mod gmon;
pub mod merge;
pub mod mptl;

use crate::export::{self, Error, Options, Out, Target, Totals, Written, verify};
use crate::missing::Missing;
use crate::unpack::{self, OpenedFile};
use heaptape_formats::gmon::Form;
use heaptape_formats::tape::FILE_MAGIC;
use heaptape_formats::{Ending, Format};
use std::io::Read;
use std::path::{Path, PathBuf};

/// How to convert.
#[derive(Clone, Debug, Default)]
pub struct ConvertOptions {
    /// Options shared with exports.
    pub export: Options,
    /// Form of a gmon.out file.
    pub form: Option<Form>,
    /// Bytes between the counts of a DCPI profile.
    pub stride: Option<u32>,
    /// Read the result back.
    pub verify: bool,
}

/// What comes of a conversion before it is written.
#[derive(Default)]
pub struct Converted {
    /// Files: name in a folder, and bytes.
    pub files: Vec<(String, Vec<u8>)>,
    /// What the target cannot hold.
    pub notes: Vec<String>,
    /// What the files must add up to.
    pub totals: Totals,
    /// What the sources lack.
    pub missing: Vec<Missing>,
}

/// Converts files to the format of that name.
///
/// # Errors
/// When a file cannot be read, the formats differ, or the target cannot hold what the source has.
pub fn run(to: &str, paths: &[PathBuf], options: &ConvertOptions, target: Option<&Path>) -> Result<Written, Error> {
    let exporter = export::exporter(to).ok_or_else(|| Error::Impossible(format!("there is no format {to}")))?;
    let Some((format, opened)) = open(paths)? else {
        // Recordings, tapes, and traces, which may be larger than memory.
        refuse_traces(to, paths)?;
        if to == "mtrc" && paths.len() > 1 {
            return Err(Error::Impossible(
                "traces of several runs have no common order: convert them one by one".into(),
            ));
        }
        return export::run(exporter, paths, &options.export, target, options.verify);
    };
    let made = match target_format(to) {
        Some(target) => convert(format, target, &opened, options)?,
        None => return Err(Error::Impossible(format!("{format} cannot become {to}"))),
    };
    let folder = to == "dcpi" || made.files.len() > 1;
    let mut out = Out::new(Target::named(to, exporter.extension(), paths, target, folder)?);
    for (name, bytes) in &made.files {
        let mut file = if folder { out.file(name)? } else { out.stream()? };
        file.put(bytes)?;
        file.finish()?;
    }
    let mut written = Written { notes: made.notes, missing: made.missing, ..Written::default() };
    for file in opened.iter().filter_map(|file| file.damage.as_ref().map(|damage| (file, damage))) {
        written.missing.push(Missing::Cut { name: file.0.name.clone(), at: file.1.clone() });
    }
    if options.verify {
        written.verdicts = verify::compare(&made.totals, &verify::read(&out.files)?);
    }
    written.files = out.files;
    Ok(written)
}

/// The format that a value of `--format` names, where files of other formats can become one.
fn target_format(to: &str) -> Option<Format> {
    match to {
        "mtrc" => Some(Format::Mtrc),
        "mptl" => Some(Format::Mptl),
        "gmon" => Some(Format::Gmon),
        "dcpi" => Some(Format::Dcpi),
        _ => None,
    }
}

/// Converts files of one format that lie in memory.
///
/// # Errors
/// When one cannot be read, or the target cannot hold what they do.
pub fn convert(from: Format, to: Format, files: &[OpenedFile], options: &ConvertOptions) -> Result<Converted, Error> {
    match (from, to) {
        (Format::Mptl, Format::Mptl) => mptl::to_mptl(files, options),
        (Format::Mptl, Format::Gmon) => mptl::to_gmon(files, options),
        (Format::Mptl, Format::Dcpi) => mptl::to_dcpi(files, options),
        (Format::Gmon, Format::Gmon) => gmon::to_gmon(files, options),
        (Format::Gmon, Format::Dcpi) => gmon::to_dcpi(files, options),
        (Format::Dcpi, Format::Gmon) => dcpi::to_gmon(files, options),
        (Format::Dcpi, Format::Dcpi) => dcpi::to_dcpi(files, options),
        (_, Format::Mtrc) => Err(Error::Impossible(format!("{from} holds sums, and a trace consists of events"))),
        (_, Format::Mptl) => {
            Err(Error::Impossible(format!("{from} holds no sizes of blocks, of which MPTL's sums consist")))
        }
        _ => Err(Error::Impossible(format!("{from} cannot become {to}"))),
    }
}

/// The files' bytes and their common format; none when they are what only the exporters read: recordings, tapes, traces.
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
            Some(Format::Mtrc | Format::Tape | Format::Recording) => {
                let why = format!("{}: this is read from a file, not from standard input", file.name);
                return Err(Error::Impossible(why));
            }
            Some(format) => format,
            None => return Err(Error::Impossible(format!("{}: not a file of a known format", file.name))),
        };
        if let Some(other) = common.filter(|&other| other != format) {
            return Err(Error::Impossible(format!(
                "{}: {format}, and others are {other}: only files of one format add up",
                file.name
            )));
        }
        common = Some(format);
        opened.push(file);
    }
    match common {
        None => Ok(None),
        Some(_) if streamed > 0 => Err(Error::Impossible("only files of one format add up".into())),
        Some(format) => Ok(Some((format, opened))),
    }
}

/// Whether a path is a recording, a tape, or a trace.
fn is_streamed(path: &Path) -> bool {
    if path.is_dir() {
        return true;
    }
    let mut start = Vec::new();
    let read = crate::load::bare::open(path).and_then(|reader| reader.take(4096).read_to_end(&mut start));
    let is_read = |format| matches!(format, Format::Mtrc | Format::Recording) || crate::import::is_supported(format);
    read.is_ok() && (start.starts_with(&FILE_MAGIC) || heaptape_formats::sniff::format(&start).is_some_and(is_read))
}

/// Bare traces hold no stacks.
fn refuse_traces(to: &str, paths: &[PathBuf]) -> Result<(), Error> {
    for path in paths.iter().filter(|_| matches!(to, "gmon" | "dcpi")) {
        let mut start = Vec::new();
        let read = crate::load::bare::open(path).and_then(|reader| reader.take(4).read_to_end(&mut start));
        if !path.is_dir() && read.is_ok() && start == b"MTRC" {
            let why = format!("{}: a trace holds no addresses of callers, of which {to} consists", path.display());
            return Err(Error::Impossible(why));
        }
    }
    Ok(())
}

/// A reader's ending as something missing.
fn cut(name: &str, ending: Ending) -> Option<Missing> {
    match ending {
        Ending::Complete => None,
        Ending::Cut { offset, field } => {
            Some(Missing::Cut { name: name.into(), at: format!("offset {offset} ({field})") })
        }
    }
}

/// An error of a file.
fn failed(file: &OpenedFile) -> impl Fn(heaptape_formats::Error) -> Error + '_ {
    |error| Error::Format(file.name.clone(), error)
}
