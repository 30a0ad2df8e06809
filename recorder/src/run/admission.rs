//! The one way into a recording, for `heaptape record`, `heaptape attach` and the daemon.
//!
//! ```text
//!  admit (hello) ──> look at it ──> decide ──> area, folder, hooks ──> keeper ──> reply ─┐
//!  admit_running (attached) ─────────────────────────────────────────────────────────────┼─> start
//!  resume (another recorder left it) ────────────────────────────────────────────────────┘
//! ```
//! A look at a process may never return (see [`crate::os::aside`]). The daemon has other programs to serve, so
//! it takes the step apart: [`ask`], [`Question::answer`] on another thread, [`admit_known`].
//!
//! A process that got its area may have stopped waiting for it, so its session starts when it has
//! said that it uses the area. What the recorders do differently, their [`Policy`] answers.

mod look;
mod policy;

use look::Files;
pub use look::{Known, Question, Who};
pub use policy::{Failure, Parent, Policy, Started, Terms};

use crate::digest::process::ProcessCommand;
use crate::inject::patch::{Plan, Planner};
use crate::os::clock::{self, Clock};
use crate::os::sys::{self, Mapping};
use crate::pipeline::drain::Command;
use crate::rings::ring_space;
use crate::session::keeper::{self, About, Entry, Held};
use crate::session::listener::Client;
use crate::session::options::{MAX_INTERVAL, Options};
use crate::session::traced_process::{Attached, Fork, Ids, Session, SessionBuilder, SessionId};
use crate::target::jit_names::PerfMap;
use crate::target::module_files::ModuleFiles;
use crate::target::name_saver::Saver;
use crate::target::proc::Process;
use crossbeam_channel::bounded;
use formats::recording::ProcessInfo;
use formats::tape::Origin;
use serde::Serialize;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};
use wire::hello::REFUSED_FULL;

/// Time in which a process of a killed recorder must start to use its area. A new one closes its
/// socket when it gives up, and may be stopped by a debugger until then. This one's socket is gone, so
/// nothing says whether it has given up, and the end of a recording waits for it.
const RESUME_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval of the checks whether such a process uses its area: nothing wakes us.
const RESUME_INTERVAL: Duration = Duration::from_millis(10);
/// Timeout of fixing the state of the parent at a fork that the library did not see. The digest may
/// have a full queue before it. The child waits for its reply as long as we live, and so do the
/// programs behind it.
const PARENT_STATE_TIMEOUT: Duration = Duration::from_millis(100);
/// Time in which threads that are in a hook finish it, before the library is unmapped.
pub const LAST_HOOKS: Duration = Duration::from_millis(20);

/// A process that has its area.
#[derive(Debug)]
pub struct Offer<D> {
    pub client: Client,
    pub process: Process,
    pub folder: PathBuf,
    pub mapping: Mapping,
    pub terms: Terms<D>,
    parent: Option<Parent>,
    program: Option<(u64, u64)>,
    code: PerfMap,
    files: ModuleFiles,
    plan: Plan,
    entry: Option<Entry>,
    start_tick: u64,
}

/// A process of another recorder.
#[derive(Debug)]
struct Left<N> {
    held: Held<N>,
    mapping: Mapping,
    until: Instant,
}

/// A process that may not use its area yet.
#[derive(Debug)]
enum Waiting<D, N> {
    Offered(Box<Offer<D>>),
    Left(Box<Left<N>>),
}

impl<D, N> Waiting<D, N> {
    fn mapping(&self) -> &Mapping {
        match self {
            Waiting::Offered(offer) => &offer.mapping,
            Waiting::Left(left) => &left.mapping,
        }
    }

    fn has_gone(&self) -> bool {
        match self {
            Waiting::Offered(offer) => {
                offer.client.has_disconnected() || sys::is_readable(sys::fd(&offer.client.process))
            }
            Waiting::Left(left) => sys::is_readable(sys::fd(&left.held.process)) || Instant::now() >= left.until,
        }
    }
}

/// A process that ran before it was attached, and uses its area now.
#[derive(Debug)]
pub struct RunningProcess {
    pub client: Client,
    /// The shared memory area of the process.
    pub mapping: Mapping,
    pub area: OwnedFd,
    /// The functions that were hooked.
    pub plan: Plan,
    pub start_tick: u64,
}

