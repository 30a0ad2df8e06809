//! What the one-question reports have in common: what was asked, of which images, and how sites are
//! grouped and shown.

use super::filter::Filter;
use super::frames::{FrameJson, Lines, Place, place, place_line, stack_json};
use super::grouping::{By, key};
use super::{Error, Outcome, json, say_missing, say_sampled};
use crate::event::Range;
use crate::load::{self, Image, Recording};
use crate::missing::Missing;
use crate::processes::{ProcessFilter, folded_line};
use crate::progress::Progress;
use crate::symbols::{Detail, Origin, Symbolizer};
use crate::text::{Screen, Style, duration};
use rustc_hash::FxHashMap;
use serde::Serialize;
use std::io::{self, Write};
use std::path::PathBuf;

/// Frames of the program by which sites are grouped.
const FRAMES: usize = 3;
/// Why a file of sums gives no answer.
pub(super) const NEEDS_EVENTS: &str = "this needs events, and there are none: the file holds only sums by stack";

/// What was asked.
#[derive(Clone, Debug, Default)]
pub struct Query {
    /// Recordings and files.
    pub paths: Vec<PathBuf>,
    /// JSON instead of text.
    pub json: bool,
    /// Which part of the run.
    pub range: Range,
    /// How many rows of a table.
    pub top: usize,
    /// Only these processes.
    pub processes: ProcessFilter,
    /// Only these blocks.
    pub filter: Filter,
    /// By what stacks are told together, if not as the question does it.
    pub by: Option<By>,
    /// Where the files are looked for that name frames.
    pub origin: Origin,
}

impl Query {
    /// Opens what was named.
    ///
    /// # Errors
    /// When one of the paths cannot be read.
    pub fn open(&self) -> Result<Vec<Recording>, Error> {
        Ok(self.paths.iter().map(|path| load::open(path)).collect::<Result<_, _>>()?)
    }

    /// What names the frames.
    pub fn symbolizer(&self) -> Symbolizer {
        Symbolizer::from(Detail::Full, self.origin.clone())
    }

    /// The processes that were asked for.
    ///
    /// # Errors
    /// When the answer would be about nothing: nothing was recorded, or no process, thread, module
    /// or function has a name that was given, or the time range holds nothing.
    pub fn images<'a>(&self, recordings: &'a [Recording], symbols: &mut Symbolizer) -> Result<Vec<&'a Image>, Error> {
        let chosen = self.processes.select(recordings).map_err(Error::Unanswerable)?;
        self.range.check(&chosen).map_err(Error::Unanswerable)?;
        self.filter.check(&chosen, symbols).map_err(Error::Unanswerable)?;
        Ok(chosen)
    }
}

/// What an answer in `--json` begins with.
#[derive(Clone, Debug, Serialize)]
pub struct Head {
    /// Process id.
    pub pid: u32,
    /// Path of the executable.
    pub exe: String,
    /// Folder in the recording.
    pub folder: String,
    /// Mean bytes between samples; 0 when every event was recorded. Of a sample bytes are
    /// estimates, and blocks are those of the sample.
    pub sample_bytes: u64,
    /// Whether nothing is missing.
    pub complete: bool,
    /// What is missing, in words.
    pub missing: Vec<String>,
}

impl Head {
    /// The head of an image's answer.
    pub fn of(image: &Image, missing: &[Missing]) -> Self {
        Head {
            pid: image.about.pid,
            exe: image.about.exe.clone(),
            folder: image.about.folder.clone(),
            sample_bytes: image.tape.process.sample_bytes,
            complete: missing.is_empty(),
            missing: missing.iter().map(ToString::to_string).collect(),
        }
    }
}

/// An answer about one image.
pub(super) trait Answer: Serialize {
    /// The text.
    fn print(&self, screen: &mut Screen) -> io::Result<()>;
}

#[derive(Serialize)]
struct One<'a, A> {
    #[serde(flatten)]
    head: Head,
    #[serde(flatten)]
    answer: &'a A,
}

#[derive(Serialize)]
struct All<'a, A> {
    processes: Vec<One<'a, A>>,
}

