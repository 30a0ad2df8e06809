//! `heaptape verify`: is a recording whole, and do its parts agree? Everything is read; the ledger is printed.

use super::{Error, Outcome};
use crate::event::{Event, Kind, Span};
use crate::load::tape::Place;
use crate::load::{self, Events, Image};
use crate::missing::Missing;
use crate::model::call_sites::CallSites;
use crate::model::live_set::Block;
use crate::model::peak::Peak;
use crate::model::totals::Totals;
use crate::progress::Progress;
use crate::replay::{Model, replay};
use crate::text::{Screen, Style, count};
use crate::unpack;
use heaptape_formats::mptl::Profile;
use heaptape_formats::recording::PROFILE;
use heaptape_formats::tape::{self, Entry, SiteSums};
use rustc_hash::FxHashMap;
use std::error::Error as _;
use std::io::{self, Write};
use std::path::Path;

/// What is checked on the way, beyond what a replay itself notices.
#[derive(Debug, Default)]
struct Checks {
    /// Events of each thread that the program made: those written in hindsight are not among them.
    by_thread: FxHashMap<u32, u64>,
    next_index: u64,
    last_tick: u64,
    backwards: u64,
    out_of_order: u64,
}

impl Checks {
    #[inline]
    fn event(&mut self, event: &Event) {
        let hindsight =
            [Entry::Inherited, Entry::Implied, Entry::Carried].iter().any(|entry| event.entry == *entry as u8);
        if !hindsight {
            *self.by_thread.entry(event.thread).or_default() += 1;
        }
        self.backwards += u64::from(event.tick < self.last_tick);
        self.last_tick = event.tick;
    }

    #[inline]
    fn index(&mut self, index: u64) {
        self.out_of_order += u64::from(index != self.next_index + 1);
        self.next_index = index;
    }
}

impl Model for Checks {
    fn alloc(&mut self, event: &Event, _: &Block) {
        self.event(event);
        self.index(event.index);
    }
    fn resize(&mut self, event: &Event, _: Option<&Block>, _: &Block) {
        self.event(event);
    }
    fn free(&mut self, event: &Event, _: Option<&Block>) {
        if event.kind == Kind::Free {
            self.event(event);
        }
    }
    fn unmatched(&mut self, event: &Event) {
        self.event(event);
    }
    fn inherited(&mut self, _: &Block, gone: Option<Kind>) {
        if gone.is_none() {
            self.next_index += 1;
        }
    }
}

/// `heaptape verify`: prints what was checked.
///
/// # Errors
/// When nothing can be read, or `out` fails.
pub fn run(path: &Path, out: &mut dyn Write, style: Style) -> Result<Outcome, Error> {
    let recording = load::open(path)?;
    let readable = |image: &Image| !matches!(image.events, Events::None);
    if !recording.images.is_empty() && !recording.images.iter().any(readable) {
        return Err(Error::Unanswerable(format!("{}: none of its images can be read", path.display())));
    }
    let progress = Progress::new("verifying");
    let mut screen = Screen::new(out, style);
    let mut wrong: Vec<String> = recording.missing.iter().map(ToString::to_string).collect();
    for image in &recording.images {
        let found = verify(image, &progress, &mut screen)?;
        wrong.extend(found.into_iter().map(|what| format!("{}: {what}", image.about.folder)));
    }
    drop(progress);
    wrong.iter().try_for_each(|what| screen.warning(&format!("! {what}")))?;
    match wrong.len() {
        0 => screen.line("whole")?,
        several => screen.line(&format!("readable, with {several} things missing or wrong"))?,
    }
    Ok(Outcome::of(wrong.len()))
}

