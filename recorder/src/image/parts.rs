//! The parts that a long-lived process is written in: snapshots of a profile, segments of a flight,
//! and whatever comes before and behind a change of folder or mode. A part is a whole image folder:
//! read alone it says everything about the blocks that live in it.

use super::code::Names;
use super::{Image, Standing, trace_of};
use crate::code;
use crate::contribution::Contribution;
use crate::course::Course;
use crate::live::Call;
use crate::options::{Mode, Options};
use crate::profile::{Amount, Profile};
use crate::session::{End, Now, Session};
use crate::store::{Piece, Then};
use crate::symbols::Job;
use crate::trace::Chunk;
use crossbeam_channel::Sender;
use formats::tape::field::Text;
use formats::tape::{self, Account, Accounts, Entry, Record as TapeRecord, SiteSums};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use wire::Op;

/// Segments that a flight keeps besides the one that is being written.
const SEGMENTS: usize = 4;
/// Over which growth of sites is counted.
const GROWTH: Duration = Duration::from_secs(60);

/// What a digest is told of one process.
#[derive(Debug)]
pub enum Tell {
    /// Its part ends; it goes on in another folder, or in another mode. `then` once the old part is
    /// written.
    Turn(Arc<Session>, Then),
    /// Its files are to say how it stands now.
    Snapshot(Then),
    /// Its flight is to be kept: gives the folders of its segments, oldest first, once they are
    /// written, and the names that they are to keep.
    Keep(Sender<(Vec<PathBuf>, Option<Box<Job>>)>),
    /// What it is made of, at most so many sites.
    Look(usize, Sender<View>),
}

/// A call site with its stack, for a live view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ViewSite {
    /// Site number.
    pub site: u32,
    /// Live bytes.
    pub live_bytes: u64,
    /// Live blocks.
    pub live_blocks: u64,
    /// Blocks ever allocated.
    pub allocs: u64,
    /// Bytes ever allocated.
    pub bytes: u64,
    /// Innermost first.
    pub stack: Vec<ViewFrame>,
}

/// A frame of its stack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ViewFrame {
    /// Module number; 0 for none.
    pub module: u32,
    /// Return address.
    pub address: u64,
    /// Name of code that no file describes.
    pub code: Option<Text>,
}

/// A process's call sites.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Those with the most live bytes.
    pub sites: Vec<ViewSite>,
    /// The modules that stacks name.
    pub modules: Vec<tape::Module>,
}

/// What an image knows of its parts.
#[derive(Debug)]
pub(super) struct Parts {
    /// What it got from its parent.
    pub inherited: Option<tape::Inherited>,
    /// Closed segments of a flight.
    closed: VecDeque<PathBuf>,
    opened: Instant,
    number: u32,
    /// Sums at the last contribution: the next one tells what came since.
    pub(super) told: Vec<SiteSums>,
    /// Live bytes of sites a minute ago, when that was, and how many grew in the minute before.
    looked: Vec<(u32, u64)>,
    looked_at: Instant,
    growing: u64,
    /// How sites stood since the attach, or since the sums began anew.
    course: Course,
}

impl Default for Parts {
    fn default() -> Self {
        let (inherited, closed, told, looked, growing, course) = Default::default();
        let now = Instant::now();
        Parts { inherited, closed, opened: now, number: 1, told, looked, looked_at: now, growing, course }
    }
}