/// Asks each image and prints the answers. `needs_events`: whether a profile alone cannot answer.
pub(super) fn ask<A: Answer>(
    query: &Query,
    out: &mut dyn Write,
    style: Style,
    needs_events: bool,
    mut answer: impl FnMut(&Image, &mut Symbolizer, &Progress) -> Result<(A, Vec<Missing>), Error>,
) -> Result<Outcome, Error> {
    let recordings = query.open()?;
    let mut symbols = query.symbolizer();
    let images = query.images(&recordings, &mut symbols)?;
    if (needs_events || !query.is_all()) && !images.iter().any(|image| image.has_events()) {
        return Err(Error::Unanswerable(NEEDS_EVENTS.into()));
    }
    let note = query.processes.note(&images);
    let (images, folded) = match query.json {
        true => (images, Vec::new()),
        false => query.processes.fold(images),
    };
    let progress = Progress::new("reading events");
    let mut answers = Vec::new();
    for image in images {
        let (answer, mut missing) = answer(image, &mut symbols, &progress)?;
        for found in &image.missing {
            if !missing.contains(found) {
                missing.push(found.clone());
            }
        }
        answers.push((image, answer, missing));
    }
    drop(progress);
    let lacking = answers.iter().filter(|(_, _, missing)| !missing.is_empty()).count();
    let lacking = lacking + folded.iter().filter(|image| !image.missing.is_empty()).count();
    let lacking = lacking + recordings.iter().map(|recording| recording.missing.len()).sum::<usize>();
    if query.json {
        let processes =
            answers.iter().map(|(image, answer, missing)| One { head: Head::of(image, missing), answer }).collect();
        json::print(out, &All { processes })?;
        return Ok(Outcome::of(lacking));
    }
    let mut screen = Screen::new(out, style);
    let several = answers.len() > 1;
    for (number, (image, answer, missing)) in answers.iter().enumerate() {
        if several {
            if number > 0 {
                screen.blank()?;
            }
            screen.heading(&format!("{} (pid {})", image.name(), image.about.pid))?;
        }
        answer.print(&mut screen)?;
        say_sampled(&mut screen, "", image)?;
        say_missing(&mut screen, "", missing)?;
    }
    if !folded.is_empty() {
        screen.blank()?;
        screen.line(&folded_line(&folded))?;
        for image in &folded {
            say_missing(&mut screen, &format!("{}: ", image.about.folder), &image.missing)?;
        }
    }
    if let Some(note) = note {
        screen.line(&note)?;
    }
    for recording in &recordings {
        say_missing(&mut screen, "", &recording.missing)?;
    }
    Ok(Outcome::of(lacking))
}

/// Sites that share their innermost frames of the program.
#[derive(Clone, Debug)]
pub(super) struct Group<const N: usize> {
    place: Place,
    key: Vec<String>,
    by: Option<By>,
    /// The site that counts most.
    pub site: u32,
    /// How many sites were put together.
    pub sites: u64,
    /// Sums of what the caller counts.
    pub values: [u64; N],
    /// The greatest value of any site of what the caller counts.
    pub most: [u64; N],
    best: u64,
    /// Lines of the frames that are blamed.
    lines: Lines,
}

/// Groups rows of sites by the innermost frames of the program; greatest first value first.
pub(super) fn group<const N: usize>(
    query: &Query,
    image: &Image,
    symbols: &mut Symbolizer,
    rows: impl Iterator<Item = (u32, [u64; N])>,
) -> Vec<Group<N>> {
    let mut groups: Vec<Group<N>> = Vec::new();
    let mut known: FxHashMap<Vec<String>, usize> = FxHashMap::default();
    for (site, values) in rows.filter(|(_, values)| values[0] > 0) {
        let place = place(symbols, image.stacks(), site, FRAMES);
        let key = match query.by {
            None | Some(By::Frames(FRAMES)) => place.names.clone(),
            Some(by) => key(symbols, image.stacks(), site, by),
        };
        let at = *known.entry(key.clone()).or_insert_with(|| {
            let (place, lines) = (place.clone(), Lines::default());
            groups.push(Group {
                place,
                key,
                by: query.by,
                site,
                sites: 0,
                values: [0; N],
                most: [0; N],
                best: 0,
                lines,
            });
            groups.len() - 1
        });
        let group = &mut groups[at];
        group.lines.add(&place.frame);
        if values[0] > group.best {
            (group.best, group.site, group.place) = (values[0], site, place);
        }
        group.sites += 1;
        for ((sum, most), value) in group.values.iter_mut().zip(&mut group.most).zip(values) {
            *sum = sum.saturating_add(value);
            *most = value.max(*most);
        }
    }
    groups.sort_by(|a, b| b.values[0].cmp(&a.values[0]).then_with(|| a.site.cmp(&b.site)));
    groups
}

/// How a group's place is shown: one line, and the whole stack of its greatest site.
#[derive(Clone, Debug, Serialize)]
pub struct Shown {
    /// The innermost frame of the program and its callers.
    pub place: String,
    /// How many sites were put together.
    pub sites: u64,
    /// How many source lines of the innermost frame these are; 0 where none is known.
    pub lines: u64,
    /// The stack of the one that counts most, innermost first.
    pub stack: Vec<FrameJson>,
}

impl<const N: usize> Group<N> {
    /// Names the frames.
    pub fn shown(&self, image: &Image, symbols: &mut Symbolizer) -> Shown {
        Shown {
            place: match self.by {
                Some(By::Function | By::File | By::Line | By::Module) => self.key.join(" < "),
                Some(By::Frames(count)) => {
                    let place = place(symbols, image.stacks(), self.site, count.max(1));
                    place_line(&place, &self.lines)
                }
                None | Some(By::Stack) => place_line(&self.place, &self.lines),
            },
            sites: self.sites,
            lines: self.lines.count() as u64,
            stack: stack_json(symbols, image.stacks(), self.site),
        }
    }
}

/// A moment of an image: nanoseconds after the start where times are known, and the events before
/// it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct When {
    /// Nanoseconds after the start.
    pub time_ns: Option<u64>,
    /// Events before it.
    pub event: Option<u64>,
}

impl When {
    /// A moment by tick and, where known, by event.
    pub fn at(image: &Image, tick: u64, event: Option<u64>) -> Self {
        When { time_ns: image.has_times().then(|| image.clock.nanos(tick)), event }
    }

    /// For people.
    pub fn text(&self) -> String {
        match (self.time_ns, self.event) {
            (Some(nanos), _) => format!("{} after the start", duration(nanos)),
            (None, Some(event)) => format!("event {event}"),
            (None, None) => "a moment that is not known".into(),
        }
    }
}
