//! `heaptape core`: what a crashed process did with its heap. The registers and the fault of its core
//! lead to blocks, and the recording says who allocated and who freed these.

mod alive;
mod unrecorded;

use crate::address::{self, BlockRow, Context, EventRow, location, print_block, print_stack, thread};
use crate::print::{Report, print_reports};
use alive::AliveRow;
use heaptape_analyzer::event::Span;
use heaptape_analyzer::model::address::{AddressHistory, Holder};
use heaptape_analyzer::model::addresses::{Addresses, WrongFree};
use heaptape_analyzer::model::live_set::LiveSet;
use heaptape_analyzer::report::frames::{call_site, frame_line, function_at};
use heaptape_analyzer::report::holders::Holders;
use heaptape_analyzer::report::{Error, Outcome, Query};
use heaptape_analyzer::symbols::Symbolizer;
use heaptape_analyzer::text::{Screen, Style, clean_name, counted, duration};
use heaptape_analyzer::{Core, Process, Progress, Replay};
use heaptape_formats::core_file::{CoreFile, Signal, Thread};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use unrecorded::{Blocks, HeapRow};

/// Most addresses whose histories are looked up: those of the thread that crashed come first.
const MAX_ADDRESSES: usize = 64;
/// Bytes behind a block that count as an overrun of it.
const NEAR: i128 = 64;
/// Bytes from which on a live block is no neighbor.
const FAR: u64 = 64 << 10;
/// What is shown.
#[derive(Clone, Copy, Debug)]
pub struct Options<'a> {
    /// Maximum number of frames of each printed stack.
    pub frames: usize,
    /// The core file.
    pub path: &'a Path,
}

#[derive(Serialize)]
struct SignalRow {
    number: i32,
    name: &'static str,
    /// The address that could not be used, if the signal is about one.
    address: Option<String>,
}

/// An address of the core that a block contained.
#[derive(Serialize)]
struct PlaceRow {
    address: String,
    /// Where the core has it, e.g. `the fault` or `rdi of thread 17`.
    found_in: Vec<String>,
    /// What it is, e.g. `byte 8 of 64 bytes that were freed 1.2 ms before the last event`.
    what: String,
    /// Whether the block that had it last is freed.
    is_freed: bool,
    /// Blocks that contained it, newest first.
    blocks: Vec<BlockRow>,
    older_blocks: u64,
    /// The live blocks before and after it.
    below: Option<NeighborRow>,
    above: Option<NeighborRow>,
    /// What holds the block, without a recording: the last one is the root.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    held_by: Vec<String>,
}

#[derive(Serialize)]
struct NeighborRow {
    address: String,
    bytes: u64,
    /// Bytes between the two.
    distance: u64,
    line: String,
}

/// A free of what was no live block.
#[derive(Serialize)]
struct WrongRow {
    /// `double free`, `free inside of a block` or `foreign free`.
    kind: &'static str,
    address: String,
    /// Whether it is the last event of the thread that crashed.
    is_last: bool,
    what: String,
    event: EventRow,
    blocks: Vec<BlockRow>,
}

#[derive(Serialize)]
struct ThreadRow {
    tid: u32,
    /// The function that it was in, with its place.
    at: String,
}

#[derive(Serialize)]
struct CoreReport {
    program: String,
    core_pid: u32,
    signal: Option<SignalRow>,
    /// The answer in one sentence.
    verdict: String,
    /// What the C library said when it ended the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    abort_message: Option<String>,
    threads: Vec<ThreadRow>,
    places: Vec<PlaceRow>,
    wrong_frees: Vec<WrongRow>,
    /// What the memory itself shows.
    #[serde(skip_serializing_if = "Option::is_none")]
    heap: Option<HeapRow>,
    /// What is live, if the program ran on.
    #[serde(skip_serializing_if = "Option::is_none")]
    alive: Option<AliveRow>,
    #[serde(skip)]
    is_recorded: bool,
}

fn signal_name(number: i32) -> &'static str {
    match number {
        4 => "SIGILL",
        5 => "SIGTRAP",
        6 => "SIGABRT",
        7 => "SIGBUS",
        8 => "SIGFPE",
        11 => "SIGSEGV",
        _ => "signal",
    }
}

