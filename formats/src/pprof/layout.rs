//! The bytes of `profile.proto`, described here and nowhere else: protocol-buffer messages, usually packed with gzip.
//!
//! Texts are places in the string table, whose index 0 is the empty text. Identifiers of mappings, locations and functions are any
//! numbers but 0. A sample's stack is a list of locations, innermost first; a location has a line for each function that was
//! inlined there, innermost first.

use prost::Message;

/// What a value of each sample means.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct ValueType {
    /// Text: `alloc_space`, `inuse_objects`, …
    #[prost(int64, tag = "1")]
    pub kind: i64,
    /// Text: `bytes`, `count`, …
    #[prost(int64, tag = "2")]
    pub unit: i64,
}

/// A stack and its values.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Sample {
    /// The stack, innermost location first.
    #[prost(uint64, repeated, tag = "1")]
    pub location: Vec<u64>,
    /// A value for each value type.
    #[prost(int64, repeated, tag = "2")]
    pub value: Vec<i64>,
    /// What else is known.
    #[prost(message, repeated, tag = "3")]
    pub label: Vec<Label>,
}

/// A label of a sample: a text or a number.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Label {
    /// Text: its name.
    #[prost(int64, tag = "1")]
    pub key: i64,
    /// Text: its value; 0 for a number.
    #[prost(int64, tag = "2")]
    pub text: i64,
    /// Its value as a number.
    #[prost(int64, tag = "3")]
    pub number: i64,
    /// Text: unit of the number.
    #[prost(int64, tag = "4")]
    pub unit: i64,
}

/// An object that was mapped.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Mapping {
    /// Its identifier.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// First address.
    #[prost(uint64, tag = "2")]
    pub start: u64,
    /// First address behind it.
    #[prost(uint64, tag = "3")]
    pub limit: u64,
    /// Offset in its file of the first address.
    #[prost(uint64, tag = "4")]
    pub offset: u64,
    /// Text: its path.
    #[prost(int64, tag = "5")]
    pub file: i64,
    /// Text: its build-id in hexadecimal digits.
    #[prost(int64, tag = "6")]
    pub build_id: i64,
    /// Whether its locations were given functions.
    #[prost(bool, tag = "7")]
    pub has_functions: bool,
    /// Whether the functions were given files.
    #[prost(bool, tag = "8")]
    pub has_files: bool,
    /// Whether the locations were given lines.
    #[prost(bool, tag = "9")]
    pub has_lines: bool,
    /// Whether inlined functions were looked for.
    #[prost(bool, tag = "10")]
    pub has_inlined: bool,
}

/// A index in the program.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Location {
    /// Its identifier.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Identifier of its mapping; 0: none.
    #[prost(uint64, tag = "2")]
    pub mapping: u64,
    /// Address of the instruction.
    #[prost(uint64, tag = "3")]
    pub address: u64,
    /// Functions and lines, the innermost inlined one first.
    #[prost(message, repeated, tag = "4")]
    pub line: Vec<Line>,
    /// Whether several places share it.
    #[prost(bool, tag = "5")]
    pub is_folded: bool,
}

/// A line of a function.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Line {
    /// Identifier of the function.
    #[prost(uint64, tag = "1")]
    pub function: u64,
    /// The line; 0 when not known.
    #[prost(int64, tag = "2")]
    pub line: i64,
}

/// A function.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Function {
    /// Its identifier.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Text: its name.
    #[prost(int64, tag = "2")]
    pub name: i64,
    /// Text: its name as the linker knows it.
    #[prost(int64, tag = "3")]
    pub system_name: i64,
    /// Text: its source file.
    #[prost(int64, tag = "4")]
    pub file: i64,
    /// Its first line.
    #[prost(int64, tag = "5")]
    pub start_line: i64,
}

/// One field of the profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// Field 1, once for each value of the samples.
    SampleType(ValueType),
    /// Field 2.
    Sample(Sample),
    /// Field 3; the first is the program itself.
    Mapping(Mapping),
    /// Field 4.
    Location(Location),
    /// Field 5.
    Function(Function),
    /// Field 6: the next text of the table.
    Text(Vec<u8>),
    /// Field 9: start, nanoseconds since 1970.
    TimeNanos(i64),
    /// Field 10: length.
    DurationNanos(i64),
    /// Field 11: what is between samples.
    PeriodType(ValueType),
    /// Field 12: how much of it.
    Period(i64),
    /// Field 13: a text for people.
    Comment(i64),
    /// Field 14: text of the value type to show first.
    DefaultSampleType(i64),
    /// A field that is not looked at: its number.
    Other(u64),
}

/// Number of each field, and whether it is a message or text (else a number).
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

/// The name of a field.
pub fn field(number: u64) -> &'static str {
    FIELDS.iter().find(|field| field.0 == number).map_or("unknown field", |field| field.1)
}