fn verify(image: &Image, progress: &Progress, screen: &mut Screen) -> io::Result<Vec<String>> {
    let (mut totals, mut sites, mut peak) = (Totals::default(), CallSites::default(), Peak::within(Span::ALL));
    let mut checks = Checks::default();
    let models = &mut (&mut totals, &mut sites, &mut peak, &mut checks);
    let outcome = replay(image, Span::ALL, progress, models);
    let mut missing = image.missing.clone();
    missing.extend(outcome.missing);
    let mut wrong: Vec<String> = missing.iter().map(ToString::to_string).collect();
    let totals = match image.ready_sums() {
        Some(summary) if matches!(image.events, Events::Profile) => summary.totals,
        _ => totals.finish(image.tape.inherited.as_ref()),
    };
    let intact =
        !missing.iter().any(Missing::hides_events) && !missing.iter().any(|m| matches!(m, Missing::Salvaged { .. }));
    let mut expect = |what: &str, held: u64, stated: u64| {
        if intact && held != stated {
            wrong.push(format!("{what}: the events say {}, the tape says {}", count(held), count(stated)));
        }
    };
    let sums_alone = image.tape.summary.as_ref().filter(|_| image.tape.places.is_empty() && !image.has_events());
    if let Some(summary) = sums_alone {
        ledger(image, None, screen, &mut expect)?;
        same_sums(summary, &mut expect);
        let totals = &summary.totals;
        screen.line(&format!(
            "{}: sums of {} allocations, {} resizes, {} frees, without events; {} live blocks at the end",
            image.about.folder,
            count(totals.allocs),
            count(totals.resizes),
            count(totals.frees),
            count(totals.live_blocks)
        ))?;
        profile(image, totals, intact, &mut wrong);
        return Ok(wrong);
    }
    if let Events::Taped { .. } = image.events {
        ledger(image, Some(&checks), screen, &mut expect)?;
        chunks(image, &mut expect);
        if let Some(summary) = image.tape.summary.as_ref().filter(|_| image.tape.summary_is_last) {
            same_totals(&totals, &summary.totals, &mut expect);
            // A block of the parent whose free was not seen has no event: the image never held it.
            if image.tape.inherited.is_none() {
                expect("implied frees", totals.implied_frees, summary.totals.implied_frees);
            }
            same_sites(&sites, &peak, &summary.sites, &mut expect);
        }
        expect("events whose time runs backwards", checks.backwards, 0);
        expect("allocations out of order", checks.out_of_order, 0);
    }
    screen.line(&format!(
        "{}: {} allocations, {} resizes, {} frees, {} unmatched; {} live blocks at the end",
        image.about.folder,
        count(totals.allocs),
        count(totals.resizes),
        count(totals.frees),
        count(outcome.unmatched),
        count(totals.live_blocks)
    ))?;
    profile(image, &totals, intact, &mut wrong);
    Ok(wrong)
}

/// Prints the ledger and checks `emitted = recorded + lost + sampled out` and, for each thread, `recorded` against the
/// events that are there.
fn ledger(
    image: &Image,
    checks: Option<&Checks>,
    screen: &mut Screen,
    expect: &mut impl FnMut(&str, u64, u64),
) -> io::Result<()> {
    let mut rows = Vec::new();
    let mut sum = tape::Account::default();
    let mut unpublished = 0;
    for account in &image.tape.accounts {
        let tape::Account { thread, emitted, recorded, lost, sampled_out } = account;
        let accounted = recorded.saturating_add(*lost).saturating_add(*sampled_out);
        // An event is counted before it is published: each thread may have died between the two, once.
        let in_flight = u64::from(accounted.checked_add(1) == Some(*emitted));
        unpublished += in_flight;
        expect(&format!("ledger of thread {thread}, emitted"), accounted + in_flight, *emitted);
        if let Some(checks) = checks {
            let held = checks.by_thread.get(thread).copied().unwrap_or(0);
            expect(&format!("ledger of thread {thread}, recorded"), held, *recorded);
        }
        sum.emitted += emitted;
        sum.recorded += recorded;
        sum.lost += lost;
        sum.sampled_out += sampled_out;
        let name = image.tape.threads.get(thread).map(|thread| thread.name.lossy().into_owned()).unwrap_or_default();
        rows.push((
            *emitted,
            vec![
                count(*emitted),
                count(*recorded),
                count(*lost),
                count(*sampled_out),
                format!("thread {thread} {name}"),
            ],
        ));
    }
    rows.sort_by_key(|row| std::cmp::Reverse(row.0));
    let more = rows.len().saturating_sub(LEDGER_ROWS);
    let mut rows: Vec<Vec<String>> = rows.into_iter().take(LEDGER_ROWS).map(|row| row.1).collect();
    let tape::Account { emitted, recorded, lost, sampled_out, .. } = sum;
    let all = if more > 0 { format!("all, {more} threads more among them") } else { "all".into() };
    rows.push(vec![count(emitted), count(recorded), count(lost), count(sampled_out), all]);
    screen.table(&["emitted", "recorded", "lost", "sampled out", "ledger"], &rows)?;
    if unpublished > 0 {
        screen.line(&format!("{unpublished} of the emitted were not yet published when their threads ended"))?;
    }
    Ok(())
}

/// Threads of the ledger that are printed one by one.
const LEDGER_ROWS: usize = 20;