/// Runs `heaptape core`.
///
/// # Errors
/// The core cannot be read, or its process is not in the recording. Or a recording cannot be read,
/// or `out` cannot be written.
pub fn run(
    core: &CoreFile,
    query: &Query,
    options: Options<'_>,
    out: &mut dyn Write,
    style: Style,
) -> Result<Outcome, Error> {
    let is_recorded = query.scope.paths.iter().any(|path| heaptape_analyzer::is_recording(path));
    print_reports(query, out, style, is_recorded, |process, symbols, progress| {
        let is_alive = !core.signal.is_some_and(Signal::is_crash);
        let is_read = process.core.is_some() && (is_alive || !process.has_events());
        let mut holders = if is_read { Holders::of(process, symbols) } else { Ok(None) };
        let alive = is_alive.then(|| AliveRow::of(&mut holders, query, options.path));
        let unrecorded = process.core.as_deref().filter(|_| !process.has_events());
        let blocks = unrecorded.map(|own| Blocks::of(own, holders.ok().flatten()));
        let mut question = Question { core, process, symbols, options, top: query.view.top };
        let (mut answer, missing) = match blocks {
            Some(blocks) => (question.answer_unrecorded(&blocks), Vec::new()),
            None => question.answer(process.span(&query.scope.range), progress),
        };
        if let Some(message) = &answer.abort_message {
            answer.verdict = format!("{}; the C library said: {message}", answer.verdict);
        }
        if let Some(alive) = &alive {
            answer.verdict = alive.verdict(answer.threads.len(), answer.heap.as_ref());
        }
        Ok((CoreReport { alive, ..answer }, missing))
    })
}

/// Address, size and site of a block beside an address.
type Beside = (u64, u64, u32);

/// An address, and where the core has it.
struct Candidate {
    address: u64,
    found_in: Vec<String>,
}

struct Question<'a> {
    core: &'a CoreFile,
    process: &'a Process,
    symbols: &'a mut Symbolizer,
    options: Options<'a>,
    top: usize,
}

