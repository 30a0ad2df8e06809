//! The blocks that a forked child has from its parent. They are on its pages, and their events are
//! in the recording of the parent.

use crate::event::{Kind, Span};
use crate::load::{self, Process};
use crate::model::Model;
use crate::model::covered::Covered;
use crate::model::live_set::Block;
use crate::progress::Progress;
use crate::replay::replay;
use heaptape_formats::resident::LiveBlock;
use heaptape_formats::tape::Inherited;
use rustc_hash::FxHashSet;
use std::path::Path;

/// Maximum number of generations that are followed.
const MAX_ANCESTORS: usize = 8;

/// A process from which a child has blocks.
#[derive(Debug)]
pub struct Ancestor {
    pub process: Process,
    /// The number of its first call site in a list that has the sites of the child, and then those
    /// of each ancestor.
    pub first_site: u32,
}

/// The ancestors of a process, and the blocks that it has from them.
#[derive(Debug, Default)]
pub struct Ancestors {
    /// The processes, the parent first.
    pub processes: Vec<Ancestor>,
    blocks: Vec<LiveBlock>,
    /// Addresses of inherited blocks that the process has freed or reallocated.
    gone: Gone,
}

/// The addresses of inherited blocks that a process has freed or reallocated.
#[derive(Debug, Default)]
struct Gone(FxHashSet<u64>);

impl Model for Gone {
    fn inherited(&mut self, block: &Block, gone: Option<Kind>) {
        if gone.is_some() {
            self.0.insert(block.address);
        }
    }
}

impl Model for Ancestors {
    fn inherited(&mut self, block: &Block, gone: Option<Kind>) {
        self.gone.inherited(block, gone);
    }
}

/// Opens the recording of the parent, beside that of the child.
fn open_parent(child: &Path, record: &Inherited) -> Option<Process> {
    let name = record.parent.lossy();
    let is_plain = !name.is_empty() && !name.contains('/') && name != "..";
    let folder = child.parent().filter(|_| is_plain)?.join(&*name);
    load::open(&folder).ok()?.processes.into_iter().find(Process::knows_blocks)
}

impl Ancestors {
    /// Finds the ancestors of a forked child whose recordings are beside its own. The pages of
    /// their blocks are added to `covered`.
    pub fn of(process: &Process, progress: &Progress, covered: &mut Covered) -> Ancestors {
        let mut found = Ancestors::default();
        let mut first_site = process.stacks().len() as u32;
        let (mut next, mut folder) = (process.tape.inherited.clone(), process.path.clone());
        let mut gone = Gone::default();
        while let Some(record) = next.filter(|_| found.processes.len() < MAX_ANCESTORS) {
            let Some(parent) = open_parent(&folder, &record) else { break };
            let freed_later = std::mem::take(&mut gone);
            let span = Span { end_tick: record.tick.saturating_add(1), ..Span::ALL };
            let live = replay(&parent, span, progress, &mut (&mut *covered, &mut gone)).live;
            let blocks = live.iter().filter(|(_, block)| !block.inherited && !freed_later.0.contains(&block.address));
            found.blocks.extend(blocks.map(|(_, block)| LiveBlock {
                address: block.address,
                size: block.size,
                tick: block.tick,
                site: first_site.saturating_add(block.site),
            }));
            gone.0.extend(freed_later.0);
            (next, folder) = (parent.tape.inherited.clone(), parent.path.clone());
            let sites = parent.stacks().len() as u32;
            found.processes.push(Ancestor { process: parent, first_site });
            first_site = first_site.saturating_add(sites);
        }
        found
    }

    /// Returns the blocks that the process has not freed.
    pub fn blocks(&self) -> impl Iterator<Item = LiveBlock> + '_ {
        self.blocks.iter().filter(|block| !self.gone.0.contains(&block.address)).copied()
    }
}
