//! Layout of `profile.proto`: protocol-buffer messages, usually compressed with gzip.
//!
//! Texts are indexes in the string table, whose index 0 is the empty text. IDs of mappings,
//! locations and functions are any numbers but 0. The stack of a sample is a list of locations,
//! innermost first. A location has one line for each function that was inlined there, innermost
//! first.

use prost::Message;

/// Meaning of one value of each sample.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ValueType {
    /// Text of the type: `alloc_space`, `inuse_objects`, …
    #[prost(int64, tag = "1")]
    pub kind: i64,
    /// Text of the unit: `bytes`, `count`, …
    #[prost(int64, tag = "2")]
    pub unit: i64,
}

/// A call stack and its values.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Sample {
    /// Locations of the call stack, innermost first.
    #[prost(uint64, repeated, tag = "1")]
    pub location: Vec<u64>,
    /// Values, one for each value type.
    #[prost(int64, repeated, tag = "2")]
    pub value: Vec<i64>,
    /// Labels of the sample.
    #[prost(message, repeated, tag = "3")]
    pub label: Vec<Label>,
}

/// A label of a sample, with a text or a number.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Label {
    /// Text of the label's name.
    #[prost(int64, tag = "1")]
    pub key: i64,
    /// Text of the value; 0 for a number.
    #[prost(int64, tag = "2")]
    pub text: i64,
    /// Value as a number.
    #[prost(int64, tag = "3")]
    pub number: i64,
    /// Text of the number's unit.
    #[prost(int64, tag = "4")]
    pub unit: i64,
}

/// An object file that was mapped into the process.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Mapping {
    /// ID of the mapping.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// First address of the mapping.
    #[prost(uint64, tag = "2")]
    pub start: u64,
    /// First address after the mapping.
    #[prost(uint64, tag = "3")]
    pub limit: u64,
    /// Offset of the first address in the file.
    #[prost(uint64, tag = "4")]
    pub offset: u64,
    /// Text of the path.
    #[prost(int64, tag = "5")]
    pub file: i64,
    /// Text of the build ID in hexadecimal digits.
    #[prost(int64, tag = "6")]
    pub build_id: i64,
    /// Whether its locations have functions.
    #[prost(bool, tag = "7")]
    pub has_functions: bool,
    /// Whether the functions have source files.
    #[prost(bool, tag = "8")]
    pub has_files: bool,
    /// Whether the locations have lines.
    #[prost(bool, tag = "9")]
    pub has_lines: bool,
    /// Whether inlined functions were looked up.
    #[prost(bool, tag = "10")]
    pub has_inlined: bool,
}

/// A index in the program.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Location {
    /// ID of the location.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// ID of the mapping; 0 for none.
    #[prost(uint64, tag = "2")]
    pub mapping: u64,
    /// Address of the instruction.
    #[prost(uint64, tag = "3")]
    pub address: u64,
    /// Functions and lines, the innermost inlined function first.
    #[prost(message, repeated, tag = "4")]
    pub line: Vec<Line>,
    /// Whether several locations were merged into this one.
    #[prost(bool, tag = "5")]
    pub is_folded: bool,
}

/// One line of a function.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Line {
    /// ID of the function.
    #[prost(uint64, tag = "1")]
    pub function: u64,
    /// Line number; 0 if unknown.
    #[prost(int64, tag = "2")]
    pub line: i64,
}

/// A function of the program.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Function {
    /// ID of the function.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Text of the name.
    #[prost(int64, tag = "2")]
    pub name: i64,
    /// Text of the linker's name.
    #[prost(int64, tag = "3")]
    pub system_name: i64,
    /// Text of the source file.
    #[prost(int64, tag = "4")]
    pub file: i64,
    /// First line of the function.
    #[prost(int64, tag = "5")]
    pub start_line: i64,
}

/// One field of a profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Field 1, one for each value of the samples.
    SampleType(ValueType),
    /// Field 2: a sample.
    Sample(Sample),
    /// Field 3: a mapping. The first one is the program itself.
    Mapping(Mapping),
    /// Field 4: a location.
    Location(Location),
    /// Field 5: a function.
    Function(Function),
    /// Field 6: the next text of the table.
    Text(Vec<u8>),
    /// Field 9: time of the start, in nanoseconds since 1970.
    TimeNanos(i64),
    /// Field 10: duration in nanoseconds.
    DurationNanos(i64),
    /// Field 11: meaning of the sampling period.
    PeriodType(ValueType),
    /// Field 12: sampling period.
    Period(i64),
    /// Field 13: a comment (index of its text).
    Comment(i64),
    /// Field 14: value type to show first (index of its text).
    DefaultSampleType(i64),
    /// A field that is skipped, with its number.
    Other(u64),
}

/// Number and name of each field, and whether it has a length (a message or text).
pub const FIELDS: [(u64, &str, bool); 14] = [
    (1, "sample_type", true),
    (2, "sample", true),
    (3, "mapping", true),
    (4, "location", true),
    (5, "function", true),
    (6, "string_table", true),
    (7, "drop_frames", false),
    (8, "keep_frames", false),
    (9, "time_nanos", false),
    (10, "duration_nanos", false),
    (11, "period_type", true),
    (12, "period", false),
    (13, "comment", false),
    (14, "default_sample_type", false),
];

/// Returns the name of a field.
pub fn field(number: u64) -> &'static str {
    FIELDS.iter().find(|field| field.0 == number).map_or("unknown field", |field| field.1)
}
