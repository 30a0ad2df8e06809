//! `heaptape compat mleak`: shows unfreed allocations as mpatrol's mleak does.

use crate::{Outcome, terminal};
use heaptape_analyzer::is_recording;
use heaptape_analyzer::{open_file, unpacking};
use heaptape_compat::input::RecordingInput;
use heaptape_compat::mleak::{self, Options};
use heaptape_compat::{format_of, wrong_format_hint};
use heaptape_formats::Format;
use std::io::{self, BufReader, Write};
use std::path::Path;

/// Options of the real mleak, with `--process` and `--program`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Ignore the list of unfreed allocations in the log
    #[arg(short, long)]
    ignore: bool,
    /// Maximum number of frames of each stack [default: all]
    #[arg(short = 'n', long, value_name = "DEPTH")]
    max_stack: Option<usize>,
    /// Print the version
    #[arg(short = 'V', long)]
    version: bool,
    #[command(flatten)]
    processes: super::common::ProcessArgs,
    /// Log (compressed or not), recording or trace; - is standard input
    #[arg(default_value = "mpatrol.log")]
    file: String,
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    let mut out = terminal::stdout();
    if args.version {
        writeln!(out, "mleak 1.3, as shown by heaptape {}", env!("CARGO_PKG_VERSION"))?;
        return Ok(Outcome::Done);
    }
    let options = Options { ignore: args.ignore, max_stack: args.max_stack };
    let path = Path::new(&args.file);
    let format = format_of(path);
    if is_recording(path) || format == Some(Format::Mtrc) {
        let recorded = RecordingInput::open(path, &args.processes.processes())?;
        let notes = mleak::view_recording(&recorded, &options, &mut out)?;
        out.flush()?;
        notes.iter().for_each(|note| eprintln!("mleak: {note}"));
        return Ok(if notes.is_empty() { Outcome::Done } else { Outcome::Partial });
    }
    if let Some(format) = format {
        eprintln!("mleak: {}: not a log; {}", args.file, wrong_format_hint(format));
        return Ok(Outcome::Partial);
    }
    let opened = if args.file == "-" { unpacking(Box::new(io::stdin())) } else { open_file(path) };
    match opened {
        Ok(log) => mleak::view(BufReader::new(log), &options, &mut out)?,
        Err(error) => {
            eprintln!("mleak: {}: {error}", args.file);
            return Ok(Outcome::Partial);
        }
    }
    out.flush()?;
    Ok(Outcome::Done)
}
