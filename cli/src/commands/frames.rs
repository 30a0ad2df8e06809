//! Function names for the stacks in the daemon's answers, which are modules and offsets.

use heaptape_analyzer::report::text_stack;
use heaptape_analyzer::symbols::{Detail, Symbolizer, code_name};
use heaptape_analyzer::{Module, Site, Stacks};
use heaptape_daemon::protocol::CallSite;
use std::path::Path;
use std::sync::Arc;

/// Symbolizes the daemon's stacks, and keeps what it has read of each module.
pub(super) struct Frames(Symbolizer);

impl Default for Frames {
    fn default() -> Self {
        Frames(Symbolizer::new(Detail::Full))
    }
}

impl Frames {
    /// Returns at most `max` frames of a call site of a process that runs, the innermost program
    /// frame first. In a container its files have other paths than here.
    pub(super) fn named(&mut self, pid: u32, site: &CallSite, max: usize) -> Vec<String> {
        let root: Arc<Path> = Path::new(&format!("/proc/{pid}/root")).into();
        let mut stacks = Stacks::default();
        let mut last = 0;
        for frame in site.stack.iter().rev() {
            let address = frame.address;
            let module = frame.module.as_ref().map(|path| {
                let bias = address.wrapping_sub(frame.offset.unwrap_or(0));
                let build_id = bytes_of(frame.build_id.as_deref().unwrap_or_default());
                stacks.modules.push(Module {
                    start: 0,
                    end: u64::MAX,
                    bias,
                    path: path.as_bytes().to_vec(),
                    build_id,
                    root: Some(root.clone()),
                    ..Module::default()
                });
                stacks.modules.len() as u32
            });
            let named = frame.code.as_ref().map_or(0, |name| {
                stacks.named.push(code_name(name.as_bytes()));
                stacks.named.len() as u32
            });
            last = stacks.push(Site { parent: last, module: module.unwrap_or(0), named, address, ..Site::default() });
        }
        text_stack(&mut self.0, &stacks, last, max).0
    }
}

fn bytes_of(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.chars().filter_map(|digit| digit.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}
