//! Stacks as reports show them: from the innermost frame that belongs to the program outwards.

use crate::program_frames::is_program;
use crate::stacks::Stacks;
use crate::symbols::{Frame, Symbolizer};
use serde::Serialize;

/// Frames of a stack that are looked at; deeper ones are never the innermost of the program.
const DEEPEST: usize = 512;

/// A frame in `--json`.
#[derive(Clone, Debug, Serialize)]
pub struct FrameJson {
    /// The function, or `module+0xoffset`.
    pub function: String,
    /// Source file.
    pub file: Option<String>,
    /// Line.
    pub line: Option<u32>,
    /// Path of the module.
    pub module: Option<String>,
    /// Return address relative to the module.
    pub offset: String,
    /// Whether it was inlined into the next one.
    pub inlined: bool,
    /// Whether it belongs to the program and not to an allocator wrapper or container.
    pub program: bool,
}

impl From<&Frame> for FrameJson {
    fn from(frame: &Frame) -> Self {
        FrameJson {
            function: frame.title(),
            file: frame.file.clone(),
            line: frame.line,
            module: (!frame.module.is_empty()).then(|| frame.module.to_string()),
            offset: format!("{:#x}", frame.offset),
            inlined: frame.inlined,
            program: is_program(frame),
        }
    }
}

/// The whole stack of a site, innermost first.
pub fn stack_json(symbols: &mut Symbolizer, stacks: &Stacks, site: u32) -> Vec<FrameJson> {
    let mut frames = Vec::new();
    for (_, site) in stacks.stack(site).take(DEEPEST) {
        frames.extend(symbols.frames(stacks, &site).iter().map(FrameJson::from));
    }
    frames
}

/// Where the program itself allocated: the sites of the innermost frames that are its own, by symbol tables alone, so that
/// many can be grouped in little time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Place {
    /// The functions' names, innermost first.
    pub names: Vec<String>,
    /// The site of the innermost.
    pub site: u32,
}

/// The innermost `count` frames of the program. Where no frame is the program's, the innermost one stands for it.
pub fn place(symbols: &mut Symbolizer, stacks: &Stacks, site: u32, count: usize) -> Place {
    let mut place = Place::default();
    let mut innermost = None;
    for (number, site) in stacks.stack(site).take(DEEPEST) {
        let frame = symbols.name(stacks, &site);
        if !is_program(&frame) {
            innermost.get_or_insert((number, frame.title()));
            continue;
        }
        if place.names.is_empty() {
            place.site = number;
        }
        place.names.push(frame.title());
        if place.names.len() == count {
            break;
        }
    }
    if place.names.is_empty() {
        let (site, name) = innermost.unwrap_or((0, "(no stack)".into()));
        (place.site, place.names) = (site, vec![name]);
    }
    place
}

/// `function file:line` or `function (module)`.
pub fn frame_line(frame: &Frame) -> String {
    let mut text = frame.title();
    match (&frame.file, frame.line) {
        (Some(file), Some(line)) => text += &format!(" {}:{line}", file.rsplit('/').next().unwrap_or(file)),
        (Some(file), None) => text += &format!(" {}", file.rsplit('/').next().unwrap_or(file)),
        (None, _) if frame.function.is_some() && !frame.module.is_empty() => {
            text += &format!(" ({})", frame.module_name())
        }
        (None, _) => {}
    }
    if frame.inlined {
        text += " [inlined]";
    }
    text
}

/// A stack for text reports: lines from the innermost frame of the program on, at most `count`, and how many more there are.
pub fn text_stack(symbols: &mut Symbolizer, stacks: &Stacks, site: u32, count: usize) -> (Vec<String>, usize) {
    let mut all = Vec::new();
    for (_, site) in stacks.stack(site).take(DEEPEST) {
        all.extend(symbols.frames(stacks, &site).iter().map(|frame| (frame_line(frame), is_program(frame))));
    }
    if all.is_empty() {
        return (vec!["(no stack)".into()], 0);
    }
    let first = all.iter().position(|(_, program)| *program).unwrap_or(0);
    let last = all.iter().rposition(|(_, program)| *program).map_or(all.len(), |last| last + 1);
    let lines: Vec<String> = all.drain(first..last).map(|(line, _)| line).collect();
    let more = lines.len().saturating_sub(count);
    (lines.into_iter().take(count).collect(), more)
}

/// Frames in one line for a place.
const IN_LINE: usize = 3;

/// One line for a place: the innermost own frame with its line, then who called it.
pub fn place_line(symbols: &mut Symbolizer, stacks: &Stacks, place: &Place) -> String {
    if place.site == 0 {
        return place.names.join(" < ");
    }
    let frames = symbols.frames(stacks, &stacks.site(place.site));
    let inner = frames.iter().position(is_program).unwrap_or(0);
    let mut parts = vec![(frames[inner].title(), frame_line(&frames[inner]).replace(" [inlined]", ""))];
    parts.extend(frames[inner + 1..].iter().map(Frame::title).map(|title| (title.clone(), title)));
    parts.extend(place.names.iter().skip(1).map(|title| (title.clone(), title.clone())));
    // A function that was inlined into itself, or calls itself, is told once.
    parts.dedup_by(|next, before| before.0 == next.0);
    parts.truncate(IN_LINE);
    parts.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(" < ")
}
