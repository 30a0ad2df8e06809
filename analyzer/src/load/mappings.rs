//! The memory that a program maps and unmaps, as a tape has it.

use super::{Events, Process};
use heaptape_formats::recording::TAPE;
use heaptape_formats::regular;
use heaptape_formats::tape::field::Text;
use heaptape_formats::tape::{
    MAPPING_EVENT_ADVISE, MAPPING_EVENT_MAP, MAPPING_EVENT_MOVED, MAPPING_EVENT_PROTECT, MAPPING_EVENT_UNMAP,
    MAPPING_FLAG_CARRIED, MappedBy, MappedRanges, MappingEvent, Mappings, Record, Source, Step, Stream,
};
use serde::Serialize;

/// Maximum number of names of mapped files.
const MAX_NAMES: usize = 1 << 16;

/// Sums of the calls by which a program mapped memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MappingSums {
    /// Number of calls that mapped memory.
    pub calls: u64,
    /// Bytes of whole pages that they mapped. Reserved memory counts when it becomes usable.
    pub bytes: u64,
    /// Number of ranges that are mapped at the end.
    pub mapped_ranges: u64,
    /// Bytes in these ranges, without reserved memory and without those of its parent.
    pub mapped_bytes: u64,
    /// Bytes that are mapped at the end and that its parent had mapped before the fork, without
    /// reserved memory.
    pub inherited_bytes: u64,
    /// Bytes in these ranges that nothing may access (`PROT_NONE`).
    pub reserved_bytes: u64,
    /// Most bytes that were mapped at any time, without reserved memory.
    pub peak_bytes: u64,
    /// Number of calls by which the program returned the memory of ranges that stay mapped.
    pub returned_calls: u64,
    /// Bytes in these ranges, whether or not they were in memory.
    pub returned_bytes: u64,
    /// Number of calls by which an allocator mapped memory, which are not recorded one by one.
    pub allocator_calls: u64,
    /// Bytes that these calls mapped.
    pub allocator_bytes: u64,
    /// Number of calls by which an allocator returned memory that stays mapped.
    pub allocator_returned_calls: u64,
    /// Bytes in the ranges of these calls.
    pub allocator_returned_bytes: u64,
}

#[derive(Clone, Debug, Default)]
pub struct TapeMappings {
    /// Offsets of the records in the tape.
    pub offsets: Vec<u64>,
    /// Names of mapped files; the first has number 1.
    pub names: Vec<Text>,
    pub ranges: MappedRanges,
    pub sums: MappingSums,
}

impl TapeMappings {
    pub(super) fn add(&mut self, offset: u64, record: &Mappings) {
        self.offsets.push(offset);
        for (index, name) in (record.first_name.max(1) as usize - 1..MAX_NAMES).zip(&record.names) {
            if self.names.len() <= index {
                self.names.resize(index + 1, Text::default());
            }
            self.names[index] = name.clone();
        }
        record.events.iter().for_each(|event| self.apply(event));
        let sums = &mut self.sums;
        sums.mapped_ranges = self.ranges.iter().filter(|range| !range.by.is_inherited()).count() as u64;
        sums.inherited_bytes = self.ranges.inherited_bytes();
        (sums.mapped_bytes, sums.reserved_bytes) = (self.ranges.used_bytes(), self.ranges.reserved_bytes());
        sums.allocator_calls = sums.allocator_calls.max(record.allocator_calls);
        sums.allocator_bytes = sums.allocator_bytes.max(record.allocator_bytes);
        sums.allocator_returned_calls = sums.allocator_returned_calls.max(record.allocator_returned_calls.0);
        sums.allocator_returned_bytes = sums.allocator_returned_bytes.max(record.allocator_returned_bytes.0);
    }

