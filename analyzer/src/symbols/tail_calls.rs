//! Functions that end in a jump, and so leave no frame: `return operator new(700);` is a jump. That
//! such a function was called is proven by the code. The call before a return address goes to one
//! function, the next inner frame belongs to another one, and there are jumps that lead from the
//! first to the second. As in gdb, only what all such ways have in common is inserted.

use super::elf::{Elf, Functions};
use super::{Detail, Symbolizer, demangle, link_address, module_of};
use crate::frame::Frame;
use crate::stacks::{Site, Stacks};
use crate::system_libraries::is_system_library;
use heaptape_formats::tape::{SITE_GUESSED, SITE_SIGNAL};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic};
use rustc_hash::FxHashMap;
use std::cell::RefCell;
use std::rc::Rc;

/// Maximum number of bytes of a function that are decoded.
const MOST_CODE: u64 = 64 << 10;
/// Maximum number of different jumps of a function that are followed.
const MOST_JUMPS: usize = 32;
/// Maximum number of functions on one way.
const DEEPEST: usize = 8;
/// Maximum number of functions that are visited in the search of all ways.
const MOST_VISITS: usize = 256;

/// Maximum size of a file whose functions are searched for jumps only, in bytes.
const MOST_FILE: u64 = 256 << 20;
/// The same for the summary after a recording, which must be fast.
const MOST_FILE_QUICK: u64 = 16 << 20;

/// The function that was called at last, and has the next inner frame.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Callee {
    /// Its link-time address, if it is in the same module.
    pub start: Option<u64>,
    /// Its symbol. `None` for the function whose call was recorded, which has no frame.
    pub symbol: Option<Vec<u8>>,
}

/// Where a function goes by a jump.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Jump {
    /// To the start of a function of the module.
    To(u64),
    /// To a function that the loader finds by its symbol.
    Import(Rc<[u8]>),
    /// To a function that only the run decides, such as a virtual one.
    Anywhere,
}

/// Symbols of functions whose calls are recorded, without those of C++.
#[rustfmt::skip]
const RECORDED: &[&str] = &[
    "malloc", "calloc", "realloc", "reallocarray", "free", "cfree", "memalign", "aligned_alloc", "posix_memalign", "valloc", "pvalloc",
    "mmap", "mmap64", "munmap", "mremap", "madvise", "brk", "sbrk", "shmat", "shmdt",
];
/// Starts of the symbols of `operator new` and `operator delete`.
const RECORDED_STARTS: [&str; 4] = ["_Znw", "_Zna", "_Zdl", "_Zda"];

/// The jumps of the functions of one module.
#[derive(Default)]
pub(super) struct TailCalls {
    jumps: RefCell<FxHashMap<u64, Rc<[Jump]>>>,
    /// Symbols by the address of the slot that the loader fills with their address.
    slots: RefCell<Option<FxHashMap<u64, Rc<[u8]>>>>,
}

/// The file in which functions and their code are.
#[derive(Clone, Copy)]
pub(super) struct Code<'a> {
    pub elf: &'a Elf,
    pub functions: &'a Functions,
}

/// Returns the function that the instruction before a return address calls directly.
pub(super) fn called_function(code: Code, return_address: u64) -> Option<u64> {
    const LENGTH: u64 = 5;
    if code.elf.is_aarch64() {
        return None;
    }
    let bytes = code.elf.bytes_at(return_address.checked_sub(LENGTH)?, LENGTH)?;
    let (0xe8, distance) = (*bytes.first()?, bytes.get(1..5)?.try_into().ok()?) else { return None };
    let target = return_address.wrapping_add_signed(i32::from_le_bytes(distance).into());
    code.functions.find(target).filter(|function| function.start == target).map(|function| function.start)
}

impl TailCalls {
    /// Returns the starts of the functions from the called one to the last before the callee,
    /// outermost first; none if the call went there directly, or if the way is not proven.
    pub(super) fn way(&self, code: Code, called: u64, callee: &Callee) -> Vec<u64> {
        let symbol_of = |start: u64| code.functions.find(start).map(|function| function.symbol);
        let Some(first) = symbol_of(called) else { return Vec::new() };
        // A function and its parts are the same function.
        let is_callee = callee.start == Some(called)
            || callee.symbol.as_deref().is_some_and(|symbol| without_part(symbol) == without_part(first));
        if is_callee || is_thunk(first) {
            return Vec::new();
        }
        let mut search = Search { all: self, code, callee, ways: Vec::new(), visits: 0 };
        search.from(&mut vec![called]);
        if search.visits > MOST_VISITS {
            return Vec::new();
        }
        let mut ways = std::mem::take(&mut search.ways).into_iter();
        let Some(mut common) = ways.next() else {
            // Nothing else may be between a virtual call and the callee.
            let jumps = self.of(code, called);
            return if jumps.contains(&Jump::Anywhere) { vec![called] } else { Vec::new() };
        };
        for way in ways {
            let same = common.iter().zip(&way).take_while(|(one, other)| one == other).count();
            common.truncate(same);
        }
        // What a virtual call, a table or another module may lead to is not known.
        let is_open = |start: &u64| {
            let jumps = self.of(code, *start);
            jumps.iter().any(|jump| !matches!(jump, Jump::To(_)) && !search.is_callee(jump))
        };
        let open = common.iter().position(is_open);
        common.truncate(open.map_or(common.len(), |open| open + 1));
        if common.iter().any(|start| symbol_of(*start).is_none_or(is_thunk)) { Vec::new() } else { common }
    }

