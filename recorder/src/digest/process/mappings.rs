//! The memory that the program maps and unmaps. The records of a batch become one record of the
//! tape, and what is mapped is known at any time, for files without events and for later segments.

use super::ProcessRecording;
use crate::heap::live::Call;
use crate::os::aside::{self, Owner};
use crate::os::clock;
use crate::os::processor::page_bytes;
use crate::target::maps::{self, NamedRange, named_ranges};
use formats::tape::field::{Added, Text};
use formats::tape::{
    self, MAPPING_EVENT_ADVISE, MAPPING_EVENT_FAILED, MAPPING_EVENT_MAP, MAPPING_EVENT_MOVE, MAPPING_EVENT_MOVED,
    MAPPING_EVENT_PROTECT, MAPPING_EVENT_UNMAP, MAPPING_FLAG_ANONYMOUS, MAPPING_FLAG_BREAK, MAPPING_FLAG_CARRIED,
    MAPPING_FLAG_INHERITED, MAPPING_FLAG_SEGMENT, MappedRanges, MappingEvent, Record as TapeRecord, instruction,
};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use wire::{Op, mapping};

/// Maximum number of names of mapped files.
const MAX_NAMES: usize = 4096;
/// Maximum number of events that a parent may be read beyond a fork, so that its child does not
/// inherit what came later.
const MAX_RECENT: usize = 4096;
/// The mappings of a process are read again after this many times the CPU time that it took.
const SHARE: u32 = 100;
/// Minimum time between two such reads.
const MIN_INTERVAL: Duration = Duration::from_millis(10);

/// Calls and bytes by which allocators mapped memory, and by which they returned it.
type Growth = [u64; 4];

/// What a forked child has mapped at its start.
#[derive(Debug, Default)]
pub struct Inherited {
    ranges: MappedRanges,
    names: Vec<Text>,
}

#[derive(Debug, Default)]
pub(super) struct Mappings {
    ranges: MappedRanges,
    /// What was mapped before the events in `recent`.
    before: MappedRanges,
    /// The last events that were applied: those after a fork are not the child's.
    recent: VecDeque<MappingEvent>,
    /// Events that are not in the tape yet.
    events: Vec<MappingEvent>,
    names: Vec<Text>,
    /// Number of each name, from 1.
    numbers: FxHashMap<Vec<u8>, u32>,
    /// Number of names in the tape.
    written_names: usize,
    /// When the names of mapped files may be read again; `None` before the first time.
    next_read: Option<Instant>,
    /// The allocator's calls and bytes that are in the tape.
    written_growth: Growth,
    /// Whether an allocator maps memory by the call sites that are known.
    is_growth: FxHashMap<u32, bool>,
    /// Calls and bytes of these call sites.
    growth: Growth,
}

/// Rounds up to whole pages.
fn pages(bytes: u64) -> u64 {
    let page = page_bytes();
    bytes.saturating_add(page - 1) & !(page - 1)
}

/// Returns whether a path is that of a library which is an allocator.
fn is_allocator(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let names = ["libjemalloc", "libmimalloc", "libsnmalloc", "libtcmalloc"];
    names.iter().any(|known| name.starts_with(known.as_bytes()))
}

/// Returns whether a path is that of a libc, whose code calls what a program passes to it.
fn is_libc(path: &[u8]) -> bool {
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    ["libc.", "libc-", "ld-"].iter().any(|known| name.starts_with(known.as_bytes()))
}

impl Mappings {
    fn count(&mut self, call: Call) {
        let first = match call.op {
            Op::MAP | Op::BREAK => 0,
            Op::ADVISED => 2,
            _ => return,
        };
        self.growth[first] += 1;
        self.growth[first + 1] = self.growth[first + 1].saturating_add(pages(call.size));
    }

    /// Adds the event of a record, whose operation, thread, site, address, size and tick the call
    /// has.
    pub(super) fn read(&mut self, call: Call) {
        let Call { op, thread, site, address, size, tick, .. } = call;
        let bits = (address & mapping::BITS) as u32;
        let (kind, flags) = match op {
            Op::MAP => (MAPPING_EVENT_MAP, bits),
            Op::MAP_SEGMENT => (MAPPING_EVENT_MAP, MAPPING_FLAG_SEGMENT),
            Op::BREAK => (MAPPING_EVENT_MAP, MAPPING_FLAG_BREAK | MAPPING_FLAG_ANONYMOUS),
            Op::UNMAP => (MAPPING_EVENT_UNMAP, 0),
            Op::MOVE_BEGIN => (MAPPING_EVENT_MOVE, 0),
            Op::MOVED => (MAPPING_EVENT_MOVED, bits),
            Op::ADVISED => (MAPPING_EVENT_ADVISE, bits),
            Op::PROTECTED => (MAPPING_EVENT_PROTECT, bits),
            _ => (MAPPING_EVENT_FAILED, 0),
        };
        let (address, size) = (address & !mapping::BITS, pages(size));
        self.events.push(MappingEvent { tick, thread: thread.0, kind, address, size, site, flags, name: 0 });
    }

