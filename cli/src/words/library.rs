//! `heaptape library`: where the preload library lies.

use crate::Outcome;

/// No options.
#[derive(clap::Args)]
pub struct Args {}

pub fn run(_args: Args) -> anyhow::Result<Outcome> {
    println!("{}", crate::library::path()?.display());
    Ok(Outcome::Done)
}
