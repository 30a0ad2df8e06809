//! `heaptape mleak`: what an mpatrol log shows as unfreed.

use crate::Outcome;
use heaptape_analyzer::foreign::mleak::{self, Options};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};

/// The options of the real mleak.
#[derive(clap::Args)]
pub struct Args {
    /// Ignore the list of unfreed allocations in the log
    #[arg(short, long)]
    ignore: bool,
    /// Frames to show of each stack; 0 is all
    #[arg(short = 'n', long, value_name = "DEPTH", default_value_t = 0)]
    max_stack: usize,
    /// Print the version
    #[arg(short = 'V', long)]
    version: bool,
    /// Log; - is the standard input
    #[arg(default_value = "mpatrol.log")]
    file: String,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let mut out = BufWriter::new(io::stdout().lock());
    if args.version {
        writeln!(out, "mleak 1.3, as shown by heaptape {}", env!("CARGO_PKG_VERSION"))?;
        return Ok(Outcome::Done);
    }
    let options = Options { ignore: args.ignore, max_stack: args.max_stack };
    match args.file.as_str() {
        "-" => mleak::view(io::stdin().lock(), &options, &mut out)?,
        file => match File::open(file) {
            Ok(log) => mleak::view(BufReader::new(log), &options, &mut out)?,
            Err(error) => {
                eprintln!("mleak: {file}: {error}");
                return Ok(Outcome::Incomplete);
            }
        },
    }
    out.flush()?;
    Ok(Outcome::Done)
}
