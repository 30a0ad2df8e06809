//! `heaptape export`: writes a recording in the formats of other tools.

use super::dcpiprof::outcome;
use super::{live, newest};
use crate::Outcome;
use anyhow::{Context, anyhow};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use heaptape_analyzer::event::{Bound, Range};
use heaptape_analyzer::export::{self, EXPORTERS, Measure, Options, Written};
use heaptape_analyzer::unpack;
use heaptape_compat::dcpi;
use heaptape_formats::{Abi, Format, mtrc};
use heaptape_recorder::run::Question;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Options of `heaptape export`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Format to write [default: what the name of OUT says, such as html for page.html]
    #[arg(long, alias = "to", value_name = "FORMAT", value_parser = exporters())]
    format: Option<String>,
    #[command(flatten)]
    how: ExportArgs,
    /// Recordings, folders of processes, or single files: MTRC, MPTL, tape, pprof, heaptrack, DHAT,
    /// Massif, heap profiles of jemalloc and gperftools [default: the newest recording in
    /// this folder]
    #[arg(value_name = "DIR|FILE")]
    paths: Vec<PathBuf>,
    /// Export processes that the daemon serves now: their name (* and ? are wildcards), pid or
    /// label
    #[arg(long, value_name = "NAME|PID|LABEL", conflicts_with = "paths")]
    live: Option<String>,
    /// Control socket of the daemon, for --live
    #[arg(hide_short_help = true, long, value_name = "PATH", requires = "live")]
    control: Option<PathBuf>,
}

/// Options of both `export` and `convert`.
#[derive(clap::Args)]
pub(super) struct ExportArgs {
    /// File, or folder for formats with several files; - is standard output, the default for a
    /// single file
    #[arg(short, long, value_name = "OUT")]
    pub output: Option<PathBuf>,
    /// Read the written files again and compare their sums with the source; exit with status 1 if
    /// they differ
    #[arg(long)]
    pub verify: bool,
    /// Start of the time range: a time since the start (1.5s, 300ms, 2m) or before the end (-1m), a
    /// share of the run (40%), or the number of an event
    #[arg(long, value_name = "WHEN", allow_hyphen_values = true)]
    from: Option<Bound>,
    /// End of the time range, in the same forms
    #[arg(long = "until", value_name = "WHEN", allow_hyphen_values = true)]
    until: Option<Bound>,
    #[command(flatten)]
    processes: super::common::ProcessArgs,
    #[command(flatten)]
    names_of: super::common::Names,
    /// Measure to write, for formats that hold only some; separate several by commas
    #[arg(long, value_name = "MEASURE", value_delimiter = ',', value_parser = measures())]
    what: Vec<Measure>,
    /// gmon: attribute allocations inside libraries to the callers in the program as well
    #[arg(hide_short_help = true, long)]
    through: bool,
    /// csv, json: write a row for each event instead of each call site
    #[arg(long = "events")]
    each_event: bool,
    /// mtrc: write function, file and line of each event
    #[arg(hide_short_help = true, long)]
    names: bool,
    /// html: write the source lines around the program's frames into the page, from files that have
    /// not changed since
    #[arg(long)]
    with_source: bool,
    /// mtrc: write addresses and thread numbers that the real 64-bit mptrace shows correctly
    #[arg(hide_short_help = true, long = "for", value_name = "TOOL", value_parser = ["mptrace"])]
    tool: Option<String>,
    /// Byte order and word size of the files
    #[arg(hide_short_help = true, long, value_name = "FLAVOUR", ignore_case = true, value_parser = flavours())]
    pub flavour: Option<Abi>,
    /// mtrc, mptl: version number of mpatrol to write, such as 10501
    #[arg(hide_short_help = true, long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(..mtrc::layout::FIRST_TOO_NEW))]
    version_word: Option<u64>,
}

impl ExportArgs {
    /// Returns the options in the form that the analyzer takes.
    pub(super) fn options(&self) -> Options {
        let range = Range { from: self.from.clone(), to: self.until.clone() };
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
            with_source: self.with_source,
            origin: self.names_of.origin(),
        }
    }
}

