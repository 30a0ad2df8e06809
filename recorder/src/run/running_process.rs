//! Processes that run already: attach, and leave without a trace.
//!
//! The process is changed in two steps. First one thread is stopped. It maps the library, which the
//! recorder writes into its memory, creates the shared area, and lets the library attach. Nothing
//! is loaded by the process's own loader, no path is opened in it, and no lock of it is taken. Then
//! all threads are stopped for a moment, and the jumps to the library are written over the first
//! bytes of the allocator's functions.
//!
//! *When that is safe.* All threads are at instruction boundaries. Bytes 1 to 4 of a jump are
//! reached only by falling through from the first byte (which is the jump now), by a branch of the
//! function (the plan refuses those), by a return to there (no word of a stack holds such an
//! address, or the stop is tried again), or by a thread that is there already (which is moved to
//! the same instruction in the trampoline). The bytes after them are unchanged, so that a thread
//! anywhere else in the function continues in it and never notices.
//!
//! At the end the functions get their own bytes back. Each jump is one instruction, so that no
//! thread is inside one. When no register and no word of any stack refers to the library or to a
//! trampoline, all that was mapped is unmapped.

mod attach_error;
mod checks;
pub(super) mod copy;
mod gadgets;
mod kill_points;
mod memory;
#[allow(unsafe_code)]
mod ptrace;
mod purpose;
pub(super) mod threads;
#[allow(unsafe_code)]
mod tracer;
mod visit;

use crate::inject::maps::Maps;
use crate::inject::patch::{Jump, OwnAllocator, Plan, Planner};
use crate::inject::static_program::Image;
use crate::os::clock::Clock;
use crate::os::processor::code::{self, ENTRY_BYTES};
use crate::os::processor::page_bytes;
use crate::os::sys::{self, Mapping};
use crate::run::admission::RunningProcess;
use crate::session::listener::Client;
use crate::session::options::Options;
pub use attach_error::AttachError;
use checks::Identity;
use gadgets::{Gadgets, auxiliary, find_finder, find_gadgets};
use memory::Memory;
use nix::libc;
use nix::unistd::Pid;
use ptrace::StopError;
use purpose::Purpose;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering::Acquire, Ordering::Relaxed};
use std::time::Duration;
use threads::StoppedThreads;
use tracer::traced;
use visit::{STACK_BYTES, Visit};
use wire::WIRE_MINOR;
use wire::hello::{Hello, ORIGIN_START};
use wire::patches::{Function, JUMP_BYTES, WAITING, WRITTEN};
use wire::standalone::{AttachRequest, LoadedProgram};

/// The time that the search for the allocator's functions may take. The process runs meanwhile.
const SEARCH_TIME: Duration = Duration::from_secs(30);
/// How often a plan is made, while the process maps something else where memory was planned.
const MAX_PLANS: u32 = 100;
/// The pause between two tries.
const TRY_PAUSE: Duration = Duration::from_millis(2);
/// The time in which a thread that may be in the library must stop.
const LOOK_LIMIT: Duration = Duration::from_millis(50);
/// What is printed of a process that was left while a thread was in the library.
pub const STAYS_MAPPED: &str = "a thread may still be in the library, which stays mapped and is not called any more";
/// What is printed of a process whose functions could not be restored.
pub const STAYS_HOOKED: &str = "its functions are still hooked";

/// The times of an attach or a detach.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stops {
    /// The longest time in which one thread was stopped.
    pub one: Duration,
    /// The longest time in which all threads were stopped.
    pub all: Duration,
    pub threads: usize,
}

/// A process that runs already.
#[derive(Debug)]
pub struct Target {
    pid: u32,
    identity: Identity,
    memory: Memory,
    gadgets: Gadgets,
    finder: u64,
    image: Image,
    planner: Planner,
    plan: Plan,
    /// The library's memory, once it is mapped.
    library: Option<Range<u64>>,
    stops: Stops,
    /// The threads that may be in the library, once no function is hooked any more.
    inside: Vec<Pid>,
}

