//! Suppressions: leaks that somebody knows of and does not want to be told about again. Files of LSan (`leak:PATTERN`) and of
//! valgrind (blocks in braces) are read; what a program brings itself (`__lsan_default_suppressions`) is LSan's text, too.

mod kept;
mod read;

pub use kept::kept_on_purpose;
pub use read::{Error, read};

use crate::pattern::Pattern;
use crate::symbols::Frame;

/// A frame of a valgrind block.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    /// `fun:`: the function, mangled or not.
    Function(Pattern),
    /// `obj:`: the module.
    Module(Pattern),
    /// `src:`: the file, with a line if wanted.
    Source(Pattern, Option<u32>),
    /// `...`: any frames, none too.
    Any,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// Function, file or module of any frame.
    Lsan(Pattern),
    /// Frames from the innermost on.
    Valgrind(Vec<Step>),
}

/// One rule, and what it ate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its pattern or name, as its file has it.
    pub text: String,
    /// File and line.
    pub origin: String,
    kind: Kind,
    /// Stacks that it suppressed.
    pub stacks: u64,
    /// Their blocks.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A frame with what a rule may name.
#[derive(Clone, Debug, Default)]
pub struct NamedFrame {
    /// As reports name it.
    pub frame: Frame,
    /// The symbol as it stands in the file.
    pub symbol: Option<String>,
}

/// Functions that may stand first in a valgrind block: the allocator's own frame, which our stacks do not have.
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

    /// Whether a stack, innermost frame first, is suppressed.
    pub fn matches(&self, stack: &[NamedFrame]) -> bool {
        match &self.kind {
            Kind::Lsan(pattern) => stack.iter().any(|seen| {
                let frame = &seen.frame;
                let texts = [frame.function.as_deref(), seen.symbol.as_deref(), frame.file.as_deref()];
                texts.into_iter().flatten().any(|text| pattern.matches(text)) || pattern.matches(&frame.module)
            }),
            Kind::Valgrind(steps) => match steps.split_first() {
                Some((Step::Function(first), rest)) if ALLOCATORS.iter().any(|name| first.matches(name)) => {
                    walk(rest, stack) || walk(steps, stack)
                }
                _ => walk(steps, stack),
            },
        }
    }
}

/// Whether the steps fit a stack's innermost frames. Like [`Pattern`]: only the latest `...` is ever tried again.
fn walk(steps: &[Step], stack: &[NamedFrame]) -> bool {
    let (mut step, mut at) = (0, 0);
    let mut back: Option<(usize, usize)> = None;
    while let Some(wanted) = steps.get(step) {
        if *wanted == Step::Any {
            back = Some((step, at));
            step += 1;
            continue;
        }
        let Some(seen) = stack.get(at) else { return false };
        let frame = &seen.frame;
        let fits = match wanted {
            Step::Function(pattern) => {
                let names = [seen.symbol.as_deref(), frame.function.as_deref()];
                names.into_iter().flatten().any(|name| pattern.matches(name))
            }
            Step::Module(pattern) => pattern.matches(&frame.module),
            Step::Source(pattern, line) => {
                let file = frame.file.as_deref().unwrap_or_default();
                let named = pattern.matches(file) || pattern.matches(file.rsplit('/').next().unwrap_or_default());
                named && line.is_none_or(|line| frame.line == Some(line))
            }
            Step::Any => true,
        };
        if fits {
            (step, at) = (step + 1, at + 1);
        } else {
            let Some((any, from)) = back else { return false };
            (step, at) = (any + 1, from + 1);
            back = Some((any, from + 1));
        }
    }
    true
}

/// How a suppression is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// A line `leak:^function$`.
    Lsan,
    /// A block with the whole stack.
    Valgrind,
}

/// Frames of a generated block; valgrind takes 24 by default.
const MOST_STEPS: usize = 24;

/// A rule that suppresses a stack: for LSan by its innermost frame of the program, for valgrind by all its frames.
pub fn generate(dialect: Dialect, stack: &[NamedFrame], program: usize, number: usize) -> String {
    let name = |seen: &NamedFrame| seen.symbol.clone().or_else(|| seen.frame.function.clone());
    match dialect {
        Dialect::Lsan => match stack.get(program) {
            Some(seen) => match &seen.frame.function {
                Some(function) => format!("leak:^{function}$\n"),
                None => format!("leak:{}\n", seen.frame.module),
            },
            None => String::new(),
        },
        Dialect::Valgrind => {
            let mut out = format!("{{\n   leak_{number}\n   Memcheck:Leak\n   match-leak-kinds: all\n   fun:*alloc*\n");
            let all = stack.iter().filter(|seen| !seen.frame.inlined);
            for seen in all.take(MOST_STEPS) {
                match name(seen) {
                    Some(name) => out += &format!("   fun:{name}\n"),
                    None => out += &format!("   obj:{}\n", seen.frame.module),
                }
            }
            out + "}\n"
        }
    }
}

#[cfg(test)]
mod tests;
