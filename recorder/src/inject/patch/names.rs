//! The names that are searched for in the symbol tables of a program.

use super::description::OwnAllocator;
use super::families::{
    COMMON, GLIBC_INTERNAL, GROWTH, JEMALLOC_GROWTH, JEMALLOC_INTERNAL, MAPS_MEMORY, MARKS, MAX_NAME, MIMALLOC,
    NO_ALLOCATOR, OPERATORS, OWN_MALLOC, PREFIXES, SNMALLOC, Shape, TCMALLOC, UNREPLACED,
};
use rustc_hash::FxHashMap;
use std::sync::{Arc, OnceLock};
use wire::patches::{self, Action, NO_ARGUMENT};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Meaning {
    pub allocator: String,
    /// What the function does; `None` for a name that only says which allocator it is.
    pub shape: Option<Shape>,
    /// Whether other programs use the name for other things, so that it counts only where the
    /// program exports it, together with `malloc`.
    pub is_common: bool,
    /// Whether memory that is mapped below the function is the allocator's.
    pub is_growth: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Names {
    meanings: FxHashMap<Vec<u8>, Meaning>,
    /// The names by their last four bytes, which few other strings have. Longer ones than
    /// [`MAX_NAME`], and shorter ones than four bytes, are not in it.
    by_end: FxHashMap<[u8; 4], Vec<Vec<u8>>>,
}

impl Names {
    /// Returns the names of all known allocators, and of those that the user names. Without such
    /// ones they are made once: a forked recorder has those of the command.
    pub(crate) fn shared(own: &[OwnAllocator]) -> Arc<Names> {
        static KNOWN: OnceLock<Arc<Names>> = OnceLock::new();
        if own.is_empty() {
            Arc::clone(KNOWN.get_or_init(|| Arc::new(Names::new(own))))
        } else {
            Arc::new(Names::new(own))
        }
    }

    /// Returns the names of all known allocators, and of those that the user names.
    pub(crate) fn new(own: &[OwnAllocator]) -> Names {
        let mut names = Names { meanings: FxHashMap::default(), by_end: FxHashMap::default() };
        names.add("", OWN_MALLOC, true, COMMON);
        names.add("", OWN_MALLOC, true, OPERATORS);
        names.add("", OWN_MALLOC, true, GLIBC_INTERNAL);
        for (index, name) in patches::REPLACEMENTS.into_iter().enumerate() {
            let (size, count, pointer) = (index as u8, NO_ARGUMENT, NO_ARGUMENT);
            let shape = Some(Shape { action: Action::Replaced, size, count, pointer });
            let meaning = Meaning { allocator: NO_ALLOCATOR.into(), shape, is_common: true, is_growth: false };
            names.meanings.insert(name.as_bytes().to_vec(), meaning);
        }
        for (prefix, allocator) in PREFIXES {
            names.add(prefix, allocator, false, COMMON);
        }
        names.add("", "mimalloc", false, MIMALLOC);
        names.add("", "tcmalloc", false, TCMALLOC);
        names.add("", "snmalloc", false, SNMALLOC);
        for (name, allocator) in MARKS {
            names.mark(name.to_string(), allocator, false);
        }
        let of_jemalloc = |prefix: &&str| JEMALLOC_GROWTH.iter().map(|name| format!("{prefix}{name}")).collect();
        let growth: Vec<String> = JEMALLOC_INTERNAL.iter().flat_map::<Vec<String>, _>(of_jemalloc).collect();
        for name in growth.into_iter().chain(GROWTH.iter().map(ToString::to_string)) {
            names.mark(name, NO_ALLOCATOR, true);
        }
        names.mark(MAPS_MEMORY.to_owned(), NO_ALLOCATOR, false);
        for allocator in own {
            match allocator {
                OwnAllocator::Prefix(prefix) => names.add(prefix, prefix, false, COMMON),
                OwnAllocator::Described(described) => {
                    for function in &described.functions {
                        let (allocator, shape) = (described.name.clone(), Some(function.shape));
                        let meaning = Meaning { allocator, shape, is_common: false, is_growth: false };
                        names.meanings.insert(function.name.clone().into_bytes(), meaning);
                    }
                }
            }
        }
        for name in names.meanings.keys().filter(|name| name.len() <= MAX_NAME) {
            if let Some(end) = name.last_chunk::<4>() {
                names.by_end.entry(*end).or_default().push(name.clone());
            }
        }
        names
    }

    /// Returns the names that a string may end with.
    pub(crate) fn by_end(&self, text: &[u8]) -> impl Iterator<Item = &[u8]> {
        let names = text.last_chunk::<4>().and_then(|end| self.by_end.get(end));
        names.into_iter().flatten().map(Vec::as_slice)
    }

    fn add(&mut self, prefix: &str, allocator: &str, is_common: bool, functions: &[(&str, Shape)]) {
        for (name, shape) in functions {
            let meaning = Meaning { allocator: allocator.into(), shape: Some(*shape), is_common, is_growth: false };
            self.meanings.insert(format!("{prefix}{name}").into_bytes(), meaning);
        }
    }

    /// Adds a name that is no function to hook.
    fn mark(&mut self, name: String, allocator: &str, is_growth: bool) {
        let meaning = Meaning { allocator: allocator.into(), shape: None, is_common: true, is_growth };
        self.meanings.entry(name.into_bytes()).or_insert(meaning);
    }

    pub(crate) fn meaning(&self, name: &[u8]) -> Option<&Meaning> {
        self.meanings.get(name)
    }

    /// Returns whether heaptape exports the function, so that calls by name come to it anyway.
    pub(crate) fn is_replaced(&self, name: &[u8]) -> bool {
        let is_event = |shape: Shape| !matches!(shape.action, Action::Internal | Action::Replaced);
        let is_own = |meaning: &Meaning| meaning.is_common && meaning.shape.is_some_and(is_event);
        self.meaning(name).is_some_and(is_own) && !UNREPLACED.contains(&name)
    }

    /// Returns whether it is an allocator's function that heaptape does not export.
    pub(crate) fn is_unreplaced(&self, name: &[u8]) -> bool {
        let is_other = |meaning: &Meaning| !meaning.is_common && meaning.shape.is_some();
        UNREPLACED.contains(&name) || self.meaning(name).is_some_and(is_other)
    }

    /// Returns all names, in no order.
    pub(crate) fn all(&self) -> impl Iterator<Item = &[u8]> {
        self.meanings.keys().map(Vec::as_slice)
    }
}
