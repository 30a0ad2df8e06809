//! Functions that end in a jump, and so leave no frame: `return operator new(700);` is a jump. That
//! such a function was called is proven by the code. The call before a return address goes to one
//! function, the next inner frame belongs to another one, and there are jumps that lead from the
//! first to the second. As in gdb, only what all such ways have in common is inserted.
//!
//! Ways lead from module to module: libstdc++'s `std::string` jumps to the program's `operator
//! new`, which jumps to its pool. Ways inside the system's libraries are not searched.

use super::jumps::{Code, is_stub};
use super::{Detail, Object, Symbolizer, demangle, link_address, module_of};
use crate::frame::{Frame, Jump, Role};
use crate::program_frames::Roles;
use crate::stacks::{Site, Stacks};
use crate::system_libraries::is_system_library;
use heaptape_formats::tape::{SITE_GUESSED, SITE_SIGNAL};
use std::rc::Rc;

/// Maximum number of functions on one way.
const DEEPEST: usize = 8;
/// Maximum number of functions that are visited in the search of all ways.
const MOST_VISITS: usize = 256;
/// Maximum number of modules with a function of one symbol that are followed.
const MOST_DEFINITIONS: usize = 4;

/// Maximum size of a file whose functions are searched for jumps only, in bytes.
const MOST_FILE: u64 = 256 << 20;
/// The same for the summary after a recording, which must be fast.
const MOST_FILE_QUICK: u64 = 16 << 20;

/// What stands for the functions between two frames whose code has no unwind data, where one did
/// not call the other.
const SKIPPED: &str = "[skipped frames]";

/// A function: the index of its object, and its link-time start.
type Node = (usize, u64);

/// The function that was called at last, and has the next inner frame.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Callee {
    /// `None` for the function whose call was recorded, which has no frame.
    node: Option<Node>,
    symbol: Option<Vec<u8>>,
}

/// Symbols of functions whose calls are recorded, without those of C++.
#[rustfmt::skip]
const RECORDED: &[&str] = &[
    "malloc", "calloc", "realloc", "reallocarray", "free", "cfree", "memalign", "aligned_alloc", "posix_memalign", "valloc", "pvalloc",
    "mmap", "mmap64", "munmap", "mremap", "madvise", "brk", "sbrk", "shmat", "shmdt",
];
/// Starts of the symbols of `operator new` and `operator delete`.
const RECORDED_STARTS: [&str; 4] = ["_Znw", "_Zna", "_Zdl", "_Zda"];

/// An edge of the call tree: a call site of a module, the inner one, if there is one, and whether
/// the step between them was a guess.
pub(super) type Edge = ((usize, u64), Option<(usize, u64)>, bool);

impl Symbolizer {
    /// Returns the functions between a site and the next inner one of its stack, or between the
    /// innermost site and the recorded function, that left by a jump: innermost first, without
    /// lines. It is empty unless that is proven.
    ///
    /// Where the step between them was a guess, it may leave out functions that called as usual. If
    /// the code proves that, [`SKIPPED`] is returned: what is shown as a call must be one.
    pub(crate) fn tail_frames(&mut self, stacks: &Stacks, outer: &Site, inner: Option<&Site>) -> Rc<[Frame]> {
        let is_guessed = inner.is_some_and(|inner| inner.flags & SITE_GUESSED != 0);
        let is_call = outer.flags & SITE_SIGNAL == 0 && outer.address != 0;
        let place = |symbols: &mut Symbolizer, site: &Site| {
            let module = module_of(stacks, site)?;
            Some((symbols.object(module), link_address(module, site)))
        };
        let Some(place_of_outer) = place(self, outer).filter(|_| is_call) else { return Rc::default() };
        let place_of_inner = match inner {
            None => None,
            Some(inner) => match place(self, inner) {
                Some(place) => Some(place),
                None => return Rc::default(),
            },
        };
        let edge = (place_of_outer, place_of_inner, is_guessed);
        if let Some(known) = self.tails.get(&edge) {
            return known.clone();
        }
        let found = self.search_tails(stacks, edge).unwrap_or_default();
        self.tails.insert(edge, found.clone());
        found
    }