/// What the admission of processes needs, and those that do not use their areas yet.
#[derive(Debug)]
pub struct Admissions<D, N> {
    pub clock: Clock,
    pub planner: Planner,
    /// Stores the function names of modules.
    pub saver: Option<Arc<Saver>>,
    ticks_per_second: Option<u64>,
    last_id: SessionId,
    waiting: Vec<Waiting<D, N>>,
}

impl<D, N> Admissions<D, N> {
    pub fn new(clock: Clock, planner: Planner, saver: Option<Arc<Saver>>) -> Admissions<D, N> {
        Admissions { clock, planner, saver, ticks_per_second: None, last_id: 0, waiting: Vec::new() }
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns the processes that got their areas and do not use them yet.
    pub fn offers(&self) -> impl Iterator<Item = &Offer<D>> {
        self.waiting.iter().filter_map(|waiting| match waiting {
            Waiting::Offered(offer) => Some(&**offer),
            Waiting::Left(_) => None,
        })
    }

    /// Returns the descriptors that become readable when such a process has closed its socket.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.offers().map(|offer| offer.client.descriptor())
    }

    /// Returns the time until the next look at what no descriptor tells.
    pub fn deadline(&self) -> Option<Duration> {
        self.waiting.iter().any(|waiting| matches!(waiting, Waiting::Left(_))).then_some(RESUME_INTERVAL)
    }

    pub fn ticks_per_second(&mut self) -> u64 {
        let clock = self.clock;
        *self.ticks_per_second.get_or_insert_with(|| clock.ticks_per_second())
    }

    fn new_id(&mut self) -> SessionId {
        self.last_id += 1;
        self.last_id
    }
}

/// Offers a program that sent its hello an area, or refuses it.
pub fn admit<P: Policy>(policy: &mut P, client: Client) {
    let question = ask(policy, &client);
    let who = question.who();
    match policy.decide(&client, &who) {
        Ok(terms) => offer(policy, client, Known { who, files: question.files(), question }, terms),
        Err(status) => client.refuse(status),
    }
}

/// Returns what is to be looked at in a program that sent its hello.
pub fn ask<P: Policy>(policy: &mut P, client: &Client) -> Question {
    // The process itself, or the one that started it, may use its area by now.
    look(policy, |_| false);
    policy.executes(client.pid);
    Question::of(policy, client)
}

/// Offers a program an area that was looked at, or refuses it.
pub fn admit_known<P: Policy>(policy: &mut P, client: Client, known: Known) {
    look(policy, |_| false);
    match policy.decide(&client, &known.who) {
        Ok(terms) => offer(policy, client, known, terms),
        Err(status) => client.refuse(status),
    }
}

fn offer<P: Policy>(policy: &mut P, mut client: Client, known: Known, terms: Terms<P::Decision>) {
    let Known { who: Who { process, program, .. }, files: Files { code, files, plan }, question } = known;
    let (clock, start_tick) = (policy.admissions().clock, question.start_tick);
    let area = client.area(&terms.options, clock).map_err(Failure::Area);
    let made = area.and_then(|(mapping, area)| {
        let folder = policy.folder(&terms.decision, client.pid, &process.comm).map_err(Failure::Folder)?;
        Ok((mapping, area, folder))
    });
    let (mapping, area, folder) = match made {
        Ok(made) => made,
        Err(failure) => {
            policy.failed(&client, &process, failure);
            return client.refuse(REFUSED_FULL);
        }
    };
    let parent = prepare_parent(policy, &mut client, process.ppid);
    let plan = plan.unwrap_or_else(|| inherited(policy, parent.as_ref()));
    plan.write(&mapping, &area);
    policy.prepare(&terms.decision, &mapping);
    let entry = None;
    let mut offer =
        Offer { client, process, folder, mapping, terms, parent, program, code, files, plan, entry, start_tick };
    // Before the process has the area: what it publishes survives this recorder.
    offer.entry = keep(policy, &offer, &area);
    if offer.client.accept(&offer.mapping, &area) {
        policy.admissions().waiting.push(Waiting::Offered(Box::new(offer)));
    } else {
        give_up(policy, offer);
    }
}

