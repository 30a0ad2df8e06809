//! The options that all reports share, and the exit statuses of their results.

use super::{live, newest};
use crate::Outcome;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use heaptape_analyzer::ProcessFilter;
use heaptape_analyzer::event::{Bound, Range};
use heaptape_analyzer::report::{self, Error, Filter, GroupBy, Grouping, MappingFilter, Query, Scope, View};
use heaptape_analyzer::symbols::Origin;
use heaptape_analyzer::text::Style;
use heaptape_formats::quantity::{self, Size};
use heaptape_recorder::run::Question;
use std::io::Write;
use std::path::PathBuf;

/// Heading of the filters in the help.
pub(crate) const FILTERS: &str = "Filters";

/// Which recordings a report reads.
#[derive(clap::Args)]
pub(crate) struct Recordings {
    /// Recordings, folders of processes, or single files: MTRC, MPTL, tape, pprof, heaptrack, DHAT,
    /// Massif, heap profiles of jemalloc and gperftools [default: the newest recording in
    /// this folder]
    #[arg(value_name = "DIR|FILE")]
    paths: Vec<PathBuf>,
    /// Recordings of the processes that the daemon serves now: those of this name (* and ? are
    /// wildcards), pid or label. Also the pid or the folder of what `record` or `attach` records now.
    /// What is known is written first
    #[arg(long, value_name = "NAME|PID|LABEL", conflicts_with = "paths")]
    live: Option<String>,
    /// Control socket of the daemon, for --live
    #[arg(long, value_name = "PATH", requires = "live")]
    control: Option<PathBuf>,
}

impl Recordings {
    /// Returns the folders and files. With `--live`, the recorder or the daemon writes what it knows
    /// first.
    ///
    /// # Errors
    /// Nobody records such a process now, or there is no recording here.
    pub(crate) fn paths(self) -> anyhow::Result<Vec<PathBuf>> {
        match self.live {
            Some(which) => live::paths(&which, self.control, Question::Snapshot),
            None => newest::or_newest(self.paths),
        }
    }
}

/// Options of all reports.
#[derive(clap::Args)]
pub(crate) struct Common {
    #[command(flatten)]
    recordings: Recordings,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
    /// Start of the time range: a time since the start (1.5s, 300ms, 2m) or before the end (-1m), a
    /// share of the run (40%), the number of an event, or a mark of the program (mark:NAME)
    #[arg(long, value_name = "WHEN", allow_hyphen_values = true)]
    from: Option<Bound>,
    /// End of the time range, in the same forms
    #[arg(long, value_name = "WHEN", alias = "to", allow_hyphen_values = true)]
    until: Option<Bound>,
    /// The time range between two marks of the program: from the first one with this name to the
    /// next one with that name
    #[arg(long, value_names = ["MARK", "MARK"], num_args = 2, conflicts_with_all = ["from", "until"])]
    between: Vec<String>,
    #[command(flatten)]
    processes: ProcessArgs,
    #[command(flatten)]
    folding: Folding,
    #[command(flatten)]
    strict: Strict,
    /// Maximum number of rows in each table
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    /// Group call sites by stack, or by function, file, line or module of the innermost program
    /// frame
    #[arg(long, value_name = "WHAT", value_parser = by())]
    by: Option<GroupBy>,
    #[command(flatten)]
    names: Names,
    #[command(flatten, next_help_heading = FILTERS)]
    only: Only,
}

impl Common {
    /// With `--live`, makes the recorder or the daemon read which block holds which.
    ///
    /// # Errors
    /// When nobody records the process, or when it could not be read.
    pub(crate) fn read_references(&mut self) -> anyhow::Result<()> {
        let Recordings { paths, live, control } = &mut self.recordings;
        let Some(which) = live.take() else { return Ok(()) };
        *paths = live::paths(&which, control.take(), Question::References)?;
        Ok(())
    }

    /// Returns whether no recording is named.
    pub(crate) fn names_none(&self) -> bool {
        self.recordings.paths.is_empty() && self.recordings.live.is_none()
    }

    /// Reads this file instead of a recording.
    pub(crate) fn read_instead(&mut self, path: PathBuf) {
        self.recordings.paths = vec![path];
    }

    /// Checks that a function and the recordings are in this order on the command line.
    ///
    /// # Errors
    /// The name is a file, and a recording is none.
    pub(crate) fn ensure_function_first(&self, name: &str) -> anyhow::Result<()> {
        if self.recordings.paths.is_empty() && self.recordings.live.is_none() && std::path::Path::new(name).is_dir() {
            anyhow::bail!("{name} is a folder: the function comes first, as in 'main {name}'");
        }
        let missing = self.recordings.paths.iter().find(|path| !path.exists());
        if let Some(missing) = missing.filter(|_| std::path::Path::new(name).exists()) {
            anyhow::bail!(
                "{} is no recording: the function comes first, as in '{} {name}'",
                missing.display(),
                missing.display()
            );
        }
        Ok(())
    }
}

