//! `heaptape compat dcpilist`: lists a procedure with its samples, as DCPI's dcpilist does.

use super::dcpiprof::{Source, outcome};
use crate::{Outcome, terminal};
use heaptape_compat::dcpi::list;
use std::io::Write;
use std::path::PathBuf;

/// Options of `heaptape compat dcpilist`.
#[derive(clap::Args)]
#[command(group(clap::ArgGroup::new("form").args(["best", "source_lines", "asm", "both"])))]
pub(super) struct Args {
    /// Name of a procedure, or an address in it (0x…)
    procedure: String,
    /// Recordings, profiles, directories of profiles, ELF files; - is standard input
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// List source lines if the source can be read, else instructions (the default)
    #[arg(long)]
    best: bool,
    /// List source lines
    #[arg(long = "source")]
    source_lines: bool,
    /// List instructions
    #[arg(long)]
    asm: bool,
    /// List source lines, each with its instructions
    #[arg(long)]
    both: bool,
    /// Print instructions as bytes: do not run objdump
    #[arg(long)]
    bytes: bool,
    /// Print no heading
    #[arg(long)]
    no_header: bool,
    #[command(flatten)]
    source: Source,
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    let set = args.source.load(args.files)?;
    let form = match (args.source_lines, args.asm, args.both) {
        (true, ..) => list::Form::Source,
        (_, true, _) => list::Form::Instructions,
        (.., true) => list::Form::Both,
        _ => list::Form::Auto,
    };
    let options = list::Options { procedure: args.procedure, form, no_header: args.no_header, bytes_only: args.bytes };
    let mut out = terminal::stdout();
    list::print(&set, &options, &mut out)?;
    out.flush()?;
    Ok(outcome(&[&set]))
}
