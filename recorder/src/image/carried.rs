//! The live blocks of a process on their way from one daemon to the next: written when a daemon
//! leaves the process in good order, read and removed by the one that takes it over. Stacks go by
//! their nodes, which stay in the area.

use super::Image;
use crate::live::Call;
use crate::process::replace_file;
use crate::store::Piece;
use crate::trace::Chunk;
use formats::tape::Entry;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use wire::Op;

/// Begins the file. Eight bytes follow, [`Stats::live_since_unix_ns`](crate::session::Stats), and
/// then the blocks.
const MAGIC: &[u8; 8] = b"HTLIVE2\0";
/// A block: address, size, bytes that it stands for, node.
const BLOCK: usize = 28;

impl Image {
    /// Writes the live blocks down for the next daemon.
    pub fn leave(&mut self) {
        self.is_left = true;
        let Some(path) = self.session.carried.clone() else { return };
        let nodes: HashMap<u32, u32> = self.stacks.nodes().collect();
        let mut blocks: Vec<_> = self.live.index().iter().collect();
        blocks.sort_unstable_by_key(|(_, block)| block.index);
        let mut bytes = Vec::with_capacity(MAGIC.len() + 8 + blocks.len() * BLOCK);
        bytes.extend(MAGIC);
        bytes.extend(self.session.stats.live_since_unix_ns.load(Relaxed).to_le_bytes());
        for (address, block) in blocks {
            let stands_for = self.standing.as_ref().and_then(|standing| standing.get(block.index));
            bytes.extend(address.to_le_bytes());
            bytes.extend(block.size.to_le_bytes());
            bytes.extend(stands_for.map_or(block.size, |amount| amount.bytes).to_le_bytes());
            bytes.extend(nodes.get(&block.site).copied().unwrap_or(0).to_le_bytes());
        }
        if let Err(error) = replace_file(&path, &bytes, None) {
            tracing::warn!("{}: the next daemon will not know what lives: {error}", path.display());
        }
    }

    /// Begins with what the last daemon left.
    pub fn resume(&mut self, spare: &mut dyn FnMut() -> Chunk, out: &mut dyn FnMut(Piece)) {
        let Some(path) = self.session.carried.clone().filter(|_| self.session.resumed) else { return };
        let read = std::fs::read(&path).and_then(|bytes| {
            let rest = bytes.strip_prefix(MAGIC).and_then(<[u8]>::split_first_chunk::<8>);
            let rest = rest.filter(|(_, blocks)| blocks.len().is_multiple_of(BLOCK));
            let known = rest.map(|(since, blocks)| (u64::from_le_bytes(*since), blocks.to_vec()));
            known.ok_or_else(|| io::ErrorKind::InvalidData.into())
        });
        let _ = std::fs::remove_file(&path);
        let (since, blocks) = match read {
            Ok(known) => known,
            Err(error) => {
                let why =
                    if error.kind() == io::ErrorKind::NotFound { "it was killed".into() } else { error.to_string() };
                return self.note(format!(
                    "taken over from another daemon: what lived before is not known ({why}), and frees of it are of unknown blocks"
                ));
            }
        };
        self.note(format!("taken over from another daemon, with {} live blocks", blocks.len() / BLOCK));
        self.session.stats.live_since_unix_ns.store(since, Relaxed);
        self.begin();
        for block in blocks.chunks_exact(BLOCK) {
            let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| block[at + byte]));
            let node = u32::from_le_bytes(std::array::from_fn(|byte| block[24 + byte]));
            let (address, size, weight) = (word(0), word(8), word(16));
            let site = self.stacks.site(node, &mut self.before);
            let tick = self.last_tick;
            let call = Call { op: Op::MALLOC, thread: 0, site, address, size, weight, tick };
            self.profile.grow(self.stacks.last());
            let done = self.live.apply(&call, false, &mut self.effects);
            self.effects.extend(done.effect(&call));
            self.effects.iter_mut().for_each(|effect| effect.entry = Entry::Carried as u8);
            self.account();
            if self.trace.events() >= super::CHUNK_EVENTS {
                self.cut(spare(), out);
                self.begin();
            }
        }
        // They are not this daemon's doing.
        self.parts.told = self.profile.site_sums();
        self.news = (true, true);
    }
}