/// Records a process from its attach on.
pub fn admit_running<P: Policy>(
    policy: &mut P,
    running: RunningProcess,
    decide: impl FnOnce(&mut P, &Client, &Who) -> io::Result<Terms<P::Decision>>,
) -> io::Result<SessionId> {
    let RunningProcess { client, mapping, area, plan, start_tick } = running;
    let question = Question::without_hooks(policy, &client);
    let Known { who, files: Files { code, files, .. }, .. } = question.answer_in_time();
    let terms = decide(policy, &client, &who)?;
    let Who { process, program, .. } = who;
    let folder = policy.folder(&terms.decision, client.pid, &process.comm)?;
    policy.prepare(&terms.decision, &mapping);
    let (parent, entry) = (None, None);
    let mut offer =
        Offer { client, process, folder, mapping, terms, parent, program, code, files, plan, entry, start_tick };
    offer.entry = keep(policy, &offer, &area);
    Ok(start(policy, offer))
}

/// Continues with a process of another recorder, as soon as the process uses its area.
pub fn resume<P: Policy>(policy: &mut P, held: Held<P::Note>) {
    let adopted = Mapping::adopt(&held.area).and_then(|mapping| match mapping.header().state.load(Relaxed) {
        wire::area::LIVE => Ok(mapping),
        _ => Err(io::Error::other("its recording was ended")),
    });
    match adopted {
        Ok(mapping) => {
            let left = Left { held, mapping, until: Instant::now() + RESUME_TIMEOUT };
            policy.admissions().waiting.push(Waiting::Left(Box::new(left)));
            look(policy, |_| false);
        }
        Err(error) => {
            keeper::release(policy.keeper(), &held.entry);
            policy.lost(held.about, Some(error));
        }
    }
}

/// Starts the sessions of processes that use their areas now, and drops those that never will.
pub fn look_at_waiting<P: Policy>(policy: &mut P) {
    look(policy, Waiting::has_gone);
}

/// Ends the wait of all of them.
pub(crate) fn stop_waiting<P: Policy>(policy: &mut P) {
    look(policy, |_| true);
}

fn look<P: Policy>(policy: &mut P, has_gone: impl Fn(&Waiting<P::Decision, P::Note>) -> bool) {
    for waiting in std::mem::take(&mut policy.admissions().waiting) {
        // In this order: a process sets its flag before it disconnects or ends.
        let has_gone = has_gone(&waiting);
        let uses_area = waiting.mapping().header().attached.load(Acquire) != 0;
        match waiting {
            Waiting::Offered(offer) if uses_area => drop(start(policy, *offer)),
            Waiting::Offered(offer) if has_gone => give_up(policy, *offer),
            Waiting::Left(left) if uses_area => start_left(policy, *left),
            Waiting::Left(left) if has_gone => {
                keeper::release(policy.keeper(), &left.held.entry);
                policy.lost(left.held.about, None);
            }
            waits => policy.admissions().waiting.push(waits),
        }
    }
}

fn give_up<P: Policy>(policy: &mut P, offer: Offer<P::Decision>) {
    offer.entry.iter().for_each(|entry| keeper::release(policy.keeper(), entry));
    policy.gave_up(offer);
}

/// Leaves the descriptors of a process to the keeper.
fn keep<P: Policy>(policy: &mut P, offer: &Offer<P::Decision>, area: &OwnedFd) -> Option<Entry> {
    if !policy.keeper().is_there() {
        return None;
    }
    let Offer { client, process, folder, plan, terms, start_tick, .. } = offer;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let info = ProcessInfo {
        folder: text(folder.file_name().unwrap_or_default().as_encoded_bytes()),
        pid: client.pid,
        ppid: process.ppid,
        exe: text(&process.exe),
        argv: process.argv.iter().map(|argument| text(argument)).collect(),
        started_unix_ns: clock::unix_ns(),
        ..ProcessInfo::default()
    };
    let (name, hello_pid, uid, hooks) = (text(&process.comm), client.hello.pid, client.uid, plan.note());
    let about = About { info, name, hello_pid, uid, hooks, note: policy.note(&terms.decision) };
    // Another program of this process is another entry.
    let key = format!("{}-{start_tick}", client.pid);
    keeper::keep(policy.keeper(), key, &about, area, &client.process)
}