    /// Returns the jumps by which a function leaves to others.
    fn of(&self, code: Code, start: u64) -> Rc<[Jump]> {
        if let Some(known) = self.jumps.borrow().get(&start) {
            return known.clone();
        }
        let jumps: Rc<[Jump]> = self.read(code, start).unwrap_or_default().into();
        self.jumps.borrow_mut().insert(start, jumps.clone());
        jumps
    }

    fn read(&self, code: Code, start: u64) -> Option<Vec<Jump>> {
        let function = code.functions.find(start)?;
        let inside = start..function.end;
        let length = function.end.checked_sub(start)?;
        let bytes = code.elf.bytes_at(start, length.min(MOST_CODE))?;
        let mut decoder = Decoder::with_ip(64, &bytes, start, DecoderOptions::NONE);
        let (mut jumps, mut instruction): (Vec<Jump>, _) = (Vec::new(), Instruction::default());
        while decoder.can_decode() && jumps.len() < MOST_JUMPS {
            decoder.decode_out(&mut instruction);
            let jump = match instruction.flow_control() {
                FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
                    let target = instruction.near_branch_target();
                    if inside.contains(&target) { None } else { self.target(code, target) }
                }
                FlowControl::IndirectBranch => {
                    // A `switch` looks like a call by a table of functions.
                    Some(self.import(code, &instruction).map_or(Jump::Anywhere, Jump::Import))
                }
                _ => None,
            };
            if let Some(jump) = jump.filter(|jump| !jumps.contains(jump)) {
                jumps.push(jump);
            }
        }
        // What was not read may lead anywhere.
        if decoder.can_decode() || length > MOST_CODE {
            jumps.push(Jump::Anywhere);
        }
        Some(jumps)
    }

    /// Returns where a direct jump goes: to a function, or through a stub of the linker.
    fn target(&self, code: Code, target: u64) -> Option<Jump> {
        // mold names its stubs (`malloc$plt`).
        if code.functions.find(target).is_some_and(|function| function.start == target && !is_stub(function.symbol)) {
            return Some(Jump::To(target));
        }
        const STUB: u64 = 16;
        let bytes = code.elf.bytes_at(target, STUB)?;
        let mut decoder = Decoder::with_ip(64, &bytes, target, DecoderOptions::NONE);
        let first = decoder.decode();
        let jump = if first.mnemonic() == Mnemonic::Endbr64 { decoder.decode() } else { first };
        self.import(code, &jump).map(Jump::Import)
    }

    /// Returns the symbol of the slot through which an instruction jumps.
    fn import(&self, code: Code, jump: &Instruction) -> Option<Rc<[u8]>> {
        if jump.flow_control() != FlowControl::IndirectBranch || !jump.is_ip_rel_memory_operand() {
            return None;
        }
        let mut slots = self.slots.borrow_mut();
        let slots = slots.get_or_insert_with(|| code.elf.imports());
        slots.get(&jump.ip_rel_memory_address()).cloned()
    }
}

/// An edge of the call tree: a call site of a module, and the inner one, if there is one.
pub(super) type Edge = ((usize, u64), Option<(usize, u64)>);

impl Symbolizer {
    /// Returns the functions between a site and the next inner one of its stack, or between the
    /// innermost site and the recorded function, that left by a jump: innermost first, without
    /// lines. It is empty unless that is proven.
    pub fn tail_frames(&mut self, stacks: &Stacks, outer: &Site, inner: Option<&Site>) -> Rc<[Frame]> {
        // A guessed step may leave out a function that called as usual.
        let is_guessed = inner.is_some_and(|inner| inner.flags & SITE_GUESSED != 0);
        let is_call = outer.flags & SITE_SIGNAL == 0 && outer.address != 0 && !is_guessed;
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
        let edge = (place_of_outer, place_of_inner);
        if let Some(known) = self.tails.get(&edge) {
            return known.clone();
        }
        let found = self.search_tails(stacks, outer, edge).unwrap_or_default();
        self.tails.insert(edge, found.clone());
        found
    }

