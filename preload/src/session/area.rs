//! The shared area as this process has mapped it: the header and the first segment of each table
//! since the attach, and later segments as they are needed. So it uses little of a limit on address
//! space or on locked memory.
//!
//! The library keeps no descriptor, and needs none to map more of the file. `mremap` of zero bytes
//! of a shared mapping makes a second mapping of the same file, which begins with the given page
//! and may extend beyond the end of the first mapping. The segments of a table follow each other in
//! the file, so the last page of a segment is enough to map the next one.

use crate::sys::{self, Need, Part};
use core::ffi::c_void;
use core::sync::atomic::{AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use heaptape_wire::area::{ACTIVATION_DORMANT, MAGIC, PAGE, Table};
use heaptape_wire::modules::ModuleEntry;
use heaptape_wire::ring::Ring;
use heaptape_wire::segments::Segments;
use heaptape_wire::{Header, Layout, Node, Params, Record, SlotControl, WIRE_VERSION};

/// For each table and segment, the address that entry 0 would have if all entries were as large as
/// those of the segment; 0 if the segment is not mapped. A mapped segment stays mapped while the
/// process lives.
static ORIGINS: [[AtomicUsize; Segments::MAX]; 4] = [const { [const { AtomicUsize::new(0) }; Segments::MAX] }; 4];

/// The search tables that came with the area of this process, or of the one that it was forked
/// from: the first address and the first one after them. They stay mapped.
static SEARCH_TABLES: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// Returns where the recorder's search tables are mapped; zeros if there are none.
pub(crate) fn search_tables() -> [u64; 2] {
    [0, 1].map(|index| SEARCH_TABLES[index].load(Relaxed) as u64)
}

/// The area of the session. It can be copied, since it owns nothing.
#[derive(Clone, Copy)]
pub(crate) struct Area {
    front: *mut u8,
    layout: Layout,
}

/// Returns a node, or `None` if its segment is not mapped.
#[inline(always)]
pub(crate) fn node(number: u32) -> Option<&'static Node> {
    let origin = ORIGINS[Table::Nodes as usize][Table::Nodes.segments().of(number)].load(Relaxed);
    // SAFETY: the segment is mapped and stays mapped; nodes are atomics. The number is below the
    // table's end: it was claimed, and claimed numbers are compared with the capacity.
    (origin != 0).then(|| unsafe { &*(origin.wrapping_add(number as usize * size_of::<Node>()) as *const Node) })
}

/// Maps the header and the first segments of the area that the recorder sent, and makes it the area
/// of this process.
pub(crate) fn map(descriptor: i32, bytes: u64) -> Option<Area> {
    let page = sys::map_file(core::ptr::null_mut(), PAGE as usize, descriptor, 0)?;
    let Some(area) = place(page, descriptor, bytes) else {
        sys::unmap_at(page, PAGE as usize);
        return None;
    };
    let (front, mapped) = (area.front, front_bytes(&area.layout));
    let tables = area.header().search_bytes.load(Relaxed) as usize;
    if tables != 0
        && let Some(at) = sys::map_constant(tables, descriptor, bytes)
    {
        SEARCH_TABLES[0].store(at as usize, Relaxed);
        SEARCH_TABLES[1].store(at as usize + tables, Relaxed);
    }
    // A child maps its own area, but keeps the page with the activation, which its thread-local
    // variable may point to. A core dump does not need the area. Mappings of later segments inherit
    // both.
    sys::advise(front.wrapping_add(PAGE as usize), mapped - PAGE as usize, libc::MADV_DONTFORK);
    sys::advise(front, mapped, libc::MADV_DONTDUMP);
    for table in Table::ALL {
        let origins = &ORIGINS[table as usize];
        origins.iter().skip(1).for_each(|origin| origin.store(0, Relaxed));
        origins[0].store(front as usize + front_offset(&area.layout, table), Release);
    }
    Some(area)
}

