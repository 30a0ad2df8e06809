//! Imports pprof heap profiles: allocated and live memory by call stack. The tables come after the
//! samples, so the bytes are read twice.

use super::link_bias::link_bias;
use super::{ReadResult, Sites};
use crate::stacks::{FilePart, Module, Named, Site};
use heaptape_formats::pprof::{Function, Location, Mapping, Reader, Record, Sample};
use heaptape_formats::{Ending, Error, Format, Kind};
use rustc_hash::FxHashMap;

/// The names that tools use for each kind of value.
const VALUE_NAMES: [(&[&str], Value); 6] = [
    (&["alloc_objects", "alloc-count", "allocations", "allocs"], Value::Allocs),
    (&["alloc_space", "alloc-bytes", "alloc_bytes", "allocated"], Value::Bytes),
    (&["inuse_objects", "objects", "live-count", "live_objects"], Value::LiveBlocks),
    (&["inuse_space", "space", "live-bytes", "live_bytes"], Value::LiveBytes),
    (&["peak-count", "peak_objects"], Value::PeakBlocks),
    (&["peak-bytes", "peak_space"], Value::PeakBytes),
];

/// A kind of value of the samples.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Value {
    Allocs,
    Bytes,
    LiveBlocks,
    LiveBytes,
    PeakBlocks,
    PeakBytes,
}

/// Parses a decompressed pprof file.
///
/// # Errors
/// Returns an error if the bytes are not a pprof file, or if its samples do not count memory.
pub(super) fn read(bytes: &[u8]) -> ReadResult {
    let mut tables = Tables::default();
    let mut reader = Reader::new(bytes);
    while let Some(record) = reader.next()? {
        tables.add(record);
    }
    let ending = reader.ending().unwrap_or(Ending::Complete);
    let values = tables.values()?;
    tables.add_modules();
    let mut sites = Sites { stacks: std::mem::take(&mut tables.stacks), ..Sites::default() };
    let has = |value| values.contains(&Some(value));
    let mut pid = 0;
    let mut reader = Reader::new(bytes);
    while let Some(record) = reader.next()? {
        let Record::Sample(sample) = record else { continue };
        pid = tables.pid(&sample).or(pid.into()).unwrap_or(0);
        let site = tables.site(&sample, &mut sites);
        let of = |kind| {
            let matching = values.iter().zip(&sample.value).filter(|(value, _)| **value == Some(kind));
            // Profiles of differences may have negative values. They count as 0.
            matching.fold(0u64, |sum, (_, &value)| sum.saturating_add(u64::try_from(value).unwrap_or(0)))
        };
        let (live, blocks) = (of(Value::LiveBytes), of(Value::LiveBlocks));
        // If the profile has only live values, these count as allocated.
        let allocated = if has(Value::Bytes) { of(Value::Bytes).max(live) } else { live };
        let allocs = if has(Value::Allocs) { of(Value::Allocs).max(blocks) } else { blocks };
        let sums = sites.sums(site);
        sums.bytes = sums.bytes.saturating_add(allocated);
        sums.allocs = sums.allocs.saturating_add(allocs);
        sums.freed_bytes = sums.freed_bytes.saturating_add(allocated.saturating_sub(live));
        sums.frees = sums.frees.saturating_add(allocs.saturating_sub(blocks));
        sums.peak_bytes = sums.peak_bytes.saturating_add(of(Value::PeakBytes));
        sums.peak_blocks = sums.peak_blocks.saturating_add(of(Value::PeakBlocks));
    }
    let mut imported = sites.finish(has(Value::PeakBytes));
    imported.pid = pid;
    imported.duration_ns = u64::try_from(tables.duration).unwrap_or(0);
    imported.started_unix_ns = u64::try_from(tables.started).unwrap_or(0);
    imported.argv = tables.comment.map(|comment| super::split_command(&tables.text(comment))).unwrap_or_default();
    if imported.argv.is_empty() {
        imported.argv = tables.first_mapping.map(|mapping| vec![tables.text(mapping.file)]).unwrap_or_default();
    }
    Ok((imported, ending))
}

