//! Hints on a recording that follow from its stacks: what hides allocations, and how to record
//! them.

use crate::load::Process;
use crate::program_frames::is_cpython;
use crate::stacks::{Site, Stacks};
use crate::symbols::{Symbolizer, link_address, module_of};
use heaptape_formats::tape::SiteSums;
use rustc_hash::{FxHashMap, FxHashSet};

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

/// Returns a hint on how to record this program better, if there is one. `rows` are the known sums
/// of its sites.
pub(super) fn find(process: &Process, rows: &[SiteSums], symbols: &mut Symbolizer) -> Option<String> {
    let stacks = process.stacks();
    let is_used = has_function(stacks, symbols) || has_nodes(stacks, rows);
    is_used.then(|| PYMALLOC_HINT.to_string())
}

/// Returns the file name of a module path.
fn module_name(path: &[u8]) -> std::borrow::Cow<'_, str> {
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
