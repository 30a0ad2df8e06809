//! The sums of processes that are over, by program: a shell script's thousand children are one row.
//! Call sites of processes that were loaded at different addresses become one tree; each module
//! gets a range of addresses of its own in it.

use crate::contribution::{Contribution, Frame, Row};
use crate::profile::{BINS, BOUNDS, Sums as ClassSums};
use crate::store::Sums;
use crate::symbols::{Job, Opened};
use formats::mptl::{self, Bins, Builder};
use formats::tape::field::Text;
use formats::tape::{
    self, Account, Accounts, Code, CodeRange, Module, Record, Site, SiteSums, Sites, Summary, SymbolQuery, Totals,
    instruction,
};
use rustc_hash::FxHashMap;
use std::path::PathBuf;

/// Link-time addresses are below this; a module's range begins at a multiple of it.
const RANGE: u64 = 1 << 36;
/// Code that has a name and no module is given addresses where no process has any, a fixed number
/// of bytes each.
const NAMES: u64 = 1 << 47;
const NAME_BYTES: u64 = 16;
/// Such names of one program, of at most 1 KiB; code that has another one counts for its caller.
const MOST_NAMES: usize = 1 << 15;
/// Names of one tape record.
const NAMES_A_RECORD: usize = 1 << 12;
/// Modules of one program; more are kept as unknown addresses.
const MOST_MODULES: usize = 1 << 10;
/// Frames of one program's tree; what comes behind counts for its outermost known caller, in the
/// end for none.
const MOST_FRAMES: usize = 1 << 20;
/// Sites of one tape record.
const SITES_A_RECORD: usize = 1 << 16;

/// One program's processes together.
#[derive(Debug)]
pub struct Program {
    exe: String,
    label: String,
    uid: u32,
    modules: Vec<Module>,
    /// The file of each, and its separate debug information.
    files: Vec<[Option<Opened>; 2]>,
    /// Frames whose names were looked up.
    named: usize,
    /// Names of code that no module describes, and the place of each in the order in which they
    /// came.
    names: FxHashMap<Text, u64>,
    frames: Vec<Frame>,
    known: FxHashMap<(u32, u32, u64, bool, u8), u32>,
    rows: FxHashMap<u32, Row>,
    totals: Totals,
    bins: Bins,
    account: Sums,
    /// How many processes.
    pub processes: u64,
    started_unix_ns: u64,
    /// Whether something was added since it was written.
    pub is_new: bool,
}

impl Program {
    /// A program of which nothing is known yet.
    pub fn new(exe: &str, label: &str, uid: u32, started_unix_ns: u64) -> Program {
        let (modules, files, names, frames, known, rows, totals, account) = Default::default();
        let (exe, label, bins) = (exe.to_owned(), label.to_owned(), Bins::new(BINS));
        let (processes, is_new) = (0, true);
        Program {
            exe,
            label,
            uid,
            modules,
            files,
            named: 0,
            names,
            frames,
            known,
            rows,
            totals,
            bins,
            account,
            processes,
            started_unix_ns,
            is_new,
        }
    }

