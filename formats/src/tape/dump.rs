//! A tape as plain text: one record per line, items of a record's list indented below it.

use super::codec::Codec;
use super::division::*;
use super::field::Text;
use super::layout::*;
use super::mappings::*;
use super::references::*;
use super::residency::*;
use super::symbols::*;
use super::{Source, Step, Stream};
use crate::Ending;
use std::fmt::Write as _;
use std::io::{self, Write};

/// Prints every record, what is damaged, and how the file ended.
///
/// # Errors
/// Returns an error if writing fails. Damage in the tape is printed at its position.
pub fn dump<S: Source + ?Sized>(source: &S, out: &mut dyn Write) -> io::Result<()> {
    let mut stream = match Stream::new(source) {
        Ok(stream) => stream,
        Err(error) => return writeln!(out, "error {error}"),
    };
    writeln!(out, "tape version {FILE_VERSION}")?;
    loop {
        match stream.step() {
            Ok(Step::Record(offset, record)) => writeln!(out, "{offset} {}", line(&record))?,
            Ok(Step::Unknown(offset, kind)) => writeln!(out, "{offset} unknown kind {kind}")?,
            Ok(Step::Damage(from, to, error)) => writeln!(out, "{from} damage until {to}: {error}")?,
            Ok(Step::End(Ending::Complete)) => return writeln!(out, "end"),
            Ok(Step::End(Ending::Truncated { offset, field })) => return writeln!(out, "cut at {offset} in {field}"),
            Err(error) => return writeln!(out, "error {error}"),
        }
    }
}

fn hex(bytes: &Text) -> String {
    bytes.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn codec(number: u8) -> String {
    Codec::from_number(number).map_or_else(|| format!("codec {number}"), |codec| format!("{codec:?}").to_lowercase())
}

const fn column(kind: u8) -> &'static str {
    match kind {
        COLUMN_ENTRIES => "entries",
        COLUMN_TICKS => "ticks",
        COLUMN_SITES => "sites",
        COLUMN_WEIGHTS => "weights",
        COLUMN_UNMATCHED => "unmatched",
        COLUMN_PREVIOUS => "was",
        _ => "unknown",
    }
}

const fn reason(number: u8) -> &'static str {
    match number {
        END_EXITED => "exited",
        END_SIGNALLED => "signalled",
        END_EXEC => "exec",
        END_GONE => "gone",
        END_RUNNING => "running",
        _ => "unknown",
    }
}

fn begins(number: u8) -> &'static str {
    match number {
        SEGMENT_FIRST => "first",
        SEGMENT_CARRIED => "carried over",
        SEGMENT_UNKNOWN => "without what was live",
        SEGMENT_ANEW => "anew",
        SEGMENT_SUMS => "with the sums before",
        _ => "unknown",
    }
}

/// Writing to a string cannot fail: results are dropped.
fn line(record: &Record) -> String {
    match record {
        Record::Process(r) => process(r),
        Record::Module(r) => module(r),
        Record::ModuleGone(r) => format!("module gone {}", r.number),
        Record::Sites(r) => sites(r),
        Record::Thread(r) => format!("thread {} tid {} first {} {:?}", r.number, r.tid, r.first_tick, r.name),
        Record::Chunk(r) => chunk(r),
        Record::Accounts(r) => accounts(r),
        Record::Loss(r) => format!("loss thread {} events {} ticks {}-{}", r.thread, r.events, r.from_tick, r.to_tick),
        Record::Clock(r) => format!("clock tick {} unix {} monotonic {}", r.tick, r.unix_ns, r.monotonic_ns),
        Record::Summary(r) => summary(r),
        Record::End(r) => format!("end tick {} unix {} {} {}", r.tick, r.unix_ns, reason(r.reason), r.status),
        Record::Mark(r) => format!("mark tick {} thread {} {:?}", r.tick, r.thread, r.text),
        Record::Note(r) => format!("note tick {} {:?}", r.tick, r.text),
        Record::History(r) => history(r),
        Record::HistoryErrors(r) => history_errors(r),
        Record::Code(r) => code(r),
        Record::Symbols(r) => symbols(r),
        Record::Residency(r) => residency(r),
        Record::Mappings(r) => mappings(r),
        Record::Division(r) => division(r),
        Record::References(r) => references(r),
        Record::ReferenceBlocks(r) => format!("blocks of references {}+{}", r.first, r.count),
        Record::ReferenceEdges(r) => format!("references of blocks, {} bytes", r.plain_length),
        Record::ReferenceRoots(r) => format!("references of regions, {} bytes", r.plain_length),
        Record::ReferenceOffsets(r) => format!("offsets of blocks, {} bytes", r.plain_length),
        Record::ReferencesEnd(r) => references_end(r),
        Record::Segment(r) => segment(r),
        Record::Inherited(r) => {
            format!("inherited from {:?} tick {} blocks {} bytes {}", r.parent, r.tick, r.blocks, r.bytes)
        }
    }
}

