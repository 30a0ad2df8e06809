//! Writer of Perfetto traces: heap profiles, and counters on the same time line.
//!
//! The field numbers are those of Perfetto's `protos/perfetto/trace`: `trace.proto`,
//! `trace_packet.proto`, `profiling/profile_packet.proto`, `profiling/profile_common.proto`, `profiling/heap_graph.proto`,
//! `track_event/*.proto` and `ps/process_tree.proto`.

mod heap_graph;

use crate::leb128;
pub use heap_graph::{HeapGraph, HeapGraphObject, HeapGraphRoot, HeapGraphType};
use prost::Message;

/// The state of the sequence of packets was cleared: interned data begins anew.
pub const CLEARED: u32 = 1;
/// The packet refers to interned data of its sequence.
pub const NEEDS_STATE: u32 = 2;
/// The kind of a [`TrackEvent`] that sets the value of a counter.
pub const COUNTER: i32 = 4;
/// The clock of wall time.
pub const REALTIME: u32 = 1;
/// The clock of the times in heap profiles.
pub const MONOTONIC_COARSE: u32 = 4;
/// The clock of the times of packets.
pub const BOOTTIME: u32 = 6;
/// The unit of a counter of bytes.
pub const BYTES: i32 = 3;
/// The unit of a counter of things.
pub const COUNT: i32 = 2;

/// A packet of a trace.
#[derive(Clone, PartialEq, Message)]
pub struct TracePacket {
    /// Time in nanoseconds of the trace's clock.
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    /// The sequence that the packet belongs to.
    #[prost(uint32, optional, tag = "10")]
    pub sequence: Option<u32>,
    /// The sum of [`CLEARED`] and [`NEEDS_STATE`].
    #[prost(uint32, optional, tag = "13")]
    pub sequence_flags: Option<u32>,
    /// Clocks at one point in time, which relates them.
    #[prost(message, optional, tag = "6")]
    pub clocks: Option<ClockSnapshot>,
    /// The processes of the trace.
    #[prost(message, optional, tag = "2")]
    pub process_tree: Option<ProcessTree>,
    /// An event on a track.
    #[prost(message, optional, tag = "11")]
    pub track_event: Option<TrackEvent>,
    /// Texts, frames and stacks that other packets of the sequence refer to.
    #[prost(message, optional, tag = "12")]
    pub interned: Option<InternedData>,
    /// A heap profile of processes.
    #[prost(message, optional, tag = "37")]
    pub profile: Option<ProfilePacket>,
    /// Which object of a process holds which.
    #[prost(message, optional, tag = "56")]
    pub heap_graph: Option<HeapGraph>,
    /// The description of a track.
    #[prost(message, optional, tag = "60")]
    pub track: Option<TrackDescriptor>,
}

/// Clocks at one point in time.
#[derive(Clone, PartialEq, Message)]
pub struct ClockSnapshot {
    /// The clocks with their times.
    #[prost(message, repeated, tag = "1")]
    pub clocks: Vec<Clock>,
}

/// A clock with its time.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Clock {
    /// Identifier of the clock, such as [`BOOTTIME`].
    #[prost(uint32, optional, tag = "1")]
    pub id: Option<u32>,
    /// The time in nanoseconds.
    #[prost(uint64, optional, tag = "2")]
    pub timestamp: Option<u64>,
}

/// Processes with their names.
#[derive(Clone, PartialEq, Message)]
pub struct ProcessTree {
    /// The processes of the trace.
    #[prost(message, repeated, tag = "1")]
    pub processes: Vec<Process>,
}

/// A process with its command line.
#[derive(Clone, PartialEq, Message)]
pub struct Process {
    /// Id of the process.
    #[prost(int32, optional, tag = "1")]
    pub pid: Option<i32>,
    /// Id of its parent.
    #[prost(int32, optional, tag = "2")]
    pub ppid: Option<i32>,
    /// The command line, by argument.
    #[prost(string, repeated, tag = "3")]
    pub cmdline: Vec<String>,
}

/// An event on a track.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct TrackEvent {
    /// The kind of the event, such as [`COUNTER`].
    #[prost(int32, optional, tag = "9")]
    pub kind: Option<i32>,
    /// The track that the event belongs to.
    #[prost(uint64, optional, tag = "11")]
    pub track: Option<u64>,
    /// The new value of a counter.
    #[prost(int64, optional, tag = "30")]
    pub counter_value: Option<i64>,
}

/// The description of a track.
#[derive(Clone, PartialEq, Message)]
pub struct TrackDescriptor {
    /// Identifier of the track.
    #[prost(uint64, optional, tag = "1")]
    pub uuid: Option<u64>,
    /// Name of the track.
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    /// The process that the track is of.
    #[prost(message, optional, tag = "3")]
    pub process: Option<ProcessDescriptor>,
    /// Identifier of the track that it is shown below.
    #[prost(uint64, optional, tag = "5")]
    pub parent: Option<u64>,
    /// The counter, if the track is one.
    #[prost(message, optional, tag = "8")]
    pub counter: Option<CounterDescriptor>,
}

/// A process that has tracks.
#[derive(Clone, PartialEq, Message)]
pub struct ProcessDescriptor {
    /// Id of the process.
    #[prost(int32, optional, tag = "1")]
    pub pid: Option<i32>,
    /// Name of the process.
    #[prost(string, optional, tag = "6")]
    pub name: Option<String>,
}

/// The unit of a counter.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct CounterDescriptor {
    /// The unit: [`BYTES`] or [`COUNT`].
    #[prost(int32, optional, tag = "3")]
    pub unit: Option<i32>,
}

