//! `heaptape export`: a recording as files for other tools.

use crate::Outcome;
use anyhow::anyhow;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use heaptape_analyzer::event::{Bound, Range};
use heaptape_analyzer::export::{self, EXPORTERS, Measure, Options, Written};
use heaptape_formats::{Flavour, mtrc};
use std::path::PathBuf;

/// Its options.
#[derive(clap::Args)]
pub struct Args {
    /// Format of the files
    #[arg(long, alias = "to", value_name = "FORMAT", value_parser = exporters())]
    format: String,
    #[command(flatten)]
    how: How,
    /// Recordings, folders of images, or single files: MTRC, MPTL, tape, pprof, heaptrack, DHAT, Massif
    #[arg(required = true, value_name = "DIR|FILE")]
    paths: Vec<PathBuf>,
}

/// The options that `export` and `convert` share.
#[derive(clap::Args)]
pub struct How {
    /// File, or folder for formats of several files; - is standard output, the default for one file
    #[arg(short, long, value_name = "OUT")]
    pub output: Option<PathBuf>,
    /// Read the files back and compare their sums with the source's; exit status 1 when they differ
    #[arg(long)]
    pub verify: bool,
    /// Start of the part to export: a time after the start (1.5s, 300ms, 2m), a share of the run (40%) or an event's number
    #[arg(long, value_name = "WHEN")]
    from: Option<Bound>,
    /// End of that part, likewise
    #[arg(long = "until", value_name = "WHEN")]
    until: Option<Bound>,
    #[command(flatten)]
    processes: super::asked::ProcessArgs,
    #[command(flatten)]
    names_of: super::asked::Names,
    /// What to count, in formats that do not hold everything; several may be given, by commas, where the format holds several
    #[arg(long, value_name = "MEASURE", value_delimiter = ',', value_parser = measures())]
    what: Vec<Measure>,
    /// gmon: count what a library allocates for its callers at these, too
    #[arg(long)]
    through: bool,
    /// csv, json: a row for each event instead of one for each stack
    #[arg(long = "events")]
    each_event: bool,
    /// mtrc: write function, file and line of each event
    #[arg(long)]
    names: bool,
    /// mtrc: addresses and threads that the real 64-bit mptrace shows rightly
    #[arg(long = "for", value_name = "TOOL", value_parser = ["mptrace"])]
    tool: Option<String>,
    /// Byte order and word size of the files
    #[arg(long, value_name = "FLAVOUR", ignore_case = true, value_parser = flavours())]
    pub flavour: Option<Flavour>,
    /// mtrc, mptl: version of mpatrol that the files are for, such as 10501
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(..mtrc::layout::FIRST_TOO_NEW))]
    version_word: Option<u64>,
}

impl How {
    /// For the library.
    pub fn options(&self) -> Options {
        let range = Range { from: self.from, to: self.until };
        Options {
            range: (!range.is_all()).then_some(range),
            processes: self.processes.processes(),
            what: self.what.clone(),
            for_mptrace: self.tool.is_some(),
            names: self.names,
            through: self.through,
            flavour: self.flavour,
            version: self.version_word,
            each_event: self.each_event,
            origin: self.names_of.origin(),
        }
    }
}

/// The values of `--format`, from the list of exporters.
pub fn exporters() -> PossibleValuesParser {
    PossibleValuesParser::new(EXPORTERS.iter().map(|one| PossibleValue::new(one.name()).help(one.summary())))
}

fn measures() -> impl TypedValueParser<Value = Measure> {
    let values = Measure::ALL.iter().map(|one| PossibleValue::new(one.name()).help(one.help()));
    PossibleValuesParser::new(values).try_map(|name| name.parse())
}

fn flavours() -> impl TypedValueParser<Value = Flavour> {
    PossibleValuesParser::new(Flavour::ALL.map(Flavour::name)).try_map(|name| {
        Flavour::ALL
            .into_iter()
            .find(|flavour| flavour.name().eq_ignore_ascii_case(&name))
            .ok_or_else(|| format!("'{name}' is no flavour"))
    })
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let exporter = export::exporter(&args.format).ok_or_else(|| anyhow!("there is no export {}", args.format))?;
    let options = args.how.options();
    let written = export::run(exporter, &args.paths, &options, args.how.output.as_deref(), args.how.verify)?;
    Ok(tell(&written))
}

/// Says what was written, what could not be, and what was proved.
pub fn tell(written: &Written) -> Outcome {
    for file in &written.files {
        eprintln!("{}", file.display());
    }
    for note in &written.notes {
        eprintln!("heaptape: {note}");
    }
    for missing in &written.missing {
        eprintln!("heaptape: {missing}");
    }
    for verdict in &written.verdicts {
        eprintln!("{verdict}");
    }
    if written.is_whole() { Outcome::Done } else { Outcome::Partial }
}
