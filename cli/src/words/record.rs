//! `heaptape record`: runs a program recorded.

use crate::live::Live;
use crate::{Outcome, library};
use clap::ValueEnum;
use heaptape_analyzer::text::{self, Style};
use heaptape_analyzer::{load, report};
use heaptape_formats::tape::Codec;
use heaptape_recorder::crash;
use heaptape_recorder::launch::{Finished, Launch, record, resume};
use heaptape_recorder::options::{self, LEVEL, Options, STACKS_CALLER, STACKS_FULL};
use heaptape_recorder::tree::remedy;
use std::ffi::OsString;
use std::path::PathBuf;

/// What a full ring does.
#[derive(Clone, Copy, ValueEnum)]
enum Overflow {
    /// The program waits for room: nothing is lost
    Wait,
    /// The program goes on: what found no room is counted
    Drop,
}

/// How much of the stack is recorded.
#[derive(Clone, Copy, ValueEnum)]
enum Stacks {
    /// Every frame
    Full,
    /// The caller alone
    None,
}

/// Options of `heaptape record`.
#[derive(clap::Args)]
#[command(
    after_help = "The exit status is the program's; 128+N when signal N ended it. HEAPTAPE_LOG=debug tells more."
)]
pub struct Args {
    /// Print no summary at the end
    #[arg(short, long)]
    quiet: bool,
    /// Folder of the recording [default: heaptape.PROG.PID]. With - only the trace (MTRC) is written, live, to standard output; what the program writes
    /// there goes to standard error
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// What a thread does when its ring is full
    #[arg(long, value_enum, default_value = "wait")]
    overflow: Overflow,
    /// Frames of each stack
    #[arg(long, value_enum, default_value = "full")]
    stacks: Stacks,
    /// Most frames of a stack
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=1024))]
    max_frames: u32,
    /// Record the stacks of frees too
    #[arg(long)]
    free_stacks: bool,
    /// Record one block in so many bytes (such as 512KiB) instead of every one
    #[arg(long, value_name = "BYTES", value_parser = size)]
    sample: Option<u64>,
    /// Memory between each thread and the recorder, a power of two
    #[arg(long, value_name = "SIZE", default_value = "1MiB", value_parser = ring)]
    ring: u64,
    /// How the files are stored: plain, lz4 or zstd, zstd with a level if wanted (zstd:3)
    #[arg(long, value_name = "CODEC", default_value = "zstd", value_parser = codec)]
    compress: (Codec, i32),
    /// Text to keep with the recording
    #[arg(long, value_name = "TEXT", default_value = "")]
    label: String,
    /// Record the program alone, not what it starts
    #[arg(long)]
    no_children: bool,
    /// Record these programs alone, by the names of their files; `*` stands for anything, commas separate. PROG itself always is
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,
    /// Leave these programs out
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    skip: Vec<String>,
    /// Stay until all recorded processes have ended, also those that outlive PROG
    #[arg(long)]
    wait: bool,
    /// Wait for the end of a recording whose `heaptape record` was killed, and sum it up
    #[arg(long, value_name = "DIR", conflicts_with = "command")]
    resume: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required_unless_present = "resume", trailing_var_arg = true, value_name = "PROG")]
    command: Vec<OsString>,
}

fn size(text: &str) -> Result<u64, String> {
    let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        _ => return Err(format!("`{unit}` is no unit; KiB, MiB and GiB are")),
    };
    let number: u64 = number.parse().map_err(|_| "a number belongs here, such as 512KiB".to_owned())?;
    number.checked_mul(1 << shift).ok_or_else(|| "too large".to_owned())
}

fn ring(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    let sound = bytes.is_power_of_two() && (4096..=1 << 30).contains(&bytes);
    sound.then_some(bytes).ok_or_else(|| "a power of two from 4KiB to 1GiB belongs here".to_owned())
}