    /// Returns the number of a name; 0 if there are too many.
    fn number(&mut self, name: &str) -> u32 {
        if let Some(number) = self.numbers.get(name.as_bytes()) {
            return *number;
        }
        if self.names.len() >= MAX_NAMES {
            return 0;
        }
        self.names.push(name.into());
        let number = self.names.len() as u32;
        self.numbers.insert(name.as_bytes().to_vec(), number);
        number
    }

    /// Sets the names and the lengths that the process does not send, and applies the events.
    fn settle(&mut self, owner: Owner) {
        let is_named =
            |event: &MappingEvent| event.kind == MAPPING_EVENT_MAP && event.flags & MAPPING_FLAG_ANONYMOUS == 0;
        let may_read = self.next_read.is_none_or(|next| next <= Instant::now());
        let text = (may_read && self.events.iter().any(is_named)).then(|| {
            let read = move || {
                let begin = clock::thread_time();
                (maps::read(owner.pid), clock::thread_time().saturating_sub(begin))
            };
            let (text, took) = aside::call(owner, read).unwrap_or_default();
            self.next_read = Some(Instant::now() + (took * SHARE).max(MIN_INTERVAL));
            String::from_utf8_lossy(&text).into_owned()
        });
        let known = text.as_deref().map_or_else(Vec::new, named_ranges);
        let mut events = std::mem::take(&mut self.events);
        events.retain_mut(|event| {
            if !self.ranges.is_of_interest(event) {
                return false;
            }
            if is_named(event) {
                let index = known.partition_point(|range| range.end <= event.address);
                if let Some(NamedRange { end, name, .. }) =
                    known.get(index).filter(|range| range.start <= event.address)
                {
                    event.name = if name.is_empty() { 0 } else { self.number(name) };
                    if event.flags & MAPPING_FLAG_SEGMENT != 0 {
                        event.size = end - event.address;
                    }
                }
            }
            if event.kind == MAPPING_EVENT_UNMAP && event.size == 0 {
                // The arguments of shmdt do not include the length.
                let segment = self.ranges.at(event.address).filter(|range| range.by.flags & MAPPING_FLAG_SEGMENT != 0);
                event.size = segment.map_or(0, |range| range.bytes());
            }
            self.apply(event);
            true
        });
        self.events = events;
    }

    fn apply(&mut self, event: &MappingEvent) {
        self.ranges.apply(event);
        if event.kind == MAPPING_EVENT_ADVISE {
            return;
        }
        self.recent.push_back(event.clone());
        if self.recent.len() > MAX_RECENT
            && let Some(oldest) = self.recent.pop_front()
        {
            self.before.apply(&oldest);
        }
    }

    /// Returns what was mapped at a tick (0: now), with the names of files.
    fn at(&self, tick: u64) -> Inherited {
        let mut ranges = self.before.clone();
        self.recent.iter().filter(|event| tick == 0 || event.tick <= tick).for_each(|event| ranges.apply(event));
        Inherited { ranges, names: self.names.clone() }
    }

    /// Adds what the parent had mapped before the fork. Its call sites have numbers of its own.
    fn inherit(&mut self, Inherited { ranges, names }: &Inherited) {
        for range in ranges.iter() {
            let name = (range.by.name as usize).checked_sub(1).and_then(|index| names.get(index));
            let flags = range.by.flags | MAPPING_FLAG_CARRIED | MAPPING_FLAG_INHERITED;
            let event = MappingEvent { thread: 0, site: 0, flags, ..range.event() };
            self.carry(event, &name.map_or_else(Default::default, Text::lossy));
        }
    }

    pub(super) const fn ranges(&self) -> &MappedRanges {
        &self.ranges
    }

    /// Adds a range that was mapped under the last daemon, with the name of its file.
    pub(super) fn carry(&mut self, event: MappingEvent, name: &str) {
        let name = if name.is_empty() { 0 } else { self.number(name) };
        let event = MappingEvent { name, ..event };
        self.apply(&event);
        self.events.push(event);
    }

    /// Returns a record with events, and with the names that the tape does not have.
    fn record(&mut self, events: Vec<MappingEvent>, growth: Growth) -> TapeRecord {
        let first_name = self.written_names as u32 + 1;
        let names = self.names[self.written_names..].to_vec();
        self.written_names = self.names.len();
        self.written_growth = growth;
        let [allocator_calls, allocator_bytes, returned_calls, returned_bytes] = growth;
        TapeRecord::Mappings(tape::Mappings {
            first_name,
            names,
            events,
            allocator_calls,
            allocator_bytes,
            allocator_returned_calls: Added(returned_calls),
            allocator_returned_bytes: Added(returned_bytes),
        })
    }

    /// Returns a record with all that is mapped, for a file that has no record of it.
    fn whole(&mut self, growth: Growth) -> Option<TapeRecord> {
        self.written_names = 0;
        let carried = |event: MappingEvent| MappingEvent { flags: event.flags | MAPPING_FLAG_CARRIED, ..event };
        let events: Vec<_> = self.ranges.iter().map(|range| carried(range.event())).collect();
        (!events.is_empty() || growth != [0; 4]).then(|| self.record(events, growth))
    }
}

