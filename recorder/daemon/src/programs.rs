//! The sums of ended processes, by program, so that the thousand children of a shell script are one
//! row. Call sites of processes that were loaded at different addresses become one tree, in which
//! each module has a range of addresses of its own.

use formats::mptl::{self, Bins, Builder};
use formats::recording::Accounting;
use formats::tape::field::Text;
use formats::tape::{
    self, Account, Accounts, Code, CodeRange, Module, Record, Site, SiteSums, Sites, Summary, Totals, instruction,
};
use heaptape_recorder::heap::profile::{BINS, BOUNDS, Sums as ClassSums};
use heaptape_recorder::heap::profile_delta::{Frame, ProfileDelta, Row};
use heaptape_recorder::os::processor::page_bytes;
use heaptape_recorder::target::name_saver::{Job, Opened};
use rustc_hash::FxHashMap;
use std::path::PathBuf;

/// Limit of link-time addresses. The range of a module starts at a multiple of it.
const MODULE_RANGE: u64 = 1 << 36;
/// First address of code that has a name and no module. No process has addresses from here on.
const NAMES_START: u64 = 1 << 47;
/// Length of the address range of each such name, in bytes.
const NAME_BYTES: u64 = 16;
/// Maximum number of such names of one program, of at most 1 KiB each. Code with a further name
/// counts for its caller.
const MAX_NAMES: usize = 1 << 15;
/// Number of names in one tape record.
const NAMES_PER_RECORD: usize = 1 << 12;
/// Maximum number of modules of one program. Further modules are stored as unknown addresses.
const MAX_MODULES: usize = 1 << 10;
/// Maximum number of frames of one program's tree. Further frames count for their innermost known
/// caller, if there is one.
const MAX_FRAMES: usize = 1 << 20;
/// Number of sites in one tape record.
const SITES_PER_RECORD: usize = 1 << 16;

/// The sums of all processes of one program.
#[derive(Debug)]
pub(crate) struct Program {
    exe: String,
    label: String,
    uid: u32,
    modules: Vec<Module>,
    /// File of each module and of its separate debug information.
    files: Vec<[Option<Opened>; 2]>,
    /// Number of frames whose names were looked up.
    resolved_frames: usize,
    /// Names of code that no module describes, with their indexes in the order of their addition.
    names: FxHashMap<Text, u64>,
    frames: Vec<Frame>,
    frame_numbers: FxHashMap<Frame, u32>,
    rows: FxHashMap<u32, Row>,
    totals: Totals,
    bins: Bins,
    account: Accounting,
    /// Number of processes in the sums.
    pub processes: u64,
    started_unix_ns: u64,
    /// Whether a process was added since the program was written.
    pub is_new: bool,
}

impl Program {
    /// Creates a program without processes.
    pub(crate) fn new(exe: &str, label: &str, uid: u32, started_unix_ns: u64) -> Program {
        Program {
            exe: exe.to_owned(),
            label: label.to_owned(),
            uid,
            modules: Vec::new(),
            files: Vec::new(),
            resolved_frames: 0,
            names: FxHashMap::default(),
            frames: Vec::new(),
            frame_numbers: FxHashMap::default(),
            rows: FxHashMap::default(),
            totals: Totals::default(),
            bins: Bins::new(BINS),
            account: Accounting::default(),
            processes: 0,
            started_unix_ns,
            is_new: true,
        }
    }