/// The core of a recorded process.
#[derive(clap::Args, Default)]
pub(crate) struct OfCore {
    /// The core file that a recorded process left: its memory says who holds what
    #[arg(long, value_name = "CORE", conflicts_with = "live")]
    core: Option<PathBuf>,
}

impl OfCore {
    /// Makes a question one about this core.
    ///
    /// # Errors
    /// It cannot be read.
    pub(crate) fn ask(self, query: &mut Query) -> anyhow::Result<()> {
        let path = match self.core {
            Some(path) => path,
            None => match core_beside_recordings(&query.scope.paths)? {
                Some(path) => path,
                None => return Ok(()),
            },
        };
        query.scope.paths.retain(|other| *other != path);
        Ok(report::ask_of_core(query, &path)?)
    }
}

/// Returns the core among some paths that has recordings beside it, as in `holds CORE DIR`: it is read
/// with what they say of its process.
fn core_beside_recordings(paths: &[PathBuf]) -> anyhow::Result<Option<PathBuf>> {
    let is_core = |path: &&PathBuf| path.is_file() && heaptape_analyzer::is_core(path);
    if !paths.iter().any(|path| heaptape_analyzer::is_recording(path)) {
        return Ok(None);
    }
    let mut cores = paths.iter().filter(is_core);
    match (cores.next(), cores.next()) {
        (Some(core), Some(_)) => {
            let core = core.display();
            anyhow::bail!("several cores beside a recording: give one at a time, as in '{core} DIR'")
        }
        (core, _) => Ok(core.cloned()),
    }
}

/// Options that select processes of a recording.
#[derive(clap::Args, Clone, Default)]
pub(crate) struct ProcessArgs {
    /// Only this process: its pid, or its folder in the recording (PID.NAME) if one pid ran several
    /// programs
    #[arg(long, value_name = "PID|FOLDER")]
    process: Option<String>,
    /// Only processes of this program (* and ? are wildcards)
    #[arg(long, value_name = "NAME")]
    program: Option<String>,
}

impl ProcessArgs {
    /// Returns the selection in the form that the analyzer takes.
    pub(crate) fn processes(&self) -> ProcessFilter {
        let (process, program) = (self.process.clone(), self.program.clone());
        ProcessFilter { process, program, ..ProcessFilter::default() }
    }
}

/// Option for recordings with many short-lived processes.
#[derive(clap::Args, Clone, Copy, Default)]
pub(crate) struct Folding {
    /// List short-lived processes separately instead of summing them up
    #[arg(long)]
    all_processes: bool,
}

impl Folding {
    /// Returns the selection of processes with this option applied.
    pub(crate) fn of(self, processes: &ProcessArgs) -> ProcessFilter {
        ProcessFilter { all: self.all_processes, ..processes.processes() }
    }
}

/// Option for incomplete recordings.
#[derive(clap::Args, Clone, Copy, Default)]
pub(crate) struct Strict {
    /// Exit with status 3 when the recording is incomplete, instead of a warning only
    #[arg(long)]
    pub strict: bool,
}

/// Options for symbols and allocator wrappers.
#[derive(clap::Args, Default)]
pub(crate) struct Names {
    /// An allocator wrapper: a function, or the file name of a module. Its caller is reported
    /// instead. * and ? are wildcards; may be repeated. HEAPTAPE_WRAPPERS has more, separated by ;
    #[arg(long, value_name = "NAME")]
    wrapper: Vec<String>,
    /// Folder to search for programs and debug files first, as if it were /
    #[arg(long, value_name = "DIR")]
    sysroot: Option<PathBuf>,
    /// Fetch missing debug information from the servers in DEBUGINFOD_URLS, with elfutils'
    /// debuginfod-find
    #[arg(long)]
    debuginfod: bool,
    /// Print names in full, however long
    #[arg(long)]
    full_names: bool,
}

impl Names {
    /// Returns the options in the form that the analyzer takes.
    pub(crate) fn origin(&self) -> Origin {
        let wrappers = wrappers(&self.wrapper);
        let sysroot = self.sysroot.as_deref().map(Into::into);
        Origin { sysroot, debuginfod: self.debuginfod, wrappers, full_names: self.full_names, ..Origin::default() }
    }
}

/// Returns the wrappers that the user names, by option and in HEAPTAPE_WRAPPERS.
pub(crate) fn wrappers(named: &[String]) -> Vec<String> {
    let more = std::env::var("HEAPTAPE_WRAPPERS").unwrap_or_default();
    let more = more.split(';').map(str::trim).filter(|name| !name.is_empty()).map(str::to_string);
    named.iter().cloned().chain(more).collect()
}

/// Parses a number of frames: a number from 1, or `all`.
pub(crate) fn frames(text: &str) -> Result<usize, String> {
    match text {
        "all" => Ok(usize::MAX),
        number => number
            .parse()
            .ok()
            .filter(|&number| number > 0)
            .ok_or_else(|| format!("'{text}' is neither a number nor 'all'")),
    }
}