    fn search_tails(&mut self, stacks: &Stacks, edge: Edge) -> Option<Rc<[Frame]>> {
        let ((object, address), inner, is_guessed) = edge;
        let is_inner_own = inner.is_some_and(|(inner, _)| self.is_own(inner));
        if !self.is_own(object) && !is_inner_own {
            return None;
        }
        let callee = match inner {
            None => Callee { node: None, symbol: None },
            Some((inner, address)) => {
                let function = self.find(inner, address)?;
                Callee { node: Some((inner, function.start)), symbol: Some(function.symbol.to_vec()) }
            }
        };
        let called = self.called(object, address)?;
        if is_guessed {
            let Jump::To(start) = called else { return None };
            let skipped = Frame { function: Some(SKIPPED.to_owned()), role: Role::Nameless, ..Frame::default() };
            return self.is_refuted(stacks, (object, start), &callee).then(|| Rc::from([skipped]));
        }
        if matches!(&called, Jump::Import(symbol) if callee.is_symbol(symbol)) {
            return None;
        }
        let starts = self.leads_to(stacks, object, &called);
        let way = starts.into_iter().map(|node| self.way(stacks, node, &callee)).find(|way| !way.is_empty());
        let frame = |(object, offset): Node| {
            let function = self.symbol_at((object, offset)).map(demangle);
            let of = &self.objects[object];
            let (module, called) = (of.path.clone(), of.module.called.clone());
            self.with_role(Frame { function, module, called, offset, tail_call: true, ..Frame::default() })
        };
        match (way, called) {
            (Some(way), _) => Some(way.into_iter().rev().map(frame).collect()),
            // The recording has only modules with frames. One of which all functions left by jumps
            // is not known, but the call says what was called.
            (None, Jump::Import(symbol)) if is_inner_own && !self.is_defined(stacks, &symbol) => {
                let frame = Frame { function: Some(demangle(&symbol)), tail_call: true, ..Frame::default() };
                Some(Rc::from([self.with_role(frame)]))
            }
            (None, _) => None,
        }
    }

    /// Returns whether a called function is one of the program, and not the callee.
    fn is_other(&self, called: Node, callee: &Callee) -> bool {
        let Some(first) = self.symbol_at(called) else { return false };
        // A function and its parts are the same function.
        let is_callee = callee.node == Some(called)
            || callee.symbol.as_deref().is_some_and(|symbol| without_part(symbol) == without_part(first));
        !is_callee && !is_thunk(first)
    }

    /// Returns whether the code proves that a call of one function does not lead to the callee
    /// without other calls between.
    fn is_refuted(&mut self, stacks: &Stacks, called: Node, callee: &Callee) -> bool {
        if !self.is_other(called, callee) {
            return false;
        }
        let mut search = Search { symbols: self, stacks, callee, ways: Vec::new(), visits: 0, meets_unknown: false };
        search.from(&mut vec![called]);
        search.ways.is_empty() && !search.meets_unknown && search.visits <= MOST_VISITS
    }

    /// Returns the functions from the called one to the last before the callee, outermost first;
    /// none if the call went there directly, or if the way is not proven.
    fn way(&mut self, stacks: &Stacks, called: Node, callee: &Callee) -> Vec<Node> {
        if !self.is_other(called, callee) {
            return Vec::new();
        }
        let mut search = Search { symbols: self, stacks, callee, ways: Vec::new(), visits: 0, meets_unknown: false };
        search.from(&mut vec![called]);
        if search.visits > MOST_VISITS {
            return Vec::new();
        }
        let mut ways = std::mem::take(&mut search.ways).into_iter();
        let Some(mut common) = ways.next() else {
            // Nothing else may be between a virtual call and the callee.
            let is_virtual = self.is_own(called.0) && self.jumps(called).contains(&Jump::Anywhere);
            return if is_virtual { vec![called] } else { Vec::new() };
        };
        for way in ways {
            let same = common.iter().zip(&way).take_while(|(one, other)| one == other).count();
            common.truncate(same);
        }
        // What a virtual call, a table or a library of the system may lead to is not known.
        let open = common.iter().position(|node| search.is_open(*node));
        common.truncate(open.map_or(common.len(), |open| open + 1));
        let is_left_out = |node: &Node| self.symbol_at(*node).is_none_or(is_thunk);
        if common.iter().any(is_left_out) { Vec::new() } else { common }
    }

