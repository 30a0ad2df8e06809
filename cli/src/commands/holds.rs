//! `heaptape holds`: who holds the blocks that are live at the end.

use super::common::{Common, OfCore, print};
use crate::Outcome;
use heaptape_reports::holds::{self, Options};
use std::path::PathBuf;

/// Options of `heaptape holds`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Only blocks allocated by this function, of this type, or at this address (0x…)
    #[arg(long, value_name = "FUNCTION|TYPE|ADDRESS")]
    of: Option<String>,
    /// Only blocks that nothing holds
    #[arg(long, conflicts_with = "cycles")]
    lost: bool,
    /// Only blocks that hold each other, and that nothing else holds
    #[arg(long)]
    cycles: bool,
    /// Group held blocks by type instead of by call site
    #[arg(long)]
    types: bool,
    /// Only what is held more than in this earlier recording of the program, and by what
    #[arg(long, value_name = "DIR", conflicts_with_all = ["of", "lost", "cycles", "types"])]
    since: Option<PathBuf>,
    #[command(flatten)]
    core: OfCore,
    #[command(flatten)]
    common: Common,
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    let Args { of, lost, cycles, types, since, core, mut common } = args;
    let options = Options { of, lost, cycles, by_type: types, since };
    common.read_references()?;
    let strict = common.strict();
    let mut query = common.query(5)?;
    let has_range = !query.scope.range.is_all();
    core.ask(&mut query)?;
    anyhow::ensure!(
        !has_range || query.scope.core.is_some(),
        "who holds what is known of one moment, so a time range selects nothing: ask with --live at another one"
    );
    anyhow::ensure!(
        query.scope.filter.is_all(),
        "filters select nothing here, since others hold what they leave out; --of FUNCTION|TYPE|ADDRESS selects blocks"
    );
    print(strict, |out, style| holds::run(&query, &options, out, style))
}
