//! Call stacks as reports show them, from the blamed frame outwards.

use crate::program_frames::{Role, blamed, library_call};
use crate::short_name::NameLength;
use crate::stacks::{Site, Stacks};
use crate::symbols::{Frame, Symbolizer};
use crate::text::counted;
use serde::Serialize;
use std::cell::RefCell;
use std::collections::BTreeSet;

/// Maximum number of frames of a stack that are read; deeper ones are never blamed.
const MAX_FRAMES: usize = 512;

#[derive(Clone, Debug, Serialize)]
pub struct FrameJson {
    /// Name of the function, or `module+0xoffset`.
    pub function: String,
    /// Path of the source file, if known.
    pub file: Option<String>,
    /// Line in the source file, if known.
    pub line: Option<u32>,
    /// Path of the module, if known.
    pub module: Option<String>,
    /// Return address relative to the module.
    pub offset: String,
    /// Whether the function was inlined into the next frame.
    pub inlined: bool,
    /// Whether the function left by a jump to that of the next inner frame, so that the code alone
    /// tells of it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub tail_call: bool,
    /// Whether the frame belongs to the program, and not to an allocator wrapper or a container;
    /// nor to an interpreter, if the stack has frames of the program that it runs.
    pub program: bool,
    /// Whether this is the frame of its stack that reports blame.
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
            tail_call: frame.tail_call,
            program: frame.role.is_program(),
            blamed: false,
        }
    }
}

/// Returns all frames of a stack with inlined functions, innermost frame first.
pub(crate) fn frames_of(symbols: &mut Symbolizer, stacks: &Stacks, site: u32) -> Vec<Frame> {
    let (mut frames, mut inner) = (Vec::new(), None);
    for (_, site) in stacks.stack(site).take(MAX_FRAMES) {
        frames.extend(symbols.tail_frames(stacks, &site, inner.as_ref()).iter().cloned());
        frames.extend(symbols.frames(stacks, &site).iter().cloned());
        inner = Some(site);
    }
    frames
}

/// Returns the whole stack of a site, innermost frame first.
pub fn stack_json(symbols: &mut Symbolizer, stacks: &Stacks, site: u32) -> Vec<FrameJson> {
    let frames = frames_of(symbols, stacks, site);
    let mut shown: Vec<FrameJson> = frames.iter().map(FrameJson::from).collect();
    for position in blamed(frames.iter().map(|frame| frame.role), 1) {
        shown[position].blamed = true;
        // Code of the program inside of the blamed frame is the pool behind an allocation function.
        shown[..position].iter_mut().for_each(|frame| frame.program = false);
        let own = frames[position].role;
        if !own.is_program() {
            // Where the program has no frame, the frames that are blamed instead count as its
            // frames.
            let counts =
                frames.iter().map(|frame| frame.role.rank() == own.rank() && own.rank() < Role::Wrapper.rank());
            shown.iter_mut().zip(counts).for_each(|(frame, counts)| frame.program = counts);
        }
    }
    shown
}

/// The call site that is blamed for the allocations of a stack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CallSite {
    /// Names of the blamed frames, innermost first. A function that calls itself is named once.
    pub names: Vec<String>,
    /// The innermost blamed frame.
    pub frame: Frame,
    /// The function of a library by which the blamed frame allocates.
    pub library: Option<Frame>,
}

pub struct BlamedFrames {
    /// The frames with the numbers of their sites, innermost first.
    pub frames: Vec<(u32, Frame)>,
    /// The function of a library by which the innermost of them allocates.
    pub library: Option<Frame>,
}

/// Returns the innermost `count` blamed frames of a stack with inlined functions. `role` determines
/// the role of each frame. Reads no more of the stack than necessary.
pub(crate) fn blamed_frames(
    symbols: &mut Symbolizer,
    stacks: &Stacks,
    site: u32,
    count: usize,
    role: impl Fn(&Symbolizer, &Frame) -> Role,
) -> BlamedFrames {
    let seen: RefCell<Vec<(u32, Frame, Role)>> = RefCell::default();
    let mut inner = None;
    let roles = stacks.stack(site).take(MAX_FRAMES).flat_map(|(number, site)| {
        let (tails, frames) = (symbols.tail_frames(stacks, &site, inner.as_ref()), symbols.frames(stacks, &site));
        inner = Some(site);
        let frames = || tails.iter().chain(&*frames);
        let roles: Vec<Role> = frames().map(|frame| role(symbols, frame)).collect();
        seen.borrow_mut().extend(frames().zip(&roles).map(|(frame, role)| (number, frame.clone(), *role)));
        roles
    });
    let positions = blamed(roles, count);
    let seen = seen.into_inner();
    let inner = positions.first().filter(|&&first| !seen[first].2.is_library());
    let library = inner.and_then(|&first| library_call(seen.iter().map(|(.., role)| *role), first));
    BlamedFrames {
        frames: positions.into_iter().map(|position| (seen[position].0, seen[position].1.clone())).collect(),
        library: library.map(|position| seen[position].1.clone()),
    }
}

