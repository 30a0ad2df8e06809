//! What a process adds to sums that outlive it: its sites by module and offset, so that processes
//! loaded at different addresses add up.

use crate::code::{self, Named};
use crate::module_files::ModuleFiles;
use crate::profile::{Profile, Sums as ClassSums};
use crate::stacks::Stacks;
use crate::store::Sums;
use crate::symbols::Opened;
use formats::mptl::Bins;
use formats::tape::field::Text;
use formats::tape::{Module, Record, SiteSums, Totals, instruction};

/// One frame of a tree of call sites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Place of the caller in the same list, counted from 1; 0 for the outermost.
    pub parent: u32,
    /// Place of the module in the list of modules, counted from 1; 0 where none is known.
    pub module: u32,
    /// Link-time address; where no module is known the run-time address, or, with `is_named`, a
    /// place in the list of names.
    pub address: u64,
    /// Whether it has a name in place of module and address.
    pub is_named: bool,
    /// The tape's flags.
    pub flags: u8,
}

/// What a site counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Sums since the attach.
    pub sums: SiteSums,
    /// The same by MPTL's classes.
    pub classes: [ClassSums; 4],
    /// Of these, what was added since the last contribution.
    pub since: Flow,
}

/// What was added in a while.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Allocations.
    pub allocs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Frees of blocks allocated here.
    pub frees: u64,
    /// Their bytes.
    pub freed_bytes: u64,
}

/// What one process adds.
#[derive(Clone, Debug)]
pub struct Contribution {
    /// Modules: `bias` and `start` are the process's own.
    pub modules: Vec<Module>,
    /// The file of each, and its separate debug information, as far as they are open.
    pub files: Vec<[Option<Opened>; 2]>,
    /// Names of code that no module describes.
    pub names: Vec<Text>,
    /// Call sites, callers first.
    pub frames: Vec<Frame>,
    /// Sums; `sums.site` counts frames from 1.
    pub rows: Vec<Row>,
    /// Totals.
    pub totals: Totals,
    /// Blocks by size.
    pub bins: Bins,
    /// Its ledger.
    pub account: Sums,
    /// Whether the process is over.
    pub is_over: bool,
    /// Whether it left no files, so that its sums must be kept here.
    pub whole: bool,
}

impl Contribution {
    /// What a process adds: all that it counted, and what came since `told`. Sites, and the names
    /// of code that no module describes.
    pub fn new(
        (stacks, named, files): (&Stacks, &[Named], &ModuleFiles),
        profile: &Profile,
        sums: Vec<SiteSums>,
        told: &[SiteSums],
        totals: Totals,
        account: Sums,
        (is_over, whole): (bool, bool),
    ) -> Contribution {
        let modules = stacks.announced().iter().filter_map(|(_, record)| match record {
            Record::Module(module) => Some(module.clone()),
            _ => None,
        });
        let modules: Vec<Module> = modules.collect();
        let files = modules.iter().map(|module| [files.file(module), files.debug(module)]).collect();
        let place = |number: u32| modules.iter().position(|module| number != 0 && module.number == number);
        let names = code::by_instruction(named);
        let frame = |(number, site): (u32, &formats::tape::Site)| {
            if let Some(name) = names.get(&instruction(site.address, site.flags)) {
                let address = *name as u64;
                return Frame { parent: site.parent, module: 0, address, is_named: true, flags: site.flags };
            }
            let module = place(stacks.module(number, site.address));
            let bias = module.map_or(0, |place| modules[place].bias);
            Frame {
                parent: site.parent,
                module: module.map_or(0, |place| place as u32 + 1),
                address: site.address.wrapping_sub(bias),
                is_named: false,
                flags: site.flags,
            }
        };
        let frames = (1..).zip(stacks.sites()).map(frame).collect();
        let row = |sums: SiteSums| {
            let old = told.binary_search_by_key(&sums.site, |row| row.site).map(|place| told[place].clone());
            let old = old.unwrap_or_default();
            let since = Flow {
                allocs: sums.allocs.saturating_sub(old.allocs),
                bytes: sums.bytes.saturating_sub(old.bytes),
                frees: sums.frees.saturating_sub(old.frees),
                freed_bytes: sums.freed_bytes.saturating_sub(old.freed_bytes),
            };
            let classes = profile.classes(sums.site).unwrap_or_default();
            Row { sums, classes, since }
        };
        let rows = sums.into_iter().map(row).collect();
        let names = named.iter().map(|(range, _)| range.name.clone()).collect();
        Contribution {
            modules,
            files,
            names,
            frames,
            rows,
            totals,
            bins: profile.bins().clone(),
            account,
            is_over,
            whole,
        }
    }
}