    /// Adds a process.
    pub fn add(&mut self, from: &Contribution) {
        self.processes += 1;
        self.is_new = true;
        let modules: Vec<u32> =
            (0..from.modules.len()).map(|at| self.module(&from.modules[at], from.files.get(at))).collect();
        let mut places = Vec::with_capacity(from.frames.len());
        for frame in &from.frames {
            let parent = place(&places, frame.parent);
            let module = (frame.module as usize).checked_sub(1).and_then(|at| modules.get(at)).copied().unwrap_or(0);
            let module = if frame.address < RANGE { module } else { 0 };
            places.push(if frame.is_named {
                let name = from.names.get(frame.address as usize).and_then(|name| self.name(name));
                name.map_or(parent, |address| self.frame(Frame { parent, module: 0, address, ..*frame }))
            } else {
                self.frame(Frame { parent, module, ..*frame })
            });
        }
        if from.totals.peak_bytes > self.totals.peak_bytes {
            // The greatest peak of one process, and who made it.
            self.rows.values_mut().for_each(|row| (row.sums.peak_blocks, row.sums.peak_bytes) = (0, 0));
        }
        let is_peak = from.totals.peak_bytes > self.totals.peak_bytes;
        for row in &from.rows {
            let at = place(&places, row.sums.site);
            if at == 0 {
                continue;
            }
            let mine = self
                .rows
                .entry(at)
                .or_insert_with(|| Row { sums: SiteSums { site: at, ..SiteSums::default() }, ..Row::default() });
            let (sums, more) = (&mut mine.sums, &row.sums);
            sums.allocs += more.allocs;
            sums.bytes = sums.bytes.saturating_add(more.bytes);
            sums.frees += more.frees;
            sums.freed_bytes = sums.freed_bytes.saturating_add(more.freed_bytes);
            if is_peak {
                sums.peak_blocks += more.peak_blocks;
                sums.peak_bytes += more.peak_bytes;
            }
            mine.classes.iter_mut().zip(row.classes).for_each(|(class, more)| class.add(more));
        }
        let (totals, more) = (&mut self.totals, &from.totals);
        for (sum, more) in [
            (&mut totals.allocs, more.allocs),
            (&mut totals.resizes, more.resizes),
            (&mut totals.frees, more.frees),
            (&mut totals.bytes_allocated, more.bytes_allocated),
            (&mut totals.live_blocks, more.live_blocks),
            (&mut totals.live_bytes, more.live_bytes),
            (&mut totals.unknown_frees, more.unknown_frees),
            (&mut totals.implied_frees, more.implied_frees),
        ] {
            *sum = sum.saturating_add(more);
        }
        totals.peak_bytes = totals.peak_bytes.max(more.peak_bytes);
        totals.peak_blocks = totals.peak_blocks.max(more.peak_blocks);
        self.bins.add(&from.bins);
        self.account.add(from.account);
    }

    fn module(&mut self, module: &Module, files: Option<&[Option<Opened>; 2]>) -> u32 {
        let same = |known: &Module| known.path == module.path && known.build_id == module.build_id;
        if let Some(at) = self.modules.iter().position(same) {
            let known = &mut self.modules[at];
            known.end = known.end.max(known.start + (module.end - module.start).min(RANGE));
            return known.number;
        }
        if self.modules.len() >= MOST_MODULES {
            return 0;
        }
        let number = self.modules.len() as u32 + 1;
        let bias = u64::from(number) * RANGE;
        let start = bias + module.start.wrapping_sub(module.bias).min(RANGE - 1);
        let end = (start + module.end.saturating_sub(module.start)).min(bias + RANGE);
        self.modules.push(Module { number, start, end, bias, ..module.clone() });
        self.files.push(files.cloned().unwrap_or_default());
        number
    }

    /// The place of a name among those of all processes.
    fn name(&mut self, name: &Text) -> Option<u64> {
        let place = self.names.len();
        match self.names.get(name) {
            Some(known) => Some(*known),
            None if place >= MOST_NAMES => None,
            None => {
                self.names.insert(name.clone(), place as u64);
                Some(place as u64)
            }
        }
    }

    fn frame(&mut self, frame: Frame) -> u32 {
        let key = (frame.parent, frame.module, frame.address, frame.is_named, frame.flags);
        if let Some(place) = self.known.get(&key) {
            return *place;
        }
        if self.frames.len() >= MOST_FRAMES {
            return frame.parent;
        }
        self.frames.push(frame);
        let place = self.frames.len() as u32;
        self.known.insert(key, place);
        place
    }

