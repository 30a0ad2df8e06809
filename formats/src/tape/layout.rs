//! The records of a tape. Fields are only added at the end of a record. A reader ignores bytes
//! after the fields that it knows, and skips records of unknown kinds.
//!
//! Times are *ticks* of the clock that the record [`Process`] describes (the CPU's timestamp
//! counter, or nanoseconds). [`Clock`] records relate ticks to wall time. Sites, threads, modules
//! and allocation indexes are numbered from 1, and 0 means none.

use super::field::{Field, Text};
use super::symbols::Symbols;
use crate::{Cursor, Format, Result, tape_record};

/// The first eight bytes of the file.
pub const FILE_MAGIC: [u8; 8] = *b"HEAPTAPE";
/// Version 1: the first.
pub const FILE_VERSION: u32 = 1;

tape_record! {
    /// Kind 1, the first record: the process and the rate of its ticks.
    Process {
        /// ID of the process.
        pid: u32,
        /// ID of the parent process at attach.
        ppid: u32,
        /// ID of the user.
        uid: u32,
        /// How its recording began: the number of an [`Origin`](super::Origin).
        origin: u8,
        /// Ticks per second, 1,000,000,000 if ticks are nanoseconds.
        ticks_per_second: u64,
        /// Tick of the attach: time zero of reports.
        start_tick: u64,
        /// Wall clock at the attach, nanoseconds since 1970.
        start_unix_ns: u64,
        /// Bytes of a page.
        page_size: u32,
        /// Path of the executable.
        exe: Text,
        /// Working directory.
        cwd: Text,
        /// The command line, a text an argument.
        argv: Vec<Text>,
        /// Free text given by the user.
        label: Text,
        /// Version of heaptape that recorded.
        recorder: Text,
        /// Mean bytes between samples; 0 when every event is recorded.
        sample_bytes: u64,
        /// Whether frees carry sites too.
        free_sites: bool,
    }
}

tape_record! {
    /// Kind 2: an ELF object that is mapped. It is valid for the sites that follow, until
    /// [`ModuleGone`].
    Module {
        /// Module number.
        number: u32,
        /// First address of its mapping.
        start: u64,
        /// First address after it.
        end: u64,
        /// Load bias: run-time address minus link-time address (modulo 2^64).
        bias: u64,
        /// Path as the loader knows it, made absolute.
        path: Text,
        /// The build-id note's bytes; empty when it has none.
        build_id: Text,
    }
}

tape_record! {
    /// Kind 3: a module was unmapped; its addresses mean something else in sites that follow.
    ModuleGone {
        /// Module number.
        number: u32,
    }
}

tape_record! {
    /// One call site: a return address and the whole chain of callers.
    Site {
        /// The caller's site number, smaller than this one's; 0 for the outermost frame.
        parent: u32,
        /// The return address (one past the call).
        address: u64,
        /// Sum of the `SITE_` bits.
        flags: u8,
    }
}

/// Flag of [`Site`]: the step to the caller was guessed (code without unwind data).
pub const SITE_GUESSED: u8 = 1;
/// Flag of [`Site`]: the stack has further callers but was truncated here, because of the depth
/// limit, or because the stack was unknown or unreadable.
pub const SITE_TRUNCATED: u8 = 2;
/// Flag of [`Site`]: the address was interrupted by a signal, so it is the address of an
/// instruction, not of a return.
pub const SITE_SIGNAL: u8 = 4;

/// The instruction that a site's address and flags stand for: the call, not what follows it, which
/// may be another line, function or module.
pub const fn instruction(address: u64, flags: u8) -> u64 {
    address.wrapping_sub((flags & SITE_SIGNAL == 0) as u64)
}

/// Whether a module of this path is no file: the loader knows the kernel's own, the vDSO, by a bare
/// name. One without a name is not known.
pub fn is_virtual(path: &[u8]) -> bool {
    !path.is_empty() && !path.contains(&b'/')
}

tape_record! {
    /// Kind 4: call sites in order of their numbers, callers first. The same numbers are the
    /// call-site indexes of `profile.mptl`.
    Sites {
        /// Number of the first.
        first: u32,
        /// The sites.
        sites: Vec<Site>,
    }
}

