//! Stacks as reports show them: from the frame that is blamed outwards.

use crate::program_frames::{Role, blamed};
use crate::stacks::Stacks;
use crate::symbols::{Frame, Symbolizer};
use crate::text::counted;
use serde::Serialize;
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Frames of a stack that are looked at; deeper ones are never blamed.
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
    /// Whether it belongs to the program, and not to an allocator wrapper or a container; nor to an
    /// interpreter, if the stack has frames of what that runs.
    pub program: bool,
    /// Whether it is the frame of its stack that reports blame.
    pub blamed: bool,
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
            program: frame.role == Role::Program,
            blamed: false,
        }
    }
}

/// All frames of a stack, innermost first, inlined ones among them.
pub fn frames_of(symbols: &mut Symbolizer, stacks: &Stacks, site: u32) -> Vec<Frame> {
    let mut frames = Vec::new();
    for (_, site) in stacks.stack(site).take(DEEPEST) {
        frames.extend(symbols.frames(stacks, &site).iter().cloned());
    }
    frames
}

/// The whole stack of a site, innermost first.
pub fn stack_json(symbols: &mut Symbolizer, stacks: &Stacks, site: u32) -> Vec<FrameJson> {
    let frames = frames_of(symbols, stacks, site);
    let mut shown: Vec<FrameJson> = frames.iter().map(FrameJson::from).collect();
    for position in blamed(frames.iter().map(|frame| frame.role), 1) {
        shown[position].blamed = true;
        // Where the program has no frame, what is blamed instead stands for it.
        let rank = frames[position].role.rank();
        let stands = frames.iter().map(|frame| frame.role.rank() == rank && rank < Role::Wrapper.rank());
        shown.iter_mut().zip(stands).for_each(|(frame, stands)| frame.program = stands);
    }
    shown
}

/// What is blamed for the allocations of a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Place {
    /// The names of the innermost frames that are blamed, innermost first; one name for a function
    /// that calls itself.
    pub names: Vec<String>,
    /// The innermost of these frames.
    pub frame: Frame,
}

/// The innermost `count` frames of a stack that are blamed, inlined ones among them, with the
/// numbers of their sites; by the roles that `role` gives. Reads no more of the stack than it
/// needs.
pub fn blamed_frames(
    symbols: &mut Symbolizer,
    stacks: &Stacks,
    site: u32,
    count: usize,
    role: impl Fn(&Symbolizer, &Frame) -> Role,
) -> Vec<(u32, Frame)> {
    let seen: RefCell<Vec<Option<(u32, Frame)>>> = RefCell::default();
    let roles = stacks.stack(site).take(DEEPEST).flat_map(|(number, site)| {
        let frames = symbols.frames(stacks, &site);
        let roles: Vec<Role> = frames.iter().map(|frame| role(symbols, frame)).collect();
        seen.borrow_mut().extend(frames.iter().map(|frame| Some((number, frame.clone()))));
        roles
    });
    let positions = blamed(roles, count);
    let mut seen = seen.into_inner();
    positions.into_iter().filter_map(|position| seen[position].take()).collect()
}

/// What is blamed for the allocations of a stack: its innermost `count` frames that are.
pub fn place(symbols: &mut Symbolizer, stacks: &Stacks, site: u32, count: usize) -> Place {
    let frames = blamed_frames(symbols, stacks, site, count, |_, frame| frame.role);
    let mut names: Vec<String> = frames.iter().map(|(_, frame)| frame.title()).collect();
    names.dedup();
    match frames.into_iter().next() {
        Some((_, frame)) => Place { names, frame },
        None => {
            let name = "(no stack)".to_string();
            Place { names: vec![name.clone()], frame: Frame { function: Some(name), ..Frame::default() } }
        }
    }
}

/// `function file:line` or `function (module)`.
pub fn frame_line(frame: &Frame) -> String {
    let line = frame.line.map(|line| format!(":{line}")).unwrap_or_default();
    let inlined = if frame.inlined { " [inlined]" } else { "" };
    named_at(frame, &line) + inlined
}

/// The frame's function and file, and what follows the file; or its module where no file is known.
fn named_at(frame: &Frame, line: &str) -> String {
    let title = frame.title();
    match &frame.file {
        Some(file) => format!("{title} {}{line}", file.rsplit('/').next().unwrap_or(file)),
        None if frame.function.is_some() && !frame.module.is_empty() => format!("{title} ({})", frame.shown_module()),
        None => title,
    }
}

/// The source lines that a row of a report sums up.
#[derive(Clone, Debug, Default)]
pub struct Lines(BTreeSet<(String, u32)>);

impl Lines {
    /// Adds the line of a frame that is blamed.
    pub fn add(&mut self, frame: &Frame) {
        if let (Some(file), Some(line)) = (&frame.file, frame.line) {
            self.0.insert((file.clone(), line));
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    fn are_of_one_file(&self) -> bool {
        self.0.first().map(|(file, _)| file) == self.0.last().map(|(file, _)| file)
    }
}

/// One line for a place: the innermost frame that is blamed with its line, or with how many lines a
/// row sums up; then its callers.
pub fn place_line(place: &Place, lines_of: &Lines) -> String {
    let first = match lines_of.count() {
        0 | 1 => frame_line(&Frame { inlined: false, ..place.frame.clone() }),
        several => {
            let lines = format!(" ({})", counted(several as u64, "line"));
            if lines_of.are_of_one_file() { named_at(&place.frame, &lines) } else { place.frame.title() + &lines }
        }
    };
    let callers = place.names.iter().skip(1).map(String::as_str);
    std::iter::once(first.as_str()).chain(callers).collect::<Vec<_>>().join(" < ")
}
