//! The modules of recorded stacks: appends them to the shared module table, and retires those that
//! were unmapped, with the nodes in them.

use crate::elf::{self, Object, objects};
use crate::session::{self, Area};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use heaptape_wire::limits::MODULES;
use heaptape_wire::nodes::WRITTEN;

/// Objects that the recorder knows, by a hash of their first address. After many plugins came and
/// went, a search of the whole table at each miss of a rule would take long. The list is emptied
/// when an object is unmapped.
static KNOWN: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

#[cold]
#[inline(never)]
fn forget_known() {
    // With a length that the compiler knows it unrolls the loop, to 700 bytes.
    let length = core::hint::black_box(KNOWN.len());
    KNOWN.iter().take(length).for_each(|known| known.store(0, Relaxed));
}

/// An object that this process, or the one that it was forked from, has announced: its first
/// address (0 if the entry is free) and, in this process, its index in the module table. A forked
/// child has its parent's rules and never looks them up again, so it announces at its start what
/// its parent announced.
///
/// An unused entry is all zeros, so that the table takes no space in the library's file.
struct AnnouncedModule {
    start: AtomicU64,
    /// One more than the index in the module table; 0 if this process has not announced the object.
    after_module: AtomicU32,
}

impl AnnouncedModule {
    /// The object's index in the module table; past its end if this process has not announced it.
    fn module(&self) -> u32 {
        self.after_module.load(Relaxed).wrapping_sub(1)
    }
}

static ANNOUNCED: [AnnouncedModule; 1024] =
    [const { AnnouncedModule { start: AtomicU64::new(0), after_module: AtomicU32::new(0) } }; 1024];
/// Entries from this one on were never used, and an attach does not read them.
static ANNOUNCED_END: AtomicU32 = AtomicU32::new(0);
/// Whether some objects did not fit into the list. Then the whole module table is searched.
static ANNOUNCED_OVERFLOWED: AtomicBool = AtomicBool::new(false);

fn announced() -> &'static [AnnouncedModule] {
    &ANNOUNCED[..(ANNOUNCED_END.load(Relaxed) as usize).min(ANNOUNCED.len())]
}

fn announced_at(start: u64) -> Option<&'static AnnouncedModule> {
    announced().iter().find(|entry| entry.start.load(Relaxed) == start)
}

fn remember_announced(start: u64, module: u32) {
    let is_claimed = |entry: &AnnouncedModule| entry.start.compare_exchange(0, start, Relaxed, Relaxed).is_ok();
    let entry = announced_at(start).or_else(|| {
        let index = ANNOUNCED.iter().position(is_claimed)?;
        ANNOUNCED_END.fetch_max(index as u32 + 1, Relaxed);
        ANNOUNCED.get(index)
    });
    match entry {
        Some(entry) => entry.after_module.store(module.wrapping_add(1), Relaxed),
        None => ANNOUNCED_OVERFLOWED.store(true, Relaxed),
    }
}

/// Announces to a new session what this process, or the one that it was forked from, has announced.
pub(crate) fn announce_again(area: &Area) {
    forget_known();
    announced().iter().for_each(|entry| entry.after_module.store(0, Relaxed));
    for start in announced().iter().map(|entry| entry.start.load(Relaxed)).filter(|start| *start != 0) {
        if let Some(object) = objects::find(start as usize).filter(|object| object.start == start) {
            announce(area, &object);
        }
    }
}

/// Announces an object to the recorder, unless it knows it already. Returns whether it may be new.
/// The frame of this function must not be part of the caller's, which compiles rules on small
/// stacks.
#[inline(never)]
pub(crate) fn note(object: &Object) -> bool {
    let known = &KNOWN[(object.start >> 12).wrapping_mul(0x9e37_79b9_7f4a_7c15) as usize >> 58];
    if known.load(Relaxed) == object.start {
        return false;
    }
    let Some(area) = session::area() else { return false };
    if announce(&area, object) {
        known.store(object.start, Relaxed);
    }
    true
}

/// Adds an object to an area's modules. Returns whether it is among them.
fn announce(area: &Area, object: &Object) -> bool {
    let header = area.header();
    let is_entry_of_object = |index: u32| {
        area.module(index).is_some_and(|entry| {
            entry.start.load(Relaxed) == object.start
                && entry.end.load(Relaxed) == object.end
                && entry.unmapped_node.load(Relaxed) == 0
        })
    };
    let is_known = match announced_at(object.start) {
        Some(entry) => is_entry_of_object(entry.module()),
        None if ANNOUNCED_OVERFLOWED.load(Relaxed) => {
            (0..header.modules_used.0.load(Acquire).min(MODULES)).any(is_entry_of_object)
        }
        None => false,
    };
    if is_known {
        return true;
    }
    let index = header.modules_used.0.fetch_add(1, Relaxed);
    let Some(entry) = area.module(index) else { return false };
    remember_announced(object.start, index);
    // SAFETY: the loader named the object for an address whose code is on this thread's stack, or
    // was on its maker's and is still mapped.
    unsafe {
        let (bias, name) = elf::bias_and_name(object);
        let (build_id, length) = elf::build_id(object, bias);
        if length == 0 {
            entry.head.store(elf::head(object), Relaxed);
        }
        entry.publish(object.start, object.end, bias, header.nodes_used.0.load(Relaxed), name, &build_id[..length]);
    }
    true
}

/// Retires the modules that were unmapped by a `dlclose`, and all nodes in them. (Nodes inside such
/// a node are found by its number only, which is not returned any more.) Returns whether there was
/// one.
pub(crate) fn retire_gone() -> bool {
    let Some(area) = session::area() else { return false };
    let header = area.header();
    let nodes = header.nodes_used.0.load(Acquire).min(area.mapped_nodes());
    let mut any = false;
    let mut retire_if_gone = |index: u32| {
        let Some(entry) = area.module(index).filter(|entry| entry.is_ready()) else { return };
        let (start, end) = (entry.start.load(Relaxed), entry.end.load(Relaxed));
        let is_mapped = || objects::find(start as usize).is_some_and(|found| found.start == start && found.end == end);
        if entry.unmapped_node.load(Relaxed) != 0 || is_mapped() {
            return;
        }
        entry.unmapped_node.store(nodes.max(1), Release);
        announced_at(start).inspect(|entry| entry.start.store(0, Relaxed));
        retire_range(start, end, entry.first_node.load(Relaxed).max(1), nodes);
        any = true;
    };
    if ANNOUNCED_OVERFLOWED.load(Relaxed) {
        (0..header.modules_used.0.load(Acquire).min(MODULES)).for_each(retire_if_gone);
    } else {
        announced()
            .iter()
            .filter(|entry| entry.start.load(Relaxed) != 0)
            .for_each(|entry| retire_if_gone(entry.module()));
    }
    if any {
        forget_known();
    }
    any
}

/// Retires the nodes in a range of addresses, among those from `first` on.
fn retire_range(start: u64, end: u64, first: u32, nodes: u32) {
    for node in (first..nodes).filter_map(session::node) {
        let value = node.read();
        if (start..end).contains(&value.address) && value.flags & WRITTEN != 0 {
            node.retire();
        }
    }
}