fn process(of: &Process) -> String {
    let Process { pid, ppid, uid, origin, ticks_per_second, start_tick, start_unix_ns, page_size, .. } = of;
    format!(
        "process pid {pid} ppid {ppid} uid {uid} origin {origin} ticks/s {ticks_per_second} start {start_tick} unix \
         {start_unix_ns} page {page_size} sample {} free sites {} exe {:?} cwd {:?} argv {:?} label {:?} recorder {:?}",
        of.sample_bytes, of.free_sites, of.exe, of.cwd, of.argv, of.label, of.recorder
    )
}

fn module(of: &Module) -> String {
    let Module { number, start, end, bias, path, build_id, file } = of;
    let (build_id, file) = (hex(build_id), file_id(&file.0));
    format!("module {number} {start:#x}-{end:#x} bias {bias:#x} build-id {build_id} {path:?}{file}")
}

fn sites(of: &Sites) -> String {
    let mut text = format!("sites {} from {}", of.sites.len(), of.first);
    for (number, site) in (u64::from(of.first)..).zip(&of.sites) {
        let _ = write!(text, "\n  site {number} parent {} {:#x} flags {}", site.parent, site.address, site.flags);
    }
    text
}

fn chunk(of: &Chunk) -> String {
    let mut text = format!(
        "chunk {} {} stored {}+{} plain {}+{} checksum {:#010x} events {} allocations {} from index {} ticks {}-{} live \
         {} blocks {} bytes most {}",
        of.number,
        codec(of.codec),
        of.stored_offset,
        of.stored_length,
        of.plain_offset,
        of.plain_length,
        of.checksum,
        of.events,
        of.allocations,
        of.first_index,
        of.first_tick,
        of.last_tick,
        of.live_blocks,
        of.live_bytes,
        of.peak_bytes
    );
    for c in &of.columns {
        let (kind, stored) = (column(c.kind), c.stored.0.len());
        let _ = write!(text, "\n  column {kind} {} stored {stored} plain {}", codec(c.codec), c.plain_length);
    }
    text
}

fn accounts(of: &Accounts) -> String {
    let mut text = format!("ledger of {} threads", of.accounts.len());
    for Account { thread, emitted, recorded, lost, sampled_out } in &of.accounts {
        let _ = write!(
            text,
            "\n  thread {thread} emitted {emitted} recorded {recorded} lost {lost} sampled out {sampled_out}"
        );
    }
    text
}

fn summary(of: &Summary) -> String {
    let mut text = format!("summary {:?}", of.totals).replace("Totals ", "").replace(['{', '}', ':', ','], "");
    for SiteSums { site, allocs, bytes, frees, freed_bytes, peak_blocks, peak_bytes } in &of.sites {
        let _ = write!(
            text,
            "\n  site {site} allocs {allocs} bytes {bytes} frees {frees} freed {freed_bytes} at peak {peak_blocks} blocks \
             {peak_bytes} bytes"
        );
    }
    text
}

fn history(of: &History) -> String {
    let mut text = format!("history at ticks {:?}", of.ticks);
    if !of.live_bytes.0.is_empty() {
        let _ = write!(text, "\n  all sites: blocks {:?} bytes {:?}", of.live_blocks.0, of.live_bytes.0);
    }
    for SiteHistory { site, blocks, bytes } in &of.sites {
        let _ = write!(text, "\n  site {site} blocks {blocks:?} bytes {bytes:?}");
    }
    text
}

fn history_errors(of: &HistoryErrors) -> String {
    let mut text = String::from("standard errors of the history");
    for SiteErrors { site, bytes } in &of.sites {
        let _ = write!(text, "\n  site {site} bytes {bytes:?}");
    }
    text
}

fn code(of: &Code) -> String {
    let mut text = format!("code of {} ranges", of.ranges.len());
    for CodeRange { start, length, name } in &of.ranges {
        let _ = write!(text, "\n  {start:#x}+{length:#x} {name:?}");
    }
    text
}

fn segment(of: &Segment) -> String {
    let begins = begins(of.begins);
    let mut text = format!(
        "segment of a process of host {:?} boot {:?} start {} begins {begins}, {} blocks carried",
        of.host, of.boot, of.start_ticks, of.carried
    );
    if of.live_since_unix_ns.0 > 0 {
        let _ = write!(text, ", live blocks known since {} unix ns", of.live_since_unix_ns.0);
    }
    text
}

fn references_end(of: &ReferencesEnd) -> String {
    format!(
        "end of references tick {} lacks {:?} blocks {} bytes {} edges {} root edges {} read {} cpu ns {}",
        of.end_tick, of.lacks, of.blocks, of.bytes, of.edges, of.root_edges, of.read_bytes, of.cpu_ns
    )
}

