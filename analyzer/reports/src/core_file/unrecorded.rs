//! What the memory of a core says of addresses where nothing was recorded: the blocks of glibc's
//! malloc, who holds them, and where its bookkeeping is damaged.

use super::{Candidate, FAULT, NEAR, NeighborRow, PlaceRow, Question};
use crate::address::BlockRow;
use heaptape_analyzer::Core;
use heaptape_analyzer::report::holders::Holders;
use heaptape_analyzer::report::lost;
use heaptape_analyzer::text::{Screen, bytes, count, counted};
use heaptape_formats::glibc_heap::{Chunk, Fault, Heap, State};
use serde::Serialize;
use std::io;

/// The heap in a core.
#[derive(Serialize)]
pub(super) struct HeapRow {
    arenas: u64,
    live_blocks: u64,
    live_bytes: u64,
    free_blocks: u64,
    free_bytes: u64,
    lost_blocks: u64,
    lost_bytes: u64,
    /// Where its bookkeeping is damaged.
    pub(super) damage: Vec<DamageRow>,
}

#[derive(Serialize)]
pub(super) struct DamageRow {
    address: String,
    what: String,
    /// The block before it, with what it is.
    pub(super) before: Option<NeighborRow>,
    /// Bytes from there on of which nothing is known.
    unknown_bytes: u64,
}

/// The blocks of a core, with who holds them.
pub(super) struct Blocks<'a> {
    heap: Option<&'a Heap>,
    holders: Option<Holders<'a>>,
    lost_blocks: u64,
    lost_bytes: u64,
}

impl<'a> Blocks<'a> {
    pub(super) fn of(core: &'a Core, mut holders: Option<Holders<'a>>) -> Blocks<'a> {
        let lost = holders.as_mut().map(|holders| lost::find(holders).amount).unwrap_or_default();
        Blocks { heap: core.heap.as_ref(), holders, lost_blocks: lost.blocks, lost_bytes: lost.bytes }
    }

    /// Returns what the block at an address is; its size is said elsewhere.
    fn label(&self, chunk: &Chunk) -> String {
        let number = |holders: &Holders<'_>| holders.snapshot.graph.at(chunk.address);
        let known = self.holders.as_ref().and_then(|holders| Some(holders.label(number(holders)?)));
        match (chunk.state(), known) {
            (State::Live, Some(label)) if label.is_type => label.text.clone(),
            (State::Live, _) => "a live block".into(),
            (State::Own, _) => "a cache of a thread".into(),
            (State::Unknown, _) => "damaged memory".into(),
            _ => "free memory".into(),
        }
    }

    /// Returns the way in which a live block is held, from what holds it to the root.
    fn held_by(&self, chunk: &Chunk) -> Vec<String> {
        let Some(holders) = self.holders.as_ref().filter(|_| chunk.state() == State::Live) else { return Vec::new() };
        let Some(number) = holders.snapshot.graph.at(chunk.address) else { return Vec::new() };
        let mut paths = holders.paths(1, std::iter::once((0, number)));
        let path = paths.pop().and_then(|paths| paths.into_iter().next());
        path.map(|path| path.steps.into_iter().skip(1).collect()).unwrap_or_default()
    }

    fn neighbor(&self, chunk: &Chunk, distance: u64) -> NeighborRow {
        let line = self.label(chunk);
        NeighborRow { address: format!("{:#x}", chunk.address), bytes: chunk.usable(), distance, line }
    }

    /// Returns what an address is, if it is in the heap, or the fault right behind a block.
    pub(super) fn place(&self, candidate: &Candidate) -> Option<PlaceRow> {
        let (heap, address) = (self.heap?, candidate.address);
        let after = heap.chunks.partition_point(|chunk| chunk.address <= address);
        let is_fault = candidate.found_in.first().is_some_and(|first| first == FAULT);
        let near = |chunk: &&Chunk| is_fault && i128::from(address) - i128::from(chunk.end()) < NEAR;
        let last = || heap.chunks[..after].last().filter(near);
        let chunk = heap.at(address).or_else(last)?;
        let number = heap.chunks.partition_point(|other| other.address < chunk.address);
        let (is_free, offset) = (chunk.state().is_free(), i128::from(address) - i128::from(chunk.address));
        let is_live = |chunk: &&Chunk| chunk.state() == State::Live;
        let below = heap.chunks[..number].iter().rev().find(is_live);
        let above = heap.chunks[number + 1..].iter().find(is_live);
        let row = BlockRow::without_history(chunk.address, chunk.usable(), offset, is_free);
        let held_by = self.held_by(chunk);
        let is_known = self.holders.as_ref().is_some_and(|holders| holders.snapshot.lacks().is_none());
        let holder = match held_by.first() {
            Some(_) => format!(", held by {}", held_by.join(" <- ")),
            None if chunk.state() == State::Live && is_known => ", to which no pointer was found".into(),
            None => String::new(),
        };
        Some(PlaceRow {
            address: format!("{address:#x}"),
            found_in: candidate.found_in.clone(),
            what: format!("{}{holder}", self.what(chunk, offset)),
            is_freed: is_free,
            blocks: if chunk.state() == State::Own { Vec::new() } else { vec![row] },
            older_blocks: 0,
            below: below.map(|chunk| self.neighbor(chunk, address.saturating_sub(chunk.end()))),
            above: above.map(|chunk| self.neighbor(chunk, chunk.address.saturating_sub(address))),
            held_by,
        })
    }

    fn what(&self, chunk: &Chunk, offset: i128) -> String {
        let (start, size) = (chunk.address, chunk.usable());
        let place = match offset {
            before if before < 0 => "the header".to_owned(),
            within if within < i128::from(size) => format!("byte {within}"),
            after => format!("{} behind the end", counted((after - i128::from(size)) as u64, "byte")),
        };
        let memory = match chunk.state() {
            State::Live | State::Unknown => format!("{} of {}", self.label(chunk), counted(size, "byte")),
            State::Cached => format!("{} freed bytes in the cache of a thread", count(size)),
            State::Fast => format!("{} freed bytes in a fast bin", count(size)),
            State::Binned => format!("{} freed bytes in a bin", count(size)),
            State::Top => return "in the free end of a heap".into(),
            State::Own => return "in a cache of a thread, which is malloc's own".into(),
        };
        format!("{place} of {memory} at {start:#x}")
    }

    /// Returns the sums of the heap, and its damage.
    pub(super) fn row(&self) -> Option<HeapRow> {
        let heap = self.heap?;
        let mut row = HeapRow {
            arenas: heap.arenas as u64,
            live_blocks: 0,
            live_bytes: 0,
            free_blocks: 0,
            free_bytes: 0,
            lost_blocks: self.lost_blocks,
            lost_bytes: self.lost_bytes,
            damage: heap.faults.iter().map(|fault| self.damage(fault)).collect(),
        };
        for chunk in &heap.chunks {
            let (blocks, bytes) = match chunk.state() {
                State::Live => (&mut row.live_blocks, &mut row.live_bytes),
                State::Own | State::Unknown => continue,
                _ => (&mut row.free_blocks, &mut row.free_bytes),
            };
            *blocks += 1;
            *bytes += chunk.usable();
        }
        Some(row)
    }

    fn damage(&self, fault: &Fault) -> DamageRow {
        DamageRow {
            address: format!("{:#x}", fault.address),
            what: fault.what.clone(),
            before: fault.before.map(|chunk| self.neighbor(&chunk, fault.address.saturating_sub(chunk.end()))),
            unknown_bytes: fault.unknown,
        }
    }
}

