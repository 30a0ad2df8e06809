//! `--format html`: one self-contained page with style, script and data. It needs no network and
//! can be mailed.
//!
//! ```text
//! processes ─gather─> rows, cells, time lines, leaks ─pack─> JSON and packed columns ─page─> file
//! ```
//!
//! Data of a recording is in the page as JSON or packed, never as markup, and the script shows it
//! as text only. The policy of the page forbids all network access, and every script but its own.

mod data;
mod gather;
mod held;
mod names;
mod pack;
mod read;
mod rows;
mod source;
#[cfg(test)]
mod tests;

pub use read::{Held, read};

use super::{Error, Exporter, Needs, Out, Shape, Source, Totals};
use crate::event::Range;
use crate::export::Impossible;
use crate::load::{Process, Recording};
use crate::missing::{self, Missing};
use crate::model::verdict::Verdict;
use crate::report::summary::Numbers;
use data::Page;
use gather::{Gathered, command, gather};
use names::Names;
use pack::Columns;
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};
use std::path::PathBuf;

/// The frame of the page; `{{…}}` are placeholders for its content.
const FRAME: &str = include_str!("html/page.html");
const STYLE: &str = include_str!("html/style.css");

/// The files of the script, in their order in the page. They share one scope.
#[rustfmt::skip]
const SCRIPTS: &[&str] = &[
    include_str!("html/data.js"),
    include_str!("html/format.js"),
    include_str!("html/state.js"),
    include_str!("html/canvas.js"),
    include_str!("html/header.js"),
    include_str!("html/findings.js"),
    include_str!("html/stacked.js"),
    include_str!("html/timeline.js"),
    include_str!("html/tree.js"),
    include_str!("html/flame.js"),
    include_str!("html/topdown.js"),
    include_str!("html/callers.js"),
    include_str!("html/table.js"),
    include_str!("html/leaks.js"),
    include_str!("html/holders.js"),
    include_str!("html/histograms.js"),
    include_str!("html/processes.js"),
    include_str!("html/keys.js"),
    include_str!("html/main.js"),
];

/// Maximum number of processes that are listed as not recorded.
const NOT_TRACED: usize = 50;

/// The exporter of HTML pages.
#[derive(Debug)]
pub struct Export;

impl Exporter for Export {
    fn name(&self) -> &'static str {
        "html"
    }

    fn extension(&self) -> &'static str {
        "html"
    }

    fn summary(&self) -> &'static str {
        "one page to look at: time line, flame graph, sites, leaks; of two recordings, what changed"
    }

    fn needs(&self) -> Needs {
        Needs { events: false, shape: Shape::One }
    }

    fn write(&self, source: &mut Source<'_>, out: &mut Out) -> Result<(), Error> {
        let (page, packed) = page(source)?;
        let folded: u64 = page.processes.iter().map(|process| process.folded).sum();
        if folded > 0 {
            out.note(format!(
                "{folded} small stacks are shown as one with others of their callers: a page has room for {}",
                rows::STACKS
            ));
        }
        let mut stream = out.stream()?;
        stream.put(&written(&page, &packed)?)?;
        stream.finish()
    }

    fn totals(&self, source: &mut Source<'_>) -> Result<Totals, Error> {
        let mut totals = Totals::default();
        for process in source.processes.clone() {
            for row in &source.sums(process).sites {
                totals.add("alloc-count", row.allocs.into());
                totals.add("alloc-bytes", row.bytes.into());
                totals.add("free-count", row.frees.into());
                totals.add("free-bytes", row.freed_bytes.into());
                totals.add("peak-bytes", row.peak_bytes.into());
            }
        }
        Ok(totals)
    }

    fn held(&self, _: &Source<'_>, files: &[PathBuf]) -> Result<Totals, Error> {
        let mut totals = Totals::default();
        for path in files {
            let name = path.display().to_string();
            let file = std::fs::read_to_string(path).map_err(|error| Error::Write(name.clone(), error))?;
            let held = read(&file).ok_or(Impossible::NotAPage(name))?;
            for (column, sum) in SUMS {
                let values = held.columns.get(column).into_iter().flatten();
                totals.add(sum, values.map(|&value| u128::from(value)).sum());
            }
        }
        Ok(totals)
    }
}

/// Columns of rows, and the names of the sums that they make.
const SUMS: [(&str, &str); 5] = [
    ("row.allocs", "alloc-count"),
    ("row.bytes", "alloc-bytes"),
    ("row.frees", "free-count"),
    ("row.freed_bytes", "free-bytes"),
    ("row.peak_bytes", "peak-bytes"),
];

/// The packed strings and columns.
struct Packed {
    strings: String,
    columns: String,
}