    fn is_own(&self, object: usize) -> bool {
        is_own(&self.objects[object].path, &self.roles)
    }

    /// Returns where the call at an address goes.
    fn called(&mut self, object: usize, address: u64) -> Option<Jump> {
        let saved = self.objects[object].saved.called(address);
        saved.or_else(|| self.code_of(object)?.called(address.wrapping_add(1)))
    }

    /// Returns the jumps by which a function leaves to others.
    fn jumps(&mut self, (object, start): Node) -> Rc<[Jump]> {
        let saved = self.objects[object].saved.jumps(start);
        saved.or_else(|| Some(self.code_of(object)?.jumps_of(start))).unwrap_or_default()
    }

    /// Returns the functions to which a call or jump of a module may lead, as far as they are
    /// known: of symbols, those of the program and its libraries, or else its own.
    fn leads_to(&mut self, stacks: &Stacks, object: usize, jump: &Jump) -> Vec<Node> {
        let symbol = match jump {
            Jump::To(start) => return vec![(object, *start)],
            Jump::Anywhere => return Vec::new(),
            Jump::Import(symbol) => symbol,
        };
        let mut found = Vec::new();
        for module in &stacks.modules {
            let object = self.object(module);
            if self.is_own(object) && found.len() < MOST_DEFINITIONS {
                let node = self.export(object, symbol).map(|start| (object, start));
                found.extend(node.filter(|node| !found.contains(node)));
            }
        }
        if found.is_empty() {
            found.extend(self.export(object, symbol).map(|start| (object, start)));
        }
        found
    }

    fn export(&mut self, object: usize, symbol: &[u8]) -> Option<u64> {
        let saved = self.objects[object].saved.export(symbol);
        saved.or_else(|| self.code_of(object)?.export(symbol))
    }

    /// Returns whether a module with frames has a function with this symbol.
    fn is_defined(&mut self, stacks: &Stacks, symbol: &[u8]) -> bool {
        stacks.modules.iter().any(|module| {
            let object = self.object(module);
            self.export(object, symbol).is_some()
        })
    }

    /// Returns the symbol of the function that starts at a place.
    fn symbol_at(&self, (object, start): Node) -> Option<&[u8]> {
        let Object { saved, live, .. } = &self.objects[object];
        let function = saved.find(start).or_else(|| live.as_ref()?.functions.find(start));
        function.filter(|function| function.start == start).map(|function| function.symbol)
    }

    /// Returns the code of a module, if its file is there and not too large.
    fn code_of(&mut self, object: usize) -> Option<Code<'_>> {
        let most = if self.detail == Detail::Quick { MOST_FILE_QUICK } else { MOST_FILE };
        let Object { path, live, .. } = &self.objects[object];
        let is_small = || std::fs::metadata(&**path).is_ok_and(|file| file.is_file() && file.len() <= most);
        if live.is_none() && !is_small() {
            return None;
        }
        let live = self.live(object);
        let (_, elf) = live.files.first().filter(|_| live.own)?;
        Some(Code { elf, functions: &live.functions, jumps: &live.jumps })
    }
}

impl Callee {
    /// Returns whether the callee is a function with this symbol, or a recorded one is.
    fn is_symbol(&self, symbol: &[u8]) -> bool {
        match &self.symbol {
            Some(callee) => callee == symbol,
            None => is_recorded(symbol),
        }
    }
}

/// The search of all ways to a callee.
struct Search<'a> {
    symbols: &'a mut Symbolizer,
    stacks: &'a Stacks,
    callee: &'a Callee,
    ways: Vec<Vec<Node>>,
    visits: usize,
    /// Whether it came to code that is not searched, or to a jump whose goal is not known.
    meets_unknown: bool,
}