/// Returns the parent of a new process. For a child of a fork that the library did not see (a direct
/// system call of the program), the blocks that the parent had then are kept: the child reports its
/// age, and waits for its reply.
fn prepare_parent<P: Policy>(policy: &mut P, client: &mut Client, ppid: u32) -> Option<Parent> {
    let age = std::mem::take(&mut client.hello.fork_age);
    if age != 0 {
        let ticks = ticks_of(age, policy.admissions().ticks_per_second());
        client.hello.fork_tick = client.hello.fork_tick.saturating_sub(ticks).max(1);
    }
    let parent = policy.parent(client, ppid)?;
    if age != 0 {
        let (done, is_done) = bounded(1);
        let _ = policy.stages().commands.send(Command::PrepareFork(parent.id, client.hello.fork_tick, done));
        let _ = is_done.recv_timeout(PARENT_STATE_TIMEOUT);
    }
    Some(parent)
}

/// Returns the hooks of a forked child, which are those of its parent.
fn inherited<P: Policy>(policy: &P, parent: Option<&Parent>) -> Plan {
    match parent {
        Some(Parent { session: Some(session), .. }) => session.hooks.forked(&session.mapping),
        Some(parent) => policy.inherited(parent),
        None => Plan::default(),
    }
}

/// Starts the session of a process that uses its area.
fn start<P: Policy>(policy: &mut P, offer: Offer<P::Decision>) -> SessionId {
    let Offer {
        client, process, folder, mapping, terms, parent, program, code, files, plan, entry, start_tick, ..
    } = offer;
    let Terms { options, limit, carried_over, decision, .. } = terms;
    let (ids, hello) = (Ids { pid: client.pid, hello_pid: client.hello.pid, uid: client.uid }, client.hello);
    let origin = policy.origin(&client, parent.is_some());
    let forked_from = parent.as_ref().filter(|_| origin == Origin::Fork);
    let fork = forked_from.map(|parent| Fork {
        parent: parent.id,
        folder: parent.folder.clone(),
        tick: hello.fork_tick,
        knows_all_blocks: parent.knows_all_blocks,
    });
    let code = match forked_from.and_then(|parent| parent.session.as_ref()) {
        Some(session) => code.forked_from(&session.code),
        None => code,
    };
    let (id, worker) = next(policy, forked_from);
    let (child_faults, comm) = (process.child_faults, process.comm.clone());
    let page_size = hello.page_size;
    let attached = Attached { ids, origin, page_size, start_tick, process, mapping, code, files };
    let builder = builder(policy, id, attached, folder, options);
    let session = builder.limit(limit).forked(fork).hooks(plan).carried_over(carried_over).build();
    let info = ProcessInfo { parent: parent.map(|parent| parent.folder), ..session.info() };
    let process = client.process;
    let started = Started { session, info, decision, process, entry, ids, worker, program, child_faults, comm };
    begin(policy, started);
    id
}

