//! The records of a tape. Fields are only added at the end of a record. A reader ignores bytes
//! after the fields that it knows, and skips records of unknown kinds.
//!
//! Times are *ticks* of the clock that the record [`Process`] describes (the CPU's timestamp
//! counter, or nanoseconds). [`Clock`] records relate ticks to wall time. Sites, threads, modules
//! and allocation indexes are numbered from 1, and 0 means none.

mod entry;
mod sums;

pub use entry::Entry;
pub use sums::*;

use super::division::Division;
use super::field::{Added, Field, Text};
use super::mappings::Mappings;
use super::references::{ReferenceBlocks, ReferenceEdges, ReferenceOffsets, ReferenceRoots, References, ReferencesEnd};
use super::residency::Residency;
use super::symbols::Symbols;
use crate::{Cursor, Format, Result, tape_record};

/// The first eight bytes of the file.
pub const FILE_MAGIC: [u8; 8] = *b"HEAPTAPE";
/// Version of the file header that this crate writes and reads.
pub const FILE_VERSION: u32 = 1;

tape_record! {
    /// Kind 1, the first record: the process and the rate of its ticks.
    Process {
        /// Process id at the attach.
        pid: u32,
        /// Process id of the parent at the attach.
        ppid: u32,
        /// User id of the process.
        uid: u32,
        /// How its recording began: the number of an [`Origin`](super::Origin).
        origin: u8,
        /// Ticks per second, 1,000,000,000 if ticks are nanoseconds.
        ticks_per_second: u64,
        /// Tick of the attach: time zero of reports.
        start_tick: u64,
        /// Wall time of the attach in nanoseconds since 1970.
        start_unix_ns: u64,
        /// Size of a memory page in bytes.
        page_size: u32,
        /// Path of the executable.
        exe: Text,
        /// Working directory at the attach.
        cwd: Text,
        /// Arguments of the command line.
        argv: Vec<Text>,
        /// Free text of the user; empty if there is none.
        label: Text,
        /// Version of heaptape that recorded.
        recorder: Text,
        /// Mean bytes between samples; 0 when every event is recorded.
        sample_bytes: u64,
        /// Whether frees have call sites, too.
        free_sites: bool,
    }
}

tape_record! {
    /// Kind 2: an ELF object that is mapped. It is valid for the sites that follow, until
    /// [`ModuleGone`].
    Module {
        /// Number of the module.
        number: u32,
        /// First address of the mapping.
        start: u64,
        /// First address after the mapping.
        end: u64,
        /// Load bias: run-time address minus link-time address, modulo 2^64.
        bias: u64,
        /// Absolute path; a name without `/` is the kernel's vDSO; empty if it is not known.
        path: Text,
        /// Bytes of the build ID note; empty if there is none.
        build_id: Text,
        /// What is known of the file of a module without build ID.
        file: Added<FileId>,
    }
}

tape_record! {
    /// What distinguishes the files that were loaded from one path and have no build ID. A field is
    /// 0 if it is not known; all of them are for a module with a build ID.
    FileId {
        /// Size of the file in bytes.
        bytes: u64,
        /// When its content last changed, in nanoseconds since 1970.
        changed_unix_ns: u64,
        /// The [`head`](super::head) of the file, from the memory of the process.
        head: u32,
        /// How many files had been loaded from the path before, if this one was written while the
        /// program ran, or unmapped before its size and time were known.
        load: u32,
    }
}

impl FileId {
    /// Returns the id as bytes, for keys; no bytes if nothing is known.
    pub fn key(&self) -> Vec<u8> {
        if *self == FileId::default() {
            return Vec::new();
        }
        let FileId { bytes, changed_unix_ns, head, load } = self;
        [&bytes.to_le_bytes()[..], &changed_unix_ns.to_le_bytes(), &head.to_le_bytes(), &load.to_le_bytes()].concat()
    }
}

tape_record! {
    /// Kind 3: a module was unmapped. Sites that follow are not in it.
    ModuleGone {
        /// Number of the unmapped module.
        number: u32,
    }
}

tape_record! {
    /// A call site: a return address, and the chain of its callers.
    Site {
        /// Site number of the caller, which is smaller; 0 for the outermost frame.
        parent: u32,
        /// The return address, which is the address after the call.
        address: u64,
        /// Sum of the `SITE_` bits.
        flags: u8,
    }
}