    /// What is to be looked up for its names; nothing when frames became no more by an eighth, or,
    /// at the last, no more at all.
    pub fn symbols(&mut self, folder: PathBuf, reader: Option<u32>, is_last: bool) -> Option<Job> {
        let least = if is_last { self.named } else { self.named + self.named / 8 };
        if self.frames.len() <= least {
            return None;
        }
        self.named = self.frames.len();
        let mut addresses: Vec<Vec<u64>> = vec![Vec::new(); self.modules.len()];
        for frame in self.frames.iter().filter(|frame| !frame.is_named) {
            if let Some(of) = (frame.module as usize).checked_sub(1).and_then(|place| addresses.get_mut(place)) {
                of.push(instruction(frame.address, frame.flags));
            }
        }
        let mut job = Job { folders: vec![folder], reader, ..Job::default() };
        for ((module, files), mut addresses) in self.modules.iter().zip(&self.files).zip(addresses) {
            if addresses.is_empty() || !module.path.0.starts_with(b"/") {
                continue;
            }
            addresses.sort_unstable();
            addresses.dedup();
            let [file, debug_file] = files.clone().map(|file| job.add(file));
            let (path, build_id) = (module.path.clone(), module.build_id.clone());
            job.queries.push(SymbolQuery { path, build_id, file, debug_file, addresses });
        }
        (!job.queries.is_empty()).then_some(job)
    }

    fn address(frame: &Frame) -> u64 {
        match frame.is_named {
            // A return address is that of what follows the call.
            true => NAMES + frame.address * NAME_BYTES + 1,
            false => u64::from(frame.module) * RANGE + frame.address,
        }
    }

    fn site_sums(&self) -> Vec<SiteSums> {
        let mut sums: Vec<SiteSums> = self.rows.values().map(|row| row.sums.clone()).collect();
        sums.sort_unstable_by_key(|sums| sums.site);
        sums
    }

    /// The records of its tape.
    pub fn tape(&self, unix_ns: u64) -> Vec<Record> {
        let lifetime = unix_ns.saturating_sub(self.started_unix_ns);
        let process = tape::Process {
            uid: self.uid,
            origin: 3,
            ticks_per_second: 1_000_000_000,
            start_unix_ns: self.started_unix_ns,
            page_size: wire::area::PAGE as u32,
            exe: self.exe.as_str().into(),
            argv: vec![self.exe.as_str().into()],
            label: self.label.as_str().into(),
            recorder: env!("CARGO_PKG_VERSION").into(),
            ..tape::Process::default()
        };
        let mut records = vec![Record::Process(process)];
        records.extend(self.modules.iter().cloned().map(Record::Module));
        let site = |frame: &Frame| Site { parent: frame.parent, address: Program::address(frame), flags: frame.flags };
        let sites: Vec<Site> = self.frames.iter().map(site).collect();
        for (chunk, first) in sites.chunks(SITES_A_RECORD).zip((1..).step_by(SITES_A_RECORD)) {
            records.push(Record::Sites(Sites { first, sites: chunk.to_vec() }));
        }
        let range = |(name, place): (&Text, &u64)| CodeRange {
            start: NAMES + place * NAME_BYTES,
            length: NAME_BYTES,
            name: name.clone(),
        };
        let ranges: Vec<CodeRange> = self.names.iter().map(range).collect();
        records.extend(ranges.chunks(NAMES_A_RECORD).map(|ranges| Record::Code(Code { ranges: ranges.to_vec() })));
        let text = format!("the sums of {} processes that are over", self.processes).as_str().into();
        records.push(Record::Note(tape::Note { tick: 0, text }));
        let Sums { emitted, recorded, lost, sampled_out } = self.account;
        let account = Account { thread: 1, emitted, recorded, lost, sampled_out };
        records.push(Record::Accounts(Accounts { accounts: vec![account] }));
        records.push(Record::Summary(Summary { totals: self.totals.clone(), sites: self.site_sums() }));
        records.push(Record::End(tape::End { tick: lifetime, unix_ns, reason: tape::END_EXITED, status: 0 }));
        records
    }

    /// Its profile.
    pub fn mptl(&self) -> Vec<u8> {
        let mut builder = Builder::new(BOUNDS, self.bins.clone());
        for (frame, place) in self.frames.iter().zip(1u32..) {
            let number = builder.site(frame.parent.into(), Program::address(frame), None);
            if let Some(row) = self.rows.get(&place) {
                let of = |value: fn(&ClassSums) -> u64| [0, 1, 2, 3].map(|class: usize| value(&row.classes[class]));
                let allocated = mptl::Sums { counts: of(|sums| sums.allocs), totals: of(|sums| sums.bytes) };
                let freed = mptl::Sums { counts: of(|sums| sums.frees), totals: of(|sums| sums.freed_bytes) };
                builder.sums(number, allocated, freed);
            }
        }
        let mut out = Vec::new();
        builder.build().write(&mut out);
        out
    }
}