impl Image {
    /// Does what it is told.
    pub fn tell(&mut self, tell: Tell, spare: &mut dyn FnMut() -> Chunk, out: &mut dyn FnMut(Piece)) {
        match tell {
            Tell::Turn(session, then) => self.turn(session, Some(then), spare, out),
            Tell::Snapshot(then) => match self.session.options.mode {
                Mode::Off => then.call(),
                Mode::Profile => self.snapshot(None, Some(then), out),
                Mode::Trace | Mode::Flight => {
                    self.cut(spare(), out);
                    let mut piece = Piece::of(&self.session);
                    piece.after = self.code();
                    piece.after.extend([self.ledger_so_far(), self.summary()]);
                    piece.profile = Some(self.profile.to_mptl(self.stacks.sites()));
                    piece.then = Some(then);
                    out(piece);
                }
            },
            Tell::Keep(reply) => {
                if self.session.options.mode != Mode::Flight {
                    return drop(reply.send(Default::default()));
                }
                let mut folders: Vec<PathBuf> = self.parts.closed.drain(..).collect();
                folders.push(self.session.folder.clone());
                let symbols = self.symbols(folders.clone());
                match self.next_segment() {
                    Some(next) => {
                        let then = Then::new(move || drop(reply.send((folders, symbols))));
                        self.turn(next, Some(then), spare, out);
                    }
                    None => drop(reply.send(Default::default())),
                }
            }
            Tell::Look(most, reply) => drop(reply.send(self.look(most))),
        }
    }

    /// What is written about how it stands, for anybody to read.
    pub(super) fn tell_stats(&mut self) {
        if self.parts.looked_at.elapsed() >= GROWTH {
            self.count_growing();
        }
        // Sums of samples would seem to rise and fall by chance.
        if self.session.options.mode == Mode::Profile && self.standing.is_none() && self.parts.course.is_due() {
            self.parts.course.keep(self.session.clock.now(), &self.profile);
        }
        let totals = self.profile.totals();
        let sums = self.sums_of_all();
        let live = self.live.index().len();
        self.session.stats.set(&Now {
            live_bytes: totals.live_bytes,
            live_blocks: totals.live_blocks,
            peak_bytes: totals.peak_bytes,
            allocs: totals.allocs + totals.resizes,
            frees: totals.frees,
            bytes: totals.bytes_allocated,
            recorded: sums.recorded,
            lost: sums.lost,
            sampled_out: sums.sampled_out,
            sites: self.stacks.last().into(),
            growing: self.parts.growing,
            threads: self.threads.seen as u64,
            // 43 bytes a live block and about 200 a site or thread, measured where they are
            // defined; the rest is tables that grow once.
            memory: live * 43
                + (u64::from(self.stacks.last()) + self.threads.len() as u64) * 200
                + (2 << 20)
                + self.parts.course.memory(),
        });
    }

    pub(super) fn tick_profile(&mut self, out: &mut dyn FnMut(Piece)) {
        if self.session.options.mode == Mode::Profile
            && self.news.1
            && self.profile_told.elapsed() >= self.session.options.snapshot
        {
            self.snapshot(None, None, out);
        }
    }

    /// Ends the segment of a flight when it is a quarter of the window.
    pub(super) fn tick_flight(&mut self, spare: &mut dyn FnMut() -> Chunk, out: &mut dyn FnMut(Piece)) {
        let window = self.session.options.window;
        if self.session.options.mode != Mode::Flight
            || (self.parts.opened.elapsed() < window.time / 4 && self.trace.plain_bytes() < window.bytes / 4)
        {
            return;
        }
        let old = self.session.folder.clone();
        if let Some(next) = self.next_segment() {
            self.parts.closed.push_back(old);
            self.turn(next, None, spare, out);
        }
        while self.parts.closed.len() > SEGMENTS {
            let mut piece = Piece::of(&self.session);
            piece.remove = self.parts.closed.pop_front();
            out(piece);
        }
    }

    /// A session for the next segment, its folder made beside this one's.
    fn next_segment(&mut self) -> Option<Arc<Session>> {
        self.parts.number += 1;
        let folder = &self.session.folder;
        let name = folder.file_name()?.to_string_lossy().into_owned();
        let stem = name.rsplit_once("+").map_or(name.as_str(), |(stem, _)| stem);
        let next = folder.with_file_name(format!("{stem}+{}", self.parts.number));
        use std::os::unix::fs::DirBuilderExt;
        if let Err(error) = std::fs::DirBuilder::new().mode(0o700).create(&next) {
            tracing::error!("{}: {error}", next.display());
            return None;
        }
        let starts = (self.last_tick, crate::clock::unix_ns());
        Some(Arc::new(self.session.part(next, Arc::clone(&self.session.options), Some(starts))))
    }

