//! `heaptape leaks`: lists blocks that were never freed, by call site, with a verdict.

use super::common::{Common, OfCore, frames, print};
use super::mappings::MappingOptions;
use super::thresholds::Thresholds;
use crate::Outcome;
use clap::ValueEnum;
use heaptape_analyzer::report::leaks;
use heaptape_analyzer::suppress;
use std::path::PathBuf;

/// Syntax of suppressions.
#[derive(Clone, Copy, ValueEnum)]
enum Dialect {
    /// One line: leak:^function$
    Lsan,
    /// A block with the whole stack
    Valgrind,
}

/// Options of `heaptape leaks`.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    core: OfCore,
    /// Merge stacks with the same N innermost program frames, without wrappers and containers; 0
    /// merges equal stacks only
    #[arg(hide_short_help = true, long, value_name = "N", default_value_t = 0)]
    depth: usize,
    /// Frames of each stack to print; all includes wrappers and the interpreter's own [default: 8]
    #[arg(long, value_name = "N|all", value_parser = frames)]
    frames: Option<usize>,
    /// List also what is no leak by its verdict: one-time, bounded caches, young at the end,
    /// inherited, released by exec
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    suppress: Suppress,
    /// Print suppressions for the leaks instead
    #[arg(hide_short_help = true, long, value_name = "DIALECT", value_enum, num_args = 0..=1, default_missing_value = "lsan", require_equals = true)]
    gen_suppressions: Option<Dialect>,
    #[command(flatten)]
    mappings: MappingOptions,
    #[command(flatten)]
    thresholds: Thresholds,
}

/// Options that hide leaks.
#[derive(clap::Args)]
pub(super) struct Suppress {
    /// File with suppressions of LeakSanitizer (leak:PATTERN) or valgrind; may be repeated
    #[arg(long, value_name = "FILE")]
    pub suppressions: Vec<PathBuf>,
    /// Report also what the C and C++ runtimes keep on purpose, and ignore
    /// __lsan_default_suppressions of the program
    #[arg(hide_short_help = true, long)]
    pub no_built_in: bool,
}

impl Suppress {
    /// Returns the options in the form that the analyzer takes.
    pub(super) fn options(self) -> leaks::Options {
        leaks::Options { suppressions: self.suppressions, built_in: !self.no_built_in, ..leaks::Options::default() }
    }
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    let options = leaks::Options {
        depth: args.depth,
        frames: args.frames,
        top: args.common.top(),
        suppressions: args.suppress.suppressions,
        all: args.all,
        by_function: false,
        built_in: !args.suppress.no_built_in,
        generate: args.gen_suppressions.map(|dialect| match dialect {
            Dialect::Lsan => suppress::Dialect::Lsan,
            Dialect::Valgrind => suppress::Dialect::Valgrind,
        }),
    };
    let strict = args.common.strict();
    let mut query = args.common.query(0)?;
    args.core.ask(&mut query)?;
    query.scope.mappings = args.mappings.filter();
    if args.thresholds.is_given() {
        return args.thresholds.check(&query, None, &options, strict);
    }
    print(strict, |out, style| leaks::run(&query, &options, out, style))
}
