//! The file that hands the live blocks of a process over from one daemon to the next. The daemon
//! that leaves the process in good order writes it, and the one that takes it over reads and
//! removes it. Stacks are stored as their nodes, which stay in the area.

use super::ProcessRecording;
use super::carried_mappings::path_of;
use crate::heap::live::Call;
use crate::heap::thread_number::ThreadNumber;
use crate::os::replace_file::{Durability, replace_file};
use crate::store::trace::Chunk;
use crate::store::writer::WriteJob;
use formats::tape::{Entry, SEGMENT_CARRIED, SEGMENT_UNKNOWN};
use std::collections::HashMap;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use wire::Op;

/// The first bytes of the file. Eight bytes follow,
/// [`Stats::live_since_unix_ns`](crate::session::traced_process::Stats), and then the blocks.
const MAGIC: &[u8; 8] = b"HTLIVE2\0";
/// Length of a block in bytes: address, size, bytes that it represents, node.
const BLOCK: usize = 28;

impl ProcessRecording {
    /// Writes the live blocks for the next daemon.
    pub fn hand_over(&mut self) {
        self.is_handed_over = true;
        // The next daemon may be of a version that does not know these records.
        self.session.mapping.header().record_mappings.store(0, Relaxed);
        self.settle(u64::MAX);
        let Some(path) = self.session.carried_over.clone() else { return };
        let nodes: HashMap<u32, u32> = self.stacks.nodes().collect();
        let mut blocks: Vec<_> = self.heap.index().iter().collect();
        blocks.sort_unstable_by_key(|(_, block)| block.index);
        let mut bytes = Vec::with_capacity(MAGIC.len() + 8 + blocks.len() * BLOCK);
        bytes.extend(MAGIC);
        bytes.extend(self.session.stats.live_since_unix_ns.load(Relaxed).to_le_bytes());
        for (address, block) in blocks {
            bytes.extend(address.to_le_bytes());
            bytes.extend(block.size.to_le_bytes());
            bytes.extend(self.heap.amount(&block).bytes.to_le_bytes());
            bytes.extend(nodes.get(&block.site).copied().unwrap_or(0).to_le_bytes());
        }
        if let Err(error) = replace_file(&path, &bytes, None, Durability::BeforeRename) {
            tracing::warn!("{}: the next daemon will not know the live blocks: {error}", path.display());
        }
        self.hand_over_mappings(&path, &bytes[MAGIC.len() + 8..], &nodes);
    }

    /// Starts with the live blocks from the last daemon.
    pub fn resume(&mut self, spare: &mut dyn FnMut() -> Chunk, out: &mut dyn FnMut(WriteJob)) {
        let Some(path) = self.session.carried_over.clone().filter(|_| self.session.resumed) else { return };
        let read = std::fs::read(&path).and_then(|bytes| {
            let rest = bytes.strip_prefix(MAGIC).and_then(<[u8]>::split_first_chunk::<8>);
            let rest = rest.filter(|(_, blocks)| blocks.len().is_multiple_of(BLOCK));
            let known = rest.map(|(since, blocks)| (u64::from_le_bytes(*since), blocks.to_vec()));
            known.ok_or_else(|| io::ErrorKind::InvalidData.into())
        });
        let _ = std::fs::remove_file(&path);
        if read.is_err() {
            let _ = std::fs::remove_file(path_of(&path));
        }
        let (since, blocks) = match read {
            Ok(known) => known,
            Err(error) => {
                self.begin_segment(SEGMENT_UNKNOWN, 0);
                let why =
                    if error.kind() == io::ErrorKind::NotFound { "it was killed".into() } else { error.to_string() };
                return self.note(format!(
                    "taken over from another daemon: what lived before is not known ({why}), and frees of it are of unknown blocks"
                ));
            }
        };
        self.session.stats.live_since_unix_ns.store(since, Relaxed);
        self.begin_segment(SEGMENT_CARRIED, (blocks.len() / BLOCK) as u64);
        let unknown =
            if self.resume_mappings(&path, &blocks) { "" } else { "; what it had mapped before is not known" };
        self.note(format!("taken over from another daemon, with {} live blocks{unknown}", blocks.len() / BLOCK));
        self.prepare_events();
        for block in blocks.chunks_exact(BLOCK) {
            let number = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| block[at + byte]));
            let node = u32::from_le_bytes(std::array::from_fn(|byte| block[24 + byte]));
            let (address, size, weight) = (number(0), number(8), number(16));
            let site = self.stacks.site(node, self.output.records());
            let tick = self.last_tick;
            let call = Call { op: Op::MALLOC, thread: ThreadNumber::NONE, site, address, size, weight, tick };
            self.heap.grow(self.stacks.last());
            self.heap.add_carried(&call, Entry::Carried as u8, self.output.trace());
            if self.output.is_chunk_full() {
                self.finish_chunk(spare(), out);
                self.prepare_events();
            }
        }
        // These blocks do not count as allocations of this daemon's epoch.
        self.segments.set_last_contribution(self.heap.profile().site_sums());
        self.schedule.note_events();
    }
}
