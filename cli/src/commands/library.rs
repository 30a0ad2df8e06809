//! `heaptape library`: prints the path of the preload library.

use crate::Outcome;

/// Options of `heaptape library`: none.
#[derive(clap::Args)]
pub struct Args {}

pub fn run(_args: Args) -> anyhow::Result<Outcome> {
    println!("{}", crate::library::path()?.display());
    Ok(Outcome::Done)
}
