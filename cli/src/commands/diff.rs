//! `heaptape diff`: compares two runs, builds, points in time or processes.

use super::common::{Names, Only, Strict, print};
use super::leaks::Suppress;
use super::thresholds::Thresholds;
use super::{newest, since};
use crate::Outcome;
use anyhow::bail;
use clap::ValueEnum;
use heaptape_analyzer::ProcessFilter;
use heaptape_analyzer::event::Bound;
use heaptape_analyzer::report::diff::{self, DiffInput, Normalization, Options, Order};
use heaptape_analyzer::report::{Filter, Query, Scope, View};
use heaptape_reports::threshold::DiffRequest;
use std::path::{Path, PathBuf};

/// Order of the changes.
#[derive(Clone, Copy, ValueEnum)]
enum Sort {
    /// Greatest change in live bytes first
    Live,
    /// Greatest change in allocated bytes first
    #[value(alias = "size")]
    Allocated,
    /// Greatest change in the number of allocations first
    Allocs,
    /// Greatest change relative to both sides first: |b - a| / (a + b)
    #[value(alias = "range")]
    Relative,
}

/// How the two sides are made comparable.
#[derive(Clone, Copy, ValueEnum)]
enum Normalise {
    /// B is scaled to the length of A's run
    Time,
    /// B is scaled to the number of A's allocations
    Events,
}

/// Options of `heaptape diff`.
#[derive(clap::Args)]
#[command(after_help = "Two points in time of one recording: heaptape diff --from 40% --until 90% DIR. \
    Two processes of one: heaptape diff --process-a 4711 --process-b 4712 DIR DIR.")]
pub(crate) struct Args {
    /// Old run: a recording, the folder of a process, or a file of any format that can be read;
    /// with --since the name, pid or label of a program that the daemon serves [default: the two
    /// newest recordings in this folder]
    #[arg(value_name = "A")]
    a: Option<PathBuf>,
    /// New run; without it, two points in time of A are compared
    #[arg(value_name = "B")]
    b: Option<PathBuf>,
    /// Compare a program that the daemon serves with its state at a time (24h ago), or at a mark of
    /// `heaptape daemon mark`
    #[arg(long, value_name = "TIME|MARK", conflicts_with_all = ["b", "from", "process_a", "process_b", "program", "program_a", "program_b"])]
    since: Option<String>,
    /// Control socket of the daemon, for --since
    #[arg(hide_short_help = true, long, value_name = "PATH", requires = "since")]
    control: Option<PathBuf>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
    /// With one run: the old point in time
    #[arg(long, value_name = "WHEN", allow_hyphen_values = true, conflicts_with = "b")]
    from: Option<Bound>,
    /// With one run: the new point in time [default: the end]
    #[arg(
        long,
        value_name = "WHEN",
        allow_hyphen_values = true,
        conflicts_with = "b",
        alias = "to",
        requires = "from"
    )]
    until: Option<Bound>,
    /// State of A at this point in time
    #[arg(hide_short_help = true, long, value_name = "WHEN", allow_hyphen_values = true, requires = "b")]
    at_a: Option<Bound>,
    /// State of B at this point in time
    #[arg(hide_short_help = true, long, value_name = "WHEN", allow_hyphen_values = true, requires = "b")]
    at_b: Option<Bound>,
    /// Only this process of A: its pid, or its folder
    #[arg(hide_short_help = true, long, value_name = "PID|FOLDER")]
    process_a: Option<String>,
    /// Only this process of B
    #[arg(hide_short_help = true, long, value_name = "PID|FOLDER")]
    process_b: Option<String>,
    /// Only processes of this program (* and ? are wildcards)
    #[arg(long, value_name = "NAME", conflicts_with_all = ["program_a", "program_b"])]
    program: Option<String>,
    /// Only processes of this program in A
    #[arg(hide_short_help = true, long, value_name = "NAME")]
    program_a: Option<String>,
    /// Only processes of this program in B
    #[arg(hide_short_help = true, long, value_name = "NAME")]
    program_b: Option<String>,
    #[command(flatten)]
    strict: Strict,
    /// Another run of A: differences between runs of A are noise; may be repeated
    #[arg(hide_short_help = true, long, value_name = "DIR|FILE")]
    again_a: Vec<PathBuf>,
    /// Another run of B
    #[arg(hide_short_help = true, long, value_name = "DIR|FILE")]
    again_b: Vec<PathBuf>,
    /// Match call sites by the names of the N innermost program frames
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=512))]
    depth: u16,
    /// Scale B to make the sides comparable
    #[arg(hide_short_help = true, long, value_name = "BY", value_enum, conflicts_with = "per")]
    normalise: Option<Normalise>,
    /// Divide each side by its units of work: --per 1000,1500 for the requests of A and B; one
    /// number is for both
    #[arg(hide_short_help = true, long, value_name = "N", value_delimiter = ',', num_args = 1)]
    per: Vec<f64>,
    /// Ignore changes of a call site below this percentage of the site
    #[arg(hide_short_help = true, long, value_name = "PERCENT", default_value_t = 1.0)]
    noise: f64,
    /// Ignore changes below this percentage of the total
    #[arg(hide_short_help = true, long, value_name = "PERCENT", default_value_t = 0.1)]
    min_share: f64,
    /// Order of the changes
    #[arg(long, value_enum, default_value = "live")]
    sort: Sort,
    /// Maximum number of rows
    #[arg(long, value_name = "N")]
    top: Option<usize>,
    #[command(flatten)]
    names: Names,
    #[command(flatten)]
    only: Only,
    #[command(flatten)]
    suppress: Suppress,
    #[command(flatten)]
    thresholds: Thresholds,
}

