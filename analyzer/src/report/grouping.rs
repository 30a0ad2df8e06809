//! The keys by which reports group call stacks.

use super::frames::call_site;
use crate::stacks::Stacks;
use crate::symbols::Symbolizer;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

/// What the stacks of a group have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupBy {
    /// The whole stack, by function and line; by address where no line is known.
    Stack,
    /// The given number of innermost program frames.
    Frames(usize),
    /// The function of the innermost program frame.
    Function,
    /// The source file of the innermost program frame; its module where no file is known.
    File,
    /// The source line of the innermost program frame.
    Line,
    /// The module of the innermost program frame.
    Module,
}

impl GroupBy {
    /// The values of `--by` with their names.
    pub const NAMES: &[(&str, GroupBy)] = &[
        ("stack", GroupBy::Stack),
        ("function", GroupBy::Function),
        ("file", GroupBy::File),
        ("line", GroupBy::Line),
        ("module", GroupBy::Module),
    ];
}

/// Returns the key of the group that a stack belongs to: the names that its stacks have in common.
pub fn group_key(symbols: &mut Symbolizer, stacks: &Stacks, site: u32, by: GroupBy) -> Vec<String> {
    match by {
        GroupBy::Stack => {
            let mut whole = DefaultHasher::new();
            let mut inner = None;
            for (_, site) in stacks.stack(site) {
                for frame in symbols.tail_frames(stacks, &site, inner.as_ref()).iter() {
                    (&frame.function, &frame.module, frame.offset).hash(&mut whole);
                }
                inner = Some(site);
                // A loop that the compiler unrolled calls from several addresses of one line.
                for frame in symbols.frames(stacks, &site).iter() {
                    (&frame.function, &frame.file, frame.line, &frame.module).hash(&mut whole);
                    frame.line.is_none().then_some(frame.offset).hash(&mut whole);
                    // Offsets in two builds at one path are different functions.
                    frame.function.is_none().then(|| frame.shown_module()).hash(&mut whole);
                }
            }
            vec![whole.finish().to_string()]
        }
        GroupBy::Frames(count) => call_site(symbols, stacks, site, count.max(1)).names,
        GroupBy::Function => call_site(symbols, stacks, site, 1).names,
        GroupBy::File | GroupBy::Line | GroupBy::Module => {
            let frame = call_site(symbols, stacks, site, 1).frame;
            let module = || match frame.module_name() {
                "" => "(unknown)".to_string(),
                module => module.to_string(),
            };
            vec![match (by, &frame.file) {
                (GroupBy::File, Some(file)) => file.clone(),
                (GroupBy::Line, Some(file)) => format!("{file}:{}", frame.line.unwrap_or(0)),
                (GroupBy::Line, None) => frame.title(),
                _ => module(),
            }]
        }
    }
}
