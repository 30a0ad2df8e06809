//! `heaptape gprof`: profiles of gmon.out files, with gprof's options.

use crate::{Outcome, terminal};
use heaptape_analyzer::compat::gprof::{self, Completeness, Options};
use std::io::Write;

/// gprof's own options and files; `heaptape gprof --help` lists them.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub struct Args {
    /// Options, then the executable (a.out), then profiles (gmon.out).
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTION|FILE")]
    words: Vec<String>,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let options = Options::parse(&args.words).map_err(|text| anyhow::anyhow!("{text}\n{}", gprof::options::help()))?;
    let mut out = terminal::stdout();
    let whole = gprof::run(&options, &mut out, &mut terminal::stderr())?;
    out.flush()?;
    Ok(match whole {
        Completeness::Complete => Outcome::Done,
        Completeness::Truncated => Outcome::Partial,
    })
}