/// Maps the first segments of an area behind its first page, which moves there. Returns `None`, and the
/// page stays where it is, if the library does not understand the area, or the system refuses.
fn place(page: *mut u8, descriptor: i32, bytes: u64) -> Option<Area> {
    // SAFETY: the first page is mapped, and all fields are atomics.
    let header = unsafe { &*page.cast::<Header>() };
    let params = Params {
        ring_bytes: header.ring_bytes.load(Relaxed),
        first_ring_shift: header.first_ring_shift.load(Relaxed),
        slots: header.slots.load(Relaxed),
        nodes: header.nodes.load(Relaxed),
    };
    let same = header.magic.load(Relaxed) == MAGIC && header.version.load(Relaxed) == u32::from(WIRE_VERSION);
    (same && params.is_valid()).then_some(())?;
    let layout = Layout::new(params);
    (layout.total == bytes).then_some(())?;
    let front = sys::reserve(front_bytes(&layout), Part::All)?;
    let area = (|| {
        // The page moves at the end, since what fails leaves it to the caller.
        for table in Table::ALL.into_iter().rev() {
            let (offset, bytes) = layout.segment(table, 0)?;
            let bytes = bytes as usize;
            if table == Table::Slots {
                // They follow the header in the file too.
                sys::replace(front, page, PAGE as usize, PAGE as usize + bytes)?;
            } else {
                sys::map_file(front.wrapping_add(front_offset(&layout, table)), bytes, descriptor, offset)?;
            }
        }
        Some(Area { front, layout })
    })();
    if area.is_none() {
        sys::unmap(front, front_bytes(&layout));
    }
    area
}

/// Returns the size of the header and the first segments in bytes.
#[inline(never)]
const fn front_bytes(layout: &Layout) -> usize {
    let rings = match layout.segment(Table::Rings, 0) {
        Some((_, bytes)) => bytes as usize,
        None => 0,
    };
    front_offset(layout, Table::Rings) + rings
}

/// Returns the offset of the first segment of a table in the front mapping.
const fn front_offset(layout: &Layout, table: Table) -> usize {
    let mut offset = PAGE as usize;
    let mut before = 0;
    while before < table as usize {
        if let Some((_, bytes)) = layout.segment(Table::ALL[before], 0) {
            offset += bytes as usize;
        }
        before += 1;
    }
    offset
}

impl Area {
    /// Returns the sizes that the area was created with.
    pub(crate) const fn params(&self) -> Params {
        self.layout.params
    }

