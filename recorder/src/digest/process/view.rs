//! The call sites of a process for live views.

use super::ProcessRecording;
use super::growth::SiteGrowth;
use crate::target::jit_names;
use formats::tape::field::Text;
use formats::tape::{self, Record as TapeRecord, SiteSums};

/// A call site with its stack, for a live view.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ViewSite {
    pub site: u32,
    pub live_bytes: u64,
    pub live_blocks: u64,
    /// Number of blocks allocated since the attach.
    pub allocs: u64,
    /// Number of bytes allocated since the attach.
    pub bytes: u64,
    /// How the live bytes changed since the last check; `None` in the first minute.
    pub growth: Option<SiteGrowth>,
    /// Frames of the stack, innermost first.
    pub stack: Vec<ViewFrame>,
}

/// A frame of the stack of a site.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ViewFrame {
    /// Number of the module; 0 for none.
    pub module: u32,
    pub address: u64,
    /// Name of code that no file describes.
    pub code: Option<Text>,
}

/// The call sites of a process.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// The sites with the most live bytes.
    pub sites: Vec<ViewSite>,
    pub modules: Vec<tape::Module>,
}

impl ProcessRecording {
    /// Returns the sites with the most live bytes.
    pub(super) fn view(&mut self, max_sites: usize) -> View {
        let mut rows: Vec<(u32, u64, SiteSums)> = Vec::new();
        for row in self.heap.profile().site_sums() {
            rows.push((row.site, row.bytes - row.freed_bytes, row));
        }
        rows.sort_unstable_by_key(|(site, live, _)| (std::cmp::Reverse(*live), *site));
        rows.truncate(max_sites);
        let modules = self.stacks.announced().iter().filter_map(|(_, record)| match record {
            TapeRecord::Module(module) => Some(module.clone()),
            _ => None,
        });
        let modules: Vec<tape::Module> = modules.collect();
        self.named_code();
        let named = self.names.named();
        let names = jit_names::by_instruction(named);
        let frame = |(module, site): (u32, &tape::Site)| {
            let index = names.get(&tape::instruction(site.address, site.flags));
            ViewFrame { module, address: site.address, code: index.map(|index| named[*index].range.name.clone()) }
        };
        let site = |(site, live_bytes, row): (u32, u64, SiteSums)| ViewSite {
            site,
            live_bytes,
            live_blocks: row.allocs - row.frees,
            allocs: row.allocs,
            bytes: row.bytes,
            growth: self.growth.of_site(site, live_bytes),
            stack: self.stacks.frames(site).into_iter().map(frame).collect(),
        };
        View { sites: rows.into_iter().map(site).collect(), modules }
    }
}