/// Flag of [`Site`]: the step to the caller was guessed, because the code has no unwind data.
pub const SITE_GUESSED: u8 = 1;
/// Flag of [`Site`]: the stack has further callers and was truncated here, because of the depth
/// limit, or because the stack could not be read.
pub const SITE_TRUNCATED: u8 = 2;
/// Flag of [`Site`]: the address is that of an instruction, not a return address: a signal
/// interrupted the code there, or the frame was made by hand and returns to the start of a
/// function.
pub const SITE_SIGNAL: u8 = 4;

/// Flag of [`Site`], beside [`SITE_TRUNCATED`]: the callers could not be found. With
/// [`SITE_GUESSED`] the code has no unwind data, without it the stack could not be read.
pub const SITE_LOST: u8 = 8;

/// Returns the address of the instruction of a site. It is in the call, since the return address
/// may be in another line, function or module.
pub const fn instruction(address: u64, flags: u8) -> u64 {
    address.wrapping_sub((flags & SITE_SIGNAL == 0) as u64)
}

/// Returns whether the module with this path has no file, as the kernel's vDSO, whose path has no
/// slash. A module with an empty path is not known.
pub fn is_virtual(path: &[u8]) -> bool {
    !path.is_empty() && !path.contains(&b'/')
}

tape_record! {
    /// Kind 4: call sites in order of their numbers, callers first. The same numbers are the
    /// call-site indexes of `profile.mptl`.
    Sites {
        /// Number of the first site.
        first: u32,
        /// The sites, with consecutive numbers.
        sites: Vec<Site>,
    }
}

tape_record! {
    /// Kind 5: a thread was first seen, or its name became known. The later record is valid.
    Thread {
        /// Thread number, as in the field `thread` of MTRC records.
        number: u32,
        /// The kernel's thread id.
        tid: u32,
        /// Name of the thread; empty if it is not known.
        name: Text,
        /// Tick of the first event of the thread.
        first_tick: u64,
    }
}

tape_record! {
    /// A column of a chunk: values for its events, in their order.
    Column {
        /// Content of the column: one of the `COLUMN_` numbers.
        kind: u8,
        /// How the bytes are stored: a number of [`super::Codec`].
        codec: u8,
        /// Number of bytes when unpacked.
        plain_length: u32,
        /// Bytes of the column as stored.
        stored: Text,
    }
}

/// Column with the number of the [`Entry`] of each event, one byte each.
pub const COLUMN_ENTRIES: u8 = 1;
/// Column with the ticks since the event before, as LEB128; of the first event since `first_tick`.
pub const COLUMN_TICKS: u8 = 2;
/// Column with the site number of each `A` and `R`, as LEB128; with [`Process::free_sites`] of each
/// `F`, too.
pub const COLUMN_SITES: u8 = 3;
/// Column with the number of bytes that each `A` and `R` represents, as LEB128. Only sampled
/// recordings have it.
pub const COLUMN_WEIGHTS: u8 = 4;
/// Column with the events that MTRC cannot hold: [`Unmatched`] items one after the other.
pub const COLUMN_UNMATCHED: u8 = 5;
/// Column with the state of each block that an `R` or `F` ends and that an earlier chunk allocated,
/// so that its index is below `first_index`: its site number plus 1, and the bytes that it counted
/// for, as LEB128. Of a block that the process has not allocated itself it has only 0. With this
/// column the live bytes can be followed from the start of any chunk. Chunks have it even if it is
/// empty.
pub const COLUMN_PREVIOUS: u8 = 6;

tape_record! {
    /// An item of [`COLUMN_UNMATCHED`]: a free or reallocation of an address that was not known to
    /// be allocated.
    Unmatched {
        /// Number of events of this chunk before it.
        position: u32,
        /// Address of the block.
        address: u64,
        /// Number of the thread.
        thread: u32,
        /// The number of an [`Entry`].
        entry: u8,
        /// Ticks since the chunk's `first_tick`.
        tick: u64,
    }
}