impl Question<'_> {
    fn answer(&mut self, span: Span, progress: &Progress) -> (CoreReport, Vec<heaptape_analyzer::Missing>) {
        let candidates = self.candidates();
        let mut addresses: Vec<u64> = candidates.iter().map(|candidate| candidate.address).collect();
        let mut model = Addresses::new(&addresses, self.top);
        let mut outcome = model.replay_from(self.process, None, span, progress);
        let new: Vec<u64> =
            model.wrong.iter().map(|wrong| wrong.address).filter(|address| !addresses.contains(address)).collect();
        if !new.is_empty() {
            addresses.extend(new);
            model = Addresses::new(&addresses, self.top);
            outcome = model.replay_from(self.process, None, span, progress);
        }
        let wrong_frees: Vec<WrongRow> = model.wrong.iter().rev().map(|wrong| self.wrong(wrong, &model)).collect();
        let mut places: Vec<PlaceRow> = Vec::new();
        for (candidate, history) in candidates.iter().zip(&model.histories) {
            let is_fault = candidate.found_in.first().is_some_and(|first| first == FAULT);
            if !history.holders.is_empty() || (is_fault && self.is_near(history)) {
                places.push(self.place(candidate, history, &outcome.live));
            }
        }
        let verdict = self.verdict(&places, &wrong_frees);
        // A program that ran on may have been stopped in the middle of an allocation.
        let is_crash = self.core.signal.is_some_and(Signal::is_crash);
        let heap = if is_crash { self.damaged_heap(&outcome.live) } else { None };
        let verdict = with_damage(verdict, heap.as_ref());
        (CoreReport { verdict, places, wrong_frees, heap, ..self.head() }, outcome.missing)
    }

    /// Returns the heap of glibc in the core, if its bookkeeping is damaged, with what was recorded of the
    /// blocks before that.
    fn damaged_heap(&mut self, live: &LiveSet) -> Option<HeapRow> {
        let core = Core::open(self.options.path).ok()?;
        let faults = &core.heap.as_ref()?.faults;
        let mut heap = Blocks::of(&core, None).row().filter(|_| !faults.is_empty())?;
        for (fault, row) in faults.iter().zip(&mut heap.damage) {
            let chunk = fault.before.map_or(0, |chunk| chunk.address);
            let block = live.iter().map(|(_, block)| block).find(|block| block.address == chunk);
            if let (Some(block), Some(before)) = (block, &mut row.before) {
                let (stacks, names) = (self.process.stacks(), self.symbols.names());
                let maker = frame_line(&call_site(self.symbols, stacks, block.site, 1).frame, names);
                before.line = format!("a live block of {maker}");
            }
        }
        Some(heap)
    }

    /// Answers without a recording.
    fn answer_unrecorded(&mut self, blocks: &Blocks<'_>) -> CoreReport {
        let (places, heap) = (self.unrecorded_places(blocks), blocks.row());
        let verdict = with_damage(self.verdict(&places, &[]), heap.as_ref());
        CoreReport { verdict, places, heap, ..self.head() }
    }

    /// Returns the answer without what it says of blocks.
    fn head(&mut self) -> CoreReport {
        let threads = self.core.threads.iter().map(|thread| (thread.tid, thread.program_counter()));
        let threads: Vec<(u32, u64)> = threads.collect();
        let threads = threads.into_iter().map(|(tid, at)| ThreadRow { tid, at: self.function(at) }).collect();
        CoreReport {
            program: clean_name(&self.core.name).into_owned(),
            core_pid: self.core.pid,
            signal: self.core.signal.filter(|signal| signal.is_crash()).map(|signal| SignalRow {
                number: signal.number,
                name: signal_name(signal.number),
                address: signal.address.map(|address| format!("{address:#x}")),
            }),
            verdict: String::new(),
            abort_message: self.core.abort_message(),
            threads,
            places: Vec::new(),
            wrong_frees: Vec::new(),
            heap: None,
            alive: None,
            is_recorded: self.process.has_events(),
        }
    }

    /// Returns the addresses that may be those of blocks, those of the crash first.
    fn candidates(&self) -> Vec<Candidate> {
        let mut found: Vec<Candidate> = Vec::new();
        let mut add = |address: u64, found_in: String| {
            if let Some(known) = found.iter_mut().find(|known| known.address == address) {
                known.found_in.push(found_in);
            } else if found.len() < MAX_ADDRESSES {
                found.push(Candidate { address, found_in: vec![found_in] });
            }
        };
        if let Some(address) = self.core.signal.and_then(|signal| signal.address) {
            add(address, FAULT.into());
        }
        for thread in &self.core.threads {
            let machine = self.core.machine;
            for name in [machine.program_counter()].iter().chain(machine.general()) {
                let value = thread.register(name);
                if self.may_be_block(thread, value) {
                    add(value, format!("{name} of thread {}", thread.tid));
                }
            }
        }
        found
    }

    /// Returns whether a register may hold an address of a block: one in memory that is neither that
    /// of a file nor the thread's own stack.
    fn may_be_block(&self, thread: &Thread, value: u64) -> bool {
        let stack = self.core.segment(thread.stack_pointer());
        let place = self.core.segment(value);
        value >= 4096 && place.is_some() && place != stack && self.core.file_at(value).is_none()
    }

    fn is_near(&self, history: &AddressHistory) -> bool {
        history.nearest.is_some_and(|nearest| i128::from(nearest.distance(history.address())) <= NEAR)
    }

    /// Returns the function that an address is in, with its place.
    fn function(&mut self, address: u64) -> String {
        if let Some(function) = function_at(self.symbols, self.process.stacks(), address) {
            return function;
        }
        let file = self.core.file_at(address).map(|file| clean_name(&file.path).into_owned());
        file.unwrap_or_else(|| format!("{address:#x}"))
    }

    fn block(&mut self, address: u64, holder: &Holder) -> BlockRow {
        let options = address::Options { address, frames: self.options.frames };
        Context { process: self.process, symbols: self.symbols, options }.block(holder)
    }

    fn blocks(&mut self, history: &AddressHistory) -> Vec<BlockRow> {
        let address = history.address();
        history.holders.iter().rev().map(|holder| self.block(address, holder)).collect()
    }

    /// Returns how long before the last event a block was freed, as text.
    fn ago(&self, tick: u64) -> String {
        match self.process.last_event_tick().filter(|_| self.process.has_times()) {
            Some(last) => match self.process.clock.nanos(last).saturating_sub(self.process.clock.nanos(tick)) {
                0 => " by the last event".into(),
                nanos => format!(" {} before the last event", duration(nanos)),
            },
            None => String::new(),
        }
    }

    /// Returns what an address is, by the block that had it last.
    fn what(&mut self, history: &AddressHistory) -> String {
        let address = history.address();
        let Some(holder) = history.holders.back().or(history.nearest.as_ref()) else { return self.elsewhere(address) };
        let offset = i128::from(address) - i128::from(holder.address);
        let block = format!("a block of {} at {:#x}", counted(holder.size, "byte"), holder.address);
        let place = match offset {
            before if before < 0 => format!("{} before {block}", counted(before.unsigned_abs() as u64, "byte")),
            within if within < i128::from(holder.size.max(1)) => format!("byte {within} of {block}"),
            after => {
                let behind = (after - i128::from(holder.size)) as u64;
                format!("{} behind the end of {block}", counted(behind, "byte"))
            }
        };
        match holder.end {
            None => format!("{place}, which is live{}", self.former(history)),
            Some(end) if end.is_resize => {
                format!("{place}, which was reallocated{}", self.ago(end.moment.position.tick))
            }
            Some(end) => format!("{place}, which was freed{}", self.ago(end.moment.position.tick)),
        }
    }

    /// Returns whose the memory of a live block was before: a pointer that was kept may be its former
    /// owner's.
    fn former(&mut self, history: &AddressHistory) -> String {
        let former = history.holders.iter().rev().nth(1);
        let Some((former, end)) = former.and_then(|former| Some((former, former.end?))) else { return String::new() };
        let ago = self.ago(end.moment.position.tick);
        let how = if end.is_resize { "reallocated" } else { "freed" };
        let size = counted(former.size, "byte");
        let Some(begin) = former.begin else { return format!("; before it, a block of {size} was {how}{ago}") };
        let (stacks, names) = (self.process.stacks(), self.symbols.names());
        let maker = frame_line(&call_site(self.symbols, stacks, begin.site, 1).frame, names);
        format!("; before it, a block of {size} of {maker} was {how}{ago}")
    }

    /// Returns what an address is that no block had.
    fn elsewhere(&self, address: u64) -> String {
        let of = |thread: &&Thread| {
            self.core.segment(thread.stack_pointer()).is_some_and(|stack| self.core.segment(address) == Some(stack))
        };
        if let Some(thread) = self.core.threads.iter().find(of) {
            return format!("on the stack of thread {}", thread.tid);
        }
        match (self.core.file_at(address), self.core.segment(address)) {
            (Some(file), _) => format!("in {}", clean_name(&file.path)),
            (None, Some(_)) if !self.process.has_events() => "in memory of which no block is known".into(),
            (None, Some(_)) => "in memory of which no block was recorded".into(),
            (None, None) => "not mapped".into(),
        }
    }

    fn place(&mut self, candidate: &Candidate, history: &AddressHistory, live: &LiveSet) -> PlaceRow {
        let address = candidate.address;
        let own = history.holders.back().filter(|holder| holder.end.is_none()).map(|holder| holder.address);
        let mut below: Option<Beside> = None;
        let mut above: Option<Beside> = None;
        for (_, block) in live.iter().filter(|(_, block)| Some(block.address) != own) {
            let end = block.address.saturating_add(block.size);
            if block.address > address {
                let is_nearer = above.is_none_or(|(known, ..)| block.address < known);
                above = if is_nearer { Some((block.address, block.size, block.site)) } else { above };
            } else if end <= address {
                let is_nearer = below.is_none_or(|(known, ..)| block.address > known);
                below = if is_nearer { Some((block.address, block.size, block.site)) } else { below };
            }
        }
        let mut neighbor = |found: Option<(u64, u64, u32)>| {
            let (start, size, site) = found?;
            let distance = if start > address { start - address } else { address.saturating_sub(start + size) };
            let (stacks, names) = (self.process.stacks(), self.symbols.names());
            let site = call_site(self.symbols, stacks, site, 1);
            let line = frame_line(&site.frame, names);
            Some(NeighborRow { address: format!("{start:#x}"), bytes: size, distance, line })
        };
        let (below, above) = (neighbor(below), neighbor(above));
        let mut blocks = self.blocks(history);
        if let Some(nearest) = history.nearest.filter(|_| blocks.is_empty()) {
            blocks.push(self.block(address, &nearest));
        }
        PlaceRow {
            address: format!("{address:#x}"),
            found_in: candidate.found_in.clone(),
            what: self.what(history),
            is_freed: history.holders.back().is_some_and(|holder| holder.end.is_some()),
            blocks,
            older_blocks: history.older,
            below,
            above,
            held_by: Vec::new(),
        }
    }

    fn wrong(&mut self, wrong: &WrongFree, model: &Addresses) -> WrongRow {
        let WrongFree { address, moment } = *wrong;
        let history = model.histories.iter().find(|history| history.address() == address);
        let crashed = self.core.threads.first().map(|thread| thread.tid);
        let of_thread = self.process.tape.threads.get(&moment.thread).map(|thread| thread.tid);
        let is_last = crashed.is_some()
            && crashed == of_thread
            && model.last.get(&moment.thread) == Some(&moment.position.number);
        // Those that had the address before this free.
        let before = |holder: &&Holder| holder.begin.is_none_or(|begin| begin.position.number < moment.position.number);
        let owner = history.and_then(|history| history.holders.iter().rev().find(before)).copied();
        let (kind, what) = match owner {
            Some(holder) if holder.end.is_none_or(|end| end.moment.position.number > moment.position.number) => {
                let offset = address - holder.address;
                let what = format!("byte {offset} of a live block of {}", counted(holder.size, "byte"));
                ("free inside of a block", what)
            }
            Some(holder) => {
                let what = format!("a block of {}, freed before", counted(holder.size, "byte"));
                ("double free", what)
            }
            None => ("foreign free", self.elsewhere(address)),
        };
        let options = address::Options { address, frames: self.options.frames };
        let event = Context { process: self.process, symbols: self.symbols, options }.event(&moment);
        let blocks = owner.map(|holder| self.block(address, &holder)).into_iter().collect();
        WrongRow { kind, address: format!("{address:#x}"), is_last, what, event, blocks }
    }

    fn verdict(&mut self, places: &[PlaceRow], wrong: &[WrongRow]) -> String {
        let crashed = self.core.threads.first();
        let at = crashed.map(|thread| (thread.tid, thread.program_counter()));
        let place = at.map(|(tid, rip)| format!(" in thread {tid} at {}", self.function(rip))).unwrap_or_default();
        let Some(signal) = self.core.signal.filter(|signal| signal.is_crash()) else { return String::new() };
        let name = signal_name(signal.number);
        if let Some(last) = wrong.iter().find(|wrong| wrong.is_last) {
            return format!("{name}: {} of {}: {}", last.kind, last.address, last.what);
        }
        let of_fault = |place: &&PlaceRow| place.found_in.first().is_some_and(|first| first == FAULT);
        if let (Some(address), Some(place)) = (signal.address, places.iter().find(of_fault)) {
            let kind = if place.is_freed { "use after free: " } else { "" };
            return format!("{name} at {address:#x}: {kind}{}", place.what);
        }
        let fault = match signal.address {
            Some(address) => format!(" at {address:#x}, {}", self.elsewhere(address)),
            None => String::new(),
        };
        let tid = crashed.map_or(0, |thread| thread.tid);
        // What a call leaves in the others, `free` for one, says nothing of the crash.
        let is_used = |found: &&String| {
            let name = found.strip_suffix(&format!(" of thread {tid}"));
            name.is_some_and(|name| !self.core.machine.scratch().contains(&name))
        };
        let freed = places.iter().filter(|place| place.is_freed && signal.address.is_some());
        let freed = freed.filter_map(|place| Some((place.found_in.iter().find(is_used)?, place))).next();
        let hint = freed.map(|(found, place)| format!("; {found} has {}", place.what)).unwrap_or_default();
        format!("{name}{place}{fault}{hint}")
    }
}