/// Returns the call site that is blamed for a stack, with its innermost `count` blamed frames.
pub fn call_site(symbols: &mut Symbolizer, stacks: &Stacks, site: u32, count: usize) -> CallSite {
    let BlamedFrames { frames, library } = blamed_frames(symbols, stacks, site, count, |_, frame| frame.role);
    let mut names: Vec<String> = frames.iter().map(|(_, frame)| frame.title()).collect();
    names.dedup();
    match frames.into_iter().next() {
        Some((_, frame)) => CallSite { names, frame, library },
        None => {
            let name = "(no stack)".to_string();
            let frame = Frame { function: Some(name.clone()), ..Frame::default() };
            CallSite { names: vec![name], frame, library }
        }
    }
}

/// Returns the function that an address is in, with its place, if it is in a module of the process.
pub fn function_at(symbols: &mut Symbolizer, stacks: &Stacks, address: u64) -> Option<String> {
    let module = stacks.modules.iter().rposition(|module| (module.start..module.end).contains(&address))?;
    // That of a site is the address after a call.
    let site = Site { module: module as u32 + 1, address: address.wrapping_add(1), ..Site::default() };
    let names = symbols.names();
    symbols.frames(stacks, &site).first().map(|frame| frame_line(frame, names))
}

/// Formats a frame as `function file:line` or `function (module)`.
pub fn frame_line(frame: &Frame, names: NameLength) -> String {
    let line = frame.line.map(|line| format!(":{line}")).unwrap_or_default();
    let inlined = match (frame.inlined, frame.tail_call) {
        (_, true) => " [tail call]",
        (true, _) => " [inlined]",
        _ => "",
    };
    function_and_location(frame, &line, names) + inlined
}

/// Formats a frame as function and file name, followed by `line`; with the module where no file is
/// known.
fn function_and_location(frame: &Frame, line: &str, names: NameLength) -> String {
    let title = names.of(&frame.title());
    match &frame.file {
        Some(file) => format!("{title} {}{line}", file.rsplit('/').next().unwrap_or(file)),
        None if frame.function.is_some() && !frame.module.is_empty() => format!("{title} ({})", frame.shown_module()),
        None => title,
    }
}

/// Maximum number of lines that are named of one row.
const MAX_LINES: usize = 6;

/// The source lines that one row of a report sums up.
#[derive(Clone, Debug, Default)]
pub struct SourceLines(BTreeSet<(String, u32)>);

impl SourceLines {
    /// Adds the line of a blamed frame.
    pub fn add(&mut self, frame: &Frame) {
        if let (Some(file), Some(line)) = (&frame.file, frame.line) {
            self.0.insert((file.clone(), line));
        }
    }

    /// Returns the number of distinct lines.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Adds the lines of another row.
    pub fn merge(&mut self, other: &SourceLines) {
        self.0.extend(other.0.iter().cloned());
    }

    /// Returns the lines, each with the path of its file.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u32)> {
        self.0.iter().map(|(file, line)| (file.as_str(), *line))
    }

    fn are_of_one_file(&self) -> bool {
        self.0.first().map(|(file, _)| file) == self.0.last().map(|(file, _)| file)
    }

    /// Returns the lines of one file as `:34,35,38`.
    fn text(&self) -> String {
        let shown = if self.count() > MAX_LINES { MAX_LINES - 1 } else { self.count() };
        let lines: Vec<String> = self.0.iter().take(shown).map(|(_, line)| line.to_string()).collect();
        let more = if shown < self.count() {
            format!(",… ({})", counted(self.count() as u64, "line"))
        } else {
            String::new()
        };
        format!(":{}{more}", lines.join(","))
    }
}

/// Formats a call site on one line: the innermost blamed frame with the lines that the row sums up,
/// then its callers.
pub fn call_site_line(call_site: &CallSite, lines_of: &SourceLines, names: NameLength) -> String {
    let first = match lines_of.count() {
        0 | 1 => frame_line(&Frame { inlined: false, ..call_site.frame.clone() }, names),
        _ if lines_of.are_of_one_file() => function_and_location(&call_site.frame, &lines_of.text(), names),
        several => format!("{} ({})", names.of(&call_site.frame.title()), counted(several as u64, "line")),
    };
    let callers = call_site.names.iter().skip(1).map(|name| names.of(name));
    std::iter::once(first).chain(callers).collect::<Vec<_>>().join(" < ")
}
