//! The options that all questions about a recording share, and how their answers become exit statuses.

use crate::Outcome;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use heaptape_analyzer::event::{Bound, Range};
use heaptape_analyzer::processes::Processes;
use heaptape_analyzer::report::{self, Asked, By, Error, Filter};
use heaptape_analyzer::symbols::Origin;
use heaptape_analyzer::text::Style;
use std::io::Write;
use std::path::PathBuf;

/// What is asked of which recordings.
#[derive(clap::Args)]
pub struct Common {
    /// Recordings, folders of images, or single files: MTRC, MPTL, tape, pprof, heaptrack, DHAT, Massif
    #[arg(required = true, value_name = "DIR|FILE")]
    paths: Vec<PathBuf>,
    /// JSON instead of text
    #[arg(long)]
    json: bool,
    /// Start of the time range: a time after the start (1.5s, 300ms, 2m), a share of the run (40%) or an event's number
    #[arg(long, value_name = "WHEN")]
    from: Option<Bound>,
    /// End of the time range, likewise
    #[arg(long, value_name = "WHEN", alias = "to")]
    until: Option<Bound>,
    #[command(flatten)]
    processes: ProcessArgs,
    #[command(flatten)]
    folding: Folding,
    #[command(flatten)]
    strict: Strict,
    /// Rows of each table
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// Tell stacks together by: stack, function, file, line or module of the innermost frame of the program
    #[arg(long, value_name = "WHAT", value_parser = by())]
    by: Option<By>,
    #[command(flatten)]
    names: Names,
    #[command(flatten, next_help_heading = "Only some blocks")]
    only: Only,
}

/// Which processes of a recording.
#[derive(clap::Args, Clone, Default)]
pub struct ProcessArgs {
    /// Only this process: its pid, or its folder in the recording (PID.NAME), which tells programs of one pid apart
    #[arg(long, value_name = "PID|FOLDER")]
    process: Option<String>,
    /// Only processes of this program (* and ? fit anything)
    #[arg(long, value_name = "NAME")]
    program: Option<String>,
}

impl ProcessArgs {
    /// For the library.
    pub fn processes(&self) -> Processes {
        Processes { process: self.process.clone(), program: self.program.clone(), all: false }
    }
}

/// Whether short-lived processes are summed up.
#[derive(clap::Args, Clone, Copy, Default)]
pub struct Folding {
    /// List short-lived processes one by one, too
    #[arg(long)]
    all_processes: bool,
}

impl Folding {
    /// For the library.
    pub fn of(self, processes: &ProcessArgs) -> Processes {
        Processes { all: self.all_processes, ..processes.processes() }
    }
}

/// Whether an incomplete recording is enough.
#[derive(clap::Args, Clone, Copy, Default)]
pub struct Strict {
    /// Exit with status 3 when the recording is incomplete, and not only warn
    #[arg(long)]
    pub strict: bool,
}

/// How frames are named, and which are passed over.
#[derive(clap::Args, Default)]
pub struct Names {
    /// A function, or a module's file name, that only passes memory on: the caller is blamed instead. * and ? stand for others;
    /// may be given again. HEAPTAPE_WRAPPERS holds more, separated by ;
    #[arg(long, value_name = "NAME")]
    wrapper: Vec<String>,
    /// A folder that stands for / where programs and debug files are looked for first
    #[arg(long, value_name = "DIR")]
    sysroot: Option<PathBuf>,
    /// Ask the servers of DEBUGINFOD_URLS for missing debug information, by elfutils' debuginfod-find
    #[arg(long)]
    debuginfod: bool,
}

impl Names {
    /// For the library.
    pub fn origin(&self) -> Origin {
        let wrappers = wrappers(&self.wrapper);
        let sysroot = self.sysroot.as_deref().map(Into::into);
        Origin { sysroot, debuginfod: self.debuginfod, wrappers, ..Origin::default() }
    }
}

/// The wrappers that a user names: by option, and in HEAPTAPE_WRAPPERS.
pub fn wrappers(named: &[String]) -> Vec<String> {
    let more = std::env::var("HEAPTAPE_WRAPPERS").unwrap_or_default();
    let more = more.split(';').map(str::trim).filter(|name| !name.is_empty()).map(str::to_string);
    named.iter().cloned().chain(more).collect()
}

