//! The leak report as JSON.

use super::findings::{LeakReport, Total};
use super::leak::Leak;
use super::{Evidence, Held, Options, crossings, mapped_leaks, suppressed};
use crate::load::Recording;
use crate::missing;
use crate::model::verdict::Verdict;
use crate::report::frames::{FrameJson, call_site, stack_json};
use crate::report::mapped::{MappedRow, OfProcess};
use crate::report::{ProcessHeader, Query, json};
use crate::symbols::Symbolizer;
use serde::Serialize;
use serde::ser::{SerializeSeq, Serializer};
use std::cell::RefCell;
use std::io::{self, Write};

/// A line of a source file in JSON.
#[derive(Serialize)]
struct LineJson<'a> {
    file: &'a str,
    line: u32,
}

#[derive(Serialize)]
struct LeakJson<'a> {
    bytes: u64,
    blocks: u64,
    verdict: Verdict,
    process: u32,
    #[serde(rename = "image")]
    folder: &'a str,
    stacks: u64,
    kept_on_purpose: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    grown_bytes: Option<u64>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    released_by_exec: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    probably_growing: bool,
    /// The lines of the blamed function, where there are several.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lines: Vec<LineJson<'a>>,
    /// The function of a library by which the blamed frame allocates.
    #[serde(skip_serializing_if = "Option::is_none")]
    library: Option<FrameJson>,
    stack: Vec<FrameJson>,
    #[serde(skip_serializing_if = "Option::is_none")]
    held: Option<&'a Held>,
    evidence: &'a Option<Evidence>,
}

#[derive(Serialize)]
struct LeaksJson<'a> {
    leaks: LeakList<'a>,
    freed_at_exit: LeakList<'a>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    crossed_allocators: Vec<crossings::CrossedJson<'a>>,
    total: Total,
    /// Memory that the program mapped itself and never unmapped, which is in no other sum.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    mappings: Vec<OfProcess<MappedRow>>,
    suppressions: Vec<suppressed::RuleEffect>,
    processes: Vec<ProcessJson>,
    /// What is missing from the recordings as a whole, as sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    missing: Vec<String>,
}

#[derive(Serialize)]
struct ProcessJson {
    #[serde(flatten)]
    header: ProcessHeader,
    inherited_blocks: u64,
    inherited_bytes: u64,
}

/// Serializes leaks one by one. Their stacks are named as they are written, so that there is never
/// more than one in memory.
struct LeakList<'a>(&'a [Leak<'a>], &'a RefCell<Symbolizer>);

impl Serialize for LeakList<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut list = serializer.serialize_seq(Some(self.0.len()))?;
        for leak in self.0 {
            let symbols = &mut *self.1.borrow_mut();
            let library = call_site(symbols, leak.process.stacks(), leak.site, 1).library;
            let stack = stack_json(symbols, leak.process.stacks(), leak.site);
            let lines = leak.lines.iter().filter(|_| leak.lines.count() > 1);
            list.serialize_element(&LeakJson {
                bytes: leak.bytes,
                blocks: leak.blocks,
                verdict: leak.verdict,
                process: leak.process.about.pid,
                folder: &leak.process.about.folder,
                stacks: leak.stacks(),
                kept_on_purpose: leak.kept,
                grown_bytes: (leak.verdict == Verdict::FreedAtExit).then_some(leak.grown),
                released_by_exec: leak.is_released_by_exec(),
                probably_growing: leak.is_probable,
                lines: lines.map(|(file, line)| LineJson { file, line }).collect(),
                library: library.as_ref().map(FrameJson::from),
                stack,
                held: leak.held.as_ref(),
                evidence: &leak.evidence,
            })?;
        }
        list.end()
    }
}

/// Prints the report as JSON.
///
/// # Errors
/// Returns an error when `out` fails.
pub(super) fn print(
    found: &LeakReport,
    recordings: &[Recording],
    query: &Query,
    options: &Options,
    mut symbols: Symbolizer,
    out: &mut dyn Write,
) -> io::Result<()> {
    let top = |leaks: &[Leak]| options.top.unwrap_or(leaks.len()).min(leaks.len());
    let processes = found.missing.iter().map(|(process, missing)| ProcessJson {
        header: ProcessHeader::of(process, missing),
        inherited_blocks: process.tape.inherited.as_ref().map_or(0, |inherited| inherited.blocks),
        inherited_bytes: process.tape.inherited.as_ref().map_or(0, |inherited| inherited.bytes),
    });
    let processes = processes.collect();
    let crossed_allocators = found.crossed.iter().map(|one| one.json(&mut symbols)).collect();
    let mut mapped = mapped_leaks(query, &found.processes(), &mut symbols);
    mapped.truncate(options.top.unwrap_or(usize::MAX));
    let symbols = RefCell::new(symbols);
    let report = LeaksJson {
        leaks: LeakList(&found.leaks[..top(&found.leaks)], &symbols),
        freed_at_exit: LeakList(&found.freed_at_exit[..top(&found.freed_at_exit)], &symbols),
        crossed_allocators,
        total: found.total,
        mappings: mapped,
        suppressions: found.rules.suppressed(),
        processes,
        missing: recordings.iter().flat_map(|recording| missing::lines(&recording.missing)).collect(),
    };
    json::print(out, &report)
}
