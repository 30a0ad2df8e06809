//! Hints on a recording that follow from its stacks: what hides allocations, and how to record
//! them.

use crate::load::Process;
use crate::program_frames::is_cpython;
use crate::stacks::{Named, Site, Stacks};
use crate::symbols::{Symbolizer, link_address, module_of};
use heaptape_formats::tape::SiteSums;
use rustc_hash::{FxHashMap, FxHashSet};
use std::borrow::Cow;

/// Hint on pymalloc, which takes memory by `mmap` and divides it among objects.
const PYMALLOC_HINT: &str =
    "CPython's own allocator hides objects of up to 512 bytes: record with PYTHONMALLOC=malloc to see them";

/// Functions of pymalloc (`Objects/obmalloc.c`). None of them is called with `PYTHONMALLOC=malloc`.
const PYMALLOC_FUNCTIONS: &[&str] = &[
    "_PyObject_Malloc",
    "_PyObject_Calloc",
    "_PyObject_Realloc",
    "pymalloc_alloc",
    "pymalloc_realloc",
    "allocate_from_new_pool",
    "new_arena",
    "arena_map_mark_used",
    "arena_map_get",
];

/// Sizes in bytes of a middle and of a bottom node of the radix tree in which pymalloc finds its
/// arenas: 2^15 pointers, and 2^14 pairs of `int` (CPython 3.10 and later, 64 bits).
const NODE_BYTES: [u64; 2] = [262_144, 131_072];

/// Maximum distance in bytes between the two calls in `arena_map_get` that allocate the two kinds
/// of node.
const MAX_CALL_DISTANCE: u64 = 4096;

/// Returns hints on how to record this program better. `rows` are the known sums of its sites.
pub(super) fn find(process: &Process, rows: &[SiteSums], symbols: &mut Symbolizer) -> Vec<String> {
    let stacks = process.stacks();
    let is_used = has_function(stacks, symbols) || has_nodes(stacks, rows);
    let pymalloc = is_used.then(|| PYMALLOC_HINT.to_string());
    pymalloc.into_iter().chain(python_names(process)).collect()
}

/// The first minor version of Python 3 with `-X perf`.
const FIRST_WITH_PERF: u32 = 12;

/// Returns how to record the names of Python's functions, if stacks pass through CPython and have
/// none of them.
fn python_names(process: &Process) -> Option<String> {
    let stacks = process.stacks();
    let name = stacks.modules.iter().map(|module| module_name(&module.path)).find(|name| is_cpython(name))?;
    // The perf map of CPython has `py::NAME:FILE`.
    let is_python = |named: &Named| named.function.starts_with(b"py::") || named.file.ends_with(b".py");
    if stacks.named.iter().any(is_python) {
        return None;
    }
    let digits =
        |text: &str| text.split(|letter: char| !letter.is_ascii_digit()).next().and_then(|text| text.parse().ok());
    let minor: Option<u32> = name.split_once("python3.").and_then(|(_, rest)| digits(rest));
    let words = &process.about.argv;
    let own = words.split_first().filter(|(first, _)| is_cpython(first.rsplit('/').next().unwrap_or_default()));
    let is_old = minor.is_some_and(|minor| minor < FIRST_WITH_PERF);
    let (start, rest) = match own {
        Some((_, rest)) if is_old => ("heaptape record -- python3.12 -X perf".to_string(), rest),
        Some((first, rest)) => (format!("heaptape record -- {} -X perf", shell_word(first)), rest),
        None if words.is_empty() => ("PYTHONPERFSUPPORT=1 heaptape record -- PROGRAM".into(), &[][..]),
        None => ("PYTHONPERFSUPPORT=1 heaptape record --".into(), &words[..]),
    };
    let command = rest.iter().fold(start.clone(), |command, word| format!("{command} {}", shell_word(word)));
    let is_short = command.chars().count() <= LONGEST_COMMAND && !command.contains(char::is_control);
    let command = if is_short { command } else { format!("{start} …") };
    let why = match minor {
        Some(minor) if is_old => {
            format!("Python 3.{minor} cannot name its functions, Python 3.12 can")
        }
        _ => "Python's functions have no names without -X perf".into(),
    };
    Some(format!("{why}: {command}"))
}

/// Maximum number of letters of a command in a hint. Half of a command would be of no use.
const LONGEST_COMMAND: usize = 120;

/// Returns a word as a shell wants it typed.
fn shell_word(word: &str) -> Cow<'_, str> {
    let is_plain = |letter: char| letter.is_alphanumeric() || "%+,-./:=@_".contains(letter);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => Cow::Borrowed(word),
        false => Cow::Owned(format!("'{}'", word.replace('\'', "'\\''"))),
    }
}

fn module_name(path: &[u8]) -> Cow<'_, str> {
    String::from_utf8_lossy(path.rsplit(|&byte| byte == b'/').next().unwrap_or_default())
}

/// Returns whether a stack passes through a function of pymalloc.
fn has_function(stacks: &Stacks, symbols: &mut Symbolizer) -> bool {
    let cpython: Vec<bool> = stacks.modules.iter().map(|module| is_cpython(&module_name(&module.path))).collect();
    let is_candidate =
        |site: &Site| (site.module as usize).checked_sub(1).and_then(|index| cpython.get(index)) == Some(&true);
    let mut seen = FxHashSet::default();
    (1..=stacks.len() as u32).map(|number| stacks.site(number)).any(|site| {
        if !is_candidate(&site) || !seen.insert((site.module, site.address)) {
            return false;
        }
        // The compiler's clones end in `.constprop.0` and the like.
        let symbol = symbols.symbol(stacks, &site);
        symbol.is_some_and(|symbol| PYMALLOC_FUNCTIONS.contains(&symbol.split('.').next().unwrap_or_default()))
    })
}

/// Returns whether one function of CPython, which may have no name, allocates both kinds of node
/// and nothing else.
fn has_nodes(stacks: &Stacks, rows: &[SiteSums]) -> bool {
    let mut calls: FxHashMap<u32, [Option<u64>; 2]> = FxHashMap::default();
    for row in rows.iter().filter(|row| row.allocs > 0) {
        let Some(kind) = NODE_BYTES.iter().position(|bytes| row.allocs.checked_mul(*bytes) == Some(row.bytes)) else {
            continue;
        };
        let site = stacks.site(row.site);
        let Some(module) = module_of(stacks, &site).filter(|module| is_cpython(&module_name(&module.path))) else {
            continue;
        };
        calls.entry(site.parent).or_default()[kind] = Some(link_address(module, &site));
    }
    calls
        .into_values()
        .any(|calls| matches!(calls, [Some(middle), Some(bottom)] if middle.abs_diff(bottom) < MAX_CALL_DISTANCE))
}

#[cfg(test)]
mod tests {
    use super::shell_word;

    #[test]
    fn words_are_typed_as_the_shell_wants_them() {
        assert_eq!(shell_word("app.py"), "app.py");
        assert_eq!(shell_word("print(1)"), "'print(1)'");
        assert_eq!(shell_word("it's"), r"'it'\''s'");
        assert_eq!(shell_word(""), "''");
    }
}
