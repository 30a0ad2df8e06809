//! The messages of `profiling/heap_graph.proto`: objects, and which holds which.

use prost::Message;

/// A part of the graph of a process.
#[derive(Clone, PartialEq, Message)]
pub struct HeapGraph {
    /// Id of the process.
    #[prost(int32, optional, tag = "1")]
    pub pid: Option<i32>,
    /// Objects with what they refer to.
    #[prost(message, repeated, tag = "2")]
    pub objects: Vec<HeapGraphObject>,
    /// Names of the fields that refer to objects.
    #[prost(message, repeated, tag = "4")]
    pub field_names: Vec<super::InternedText>,
    /// Whether the next packet of the sequence continues this graph.
    #[prost(bool, optional, tag = "5")]
    pub continued: Option<bool>,
    /// Number of the packet in its sequence, from 0.
    #[prost(uint64, optional, tag = "6")]
    pub index: Option<u64>,
    /// Objects that nothing needs to hold.
    #[prost(message, repeated, tag = "7")]
    pub roots: Vec<HeapGraphRoot>,
    /// Types of objects.
    #[prost(message, repeated, tag = "9")]
    pub types: Vec<HeapGraphType>,
}

/// An object.
#[derive(Clone, PartialEq, Message)]
pub struct HeapGraphObject {
    /// Id of the object, not 0.
    #[prost(uint64, optional, tag = "1")]
    pub id: Option<u64>,
    /// Id of its type.
    #[prost(uint64, optional, tag = "2")]
    pub type_id: Option<u64>,
    /// Number of its bytes.
    #[prost(uint64, optional, tag = "3")]
    pub self_size: Option<u64>,
    /// Ids of the names of the fields that refer to objects.
    #[prost(uint64, repeated, tag = "4")]
    pub reference_fields: Vec<u64>,
    /// Ids of those objects.
    #[prost(uint64, repeated, tag = "5")]
    pub reference_objects: Vec<u64>,
}

/// Objects that nothing needs to hold.
#[derive(Clone, PartialEq, Message)]
pub struct HeapGraphRoot {
    /// Ids of the objects.
    #[prost(uint64, repeated, tag = "1")]
    pub objects: Vec<u64>,
    /// Why, as a number of ART; 0 is unknown.
    #[prost(int32, optional, tag = "2")]
    pub kind: Option<i32>,
}

/// A type of objects.
#[derive(Clone, PartialEq, Message)]
pub struct HeapGraphType {
    /// Id of the type, not 0.
    #[prost(uint64, optional, tag = "1")]
    pub id: Option<u64>,
    /// Its name.
    #[prost(string, optional, tag = "3")]
    pub class_name: Option<String>,
}