    /// The ledger of a process that goes on: what lies in its rings is still to come, or belongs to
    /// the next part.
    pub(super) fn ledger_so_far(&self) -> TapeRecord {
        let settle =
            |account: Account| Account { emitted: account.recorded + account.lost + account.sampled_out, ..account };
        let accounts = self.accounts().map(settle).filter(|account| account.emitted != 0).collect();
        TapeRecord::Accounts(Accounts { accounts })
    }

    /// Writes the files of a profile anew: how it stands, or how it ended.
    pub(super) fn snapshot(&mut self, end: Option<End>, then: Option<Then>, out: &mut dyn FnMut(Piece)) {
        self.before.clear();
        let mut records = vec![TapeRecord::Process(self.session.process.clone())];
        records.extend(self.threads.iter().filter_map(|known| known.who.clone()).map(TapeRecord::Thread));
        self.stacks.all(&mut records);
        records.extend(self.code());
        records.extend(self.parts.inherited.clone().map(TapeRecord::Inherited));
        records.extend(self.notes.iter().cloned().map(TapeRecord::Note));
        self.tell_clock();
        records.append(&mut self.before);
        let is_over = end.is_some_and(|end| end != End::RUNNING);
        records.push(if is_over { self.ledger() } else { self.ledger_so_far() });
        records.push(self.summary());
        records.extend(self.parts.course.record(&self.profile).map(TapeRecord::History));
        let (end, now) = (end.unwrap_or(End::RUNNING), self.session.clock.now());
        let unix_ns = crate::clock::unix_ns();
        records.push(TapeRecord::End(tape::End { tick: now, unix_ns, reason: end.reason, status: end.status }));
        let mut piece = Piece::of(&self.session);
        piece.whole = Some(records);
        piece.profile = Some(self.profile.to_mptl(self.stacks.sites()));
        piece.then = then;
        out(piece);
        (self.news.1, self.profile_told) = (false, Instant::now());
    }

    /// Ends the part: the process is over, or goes on in the next one.
    pub(super) fn close(
        &mut self,
        end: Option<End>,
        then: Option<Then>,
        spare: &mut dyn FnMut() -> Chunk,
        out: &mut dyn FnMut(Piece),
    ) {
        let mode = self.session.options.mode;
        let (is_over, end) = (end.is_some(), end.unwrap_or(End::RUNNING));
        // A gap that is open is this part's, as its ledger says.
        for thread in self.threads.numbers() {
            self.end_gap(thread as u32, self.last_tick);
        }
        let folds = self.session.options.folds && end != End::RUNNING && mode == Mode::Profile;
        match mode {
            Mode::Profile if !folds => self.snapshot(Some(end), None, out),
            Mode::Profile | Mode::Off => {}
            Mode::Trace | Mode::Flight => {
                self.tell_clock();
                self.cut(spare(), out);
                let mut piece = Piece::of(&self.session);
                let (now, unix_ns) = (self.session.clock.now(), crate::clock::unix_ns());
                let last = TapeRecord::End(tape::End { tick: now, unix_ns, reason: end.reason, status: end.status });
                let ledger = if end == End::RUNNING { self.ledger_so_far() } else { self.ledger() };
                piece.after = self.code();
                piece.after.extend([ledger, self.summary(), last]);
                piece.profile = Some(self.profile.to_mptl(self.stacks.sites()));
                out(piece);
            }
        }
        let mut piece = Piece::of(&self.session);
        if self.session.options.folds && mode != Mode::Off {
            piece.contribution = Some(self.contribution((end != End::RUNNING, folds)));
        }
        piece.is_over = is_over;
        if mode == Mode::Flight && is_over {
            piece.segments = self.parts.closed.drain(..).chain([self.session.folder.clone()]).collect();
        }
        let folders = match mode {
            _ if folds => Vec::new(),
            Mode::Flight => piece.segments.clone(),
            _ => vec![self.session.folder.clone()],
        };
        piece.symbols = self.symbols(folders);
        piece.last = Some(self.sums());
        piece.then = then;
        out(piece);
    }