    pub(crate) const fn header(&self) -> &'static Header {
        // SAFETY: the first page is mapped as long as the process lives; all fields are atomics.
        unsafe { &*self.front.cast::<Header>() }
    }

    /// Returns the address of the activation that all threads look at while the process is dormant,
    /// or `None` while it is not.
    pub(crate) fn dormant_activation(&self) -> Option<*mut c_void> {
        let activation = &self.header().activation.0;
        (activation.load(Acquire) == ACTIVATION_DORMANT).then(|| (&raw const *activation).cast_mut().cast())
    }

    /// Returns the control record of a slot, and maps it if needed. Returns `None` if there is no
    /// such slot, or no memory for it.
    #[inline(never)]
    pub(crate) fn slot(&self, index: u32) -> Option<&'static SlotControl> {
        // SAFETY: the entry is mapped; all fields are atomics.
        self.entry(Table::Slots, index).map(|address| unsafe { &*(address as *const SlotControl) })
    }

    /// Returns a module entry, with the same conditions as [`Area::slot`].
    pub(crate) fn module(&self, index: u32) -> Option<&'static ModuleEntry> {
        // SAFETY: the entry is mapped; all fields are atomics.
        self.entry(Table::Modules, index).map(|address| unsafe { &*(address as *const ModuleEntry) })
    }

    /// Returns the ring of a slot, with the same conditions as [`Area::slot`].
    pub(crate) fn ring(&self, slot: u32) -> Option<Ring> {
        let address = self.entry(Table::Rings, slot)?;
        let bytes = self.layout.ring_bytes(Table::Rings.segments().of(slot));
        // SAFETY: the ring is inside its segment, which stays mapped.
        Some(unsafe { Ring::new(address as *mut Record, bytes / size_of::<Record>() as u64) })
    }

    /// Maps the nodes up to a number. Returns false if there is no memory for them.
    pub(crate) fn map_nodes(&self, number: u32) -> bool {
        self.entry(Table::Nodes, number).is_some()
    }

    /// Unlocks the header and the first segments, which the program has locked with all its memory.
    pub(crate) fn unlock(&self) {
        sys::unlock(self.front, front_bytes(&self.layout));
    }

    pub(crate) fn mapped_nodes(&self) -> u32 {
        let segments = Table::Nodes.segments();
        let origins = &ORIGINS[Table::Nodes as usize];
        let mapped = origins.iter().position(|origin| origin.load(Acquire) == 0).unwrap_or(origins.len());
        segments.start(mapped).min(u64::from(self.params().nodes)) as u32
    }

    /// Returns the address of an entry, and maps its segment if needed.
    #[inline(always)]
    fn entry(&self, table: Table, index: u32) -> Option<usize> {
        if index >= self.layout.entries(table) {
            return None;
        }
        let segment = table.segments().of(index);
        let origin = match ORIGINS[table as usize][segment].load(Acquire) {
            0 => self.map_up_to(table, segment)?,
            origin => origin,
        };
        Some(origin.wrapping_add(index as usize * self.layout.entry_bytes(table, segment) as usize))
    }

    /// Maps the segments of a table up to `last`, and returns the origin of that one.
    #[cold]
    #[inline(never)]
    fn map_up_to(&self, table: Table, last: usize) -> Option<usize> {
        let origins = &ORIGINS[table as usize];
        for (segment, known) in origins.iter().enumerate().take(last + 1).skip(1) {
            if known.load(Acquire) != 0 {
                continue;
            }
            if !Need::MAP_MORE.is_allowed() {
                return None;
            }
            let (_, bytes) = self.layout.segment(table, segment)?;
            let (before, length) = self.mapped_segment(table, segment - 1)?;
            let bytes = bytes as usize;
            let part = if table == Table::Nodes { Part::Sixteenth } else { Part::Quarter };
            let page = before.wrapping_add(length - sys::guard_bytes());
            sys::map_once(known, self.start(table, segment), (page, bytes, part), sys::map_behind)?;
        }
        Some(origins[last].load(Acquire)).filter(|origin| *origin != 0)
    }

    /// Returns address and size of a mapped segment.
    #[inline(never)]
    fn mapped_segment(&self, table: Table, segment: usize) -> Option<(*mut u8, usize)> {
        let origin = ORIGINS[table as usize][segment].load(Acquire);
        let (_, bytes) = self.layout.segment(table, segment).filter(|_| origin != 0)?;
        Some((origin.wrapping_add(self.start(table, segment)) as *mut u8, bytes as usize))
    }

    /// Returns how far the first entry of a segment is from its origin.
    #[inline(never)]
    fn start(&self, table: Table, segment: usize) -> usize {
        (table.segments().start(segment) * self.layout.entry_bytes(table, segment)) as usize
    }

    /// Returns the address of the first page.
    pub(crate) const fn base(&self) -> *mut u8 {
        self.front
    }

    /// Returns the offset of the table of patches in the file of the area, in bytes.
    pub(crate) const fn patches_offset(&self) -> u64 {
        self.layout.patches
    }

    /// Maps zeros over the area in a forked child, which has inherited only the first page. A hook
    /// that the fork interrupted continues there. With `also_header` the first page is replaced
    /// too, which the child otherwise shares with its parent and the recorder.
    pub(crate) fn replace_in_child(&self, also_header: bool) {
        let kept = if also_header { 0 } else { PAGE as usize };
        sys::replace_by_zeros(self.front.wrapping_add(kept), front_bytes(&self.layout) - kept);
        // A child that attached in a handler of `pthread_atfork` has segments of its own by now.
        if ORIGINS[Table::Slots as usize][0].load(Acquire) != self.front as usize + PAGE as usize {
            return;
        }
        for table in Table::ALL {
            let mapped = (1..Segments::MAX).map_while(|segment| self.mapped_segment(table, segment));
            mapped.for_each(|(at, bytes)| sys::replace_by_zeros(at, bytes));
        }
    }

    /// Unmaps an area, with all segments, in a process in which no thread uses it any more.
    #[cfg(feature = "standalone")]
    pub(crate) fn unmap(&self) {
        for table in Table::ALL {
            for segment in 1..Segments::MAX {
                if let Some((at, bytes)) = self.mapped_segment(table, segment) {
                    sys::unmap(at, bytes);
                }
            }
        }
        let [start, end] = [0, 1].map(|index| SEARCH_TABLES[index].swap(0, Relaxed));
        if start != 0 {
            sys::unmap_at(start as *mut u8, end - start);
        }
        self.give_up();
    }

    /// Unmaps an area that is not used after all.
    pub(crate) fn give_up(&self) {
        ORIGINS.iter().flatten().for_each(|origin| origin.store(0, Relaxed));
        sys::unmap(self.front, front_bytes(&self.layout));
    }
}