tape_record! {
    /// Kind 6, the commit record: these bytes of the trace were written before it. Each chunk can
    /// be decoded alone. The first chunk starts at plain offset 0 and includes the header of the
    /// trace. The end mark of the trace is in no chunk.
    Chunk {
        /// Chunk number, from 1.
        number: u32,
        /// How the bytes are stored in the trace file: a number of [`super::Codec`].
        codec: u8,
        /// Offset of the stored bytes in the trace file.
        stored_offset: u64,
        /// Number of stored bytes.
        stored_length: u64,
        /// Offset in the uncompressed trace.
        plain_offset: u64,
        /// Number of bytes in the uncompressed trace.
        plain_length: u64,
        /// CRC-32 of the stored bytes.
        checksum: u32,
        /// Number of its records `A`, `R` and `F`.
        events: u64,
        /// Number of its records `A`. Their allocation indexes are consecutive, from `first_index`.
        allocations: u64,
        /// Allocation index of its first `A`, or of the next one to come.
        first_index: u64,
        /// Tick of the first event.
        first_tick: u64,
        /// Tick of the last event.
        last_tick: u64,
        /// Number of live blocks before the first event.
        live_blocks: u64,
        /// Number of live bytes before the first event.
        live_bytes: u64,
        /// Maximum of the live bytes in the chunk.
        peak_bytes: u64,
        /// Columns with values for the events.
        columns: Vec<Column>,
    }
}

tape_record! {
    /// The accounting of one thread: `emitted = recorded + lost + sampled_out`, plus the events
    /// that are still in its ring.
    Account {
        /// Number of the thread.
        thread: u32,
        /// Number of events that the process counted.
        emitted: u64,
        /// Number of events in the trace and in [`COLUMN_UNMATCHED`].
        recorded: u64,
        /// Number of events that were dropped for want of space.
        lost: u64,
        /// Number of events that sampling skipped.
        sampled_out: u64,
    }
}

tape_record! {
    /// Kind 7: the accounts of all threads after the chunks before this record.
    Accounts {
        /// One account for each thread.
        accounts: Vec<Account>,
    }
}

tape_record! {
    /// Kind 8, a gap: events of a thread that were dropped for want of space.
    Loss {
        /// Number of the thread.
        thread: u32,
        /// Number of dropped events.
        events: u64,
        /// Tick of the last recorded event before the gap.
        from_tick: u64,
        /// Tick of the first recorded event after the gap.
        to_tick: u64,
    }
}

tape_record! {
    /// Kind 9: the three clocks at one point in time.
    Clock {
        /// Tick of the recorder's clock.
        tick: u64,
        /// Wall time in nanoseconds since 1970.
        unix_ns: u64,
        /// Time of `CLOCK_MONOTONIC` in nanoseconds.
        monotonic_ns: u64,
    }
}

tape_record! {
    /// Kind 11, the last record of a complete tape: how the process ended.
    End {
        /// Tick of the end.
        tick: u64,
        /// Wall time of the end in nanoseconds since 1970.
        unix_ns: u64,
        /// One of the `END_` numbers.
        reason: u8,
        /// Exit code or signal number, with [`END_EXITED`] and [`END_SIGNALLED`].
        status: u32,
    }
}

/// The process exited; `status` is its exit code.
pub const END_EXITED: u8 = 1;
/// A signal ended the process; `status` is the number of the signal.
pub const END_SIGNALLED: u8 = 2;
/// The process executed another program.
pub const END_EXEC: u8 = 3;
/// The process is gone, and how it ended is not known.
pub const END_GONE: u8 = 4;
/// The process was still running when the recording ended.
pub const END_RUNNING: u8 = 5;

/// What the text of a [`Note`] says of stacks, after their number.
pub const CUT_STACKS: &str = "frames had no room in the stack table: some stacks lack their innermost functions";
/// The same of events without a stack.
pub const UNREAD_STACKS: &str = "events named a stack that could not be read";

tape_record! {
    /// Kind 12: something that a reader of reports should know, such as a full disk.
    Note {
        /// Tick of the note.
        tick: u64,
        /// Sentence in plain English.
        text: Text,
    }
}

tape_record! {
    /// Kind 13: the process is a forked child. It inherits the live blocks of its parent.
    Inherited {
        /// Name of the parent's folder in the recording.
        parent: Text,
        /// Tick of the fork.
        tick: u64,
        /// Number of live blocks of the parent at the fork.
        blocks: u64,
        /// Bytes of these blocks.
        bytes: u64,
    }
}

tape_record! {
    /// A range of code with its name.
    CodeRange {
        /// First address of the range.
        start: u64,
        /// Number of bytes of code.
        length: u64,
        /// Name of the function, according to the perf map or the vDSO.
        name: Text,
    }
}