/// Returns the runs of one side.
fn runs(
    first: &Path,
    again: &[PathBuf],
    processes: &ProcessFilter,
    until: Option<Bound>,
    filter: &Filter,
) -> Vec<DiffInput> {
    let paths = std::iter::once(first).chain(again.iter().map(PathBuf::as_path));
    let side = |path: &Path| DiffInput {
        path: path.into(),
        earlier: Vec::new(),
        processes: processes.clone(),
        until: until.clone(),
        filter: filter.clone(),
    };
    paths.map(side).collect()
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    let (mut at_a, mut at_b) = (args.at_a, args.at_b);
    let (named, b) = match (args.a, args.b, &args.since) {
        (Some(a), b, _) => (a, b),
        (None, _, Some(_)) => bail!("--since compares a program that the daemon serves: name it"),
        (None, _, None) if args.from.is_some() => (newest::or_newest(Vec::new())?.remove(0), None),
        (None, ..) => newest::two().map(|(a, b)| (a, Some(b)))?,
    };
    let sides = match &args.since {
        Some(since) => Some(since::find(&named.to_string_lossy(), since, args.control)?),
        None => None,
    };
    let within_one = b.is_none() && sides.is_none();
    let b = match (&sides, b) {
        (Some(sides), _) => sides.new.clone(),
        (None, Some(b)) => b,
        (None, None) if args.from.is_some() => {
            (at_a, at_b) = (args.from, args.until);
            named.clone()
        }
        (None, None) => bail!("only one run: name another one, or two points in time of it (--from, --until)"),
    };
    let normalization = match (args.normalise, &args.per[..]) {
        (Some(Normalise::Time), _) => Normalization::Time,
        (Some(Normalise::Events), _) => Normalization::Events,
        (None, []) => Normalization::None,
        (None, &[both]) => Normalization::Per(both, both),
        (None, &[a, b, ..]) => Normalization::Per(a, b),
    };
    if let Normalization::Per(a, b) = normalization
        && !(a > 0.0 && b > 0.0 && a.is_finite() && b.is_finite())
    {
        bail!("--per must be positive numbers");
    }
    let options = Options {
        depth: args.depth.into(),
        normalization,
        order: match args.sort {
            Sort::Live => Order::Live,
            Sort::Allocated => Order::Allocated,
            Sort::Allocs => Order::Allocs,
            Sort::Relative => Order::Relative,
        },
        within_one,
        noise: args.noise / 100.0,
        min_share: args.min_share / 100.0,
        top: args.top,
        json: args.json,
        origin: args.names.origin(),
    };
    let filter = args.only.filter();
    let of = |process: Option<String>, program: Option<String>| {
        let program = program.or_else(|| args.program.clone());
        ProcessFilter { process, program, ..ProcessFilter::default() }
    };
    let (mut of_a, mut of_b) = (of(args.process_a, args.program_a), of(args.process_b, args.program_b));
    let mut a = named;
    let mut earlier = None;
    if let Some(sides) = sides {
        earlier = Some((sides.before_old, sides.before_new));
        (a, of_a, of_b) = (sides.old, sides.processes.clone(), sides.processes);
    }
    let mut old = runs(&a, &args.again_a, &of_a, at_a, &filter);
    let mut new = runs(&b, &args.again_b, &of_b, at_b, &filter);
    if let ([old, ..], [new, ..], Some((of_old, of_new))) = (&mut old[..], &mut new[..], earlier) {
        (old.earlier, new.earlier) = (of_old, of_new);
    }
    if args.thresholds.is_given() {
        let scope = Scope { paths: vec![b], processes: of_b, filter, ..Scope::default() };
        let view = View { json: args.json, origin: options.origin.clone(), ..View::default() };
        let query = Query { scope, view, ..Query::default() };
        let against = DiffRequest { a: old, b: new, options };
        return args.thresholds.check(&query, Some(&against), &args.suppress.options(), args.strict.strict);
    }
    print(args.strict.strict, |out, style| diff::run(&old, &new, &options, out, style))
}