#[derive(Default)]
struct Tables {
    types: Vec<i64>,
    texts: Vec<Vec<u8>>,
    mappings: FxHashMap<u64, (Mapping, u32)>,
    first_mapping: Option<Mapping>,
    locations: FxHashMap<u64, Location>,
    functions: FxHashMap<u64, Function>,
    stacks: crate::stacks::Stacks,
    started: i64,
    duration: i64,
    comment: Option<i64>,
}

impl Tables {
    fn add(&mut self, record: Record) {
        match record {
            Record::SampleType(kind) => self.types.push(kind.kind),
            Record::Text(text) => self.texts.push(text),
            Record::Mapping(mapping) => {
                self.first_mapping.get_or_insert(mapping);
                self.mappings.insert(mapping.id, (mapping, 0));
            }
            Record::Location(location) => drop(self.locations.insert(location.id, location)),
            Record::Function(function) => drop(self.functions.insert(function.id, function)),
            Record::TimeNanos(value) => self.started = value,
            Record::DurationNanos(value) => self.duration = value,
            Record::Comment(value) => self.comment = self.comment.or(Some(value)),
            _ => {}
        }
    }

    fn text(&self, index: i64) -> String {
        let text = usize::try_from(index).ok().and_then(|index| self.texts.get(index));
        text.map(|text| String::from_utf8_lossy(text).into_owned()).unwrap_or_default()
    }

    /// Returns the kind of each value of the samples, or `None` for unknown ones.
    fn values(&self) -> Result<Vec<Option<Value>>, Error> {
        let names: Vec<String> = self.types.iter().map(|&kind| self.text(kind)).collect();
        let value = |name: &String| VALUE_NAMES.iter().find(|(known, _)| known.contains(&&**name)).map(|known| known.1);
        let values: Vec<Option<Value>> = names.iter().map(value).collect();
        if values.iter().any(Option::is_some) {
            return Ok(values);
        }
        let kind = Kind::Text(format!("not a heap profile: its samples count {}", names.join(", ")));
        Err(Error { format: Format::Pprof, offset: 0, field: "sample_type", kind })
    }

    /// Converts mappings to modules. They are used to look up functions that the file does not
    /// name.
    fn add_modules(&mut self) {
        let mut ids: Vec<u64> = self.mappings.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            let Some((mapping, _)) = self.mappings.get(&id).copied() else { continue };
            let path = self.text(mapping.file);
            let (start, end, mapped) = (mapping.start, mapping.limit, FilePart::From(mapping.offset));
            let (bias, path) = (link_bias(&path, start, mapped), path.into_bytes());
            let hex = self.text(mapping.build_id);
            let digits: Vec<u8> =
                hex.bytes().filter_map(|digit| char::from(digit).to_digit(16)).map(|d| d as u8).collect();
            let build_id = digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect();
            let module = Module { start, end, bias, path, build_id, mapped: Some(mapped), ..Module::default() };
            self.stacks.modules.push(module);
            let number = self.stacks.modules.len() as u32;
            self.mappings.insert(id, (mapping, number));
        }
    }

    /// Returns the process ID in the labels of a sample.
    fn pid(&self, sample: &Sample) -> Option<u32> {
        let label = sample.label.iter().find(|label| label.number > 0 && self.text(label.key) == "pid")?;
        u32::try_from(label.number).ok()
    }

    fn site(&self, sample: &Sample, sites: &mut Sites) -> u32 {
        let mut site = 0;
        for id in sample.location.iter().rev() {
            let Some(location) = self.locations.get(id) else {
                // The table is truncated.
                let function = format!("location {id}").into_bytes();
                site = sites.named(site, 0, Named { function, ..Named::default() });
                continue;
            };
            let module = self.mappings.get(&location.mapping).map_or(0, |mapping| mapping.1);
            if location.line.is_empty() {
                // Addresses are those of the call or after it. Sites have addresses after the call.
                let address = location.address.wrapping_add(1);
                site = sites.site(Site { parent: site, module, address, ..Site::default() });
            }
            for line in location.line.iter().rev() {
                let function = self.functions.get(&line.function).copied().unwrap_or_default();
                let named = Named {
                    function: self.text(function.name).into_bytes(),
                    file: self.text(function.file).into_bytes(),
                    line: u64::try_from(line.line).unwrap_or(0),
                };
                site = sites.named(site, location.address, named);
            }
        }
        site
    }
}
