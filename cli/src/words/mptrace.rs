//! `heaptape mptrace`: a trace as mptrace shows it.

use crate::{Outcome, terminal};
use anyhow::Context;
use clap::{Arg, ArgMatches, Command, FromArgMatches};
use heaptape_analyzer::compat;
use heaptape_analyzer::compat::input::{self, RecordingInput};
use heaptape_analyzer::compat::mptrace::{self, Hatf, Options, Simulation, View};
use heaptape_analyzer::export;
use heaptape_analyzer::load::bare;
use heaptape_analyzer::text::Harmless;
use heaptape_formats::mtrc::{Failure, Stream};
use heaptape_formats::{Ending, Format};
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::Path;

/// The options of the real mptrace.
#[derive(clap::Args)]
pub struct Args {
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
    /// The real tool's window, which is not built here
    #[arg(short = 'w', long)]
    gui: bool,
    #[command(flatten)]
    _window: Window,
    /// Print the version
    #[arg(short = 'V', long)]
    version: bool,
    #[command(flatten)]
    processes: super::asked::ProcessArgs,
    /// Trace, packed or not, or recording; - is the standard input
    #[arg(default_value = "mpatrol.trace")]
    file: String,
}

/// The window's own options: taken, so that scripts run, and without effect.
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

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    if args.version {
        println!("mptrace 1.4, as shown by heaptape {}", env!("CARGO_PKG_VERSION"));
        return Ok(Outcome::Done);
    }
    if args.gui {
        eprintln!("mptrace: the window is not built; the trace is shown as text");
    }
    let opened = match args.file.as_str() {
        file if input::is_recording(Path::new(file)) => return show_recording(&args),
        "-" => bare::unpacking(io::stdin()),
        file => bare::open(Path::new(file)),
    };
    match opened {
        Ok(input) => {
            let outcome = show(&args, input)?;
            if let Some(format) = compat::format_of(Path::new(&args.file)).filter(|format| *format != Format::Mtrc) {
                eprintln!("mptrace: {}", compat::wrong_format_hint(format));
            }
            Ok(outcome)
        }
        Err(error) => {
            eprintln!("mptrace: {}: {error}", args.file);
            Ok(Outcome::Partial)
        }
    }
}

/// A recording's greatest process, or the one that was named.
fn show_recording(args: &Args) -> anyhow::Result<Outcome> {
    let recorded = RecordingInput::open(Path::new(&args.file), &args.processes.processes())?;
    let (image, others) = recorded.largest()?;
    if !others.is_empty() {
        eprintln!("mptrace: this is {}; --process shows {}", image.about.folder, others.join(", "));
    }
    let mut source = recorded.source()?;
    let mut missing = Vec::new();
    shown(args, 8, |view| {
        let mut result = Ok(());
        export::mtrc::each_record(&mut source, image, args.source, &mut |record| {
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

/// Makes a view with the outputs that were asked for, has it fed, and ends it.
fn shown(args: &Args, word: u8, feed: impl FnOnce(&mut View<'_>) -> io::Result<()>) -> anyhow::Result<()> {
    let mut out = terminal::stdout();
    let mut complaints = terminal::stderr();
    let (mut hatf, mut simulation) = (open(args.hatf_file.as_deref())?, open(args.sim_file.as_deref())?);
    let options = Options { verbose: args.verbose, source: args.source, address_bytes: word };
    let mut view = View::new(options, &mut out, &mut complaints)?;
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

fn show(args: &Args, input: impl Read) -> anyhow::Result<Outcome> {
    let mut stream = match Stream::new(input) {
        Ok(stream) => stream,
        Err(failure) => return Ok(complain(&failure)),
    };
    let mut failure = None;
    shown(args, stream.header().flavour.word, |view| {
        loop {
            match stream.next() {
                Ok(Some(record)) => view.record(&record)?,
                Ok(None) => return Ok(()),
                Err(error) => {
                    failure = Some(error);
                    return Ok(());
                }
            }
        }
    })?;
    if let Some(failure) = failure {
        return Ok(complain(&failure));
    }
    if let Some(Ending::Cut { offset, field }) = stream.ending() {
        eprintln!(
            "mptrace: Error reading file\nmptrace: the file is cut at byte {offset}, in its {field}; shown is what is there"
        );
        return Ok(Outcome::Partial);
    }
    Ok(Outcome::Done)
}

fn open(name: Option<&str>) -> anyhow::Result<Option<Box<dyn Write>>> {
    let Some(name) = name else { return Ok(None) };
    Ok(Some(match name {
        "stdout" => Box::new(BufWriter::new(Harmless::new(io::stdout()))),
        "stderr" => Box::new(Harmless::new(io::stderr())),
        _ => Box::new(BufWriter::new(File::create(name).with_context(|| name.to_owned())?)),
    }))
}

/// Says what is wrong, first as the real tool says it.
fn complain(failure: &Failure) -> Outcome {
    let words = match failure {
        Failure::Io(_) => "Error reading file",
        Failure::Format(error) => mptrace::read_error_message(error),
    };
    eprintln!("mptrace: {words}\nmptrace: {failure}");
    Outcome::Partial
}
