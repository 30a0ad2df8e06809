//! `heaptape compat dcpiprof`: shows a profile by procedure or image, as DCPI's dcpiprof does. The
//! options that all four DCPI commands share are here as well.

use crate::{Outcome, terminal};
use heaptape_compat::dcpi::{self, Set, prof};
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

/// Options for the input files.
#[derive(clap::Args)]
pub(super) struct Source {
    /// ELF file of an image, for procedures and lines [default: the path in the profile]
    #[arg(short = 'p', long, value_name = "FILE")]
    pub image: Vec<PathBuf>,
    /// Bytes between successive counts [default: the value in the file, else 4, an instruction of
    /// an Alpha]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub stride: Option<u32>,
    #[command(flatten)]
    pub processes: super::common::ProcessArgs,
    /// Show events (samples times period) instead of samples
    #[arg(long)]
    pub events: bool,
    /// Print notes on unusual input as well as faults
    #[arg(short, long)]
    pub verbose: bool,
}

impl Source {
    /// Reads and sums files, and prints their faults.
    pub(super) fn load(&self, files: Vec<PathBuf>) -> anyhow::Result<Set> {
        let inputs = dcpi::Inputs {
            files,
            images: self.image.clone(),
            stride: self.stride,
            processes: self.processes.processes(),
            in_events: self.events,
        };
        let set = Set::load(&inputs)?;
        let notes = set.notes.iter().filter(|_| self.verbose);
        for line in set.faults.iter().chain(notes) {
            eprintln!("heaptape: {line}");
        }
        Ok(set)
    }
}

/// Returns the outcome of a command that printed these sets.
pub(super) fn outcome(sets: &[&Set]) -> Outcome {
    if sets.iter().all(|set| set.faults.is_empty()) { Outcome::Done } else { Outcome::Partial }
}

/// Options of `heaptape compat dcpiprof`.
#[derive(clap::Args)]
pub(super) struct Args {
    /// Recordings, profiles, directories of profiles, ELF files; - is standard input
    files: Vec<PathBuf>,
    /// Print a line for each image instead of each procedure
    #[arg(short = 'i', long)]
    by_image: bool,
    /// Event to sort by [default: cycles, else the first]
    #[arg(short, long, value_name = "EVENT")]
    sort: Option<String>,
    /// Print only as many lines as account for this percentage of the event
    #[arg(long, value_name = "PERCENT", value_parser = per_cent)]
    keep: Option<f64>,
    /// Separate columns by commas
    #[arg(long)]
    csl: bool,
    /// Print no heading
    #[arg(long)]
    no_header: bool,
    /// Print also address, size and the identity of the image
    #[arg(long)]
    full_output: bool,
    /// Directory of profiles if no file is named [default: DCPIDB in the environment]
    #[arg(long, value_name = "DIR")]
    db: Option<PathBuf>,
    #[command(flatten)]
    source: Source,
}

/// Parses a percentage from 0 to 100.
pub(super) fn per_cent(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.0..=100.0).contains(number));
    number.ok_or_else(|| "must be a number from 0 to 100".to_string())
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    // Without files the database is read, as by DCPI's own tool.
    let mut files = args.files;
    if files.is_empty() {
        files.extend(args.db.or_else(|| std::env::var_os("DCPIDB").map(PathBuf::from)));
    }
    if files.is_empty() {
        anyhow::bail!("no profile: name files or directories, or set --db DIR or DCPIDB in the environment");
    }
    let set = args.source.load(files)?;
    let options = prof::Options {
        by_image: args.by_image,
        sort: args.sort,
        keep: args.keep,
        comma_separated: args.csl,
        no_header: args.no_header,
        full: args.full_output,
    };
    let mut out = terminal::stdout();
    prof::print(&set, &options, &mut out)?;
    out.flush()?;
    Ok(outcome(&[&set]))
}

/// Translates the options of the DCPI tools, which have long options with one dash (`-keep 90`,
/// `-no_header`) and start each set of a comparison with `-set`. Other command lines stay as they
/// are.
pub(crate) fn with_long_options(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    /// Long options in the spelling of the DCPI tools.
    const LONG: [&str; 18] = [
        "keep",
        "csl",
        "no_header",
        "full_output",
        "db",
        "best",
        "source",
        "asm",
        "both",
        "verbose",
        "version",
        "help",
        "event",
        "range",
        "source_line",
        "image",
        "stride",
        "events",
    ];
    let arguments: Vec<OsString> = arguments.collect();
    let name = arguments.iter().skip(1).find(|name| *name != "compat");
    let is_dcpi = name.and_then(|name| name.to_str()).is_some_and(|name| name.starts_with("dcpi"));
    if !is_dcpi {
        return arguments;
    }
    let mut sets = 0;
    let mut translate = |argument: OsString| match argument.to_str().and_then(|text| text.strip_prefix('-')) {
        Some("set") => {
            sets += 1;
            OsString::from(if sets == 1 { "--first" } else { "--second" })
        }
        Some(name) if LONG.contains(&name) => OsString::from(format!("--{}", name.replace('_', "-"))),
        _ => argument,
    };
    arguments.into_iter().map(&mut translate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(line: &str) -> String {
        let args = with_long_options(line.split(' ').map(OsString::from));
        args.iter().map(|argument| argument.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn options_of_the_dcpi_tools_are_translated() {
        for (theirs, ours) in [
            (
                "heaptape dcpiprof -i -keep 90 -no_header -s imiss x",
                "heaptape dcpiprof -i --keep 90 --no-header -s imiss x",
            ),
            (
                "heaptape dcpidiff f -source_line -set a b -set c",
                "heaptape dcpidiff f --source-line --first a b --second c",
            ),
            ("heaptape dcpilist -both -p prog f -", "heaptape dcpilist --both -p prog f -"),
            ("heaptape gprof -keep x", "heaptape gprof -keep x"),
            ("heaptape", "heaptape"),
        ] {
            assert_eq!(translated(theirs), ours);
        }
    }

    #[test]
    fn percentages_are_from_0_to_100() {
        assert_eq!(per_cent("12.5"), Ok(12.5));
        for wrong in ["-1", "100.1", "nan", "x", ""] {
            assert!(per_cent(wrong).is_err(), "{wrong}");
        }
    }
}
