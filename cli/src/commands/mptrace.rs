//! `heaptape compat mptrace`: shows a trace as mpatrol's mptrace does.

use crate::{Outcome, terminal};
use anyhow::Context;
use clap::{Arg, ArgMatches, Command, FromArgMatches};
use heaptape_analyzer::export;
use heaptape_analyzer::text::SanitizingWriter;
use heaptape_analyzer::{open_file, unpacking};
use heaptape_compat::input::RecordingInput;
use heaptape_compat::mptrace::{self, Hatf, Options, Simulation, View};
use heaptape_formats::mtrc::{ReadError, Stream};
use heaptape_formats::{Ending, Format};
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;

/// Options of the real mptrace, with `--process` and `--program`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Print the table of events
    #[arg(short, long)]
    verbose: bool,
    /// Print thread, function, file and line under each event
    #[arg(short, long)]
    source: bool,
    /// Also write the trace in Heap Allocation Trace Format
    #[arg(short = 'H', long, value_name = "FILE")]
    hatf_file: Option<String>,
    /// Also write a C program that replays the trace
    #[arg(short = 'S', long, value_name = "FILE")]
    sim_file: Option<String>,
    /// Accepted for compatibility: the real tool opens a window, this one prints text
    #[arg(short = 'w', long)]
    gui: bool,
    #[command(flatten)]
    _window: Window,
    /// Print the version
    #[arg(short = 'V', long)]
    version: bool,
    #[command(flatten)]
    processes: super::common::ProcessArgs,
    /// Trace (compressed or not) or recording; - is standard input
    #[arg(default_value = "mpatrol.trace")]
    file: String,
}

/// Options of the real tool's window: accepted, so that scripts run, and without effect.
struct Window;

impl Window {
    const OPTIONS: [&str; 11] = [
        "alloc",
        "base",
        "delay",
        "free",
        "height",
        "internal",
        "space",
        "unalloc",
        "view-height",
        "view-width",
        "width",
    ];
}

impl clap::Args for Window {
    fn augment_args(command: Command) -> Command {
        command.args(Window::OPTIONS.map(|name| Arg::new(name).long(name).hide(true)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Window::augment_args(command)
    }
}

impl FromArgMatches for Window {
    fn from_arg_matches(_: &ArgMatches) -> Result<Self, clap::Error> {
        Ok(Window)
    }

    fn update_from_arg_matches(&mut self, _: &ArgMatches) -> Result<(), clap::Error> {
        Ok(())
    }
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    if args.version {
        println!("mptrace 1.4, as shown by heaptape {}", env!("CARGO_PKG_VERSION"));
        return Ok(Outcome::Done);
    }
    if args.gui {
        eprintln!("mptrace: there is no window; the trace is shown as text");
    }
    let opened = match args.file.as_str() {
        file if heaptape_analyzer::is_recording(Path::new(file)) => return show_recording(&args),
        "-" => unpacking(Box::new(io::stdin())),
        file => open_file(Path::new(file)),
    };
    match opened {
        Ok(input) => {
            let outcome = show(&args, input)?;
            if let Some(format) =
                heaptape_compat::format_of(Path::new(&args.file)).filter(|format| *format != Format::Mtrc)
            {
                eprintln!("mptrace: {}", heaptape_compat::wrong_format_hint(format));
            }
            Ok(outcome)
        }
        Err(error) => {
            eprintln!("mptrace: {}: {error}", args.file);
            Ok(Outcome::Partial)
        }
    }
}

/// Shows the process with the most events of a recording, or the one that is named.
fn show_recording(args: &Args) -> anyhow::Result<Outcome> {
    let recorded = RecordingInput::open(Path::new(&args.file), &args.processes.processes())?;
    let (process, others) = recorded.largest()?;
    if !others.is_empty() {
        eprintln!("mptrace: this is {}; --process shows {}", process.about.folder, others.join(", "));
    }
    let mut source = recorded.source()?;
    let mut missing = Vec::new();
    with_view(args, 8, |view| {
        let mut result = Ok(());
        export::mtrc::each_record(&mut source, process, args.source, &mut |record| {
            if result.is_ok() {
                result = view.record(record);
            }
        });
        missing.append(&mut source.missing);
        result
    })?;
    for missing in &missing {
        eprintln!("mptrace: {missing}");
    }
    Ok(if missing.is_empty() { Outcome::Done } else { Outcome::Partial })
}

/// Creates a view with the requested outputs, calls `feed` with it, and finishes it. `word` is the
/// size of an address in bytes.
fn with_view(args: &Args, word: u8, feed: impl FnOnce(&mut View<'_>) -> io::Result<()>) -> anyhow::Result<()> {
    let mut out = terminal::stdout();
    let mut errors = terminal::stderr();
    let (mut hatf, mut simulation) = (open(args.hatf_file.as_deref())?, open(args.sim_file.as_deref())?);
    let options = Options { verbose: args.verbose, source: args.source, address_bytes: word };
    let mut view = View::new(options, &mut out, &mut errors)?;
    if let (Some(name), Some(file)) = (&args.hatf_file, &mut hatf) {
        view.hatf(Hatf::new(name, file)?);
    }
    if let Some(file) = &mut simulation {
        view.simulation(Simulation::new(&args.file, file)?);
    }
    feed(&mut view)?;
    view.finish()?;
    out.flush()?;
    for file in [hatf, simulation].iter_mut().flatten() {
        file.flush()?;
    }
    Ok(())
}

fn show(args: &Args, input: Box<dyn Read>) -> anyhow::Result<Outcome> {
    let mut stream = match Stream::new(input) {
        Ok(stream) => stream,
        Err(failure) => return Ok(report_failure(&failure)),
    };
    let mut failure = None;
    with_view(args, stream.header().abi.word_size, |view| {
        failure = view.records(&mut stream)?.err();
        Ok(())
    })?;
    if let Some(failure) = failure {
        return Ok(report_failure(&failure));
    }
    if let Some(Ending::Truncated { offset, field }) = stream.ending() {
        eprintln!(
            "mptrace: Error reading file\nmptrace: the file is truncated at byte {offset}, in field {field}; the part before it is shown"
        );
        return Ok(Outcome::Partial);
    }
    Ok(Outcome::Done)
}

fn open(name: Option<&str>) -> anyhow::Result<Option<Box<dyn Write>>> {
    let Some(name) = name else { return Ok(None) };
    Ok(Some(match name {
        "stdout" => Box::new(BufWriter::new(SanitizingWriter::new(io::stdout()))),
        "stderr" => Box::new(SanitizingWriter::new(io::stderr())),
        _ => Box::new(BufWriter::new(File::create(name).with_context(|| name.to_owned())?)),
    }))
}

/// Prints an error, first in the words of the real tool.
fn report_failure(failure: &ReadError) -> Outcome {
    let message = match failure {
        ReadError::Io(_) => "Error reading file",
        ReadError::Format(error) => mptrace::read_error_message(error),
    };
    eprintln!("mptrace: {message}\nmptrace: {failure}");
    Outcome::Partial
}
