//! Suppressions: rules that hide known leaks from reports.
//!
//! Two dialects are read: LSan's (`leak:PATTERN`) and Valgrind's (blocks in braces). The built-in
//! suppressions of a program (`__lsan_default_suppressions`) are in LSan's dialect.

mod kept;
mod read;

pub use kept::kept_on_purpose;
pub use read::{Error, read};

use crate::symbols::Frame;
use heaptape_formats::pattern::Pattern;

/// A line of a Valgrind block: a condition on one frame, or a wildcard.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// `fun:`: the function, mangled or demangled.
    Function(Pattern),
    /// `obj:`: the path of the module.
    Module(Pattern),
    /// `src:`: the source file, optionally with a line.
    Source(Pattern, Option<u32>),
    /// `...`: any number of frames, including none.
    Any,
}

/// The condition of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// Matches the function, file or module of any frame.
    Lsan(Pattern),
    /// Matches the innermost frames, in this order.
    Valgrind(Vec<Step>),
}

/// A rule, with the sums of the leaks that it suppressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The pattern (LSan) or name (Valgrind) of the rule, verbatim.
    pub text: String,
    /// File and line of the rule.
    pub origin: String,
    kind: Kind,
    /// Number of call stacks that the rule suppressed.
    pub stacks: u64,
    /// Number of suppressed blocks.
    pub blocks: u64,
    /// Number of suppressed bytes.
    pub bytes: u64,
}

/// A frame with all names that a rule may match.
#[derive(Clone, Debug, Default)]
pub struct NamedFrame {
    /// The frame, with the names that reports show.
    pub frame: Frame,
    /// The mangled symbol name, if it is known.
    pub symbol: Option<String>,
}

/// Functions that may come first in a Valgrind block. They match the frame of the allocator, which
/// heaptape's stacks do not have.
const ALLOCATORS: &[&str] = &[
    "malloc",
    "calloc",
    "realloc",
    "reallocarray",
    "memalign",
    "posix_memalign",
    "aligned_alloc",
    "valloc",
    "pvalloc",
    "_Znwm",
    "_Znam",
    "_ZnwmRKSt9nothrow_t",
    "_ZnamRKSt9nothrow_t",
    "_ZnwmSt11align_val_t",
    "_ZnamSt11align_val_t",
    "operator new(unsigned long)",
    "operator new[](unsigned long)",
];

impl Rule {
    fn new(text: &str, origin: String, kind: Kind) -> Rule {
        Rule { text: text.into(), origin, kind, stacks: 0, blocks: 0, bytes: 0 }
    }

    /// Returns whether the rule suppresses a stack. The innermost frame comes first.
    pub fn matches(&self, stack: &[NamedFrame]) -> bool {
        match &self.kind {
            Kind::Lsan(pattern) => stack.iter().any(|named| {
                let frame = &named.frame;
                let texts = [frame.function.as_deref(), named.symbol.as_deref(), frame.file.as_deref()];
                texts.into_iter().flatten().any(|text| pattern.matches(text)) || pattern.matches(&*frame.module)
            }),
            Kind::Valgrind(steps) => match steps.split_first() {
                Some((Step::Function(first), rest)) if ALLOCATORS.iter().any(|name| first.matches(name)) => {
                    matches_innermost(rest, stack) || matches_innermost(steps, stack)
                }
                _ => matches_innermost(steps, stack),
            },
        }
    }
}

/// Returns whether the steps match the innermost frames of a stack. Like [`Pattern`], it backtracks
/// to the last `...` only, so the time is bounded by the product of both lengths.
fn matches_innermost(steps: &[Step], stack: &[NamedFrame]) -> bool {
    let (mut step_index, mut frame_index) = (0, 0);
    let mut backtrack: Option<(usize, usize)> = None;
    while let Some(step) = steps.get(step_index) {
        if *step == Step::Any {
            backtrack = Some((step_index, frame_index));
            step_index += 1;
            continue;
        }
        let Some(named) = stack.get(frame_index) else { return false };
        let frame = &named.frame;
        let is_match = match step {
            Step::Function(pattern) => {
                let names = [named.symbol.as_deref(), frame.function.as_deref()];
                names.into_iter().flatten().any(|name| pattern.matches(name))
            }
            Step::Module(pattern) => pattern.matches(&*frame.module),
            Step::Source(pattern, line) => {
                let file = frame.file.as_deref().unwrap_or_default();
                let is_file = pattern.matches(file) || pattern.matches(file.rsplit('/').next().unwrap_or_default());
                is_file && line.is_none_or(|line| frame.line == Some(line))
            }
            Step::Any => true,
        };
        if is_match {
            (step_index, frame_index) = (step_index + 1, frame_index + 1);
        } else {
            let Some((wildcard, start)) = backtrack else { return false };
            (step_index, frame_index) = (wildcard + 1, start + 1);
            backtrack = Some((wildcard, start + 1));
        }
    }
    true
}

/// The syntax of a suppression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// LSan: a line `leak:^function$`.
    Lsan,
    /// Valgrind: a block with all frames of the stack.
    Valgrind,
}

/// Maximum number of frames in a generated block. Valgrind's default limit is 24.
const MAX_STEPS: usize = 24;

/// Returns the text of a rule that suppresses a stack. For LSan the rule matches the frame with
/// index `program_frame`, for Valgrind all frames. `number` makes the name of a Valgrind block
/// unique.
pub fn generate(dialect: Dialect, stack: &[NamedFrame], program_frame: usize, number: usize) -> String {
    let name = |named: &NamedFrame| named.symbol.clone().or_else(|| named.frame.function.clone());
    match dialect {
        Dialect::Lsan => match stack.get(program_frame) {
            Some(named) => match &named.frame.function {
                Some(function) => format!("leak:^{function}$\n"),
                None => format!("leak:{}\n", named.frame.module),
            },
            None => String::new(),
        },
        Dialect::Valgrind => {
            let mut out = format!("{{\n   leak_{number}\n   Memcheck:Leak\n   match-leak-kinds: all\n   fun:*alloc*\n");
            let physical = stack.iter().filter(|named| !named.frame.inlined);
            for named in physical.take(MAX_STEPS) {
                match name(named) {
                    Some(name) => out += &format!("   fun:{name}\n"),
                    None => out += &format!("   obj:{}\n", named.frame.module),
                }
            }
            out + "}\n"
        }
    }
}

#[cfg(test)]
mod tests;