/// How many frames of a stack text shows: a number from 1 on, or `all`.
pub fn frames(text: &str) -> Result<usize, String> {
    match text {
        "all" => Ok(usize::MAX),
        number => number
            .parse()
            .ok()
            .filter(|&number| number > 0)
            .ok_or_else(|| format!("'{text}' is neither a number nor 'all'")),
    }
}

/// Which blocks; all conditions must hold, of several values of one option one.
#[derive(clap::Args, Default)]
pub struct Only {
    /// Only blocks of at least so many bytes
    #[arg(long, value_name = "BYTES", value_parser = size)]
    min_size: Option<u64>,
    /// Only blocks of at most so many bytes
    #[arg(long, value_name = "BYTES", value_parser = size)]
    max_size: Option<u64>,
    /// Only blocks that lived at least so long (1.5s, 300ms; a number is of events, in files without times)
    #[arg(long, value_name = "TIME", value_parser = age)]
    min_age: Option<u64>,
    /// Only blocks that lived at most so long
    #[arg(long, value_name = "TIME", value_parser = age)]
    max_age: Option<u64>,
    /// Only blocks of this thread: its number, the kernel's id, or its name (* and ? stand for others)
    #[arg(long, value_name = "THREAD", value_delimiter = ',')]
    thread: Vec<String>,
    /// Only blocks allocated in modules whose path has this in it (* for anything, ^ and $ hold it to start and end)
    #[arg(long, value_name = "PATTERN")]
    module: Vec<String>,
    /// Only blocks whose stack passes through a function with this in its name, likewise; also as reports print it (Cache<…>::get)
    #[arg(long, value_name = "PATTERN")]
    function: Vec<String>,
}

fn by() -> impl TypedValueParser<Value = By> {
    PossibleValuesParser::new(By::NAMES.iter().map(|(name, _)| *name)).try_map(|name| {
        let found = By::NAMES.iter().find(|(known, _)| *known == name).map(|(_, by)| *by);
        found.ok_or("unknown")
    })
}

/// Bytes, with a binary unit if wanted.
pub fn size(text: &str) -> Result<u64, String> {
    report::gate::bytes(text).ok_or_else(|| format!("'{text}' is no number of bytes (4096, 64KiB, 1.5MiB)"))
}

fn age(text: &str) -> Result<u64, String> {
    match text.parse::<Bound>() {
        Ok(Bound::Time(value) | Bound::Number(value)) => Ok(value),
        _ => Err(format!("'{text}' is no time (1.5s, 300ms, 2m, 1h)")),
    }
}

impl Common {
    /// How many rows were asked for.
    pub fn top(&self) -> Option<usize> {
        self.top
    }

    /// Whether an incomplete recording is not enough.
    pub fn strict(&self) -> bool {
        self.strict.strict
    }

    /// The question, with so many rows unless others were asked for.
    pub fn asked(self, rows: usize) -> Asked {
        let Common { paths, json, from, until, processes, folding, strict: _, top, by, names, only } = self;
        let (range, origin) = (Range { from, to: until }, names.origin());
        let processes = folding.of(&processes);
        Asked { paths, json, range, top: top.unwrap_or(rows), processes, filter: only.filter(), by, origin }
    }
}

impl Only {
    /// For the library.
    pub fn filter(self) -> Filter {
        let Only { min_size, max_size, min_age, max_age, thread, module, function } = self;
        Filter { min_size, max_size, min_age, max_age, threads: thread, modules: module, functions: function }
    }
}

/// Runs a report on stdout.
pub fn print(
    strict: bool,
    run: impl FnOnce(&mut dyn Write, Style) -> Result<report::Outcome, Error>,
) -> anyhow::Result<Outcome> {
    let style = Style::of_stdout();
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let outcome = run(&mut out, style).map_err(|error| match error {
        // Bare, so that a reader who stops reading is recognised.
        Error::Io(error) => anyhow::Error::new(error),
        error => anyhow::Error::new(error),
    })?;
    out.flush()?;
    Ok(match outcome {
        report::Outcome::Complete => Outcome::Done,
        report::Outcome::Incomplete => Outcome::Incomplete { strict },
        report::Outcome::NoAnswer => {
            eprintln!("heaptape: nothing was recorded");
            Outcome::NoAnswer
        }
    })
}
