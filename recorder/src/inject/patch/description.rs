//! A user's description of an allocator: the names of its functions, and which of their arguments
//! are what.
//!
//! ```text
//! # The arenas of the parser
//! allocator arena
//! allocate arena_take(arena, size)
//! resize   arena_grow(arena, block, size)
//! free     arena_drop(arena, block)
//! ```
//!
//! `docs/allocators.md` describes the format.

use super::families::{MAX_NAME, Shape};
use formats::regular;
use std::path::{Path, PathBuf};
use wire::patches::{Action, NO_ARGUMENT};

const MAX_BYTES: u64 = 64 << 10;
const MAX_FUNCTIONS: usize = 256;
/// Number of arguments that a function gets in registers.
const MAX_ARGUMENTS: usize = NO_ARGUMENT as usize;
/// Maximum length of an allocator's name in bytes.
const MAX_ALLOCATOR_NAME: usize = 64;

/// An allocator that the user names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OwnAllocator {
    /// An allocator whose functions have the names of the C library's, after this prefix.
    Prefix(String),
    /// An allocator whose functions are described one by one.
    Described(Description),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// Name of the allocator in reports.
    pub name: String,
    pub functions: Vec<DescribedFunction>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DescribedFunction {
    /// Name in the symbol table.
    pub name: String,
    /// What the function does.
    pub(crate) shape: Shape,
}

/// Why a description cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DescriptionError {
    /// The file cannot be read.
    #[error("cannot read {0}: {1}")]
    Unreadable(PathBuf, std::io::Error),
    /// A line is not valid.
    #[error("line {line}: {why}")]
    Line {
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong, and what to do.
        why: String,
    },
    /// A line that is needed is missing.
    #[error("{0}")]
    Incomplete(&'static str),
}

impl Description {
    /// Reads a description from a file.
    ///
    /// # Errors
    /// The file cannot be read, or is not valid.
    pub fn read(path: &Path) -> Result<Description, DescriptionError> {
        let text = regular::read_text(path, MAX_BYTES);
        Description::parse(&text.map_err(|error| DescriptionError::Unreadable(path.to_owned(), error))?)
    }

    /// Parses the text of a description.
    ///
    /// # Errors
    /// The first line that is not valid, or what is missing.
    pub fn parse(text: &str) -> Result<Description, DescriptionError> {
        let mut found = Description::default();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default().trim();
            if !line.is_empty() {
                let invalid = |why| DescriptionError::Line { line: index + 1, why };
                found.add(line).map_err(invalid)?;
            }
        }
        if found.name.is_empty() {
            return Err(DescriptionError::Incomplete("there is no line 'allocator NAME'"));
        }
        let has = |free| found.functions.iter().any(|function| (function.shape.action == Action::Free) == free);
        if !has(false) {
            return Err(DescriptionError::Incomplete("no function allocates: add a line 'allocate NAME(size)'"));
        }
        Ok(found)
    }

    fn add(&mut self, line: &str) -> Result<(), String> {
        let (action, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        if action == "allocator" {
            let is_name = (1..=MAX_ALLOCATOR_NAME).contains(&rest.len()) && rest.chars().all(|c| c.is_ascii_graphic());
            if !is_name || !self.name.is_empty() {
                return Err("'allocator' takes one name without spaces, once".into());
            }
            rest.clone_into(&mut self.name);
            return Ok(());
        }
        let action = match action {
            "allocate" => Action::Alloc,
            "allocate-at" => Action::AllocAt,
            "resize" => Action::Resize,
            "resize-in-place" => Action::ResizeFixed,
            "free" => Action::Free,
            other => {
                let known = "allocator, allocate, allocate-at, resize, resize-in-place or free";
                return Err(format!("'{other}' is unknown: a line begins with {known}"));
            }
        };
        let (name, arguments) = rest
            .strip_suffix(')')
            .and_then(|rest| rest.split_once('('))
            .ok_or_else(|| format!("'{rest}' must be the function with its arguments, such as take(arena, size)"))?;
        let name = name.trim();
        if name.is_empty() || name.len() > MAX_NAME || !name.chars().all(|c| c.is_ascii_graphic()) {
            return Err(format!("'{name}' is not the name of a symbol"));
        }
        if self.functions.len() >= MAX_FUNCTIONS || self.functions.iter().any(|function| function.name == name) {
            return Err(format!("{name} is described twice, or there are more than {MAX_FUNCTIONS} functions"));
        }
        let arguments: Vec<&str> = arguments.split(',').map(str::trim).collect();
        if arguments.len() > MAX_ARGUMENTS {
            return Err(format!("only the first {MAX_ARGUMENTS} arguments can be read: leave the others out"));
        }
        let shape = shape(action, &arguments).map_err(|why| format!("{name}: {why}"))?;
        self.functions.push(DescribedFunction { name: name.to_owned(), shape });
        Ok(())
    }
}