impl Question<'_> {
    /// Returns the places of the addresses in the heap.
    pub(super) fn unrecorded_places(&self, blocks: &Blocks<'_>) -> Vec<PlaceRow> {
        self.candidates().iter().filter_map(|candidate| blocks.place(candidate)).collect()
    }
}

impl HeapRow {
    /// Returns the damage as the end of a sentence.
    pub(super) fn damage(&self) -> Option<String> {
        let first = self.damage.first()?;
        Some(format!("the heap is damaged at {}: {}", first.address, first.what))
    }

    /// Prints it; what is lost may be said already.
    pub(super) fn print(&self, is_said: bool, screen: &mut Screen) -> io::Result<()> {
        screen.heading("Heap of glibc")?;
        let arenas = counted(self.arenas, "arena");
        let live = format!("{} live in {}", bytes(self.live_bytes), counted(self.live_blocks, "block"));
        screen.line(&format!("  {live}, {} free, in {arenas}", bytes(self.free_bytes)))?;
        if self.lost_blocks > 0 && !is_said {
            let lost = counted(self.lost_blocks, "block");
            screen.line(&format!("  lost: {} in {lost} (heaptape holds --lost CORE)", bytes(self.lost_bytes)))?;
        }
        for DamageRow { address, what, before, unknown_bytes } in &self.damage {
            screen.line(&format!("  damaged at {address}: {what}"))?;
            if let Some(NeighborRow { address, bytes, line, .. }) = before {
                screen.line(&format!("    before it: {line} of {} at {address}", counted(*bytes, "byte")))?;
            }
            if *unknown_bytes > 0 {
                screen.line(&format!("    {} from there on are unknown", counted(*unknown_bytes, "byte")))?;
            }
        }
        Ok(())
    }
}
