//! `heaptape verify`: checks recordings. Status 0: complete; 1: readable with something missing;
//! 2: unreadable.

use super::common::print;
use crate::Outcome;
use heaptape_analyzer::report::verify;
use heaptape_analyzer::text::clean;
use std::path::{Path, PathBuf};

/// Options of `heaptape verify`.
#[derive(clap::Args)]
#[command(after_help = "Of several recordings, the exit status is that of the worst one.")]
pub struct Args {
    /// Recordings, folders of processes, or files
    #[arg(required = true, value_name = "DIR|FILE")]
    paths: Vec<PathBuf>,
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    if let [path] = &args.paths[..] {
        return check(path);
    }
    let mut worst = Outcome::Done;
    for (number, path) in args.paths.iter().enumerate() {
        println!("{}{}", if number > 0 { "\n" } else { "" }, clean(&path.display().to_string()));
        let outcome = check(path).or_else(|error| {
            // Without its output, the command ends.
            if error.downcast_ref::<std::io::Error>().is_some() {
                return Err(error);
            }
            eprintln!("heaptape: {error:#}");
            Ok(Outcome::NoAnswer)
        })?;
        worst = match (worst, outcome) {
            (Outcome::NoAnswer, _) | (_, Outcome::NoAnswer) => Outcome::NoAnswer,
            (Outcome::Done, outcome) => outcome,
            (worst, _) => worst,
        };
    }
    Ok(worst)
}

/// Checks one recording, and prints what was found.
fn check(path: &Path) -> anyhow::Result<Outcome> {
    // An incomplete recording has status 1 here, with and without --strict.
    Ok(match print(true, |out, style| verify::run(path, out, style))? {
        Outcome::Incomplete { .. } => Outcome::Partial,
        outcome => outcome,
    })
}