    /// The part ends, and the next one begins with the blocks that live.
    fn turn(
        &mut self,
        next: Arc<Session>,
        then: Option<Then>,
        spare: &mut dyn FnMut() -> Chunk,
        out: &mut dyn FnMut(Piece),
    ) {
        let (old, new) = (Arc::clone(&self.session.options), Arc::clone(&next.options));
        self.close(None, then, spare, out);
        let keeps_ledger = old.mode == Mode::Profile && new.mode == Mode::Profile;
        if !keeps_ledger {
            let sums = self.sums();
            self.earlier.add(sums);
        }
        for (_, known) in self.threads.iter_mut() {
            if !keeps_ledger {
                let (lost, sampled) = (known.dropped, known.counts.2);
                let more = lost.saturating_sub(known.given.1) + sampled.saturating_sub(known.given.2);
                known.given = (known.given.0 + known.recorded + known.passed + more, lost, sampled);
                (known.recorded, known.passed, known.cut) = (0, 0, 0);
            }
        }
        self.threads.turn(keeps_ledger);
        if old.mode == Mode::Flight && new.mode != Mode::Flight {
            let folders: Vec<PathBuf> = self.parts.closed.drain(..).chain([self.session.folder.clone()]).collect();
            for folder in folders {
                out(Piece { remove: Some(folder), ..Piece::of(&self.session) });
            }
        }
        self.session = next;
        self.names = Names::default();
        self.before.clear();
        self.since = None;
        let was_off = old.mode == Mode::Off;
        // What was allocated under another rule would never be seen to go.
        if was_off || new.mode == Mode::Off || (old.sample_bytes == 0) != (new.sample_bytes == 0) {
            self.live = crate::live::Live::default();
            self.standing = Standing::of(&new);
            self.profile = Profile::default();
            self.parts.told.clear();
            self.session.stats.live_since_unix_ns.store(crate::clock::unix_ns(), Relaxed);
        }
        if !keeps_ledger || self.profile.totals().allocs == 0 {
            self.parts.course = Course::default();
        }
        self.parts.opened = Instant::now();
        self.trace = trace_of(&new);
        if new.mode.has_events() {
            self.carry_over(&new, spare, out);
        } else if old.mode.has_events() {
            for (_, block, amount) in self.renumbered(&new) {
                self.profile.alloc_as(block.site, block.size, amount, self.last_tick);
            }
        }
        self.news = (true, true);
    }

    /// The live blocks under new indexes; the sums are to be made of them alone.
    fn renumbered(&mut self, options: &Options) -> Vec<(u64, crate::index::Block, Amount)> {
        let blocks = self.live.renumber();
        if let Some(standing) = self.standing.take() {
            let numbers = blocks.iter().map(|(_, old, block)| (*old, block.index, block.size));
            self.standing = Some(standing.renumbered(options, numbers));
        }
        self.profile = Profile::default();
        self.parts.told.clear();
        self.profile.grow(self.stacks.last());
        let mut carried = Vec::with_capacity(blocks.len());
        for (address, _, block) in blocks {
            let known = self.standing.as_ref().and_then(|standing| standing.get(block.index));
            let amount = known.unwrap_or(Amount { blocks: 1, bytes: block.size });
            carried.push((address, block, amount));
        }
        carried
    }

