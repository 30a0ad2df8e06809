//! Imports text heap profiles of jemalloc, gperftools, Go and Java: allocated and live memory by
//! call stack. The mapped files come after the samples, so the bytes are read twice.

use super::link_bias::link_bias;
use super::{ReadResult, Sites};
use crate::stacks::{FilePart, Module, Named, Site};
use heaptape_formats::heap_text::{Mapping, Name, Reader, Record, Sample};
use heaptape_formats::{Ending, Error};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;

/// Parses a text heap profile.
///
/// # Errors
/// Returns an error if the bytes are not such a profile.
pub(super) fn read(bytes: &[u8]) -> ReadResult {
    let mut tables = Tables::default();
    let mut sites = Sites::default();
    let mut reader = Reader::new(bytes)?;
    while let Some(record) = reader.next()? {
        match record {
            Record::Mapping(mapping) => tables.add(mapping, &mut sites),
            Record::Name(name) => drop(tables.names.insert(name.address, named(name))),
            Record::Sample(_) | Record::Frame(_) => {}
        }
    }
    let ending = reader.ending().unwrap_or(Ending::Complete);
    let mean = reader.head().mean();
    let mut reader = Reader::new(bytes)?;
    let mut next = reader.next()?;
    while let Some(record) = next {
        next = reader.next()?;
        let Record::Sample(sample) = record else { continue };
        let frames = frames(&mut reader, &mut next)?;
        let site = if frames.is_empty() { tables.site(&sample, &mut sites) } else { named_site(frames, &mut sites) };
        let (live, all) = (sample.live.estimate(mean), sample.allocated.estimate(mean));
        // If the profile has only live values, these count as allocated.
        let (bytes, allocs) = (all.bytes.max(live.bytes), all.blocks.max(live.blocks));
        let sums = sites.sums(site);
        sums.bytes = sums.bytes.saturating_add(bytes);
        sums.allocs = sums.allocs.saturating_add(allocs);
        sums.freed_bytes = sums.freed_bytes.saturating_add(bytes - live.bytes);
        sums.frees = sums.frees.saturating_add(allocs - live.blocks);
    }
    let mut imported = sites.finish(false);
    if mean > 1 {
        imported.notes.push(sampled(mean));
    }
    imported.argv = tables.program.filter(|path| !path.is_empty()).into_iter().collect();
    Ok((imported, ending))
}

/// Returns what a profile of samples says of itself.
fn sampled(mean: u64) -> String {
    format!("sampled, a block for each {} allocated: bytes and blocks are estimates", crate::text::bytes(mean))
}

/// Takes the names of the frames of the sample before `next`, innermost first.
fn frames(reader: &mut Reader<'_>, next: &mut Option<Record>) -> Result<Vec<Name>, Error> {
    let mut frames = Vec::new();
    while matches!(next, Some(Record::Frame(_))) {
        if let Some(Record::Frame(name)) = std::mem::replace(next, reader.next()?) {
            frames.push(name);
        }
    }
    Ok(frames)
}

fn named(name: Name) -> Named {
    Named { function: name.function.into_bytes(), file: name.file.into_bytes(), line: name.line }
}

/// Returns the site of frames that the file names.
fn named_site(frames: Vec<Name>, sites: &mut Sites) -> u32 {
    frames.into_iter().rev().fold(0, |parent, name| sites.named(parent, name.address, named(name)))
}

#[derive(Default)]
struct Tables {
    /// Number of each module, by the start of its mapping.
    modules: BTreeMap<u64, u32>,
    names: FxHashMap<u64, Named>,
    /// The first file with code, which is the program; empty if the profile does not name it.
    program: Option<String>,
}

impl Tables {
    fn add(&mut self, mapping: Mapping, sites: &mut Sites) {
        let Mapping { start, end, offset, executable, path } = mapping;
        if !executable {
            return;
        }
        self.program.get_or_insert_with(|| path.clone());
        if path.is_empty() || path.starts_with('[') {
            return;
        }
        let mapped = offset.map_or(FilePart::Whole, FilePart::From);
        let bias = link_bias(&path, start, mapped);
        let modules = &mut sites.stacks.modules;
        modules.push(Module { start, end, bias, path: path.into_bytes(), mapped: Some(mapped), ..Module::default() });
        self.modules.insert(start, modules.len() as u32);
    }

    /// Returns the site of the stack of a sample.
    fn site(&self, sample: &Sample, sites: &mut Sites) -> u32 {
        let mut site = 0;
        for &address in sample.addresses.iter().rev() {
            if let Some(named) = self.names.get(&address) {
                site = sites.named(site, address, named.clone());
                continue;
            }
            // A return address may be the first byte after its module.
            let module = self.modules.range(..address).next_back().map_or(0, |(_, module)| *module);
            let ends = sites.stacks.modules.get((module as usize).wrapping_sub(1)).map_or(0, |module| module.end);
            let module = if address <= ends { module } else { 0 };
            site = sites.site(Site { parent: site, module, address, ..Site::default() });
        }
        site
    }
}
