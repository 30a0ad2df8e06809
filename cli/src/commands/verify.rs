//! `heaptape verify`: checks recordings. Status 0: complete; 1: readable with something missing;
//! 2: unreadable.

use super::common::print;
use super::newest;
use crate::Outcome;
use heaptape_analyzer::report::verify::{self, Checked};
use heaptape_analyzer::report::{self, Error, json};
use heaptape_analyzer::text::clean;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Options of `heaptape verify`.
#[derive(clap::Args)]
#[command(after_help = "Of several recordings, the exit status is that of the worst one.")]
pub(crate) struct Args {
    /// Recordings, folders of processes, or files [default: the newest recording in this folder]
    #[arg(value_name = "DIR|FILE")]
    paths: Vec<PathBuf>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(super) fn run(mut args: Args) -> anyhow::Result<Outcome> {
    args.paths = newest::or_newest(args.paths)?;
    if args.json {
        return answer(&args.paths);
    }
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
        worst = worse(worst, outcome);
    }
    Ok(worst)
}

/// Returns the outcome with the worse status.
fn worse(one: Outcome, other: Outcome) -> Outcome {
    match (one, other) {
        (Outcome::NoAnswer, _) | (_, Outcome::NoAnswer) => Outcome::NoAnswer,
        (Outcome::Done, outcome) => outcome,
        (outcome, _) => outcome,
    }
}

/// Checks one recording, and prints what was found.
fn check(path: &Path) -> anyhow::Result<Outcome> {
    // An incomplete recording has status 1 here, with and without --strict.
    Ok(match print(true, |out, style| verify::run(path, out, style))? {
        Outcome::Incomplete { .. } => Outcome::Partial,
        outcome => outcome,
    })
}

/// What the command prints with `--json`.
#[derive(Serialize)]
struct Answer {
    recordings: Vec<Recording>,
}

/// What is known of one of the paths.
#[derive(Serialize)]
#[serde(untagged)]
enum Recording {
    Checked(Checked),
    /// It cannot be read.
    Unreadable {
        path: String,
        complete: bool,
        error: String,
    },
}

/// Checks recordings, and prints what was found as JSON.
fn answer(paths: &[PathBuf]) -> anyhow::Result<Outcome> {
    let mut worst = Outcome::Done;
    let mut recordings = Vec::new();
    for path in paths {
        recordings.push(match verify::check(path) {
            Ok(checked) => {
                if !checked.complete {
                    worst = worse(worst, Outcome::Partial);
                }
                Recording::Checked(checked)
            }
            Err(error) => {
                worst = Outcome::NoAnswer;
                let error = format!("{:#}", anyhow::Error::new(error));
                eprintln!("heaptape: {error}");
                Recording::Unreadable { path: path.display().to_string(), complete: false, error }
            }
        });
    }
    print(true, |out, _| {
        json::print(out, &Answer { recordings }).map_err(Error::Io)?;
        Ok(report::Outcome::Complete)
    })?;
    Ok(worst)
}