/// Continues with a process of another recorder, in another folder.
fn start_left<P: Policy>(policy: &mut P, left: Left<P::Note>) {
    let Left { held: Held { entry, about, process: end, .. }, mapping, .. } = left;
    let ids = Ids { pid: about.info.pid, hello_pid: about.hello_pid, uid: about.uid };
    let question = Question::of_another(policy, ids);
    let Known { who: Who { process, program, .. }, files: Files { code, files, .. }, .. } = question.answer_in_time();
    let process = as_it_was(process, &about);
    let decided = policy.decide_again(&about, &process);
    let (terms, folder) = match decided
        .and_then(|terms| policy.folder(&terms.decision, ids.pid, &process.comm).map(|dir| (terms, dir)))
    {
        Ok(decided) => decided,
        Err(error) => return policy.lost(about, Some(error)),
    };
    let Terms { mut options, limit, carried_over, earlier, parent, decision } = terms;
    ring_space::resume(&mapping, &policy.positions(&about));
    let header = mapping.header();
    options.overflow.set(header);
    // Threads report their interval when it changes. This change makes them report it to us.
    let interval =
        if options.sample_bytes == 0 { 0 } else { header.sample_bytes.load(Relaxed).clamp(2, MAX_INTERVAL) ^ 1 };
    header.sample_bytes.store(interval, Relaxed);
    if options.sample_bytes != interval {
        Arc::make_mut(&mut options).sample_bytes = interval;
    }
    let About { info, hooks, .. } = about;
    let began_unix_ns = if info.began_unix_ns == 0 { info.started_unix_ns } else { info.began_unix_ns };
    let start_tick = policy.admissions().clock.now();
    let (child_faults, comm) = (process.child_faults, process.comm.clone());
    let attached = Attached::taken_over(ids, process, mapping, start_tick, code, files);
    let (id, worker) = next(policy, None);
    let builder = builder(policy, id, attached, folder, options).limit(limit).resumed(began_unix_ns);
    let session = builder.carried_over(carried_over).earlier(earlier).hooks(Plan::of_note(hooks)).build();
    let mut now = ProcessInfo { parent, ..session.info() };
    if now.malloc.is_empty() {
        now.malloc = info.malloc;
    }
    let (process, entry) = (end, Some(entry));
    let started = Started { session, info: now, decision, process, entry, ids, worker, program, child_faults, comm };
    begin(policy, started);
}

/// Returns what is known of a process of another recorder: it may have ended, or have executed another
/// program.
fn as_it_was<N>(mut process: Process, about: &About<N>) -> Process {
    let pid = about.info.pid;
    if process.exe.is_empty() {
        tracing::info!("process {pid} ({}) has ended meanwhile", about.name.escape_debug());
    }
    if process.comm.is_empty() {
        process.comm = about.name.clone().into_bytes();
    }
    if String::from_utf8_lossy(&process.exe) != about.info.exe {
        process.exe = about.info.exe.clone().into_bytes();
        process.argv = about.info.argv.iter().map(|argument| argument.clone().into_bytes()).collect();
    }
    process.ppid = about.info.ppid;
    process
}

/// Returns the number of a new session, and its worker: that of its parent, for a child.
fn next<P: Policy>(policy: &mut P, forked_from: Option<&Parent>) -> (SessionId, usize) {
    let (id, workers) = (policy.admissions().new_id(), policy.stages().workers);
    (id, forked_from.map_or(id as usize % workers, |parent| parent.worker))
}

fn builder<P: Policy>(
    policy: &mut P,
    id: SessionId,
    attached: Attached,
    folder: PathBuf,
    options: Arc<Options>,
) -> SessionBuilder {
    let admissions = policy.admissions();
    SessionBuilder::new(id, attached, folder, options, admissions.clock, admissions.ticks_per_second())
}

/// Lists a process, and lets the drain read its rings.
fn begin<P: Policy>(policy: &mut P, started: Started<P::Decision>) {
    let Started { ref session, ref entry, ref info, ids, worker, .. } = started;
    if let Some(entry) = entry {
        let note = policy.note(&started.decision);
        write_about(entry, session, info.clone(), &started.comm, ids, note);
    }
    let (id, session) = (session.id, Arc::clone(session));
    let note = policy.started(started);
    let commands = &policy.stages().commands;
    let _ = commands.send(Command::Start(session, worker));
    if let Some(note) = note {
        let _ = commands.send(Command::Process(id, ProcessCommand::Note(note)));
    }
}

/// Changes what the keeper's entry says about a process.
pub fn write_about<N: Serialize>(entry: &Entry, session: &Session, info: ProcessInfo, comm: &[u8], ids: Ids, note: N) {
    let Ids { pid, hello_pid, uid } = ids;
    let name = String::from_utf8_lossy(comm).into_owned();
    let about = About { info, name, hello_pid, uid, hooks: session.hooks.note(), note };
    if let Err(error) = entry.about.write(&about) {
        tracing::warn!("the next recorder may not know process {pid}: {error}");
    }
}

pub(crate) fn ticks_of(nanoseconds: u64, ticks_per_second: u64) -> u64 {
    (u128::from(nanoseconds) * u128::from(ticks_per_second) / 1_000_000_000) as u64
}