tape_record! {
    /// Kind 5: a thread was first seen, or its name became known (the later record holds).
    Thread {
        /// Thread number, the `thread` field of MTRC records.
        number: u32,
        /// Kernel's thread id.
        tid: u32,
        /// Its name; empty when not known.
        name: Text,
        /// Tick of its first event.
        first_tick: u64,
    }
}

tape_record! {
    /// A column of a chunk: values for its events, one after another, stored by a codec.
    Column {
        /// Which: one of the `COLUMN_` numbers.
        kind: u8,
        /// A [`super::Codec`] number.
        codec: u8,
        /// Bytes when unpacked.
        plain_length: u32,
        /// The stored bytes.
        stored: Text,
    }
}

/// For each event of the chunk its [`Entry`] number, a byte.
pub const COLUMN_ENTRIES: u8 = 1;
/// For each event the ticks since the event before it (the first: since `first_tick`), LEB128.
pub const COLUMN_TICKS: u8 = 2;
/// For each `A` and `R` (each `F` too when [`Process::free_sites`]) its site number, LEB128.
pub const COLUMN_SITES: u8 = 3;
/// For each `A` and `R` the number of bytes that it represents, LEB128. Only if sampled.
pub const COLUMN_WEIGHTS: u8 = 4;
/// Events that MTRC cannot hold: [`Unmatched`] after [`Unmatched`].
pub const COLUMN_UNMATCHED: u8 = 5;
/// For each `R` and `F` of a block that an earlier chunk allocated (its index is below
/// `first_index`) what the block was: its site number + 1 and the bytes that it counted for,
/// LEB128; 0 alone for a block that the process has not allocated itself. With it the live bytes
/// can be followed from the start of any chunk. A chunk that has it has it also when it is empty.
pub const COLUMN_PREVIOUS: u8 = 6;

tape_record! {
    /// An item of [`COLUMN_UNMATCHED`]: a free or resize of an address that was not known to be
    /// allocated.
    Unmatched {
        /// Events of this chunk before it.
        position: u32,
        /// The address.
        address: u64,
        /// Thread number.
        thread: u32,
        /// An [`Entry`] number.
        entry: u8,
        /// Ticks since the chunk's `first_tick`.
        tick: u64,
    }
}

tape_record! {
    /// Kind 6, the commit: the bytes of `trace.mtrc` named here exist. Each chunk of the trace
    /// starts with empty name caches and can be decoded alone. The first chunk starts at plain
    /// offset 0 and includes the file's header; the end magic belongs to no chunk.
    Chunk {
        /// Chunk number from 1.
        number: u32,
        /// A [`super::Codec`] number: how the bytes are stored in the trace file.
        codec: u8,
        /// Offset of the stored bytes in the trace file.
        stored_offset: u64,
        /// Their length.
        stored_length: u64,
        /// Offset in the plain MTRC.
        plain_offset: u64,
        /// Length in the plain MTRC.
        plain_length: u64,
        /// CRC-32 of the stored bytes.
        checksum: u32,
        /// `A`, `R` and `F` records in it.
        events: u64,
        /// `A` records in it; their allocation indexes are `first_index`, `first_index + 1`, ….
        allocations: u64,
        /// Allocation index of its first `A` (or of the next one to come).
        first_index: u64,
        /// Tick of the first event.
        first_tick: u64,
        /// Tick of the last event.
        last_tick: u64,
        /// Live blocks before the first event.
        live_blocks: u64,
        /// Live bytes before the first event.
        live_bytes: u64,
        /// The most live bytes at any moment in it.
        peak_bytes: u64,
        /// The columns.
        columns: Vec<Column>,
    }
}

tape_record! {
    /// The ledger of one thread: `emitted = recorded + lost + sampled_out + in the ring`.
    Account {
        /// Thread number.
        thread: u32,
        /// Events that the traced process counted.
        emitted: u64,
        /// Events that are in the trace or in [`COLUMN_UNMATCHED`].
        recorded: u64,
        /// Events that found no room.
        lost: u64,
        /// Events passed over by sampling.
        sampled_out: u64,
    }
}

tape_record! {
    /// Kind 7: the accounts of all threads after the chunks before this record.
    Accounts {
        /// One account a thread.
        accounts: Vec<Account>,
    }
}