fn page(source: &mut Source<'_>) -> Result<(Page, Packed), Error> {
    let recordings = source.recordings;
    if recordings.len() > 2 {
        return Err(Impossible::TooManyRecordings.into());
    }
    let range: Range = source.range();
    let selected = source.processes.clone();
    let gathered = gather(recordings, &selected, &range, &mut source.symbols, &source.progress);
    let Gathered { axis, mut processes, mut parts, lines, mut leaks, verdicts, .. } = gathered;
    let Gathered { grown_bytes, more_leaks, kept, missing, headline, .. } = gathered;
    source.found(&missing);
    let (mut names, mut columns) = (Names::default(), Columns::default());
    let symbols = &mut source.symbols;
    let mut known: Vec<FxHashMap<u32, u32>> = vec![FxHashMap::default(); selected.len()];
    let mut node_of = |names: &mut Names, process: usize, site: u32| {
        names.stack(symbols, selected[process].stacks(), site, &mut known[process])
    };
    for leak in &mut leaks {
        let stack = node_of(&mut names, leak.process, leak.site);
        leak.node = stack.unwrap_or_else(|| names.smaller(0));
    }
    rows::put(&mut parts, &mut names, node_of, &mut columns);
    names.put(&mut columns);
    let points = || lines.iter().flatten();
    columns.put("line.points", lines.iter().map(|line| line.len() as u64));
    columns.put("line.live_bytes", points().map(|point| point.live_bytes));
    columns.put("line.most_bytes", points().map(|point| point.peak_bytes));
    columns.put("line.live_blocks", points().map(|point| point.live_blocks));
    columns.put("line.allocs", points().map(|point| point.allocs));
    parts.iter().for_each(|part| processes[part.process].folded += part.folded);
    let sources = match source.options.with_source {
        true => source::read(&names, symbols.sysroot(), started(&selected)),
        false => BTreeMap::new(),
    };
    let about = (0..).zip(recordings).map(|(number, recording)| about(number, recording, &processes)).collect();
    let page = Page {
        version: data::VERSION,
        heaptape: env!("CARGO_PKG_VERSION"),
        axis,
        recordings: about,
        processes,
        headline: headline.map(|headline| headline.lines(symbols)).unwrap_or_default(),
        leaks,
        verdicts: sorted(verdicts),
        grown_bytes,
        more_leaks,
        kept,
        sources,
        notes: symbols.notes().into_iter().take(10).collect(),
        columns: std::mem::take(&mut columns.index),
    };
    Ok((page, Packed { strings: names.strings().map_err(unwritten)?, columns: columns.packed() }))
}

/// Returns when the first of the processes started, in nanoseconds since 1970.
fn started(processes: &[&Process]) -> u64 {
    processes.iter().map(|process| process.about.started_unix_ns).min().unwrap_or(0).max(1)
}

/// Returns the sums by verdict, worst first.
fn sorted(sums: Vec<(Verdict, data::VerdictSum)>) -> Vec<data::VerdictSum> {
    let of = |verdict: &Verdict| sums.iter().find(|(known, _)| known == verdict).map(|(_, sum)| sum.clone());
    Verdict::WORST_FIRST.iter().filter_map(of).collect()
}

fn about(number: usize, recording: &Recording, processes: &[data::PageProcess]) -> data::About {
    let mut totals = Numbers::default();
    let own = || processes.iter().filter(|process| process.recording == number);
    own().for_each(|process| totals.add(&process.summary.numbers));
    let known = recording.about.clone().unwrap_or_default();
    let started = match known.started_unix_ns {
        0 => recording.processes.iter().map(|process| process.clock.start_unix_ns).filter(|&at| at > 0).min(),
        at => Some(at),
    };
    let name = recording.path.file_name().map(|name| name.to_string_lossy().into_owned());
    let mut not_traced = known.not_traced;
    let more_not_traced = not_traced.len().saturating_sub(NOT_TRACED);
    not_traced.truncate(NOT_TRACED);
    data::About {
        path: name.unwrap_or_else(|| recording.path.display().to_string()),
        command: match known.command.is_empty() {
            true => own().next().map(|process| process.command.clone()).unwrap_or_default(),
            false => command(&known.command),
        },
        cwd: known.cwd,
        host: known.host,
        heaptape: known.heaptape,
        started_ms: started.map(|at| at as f64 / 1e6),
        ended_ms: known.ended_unix_ns.map(|at| at as f64 / 1e6),
        totals,
        missing: missing::lines(&recording.missing),
        lost_is_exact: !recording.missing.iter().any(Missing::hides_more),
        not_traced,
        more_not_traced,
    }
}

fn unwritten(error: serde_json::Error) -> Error {
    Error::Write("html".into(), error.into())
}

/// Returns the content of the file.
fn written(page: &Page, packed: &Packed) -> Result<Vec<u8>, Error> {
    let json = pack::json(page).map_err(unwritten)?;
    let title = page.recordings.iter().map(|about| about.path.as_str()).collect::<Vec<_>>().join(" → ");
    // The policy admits only scripts and styles with this nonce. It depends on all data, so that
    // no data can contain it.
    let word = |seed: u8| {
        let mut hasher = DefaultHasher::new();
        hasher.write_u8(seed);
        [&json, &packed.strings, &packed.columns].iter().for_each(|part| hasher.write(part.as_bytes()));
        hasher.finish()
    };
    let nonce = format!("{:016x}{:016x}", word(0), word(1));
    let script = SCRIPTS.concat();
    let mut out = Vec::with_capacity(json.len() + packed.strings.len() + packed.columns.len() + (256 << 10));
    for (number, piece) in FRAME.split("{{").enumerate() {
        let Some((name, rest)) = piece.split_once("}}").filter(|_| number > 0) else {
            out.extend_from_slice(piece.as_bytes());
            continue;
        };
        let value = match name {
            "nonce" => nonce.as_str(),
            "title" => &pack::markup(&title),
            "style" => STYLE,
            "script" => &script,
            "data" => &json,
            "strings" => &packed.strings,
            "columns" => &packed.columns,
            _ => "",
        };
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(rest.as_bytes());
    }
    Ok(out)
}
