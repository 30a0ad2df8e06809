//! What a recording keeps of the code of a process, so that tail calls are found without its files:
//! the calls of functions that leave by jumps, and these jumps.

use super::jumps::Code;
use super::tail_calls::{is_recorded, without_part};
use super::texts::Texts;
use crate::frame::Jump;
use heaptape_formats::tape::field::Added;
use heaptape_formats::tape::{SymbolFunction, SymbolTable, SymbolTarget, SymbolTargets};
use rustc_hash::FxHashSet;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Maximum number of functions of a process whose jumps are kept.
const MOST_FUNCTIONS: usize = 1 << 16;
/// Maximum number of jumps from a library of the system to the program.
const DEEPEST: usize = 3;

/// A module of the process.
pub(super) struct Place<'a> {
    /// `None` if its file cannot be read.
    pub code: Option<Code<'a>>,
    /// Whether it is the program, or came with it.
    pub is_own: bool,
    /// Link-time addresses of its call sites.
    pub addresses: &'a [u64],
}

#[derive(Clone, Default)]
struct Kept {
    calls: BTreeMap<u64, Jump>,
    jumps: BTreeMap<u64, Rc<[Jump]>>,
    exports: BTreeMap<Rc<[u8]>, u64>,
    named: BTreeMap<u64, (u64, Vec<u8>)>,
}

/// A function: the index of its module, and its link-time start.
type Node = (usize, u64);

/// Returns a table for each module of a process. Most are empty.
pub(super) fn tables(places: &[Place]) -> Vec<SymbolTable> {
    let mut kept = vec![Kept::default(); places.len()];
    let (mut seen, mut next) = (FxHashSet::default(), Vec::new());
    for (index, place) in places.iter().enumerate() {
        let Some(code) = place.code else { continue };
        for &address in place.addresses {
            let Some(jump) = code.called(address.wrapping_add(1)) else { continue };
            let to = leads_to(places, index, &jump);
            let is_kept = match (&jump, place.is_own) {
                // Into a module of which all functions left by jumps.
                (Jump::Import(symbol), true) if to.is_empty() => !is_defined(places, symbol),
                (_, true) => to.iter().any(|node| leaves(places, *node)),
                (_, false) => to.iter().any(|node| reaches_own(places, *node, DEEPEST)),
            };
            if is_kept {
                keep_exports(&mut kept, &jump, &to);
                kept[index].calls.insert(address, jump);
                next.extend(to);
            }
        }
    }
    while let Some((index, start)) = next.pop() {
        let Some(code) = places[index].code else { continue };
        if seen.len() >= MOST_FUNCTIONS {
            break;
        }
        if !seen.insert((index, start)) {
            continue;
        }
        let Some(function) = code.functions.find(start) else { continue };
        let jumps = code.jumps_of(start);
        if jumps.is_empty() && !is_recorded(function.symbol) {
            continue;
        }
        kept[index].named.insert(start, (function.end, function.symbol.to_vec()));
        for jump in jumps.iter() {
            let to = leads_to(places, index, jump);
            // A library of the system may know its function by another name.
            keep_exports(&mut kept, jump, &if to.is_empty() { with_frames(places, jump) } else { to.clone() });
            next.extend(to);
        }
        kept[index].jumps.insert(start, jumps);
    }
    kept.into_iter().map(table).collect()
}

/// Returns the functions to which a call or jump of a module may lead, as a reader does.
fn leads_to(places: &[Place], from: usize, jump: &Jump) -> Vec<Node> {
    let symbol = match jump {
        Jump::To(start) => return vec![(from, *start)],
        Jump::Anywhere => return Vec::new(),
        Jump::Import(symbol) => symbol,
    };
    let export = |index: usize| Some((index, places[index].code?.export(symbol)?));
    let own: Vec<Node> = (0..places.len()).filter(|index| places[*index].is_own).filter_map(export).collect();
    if own.is_empty() { export(from).into_iter().collect() } else { own }
}

/// Returns the functions of a symbol that have frames.
fn with_frames(places: &[Place], jump: &Jump) -> Vec<Node> {
    let Jump::Import(symbol) = jump else { return Vec::new() };
    let has_frames = |place: &Place, start: u64| {
        let function = place.code.and_then(|code| code.functions.find(start));
        let first = place.addresses.partition_point(|address| *address < start);
        function.zip(place.addresses.get(first)).is_some_and(|(function, address)| *address < function.end)
    };
    let export = |(index, place): (usize, &Place)| Some((index, place.code?.export(symbol)?));
    let found = places.iter().enumerate().filter_map(export);
    found.filter(|(index, start)| has_frames(&places[*index], *start)).collect()
}

fn is_defined(places: &[Place], symbol: &[u8]) -> bool {
    places.iter().any(|place| place.code.is_some_and(|code| code.export(symbol).is_some()))
}

/// Returns whether jumps lead from a function of the system's libraries to one of the program.
fn reaches_own(places: &[Place], (index, start): Node, most: usize) -> bool {
    let Some(code) = places[index].code else { return false };
    places[index].is_own
        || most > 0
            && code
                .jumps_of(start)
                .iter()
                .any(|jump| leads_to(places, index, jump).into_iter().any(|node| reaches_own(places, node, most - 1)))
}

fn keep_exports(kept: &mut [Kept], jump: &Jump, to: &[Node]) {
    if let Jump::Import(symbol) = jump {
        to.iter().for_each(|(index, start)| {
            let _ = kept[*index].exports.insert(symbol.clone(), *start);
        });
    }
}

/// Returns whether a function leaves by a jump. Its cold part is a part of it.
fn leaves(places: &[Place], (index, start): Node) -> bool {
    let Some(code) = places[index].code else { return false };
    let whole = |start| code.functions.find(start).map(|function| without_part(function.symbol).to_vec());
    let own = whole(start);
    code.jumps_of(start).iter().any(|jump| !matches!(jump, Jump::To(to) if whole(*to) == own))
}

fn table(kept: Kept) -> SymbolTable {
    let (mut table, mut texts, mut last) = (SymbolTable::default(), Texts::default(), 0);
    for (start, (end, symbol)) in kept.named {
        table.functions.push(SymbolFunction {
            start: start - last,
            length: end - start,
            symbol: texts.number(&symbol),
        });
        last = start;
    }
    let mut target = |jump: &Jump| match jump {
        Jump::To(address) => SymbolTarget { symbol: 0, address: *address },
        Jump::Import(symbol) => SymbolTarget { symbol: texts.number(symbol), address: 0 },
        Jump::Anywhere => SymbolTarget::default(),
    };
    let mut rows = |all: Vec<(u64, Rc<[Jump]>)>| {
        let mut last = 0;
        let mut row = |(from, jumps): (u64, Rc<[Jump]>)| {
            let row = SymbolTargets { from: from - last, targets: jumps.iter().map(&mut target).collect() };
            last = from;
            row
        };
        Added(all.into_iter().map(&mut row).collect())
    };
    table.calls = rows(kept.calls.into_iter().map(|(from, jump)| (from, Rc::from([jump]))).collect());
    table.jumps = rows(kept.jumps.into_iter().collect());
    let export = |(symbol, address): (Rc<[u8]>, u64)| SymbolTarget { symbol: texts.number(&symbol), address };
    table.exports = Added(kept.exports.into_iter().map(export).collect());
    table.texts = texts.all.into_iter().map(Into::into).collect();
    table
}