impl Search<'_> {
    /// Follows the jumps of the last function on a way.
    fn from(&mut self, way: &mut Vec<Node>) {
        self.visits += 1;
        let Some(&last) = way.last().filter(|_| self.visits <= MOST_VISITS) else { return };
        self.meets_unknown |= !self.symbols.is_own(last.0);
        for jump in self.symbols.jumps(last).iter() {
            let next = self.symbols.leads_to(self.stacks, last.0, jump);
            if self.is_callee(jump, &next) {
                self.ways.push(way.clone());
                continue;
            }
            self.meets_unknown |= next.is_empty();
            for next in next {
                if way.contains(&next) {
                    continue;
                }
                if way.len() >= DEEPEST {
                    // A longer way is not searched, so no other one is proven.
                    self.visits = MOST_VISITS + 1;
                    return;
                }
                way.push(next);
                self.from(way);
                way.pop();
            }
        }
    }

    /// Returns whether a jump, which leads to `next`, goes to the callee.
    fn is_callee(&mut self, jump: &Jump, next: &[Node]) -> bool {
        let is_symbol = match jump {
            Jump::Import(symbol) => self.callee.is_symbol(symbol) || next.is_empty() && self.is_alias(symbol),
            // A static program has the recorded function itself.
            Jump::To(_) if self.callee.symbol.is_none() => {
                next.iter().any(|node| self.symbols.symbol_at(*node).is_some_and(is_recorded))
            }
            Jump::To(_) | Jump::Anywhere => false,
        };
        is_symbol || self.callee.node.is_some_and(|callee| next.contains(&callee))
    }

    /// Returns whether the callee is what its module exports by this symbol. The C library calls its
    /// functions by other names: `strdup` is `__strdup`.
    fn is_alias(&mut self, symbol: &[u8]) -> bool {
        self.callee.node.is_some_and(|(object, start)| self.symbols.export(object, symbol) == Some(start))
    }

    /// Returns whether a function has a jump that leads to functions that are not known.
    fn is_open(&mut self, node: Node) -> bool {
        self.symbols.jumps(node).iter().any(|jump| {
            let next = self.symbols.leads_to(self.stacks, node.0, jump);
            next.is_empty() && !self.is_callee(jump, &next)
        })
    }
}

/// Returns whether functions of a module may be inserted: it is the program, or came with it.
pub(super) fn is_own(path: &str, roles: &Roles) -> bool {
    let whole = Frame { module: path.into(), ..Frame::default() };
    !is_system_library(path) && !roles.is_wrapper_module(&whole)
}

/// Returns whether calls of the function with this symbol are recorded.
pub(super) fn is_recorded(symbol: &[u8]) -> bool {
    let symbol = symbol.strip_prefix(b"__libc_").or_else(|| symbol.strip_prefix(b"__")).unwrap_or(symbol);
    let is_operator = RECORDED_STARTS.iter().any(|start| symbol.starts_with(start.as_bytes()));
    is_operator || RECORDED.iter().any(|known| known.as_bytes() == symbol)
}

/// Returns a symbol without what the compiler adds for a part of the function.
pub(super) fn without_part(symbol: &[u8]) -> &[u8] {
    const PARTS: [&[u8]; 6] = [b".cold", b".part.", b".isra.", b".constprop.", b".llvm.", b".lto_priv."];
    let end = PARTS.iter().filter_map(|part| symbol.windows(part.len()).position(|bytes| bytes == *part)).min();
    &symbol[..end.unwrap_or(symbol.len())]
}

/// Returns whether this is no function of the program: it adjusts `this`, or passes a call on.
fn is_thunk(symbol: &[u8]) -> bool {
    const STARTS: [&[u8]; 7] =
        [b"_ZTh", b"_ZTv", b"_ZTc", b"__x86_indirect_thunk", b"__llvm_", b"__x86.get_pc_thunk", b"_dl_"];
    STARTS.iter().any(|start| symbol.starts_with(start)) || is_stub(symbol)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_thunks_are_known_by_their_symbols() {
        for (symbol, whole) in [
            ("load.cold", "load"),
            ("load.part.0.cold", "load"),
            ("load.isra.0", "load"),
            ("_Z4loadi.constprop.1", "_Z4loadi"),
            ("load", "load"),
            ("cold", "cold"),
        ] {
            assert_eq!(without_part(symbol.as_bytes()), whole.as_bytes());
        }
        assert!(is_thunk(b"_ZThn8_N4shop4Cart4loadEv") && is_thunk(b"__x86_indirect_thunk_rax"));
        assert!(
            is_recorded(b"_Znwm") && is_recorded(b"calloc") && !is_recorded(b"xmalloc") && !is_recorded(b"_Z3newv")
        );
    }
}
