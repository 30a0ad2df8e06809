//! `heaptape leaks`: what was never freed, by stack, with a verdict.

use super::asked::{Common, frames, print};
use super::gates::Gates;
use crate::Outcome;
use clap::ValueEnum;
use heaptape_analyzer::report::leaks;
use heaptape_analyzer::suppress;
use std::path::PathBuf;

/// How a suppression is written.
#[derive(Clone, Copy, ValueEnum)]
enum Dialect {
    /// A line: leak:^function$
    Lsan,
    /// A block with the whole stack
    Valgrind,
}

/// Its options.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    common: Common,
    /// Merge stacks whose innermost N frames of the program (wrappers and containers apart) are the same; 0: only equal stacks
    #[arg(long, value_name = "N", default_value_t = 0)]
    depth: usize,
    /// Frames of each stack in text; all: every frame, wrappers and the interpreter's own among them [default: 8]
    #[arg(long, value_name = "N|all", value_parser = frames)]
    frames: Option<usize>,
    #[command(flatten)]
    suppress: Suppress,
    /// Print suppressions of what is found, instead
    #[arg(long, value_name = "DIALECT", value_enum, num_args = 0..=1, default_missing_value = "lsan", require_equals = true)]
    gen_suppressions: Option<Dialect>,
    #[command(flatten)]
    gates: Gates,
}

/// What is not to be told.
#[derive(clap::Args)]
pub struct Suppress {
    /// Suppressions: a file of LSan (leak:PATTERN) or of valgrind; may be given again
    #[arg(long, value_name = "FILE")]
    pub suppressions: Vec<PathBuf>,
    /// Tell what the C and C++ run-time keep on purpose, and heed no __lsan_default_suppressions of the program
    #[arg(long)]
    pub no_built_in: bool,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    let options = leaks::Options {
        depth: args.depth,
        frames: args.frames,
        top: args.common.top(),
        suppressions: args.suppress.suppressions,
        built_in: !args.suppress.no_built_in,
        generate: args.gen_suppressions.map(|dialect| match dialect {
            Dialect::Lsan => suppress::Dialect::Lsan,
            Dialect::Valgrind => suppress::Dialect::Valgrind,
        }),
    };
    let strict = args.common.strict();
    let asked = args.common.asked(0);
    if args.gates.are_asked() {
        return args.gates.check(&asked, None, &options, strict);
    }
    print(strict, |out, style| leaks::run(&asked, &options, out, style))
}
