//! `heaptape library`: prints the path of the preload library.

use crate::Outcome;

/// Options of `heaptape library`: none.
#[derive(clap::Args)]
pub(crate) struct Args {}

pub(super) fn run(_args: Args) -> anyhow::Result<Outcome> {
    println!("{}", crate::library::path()?.display());
    Ok(Outcome::Done)
}
