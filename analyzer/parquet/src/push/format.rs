//! The profile of a program for one interval, before it is written in the format of a server.

use super::delta::Values;
use heaptape_analyzer::Process;
use heaptape_analyzer::symbols::{Frame, Symbolizer, link_address, module_of};
use std::collections::{BTreeMap, HashMap};

/// Maximum number of frames of a stack. Recordings have fewer, but a corrupt file may have more.
const MAX_DEPTH: usize = 1024;

/// Name and unit of each value of a sample.
pub(crate) const VALUE_TYPES: [(&str, &str); 4] =
    [("alloc_objects", "count"), ("alloc_space", "bytes"), ("inuse_objects", "count"), ("inuse_space", "bytes")];

/// An object file with code.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Object {
    pub path: String,
    /// Build-id in hexadecimal digits; empty if it has none.
    pub build_id: String,
}

/// A function with a line.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Line {
    /// Name of the function.
    pub function: String,
    /// Path of the source file; empty if it is not known.
    pub file: String,
    /// Number of the line; 0 if it is not known.
    pub line: i64,
}

/// An instruction with its functions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Location {
    /// Index of the object in [`Profile::objects`], if there is one.
    pub object: Option<usize>,
    /// Address in the object.
    pub address: u64,
    /// Functions, the innermost inlined one first.
    pub lines: Vec<Line>,
}

/// The profile of a program for one interval: values by stack.
#[derive(Clone, Debug, Default)]
pub(super) struct Profile {
    /// Name of the program.
    pub program: String,
    /// Label of its processes.
    pub label: String,
    /// Name of the host.
    pub host: String,
    /// Start of the interval, in nanoseconds since 1970.
    pub from_ns: u64,
    /// End of the interval, in nanoseconds since 1970.
    pub until_ns: u64,
    /// The object files of all locations.
    pub objects: Vec<Object>,
    /// The locations of all stacks.
    pub locations: Vec<Location>,
    /// Indexes of the locations of each stack, innermost first, with its values.
    pub samples: BTreeMap<i64, Sample>,
    /// Indexes of the objects.
    pub(super) known_objects: HashMap<Object, usize>,
    /// Indexes of the locations.
    pub(super) known_locations: HashMap<Location, usize>,
}

/// A stack with its values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sample {
    /// Indexes in [`Profile::locations`], innermost first.
    pub locations: Vec<usize>,
    /// Values in the order of [`VALUE_TYPES`].
    pub values: [i64; 4],
}

/// Converts a number for formats whose numbers are signed.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Returns the index of a value in a list, in which it is stored once.
fn index_of<T: Clone + Eq + std::hash::Hash>(list: &mut Vec<T>, known: &mut HashMap<T, usize>, value: T) -> usize {
    *known.entry(value).or_insert_with_key(|value| {
        list.push(value.clone());
        list.len() - 1
    })
}

impl Profile {
    /// Adds the values of a stack of a process. `site` is a site with this stack. Stacks without
    /// values are left out.
    pub(super) fn add(&mut self, process: &Process, symbols: &mut Symbolizer, stack: i64, site: u32, values: &Values) {
        let Values { allocations, allocated_bytes, live_blocks, live_bytes } = *values;
        let values = [allocations, allocated_bytes, live_blocks, live_bytes].map(signed);
        if values == [0; 4] {
            return;
        }
        if !self.samples.contains_key(&stack) {
            let locations = self.stack(process, symbols, site);
            self.samples.insert(stack, Sample { locations, values: [0; 4] });
        }
        if let Some(sample) = self.samples.get_mut(&stack) {
            for (sum, value) in sample.values.iter_mut().zip(values) {
                *sum = sum.saturating_add(value);
            }
        }
    }

    fn stack(&mut self, process: &Process, symbols: &mut Symbolizer, site: u32) -> Vec<usize> {
        let stacks = process.stacks();
        let mut locations = Vec::new();
        for (_, site) in stacks.stack(site).take(MAX_DEPTH) {
            let module = module_of(stacks, &site);
            let object = module.map(|module| Object {
                path: String::from_utf8_lossy(&module.path).into_owned(),
                build_id: module.build_id.iter().map(|byte| format!("{byte:02x}")).collect(),
            });
            let object = object.map(|object| index_of(&mut self.objects, &mut self.known_objects, object));
            let address = module.map_or(site.address, |module| link_address(module, &site));
            let lines = symbols.frames(stacks, &site).iter().map(line).collect();
            let location = Location { object, address, lines };
            locations.push(index_of(&mut self.locations, &mut self.known_locations, location));
        }
        locations
    }
}

fn line(frame: &Frame) -> Line {
    Line { function: frame.title(), file: frame.file.clone().unwrap_or_default(), line: frame.line.unwrap_or(0).into() }
}
