//! Plans which functions of allocators inside a program are hooked, and how.
//!
//! LD_PRELOAD replaces only what the loader binds by name. An allocator that is linked into the
//! program is called directly, so its functions get a jump to the library in their first bytes.
//! The recorder finds the functions by their symbols, moves their first instructions, and writes
//! the result into the process's area. The library verifies and applies it.
//!
//! The files belong to programs that may be hostile: see [`symbols`] for the bounds.

mod cache_flush;
mod description;
mod families;
mod file;
mod jump;
mod marks;
mod names;
mod noted;
mod search;
mod separate;
mod stored;
pub(crate) mod symbols;
mod unhooked;

pub use description::{Description, OwnAllocator};
pub use jump::Jump;
pub(crate) use jump::MovedInstruction;
pub use noted::Noted;
pub use separate::build_id_without_symbols;

use crate::inject::maps::{CodeMapping, Maps};
use crate::inject::search_tables::{self, Known, ObjectTable};
use crate::os::processor::code::{self as machine, ENTRY_BYTES, PADDING, RESTORE};
use crate::os::processor::{moved, page_bytes};
use crate::os::sys::{self, Mapping};
use crate::target::maps;
use crate::target::module_files::open_file;
use file::{FileFunction, FileFunctions, Reach, Role};
use formats::recording::{Allocator, ProcessInfo, RAN_ALREADY, Refused};
use names::Names;
use nix::sys::stat::fstat;
use search::Search;
use std::fs::File;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use symbols::Fault;
use unhooked::Unhooked;
use wire::Op;
use wire::area::PAGE;
use wire::patches::{self, Action, CODE_BYTES, FIRST_FUNCTION, Function, MAX_PATCHES, MAX_RUNS, WRITTEN};

/// Size of the code of a function, at most: its description, the entry, the moved instructions.
const MAX_FUNCTION_BYTES: u64 = 128;
const NO_ALLOCATOR: usize = usize::MAX;
/// Maximum number of reasons that are kept for an allocator.
const MAX_REFUSED: usize = 20;

/// Why calls that map memory are not recorded: no hook of these functions is in the process.
const IS_STATIC: &str = "it is a static program";
/// The same of a program that is linked with such functions, as with gperftools' allocator.
const HAS_OWN_MMAP: &str = "it has an mmap of its own, which it calls instead";

/// Returns the reason of this text, which a recorder has noted; empty if it is none.
fn reason(noted: &str) -> &'static str {
    [RAN_ALREADY, IS_STATIC, HAS_OWN_MMAP].into_iter().find(|why| *why == noted).unwrap_or_default()
}

/// Why a file has not been searched.
const TOO_LARGE: &str = "its symbol table is too large to be searched while the program waits";

/// The time that the search of files may take under the daemon, whose processes give up their
/// attach after 50 ms by default.
pub const SHORT_BUDGET: Duration = Duration::from_millis(20);
/// The time that it may take under `heaptape record`, whose processes wait as long as it lives. Other
/// processes may want to attach meanwhile.
pub(crate) const MEDIUM_BUDGET: Duration = Duration::from_millis(250);
/// The time that it may take while no other process is recorded.
pub(crate) const LONG_BUDGET: Duration = Duration::from_secs(1);

/// Plans the patches of processes, and remembers the functions of files.
#[derive(Clone, Debug)]
pub struct Planner {
    search: Search,
    tables: Known,
    /// The time that the search of files may take, instead of what the caller allows.
    limit: Option<Duration>,
}

/// A function that is to be hooked.
#[derive(Clone, Debug)]
struct PlannedPatch {
    allocator: usize,
    name: String,
    address: u64,
    target: u64,
    expected: Vec<u8>,
    moved: Vec<MovedInstruction>,
}

/// A run of code near to a module.
#[derive(Clone, Debug)]
struct PlannedRun {
    address: u64,
    code: Vec<u8>,
}

/// A file that a process executes code of.
struct Module {
    mapping: CodeMapping,
    is_program: bool,
    /// Size of the file.
    bytes: u64,
    file: Option<File>,
    found: Option<Result<Arc<FileFunctions>, Fault>>,
}