    fn apply(&mut self, event: &MappingEvent) {
        let used_before = self.ranges.used_bytes();
        self.ranges.apply(event);
        let (sums, used) = (&mut self.sums, self.ranges.used_bytes());
        let reserves = || MappedBy { flags: event.flags, ..MappedBy::default() }.is_reserved();
        let (calls, bytes) = match event.kind {
            MAPPING_EVENT_MAP if event.flags & MAPPING_FLAG_CARRIED != 0 => (0, 0),
            MAPPING_EVENT_MAP if reserves() => (1, 0),
            MAPPING_EVENT_MAP | MAPPING_EVENT_MOVED => (1, event.size),
            MAPPING_EVENT_PROTECT => (0, used.saturating_sub(used_before)),
            _ => (0, 0),
        };
        (sums.calls, sums.bytes) = (sums.calls + calls, sums.bytes.saturating_add(bytes));
        if event.kind == MAPPING_EVENT_ADVISE {
            sums.returned_calls += 1;
            sums.returned_bytes = sums.returned_bytes.saturating_add(event.size);
        }
        sums.peak_bytes = sums.peak_bytes.max(used);
    }

    /// Returns the sums of several segments of a process, oldest first.
    pub(super) fn joined<'a>(segments: impl Iterator<Item = &'a TapeMappings>) -> MappingSums {
        segments.fold(MappingSums::default(), |before, segment| MappingSums {
            calls: before.calls.saturating_add(segment.sums.calls),
            bytes: before.bytes.saturating_add(segment.sums.bytes),
            returned_calls: before.returned_calls.saturating_add(segment.sums.returned_calls),
            returned_bytes: before.returned_bytes.saturating_add(segment.sums.returned_bytes),
            peak_bytes: before.peak_bytes.max(segment.sums.peak_bytes),
            ..segment.sums
        })
    }

    /// Returns whether a call is recorded or counted.
    pub fn is_known(&self) -> bool {
        !self.offsets.is_empty()
    }
}

/// Reads the record at an offset of a tape.
fn read<S: Source + ?Sized>(tape: &S, offset: u64) -> Option<Mappings> {
    match Stream::at(tape, offset).step() {
        Ok(Step::Record(_, Record::Mappings(record))) => Some(record),
        _ => None,
    }
}

impl Process {
    /// Returns what was mapped after all calls up to a tick.
    pub(crate) fn mapped_at(&self, tick: u64) -> MappedRanges {
        let mut ranges = MappedRanges::default();
        if !self.tape.mappings.is_known() {
            return ranges;
        }
        if tick >= self.tape.last_tick {
            return self.tape.mappings.ranges.clone();
        }
        self.mapping_events(&mut |event| {
            if event.tick <= tick {
                ranges.apply(event);
            }
        });
        ranges
    }

    /// Calls `each` for the events of the mappings of this process, in the order of the tape. Each
    /// further segment begins with an event that unmaps all, and those of what was mapped.
    pub fn mapping_events(&self, each: &mut dyn FnMut(&MappingEvent)) {
        let offsets = self.tape.mappings.offsets.iter();
        let mut pass = |record: Option<Mappings>| record.iter().flat_map(|record| &record.events).for_each(&mut *each);
        match &self.events {
            Events::Taped { tape, .. } => offsets.for_each(|offset| pass(read(tape, *offset))),
            Events::Sums => {
                if let Ok(tape) = regular::open(&self.path.join(TAPE)) {
                    offsets.for_each(|offset| pass(read(&tape, *offset)));
                }
            }
            Events::Joined(joined) => {
                let mut names_before = 0;
                for (number, segment) in joined.segments.iter().enumerate() {
                    if number > 0 {
                        each(&MappingEvent { kind: MAPPING_EVENT_UNMAP, size: u64::MAX, ..MappingEvent::default() });
                    }
                    segment.process.mapping_events(&mut |event| {
                        let name = if event.name == 0 { 0 } else { event.name.saturating_add(names_before) };
                        each(&MappingEvent { site: segment.site(event.site), name, ..event.clone() });
                    });
                    names_before += segment.process.tape.mappings.names.len() as u32;
                }
            }
            _ => {}
        }
    }
}
