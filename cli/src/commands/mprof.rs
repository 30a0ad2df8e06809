//! `heaptape compat mprof`: shows a profile as mpatrol's mprof does.

use crate::{Outcome, terminal};
use anyhow::Context;
use heaptape_compat::input;
use heaptape_compat::mprof::{self, Options};
use heaptape_formats::{Ending, Format, mptl::Profile};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Options of the real mprof, with `--process` and `--program`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Show each call site of a function separately
    #[arg(short, long)]
    addresses: bool,
    /// Sort by counts instead of bytes
    #[arg(short, long)]
    counts: bool,
    /// Also write the call graph for Graphviz to this file, stdout or stderr
    #[arg(short, long, value_name = "FILE")]
    graph_file: Option<String>,
    /// Show unfreed memory at the edges of the graph
    #[arg(short, long)]
    leaks: bool,
    /// Number of frames that distinguish stacks in the leak table; 0 is all
    #[arg(short = 'n', long, value_name = "DEPTH", default_value_t = 1)]
    stack_depth: usize,
    /// Also print the call graph
    #[arg(short = 'v', long)]
    call_graph: bool,
    /// Print the version
    #[arg(short = 'V', long)]
    version: bool,
    #[command(flatten)]
    processes: super::common::ProcessArgs,
    /// Profile (compressed or not), recording or trace; - is standard input
    #[arg(default_value = "mpatrol.out")]
    file: String,
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    let mut out = terminal::stdout();
    if args.version {
        writeln!(out, "mprof 1.3, as shown by heaptape {}", env!("CARGO_PKG_VERSION"))?;
        return Ok(Outcome::Done);
    }
    let path = Path::new(&args.file);
    let read = match input::profile(path, &args.processes.processes())? {
        Some(profile) => Ok((profile, Ending::Complete)),
        None => match input::read_bytes(path) {
            Ok(bytes) => Profile::read(&bytes),
            Err(error) => {
                eprintln!("mprof: {:#}", anyhow::Error::new(error));
                return Ok(Outcome::Partial);
            }
        },
    };
    let (profile, ending) = match read {
        Ok(read) => read,
        Err(error) => {
            eprintln!("mprof: {}\nmprof: {error}", mprof::read_error_message(&error));
            heaptape_compat::format_of(path).filter(|format| *format != Format::Mptl).into_iter().for_each(|format| {
                eprintln!("mprof: {}", heaptape_compat::wrong_format_hint(format));
            });
            return Ok(Outcome::Partial);
        }
    };
    let Args { addresses, counts, leaks, stack_depth, call_graph, .. } = args;
    let options = Options { addresses, counts, leaks, stack_depth, call_graph };
    mprof::view(&profile, &options, &mut out)?;
    if let Some(file) = &args.graph_file {
        match file.as_str() {
            "stdout" => mprof::graph(&profile, &options, &args.file, &mut out)?,
            "stderr" => mprof::graph(&profile, &options, &args.file, &mut terminal::stderr())?,
            file => {
                let mut graph = BufWriter::new(File::create(file).with_context(|| file.to_owned())?);
                mprof::graph(&profile, &options, &args.file, &mut graph)?;
                graph.flush().with_context(|| file.to_owned())?;
            }
        }
    }
    out.flush()?;
    if let Ending::Truncated { offset, field } = ending {
        eprintln!(
            "mprof: Error reading file\nmprof: the file is truncated at byte {offset}, in field {field}; the part before it is shown"
        );
        return Ok(Outcome::Partial);
    }
    Ok(Outcome::Done)
}
