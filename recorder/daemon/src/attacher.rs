//! The thread that attaches processes which run already, and leaves them again. Both stop the
//! process and wait for it, which the thread of the service must not do.
//!
//! It also searches for the processes that a rule with `attach=true` selects, and remembers which
//! of them it has tried: one that was refused is not tried again, and one that could not be stopped
//! only [`MAX_TRIES`] times.

use super::config::Rule;
use super::control::Wake;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};
use heaptape_recorder::os::aside::{self, Owner, Stuck};
use heaptape_recorder::os::clock::Clock;
use heaptape_recorder::os::crash;
use heaptape_recorder::run::admission::{LAST_HOOKS, RunningProcess};
use heaptape_recorder::run::running_process::{self, AttachError, Stops, Target};
use heaptape_recorder::session::options::Options;
use heaptape_recorder::target::proc;
use heaptape_recorder::target::untraced;
use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// How often a process that a rule selects is tried, if it is refused for a cause that may pass.
const MAX_TRIES: u32 = 3;
/// The pause before the second try; each further one is twice as long.
const RETRY_PAUSE: Duration = Duration::from_secs(30);
/// Minimum age of a process that is attached by a rule. A younger one may be about to load the
/// library, or to end.
const MIN_AGE: Duration = Duration::from_secs(2);
/// Maximum number of processes that one search returns.
const MAX_FOUND: usize = 16;
/// Time in which the allocator of a process is found: large programs take seconds.
const SEARCH_TIMEOUT: Duration = Duration::from_secs(15);
/// Time in which all processes are left when the daemon stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);

/// What the thread is to do.
#[derive(Debug)]
enum Command {
    /// Attach this process with these options.
    Attach(u32, Box<Options>),
    /// Leave these processes as they were.
    Leave(Vec<u32>),
    /// Leave all attached processes, and these.
    LeaveAll(Vec<u32>),
    /// Forget a process that has ended.
    Forget(u32),
    /// Search for processes that a rule selects.
    Search(Search),
}

/// A search for processes that run without the library.
#[derive(Debug)]
pub(crate) struct Search {
    pub rules: Vec<Rule>,
    /// Whether processes of other users are attached.
    pub serves_all: bool,
    /// Processes that are recorded already.
    pub recorded: Vec<u32>,
}

/// What the thread has done.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// A process is attached, and its events are in its area.
    Attached(Box<NewProcess>),
    /// A process is not attached, and runs on unchanged.
    Refused {
        pid: u32,
        /// Why it is not attached.
        why: String,
        /// Whether it is not tried again by its rule.
        is_final: bool,
    },
    Left(LeftProcess),
    /// The processes that rules select and that were not tried in vain.
    Found(Vec<u32>),
}

/// A process that was attached.
#[derive(Debug)]
pub(crate) struct NewProcess {
    pub running: RunningProcess,
    /// Number of functions that were hooked.
    pub functions: usize,
    /// The longest stops of the process.
    pub stops: Stops,
}

#[derive(Clone, Debug)]
pub(crate) struct LeftProcess {
    pub pid: u32,
    /// What remains in it; `None` if nothing does.
    pub remains: Option<String>,
    /// The longest stops of the process.
    pub stops: Stops,
}

/// The service's handle to the thread.
#[derive(Debug)]
pub(crate) struct Attacher {
    commands: Option<Sender<Command>>,
    outcomes: Receiver<Outcome>,
    is_stopping: Arc<AtomicBool>,
}

impl Attacher {
    /// Starts the thread. `library` is the file of the standalone library.
    pub(crate) fn start(library: &'static [u8], clock: Clock, wake: Wake) -> io::Result<Attacher> {
        let (commands, receiver) = unbounded();
        let (sender, outcomes) = unbounded();
        let is_stopping = Arc::new(AtomicBool::new(false));
        let worker = Worker {
            library,
            clock,
            targets: HashMap::new(),
            history: History::default(),
            outcomes: sender,
            wake,
            is_stopping: Arc::clone(&is_stopping),
        };
        crash::spawn("attach", move || worker.run(&receiver))?;
        Ok(Attacher { commands: Some(commands), outcomes, is_stopping })
    }

    fn send(&self, command: Command) {
        if let Some(commands) = &self.commands {
            let _ = commands.send(command);
        }
    }

    /// Begins to attach a process.
    pub(crate) fn attach(&self, pid: u32, options: Options) {
        self.send(Command::Attach(pid, Box::new(options)));
    }

    /// Begins to leave processes.
    pub(crate) fn leave(&self, pids: Vec<u32>) {
        self.send(Command::Leave(pids));
    }

    /// Forgets a process that has ended.
    pub(crate) fn forget(&self, pid: u32) {
        self.send(Command::Forget(pid));
    }

    /// Begins a search for processes.
    pub(crate) fn search(&self, search: Search) {
        self.send(Command::Search(search));
    }

    /// Returns the next outcome, if there is one.
    pub(crate) fn next(&self) -> Option<Outcome> {
        self.outcomes.try_recv().ok()
    }