fn codec(text: &str) -> Result<(Codec, i32), String> {
    match text.split_once(':').unwrap_or((text, "")) {
        ("plain", "") => Ok((Codec::Plain, 0)),
        ("lz4", "") => Ok((Codec::Lz4, 0)),
        ("zstd", "") => Ok((Codec::Zstd, LEVEL)),
        ("zstd", level) => match level.parse() {
            Ok(level @ -7..=19) => Ok((Codec::Zstd, level)),
            _ => Err("levels of zstd go from -7 to 19".to_owned()),
        },
        _ => Err("plain, lz4 or zstd[:LEVEL] belongs here".to_owned()),
    }
}

pub fn run(args: Args) -> anyhow::Result<Outcome> {
    log();
    if let Some(dir) = args.resume {
        let finished = resume(&dir).map_err(|error| anyhow::anyhow!("{}: {error}", dir.display()))?;
        finished.outcome.errors.iter().for_each(|error| eprintln!("heaptape: {error}"));
        finish(&finished, args.quiet);
        let is_whole = finished.outcome.errors.is_empty();
        return Ok(if is_whole { Outcome::Status(finished.status) } else { Outcome::Status(1) });
    }
    let live = args.output.as_ref().filter(|dir| dir.as_os_str() == "-").map(|_| Live::start()).transpose()?;
    let output = live.as_ref().map(Live::dir).or(args.output);
    let misplaced = misplaced(&args.command);
    let mut command = args.command.into_iter();
    let launch = Launch {
        program: command.next().unwrap_or_default(),
        arguments: command.collect(),
        dir: output,
        library: library::path()?,
        options: Options {
            overflow: match args.overflow {
                Overflow::Wait => options::Overflow::Wait,
                Overflow::Drop => options::Overflow::Drop,
            },
            stacks: match args.stacks {
                Stacks::Full => STACKS_FULL,
                Stacks::None => STACKS_CALLER,
            },
            max_frames: args.max_frames,
            free_stacks: args.free_stacks,
            sample_bytes: args.sample.unwrap_or(0),
            ring_bytes: args.ring,
            codec: args.compress.0,
            level: args.compress.1,
            label: args.label,
            children: !args.no_children,
            only: args.only,
            skip: args.skip,
            ..Options::default()
        },
        apart: true,
        wait: args.wait,
        symbols: Some(heaptape_analyzer::symbols::save),
    };
    let program = launch.program.to_string_lossy().into_owned();
    match record(launch) {
        Ok(finished) => {
            if let Some(why) = &finished.unrecorded {
                let remedy = remedy(why).map(|remedy| format!("; {remedy}")).unwrap_or_default();
                eprintln!("heaptape: {program} was not recorded: {why}{remedy}");
            }
            finished.outcome.errors.iter().for_each(|error| eprintln!("heaptape: {error}"));
            if let Some(options) = misplaced.filter(|_| finished.status != 0) {
                eprintln!("heaptape: {options} went to {program}; options of record come before the program");
            }
            match live {
                Some(live) => {
                    // The folder with the report goes away.
                    let report = crash::report_of(&finished.dir).and_then(|path| std::fs::read_to_string(path).ok());
                    let lines = report.iter().flat_map(|report| report.lines());
                    lines.for_each(|line| eprintln!("{}", text::clean(line)));
                    live.end();
                }
                None => finish(&finished, args.quiet),
            }
            if !args.quiet {
                still_running(&finished);
            }
            Ok(Outcome::Status(finished.status))
        }
        Err(refused) => {
            if let Some(bare) = &refused.bare {
                let why = "no further process may be started here (RLIMIT_NPROC, or the cgroup's pids.max)";
                eprintln!("heaptape: {program} runs unrecorded: {why}");
                eprintln!("heaptape: {program}: {}", bare.run());
                return Ok(Outcome::Status(126));
            }
            eprintln!("heaptape: {refused}");
            Ok(Outcome::Status(refused.status))
        }
    }
}