/// Returns what a function does, by the names of its arguments.
fn shape(action: Action, arguments: &[&str]) -> Result<Shape, String> {
    let index = |name: &str| {
        let mut found = arguments.iter().enumerate().filter(|(_, argument)| **argument == name);
        match (found.next(), found.next()) {
            (_, Some(_)) => Err(format!("there are two arguments '{name}'")),
            (first, None) => Ok(first.map(|(index, _)| index as u8)),
        }
    };
    let (size, count, block) = (index("size")?, index("count")?, index("block")?);
    let needs_block = action != Action::Alloc;
    if block.is_some() != needs_block {
        let why = if needs_block { "an argument must be 'block'" } else { "it has no argument 'block'" };
        return Err(why.into());
    }
    if size.is_none() && action != Action::Free {
        return Err("an argument must be 'size'".into());
    }
    // The size that a free gets is not needed: the size of the block is known.
    let of_size = |index: Option<u8>| index.filter(|_| action != Action::Free).unwrap_or(NO_ARGUMENT);
    Ok(Shape { action, size: of_size(size), count: of_size(count), pointer: block.unwrap_or(NO_ARGUMENT) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptions_are_parsed() {
        let text = "# An arena\nallocator arena\n\nallocate  take(arena, size)\nallocate take_array(_, count, size)  # zeroed\n\
                    resize grow(arena,block,old,size)\nfree drop(arena, block, size)\nallocate-at put(block, _, size)\n";
        let found = Description::parse(text).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(found.name, "arena");
        let shapes: Vec<_> = found
            .functions
            .iter()
            .map(|function| {
                let Shape { action, size, count, pointer } = function.shape;
                (&function.name[..], action, [size, count, pointer])
            })
            .collect();
        assert_eq!(
            shapes,
            [
                ("take", Action::Alloc, [1, 6, 6]),
                ("take_array", Action::Alloc, [2, 1, 6]),
                ("grow", Action::Resize, [3, 6, 1]),
                ("drop", Action::Free, [6, 6, 1]),
                ("put", Action::AllocAt, [2, 6, 0]),
            ]
        );
    }

    #[test]
    fn invalid_descriptions_are_refused_with_line_and_reason() {
        let refused = |text: &str, why: &str| {
            let error = Description::parse(text).map_or_else(|error| error.to_string(), |found| format!("{found:?}"));
            assert!(error.contains(why), "{text}: {error}");
        };
        refused("allocate take(size)", "no line 'allocator NAME'");
        refused("allocator a b", "line 1: 'allocator' takes one name");
        refused("allocator a\nfree drop(block)", "no function allocates");
        refused("allocator a\n\ntake take(size)", "line 3: 'take' is unknown");
        refused("allocator a\nallocate take", "'take' must be the function with its arguments");
        refused("allocator a\nallocate take(arena)", "take: an argument must be 'size'");
        refused("allocator a\nallocate take(size, block)", "it has no argument 'block'");
        refused("allocator a\nfree drop(pointer)", "drop: an argument must be 'block'");
        refused("allocator a\nallocate take(size, size)", "two arguments 'size'");
        refused("allocator a\nallocate t(a, b, c, d, e, f, size)", "only the first 6 arguments");
        refused("allocator a\nallocate t(size)\nallocate t(size)", "t is described twice");
        let many: String = (0..300).map(|number| format!("allocate t{number}(size)\n")).collect();
        refused(&format!("allocator a\n{many}"), "more than 256 functions");
    }
}