tape_record! {
    /// Kind 8: a gap: events of a thread that found no room in its ring.
    Loss {
        /// Thread number.
        thread: u32,
        /// How many events.
        events: u64,
        /// Tick of the last event recorded before it.
        from_tick: u64,
        /// Tick of the first recorded after it.
        to_tick: u64,
    }
}

tape_record! {
    /// Kind 9: an anchor of ticks to wall time.
    Clock {
        /// The tick.
        tick: u64,
        /// Nanoseconds since 1970.
        unix_ns: u64,
        /// Nanoseconds of the monotonic clock.
        monotonic_ns: u64,
    }
}

tape_record! {
    /// Totals of a process, or of one chunk of it.
    Totals {
        /// Allocations, resizes from a null pointer among them.
        allocs: u64,
        /// Resizes, moved or not.
        resizes: u64,
        /// Frees, resizes to nothing among them.
        frees: u64,
        /// Requested bytes of allocations and new bytes of resizes.
        bytes_allocated: u64,
        /// Own blocks live now.
        live_blocks: u64,
        /// Their bytes.
        live_bytes: u64,
        /// The most live bytes at any moment.
        peak_bytes: u64,
        /// The most live blocks at any moment.
        peak_blocks: u64,
        /// Tick of `peak_bytes`.
        peak_tick: u64,
        /// Frees and resizes of unknown addresses.
        unknown_frees: u64,
        /// Blocks got from the parent by fork and not freed.
        inherited_blocks: u64,
        /// Their bytes.
        inherited_bytes: u64,
        /// Frees that were not seen, known because their address was allocated again.
        implied_frees: u64,
    }
}

tape_record! {
    /// Sums of one call site (of the whole stack that it ends).
    SiteSums {
        /// Site number.
        site: u32,
        /// Allocations and resizes here.
        allocs: u64,
        /// Their bytes.
        bytes: u64,
        /// Of these, freed or resized away.
        frees: u64,
        /// Their bytes.
        freed_bytes: u64,
        /// Blocks live at the moment of [`Totals::peak_bytes`].
        peak_blocks: u64,
        /// Their bytes.
        peak_bytes: u64,
    }
}

tape_record! {
    /// Kind 10: totals and sums after the chunks before it, so that a report needs no pass over the
    /// events, and one about a part of the run none over what came before it.
    Summary {
        /// Totals of the process.
        totals: Totals,
        /// A row for each site with allocations.
        sites: Vec<SiteSums>,
    }
}

tape_record! {
    /// Kind 11, the last record of a whole tape.
    End {
        /// Tick of the end.
        tick: u64,
        /// Nanoseconds since 1970.
        unix_ns: u64,
        /// One of the `END_` numbers.
        reason: u8,
        /// Exit code or signal number, with [`END_EXITED`] and [`END_SIGNALLED`].
        status: u32,
    }
}

/// The process exited; `status` is its code.
pub const END_EXITED: u8 = 1;
/// A signal ended it; `status` is its number.
pub const END_SIGNALLED: u8 = 2;
/// The process went on with another program.
pub const END_EXEC: u8 = 3;
/// The process is gone; how is not known.
pub const END_GONE: u8 = 4;
/// The process was still running when the recording ended.
pub const END_RUNNING: u8 = 5;

tape_record! {
    /// Kind 12: something that a reader of reports should know (disk full for a while, clock jump,
    /// …).
    Note {
        /// Tick of it.
        tick: u64,
        /// The text.
        text: Text,
    }
}

tape_record! {
    /// Kind 13: the process is a fork child. It inherits the live blocks of its parent.
    Inherited {
        /// Folder name of the parent process in the recording.
        parent: Text,
        /// Tick of the fork.
        tick: u64,
        /// Blocks live in the parent then.
        blocks: u64,
        /// Their bytes.
        bytes: u64,
    }
}

tape_record! {
    /// How one call site stood at the moments of a [`History`].
    SiteHistory {
        /// Site number.
        site: u32,
        /// Its live blocks at each.
        blocks: Vec<u64>,
        /// Their bytes.
        bytes: Vec<u64>,
    }
}