    /// Ends the thread, which attaches no further process, and returns what it has done. With
    /// `leaves` it leaves these processes and all others that it has attached.
    pub(crate) fn finish(&mut self, leaves: Option<Vec<u32>>) -> Vec<Outcome> {
        self.is_stopping.store(true, Relaxed);
        if let Some(leaves) = leaves {
            self.send(Command::LeaveAll(leaves));
        }
        self.commands = None;
        let deadline = Instant::now() + STOP_TIMEOUT;
        let mut all = Vec::new();
        loop {
            match self.outcomes.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(outcome) => all.push(outcome),
                Err(RecvTimeoutError::Disconnected) => return all,
                Err(RecvTimeoutError::Timeout) => {
                    tracing::warn!("not all attached processes were left within {} s", STOP_TIMEOUT.as_secs());
                    return all;
                }
            }
        }
    }
}

/// The state of the thread.
struct Worker {
    library: &'static [u8],
    clock: Clock,
    /// The processes that are attached.
    targets: HashMap<u32, Target>,
    history: History,
    outcomes: Sender<Outcome>,
    wake: Wake,
    is_stopping: Arc<AtomicBool>,
}

impl Worker {
    fn run(mut self, commands: &Receiver<Command>) {
        for command in commands {
            match command {
                Command::Attach(pid, options) => self.attach(pid, &options),
                Command::Leave(pids) => self.leave(&pids),
                Command::LeaveAll(mut pids) => {
                    pids.extend(self.targets.keys());
                    pids.sort_unstable();
                    pids.dedup();
                    self.leave(&pids);
                }
                Command::Forget(pid) => drop(self.targets.remove(&pid)),
                Command::Search(search) => {
                    let found = self.history.search(&search);
                    self.report(Outcome::Found(found));
                }
            }
        }
    }

    fn report(&self, outcome: Outcome) {
        let _ = self.outcomes.send(outcome);
        let _ = self.wake.as_ref().write(&[1]);
    }

    /// Looks for the allocator of a process. Its files may be on a mount that does not answer, for
    /// which this thread must not wait for ever.
    fn find(&self, pid: u32) -> Result<Target, AttachError> {
        let library = self.library;
        let owner = Owner { pid, uid: proc::owner(pid).unwrap_or_default() }.around();
        let found = aside::call_for(SEARCH_TIMEOUT, owner, move || Target::find(pid, library, &[]));
        found.unwrap_or_else(|Stuck| {
            let why = "its files or its memory cannot be read: they may be on a mount that does not answer";
            Err(AttachError::Unsuitable(why.into()))
        })
    }

    fn attach(&mut self, pid: u32, options: &Options) {
        let identity = ProcessId::of(pid);
        let stopping = || AttachError::Unsuitable("the daemon is stopping".into());
        let found = match self.is_stopping.load(Relaxed) {
            true => Err(stopping()),
            false => self.find(pid),
        };
        // The search for the allocator takes longest.
        let found = found.and_then(|target| if self.is_stopping.load(Relaxed) { Err(stopping()) } else { Ok(target) });
        match found.and_then(|target| target.attach(options, self.clock)) {
            Ok((target, running)) => {
                let functions = target.plan().jumps().count();
                let new = NewProcess { running, functions, stops: target.stops() };
                self.targets.insert(pid, target);
                self.report(Outcome::Attached(Box::new(new)));
            }
            Err(error) => {
                let is_final = self.history.refused(identity, error.may_pass());
                self.report(Outcome::Refused { pid, why: error.to_string(), is_final });
            }
        }
    }

    /// Restores the functions of all these processes first, and unmaps the library in each of them
    /// once its last hooks have returned.
    fn leave(&mut self, pids: &[u32]) {
        let mut restored = Vec::new();
        for &pid in pids {
            self.history.left(ProcessId::of(pid));
            match self.targets.remove(&pid) {
                Some(mut target) => {
                    let detached = target.detach();
                    restored.push((target, detached));
                }
                // An earlier daemon has attached it.
                None => {
                    let mut left =
                        left_process(pid, running_process::restore(pid, &[]).map(|_| true), Stops::default());
                    let remains =
                        "the library, which an earlier daemon mapped, stays mapped and is not called any more";
                    left.remains.get_or_insert_with(|| remains.into());
                    self.report(Outcome::Left(left));
                }
            }
        }
        if !restored.is_empty() {
            std::thread::sleep(LAST_HOOKS);
        }
        for (mut target, detached) in restored {
            let left = detached.map(|()| target.leave().unwrap_or(false));
            self.report(Outcome::Left(left_process(target.pid(), left, target.stops())));
        }
    }
}

/// Describes how a process was left. `left` is whether the library is unmapped.
fn left_process(pid: u32, left: Result<bool, AttachError>, stops: Stops) -> LeftProcess {
    let remains = match left {
        Ok(true) => None,
        // It has ended.
        _ if proc::parent(pid).is_none() => None,
        Ok(false) => Some(running_process::STAYS_MAPPED.into()),
        Err(error) => Some(format!("{}: {error}; heaptape detach {pid} restores them", running_process::STAYS_HOOKED)),
    };
    LeftProcess { pid, remains, stops }
}

