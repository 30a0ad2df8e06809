//! `heaptape dcpiprof`: what DCPI's dcpiprof prints. The options that all four DCPI words share are here, too.

use crate::{Outcome, terminal};
use heaptape_analyzer::compat::dcpi::{self, Set, prof};
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

/// Where the samples come from.
#[derive(clap::Args)]
pub struct Source {
    /// ELF file of an image, for procedures and lines; else the file that a profile's path line names
    #[arg(short = 'p', long, value_name = "FILE")]
    pub image: Vec<PathBuf>,
    /// Bytes between successive counts; else what a file says, else 4, the instructions of an Alpha
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub stride: Option<u32>,
    #[command(flatten)]
    pub processes: super::asked::ProcessArgs,
    /// Show events, samples times period, instead of samples
    #[arg(long)]
    pub events: bool,
    /// Tell also what is odd and no fault
    #[arg(short, long)]
    pub verbose: bool,
}

impl Source {
    /// Reads and sums files; prints what was wrong with them.
    pub fn load(&self, files: Vec<PathBuf>) -> anyhow::Result<Set> {
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

/// How a word ended that printed all that these sets have.
pub fn outcome(sets: &[&Set]) -> Outcome {
    if sets.iter().all(|set| set.faults.is_empty()) { Outcome::Done } else { Outcome::Partial }
}

/// Its options.
#[derive(clap::Args)]
pub struct Args {
    /// Recordings, profiles, directories of profiles, ELF files; - is standard input
    files: Vec<PathBuf>,
    /// A line for each image instead of for each procedure
    #[arg(short = 'i', long)]
    by_image: bool,
    /// Event to sort by; else cycles, else the first
    #[arg(short, long, value_name = "EVENT")]
    sort: Option<String>,
    /// Just enough lines to account for this many per cent of the event sorted by
    #[arg(long, value_name = "PERCENT", value_parser = per_cent)]
    keep: Option<f64>,
    /// Comma-separated lists
    #[arg(long)]
    csl: bool,
    /// No heading
    #[arg(long)]
    no_header: bool,
    /// Further columns: address, size and the image's identity
    #[arg(long)]
    full_output: bool,
    /// Directory of profiles, where no file is named; else that in the environment's DCPIDB
    #[arg(long, value_name = "DIR")]
    db: Option<PathBuf>,
    #[command(flatten)]
    source: Source,
}

/// A number from 0 to 100.
pub fn per_cent(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number| (0.0..=100.0).contains(number));
    number.ok_or_else(|| "a number from 0 to 100 is due".to_string())
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    // The database is the place to look when nothing is named.
    let mut files = args.files;
    if files.is_empty() {
        files.extend(args.db.or_else(|| std::env::var_os("DCPIDB").map(PathBuf::from)));
    }
    if files.is_empty() {
        anyhow::bail!("no profile is named: give files or directories, --db DIR, or DCPIDB in the environment");
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

/// The DCPI tools wrote long options with one dash (`-keep 90`, `-no_header`), and began each set of a comparison with
/// `-set`; this spells a command line of theirs as ours.
pub fn spelled(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    /// Long options of the tools, as they wrote them.
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
    let is_dcpi = arguments.get(1).and_then(|word| word.to_str()).is_some_and(|word| word.starts_with("dcpi"));
    if !is_dcpi {
        return arguments;
    }
    let mut sets = 0;
    let mut spell = |argument: OsString| match argument.to_str().and_then(|text| text.strip_prefix('-')) {
        Some("set") => {
            sets += 1;
            OsString::from(if sets == 1 { "--first" } else { "--second" })
        }
        Some(name) if LONG.contains(&name) => OsString::from(format!("--{}", name.replace('_', "-"))),
        _ => argument,
    };
    arguments.into_iter().map(&mut spell).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spelled_text(line: &str) -> String {
        let spelled = spelled(line.split(' ').map(OsString::from));
        spelled.iter().map(|argument| argument.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_command_line_of_the_tools_is_understood() {
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
            assert_eq!(spelled_text(theirs), ours);
        }
    }

    #[test]
    fn per_cent_is_a_share() {
        assert_eq!(per_cent("12.5"), Ok(12.5));
        for wrong in ["-1", "100.1", "nan", "x", ""] {
            assert!(per_cent(wrong).is_err(), "{wrong}");
        }
    }
}