/// Maximum number of runs of pages that are shown of a snapshot.
const PAGE_RUNS: usize = 50_000;

fn mappings(of: &Mappings) -> String {
    let mut text =
        format!("mappings {}, allocator {} calls {} bytes", of.events.len(), of.allocator_calls, of.allocator_bytes);
    if of.allocator_returned_calls.0 > 0 {
        let (calls, bytes) = (of.allocator_returned_calls.0, of.allocator_returned_bytes.0);
        let _ = write!(text, ", returned {calls} calls {bytes} bytes");
    }
    for (number, name) in (u64::from(of.first_name)..).zip(&of.names) {
        let _ = write!(text, "\n  name {number} {name:?}");
    }
    for MappingEvent { tick, thread, kind, address, size, site, flags, name } in &of.events {
        let kind = mapping_event(*kind);
        let _ = write!(
            text,
            "\n  tick {tick} thread {thread} {kind} {address:#x}+{size:#x} site {site} flags {flags:#x} name {name}"
        );
    }
    text
}

fn references(of: &References) -> String {
    let References { tick, pid, cause, threads, stopped, .. } = of;
    let cause = residency_cause(*cause);
    let mut text = format!("references tick {tick} pid {pid} cause {cause} threads {threads} stopped {stopped}");
    for (number, name) in (1..).zip(&of.names) {
        let _ = write!(text, "\n  name {number} {name:?}");
    }
    for RootRegion { start, length, kind, name, thread } in &of.regions {
        let _ = write!(text, "\n  region {start:#x}+{length:#x} kind {kind} name {name} thread {thread}");
    }
    text
}

fn division(of: &Division) -> String {
    let uses = &of.uses;
    let mut text = format!("division of tick {} allocator {} lacks {:?}", of.tick, of.allocator, of.lacks);
    for (name, value) in [
        ("blocks", of.blocks),
        ("inherited blocks", of.inherited_blocks),
        ("inherited bytes", of.inherited_bytes),
        ("blocks since tick", of.blocks_since_tick),
        ("freed since tick", of.freed_since_tick),
        ("cpu ns", of.cpu_ns),
        ("live", uses.bill.live),
        ("slack", uses.bill.slack),
        ("held", uses.bill.held),
        ("free pages", uses.bill.free_pages),
        ("never block", uses.bill.never_block),
        ("undivided", uses.bill.undivided),
        ("files", uses.bill.files),
        ("written", uses.bill.written),
        ("shared", uses.bill.shared),
        ("stacks", uses.bill.stacks),
        ("heaptape", uses.bill.heaptape),
        ("unlisted", uses.bill.unlisted),
        ("untouched", uses.untouched),
        ("swapped", uses.swapped),
        ("swapped live", uses.swapped_live),
        ("zero", uses.zero),
        ("huge", uses.huge),
        ("other pinned", of.other_pinned),
        ("other untouched", of.other_untouched),
    ] {
        let _ = write!(text, " {name} {value}");
    }
    for DividedHeap { kind, address, live, slack, held, free_pages, never_block } in &of.heaps {
        let _ = write!(
            text,
            "\n  heap kind {kind} {address:#x} live {live} slack {slack} held {held} free pages {free_pages} never block {never_block}"
        );
    }
    for DividedSite { site, pinned, blocks, live, alone_pages, alone_occupied, untouched } in &of.sites {
        let _ = write!(
            text,
            "\n  site {site} pinned {pinned} blocks {blocks} live {live} alone {alone_pages} pages {alone_occupied} untouched {untouched}"
        );
    }
    let mut at = 0_u64;
    for DividedRange { gap, length, bytes } in &of.never_blocks {
        at = at.wrapping_add(*gap);
        let _ = write!(text, "\n  never a block {at:#x}+{length:#x} {bytes} bytes");
        at = at.wrapping_add(*length);
    }
    text
}