/// What is to be hooked in a process.
#[derive(Debug, Default)]
pub struct Plan {
    allocators: Vec<Allocator>,
    patches: Vec<PlannedPatch>,
    runs: Vec<PlannedRun>,
    /// Search tables for objects without one.
    tables: Vec<ObjectTable>,
    code_bytes: usize,
    /// Addresses of functions below which mapped memory is an allocator's.
    growth: Vec<Range<u64>>,
    /// Why calls that map memory are not recorded; empty if they are.
    unseen_mappings: &'static str,
    /// Allocators that are known and not hooked.
    unhooked: Arc<Unhooked>,
    /// Number of recorded events of each allocator number.
    seen: [AtomicU64; Op::ALLOCATORS as usize],
}

impl Planner {
    /// Creates a planner for all known allocators, and those that the user names.
    pub fn new(own: &[OwnAllocator]) -> Planner {
        Planner { search: Search::new(Names::shared(own)), tables: Known::default(), limit: None }
    }

    /// Stores the symbols of large files in a folder, and uses what is stored there.
    #[must_use]
    pub fn stored_in(mut self, folder: Option<&Path>) -> Planner {
        folder.into_iter().for_each(|folder| self.search.store_in(folder));
        self
    }

    /// Limits the time of a program's start that the search of its files may take.
    #[must_use]
    pub(crate) fn limited_to(mut self, limit: Option<Duration>) -> Planner {
        self.limit = limit;
        self
    }

    /// Returns the planner of a process that must not start threads: it searches nothing in the
    /// background.
    #[must_use]
    pub(crate) fn without_background(self) -> Planner {
        self.search.forbid_threads();
        self
    }

    /// Returns whether a file was too large to be searched, and is not searched in the background.
    pub(crate) fn has_missed(&self) -> bool {
        self.search.has_missed()
    }

    /// Returns whether files are still searched in the background.
    pub(crate) fn is_working(&self) -> bool {
        self.search.is_working()
    }

    /// Waits until nothing is searched in the background, for at most this time.
    pub fn finish(&self, timeout: Duration) {
        self.search.finish(timeout);
    }

    /// Plans the patches of a process that waits in its attach, by its `maps`. The search of files takes at most
    /// `budget`; what is not found in this time is searched in the background, for later processes.
    pub fn plan(&self, pid: u32, maps: &[u8], budget: Duration) -> Plan {
        self.search.while_program_waits(|| self.plan_for(pid, maps, Reach::FromStart, budget))
    }

    /// Plans the patches of a process that runs already and has no library yet.
    pub(crate) fn plan_running(&self, pid: u32, budget: Duration) -> Plan {
        self.plan_for(pid, &maps::read(pid), Reach::Running, budget)
    }