/// Returns the answer with what is damaged.
fn with_damage(verdict: String, heap: Option<&HeapRow>) -> String {
    match heap.and_then(HeapRow::damage) {
        Some(damage) => format!("{verdict}; {damage}"),
        None => verdict,
    }
}

/// Number of threads of one place whose ids are printed.
const MAX_TIDS: usize = 8;

/// Returns the threads by where they were: the one that crashed first, and then most at once.
fn by_place(threads: &[ThreadRow]) -> Vec<(&str, Vec<u32>)> {
    let Some((first, others)) = threads.split_first() else { return Vec::new() };
    let mut places: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    others.iter().for_each(|row| places.entry(&row.at).or_default().push(row.tid));
    let mut rows: Vec<(&str, Vec<u32>)> = places.into_iter().collect();
    rows.sort_by_key(|(at, tids)| (std::cmp::Reverse(tids.len()), *at));
    rows.insert(0, (&first.at, vec![first.tid]));
    rows
}

/// The first place where an address is found that the signal is about.
const FAULT: &str = "the fault";

impl Report for CoreReport {
    fn print(&self, screen: &mut Screen) -> io::Result<()> {
        screen.line(&self.verdict)?;
        for row in
            self.wrong_frees.iter().filter(|row| row.is_last).chain(self.wrong_frees.iter().filter(|row| !row.is_last))
        {
            let last = if row.is_last { ", the last event of the thread that crashed" } else { "" };
            screen.heading(&format!("{} of {}{last}", row.kind, row.address))?;
            screen.line(&format!("{}: {}, in {}", row.what, row.event.at.text(), thread(&row.event)))?;
            print_stack(screen, &row.event)?;
            for block in &row.blocks {
                screen.line(&location(block))?;
                print_block(screen, block)?;
            }
        }
        if let Some(alive) = &self.alive {
            alive.print(screen)?;
        }
        // Of blocks that live on, one line says enough, unless the fault is in one.
        let (told, others): (Vec<&PlaceRow>, Vec<&PlaceRow>) =
            self.places.iter().partition(|place| place.is_freed || place.found_in[0] == FAULT);
        // A register of a program that runs on may have what it was last used for.
        let told = if self.alive.is_none() { told } else { Vec::new() };
        for place in told {
            screen.heading(&format!("{}: {}", place.found_in.join(", "), place.what))?;
            let told = if self.is_recorded { &place.blocks[..] } else { &[] };
            for (number, block) in told.iter().enumerate() {
                screen.line(&format!("{}. {}", number + 1, location(block)))?;
                print_block(screen, block)?;
            }
            if place.older_blocks > 0 {
                screen.line(&format!("and {} older (--top N)", place.older_blocks))?;
            }
            for (side, found) in [("before", &place.below), ("after", &place.above)] {
                if let Some(found) = found.as_ref().filter(|found| found.distance < FAR) {
                    let NeighborRow { address, bytes, distance, line } = found;
                    let (size, away) = (counted(*bytes, "byte"), counted(*distance, "byte"));
                    screen.line(&format!("live {side} it: {size} at {address}, {away} away, {line}"))?;
                }
            }
        }
        let is_untold = |block: &BlockRow| block.end.as_ref().is_some_and(|end| end.has_no_stack());
        let blocks = || self.places.iter().flat_map(|place| &place.blocks);
        if self.is_recorded
            && self.alive.is_none()
            && blocks().chain(self.wrong_frees.iter().flat_map(|row| &row.blocks)).any(is_untold)
        {
            screen.line("record with --free-stacks to see who freed a block")?;
        }
        if !others.is_empty() {
            screen.heading("Registers with addresses of live blocks")?;
        }
        for place in others {
            screen.line(&format!("  {}: {}", place.found_in.join(", "), place.what))?;
        }
        if let Some(heap) = &self.heap {
            heap.print(self.alive.is_some(), screen)?;
        }
        screen.heading("Threads")?;
        for (at, tids) in by_place(&self.threads) {
            let mut text: Vec<String> = tids.iter().take(MAX_TIDS).map(u32::to_string).collect();
            if tids.len() > MAX_TIDS {
                text.push("…".into());
            }
            match tids.len() {
                1 => screen.line(&format!("  {} in {at}", text[0]))?,
                several => screen.line(&format!("  {several} in {at}: {}", text.join(", ")))?,
            }
        }
        if let Some(alive) = &self.alive {
            screen.line(&alive.next)?;
        }
        Ok(())
    }
}
