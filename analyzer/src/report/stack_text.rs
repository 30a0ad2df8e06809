//! Call stacks as lines of text, from the blamed frame outwards. An interpreter's own frames are
//! folded.

use super::frames::{frame_line, frames_of};
use crate::program_frames::{Role, blamed};
use crate::short_name::NameLength;
use crate::stacks::Stacks;
use crate::symbols::{Frame, Symbolizer};
use crate::text::counted;

/// Maximum number of script frames that are kept beyond the requested number of frames, as a
/// multiple of it.
const SCRIPT_FRAMES: usize = 4;

struct Line {
    text: String,
    /// Number of frames that the line represents.
    frames: usize,
    /// Whether the frame is a function of a script that an interpreter runs.
    script: bool,
}

/// Formats a stack for text reports. Returns at most `count` frames from the blamed frame outwards,
/// and the number of further outer frames. With `usize::MAX`, all frames are returned, including
/// those of allocator wrappers and of interpreters.
///
/// Runs of an interpreter's own frames become one line. Functions of scripts are kept where other
/// frames are left out. A line that would hide a single frame shows it.
pub fn text_stack(symbols: &mut Symbolizer, stacks: &Stacks, site: u32, count: usize) -> (Vec<String>, usize) {
    let (frames, names) = (frames_of(symbols, stacks, site), symbols.names());
    if count == usize::MAX && !frames.is_empty() {
        return (frames.iter().map(|frame| frame_line(frame, names)).collect(), 0);
    }
    let Some(&first) = blamed(frames.iter().map(|frame| frame.role), 1).first() else {
        return (vec!["(no stack)".into()], 0);
    };
    // Callers are shown that are as good as the blamed frame; of all modules, if it is in one.
    let rank = frames[first].role.rank().max(Role::UnnamedLibrary.rank());
    let last = frames.iter().rposition(|frame| frame.role.rank() <= rank).unwrap_or(first);
    shortened(folded(&frames[first..=last], names), count)
}

/// Returns the lines of frames. Runs of an interpreter's own frames become one line if the program
/// has frames of its own.
fn folded(frames: &[Frame], names: NameLength) -> Vec<Line> {
    let interpreter = |frame: &Frame| match frame.role {
        Role::Interpreter(name) => Some(name),
        _ => None,
    };
    let folds = frames.first().is_some_and(|frame| frame.role.rank() < Role::Interpreter("").rank());
    let mut lines = Vec::new();
    for run in frames.chunk_by(|a, b| folds && interpreter(a).is_some() && interpreter(a) == interpreter(b)) {
        match (run, interpreter(&run[0])) {
            ([_, _, ..], Some(name)) => lines.push(Line {
                text: format!("… {} of {name}", counted(run.len() as u64, "frame")),
                frames: run.len(),
                script: false,
            }),
            _ => lines.extend(run.iter().map(|frame| Line {
                text: frame_line(frame, names),
                frames: 1,
                script: frame.role == Role::Program && !frame.module.starts_with('/'),
            })),
        }
    }
    // Without an interpreter, a frame without a module is generated code of the program itself.
    if !frames.iter().any(|frame| interpreter(frame).is_some()) {
        lines.iter_mut().for_each(|line| line.script = false);
    }
    lines
}

/// Keeps at most `count` frames and the script functions among the others. Returns the lines and
/// the number of outer frames that are left out.
fn shortened(lines: Vec<Line>, count: usize) -> (Vec<String>, usize) {
    let (mut frames, mut scripts) = (0, 0);
    let kept: Vec<bool> = lines
        .iter()
        .map(|line| {
            if frames < count {
                frames += usize::from(line.frames == 1);
                return true;
            }
            scripts += usize::from(line.script);
            line.script && scripts <= SCRIPT_FRAMES * count
        })
        .collect();
    let mut shown = Vec::new();
    let mut position = 0;
    for run in kept.chunk_by(|a, b| a == b) {
        let own = &lines[position..position + run.len()];
        position += run.len();
        let hidden: usize = own.iter().map(|line| line.frames).sum();
        match own {
            own if run[0] => shown.extend(own.iter().map(|line| line.text.clone())),
            [one] => shown.push(one.text.clone()),
            _ if position == lines.len() => return (shown, hidden),
            _ => shown.push(format!("… {}", counted(hidden as u64, "frame"))),
        }
    }
    (shown, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(name: &str, role: Role) -> Frame {
        let module = if role == Role::Program && name.starts_with("py") { "" } else { "/bin/x" };
        Frame { function: Some(name.into()), module: module.into(), role, ..Frame::default() }
    }

    fn shown(stack: &[(&str, Role)], count: usize) -> (Vec<String>, usize) {
        let frames: Vec<Frame> = stack.iter().map(|&(name, role)| frame(name, role)).collect();
        shortened(folded(&frames, NameLength::Short), count)
    }

    const C: Role = Role::Interpreter("CPython");
    const P: Role = Role::Program;

    #[test]
    fn one_frame_is_never_left_out_to_save_a_line() {
        let stack: Vec<(&str, Role)> = ["a", "b", "c", "d"].map(|name| (name, P)).into();
        assert_eq!(shown(&stack, 3).0, ["a (x)", "b (x)", "c (x)", "d (x)"]);
        assert_eq!(shown(&stack, 2), (vec!["a (x)".into(), "b (x)".into()], 2));
    }

    #[test]
    fn frames_of_an_interpreter_fold_and_those_of_scripts_stay() {
        let mut stack = vec![("dumps", P)];
        for name in ["py one", "py two", "py three"] {
            stack.extend([("eval", C), ("vectorcall", C), ("call", C), (name, P)]);
        }
        stack.extend([("run", C), ("py main", P)]);
        let (lines, more) = shown(&stack, 2);
        assert_eq!(
            lines,
            [
                "dumps (x)",
                "… 3 frames of CPython",
                "py one",
                "… 3 frames of CPython",
                "py two",
                "… 3 frames of CPython",
                "py three",
                "run (x)",
                "py main"
            ]
        );
        assert_eq!(more, 0);
        // In a stack of interpreter frames alone nothing is folded: the interpreter is the program.
        assert_eq!(shown(&[("a", C), ("b", C), ("c", C)], 8).0.len(), 3);
    }
}