fn residency(of: &Residency) -> String {
    let mut text = format!(
        "residency ticks {}-{} cause {} method {} resident {} anonymous {} file {} shared {} swapped {} unlisted {} lacks {:?}",
        of.tick,
        of.end_tick,
        residency_cause(of.cause),
        of.method,
        of.resident_bytes,
        of.anonymous_bytes,
        of.file_bytes,
        of.shared_bytes,
        of.swapped_bytes,
        of.unlisted_pages,
        of.lacks
    );
    let mut at = 0_u64;
    for Mapping { gap, length, kind, name } in &of.mappings {
        at = at.wrapping_add(*gap);
        let name = (*name as usize).checked_sub(1).and_then(|index| of.names.get(index));
        let _ = write!(text, "\n  mapping {at:#x}+{length:#x} kind {kind}");
        if let Some(name) = name {
            let _ = write!(text, " {:?}", name.lossy().chars().take(SYMBOL_LETTERS).collect::<String>());
        }
        at = at.wrapping_add(*length);
    }
    let runs = match of.runs() {
        Ok(runs) => runs,
        Err(error) => {
            let _ = write!(text, "\n  {error}");
            return text;
        }
    };
    for run in runs.iter().take(PAGE_RUNS) {
        let huge = if run.is_huge { " huge" } else { "" };
        let kind = format!("{:?}", run.kind).to_lowercase();
        let _ = write!(text, "\n  pages {:#x}+{} {kind}{huge}", run.first, run.pages);
    }
    if let Some(more) = runs.len().checked_sub(PAGE_RUNS + 1) {
        let _ = write!(text, "\n  {} more runs", more + 1);
    }
    text
}

/// What is shown of a table of names: a small file may hold a very large one.
const SYMBOL_ROWS: usize = 50_000;
const SYMBOL_FRAMES: usize = 64;
const SYMBOL_LETTERS: usize = 400;

/// Returns what is known of a module's file, with a space before it.
fn file_id(file: &FileId) -> String {
    match *file == FileId::default() {
        true => String::new(),
        false => {
            let FileId { bytes, changed_unix_ns, head, load } = file;
            format!(" file {bytes} bytes changed {changed_unix_ns} head {head:08x} load {load}")
        }
    }
}

fn symbols(of: &Symbols) -> String {
    let lines = match of.lines {
        LINES_UNREAD => "unread",
        LINES_READ => "read",
        LINES_NONE => "none",
        _ => "unknown",
    };
    let (path, build_id, bytes, crc) = (&of.path, hex(&of.build_id), of.file_bytes, of.checksum);
    let (from, to) = (of.code_start, of.code_end);
    let mut text = format!(
        "symbols of {path:?} build-id {build_id} file {bytes} bytes crc {crc:08x} code {from:#x}..{to:#x} lines {lines}{}",
        file_id(&of.file.0)
    );
    for missing in &of.missing.0 {
        let _ = write!(text, "\n  missing {missing:?}");
    }
    if let Some(suppressions) = &of.suppressions {
        let _ = write!(text, "\n  suppressions {suppressions:?}");
    }
    let table = match SymbolTable::unpack(of) {
        Ok(table) => table,
        Err(error) => {
            let _ = write!(text, "\n  {error}");
            return text;
        }
    };
    let known = |number: u32| (number as usize).checked_sub(1).and_then(|index| table.texts.get(index));
    // A text may be long, and be used in many rows.
    let shown = |text: &Text| format!("{:?}", text.lossy().chars().take(SYMBOL_LETTERS).collect::<String>());
    let named = |number: u32| known(number).map_or_else(|| "?".into(), shown);
    let mut at = 0_u64;
    for SymbolFunction { start, length, symbol } in table.functions.iter().take(SYMBOL_ROWS) {
        at = at.wrapping_add(*start);
        let _ = write!(text, "\n  function {at:#x}+{length:#x} {}", named(*symbol));
    }
    at = 0;
    for SymbolAddress { address, frames } in table.addresses.iter().take(SYMBOL_ROWS) {
        at = at.wrapping_add(*address);
        let _ = write!(text, "\n  address {at:#x}");
        for SymbolFrame { symbol, file, line } in frames.iter().take(SYMBOL_FRAMES) {
            let _ = write!(text, " {} {}:{line}", named(*symbol), named(*file));
        }
    }
    let goes = |target: &SymbolTarget| match target {
        SymbolTarget { symbol: 0, address: 0 } => "anywhere".into(),
        SymbolTarget { symbol: 0, address } => format!("{address:#x}"),
        SymbolTarget { symbol, .. } => named(*symbol),
    };
    for (what, rows) in [("call", &table.calls.0), ("jumps", &table.jumps.0)] {
        at = 0;
        for SymbolTargets { from, targets } in rows.iter().take(SYMBOL_ROWS) {
            at = at.wrapping_add(*from);
            let to: Vec<String> = targets.iter().take(SYMBOL_FRAMES).map(goes).collect();
            let _ = write!(text, "\n  {what} {at:#x} -> {}", to.join(", "));
        }
    }
    for SymbolTarget { symbol, address } in table.exports.0.iter().take(SYMBOL_ROWS) {
        let _ = write!(text, "\n  export {} {address:#x}", named(*symbol));
    }
    for (what, rows) in [("functions", table.functions.len()), ("addresses", table.addresses.len())] {
        if rows > SYMBOL_ROWS {
            let _ = write!(text, "\n  {} more {what}", rows - SYMBOL_ROWS);
        }
    }
    text
}