impl Target {
    /// Examines a process, and plans what will be hooked. Nothing is stopped or changed.
    pub fn find(pid: u32, library: &[u8], own: &[OwnAllocator]) -> Result<Target, AttachError> {
        let (identity, mut memory) = checks::examine(pid)?;
        let image = Image::read(library)?;
        let planner = Planner::new(own);
        let plan = planner.plan_running(pid, SEARCH_TIME);
        if !plan.hooks_allocator() {
            let why = "no function of an allocator was found in it (it has no symbols); name it by --allocator";
            return Err(AttachError::Unsuitable(why.into()));
        }
        let maps = Maps::of(pid);
        let (gadgets, restorers) = find_gadgets(&maps, &memory)?;
        memory.set_restorers(restorers);
        let finder = find_finder(pid, &maps).unwrap_or(0);
        let (library, stops, inside) = (None, Stops::default(), Vec::new());
        let target = Target { pid, identity, memory, gadgets, finder, image, planner, plan, library, stops, inside };
        if let Some(name) = target.changed_function() {
            let why = format!(
                "the bytes of its function {name} are not those of its file: another tool has changed it, \
                 or heaptape did and was killed (then heaptape detach {pid} restores them)"
            );
            return Err(AttachError::Unsuitable(why));
        }
        Ok(target)
    }

    /// Returns what is to be hooked.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the longest stops so far.
    pub fn stops(&self) -> Stops {
        self.stops
    }