    fn search_tails(&mut self, stacks: &Stacks, outer: &Site, edge: Edge) -> Option<Rc<[Frame]>> {
        let ((object, _), inner) = edge;
        let path = self.objects[object].path.clone();
        let whole = Frame { module: path.clone(), ..Frame::default() };
        if is_system_library(&path) || self.roles.is_wrapper_module(&whole) || !self.has_code(object) {
            return None;
        }
        let callee = match inner {
            None => Callee { start: None, symbol: None },
            Some((inner_object, address)) => {
                let function = self.find(inner_object, address)?;
                let (start, symbol) = (function.start, function.symbol.to_vec());
                Callee { start: (inner_object == object).then_some(start), symbol: Some(symbol) }
            }
        };
        let bias = module_of(stacks, outer)?.bias;
        let live = self.live(object);
        let (_, elf) = live.files.first().filter(|_| live.own)?;
        let code = Code { elf, functions: &live.functions };
        let called = called_function(code, outer.address.wrapping_sub(bias))?;
        let way = live.tail_calls.way(code, called, &callee);
        let named = |start: u64| live.functions.find(start).map(|function| demangle(function.symbol));
        let way: Vec<(u64, Option<String>)> = way.into_iter().map(|start| (start, named(start))).collect();
        let called = self.objects[object].module.called.clone();
        let frame = |(offset, function)| {
            let (module, called) = (path.clone(), called.clone());
            self.with_role(Frame { function, module, called, offset, tail_call: true, ..Frame::default() })
        };
        Some(way.into_iter().rev().map(frame).collect())
    }

    /// Returns whether the file of a module was read already, or is there and not too large.
    fn has_code(&self, object: usize) -> bool {
        let object = &self.objects[object];
        let most = if self.detail == Detail::Quick { MOST_FILE_QUICK } else { MOST_FILE };
        object.live.is_some() || std::fs::metadata(&*object.path).is_ok_and(|file| file.is_file() && file.len() <= most)
    }
}

/// The search of all ways to a callee.
struct Search<'a> {
    all: &'a TailCalls,
    code: Code<'a>,
    callee: &'a Callee,
    ways: Vec<Vec<u64>>,
    visits: usize,
}

impl Search<'_> {
    /// Follows the jumps of the last function on a way.
    fn from(&mut self, way: &mut Vec<u64>) {
        self.visits += 1;
        let Some(&last) = way.last().filter(|_| self.visits <= MOST_VISITS) else { return };
        for jump in self.all.of(self.code, last).iter() {
            if self.is_callee(jump) {
                self.ways.push(way.clone());
            } else if let Jump::To(next) = jump
                && !way.contains(next)
            {
                if way.len() >= DEEPEST {
                    // A longer way is not searched, so no other one is proven.
                    self.visits = MOST_VISITS + 1;
                    return;
                }
                way.push(*next);
                self.from(way);
                way.pop();
            }
        }
    }

    fn is_callee(&self, jump: &Jump) -> bool {
        match (jump, &self.callee.symbol) {
            (Jump::To(start), Some(_)) => self.callee.start == Some(*start),
            (Jump::Import(symbol), Some(callee)) => **symbol == **callee,
            (Jump::Import(symbol), None) => is_recorded(symbol),
            // A static program has the function itself.
            (Jump::To(start), None) => {
                self.code.functions.find(*start).is_some_and(|function| is_recorded(function.symbol))
            }
            (Jump::Anywhere, _) => false,
        }
    }
}

/// Returns whether calls of the function with this symbol are recorded.
fn is_recorded(symbol: &[u8]) -> bool {
    let symbol = symbol.strip_prefix(b"__libc_").or_else(|| symbol.strip_prefix(b"__")).unwrap_or(symbol);
    let is_operator = RECORDED_STARTS.iter().any(|start| symbol.starts_with(start.as_bytes()));
    is_operator || RECORDED.iter().any(|known| known.as_bytes() == symbol)
}

/// Returns a symbol without what the compiler adds for a part of the function.
fn without_part(symbol: &[u8]) -> &[u8] {
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

/// Returns whether a linker made this to reach another module.
fn is_stub(symbol: &[u8]) -> bool {
    const ENDS: [&[u8]; 3] = [b"@plt", b"$plt", b"$pltgot"];
    ENDS.iter().any(|end| symbol.ends_with(end))
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