impl ProcessRecording {
    /// Returns how often allocators have mapped and returned memory, and how many bytes.
    fn allocator_growth(&self) -> Growth {
        let counted = self.session.mapping.header().allocator_mapped.each_ref().map(|count| count.load(Relaxed));
        std::array::from_fn(|index| counted[index].saturating_add(self.mappings.growth[index]))
    }

    /// Adds a call that maps or unmaps memory. Those of allocators outside of any request are
    /// counted only: in their constructors, at the end of a thread, and in threads of their own.
    /// Those inside of a request do not come here.
    pub(super) fn map(&mut self, call: Call) {
        let is_growth = match self.mappings.is_growth.get(&call.site) {
            Some(known) => *known,
            None => {
                let is_growth = self.is_growth(call.site);
                self.mappings.is_growth.insert(call.site, is_growth);
                is_growth
            }
        };
        if is_growth { self.mappings.count(call) } else { self.mappings.read(call) }
    }

    /// Returns whether an allocator maps memory here: the caller is in the library whose `malloc`
    /// is called or in another library that is an allocator, or the stack has a function of an
    /// allocator inside the program.
    fn is_growth(&self, site: u32) -> bool {
        let frames = self.stacks.frames(site);
        let Some((_, caller)) = frames.first() else { return false };
        let next_malloc = self.session.mapping.header().next_malloc.load(Relaxed);
        let module = self.stacks.module_at(instruction(caller.address, caller.flags));
        let is_library = module.is_some_and(|module| {
            let is_next = (module.start..module.end).contains(&next_malloc);
            is_next && !is_libc(&module.path.0) || is_allocator(&module.path.0)
        });
        is_library || frames.iter().any(|(_, site)| self.session.hooks.is_growth(instruction(site.address, site.flags)))
    }

    /// Adds the events of the batch to the tape.
    pub(super) fn write_mappings(&mut self) {
        if self.mappings.events.is_empty() {
            return;
        }
        self.mappings.settle(self.session.owner());
        self.push_mappings();
    }

    /// Returns what the program has mapped itself; `None` if not all of that was seen.
    pub(super) fn mapped_by_program(&mut self) -> Option<Vec<(u64, u64)>> {
        let is_seen = self.session.mapping.header().record_mappings.load(Relaxed) != 0;
        (is_seen && self.session.hooks.unseen_mappings().is_empty()).then_some(())?;
        self.write_mappings();
        Some(self.mappings.ranges.iter().map(|range| (range.start, range.end)).collect())
    }

    /// Returns what this process had mapped when it forked at `tick` (0: now).
    pub fn mapped_at(&self, tick: u64) -> Inherited {
        self.mappings.at(tick)
    }

    /// Adds what the parent of this forked child had mapped.
    pub(crate) fn inherit_mappings(&mut self, inherited: &Inherited) {
        self.mappings.inherit(inherited);
        self.push_mappings();
    }

    /// Adds the events that are not in the tape yet, and applied.
    pub(super) fn push_mappings(&mut self) {
        let (events, growth) = (std::mem::take(&mut self.mappings.events), self.allocator_growth());
        if self.output.has_events() && !events.is_empty() {
            let record = self.mappings.record(events, growth);
            self.output.push(record);
            self.schedule.chunk_has_events();
        }
    }

    /// Adds what the allocator has mapped since the last record, at the end of a segment.
    pub(super) fn write_growth(&mut self) {
        let growth = self.allocator_growth();
        if self.output.has_events() && growth != self.mappings.written_growth {
            let record = self.mappings.record(Vec::new(), growth);
            self.output.push(record);
        }
    }

    /// Returns a record with all that is mapped, if anything is.
    pub(super) fn mapped_now(&mut self) -> Option<TapeRecord> {
        self.mappings.whole(self.allocator_growth())
    }

    /// Starts a segment with all that is mapped, or with nothing if calls before it were not seen.
    pub(super) fn carry_mappings(&mut self, is_known: bool) {
        if !is_known {
            let growth = self.mappings.growth;
            self.mappings = Mappings { growth, ..Mappings::default() };
        }
        if self.output.has_events()
            && let Some(record) = self.mapped_now()
        {
            self.output.push(record);
        }
    }

    /// Returns the bytes that the program has mapped itself and may use, and those that it has only
    /// reserved.
    pub(super) const fn mapped_bytes(&self) -> [u64; 2] {
        let ranges = &self.mappings.ranges;
        [ranges.used_bytes().saturating_add(ranges.inherited_bytes()), ranges.reserved_bytes()]
    }

    /// Lets the library record mappings, unless the process is not recorded.
    pub(super) fn enable_mappings(&self) {
        let calls = self.session.options.mode.mapping_calls();
        self.session.mapping.header().record_mappings.store(calls, Relaxed);
    }
}