/// Returns the values of `--format`: the names of the exporters.
pub(super) fn exporters() -> PossibleValuesParser {
    PossibleValuesParser::new(EXPORTERS.iter().map(|one| PossibleValue::new(one.name()).help(one.summary())))
}

fn measures() -> impl TypedValueParser<Value = Measure> {
    let values = Measure::ALL.iter().map(|one| PossibleValue::new(one.name()).help(one.help()));
    PossibleValuesParser::new(values).try_map(|name| name.parse())
}

fn flavours() -> impl TypedValueParser<Value = Abi> {
    PossibleValuesParser::new(Abi::ALL.map(Abi::name)).try_map(|name| {
        Abi::ALL
            .into_iter()
            .find(|flavour| flavour.name().eq_ignore_ascii_case(&name))
            .ok_or_else(|| format!("'{name}' is no flavour"))
    })
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    let format = match &args.format {
        Some(format) => format,
        None => args.how.output.as_deref().and_then(format_of).ok_or_else(no_format)?,
    };
    let exporter = export::exporter(format).ok_or_else(|| anyhow!("unknown format '{format}'"))?;
    let options = args.how.options();
    let paths = match args.live {
        Some(which) => live::paths(&which, args.control, Question::Snapshot)?,
        None => newest::or_newest(args.paths)?,
    };
    if format == "svg" && paths.iter().all(|path| is_dcpi(path)) {
        return dcpi_graph(paths, &args.how);
    }
    let written = export::run(exporter, &paths, &options, args.how.output.as_deref(), args.how.verify)?;
    Ok(print_result(&written))
}

fn is_dcpi(path: &Path) -> bool {
    path.is_file() && unpack::open(path).is_ok_and(|opened| opened.format == Some(Format::Dcpi))
}

/// Draws DCPI profiles, whose counts may be of any event: they are no recording.
fn dcpi_graph(files: Vec<PathBuf>, how: &ExportArgs) -> anyhow::Result<Outcome> {
    if how.options().range.is_some() {
        anyhow::bail!("a DCPI profile has no times: leave out --from and --until");
    }
    let processes = how.processes.processes();
    let set = dcpi::Set::load(&dcpi::Inputs { files, processes, ..dcpi::Inputs::default() })?;
    let drawn = dcpi::graph::draw_event(&set, how.what.first().map(|measure| measure.name()))?;
    match how.output.as_deref().filter(|path| *path != Path::new("-")) {
        Some(path) => {
            std::fs::write(path, drawn).with_context(|| path.display().to_string())?;
            eprintln!("{}", path.display());
        }
        None => std::io::stdout().write_all(&drawn)?,
    }
    for fault in &set.faults {
        eprintln!("heaptape: {fault}");
    }
    Ok(outcome(&[&set]))
}

/// File names that have only one format, by their ends.
const ENDINGS: [(&str, &str); 8] = [
    (".html", "html"),
    (".svg", "svg"),
    (".csv", "csv"),
    (".pb.gz", "pprof"),
    (".collapsed", "collapsed"),
    (".folded", "collapsed"),
    (".speedscope.json", "speedscope"),
    (".pftrace", "perfetto"),
];

/// Returns the format that the name of a file says.
fn format_of(out: &Path) -> Option<&'static str> {
    let name = out.file_name()?.to_str()?;
    ENDINGS.iter().find(|(ending, _)| name.ends_with(ending)).map(|(_, format)| *format)
}

fn no_format() -> anyhow::Error {
    let names: Vec<&str> = EXPORTERS.iter().map(|one| one.name()).collect();
    anyhow!("choose a format: heaptape export --format FORMAT -o OUT DIR, with one of {}", names.join(", "))
}

/// Prints the written files, notes, what is missing, and the results of `--verify`.
pub(crate) fn print_result(written: &Written) -> Outcome {
    for file in &written.files {
        eprintln!("{}", file.display());
    }
    print_notes(written)
}

/// Prints notes, what is missing, and the results of `--verify`.
pub(crate) fn print_notes(written: &Written) -> Outcome {
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