tape_record! {
    /// Kind 15: names of code that no file describes. It was made at run time (the names are from
    /// the perf map of the process), or the kernel maps it (the vDSO). Only ranges with sites are
    /// stored. Of overlapping ranges the later one is valid: see
    /// [`crate::perf_map::UnnamedAddresses`].
    Code {
        /// Named ranges of addresses.
        ranges: Vec<CodeRange>,
    }
}

tape_record! {
    /// Kind 17: the identity of the process, and how this segment begins. All segments of a process
    /// have the same host, boot, process id and start, also after an exec.
    Segment {
        /// Name of the host.
        host: Text,
        /// Id of the boot of the host, from `/proc/sys/kernel/random/boot_id`.
        boot: Text,
        /// Start of the process in clock ticks after the boot, as in `/proc/PID/stat`.
        start_ticks: u64,
        /// One of the `SEGMENT_` numbers.
        begins: u8,
        /// Number of blocks at the beginning of the segment that earlier segments allocated.
        carried: u64,
        /// Time from which the live blocks are known, in nanoseconds since 1970; 0 if all are
        /// known. Recorders wrote none before they had this field.
        live_since_unix_ns: Added<u64>,
    }
}

/// The segment is the first one of its program.
pub const SEGMENT_FIRST: u8 = 1;
/// The segment begins with all blocks that were live, as [`Entry::Carried`].
pub const SEGMENT_CARRIED: u8 = 2;
/// The segment continues without the blocks that were live, because the recorder before was killed.
pub const SEGMENT_UNKNOWN: u8 = 3;
/// The segment begins without live blocks: the process was dormant before, or sampled otherwise.
pub const SEGMENT_ANEW: u8 = 4;
/// The segment has sums without events, which include those of the segment before.
pub const SEGMENT_SUMS: u8 = 5;

tape_record! {
    /// Kind 19: a mark that the program set.
    Mark {
        /// Tick of it: the events before it have an earlier one.
        tick: u64,
        /// Number of the thread that set it.
        thread: u32,
        /// Name of the mark.
        text: Text,
    }
}

/// First address of the sites that are no code: the labels of a thread, and the heaps that a
/// program names. [`Code`] records have their names. No address of code is as large and below the
/// kernel's.
pub const ANNOTATION_START: u64 = 0x0100_0000_0000_0000;
/// First address after [`ANNOTATION_START`] and all such sites.
pub const ANNOTATION_END: u64 = 0x0200_0000_0000_0000;
/// Prefix of the name of a site that is a label.
pub const LABEL_PREFIX: &str = "label ";
/// Prefix of the name of a site that is a heap.
pub const HEAP_PREFIX: &str = "heap ";

/// Returns whether a site of this address is a label or a heap.
pub const fn is_annotation(address: u64) -> bool {
    address >= ANNOTATION_START && address < ANNOTATION_END
}

macro_rules! records {
    ($($number:literal $name:ident)*) => {
        /// A record of any kind.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum Record { $($name($name)),* }

        impl Record {
            /// Number and name of each kind of record.
            pub const KINDS: &[(u16, &str)] = &[$(($number, stringify!($name))),*];

            /// Appends the payload and returns the kind.
            pub fn put(&self, out: &mut Vec<u8>) -> u16 {
                match self { $(Record::$name(record) => { record.put(out); $number })* }
            }

            /// Reads a payload at `offset` in its file. Returns `None` for an unknown kind.
            ///
            /// # Errors
            /// Returns an error if a field is truncated or not valid.
            pub fn get(kind: u16, payload: &[u8], offset: u64) -> Result<Option<Record>> {
                let mut cursor = Cursor::at_offset(Format::Tape, payload, offset);
                Ok(Some(match kind {
                    $($number => Record::$name(Field::get(&mut cursor, stringify!($name))?),)*
                    _ => return Ok(None),
                }))
            }
        }
    };
}

records! {
    1 Process 2 Module 3 ModuleGone 4 Sites 5 Thread 6 Chunk 7 Accounts 8 Loss 9 Clock 10 Summary 11 End 12 Note 13 Inherited
    14 History 15 Code 16 Symbols 17 Segment 18 HistoryErrors 19 Mark 20 Residency 21 Mappings
    22 Division 23 References 24 ReferenceBlocks 25 ReferenceEdges 26 ReferenceRoots 27 ReferencesEnd 28 ReferenceOffsets
}