    /// Adds the contribution of a process.
    pub(crate) fn add(&mut self, from: &ProfileDelta) {
        self.processes += 1;
        self.is_new = true;
        let modules: Vec<u32> =
            (0..from.modules.len()).map(|at| self.module(&from.modules[at], from.files.get(at))).collect();
        let mut numbers = Vec::with_capacity(from.frames.len());
        for frame in &from.frames {
            let parent = number_in_program(&numbers, frame.parent);
            let module = (frame.module as usize).checked_sub(1).and_then(|at| modules.get(at)).copied().unwrap_or(0);
            let module = if frame.address < MODULE_RANGE { module } else { 0 };
            numbers.push(if frame.is_named {
                let name = from.names.get(frame.address as usize).and_then(|name| self.name(name));
                name.map_or(parent, |address| self.frame(Frame { parent, module: 0, address, ..*frame }))
            } else {
                self.frame(Frame { parent, module, ..*frame })
            });
        }
        if from.totals.peak_bytes > self.totals.peak_bytes {
            // The peak is the greatest one of a single process, with its sites.
            self.rows.values_mut().for_each(|row| (row.sums.peak_blocks, row.sums.peak_bytes) = (0, 0));
        }
        let is_peak = from.totals.peak_bytes > self.totals.peak_bytes;
        for row in &from.rows {
            let at = number_in_program(&numbers, row.sums.site);
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
        let same = |known: &Module| {
            (&known.path, &known.build_id, &known.file) == (&module.path, &module.build_id, &module.file)
        };
        if let Some(at) = self.modules.iter().position(same) {
            let known = &mut self.modules[at];
            known.end = known.end.max(known.start + (module.end - module.start).min(MODULE_RANGE));
            return known.number;
        }
        if self.modules.len() >= MAX_MODULES {
            return 0;
        }
        let number = self.modules.len() as u32 + 1;
        let bias = u64::from(number) * MODULE_RANGE;
        let start = bias + module.start.wrapping_sub(module.bias).min(MODULE_RANGE - 1);
        let end = (start + module.end.saturating_sub(module.start)).min(bias + MODULE_RANGE);
        self.modules.push(Module { number, start, end, bias, ..module.clone() });
        self.files.push(files.cloned().unwrap_or_default());
        number
    }

    /// Returns the index of a name among those of all processes; `None` when there are too many.
    fn name(&mut self, name: &Text) -> Option<u64> {
        let index = self.names.len();
        match self.names.get(name) {
            Some(known) => Some(*known),
            None if index >= MAX_NAMES => None,
            None => {
                self.names.insert(name.clone(), index as u64);
                Some(index as u64)
            }
        }
    }

    fn frame(&mut self, frame: Frame) -> u32 {
        if let Some(number) = self.frame_numbers.get(&frame) {
            return *number;
        }
        if self.frames.len() >= MAX_FRAMES {
            return frame.parent;
        }
        self.frames.push(frame);
        let number = self.frames.len() as u32;
        self.frame_numbers.insert(frame, number);
        number
    }

    /// Returns the job that looks up the program's names; `None` when the number of frames has
    /// grown by less than an eighth, or, for the last job, not at all.
    pub(crate) fn symbols(&mut self, folder: PathBuf, reader: Option<u32>, is_last: bool) -> Option<Job> {
        let least = if is_last { self.resolved_frames } else { self.resolved_frames + self.resolved_frames / 8 };
        if self.frames.len() <= least {
            return None;
        }
        self.resolved_frames = self.frames.len();
        let mut addresses: Vec<Vec<u64>> = vec![Vec::new(); self.modules.len()];
        for frame in self.frames.iter().filter(|frame| !frame.is_named) {
            if let Some(of) = (frame.module as usize).checked_sub(1).and_then(|index| addresses.get_mut(index)) {
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
            job.ask(module, self.started_unix_ns, files.clone(), addresses);
        }
        (!job.queries.is_empty()).then_some(job)
    }

    fn address(frame: &Frame) -> u64 {
        match frame.is_named {
            // A return address is the address after the call.
            true => NAMES_START + frame.address * NAME_BYTES + 1,
            false => u64::from(frame.module) * MODULE_RANGE + frame.address,
        }
    }

    fn site_sums(&self) -> Vec<SiteSums> {
        let mut sums: Vec<SiteSums> = self.rows.values().map(|row| row.sums.clone()).collect();
        sums.sort_unstable_by_key(|sums| sums.site);
        sums
    }

    /// Returns the records of the program's tape.
    pub(crate) fn tape(&self, unix_ns: u64) -> Vec<Record> {
        let lifetime = unix_ns.saturating_sub(self.started_unix_ns);
        let process = tape::Process {
            uid: self.uid,
            origin: 3,
            ticks_per_second: 1_000_000_000,
            start_unix_ns: self.started_unix_ns,
            page_size: page_bytes() as u32,
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
        for (chunk, first) in sites.chunks(SITES_PER_RECORD).zip((1..).step_by(SITES_PER_RECORD)) {
            records.push(Record::Sites(Sites { first, sites: chunk.to_vec() }));
        }
        let range = |(name, index): (&Text, &u64)| CodeRange {
            start: NAMES_START + index * NAME_BYTES,
            length: NAME_BYTES,
            name: name.clone(),
        };
        let ranges: Vec<CodeRange> = self.names.iter().map(range).collect();
        records.extend(ranges.chunks(NAMES_PER_RECORD).map(|ranges| Record::Code(Code { ranges: ranges.to_vec() })));
        let text = format!("sums of {} ended processes", self.processes).as_str().into();
        records.push(Record::Note(tape::Note { tick: 0, text }));
        let Accounting { emitted, recorded, lost, sampled_out } = self.account;
        let account = Account { thread: 1, emitted, recorded, lost, sampled_out };
        records.push(Record::Accounts(Accounts { accounts: vec![account] }));
        records.push(Record::Summary(Summary { totals: self.totals.clone(), sites: self.site_sums() }));
        records.push(Record::End(tape::End { tick: lifetime, unix_ns, reason: tape::END_EXITED, status: 0 }));
        records
    }

    /// Returns the program's profile as a file.
    pub(crate) fn mptl(&self) -> Vec<u8> {
        let mut builder = Builder::new(BOUNDS, self.bins.clone());
        for (frame, frame_number) in self.frames.iter().zip(1u32..) {
            let number = builder.site(frame.parent.into(), Program::address(frame), None);
            if let Some(row) = self.rows.get(&frame_number) {
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

/// Returns the number of a process's frame in the tree of the program; 0 for none.
fn number_in_program(numbers: &[u32], number: u32) -> u32 {
    (number as usize).checked_sub(1).and_then(|at| numbers.get(at)).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile_delta(bias: u64, live: u64) -> ProfileDelta {
        let module = Module {
            number: 7,
            start: bias + 0x1000,
            end: bias + 0x9000,
            bias,
            path: "/bin/x".into(),
            build_id: "b".into(),
            ..Module::default()
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
        ProfileDelta {
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
            account: Accounting { emitted: 6 - live, recorded: 6 - live, ..Accounting::default() },
            is_over: true,
            has_no_files: true,
        }
    }

    #[test]
    fn processes_at_different_addresses_add_up() {
        let mut program = Program::new("/bin/x", "", 0, 5);
        program.add(&profile_delta(0x5555_0000_0000, 1));
        program.add(&profile_delta(0x7777_0000_0000, 2));
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
            let mut from = profile_delta(0x5555_0000_0000, 1);
            from.names = names.map(Text::from).to_vec();
            // The name of the first frame is `two` both times, with another index each.
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
    fn invalid_references_are_ignored() {
        let mut program = Program::new("/bin/x", "", 0, 5);
        let mut from = profile_delta(0, 0);
        from.frames[1] = Frame { parent: 99, module: 99, address: u64::MAX, is_named: true, flags: 255 };
        from.rows[0].sums.site = 77;
        program.add(&from);
        assert_eq!(program.site_sums(), []);
    }
}
