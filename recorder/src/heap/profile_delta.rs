//! What a process contributes to the sums of its program: its sites by module and offset, so that
//! processes that were loaded at different addresses can be added.

use crate::heap::profile::{Profile, Sums as ClassSums};
use crate::heap::stacks::Stacks;
use crate::target::jit_names::{self, NamedRange};
use crate::target::module_files::ModuleFiles;
use crate::target::name_saver::Opened;
use formats::mptl::Bins;
use formats::recording::Accounting;
use formats::tape::field::Text;
use formats::tape::{Module, Record, SiteSums, Totals, instruction};

/// One frame of the tree of call sites.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Position of the caller in the same list, counted from 1; 0 for the outermost frame.
    pub parent: u32,
    /// Position of the module in the list of modules, counted from 1; 0 where none is known.
    pub module: u32,
    /// Link-time address. Where no module is known, the run-time address, or, with `is_named`, an
    /// index in the list of names.
    pub address: u64,
    /// Whether the frame has a name instead of module and address.
    pub is_named: bool,
    /// Flags of the site, as in the tape.
    pub flags: u8,
}

/// The counters of a site.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Sums since the attach.
    pub sums: SiteSums,
    /// The same sums by MPTL's size classes.
    pub classes: [ClassSums; 4],
    /// What was added since the last contribution.
    pub since: Delta,
}

/// What was added in a period of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// Number of allocations at the site.
    pub allocs: u64,
    /// Number of bytes allocated.
    pub bytes: u64,
    /// Number of frees of blocks that were allocated at the site.
    pub frees: u64,
    pub freed_bytes: u64,
}

/// The contribution of one process.
#[derive(Clone, Debug)]
pub struct ProfileDelta {
    /// Modules of the process; `bias` and `start` are those of the process.
    pub modules: Vec<Module>,
    /// File of each module and of its separate debug information, if they are open.
    pub files: Vec<[Option<Opened>; 2]>,
    /// Names of code that no module describes.
    pub names: Vec<Text>,
    /// Call sites, each after its caller.
    pub frames: Vec<Frame>,
    /// Sums of the sites; `sums.site` is a position in `frames`, counted from 1.
    pub rows: Vec<Row>,
    pub totals: Totals,
    /// Number of blocks by size.
    pub bins: Bins,
    /// Accounting of the events of the process.
    pub account: Accounting,
    /// Whether the process has ended.
    pub is_over: bool,
    /// Whether the process left no files, so that its sums must be kept in those of its program.
    pub has_no_files: bool,
}

/// The process, or the segment of it, that makes a contribution.
#[derive(Debug)]
pub(crate) struct Contributor<'a> {
    /// Call sites and modules of the process.
    pub stacks: &'a Stacks,
    /// The names of code that no module describes.
    pub named: &'a [NamedRange],
    /// The open files of the modules.
    pub files: &'a ModuleFiles,
    /// Counters of each call site.
    pub profile: &'a Profile,
    pub totals: Totals,
    /// Accounting of the events of the process.
    pub account: Accounting,
    /// Whether the process has ended.
    pub is_over: bool,
    /// Whether the process left no files.
    pub has_no_files: bool,
}

impl ProfileDelta {
    /// Returns the contribution of a process: all that it counted, and the difference to
    /// `previous`, the sums of the last contribution.
    pub(crate) fn new(contributor: Contributor<'_>, sums: Vec<SiteSums>, previous: &[SiteSums]) -> ProfileDelta {
        let Contributor { stacks, named, files, profile, totals, account, is_over, has_no_files } = contributor;
        let modules = stacks.announced().iter().filter_map(|(_, record)| match record {
            Record::Module(module) => Some(module.clone()),
            _ => None,
        });
        let modules: Vec<Module> = modules.collect();
        let files = modules.iter().map(|module| [files.file(module), files.debug(module)]).collect();
        let index_of = |number: u32| modules.iter().position(|module| number != 0 && module.number == number);
        let names = jit_names::by_instruction(named);
        let frame = |(number, site): (u32, &formats::tape::Site)| {
            if let Some(name) = names.get(&instruction(site.address, site.flags)) {
                let address = *name as u64;
                return Frame { parent: site.parent, module: 0, address, is_named: true, flags: site.flags };
            }
            let module = index_of(stacks.module(number, site.address));
            let bias = module.map_or(0, |index| modules[index].bias);
            Frame {
                parent: site.parent,
                module: module.map_or(0, |index| index as u32 + 1),
                address: site.address.wrapping_sub(bias),
                is_named: false,
                flags: site.flags,
            }
        };
        let frames = (1..).zip(stacks.sites()).map(frame).collect();
        let row = |sums: SiteSums| {
            let old = previous.binary_search_by_key(&sums.site, |row| row.site).map(|index| previous[index].clone());
            let old = old.unwrap_or_default();
            let since = Delta {
                allocs: sums.allocs.saturating_sub(old.allocs),
                bytes: sums.bytes.saturating_sub(old.bytes),
                frees: sums.frees.saturating_sub(old.frees),
                freed_bytes: sums.freed_bytes.saturating_sub(old.freed_bytes),
            };
            let classes = profile.classes(sums.site).unwrap_or_default();
            Row { sums, classes, since }
        };
        let rows = sums.into_iter().map(row).collect();
        let names = named.iter().map(|named| named.range.name.clone()).collect();
        ProfileDelta {
            modules,
            files,
            names,
            frames,
            rows,
            totals,
            bins: profile.bins().clone(),
            account,
            is_over,
            has_no_files,
        }
    }
}