/// A program in a process: neither another process of the same number nor another program that it
/// executes later is the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct ProcessId {
    pid: u32,
    start_ticks: u64,
    program: Option<(u64, u64)>,
}

impl ProcessId {
    fn of(pid: u32) -> ProcessId {
        let owner = Owner { pid, uid: proc::owner(pid).unwrap_or_default() };
        let program = aside::call(owner, move || untraced::program(pid)).unwrap_or_default();
        ProcessId { pid, start_ticks: proc::start_ticks(pid).unwrap_or(0), program }
    }
}

#[derive(Clone, Copy, Debug)]
struct Tries {
    count: u32,
    /// When it may be tried again; `None` for never.
    next: Option<Instant>,
}

/// The processes that were tried in vain, or that were left.
#[derive(Debug, Default)]
struct History(HashMap<ProcessId, Tries>);

impl History {
    /// Notes that a process was refused. Returns whether it is not tried again.
    fn refused(&mut self, id: ProcessId, may_pass: bool) -> bool {
        let tries = self.0.entry(id).or_insert(Tries { count: 0, next: None });
        tries.count += 1;
        let is_final = !may_pass || tries.count >= MAX_TRIES;
        tries.next = (!is_final).then(|| Instant::now() + RETRY_PAUSE * 2u32.pow(tries.count - 1));
        is_final
    }

    /// Notes that a process was left on request: no rule attaches it again.
    fn left(&mut self, id: ProcessId) {
        self.0.insert(id, Tries { count: MAX_TRIES, next: None });
    }

    fn may_be_tried(&self, id: ProcessId, now: Instant) -> bool {
        self.0.get(&id).is_none_or(|tries| tries.next.is_some_and(|next| next <= now))
    }

    /// Returns the processes that a rule with `attach=true` selects.
    fn search(&mut self, search: &Search) -> Vec<u32> {
        let own = std::process::id();
        let (own_uid, own_program) = (nix::unistd::geteuid().as_raw(), untraced::program(own));
        let all: Vec<u32> = proc::pids().collect();
        self.0.retain(|id, _| all.contains(&id.pid));
        let now = Instant::now();
        // The first process is left alone: the kernel panics at its end.
        let others = all.into_iter().filter(|pid| *pid > 1 && *pid != own && !search.recorded.contains(pid));
        let selected = others.filter(|&pid| {
            let name = proc::name(pid);
            let is_wanted = search.rules.iter().find(|rule| rule.name.matches(&name)).is_some_and(|rule| rule.attach);
            if !is_wanted
                || !(search.serves_all || proc::owner(pid) == Some(own_uid))
                || proc::age(pid).is_none_or(|age| age < MIN_AGE)
            {
                return false;
            }
            // A process without a program is a thread of the kernel, or cannot be looked into.
            let id = ProcessId::of(pid);
            id.program.is_some() && id.program != own_program && self.may_be_tried(id, now)
        });
        selected.take(MAX_FOUND).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use formats::pattern::Pattern;

    fn rule(name: &str, attach: bool) -> Rule {
        Rule { name: Pattern::whole(name), choice: Default::default(), attach }
    }

    #[test]
    fn refused_process_is_tried_a_limited_number_of_times() {
        let id = ProcessId { pid: 7, start_ticks: 1, program: None };
        let mut history = History::default();
        let now = Instant::now();
        assert!(history.may_be_tried(id, now));
        assert!(!history.refused(id, true));
        assert!(!history.may_be_tried(id, now) && history.may_be_tried(id, now + 2 * RETRY_PAUSE));
        assert!(!history.refused(id, true));
        assert!(!history.may_be_tried(id, now + RETRY_PAUSE) && history.may_be_tried(id, now + 3 * RETRY_PAUSE));
        assert!(history.refused(id, true));
        assert!(!history.may_be_tried(id, now + 1000 * RETRY_PAUSE));
        let other = ProcessId { start_ticks: 2, ..id };
        assert!(history.may_be_tried(other, now) && history.refused(other, false));
        assert!(!history.may_be_tried(other, now + 1000 * RETRY_PAUSE));
    }

    #[test]
    fn search_follows_the_first_rule_that_matches() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep starts");
        let deadline = Instant::now() + 4 * MIN_AGE;
        let search = |history: &mut History, rules: Vec<Rule>, recorded: Vec<u32>| {
            history.search(&Search { rules, serves_all: false, recorded })
        };
        let mut history = History::default();
        let wanted = || vec![rule("sle?p", true)];
        let is_found = |found: Vec<u32>| found.contains(&child.id());
        while !is_found(search(&mut history, wanted(), Vec::new())) {
            assert!(Instant::now() < deadline, "it is old enough by now");
            std::thread::sleep(Duration::from_millis(100));
        }
        assert!(!is_found(search(&mut history, vec![rule("sleep", false), rule("*", true)], Vec::new())));
        assert!(!is_found(search(&mut history, wanted(), vec![child.id()])));
        history.left(ProcessId::of(child.id()));
        assert!(!is_found(search(&mut history, wanted(), Vec::new())));
        child.kill().expect("it sleeps");
        child.wait().expect("its end");
    }
}