    /// A trace begins with what it must know: threads, modules, sites, and the blocks that live.
    fn carry_over(&mut self, options: &Options, spare: &mut dyn FnMut() -> Chunk, out: &mut dyn FnMut(Piece)) {
        self.before.extend(self.threads.iter().filter_map(|known| known.who.clone()).map(TapeRecord::Thread));
        self.stacks.all(&mut self.before);
        let carried = self.renumbered(options);
        if !carried.is_empty() {
            self.note(format!("{} blocks that lived before are carried over", carried.len()));
        }
        self.begin();
        for (address, block, amount) in carried {
            let crate::index::Block { index, size, site } = block;
            let tick = self.last_tick;
            let call = Call { op: Op::MALLOC, thread: 0, site, address, size, weight: amount.bytes, tick };
            self.profile.alloc_as(site, size, amount, tick);
            self.trace.alloc(&call, Entry::Carried as u8, index);
            if self.trace.events() >= super::CHUNK_EVENTS {
                self.cut(spare(), out);
                self.begin();
            }
        }
        self.since = Some(Instant::now());
    }

    /// What this part adds to the sums of its program and of the images that it ran; `how`: the
    /// process is over, and has no files.
    fn contribution(&mut self, how: (bool, bool)) -> Box<Contribution> {
        self.stacks.announce(&mut Vec::new());
        let sums = self.profile.site_sums();
        let told = std::mem::replace(&mut self.parts.told, sums.clone());
        let account = self.sums();
        // What it made at run time has names that hold for the next process of the program too; its
        // addresses do not.
        if how.1 {
            self.named_code();
        }
        let (totals, named) = (self.summary_totals(), self.names.named());
        Box::new(Contribution::new(
            (&self.stacks, named, &self.session.files),
            &self.profile,
            sums,
            &told,
            totals,
            account,
            how,
        ))
    }

    fn summary_totals(&self) -> tape::Totals {
        match self.summary() {
            TapeRecord::Summary(summary) => summary.totals,
            _ => tape::Totals::default(),
        }
    }

    /// How many sites hold more than a minute ago.
    fn count_growing(&mut self) {
        let sums = self.profile.site_sums();
        let now: Vec<(u32, u64)> = sums.iter().map(|row| (row.site, row.bytes - row.freed_bytes)).collect();
        let before = |site: u32| {
            let found = self.parts.looked.binary_search_by_key(&site, |(site, _)| *site);
            found.map_or(0, |place| self.parts.looked[place].1)
        };
        self.parts.growing = now.iter().filter(|(site, live)| *live > before(*site)).count() as u64;
        (self.parts.looked, self.parts.looked_at) = (now, Instant::now());
    }

    /// The sites that hold most now.
    fn look(&mut self, most: usize) -> View {
        let mut rows: Vec<(u32, u64, SiteSums)> = Vec::new();
        for row in self.profile.site_sums() {
            rows.push((row.site, row.bytes - row.freed_bytes, row));
        }
        rows.sort_unstable_by_key(|(site, live, _)| (std::cmp::Reverse(*live), *site));
        rows.truncate(most);
        let modules = self.stacks.announced().iter().filter_map(|(_, record)| match record {
            TapeRecord::Module(module) => Some(module.clone()),
            _ => None,
        });
        let modules: Vec<tape::Module> = modules.collect();
        self.named_code();
        let named = self.names.named();
        let names = code::by_instruction(named);
        let frame = |(module, site): (u32, &tape::Site)| {
            let place = names.get(&tape::instruction(site.address, site.flags));
            ViewFrame { module, address: site.address, code: place.map(|place| named[*place].range.name.clone()) }
        };
        let site = |(site, live_bytes, row): (u32, u64, SiteSums)| ViewSite {
            site,
            live_bytes,
            live_blocks: row.allocs - row.frees,
            allocs: row.allocs,
            bytes: row.bytes,
            stack: self.stacks.frames(site).into_iter().map(frame).collect(),
        };
        View { sites: rows.into_iter().map(site).collect(), modules }
    }
}
