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

/// The innermost `count` frames of the program. Where no frame is the program's, the innermost ones stand for it.
pub fn place(symbols: &mut Symbolizer, stacks: &Stacks, site: u32, count: usize) -> Place {
    let mut place = Place::default();
    let mut innermost = Place::default();
    for (number, site) in stacks.stack(site).take(DEEPEST) {
        let frame = symbols.name(stacks, &site);
        let own = !place.names.is_empty() || is_program(&frame);
        let into = if own { &mut place } else { &mut innermost };
        if into.names.is_empty() {
            into.site = number;
        }
        if into.names.len() < count {
            into.names.push(frame.title());
        }
        if place.names.len() == count {
            break;
        }
    }
    let mut found = if place.names.is_empty() { innermost } else { place };
    if found.names.is_empty() {
        found.names.push("(no stack)".into());
    }
    found
}

/// `function file:line` or `function (module)`.
pub fn frame_line(frame: &Frame) -> String {
    let mut text = frame.title();
    match (&frame.file, frame.line) {
        (Some(file), Some(line)) => text += &format!(" {}:{line}", file.rsplit('/').next().unwrap_or(file)),
        (Some(file), None) => text += &format!(" {}", file.rsplit('/').next().unwrap_or(file)),
        (None, _) if frame.function.is_some() && !frame.module.is_empty() => text += &format!(" ({})", frame.module_name()),
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
    let lines: Vec<String> = all.drain(first..).map(|(line, _)| line).collect();
    let more = lines.len().saturating_sub(count);
    (lines.into_iter().take(count).collect(), more)
}

/// One line for a place: the innermost own frame with its line, then who called it.
pub fn place_line(symbols: &mut Symbolizer, stacks: &Stacks, place: &Place) -> String {
    let frames = symbols.frames(stacks, &stacks.site(place.site));
    let inner = frames.iter().position(is_program).unwrap_or(0);
    let mut parts: Vec<String> = frames[inner..].iter().take(2).map(frame_line).map(|line| line.replace(" [inlined]", "")).collect();
    if place.site == 0 {
        parts.clear();
        parts.extend(place.names.first().cloned());
    }
    parts.extend(place.names.iter().skip(1).cloned());
    parts.truncate(3);
    parts.join(" < ")
}