/// Names the functions in the profiles and prints the summary. Neither is a reason to fail: the recording is there.
fn finish(finished: &Finished, quiet: bool) {
    let recording = match load::open(&finished.dir) {
        Ok(recording) => [recording],
        Err(error) => return eprintln!("heaptape: {error}; the recording: {}", finished.dir.display()),
    };
    if let Err(error) = report::name_profile(&recording[0], report::PLAIN_LIMIT) {
        eprintln!("heaptape: the profile's functions could not be named: {error}");
    }
    if finished.outcome.recording.images.is_empty() && finished.outcome.errors.is_empty() {
        if !quiet {
            nothing_recorded(finished);
        }
        return;
    }
    if !quiet && let Err(error) = report::after_record(&recording, &mut std::io::stderr().lock(), Style::of_stderr()) {
        eprintln!("heaptape: {error}; the recording: {}", finished.dir.display());
    }
}

/// Says why there is nothing to ask, and what would help.
fn nothing_recorded(finished: &Finished) {
    eprintln!("nothing was recorded");
    let others = finished.outcome.recording.not_traced.iter();
    for process in others.filter(|process| finished.unrecorded.as_ref() != Some(&process.why)) {
        let name = process.exe.rsplit('/').next().unwrap_or_default();
        eprintln!("! {} (pid {}) was not recorded: {}", text::clean(name), process.pid, text::clean(&process.why));
    }
    eprintln!("the reasons are kept in {}", text::clean(&finished.dir.to_string_lossy()));
}

/// Names the processes that outlive the recording.
fn still_running(finished: &Finished) {
    const MOST: usize = 8;
    let running = &finished.outcome.still_running;
    if running.is_empty() {
        return;
    }
    let names = running.iter().take(MOST).map(|(pid, name)| format!("{} (pid {pid})", text::clean(name)));
    let mut names: Vec<String> = names.collect();
    if running.len() > MOST {
        names.push(format!("{} more", running.len() - MOST));
    }
    let names = names.join(", ");
    eprintln!("still running, and not recorded from here on: {names}   record --wait stays until they end");
}

/// Options of `record` among the arguments of the program, when nothing separates the two.
fn misplaced(command: &[OsString]) -> Option<String> {
    let words: Vec<OsString> = std::env::args_os().collect();
    let before = words.len().checked_sub(command.len() + 1)?;
    if words.get(before).is_some_and(|word| word == "--") {
        return None;
    }
    let table = <Args as clap::Args>::augment_args(clap::Command::new("record"));
    let is_ours = |word: &&str| {
        let long = |name: &str| table.get_arguments().any(|option| option.get_long() == Some(name));
        let short = |letter: char| table.get_arguments().any(|option| option.get_short() == Some(letter));
        match (word.strip_prefix("--"), word.strip_prefix('-')) {
            (Some(name), _) => long(name.split('=').next().unwrap_or(name)),
            (None, Some(letters)) => letters.chars().count() == 1 && letters.chars().all(short),
            _ => false,
        }
    };
    let found: Vec<&str> = command.iter().skip(1).filter_map(|word| word.to_str()).filter(is_ours).collect();
    (!found.is_empty()).then(|| found.join(" "))
}

/// The recorder's log: warnings, or what HEAPTAPE_LOG asks for.
fn log() {
    let level = std::env::var("HEAPTAPE_LOG").ok().and_then(|level| level.parse().ok()).unwrap_or(tracing::Level::WARN);
    let _ = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(Style::of_stderr().colour)
        .without_time()
        .with_target(false)
        .try_init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_codecs_are_read() {
        assert_eq!((size("0"), size("512KiB"), size("3m")), (Ok(0), Ok(512 << 10), Ok(3 << 20)));
        assert!(size("").is_err() && size("x").is_err() && size("1TB").is_err() && size("99999999999G").is_err());
        assert_eq!(ring("64KiB"), Ok(1 << 16));
        assert!(ring("65537").is_err() && ring("1k").is_err());
        assert_eq!((codec("plain"), codec("zstd:-3")), (Ok((Codec::Plain, 0)), Ok((Codec::Zstd, -3))));
        assert!(codec("zstd:99").is_err() && codec("gzip").is_err() && codec("lz4:2").is_err());
    }
}