/// Filters of blocks. All options must match; of several values of one option, one must.
#[derive(clap::Args, Default)]
pub(crate) struct Only {
    /// Only blocks of at least this size
    #[arg(long, value_name = "SIZE")]
    min_size: Option<Size>,
    /// Only blocks of at most this size
    #[arg(long, value_name = "SIZE")]
    max_size: Option<Size>,
    /// Only blocks that lived for at least this time (1.5s, 300ms; a number of events in files
    /// without times)
    #[arg(long, value_name = "TIME", value_parser = age)]
    min_age: Option<u64>,
    /// Only blocks that lived for at most this time
    #[arg(long, value_name = "TIME", value_parser = age)]
    max_age: Option<u64>,
    /// Only blocks that this thread allocated: its number, its tid, or its name (* and ? are
    /// wildcards)
    #[arg(long, value_name = "THREAD", value_delimiter = ',')]
    thread: Vec<String>,
    /// Only blocks allocated in modules whose path contains this (* is a wildcard, ^ and $ anchor
    /// it)
    #[arg(long, value_name = "PATTERN")]
    module: Vec<String>,
    /// Only blocks with a function in their stack whose name contains this, with the same
    /// wildcards; also as reports print it (Cache<…>::get)
    #[arg(long, value_name = "PATTERN")]
    function: Vec<String>,
    /// Only blocks that were allocated while the thread had this label, which programs set with
    /// heaptape.h (* and ? are wildcards)
    #[arg(long, value_name = "LABEL")]
    label: Vec<String>,
    /// Only blocks of this allocator, as report lists them: malloc, an allocator inside the
    /// program, or a heap that the program names with heaptape.h (* and ? are wildcards)
    #[arg(long, value_name = "NAME")]
    allocator: Vec<String>,
}

fn by() -> impl TypedValueParser<Value = GroupBy> {
    PossibleValuesParser::new(GroupBy::NAMES.iter().map(|(name, _)| *name)).try_map(|name| {
        let found = GroupBy::NAMES.iter().find(|(known, _)| *known == name).map(|(_, by)| *by);
        found.ok_or("unknown")
    })
}

fn age(text: &str) -> Result<u64, String> {
    match text.parse::<Bound>() {
        Ok(Bound::Time(value) | Bound::Number(value)) => Ok(value),
        _ => Err(format!("{}, or a number of events", quantity::Error::NotATime)),
    }
}

impl Common {
    /// Returns the value of `--top`.
    pub(crate) fn top(&self) -> Option<usize> {
        self.top
    }

    /// Returns whether an incomplete recording has an exit status of its own.
    pub(crate) fn strict(&self) -> bool {
        self.strict.strict
    }

    /// Prints a report with these options. `rows` is the default of `--top`.
    pub(crate) fn print(
        self,
        rows: usize,
        report: impl FnOnce(&Query, &mut dyn Write, Style) -> Result<report::Outcome, Error>,
    ) -> anyhow::Result<Outcome> {
        let strict = self.strict();
        let query = self.query(rows)?;
        print(strict, |out, style| report(&query, out, style))
    }

    /// Returns the options in the form that the analyzer takes. `rows` is the default of `--top`.
    ///
    /// # Errors
    /// With `--live`, when no daemon answers, or it serves no such process.
    pub(crate) fn query(self, rows: usize) -> anyhow::Result<Query> {
        let Common { recordings, json, from, until, between, processes, folding, strict: _, top, by, names, only } =
            self;
        let mut marks = between.into_iter().map(Bound::Mark);
        let (from, to) = (marks.next().or(from), marks.next().or(until));
        let scope = Scope {
            paths: recordings.paths()?,
            processes: folding.of(&processes),
            range: Range { from, to },
            filter: only.filter(),
            mappings: MappingFilter::All,
            core: None,
        };
        let view = View { json, top: top.unwrap_or(rows), origin: names.origin() };
        Ok(Query { scope, grouping: Grouping(by), view })
    }
}

impl Only {
    /// Returns the filters in the form that the analyzer takes.
    pub(crate) fn filter(self) -> Filter {
        let Only { min_size, max_size, min_age, max_age, thread, module, function, label, allocator } = self;
        let [min_size, max_size] = [min_size, max_size].map(|size| size.map(|Size(bytes)| bytes));
        Filter {
            min_size,
            max_size,
            min_age,
            max_age,
            threads: thread,
            modules: module,
            functions: function,
            labels: label,
            allocators: allocator,
        }
    }
}

/// Prints a report on standard output, and returns how the command ends.
pub(crate) fn print(
    strict: bool,
    run: impl FnOnce(&mut dyn Write, Style) -> Result<report::Outcome, Error>,
) -> anyhow::Result<Outcome> {
    let style = Style::of_stdout();
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let outcome = run(&mut out, style).map_err(|error| match error {
        // Without context, so that a closed pipe is recognized.
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