/// Chunks must follow one another without holes, in the trace and in their numbers.
fn chunks(image: &Image, expect: &mut impl FnMut(&str, u64, u64)) {
    let (mut number, mut stored, mut plain, mut index) = (0u64, 0u64, 0u64, 1u64);
    for place in &image.tape.places {
        let Place::Committed { chunk, .. } = place else { continue };
        let of = format!("chunk {}", chunk.number);
        expect(&format!("{of}, number"), number + 1, chunk.number.into());
        expect(&format!("{of}, offset in the trace file"), stored, chunk.stored_offset);
        expect(&format!("{of}, offset in the plain trace"), plain, chunk.plain_offset);
        expect(&format!("{of}, first allocation index"), index, chunk.first_index);
        number = chunk.number.into();
        stored = chunk.stored_offset.saturating_add(chunk.stored_length);
        plain = chunk.plain_offset.saturating_add(chunk.plain_length);
        index = chunk.first_index.saturating_add(chunk.allocations);
    }
}

/// Sums without events must at least agree with themselves.
fn same_sums(summary: &tape::Summary, expect: &mut impl FnMut(&str, u64, u64)) {
    let totals = &summary.totals;
    let sum = |of: fn(&SiteSums) -> u64| summary.sites.iter().fold(0u64, |sum, row| sum.saturating_add(of(row)));
    // Events without a stack are counted at no site.
    if summary.sites.iter().all(|row| row.site != 0) {
        expect("allocations and resizes by site", sum(|row| row.allocs), totals.allocs.saturating_add(totals.resizes));
        expect("bytes allocated by site", sum(|row| row.bytes), totals.bytes_allocated);
        expect("live blocks by site", sum(|row| row.allocs.saturating_sub(row.frees)), totals.live_blocks);
        expect("live bytes by site", sum(|row| row.bytes.saturating_sub(row.freed_bytes)), totals.live_bytes);
    }
}

fn same_totals(held: &tape::Totals, stated: &tape::Totals, expect: &mut impl FnMut(&str, u64, u64)) {
    expect("allocations", held.allocs, stated.allocs);
    expect("resizes", held.resizes, stated.resizes);
    expect("frees", held.frees, stated.frees);
    expect("bytes allocated", held.bytes_allocated, stated.bytes_allocated);
    expect("live blocks", held.live_blocks, stated.live_blocks);
    expect("live bytes", held.live_bytes, stated.live_bytes);
    expect("peak bytes", held.peak_bytes, stated.peak_bytes);
    expect("peak blocks", held.peak_blocks, stated.peak_blocks);
    expect("unknown frees", held.unknown_frees, stated.unknown_frees);
}

fn same_sites(held: &CallSites, peak: &Peak, stated: &[SiteSums], expect: &mut impl FnMut(&str, u64, u64)) {
    let rows = held.sums();
    expect("sites with allocations", rows.len() as u64, stated.len() as u64);
    let different = stated.iter().filter(|row| {
        let mut own =
            rows.binary_search_by_key(&row.site, |row| row.site).map_or(SiteSums::default(), |at| rows[at].clone());
        let share = peak.at_peak(row.site);
        (own.peak_blocks, own.peak_bytes) = (share.blocks, share.bytes);
        own != **row
    });
    expect("sites whose sums differ", 0, different.count() as u64);
}

/// The profile must be whole and count the same.
fn profile(image: &Image, totals: &tape::Totals, intact: bool, wrong: &mut Vec<String>) {
    let Events::Taped { .. } = image.events else { return };
    let path = load::profile_file(&image.path).unwrap_or_else(|| image.path.join(PROFILE));
    let why = |error: unpack::Error| error.source().map_or_else(|| error.to_string(), ToString::to_string);
    let read = unpack::open(&path).map_err(why);
    let profile = read.and_then(|opened| Profile::read(&opened.bytes).map_err(|error| error.to_string()));
    match profile {
        Err(why) => wrong.push(format!("{PROFILE}: {why}")),
        Ok((_, ending)) if !ending.is_complete() => wrong.push(format!("{PROFILE} is cut")),
        Ok((profile, _)) => {
            let allocated = profile.bins.allocated.iter().fold(0u64, |sum, &count| sum.saturating_add(count));
            let expected = totals.allocs + totals.resizes;
            if intact && image.tape.end.is_some() && allocated != expected {
                wrong.push(format!(
                    "{PROFILE} counts {} allocations, the events {}",
                    count(allocated),
                    count(expected)
                ));
            }
        }
    }
}
