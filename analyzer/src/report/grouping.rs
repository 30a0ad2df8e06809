//! By what stacks are told together.

use super::frames::place;
use crate::stacks::Stacks;
use crate::symbols::Symbolizer;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

/// By what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The whole stack, by function and line; by address where no line is known.
    Stack,
    /// So many innermost frames of the program.
    Frames(usize),
    /// The function that is the innermost frame of the program.
    Function,
    /// Its source file; the module where no file is known.
    File,
    /// Its source line.
    Line,
    /// Its module.
    Module,
}

impl By {
    /// What a person may ask for.
    pub const NAMES: &[(&str, By)] = &[
        ("stack", By::Stack),
        ("function", By::Function),
        ("file", By::File),
        ("line", By::Line),
        ("module", By::Module),
    ];
}

/// What the stacks of a group have in common.
pub fn key(symbols: &mut Symbolizer, stacks: &Stacks, site: u32, by: By) -> Vec<String> {
    match by {
        By::Stack => {
            let mut whole = DefaultHasher::new();
            for (_, site) in stacks.stack(site) {
                // A loop that the compiler unrolled calls from several addresses of one line.
                for frame in symbols.frames(stacks, &site).iter() {
                    (&frame.function, &frame.file, frame.line, &frame.module).hash(&mut whole);
                    frame.line.is_none().then_some(frame.offset).hash(&mut whole);
                }
            }
            vec![whole.finish().to_string()]
        }
        By::Frames(count) => place(symbols, stacks, site, count.max(1)).names,
        By::Function => place(symbols, stacks, site, 1).names,
        By::File | By::Line | By::Module => {
            let frame = place(symbols, stacks, site, 1).frame;
            let module = || match frame.module_name() {
                "" => "(unknown)".to_string(),
                module => module.to_string(),
            };
            vec![match (by, &frame.file) {
                (By::File, Some(file)) => file.clone(),
                (By::Line, Some(file)) => format!("{file}:{}", frame.line.unwrap_or(0)),
                (By::Line, None) => frame.title(),
                _ => module(),
            }]
        }
    }
}