    /// Returns the first function whose bytes differ from its file's.
    fn changed_function(&self) -> Option<String> {
        let differs = |jump: &Jump<'_>| {
            let mut bytes = vec![0; jump.expected.len()];
            self.memory.read(jump.address, &mut bytes).is_err() || bytes != jump.expected
        };
        self.plan.jumps().find(differs).map(|jump| jump.name.to_owned())
    }

    /// Attaches the process. From the return on, its events are in its area.
    pub fn attach(mut self, options: &Options, clock: Clock) -> Result<(Target, RunningProcess), AttachError> {
        let start_tick = clock.now();
        let (mut tries, starter) = (0, std::process::id());
        let entered = loop {
            match traced(|| self.enter_unless_killed(starter, options, clock)) {
                // The process has mapped something else there since the plan was made.
                Err(error) if error.is_taken() && tries < MAX_PLANS => {
                    tries += 1;
                    self.plan = self.planner.plan_running(self.pid, SEARCH_TIME);
                }
                entered => break entered?,
            }
        };
        self.library = Some(entered.library.clone());
        self.stops.one = entered.stop;
        let Entered { client, mapping, area, .. } = entered;
        if let Err(error) = self.write_jumps(&mapping, starter).map(|stops| self.note(stops)) {
            // If what traced was killed, some are hooked. The first error says why.
            let is_hooked = self.plan.jumps().any(|jump| self.is_written(&jump));
            let restored = if is_hooked { self.detach() } else { Ok(()) };
            let _ = restored.and_then(|()| self.leave());
            return Err(error);
        }
        let statuses = &mapping.patches().patches;
        for (_, patch) in self.plan.jumps().zip(statuses).filter(|(_, patch)| patch.status.load(Relaxed) == WAITING) {
            patch.status.store(WRITTEN, Relaxed);
        }
        let plan = self.plan.clone_for_session();
        Ok((self, RunningProcess { client, mapping, area, plan, start_tick }))
    }

    fn note(&mut self, stops: Stops) {
        self.stops.all = self.stops.all.max(stops.all);
        self.stops.threads = self.stops.threads.max(stops.threads);
    }

    /// Maps the library, and lets it attach. Unmaps it again if the process `starter` was killed
    /// meanwhile, which is this one.
    fn enter_unless_killed(&self, starter: u32, options: &Options, clock: Clock) -> Result<Entered, AttachError> {
        let entered = self.enter(options, clock)?;
        if tracer::is_orphan(starter) {
            self.unmap(&entered.library)?;
            return Err(AttachError::Killed);
        }
        Ok(entered)
    }

    /// Maps the library, and lets it attach. The process runs while the library and the area are
    /// written.
    fn enter(&self, options: &Options, clock: Clock) -> Result<Entered, AttachError> {
        let auxiliary = auxiliary(self.pid);
        let bytes = self.image.memory_bytes + STACK_BYTES;
        let mut visit = Visit::begin(self.pid, &self.memory, self.gadgets)?;
        // Before anything else takes the addresses.
        self.map_runs(&mut visit)?;
        let [protection, flags] = visit::library_memory();
        let base = visit.call(libc::SYS_mmap, [0, bytes, protection, flags, u64::MAX, 0]).inspect_err(|_| {
            // The first error says why.
            let _ = self.unmap_ranges(&mut visit, &(0..0));
        });
        let base = base.map_err(AttachError::refused("memory for the library"))?;
        let library = base..base + bytes;
        let descriptor = self.create_area(&mut visit, &library);
        let first = visit.end()?;
        let entered = descriptor.and_then(|descriptor| {
            let prepared = self.prepare(descriptor, options, clock).and_then(|prepared| {
                self.memory.write(base, &self.image.at(base, &LoadedProgram::NONE))?;
                let area_bytes = prepared.mapping.bytes();
                let request = AttachRequest { descriptor, area_bytes, finder: self.finder, auxiliary };
                self.memory.write(base + self.image.request, &request.encode())?;
                Ok(prepared)
            });
            let mut visit = Visit::begin(self.pid, &self.memory, self.gadgets)?;
            let attached = match prepared {
                Ok(prepared) => self.run_attach(&mut visit, &library).map(|()| prepared),
                Err(error) => Err(AttachError::Refused { what: "the memory for its events", error }),
            };
            if attached.is_err() {
                let _ = visit.call(libc::SYS_close, [descriptor, 0, 0, 0, 0, 0]);
            }
            let stop = visit.end()?;
            let entered =
                attached.map(|prepared| Entered { stop: stop.max(first), library: library.clone(), ..prepared });
            entered.and_then(|entered| match entered.mapping.header().attached.load(Acquire) {
                0 => Err(AttachError::NotAttached),
                _ => Ok(entered),
            })
        });
        if entered.is_err()
            && let Ok(mut visit) = Visit::begin(self.pid, &self.memory, self.gadgets)
        {
            // The first error says why.
            let _ = self.unmap_ranges(&mut visit, &library);
        }
        entered
    }

    /// Maps memory for the code near to the functions.
    fn map_runs(&self, visit: &mut Visit<'_>) -> Result<(), AttachError> {
        let [protection, flags] = visit::library_memory();
        let flags = flags | libc::MAP_FIXED_NOREPLACE as u64;
        for (done, run) in self.plan.code_ranges().enumerate() {
            let mapped = visit.call(libc::SYS_mmap, [run.start, run.end - run.start, protection, flags, u64::MAX, 0]);
            if let Err(error) = mapped {
                for run in self.plan.code_ranges().take(done) {
                    let _ = visit.call(libc::SYS_munmap, [run.start, run.end - run.start, 0, 0, 0, 0]);
                }
                return Err(AttachError::refused("memory near to the allocator's functions")(error));
            }
        }
        Ok(())
    }

    /// Unmaps the library, and the code near to the functions.
    fn unmap_ranges(&self, visit: &mut Visit<'_>, library: &Range<u64>) -> Result<(), AttachError> {
        for range in self.plan.code_ranges().chain([library.clone()]).filter(|range| !range.is_empty()) {
            let arguments = [range.start, range.end - range.start, 0, 0, 0, 0];
            visit.call(libc::SYS_munmap, arguments).map_err(AttachError::refused("to unmap the library"))?;
        }
        Ok(())
    }

    /// Creates the file of the area in the process. Returns its descriptor.
    fn create_area(&self, visit: &mut Visit<'_>, library: &Range<u64>) -> Result<u64, AttachError> {
        let name = library.end - STACK_BYTES;
        self.memory.write(name, b"heaptape\0").map_err(AttachError::memory)?;
        let flags = u64::from(libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        let created = visit.call(libc::SYS_memfd_create, [name, flags, 0, 0, 0, 0]);
        created.map_err(AttachError::refused("a file in memory"))
    }

    /// Protects the library's memory, and lets it attach. It closes the descriptor.
    fn run_attach(&self, visit: &mut Visit<'_>, library: &Range<u64>) -> Result<(), AttachError> {
        for range in &self.image.protected {
            let protection = libc::PROT_READ | if range.is_code { libc::PROT_EXEC } else { 0 };
            visit
                .call(libc::SYS_mprotect, [library.start + range.offset, range.bytes, protection as u64, 0, 0, 0])
                .map_err(AttachError::refused("memory for code"))?;
        }
        visit.run(library.start + self.image.attach, library.end - STACK_BYTES)
    }

    /// Prepares the shared area in the file that the process has created.
    fn prepare(&self, descriptor: u64, options: &Options, clock: Clock) -> io::Result<Entered> {
        let path = format!("/proc/{}/fd/{descriptor}", self.pid);
        let area: OwnedFd = File::options().read(true).write(true).open(path)?.into();
        let hello = Hello {
            pid: self.identity.own_pid,
            origin: ORIGIN_START,
            page_size: page_bytes() as u32,
            address_space: self.identity.address_space,
            minor: WIRE_MINOR,
            ..Hello::default()
        };
        let client = Client::running(self.pid, self.identity.uid, hello)?;
        let mapping = client.area_in(&area, options, clock)?;
        self.plan.write(&mapping, &area);
        sys::seal(&area);
        Ok(Entered { client, mapping, area, library: 0..0, stop: Duration::ZERO })
    }

    /// Stops all threads and writes the jumps.
    fn write_jumps(&self, mapping: &Mapping, starter: u32) -> Result<Stops, AttachError> {
        let statuses = &mapping.patches().patches;
        let jumps = self.plan.jumps().zip(statuses).filter(|(_, patch)| patch.status.load(Relaxed) == WAITING);
        let jumps: Vec<_> = jumps.map(|(jump, _)| jump).collect();
        let inside = |address: u64| {
            jumps.iter().any(|jump| (jump.address + 1..jump.address + JUMP_BYTES as u64).contains(&address))
        };
        let moved = |address: u64| {
            let instructions = jumps.iter().filter(|_| inside(address)).flat_map(|jump| jump.moved);
            instructions.clone().find(|moved| moved.from == address).map(|moved| moved.to)
        };
        self.with_all_stopped(Purpose::Hook, |stopped| {
            // Without a recorder nobody would read the events.
            if tracer::is_orphan(starter) {
                return Err(AttachError::Killed);
            }
            if let Some(name) = self.changed_function() {
                let why = format!("the bytes of its function {name} have changed: it executed another program");
                return Err(AttachError::Unsuitable(why));
            }
            let stacks_are_clear = !stopped
                .threads
                .iter()
                .map(|thread| (thread.registers.sp(), thread.registers.thread_pointer()))
                .any(|(sp, thread_pointer)| self.memory.stack_holds(sp, thread_pointer, &inside));
            if !stacks_are_clear {
                return Err(AttachError::Unsafe);
            }
            for (done, jump) in jumps.iter().enumerate() {
                if let Err(error) = self.memory.write(jump.address, &jump.bytes().unwrap_or_default()) {
                    for jump in &jumps[..done] {
                        self.memory.write(jump.address, jump.original()).map_err(AttachError::memory)?;
                    }
                    return Err(AttachError::Refused { what: "a change of its code", error });
                }
            }
            stopped.relocate(moved).map_err(AttachError::Stop)
        })
    }

    /// Runs `change` while all threads are stopped, again and again until they are and it is safe.
    fn with_all_stopped(
        &self,
        purpose: Purpose,
        mut change: impl FnMut(&mut StoppedThreads) -> Result<(), AttachError> + Send,
    ) -> Result<Stops, AttachError> {
        let mut stops = Stops::default();
        let (mut tries, mut stuck_tries) = (0, 0);
        let mut one_is_in_kernel = false;
        loop {
            let limit = purpose.limit(tries, one_is_in_kernel);
            // In a process of its own: its end lets all threads go at once.
            let result = traced(|| {
                let mut stopped = StoppedThreads::of(self.pid);
                let stop = match stopped.stop(limit) {
                    // They execute no instruction of the program before they stop.
                    Err(StopError::Late) if purpose == Purpose::Restore && stopped.late_ones_in_kernel().all => Ok(()),
                    stop => stop,
                };
                one_is_in_kernel = stopped.late_ones_in_kernel().any;
                let result = stop.map_err(AttachError::from).and_then(|()| change(&mut stopped));
                stops.all = stops.all.max(stopped.since.elapsed());
                stops.threads = stopped.threads.len();
                if result.is_err() || one_is_in_kernel {
                    stuck_tries = if stopped.release() { 0 } else { stuck_tries + 1 };
                }
                result
            });
            match result {
                Ok(()) => return Ok(stops),
                Err(error) if purpose.may_try_again(&error, tries, stuck_tries) => {
                    tries += 1;
                    std::thread::sleep(TRY_PAUSE);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Restores the bytes of all functions. Events end with it.
    ///
    /// # Errors
    /// The process has ended, or cannot be stopped any more.
    pub fn detach(&mut self) -> Result<(), AttachError> {
        let mut inside = Vec::new();
        let stops = self.with_all_stopped(Purpose::Restore, |stopped| {
            inside = stopped.all();
            self.restore()
        })?;
        self.inside = inside;
        self.note(stops);
        Ok(())
    }

    /// Writes the functions' own bytes where the jumps are. A module that is gone, or has its own
    /// bytes, has none.
    fn restore(&self) -> Result<(), AttachError> {
        for jump in self.plan.jumps().filter(|jump| self.is_written(jump)) {
            self.memory.write(jump.address, jump.original()).map_err(AttachError::memory)?;
        }
        Ok(())
    }

    fn is_written(&self, jump: &Jump<'_>) -> bool {
        let mut bytes = [0; JUMP_BYTES];
        self.memory.read(jump.address, &mut bytes).is_ok() && Some(bytes) == jump.bytes()
    }

    /// Returns whether a function has a jump to a hook of this library, of whichever recorder: the
    /// description before the hook's entry names the trampoline right after it.
    fn is_hooked(&self, jump: &Jump<'_>) -> bool {
        let mut bytes = [0; JUMP_BYTES];
        if self.memory.read(jump.address, &mut bytes).is_err() {
            return false;
        }
        let Some(entry) = code::jump_target(jump.address, bytes) else { return false };
        let mut trampoline = [0; 8];
        let at = entry.wrapping_sub(size_of::<Function>() as u64);
        self.memory.read(at, &mut trampoline).is_ok() && u64::from_le_bytes(trampoline) == entry + ENTRY_BYTES
    }

    /// Unmaps all that the attach has mapped, once no thread can be in it any more. Returns false
    /// if a thread stays in it: then it stays mapped, and does no harm.
    ///
    /// # Errors
    /// The process has ended, or cannot be stopped any more.
    pub fn leave(&mut self) -> Result<bool, AttachError> {
        /// The pauses between the looks, in milliseconds.
        const PAUSES: [u64; 11] = [0, 1, 2, 5, 10, 20, 50, 100, 200, 300, 400];
        let Some(library) = self.library.clone() else { return Ok(true) };
        let runs: Vec<Range<u64>> = self.plan.code_ranges().collect();
        let is_ours = |address: u64| library.contains(&address) || runs.iter().any(|run| run.contains(&address));
        // The functions were never hooked, or the stop failed.
        if self.inside.is_empty() {
            self.inside = threads::list(self.pid);
        }
        for pause in PAUSES {
            std::thread::sleep(Duration::from_millis(pause));
            let (inside, stop) = traced(|| self.still_inside(&is_ours))?;
            self.inside = inside;
            self.stops.one = self.stops.one.max(stop);
            // What shares the memory is not stopped, and may be in the library.
            if self.inside.is_empty() && checks::sharer(self.pid).is_none() {
                let stop = traced(|| self.unmap(&library))?;
                self.stops.one = self.stops.one.max(stop);
                self.library = None;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns those threads whose registers or stacks still refer to the library, and the longest
    /// stop. Each is looked at alone: a thread that is outside stays there, since nothing calls the
    /// library any more.
    fn still_inside(&self, is_ours: &(impl Fn(u64) -> bool + Sync)) -> Result<(Vec<Pid>, Duration), AttachError> {
        let (mut inside, mut longest) = (Vec::new(), Duration::ZERO);
        for &tid in &self.inside {
            if threads::is_in_kernel(self.pid, tid) {
                inside.push(tid);
                continue;
            }
            let mut stopped = StoppedThreads::of(self.pid);
            let result = stopped.stop_one(tid, LOOK_LIMIT);
            if result.is_err() || stopped.refers_to(&self.memory, is_ours) {
                inside.push(tid);
            }
            longest = longest.max(stopped.since.elapsed());
            stopped.release();
            match result {
                Ok(()) | Err(StopError::Late | StopError::Ended) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok((inside, longest))
    }

    fn unmap(&self, library: &Range<u64>) -> Result<Duration, AttachError> {
        let mut visit = Visit::begin(self.pid, &self.memory, self.gadgets)?;
        visit.run(library.start + self.image.leave, library.end - STACK_BYTES)?;
        self.unmap_ranges(&mut visit, library)?;
        Ok(visit.end()?)
    }
}

/// Restores the functions of a process whose recorder was killed. Returns the number of functions
/// that had a jump. The library stays mapped, and is not called any more.
pub fn restore(pid: u32, own: &[OwnAllocator]) -> Result<usize, AttachError> {
    let (identity, memory) = checks::examine(pid)?;
    let planner = Planner::new(own);
    let plan = planner.plan_running(pid, SEARCH_TIME);
    let gadgets = Gadgets { system_call: 0, restorer: 0 };
    let image = Image::default();
    let (library, stops, inside) = (None, Stops::default(), Vec::new());
    let target = Target { pid, identity, memory, gadgets, finder: 0, image, planner, plan, library, stops, inside };
    let mut restored = 0;
    target.with_all_stopped(Purpose::Restore, |_| {
        restored = 0;
        for jump in target.plan.jumps().filter(|jump| target.is_hooked(jump)) {
            target.memory.write(jump.address, jump.original()).map_err(AttachError::memory)?;
            restored += 1;
        }
        Ok(())
    })?;
    Ok(restored)
}

/// What an attach has made in the process.
struct Entered {
    client: Client,
    mapping: Mapping,
    area: OwnedFd,
    library: Range<u64>,
    stop: Duration,
}