    fn plan_for(&self, pid: u32, maps: &[u8], reach: Reach, budget: Duration) -> Plan {
        let deadline = Instant::now() + self.limit.unwrap_or(budget);
        let mut plan = Plan::default();
        if reach == Reach::Running {
            plan.unseen_mappings = RAN_ALREADY;
        }
        let mut maps = Maps::parse(&String::from_utf8_lossy(maps));
        let process = PathBuf::from(format!("/proc/{pid}"));
        let program = open_file(&process.join("exe"));
        let program_inode = program.as_ref().and_then(|file| fstat(file).ok()).map_or(0, |status| status.st_ino);
        let mut modules: Vec<Module> = Vec::new();
        // Nothing is hooked in our library, whose symbol table is large.
        for mapping in maps.code.iter().filter(|mapping| !maps::is_library(&mapping.path)) {
            if modules.iter().any(|module| module.mapping.inode == mapping.inode) {
                continue;
            }
            let is_program = mapping.inode == program_inode;
            let Some(file) = open_mapped(&process, mapping, is_program) else { continue };
            plan.tables.extend(self.tables.of(&file, mapping));
            let bytes = file.metadata().map_or(0, |status| status.len());
            modules.push(Module { mapping: mapping.clone(), is_program, bytes, file: Some(file), found: None });
        }
        // The smallest file first, so that the time of a large one is not that of all others.
        let mut by_size: Vec<&mut Module> = modules.iter_mut().collect();
        by_size.sort_by_key(|module| module.bytes);
        for module in by_size {
            let role = Role { is_program: module.is_program, reach };
            module.found = module.file.take().map(|file| self.search.functions(file, role, deadline));
        }
        let unhooked = Unhooked::new(&self.search, Role { is_program: false, reach }, &maps);
        let searched = modules.iter().filter_map(|module| module.found.as_ref()?.as_ref().ok());
        let imports = searched.flat_map(|functions| functions.imports.iter().map(|name| &name[..])).collect();
        for Module { mapping, is_program, found, .. } in &modules {
            if let (true, Some(Ok(functions))) = (*is_program, found) {
                plan.unseen_mappings = match functions {
                    functions if functions.is_static => IS_STATIC,
                    functions if functions.has_own_mmap => HAS_OWN_MMAP,
                    _ => plan.unseen_mappings,
                };
            }
            match found {
                Some(Ok(functions)) if functions.is_by_import => {
                    let functions = functions.imported(&imports);
                    if !functions.functions.is_empty() {
                        plan.add(&functions, mapping, *is_program, &mut maps);
                    }
                }
                Some(Ok(functions)) if !functions.functions.is_empty() => {
                    plan.add(functions, mapping, *is_program, &mut maps);
                }
                Some(Ok(functions)) if functions.is_without_allocator() => unhooked.add(&mapping.path, functions),
                Some(Err(Fault::Late)) => plan.not_searched(&mapping.path, self.too_large()),
                _ => {}
            }
        }
        plan.unhooked = Arc::new(unhooked);
        plan
    }

    /// Returns whether a program's file has functions of an allocator that can be hooked.
    ///
    /// # Errors
    /// The file is too large to be searched at once, or not understood.
    pub(crate) fn has_allocator(&self, program: File) -> Result<bool, String> {
        let role = Role { is_program: true, reach: Reach::FromStart };
        let is_hooked =
            |function: &FileFunction| function.refusal.is_none() && function.shape.action != Action::Replaced;
        match self.search.functions(program, role, Instant::now() + self.limit.unwrap_or(LONG_BUDGET)) {
            Ok(found) => Ok(found.functions.iter().any(is_hooked)),
            Err(Fault::Late) => Err(self.too_large()),
            Err(Fault::Invalid) => Err("its symbol table is not valid".into()),
        }
    }

    /// Searches a program in the background, so that it is known at its next start.
    pub(crate) fn search_later(&self, program: File) {
        let role = Role { is_program: true, reach: Reach::FromStart };
        let _ = self.search.functions(program, role, Instant::now());
    }

    /// Returns why a file was not searched, and what follows from that.
    fn too_large(&self) -> String {
        let next = match self.search.is_storing() {
            true => "it is searched meanwhile, and hooked from the next start on",
            false => "this recorder hooks it when the program starts again",
        };
        format!("{TOO_LARGE}; {next}")
    }
}

pub(crate) fn open_mapped(process: &Path, mapping: &CodeMapping, is_program: bool) -> Option<File> {
    let inside = process.join("root").join(mapping.path.trim_start_matches('/'));
    let program = is_program.then(|| process.join("exe"));
    let candidates = program.into_iter().chain([process.join("map_files").join(&mapping.range), inside]);
    let is_same = |file: &OwnedFd| fstat(file).is_ok_and(|status| status.st_ino == mapping.inode);
    candidates.filter_map(|path| open_file(&path)).find(is_same).map(File::from)
}

impl Plan {
    /// Counts events of allocators, by their numbers.
    pub fn count(&self, events: [u64; Op::ALLOCATORS as usize]) {
        self.seen.iter().zip(events).for_each(|(seen, events)| {
            seen.fetch_add(events, Relaxed);
        });
    }

