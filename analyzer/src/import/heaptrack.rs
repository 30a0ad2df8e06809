//! Imports heaptrack files. Events are summed as they are read. The peak is found in the same pass,
//! in memory that is proportional to the number of call stacks.

use super::{Imported, Sites, split_command};
use crate::event::Span;
use crate::event::{Event, Kind};
use crate::model::Model;
use crate::model::call_sites::CallSites;
use crate::model::live_set::Block;
use crate::model::peak::Peak;
use crate::model::totals::Totals;
use crate::stacks::{Named, Site};
use heaptape_formats::Ending;
use heaptape_formats::heaptrack::{FrameName, Line, ReadError, Reader};
use std::io::BufRead;

/// An entry of the table of addresses.
#[derive(Clone)]
struct AddressEntry {
    address: u64,
    /// Number of the module's text.
    module: u64,
    /// Names of the inlined functions and the function, innermost first.
    names: Vec<FrameName>,
}

/// Reads a heaptrack file.
///
/// # Errors
/// Returns an error if reading fails, or if the content is not a heaptrack file.
pub(super) fn read(from: impl BufRead) -> Result<(Imported, Ending), ReadError> {
    let mut reader = Reader::new(from);
    let mut tables = Tables::default();
    let (mut totals, mut sites, mut peak) = (Totals::default(), CallSites::default(), Peak::within(Span::ALL));
    let (mut argv, mut time, mut number) = (Vec::new(), 0u64, 0);
    let mut unknown = 0u64;
    let mut suppressions = Vec::new();
    while let Some(line) = reader.next()? {
        match line {
            Line::Command(text) => argv = split_command(&String::from_utf8_lossy(&text)),
            Line::Text(text) => tables.texts.push(text),
            Line::Address { address, module, names } => tables.addresses.push(AddressEntry { address, module, names }),
            Line::Stack { address, parent } => tables.stack(address, parent),
            Line::Info { size, stack } => {
                let site = tables.stack_of(stack);
                tables.infos.push((Block { size, site, ..Block::default() }, 0));
            }
            Line::Milliseconds(now) => time = now.saturating_mul(1_000_000),
            Line::Alloc(info) => {
                let Some((block, live)) = tables.info(info) else {
                    unknown += 1;
                    continue;
                };
                *live += 1;
                let event = event(Kind::Alloc, block, number, time);
                (&mut totals, &mut sites, &mut peak).alloc(&event, block);
                number += 1;
            }
            Line::Free(info) => {
                let Some((block, live)) = tables.info(info).filter(|(_, live)| **live > 0) else {
                    unknown += 1;
                    continue;
                };
                *live -= 1;
                let event = event(Kind::Free, block, number, time);
                (&mut totals, &mut sites, &mut peak).free(&event, Some(block));
                number += 1;
            }
            Line::Suppression(text) => suppressions.push(String::from_utf8_lossy(&text).into_owned()),
            Line::Version { .. } | Line::System { .. } | Line::Attached | Line::Resident(_) | Line::Other(_) => {}
        }
    }
    let mut rows = sites.sums();
    for row in &mut rows {
        let held = peak.at_peak(row.site);
        (row.peak_blocks, row.peak_bytes) = (held.blocks, held.bytes);
    }
    let mut totals = totals.finish(None);
    (totals.frees, totals.unknown_frees) = (totals.frees + unknown, unknown);
    let imported = Imported {
        stacks: tables.sites.stacks,
        sums: rows,
        totals,
        has_peak: true,
        suppressions,
        argv,
        duration_ns: time,
        ..Imported::default()
    };
    Ok((imported, reader.ending().unwrap_or(Ending::Complete)))
}

fn event(kind: Kind, block: &Block, number: u64, tick: u64) -> Event {
    let Block { size, site, .. } = *block;
    Event { site, number, size, tick, ..Event::of(kind) }
}

/// The tables of the file. Numbers of texts, addresses and stacks start from 1, numbers of
/// allocation infos from 0.
#[derive(Default)]
struct Tables {
    texts: Vec<Vec<u8>>,
    addresses: Vec<AddressEntry>,
    stacks: Vec<u32>,
    /// A block with size and site, and the number of live blocks like it.
    infos: Vec<(Block, u64)>,
    sites: Sites,
}

impl Tables {
    fn text(&self, number: u64) -> Vec<u8> {
        let index = usize::try_from(number).unwrap_or(0).checked_sub(1);
        index.and_then(|index| self.texts.get(index)).cloned().unwrap_or_default()
    }

    fn stack_of(&self, number: u64) -> u32 {
        let index = usize::try_from(number).unwrap_or(0).checked_sub(1);
        index.and_then(|index| self.stacks.get(index)).copied().unwrap_or(0)
    }

    fn info(&mut self, number: u64) -> Option<(&Block, &mut u64)> {
        let (block, live) = self.infos.get_mut(usize::try_from(number).ok()?)?;
        Some((block, live))
    }

    fn stack(&mut self, address: u64, parent: u64) {
        let parent = self.stack_of(parent);
        let index = usize::try_from(address).unwrap_or(0).checked_sub(1);
        let site = match index.and_then(|index| self.addresses.get(index)).cloned() {
            None => self.sites.site(Site { parent, address: 0, ..Site::default() }),
            Some(AddressEntry { address, module, names }) if names.is_empty() => {
                let module = self.text(module);
                let module = module.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
                let function = format!("{address:#x} ({})", String::from_utf8_lossy(module)).into_bytes();
                let named = Named { function, ..Named::default() };
                self.sites.named(parent, address, named)
            }
            Some(AddressEntry { address, module, names }) => {
                let mut site = parent;
                for name in names.iter().rev() {
                    let file = if name.file == 0 { self.text(module) } else { self.text(name.file) };
                    let named = Named { function: self.text(name.function), file, line: name.line };
                    site = self.sites.named(site, address, named);
                }
                site
            }
        };
        self.stacks.push(site);
    }
}