/// Tables that packets of a sequence refer to by identifiers.
#[derive(Clone, PartialEq, Message)]
pub struct InternedData {
    /// Names of functions in frames.
    #[prost(message, repeated, tag = "5")]
    pub function_names: Vec<InternedText>,
    /// The frames of stacks.
    #[prost(message, repeated, tag = "6")]
    pub frames: Vec<Frame>,
    /// The stacks of samples.
    #[prost(message, repeated, tag = "7")]
    pub callstacks: Vec<Callstack>,
    /// The build-ids of modules.
    #[prost(message, repeated, tag = "16")]
    pub build_ids: Vec<InternedText>,
    /// The components of paths of modules.
    #[prost(message, repeated, tag = "17")]
    pub mapping_paths: Vec<InternedText>,
    /// Paths of source files.
    #[prost(message, repeated, tag = "18")]
    pub source_paths: Vec<InternedText>,
    /// The modules of frames.
    #[prost(message, repeated, tag = "19")]
    pub mappings: Vec<Mapping>,
}

/// A text with its identifier.
#[derive(Clone, PartialEq, Message)]
pub struct InternedText {
    /// Identifier of the text in its table.
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    /// The bytes of the text.
    #[prost(bytes = "vec", optional, tag = "2")]
    pub text: Option<Vec<u8>>,
}

/// A module in the address space of a process.
#[derive(Clone, PartialEq, Message)]
pub struct Mapping {
    /// Identifier of the module.
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    /// Identifier of the build-id.
    #[prost(uint64, optional, tag = "2")]
    pub build_id: Option<u64>,
    /// First address of the mapping.
    #[prost(uint64, optional, tag = "4")]
    pub start: Option<u64>,
    /// First address after the mapping.
    #[prost(uint64, optional, tag = "5")]
    pub end: Option<u64>,
    /// Run-time address minus link-time address.
    #[prost(uint64, optional, tag = "6")]
    pub load_bias: Option<u64>,
    /// Identifiers of the components of the path.
    #[prost(uint64, repeated, packed = "false", tag = "7")]
    pub path: Vec<u64>,
}

/// A frame of a stack.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Frame {
    /// Identifier of the frame.
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    /// Identifier of the name of the function.
    #[prost(uint64, optional, tag = "2")]
    pub function_name: Option<u64>,
    /// Identifier of the module.
    #[prost(uint64, optional, tag = "3")]
    pub mapping: Option<u64>,
    /// Address relative to the module.
    #[prost(uint64, optional, tag = "4")]
    pub rel_pc: Option<u64>,
    /// Identifier of the path of the source file.
    #[prost(uint64, optional, tag = "5")]
    pub source_path: Option<u64>,
    /// Line in the source file.
    #[prost(uint32, optional, tag = "6")]
    pub line: Option<u32>,
}

/// A call stack with its identifier.
#[derive(Clone, PartialEq, Message)]
pub struct Callstack {
    /// Identifier of the stack.
    #[prost(uint64, optional, tag = "1")]
    pub iid: Option<u64>,
    /// Identifiers of the frames, outermost first.
    #[prost(uint64, repeated, packed = "false", tag = "2")]
    pub frames: Vec<u64>,
}

/// A heap profile at a point in time.
#[derive(Clone, PartialEq, Message)]
pub struct ProfilePacket {
    /// The samples of each process.
    #[prost(message, repeated, tag = "5")]
    pub dumps: Vec<ProcessDump>,
    /// Whether the next profile of the sequence continues this one.
    #[prost(bool, optional, tag = "6")]
    pub continued: Option<bool>,
    /// Number of the packet in its sequence, from 0.
    #[prost(uint64, optional, tag = "7")]
    pub index: Option<u64>,
}

/// The samples of a process.
#[derive(Clone, PartialEq, Message)]
pub struct ProcessDump {
    /// Id of the process.
    #[prost(uint64, optional, tag = "1")]
    pub pid: Option<u64>,
    /// What each stack allocated and freed until then.
    #[prost(message, repeated, tag = "2")]
    pub samples: Vec<HeapSample>,
    /// Whether the process was recorded from its start.
    #[prost(bool, optional, tag = "3")]
    pub from_startup: Option<bool>,
    /// Time of the profile in nanoseconds.
    #[prost(uint64, optional, tag = "9")]
    pub timestamp: Option<u64>,
    /// Name of the heap.
    #[prost(string, optional, tag = "11")]
    pub heap_name: Option<String>,
    /// Mean number of bytes between samples.
    #[prost(uint64, optional, tag = "12")]
    pub sampling_interval_bytes: Option<u64>,
}

/// What a stack allocated and freed since the start.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct HeapSample {
    /// Identifier of the stack.
    #[prost(uint64, optional, tag = "1")]
    pub callstack: Option<u64>,
    /// Number of bytes allocated.
    #[prost(uint64, optional, tag = "2")]
    pub allocated: Option<u64>,
    /// Number of these bytes that were freed.
    #[prost(uint64, optional, tag = "3")]
    pub freed: Option<u64>,
    /// Number of allocations at the stack.
    #[prost(uint64, optional, tag = "5")]
    pub alloc_count: Option<u64>,
    /// Number of these that were freed.
    #[prost(uint64, optional, tag = "6")]
    pub free_count: Option<u64>,
}

/// Appends a packet to a trace.
pub fn packet(out: &mut Vec<u8>, packet: &TracePacket) {
    leb128::write(out, 1 << 3 | 2);
    leb128::write(out, packet.encoded_len() as u64);
    // Writing to a vector cannot fail.
    let _ = packet.encode(out);
}