fn place(places: &[u32], number: u32) -> u32 {
    (number as usize).checked_sub(1).and_then(|at| places.get(at)).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contribution(bias: u64, live: u64) -> Contribution {
        let module = Module {
            number: 7,
            start: bias + 0x1000,
            end: bias + 0x9000,
            bias,
            path: "/bin/x".into(),
            build_id: "b".into(),
        };
        let frame = |parent, address| Frame { parent, module: 1, address, is_named: false, flags: 0 };
        let sums = SiteSums {
            site: 2,
            allocs: 3,
            bytes: 30,
            frees: 3 - live,
            freed_bytes: 30 - 10 * live,
            ..SiteSums::default()
        };
        Contribution {
            modules: vec![module],
            files: Vec::new(),
            names: Vec::new(),
            frames: vec![frame(0, 0x1100), frame(1, 0x1200)],
            rows: vec![Row { sums, ..Row::default() }],
            totals: Totals {
                allocs: 3,
                frees: 3 - live,
                live_blocks: live,
                live_bytes: 10 * live,
                ..Totals::default()
            },
            bins: Bins::new(BINS),
            account: Sums { emitted: 6 - live, recorded: 6 - live, ..Sums::default() },
            is_over: true,
            whole: true,
        }
    }

    #[test]
    fn processes_at_different_addresses_add_up() {
        let mut program = Program::new("/bin/x", "", 0, 5);
        program.add(&contribution(0x5555_0000_0000, 1));
        program.add(&contribution(0x7777_0000_0000, 2));
        assert_eq!((program.frames.len(), program.modules.len(), program.processes), (2, 1, 2));
        let records = program.tape(9);
        let summary = records.iter().find_map(|record| match record {
            Record::Summary(summary) => Some(summary.clone()),
            _ => None,
        });
        let summary = summary.unwrap_or_else(|| panic!("no summary"));
        let row = &summary.sites[0];
        assert_eq!((row.site, row.allocs, row.bytes, row.frees, row.freed_bytes), (2, 6, 60, 3, 30));
        assert_eq!((summary.totals.live_blocks, summary.totals.live_bytes), (3, 30));
        let profile = mptl::Profile::read(&program.mptl());
        assert!(profile.is_ok());
    }

    #[test]
    fn code_made_at_run_time_adds_up_by_name() {
        let mut program = Program::new("/bin/x", "", 0, 5);
        for names in [["one", "two"], ["two", "one"]] {
            let mut from = contribution(0x5555_0000_0000, 1);
            from.names = names.map(Text::from).to_vec();
            // The first frame's name is `two` both times, at another place each.
            let address = u64::from(names[1] == "two");
            from.frames[0] = Frame { parent: 0, module: 0, address, is_named: true, flags: 0 };
            program.add(&from);
        }
        assert_eq!((program.frames.len(), program.names.len()), (2, 1));
        let records = program.tape(9);
        let code = records.iter().find_map(|record| match record {
            Record::Code(code) => code.ranges.first(),
            _ => None,
        });
        let sites = records.iter().find_map(|record| match record {
            Record::Sites(sites) => sites.sites.first(),
            _ => None,
        });
        let (Some(code), Some(site)) = (code, sites) else { panic!("no names or no sites: {records:?}") };
        assert_eq!(code.name, Text::from("two"));
        assert!((code.start..code.start + code.length).contains(&instruction(site.address, site.flags)));
    }

    #[test]
    fn nonsense_adds_nothing_wrong() {
        let mut program = Program::new("/bin/x", "", 0, 5);
        let mut from = contribution(0, 0);
        from.frames[1] = Frame { parent: 99, module: 99, address: u64::MAX, is_named: true, flags: 255 };
        from.rows[0].sums.site = 77;
        program.add(&from);
        assert_eq!(program.site_sums(), []);
    }
}