tape_record! {
    /// Kind 14, of sums without events: how the sites that grew stood over the run.
    History {
        /// The moments: ticks, about as far from each other.
        ticks: Vec<u64>,
        /// The sites that hold more now than in the middle, those that grew most first; not all.
        sites: Vec<SiteHistory>,
    }
}

tape_record! {
    /// The standard errors of a call site's live bytes in a sampled profile.
    SiteErrors {
        /// Site number.
        site: u32,
        /// The standard error at each point in time of the [`History`], and at its end.
        bytes: Vec<u64>,
    }
}

tape_record! {
    /// Kind 18, of sampled sums without events: the standard errors of the [`History`] before it.
    HistoryErrors {
        /// The sites of the history, in the same order.
        sites: Vec<SiteErrors>,
    }
}

tape_record! {
    /// A stretch of code and its name.
    CodeRange {
        /// First address.
        start: u64,
        /// Bytes.
        length: u64,
        /// Name of the function, according to the perf map or the vDSO.
        name: Text,
    }
}

tape_record! {
    /// Kind 15: code that no file describes: made at run time (from the process's perf map) or
    /// mapped by the kernel (the vDSO). Only ranges that sites lie in; of two that overlap the
    /// later one holds ([`crate::perf_map::UnnamedAddresses`]).
    Code {
        /// The ranges.
        ranges: Vec<CodeRange>,
    }
}

tape_record! {
    /// Kind 17: which process the tape is about, and how this segment of it begins. All segments of
    /// a process have the same host, boot, process ID and start, also after an exec.
    Segment {
        /// Host name.
        host: Text,
        /// ID of the boot of the host: `/proc/sys/kernel/random/boot_id`.
        boot: Text,
        /// Start of the process in clock ticks after the boot, as in `/proc/PID/stat`.
        start_ticks: u64,
        /// One of the `SEGMENT_` numbers.
        begins: u8,
        /// Number of blocks at the beginning of the segment that earlier segments allocated.
        carried: u64,
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

macro_rules! records {
    ($($number:literal $name:ident)*) => {
        /// Any record.
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum Record { $($name($name)),* }

        impl Record {
            /// Every kind: number and name.
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
    14 History 15 Code 16 Symbols 17 Segment 18 HistoryErrors
}

macro_rules! entries {
    ($($number:literal $name:ident $text:literal)*) => {
        /// The C or C++ function that the program called. The numbers stand in files and never
        /// change.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[allow(missing_docs)]
        #[repr(u8)]
        pub enum Entry { $($name = $number),* }

        impl Entry {
            /// The entry of a number in a file.
            pub const fn from_number(number: u8) -> Option<Entry> {
                match number { $($number => Some(Entry::$name),)* _ => None }
            }

            /// The function's name as C or C++ writes it.
            pub const fn name(self) -> &'static str {
                match self { $(Entry::$name => $text),* }
            }
        }
    };
}

entries! {
    1 Malloc "malloc" 2 Calloc "calloc" 3 Realloc "realloc" 4 Reallocarray "reallocarray" 5 PosixMemalign "posix_memalign"
    6 AlignedAlloc "aligned_alloc" 7 Memalign "memalign" 8 Valloc "valloc" 9 Pvalloc "pvalloc"
    10 New "operator new" 11 NewArray "operator new[]"
    14 AllocInside1 "allocator 1: allocate" 15 AllocInside2 "allocator 2: allocate"
    16 AllocInside3 "allocator 3: allocate" 17 AllocInside4 "allocator 4: allocate"
    20 Free "free" 21 Cfree "cfree" 22 FreeSized "free_sized" 23 FreeAlignedSized "free_aligned_sized"
    24 Delete "operator delete" 25 DeleteArray "operator delete[]"
    26 FreeInside1 "allocator 1: free" 27 FreeInside2 "allocator 2: free"
    28 FreeInside3 "allocator 3: free" 29 FreeInside4 "allocator 4: free"
    33 ResizeInside1 "allocator 1: resize" 34 ResizeInside2 "allocator 2: resize"
    35 ResizeInside3 "allocator 3: resize" 36 ResizeInside4 "allocator 4: resize"
    40 Inherited "(inherited)" 41 Implied "(implied)" 42 Carried "(carried over)" 43 InheritedEmpty "(inherited, of 0 bytes)"
}
