//! `heaptape compat gprof`: shows gmon.out files, with the options of GNU gprof.

use super::examples;
use crate::{Outcome, terminal};
use heaptape_compat::gprof::{self, Completeness, Failure, Options};
use std::io::Write;

/// Options and files of GNU gprof; `heaptape gprof --help` lists them.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(super) struct Args {
    /// Options, then the executable (a.out), then profiles (gmon.out).
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTION|FILE")]
    args: Vec<String>,
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    let options = Options::parse(&args.args).map_err(|text| anyhow::anyhow!("{text}\n{}", gprof::options::help()))?;
    let mut out = terminal::stdout();
    if options.help {
        writeln!(out, "{}\n", examples::of("compat gprof", usize::MAX))?;
    }
    let whole = gprof::run(&options, &mut out, &mut terminal::stderr()).map_err(|error| match error {
        Failure::Io(error) => anyhow::Error::new(error),
        error => anyhow::Error::new(error),
    })?;
    out.flush()?;
    Ok(match whole {
        Completeness::Complete => Outcome::Done,
        Completeness::Truncated => Outcome::Partial,
    })
}