    pub fn set_events(&self, allocators: &mut [Allocator]) {
        for allocator in allocators {
            let seen = self.seen.get(usize::from(allocator.number));
            allocator.events = seen.map_or(0, |seen| seen.load(Relaxed));
        }
    }

    /// Returns what a forked child inherits from a parent, or a process from what a recorder knew
    /// of it.
    pub fn inherited(info: &ProcessInfo) -> Plan {
        Plan { allocators: info.allocators.clone(), unseen_mappings: reason(&info.unseen_mappings), ..Plan::default() }
    }

    /// Returns what a forked child inherits from a parent with this plan, which uses this area.
    pub fn forked(&self, mapping: &Mapping) -> Plan {
        let (allocators, growth) = (self.hooked(mapping), self.growth.clone());
        let unhooked = Arc::new(self.unhooked.forked());
        Plan { allocators, growth, unseen_mappings: self.unseen_mappings, unhooked, ..Plan::default() }
    }

    /// Returns why calls that map memory are not recorded; empty if they are.
    pub const fn unseen_mappings(&self) -> &'static str {
        self.unseen_mappings
    }

    /// Returns whether memory that is mapped below this instruction is an allocator's.
    pub fn is_growth(&self, instruction: u64) -> bool {
        self.growth.iter().any(|function| function.contains(&instruction))
    }

    /// Returns the same plan for the next segment of the process, which counts its own events.
    #[must_use]
    pub(crate) fn for_next_segment(&self) -> Plan {
        let (allocators, patches) = (self.allocators.clone(), self.patches.clone());
        let (growth, unseen_mappings) = (self.growth.clone(), self.unseen_mappings);
        Plan { allocators, patches, growth, unseen_mappings, unhooked: Arc::clone(&self.unhooked), ..Plan::default() }
    }

    fn not_searched(&mut self, path: &str, why: String) {
        self.allocators.push(Allocator {
            name: "unknown".into(),
            module: path.to_owned(),
            refused: vec![Refused { function: "all".into(), why }],
            ..Allocator::default()
        });
    }

    /// Returns the index of an allocator.
    fn allocator(&mut self, name: &str, module: &str) -> usize {
        let is_same = |known: &Allocator| known.name == name && known.module == module;
        if let Some(index) = self.allocators.iter().position(is_same) {
            return index;
        }
        let number = self.allocators.len().min(usize::from(Op::ALLOCATORS) - 1) as u8;
        let (name, module) = (name.to_owned(), module.to_owned());
        self.allocators.push(Allocator { name, module, number, ..Allocator::default() });
        self.allocators.len() - 1
    }

    fn refuse(&mut self, allocator: usize, function: &str, why: &str) {
        if let Some(allocator) = self.allocators.get_mut(allocator)
            && allocator.refused.len() < MAX_REFUSED
        {
            allocator.refused.push(Refused { function: function.to_owned(), why: why.to_owned() });
        }
    }

    fn add(&mut self, functions: &FileFunctions, mapping: &CodeMapping, is_program: bool, maps: &mut Maps) {
        let page = page_bytes();
        let is_mapped = |segment: &&symbols::CodeSegment| segment.offset / page * page == mapping.offset;
        let Some(segment) = functions.code.iter().find(is_mapped) else { return };
        let bias = mapping.start.wrapping_sub(segment.address / page * page);
        let moved = |address: u64| address.wrapping_add(bias);
        self.growth.extend(functions.growth.iter().map(|range| moved(range.start)..moved(range.end)));
        let bytes = FIRST_FUNCTION as u64 + functions.functions.len() as u64 * MAX_FUNCTION_BYTES;
        let at = maps.take_near(mapping.start, mapping.end, bytes);
        let at = at.filter(|_| self.runs.len() < MAX_RUNS && self.code_bytes + bytes as usize <= CODE_BYTES);
        let mut code = vec![0; FIRST_FUNCTION];
        // What changes the process is hooked first: if that fails, the library hooks nothing.
        let replaces = |function: &&FileFunction| function.shape.action == Action::Replaced;
        let replaced = functions.functions.iter().filter(replaces);
        let is_refused = replaced.clone().any(|function| function.refusal.is_some());
        for function in replaced.chain(functions.functions.iter().filter(|function| !replaces(function))) {
            let name = function.names.join(", ");
            if replaces(&function) {
                let planned = at.map(|at| self.plan_function(function, bias, NO_ALLOCATOR, at, &mut code));
                if let (Some(Ok(patch)), false) = (planned, is_refused) {
                    self.patches.push(PlannedPatch { name, ..patch });
                }
                continue;
            }
            let allocator = self.allocator(&function.allocator, &mapping.path);
            if let Some(allocator) = self.allocators.get_mut(allocator) {
                allocator.found += 1;
                allocator.is_own_malloc |= is_program && function.names.iter().any(|name| name == "malloc");
                allocator.shares_malloc |= functions.is_by_import;
            }
            let planned = match (function.refusal, at) {
                (Some(why), _) => Err(why),
                _ if is_refused => Err("a function that changes the process cannot be hooked"),
                (None, None) => Err(patches::text(patches::NO_SPACE)),
                (None, Some(_)) if self.patches.len() >= MAX_PATCHES => Err("there are too many functions"),
                (None, Some(at)) => self.plan_function(function, bias, allocator, at, &mut code),
            };
            match planned {
                Ok(patch) => self.patches.push(PlannedPatch { allocator, name, ..patch }),
                Err(why) => self.refuse(allocator, &name, why),
            }
        }
        if let Some(address) = at.filter(|_| code.len() > FIRST_FUNCTION) {
            self.code_bytes += code.len();
            self.runs.push(PlannedRun { address, code });
        }
    }

    /// Appends the code of a function to the run at `at`.
    fn plan_function(
        &self,
        function: &FileFunction,
        bias: u64,
        allocator: usize,
        at: u64,
        code: &mut Vec<u8>,
    ) -> Result<PlannedPatch, &'static str> {
        let number = self.allocators.get(allocator).map_or(0, |allocator| allocator.number);
        let start = moved::start(&function.code, function.address.wrapping_add(bias), 0);
        let start = start.map_err(moved::Refusal::text)?;
        let base = code.len() as u64;
        let entry = base + size_of::<Function>() as u64;
        let entry_bytes = start.undo.len() as u64 + ENTRY_BYTES;
        let trampoline = at + entry + entry_bytes;
        let first = trampoline + RESTORE.len() as u64;
        let moved = start.trampoline(first).map_err(moved::Refusal::text)?;
        let bytes = size_of::<Function>() as u64 + entry_bytes + (RESTORE.len() + moved.code.len()) as u64;
        if bytes > MAX_FUNCTION_BYTES - 16 {
            return Err(moved::Refusal::Unmovable.text());
        }
        let shape = function.shape;
        let description = Function {
            trampoline,
            action: shape.action as u8,
            size: shape.size,
            count: shape.count,
            pointer: shape.pointer,
            allocator: number,
            reserved: [0; 3],
        };
        code.extend(description.encode());
        // The hook's address is at the start of the run.
        let hook = if shape.action == Action::Replaced { 8 * (1 + i32::from(shape.size)) } else { 0 };
        code.extend(machine::entry(&start.undo, hook - entry as i32));
        let at_trampoline = |(from, to): &(u32, u32)| MovedInstruction {
            from: start.address + u64::from(*from),
            to: first + u64::from(*to),
        };
        let instructions = moved.offsets.iter().map(at_trampoline).collect();
        code.extend(RESTORE);
        code.extend(moved.code);
        code.resize(code.len().next_multiple_of(16), PADDING);
        let (address, expected) = (start.address, start.bytes);
        machine::jump(address, at + entry).ok_or(patches::text(patches::NO_SPACE))?;
        let (name, target) = (String::new(), at + entry);
        Ok(PlannedPatch { allocator, name, address, target, expected, moved: instructions })
    }

    /// Returns whether a function of an allocator is to be hooked.
    pub(crate) fn hooks_allocator(&self) -> bool {
        self.patches.iter().any(|patch| patch.allocator != NO_ALLOCATOR)
    }

    /// Returns the allocators that were found, before anything is hooked.
    pub fn allocators(&self) -> &[Allocator] {
        &self.allocators
    }

    /// Returns the jumps, in the order of the table in the area.
    pub fn jumps(&self) -> impl Iterator<Item = Jump<'_>> {
        self.patches.iter().take(MAX_PATCHES).map(|patch| Jump {
            name: &patch.name,
            address: patch.address,
            target: patch.target,
            expected: &patch.expected,
            moved: &patch.moved,
        })
    }

    /// Returns a plan with the same hooks, whose events are counted from zero.
    pub(crate) fn clone_for_session(&self) -> Plan {
        Plan {
            allocators: self.allocators.clone(),
            patches: self.patches.clone(),
            runs: self.runs.clone(),
            tables: self.tables.clone(),
            code_bytes: self.code_bytes,
            growth: self.growth.clone(),
            unseen_mappings: self.unseen_mappings,
            unhooked: Arc::clone(&self.unhooked),
            seen: Default::default(),
        }
    }

    /// Returns the address ranges of the code near to the functions.
    pub(crate) fn code_ranges(&self) -> impl Iterator<Item = Range<u64>> {
        self.runs.iter().map(|run| run.address..run.address + (run.code.len() as u64).next_multiple_of(PAGE))
    }

    /// Writes the plan into the area of the process, which has not received it yet. `file` is the
    /// area's.
    pub fn write(&self, mapping: &Mapping, file: &OwnedFd) {
        let tables = search_tables::encode(&self.tables);
        // Without memory for them, stacks end in these objects, and are counted.
        if !tables.is_empty() && sys::append(file, mapping.bytes(), &tables).is_ok() {
            mapping.header().search_bytes.store(tables.len() as u32, Relaxed);
        }
        let table = mapping.patches();
        let mut offset = 0;
        for (target, run) in table.runs.iter().zip(&self.runs) {
            let bytes = table.code.get(offset..offset + run.code.len()).unwrap_or_default();
            bytes.iter().zip(&run.code).for_each(|(target, byte)| target.store(*byte, Relaxed));
            target.address.store(run.address, Relaxed);
            target.offset.store(offset as u32, Relaxed);
            target.bytes.store(run.code.len() as u32, Relaxed);
            offset += run.code.len();
        }
        for (target, patch) in table.patches.iter().zip(&self.patches) {
            target.address.store(patch.address, Relaxed);
            target.target.store(patch.target, Relaxed);
            target.length.store(patch.expected.len() as u32, Relaxed);
            target.expected.iter().zip(&patch.expected).for_each(|(target, byte)| target.store(*byte, Relaxed));
        }
        mapping.header().patches.store(self.patches.len().min(MAX_PATCHES) as u32, Relaxed);
    }

    /// Returns the allocators that were found, once the process uses its area: what the library has
    /// hooked, and what it refused.
    pub fn outcome(&self, mapping: &Mapping) -> Vec<Allocator> {
        let mut allocators = self.hooked(mapping);
        self.note_unhooked(&mut allocators);
        allocators
    }

    /// Returns the allocators whose functions were found.
    fn hooked(&self, mapping: &Mapping) -> Vec<Allocator> {
        let mut known = Plan { allocators: self.allocators.clone(), ..Plan::default() };
        // The table is not touched for a process without patches.
        for (patch, written) in self.patches.iter().zip(&mapping.patches().patches) {
            let status = written.status.load(Relaxed);
            if status == WRITTEN {
                if let Some(allocator) = known.allocators.get_mut(patch.allocator) {
                    allocator.hooked += 1;
                }
            } else {
                known.refuse(patch.allocator, &patch.name, patches::text(status));
            }
        }
        known.allocators
    }
}

/// Returns whether the `malloc` that the program itself has is recorded.
pub(crate) fn hooks_own_malloc(allocators: &[Allocator]) -> bool {
    allocators.iter().any(|allocator| allocator.is_own_malloc && allocator.hooked > 0)
}

#[cfg(test)]
mod tests;
