//! DCPI profiles of heaps: in each epoch a profile file for each module (by build-id) and event,
//! with the sum of the counts of all processes that executed it. Allocations and frees count for
//! the epoch in which they happened; live blocks count as they are at the end of the epoch.

use formats::dcpi::{Builder, HeaderFields};
use formats::tape::{Module, instruction};
use heaptape_recorder::heap::profile_delta::ProfileDelta;
use heaptape_recorder::os::permissions::make_folder;
use heaptape_recorder::os::{Durability, replace_file};
use heaptape_recorder::target::elf_text;
use heaptape_recorder::target::proc::sanitized_name;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Names of the events, in the order of the counts.
const EVENTS: [&str; 8] =
    ["alloc-bytes", "alloc-count", "free-bytes", "free-count", "live-bytes", "live-count", "leak-bytes", "leak-count"];
/// Maximum number of addresses that one epoch counts. Further ones are left out, and their number
/// is reported.
const MAX_ADDRESSES: usize = 1 << 20;

#[derive(Debug)]
struct ModuleCounts {
    /// Link-time addresses of the module's code, or of its mapping where its file cannot be read.
    text: Range<u64>,
    /// Counts by link-time address.
    counts: BTreeMap<u64, [u64; EVENTS.len()]>,
}

impl ModuleCounts {
    fn of(module: &Module) -> ModuleCounts {
        let mapping = module.start.wrapping_sub(module.bias)..module.end.wrapping_sub(module.bias);
        let text =
            elf_text::extent(Path::new(OsStr::from_bytes(&module.path.0)), &module.build_id.0).unwrap_or(mapping);
        ModuleCounts { text, counts: BTreeMap::new() }
    }
}

/// The machine, as it is named in the header of a file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Host<'a> {
    /// Host name of the machine.
    pub name: &'a str,
    /// Speed of the CPUs in MHz; 0 if not known.
    pub megahertz: u64,
}

/// The counts of one epoch.
#[derive(Debug, Default)]
pub(crate) struct DcpiProfiles {
    /// The modules by build-id and path.
    modules: BTreeMap<(String, String), ModuleCounts>,
    addresses: usize,
    /// Number of rows that were left out.
    pub left_out: u64,
}

impl DcpiProfiles {
    /// Adds the contribution of a process.
    pub(crate) fn add(&mut self, from: &ProfileDelta) {
        for row in &from.rows {
            let frame = (row.sums.site as usize).checked_sub(1).and_then(|at| from.frames.get(at));
            let module = frame.and_then(|frame| from.modules.get((frame.module as usize).checked_sub(1)?));
            let (Some(frame), Some(module)) = (frame, module) else { continue };
            let hex: String = module.build_id.0.iter().map(|byte| format!("{byte:02x}")).collect();
            let key = (hex, module.path.lossy().into_owned());
            let module_counts = self.modules.entry(key).or_insert_with(|| ModuleCounts::of(module));
            let address = instruction(frame.address, frame.flags);
            if self.addresses >= MAX_ADDRESSES && !module_counts.counts.contains_key(&address) {
                self.left_out += 1;
                continue;
            }
            let counts = module_counts.counts.entry(address).or_insert_with(|| {
                self.addresses += 1;
                [0; EVENTS.len()]
            });
            let (blocks, bytes) = (row.sums.allocs - row.sums.frees, row.sums.bytes - row.sums.freed_bytes);
            let (live, leaked) = if from.is_over { ((0, 0), (bytes, blocks)) } else { ((bytes, blocks), (0, 0)) };
            let flow = row.since;
            let more = [flow.bytes, flow.allocs, flow.freed_bytes, flow.frees, live.0, live.1, leaked.0, leaked.1];
            counts.iter_mut().zip(more).for_each(|(count, more)| *count = count.saturating_add(more));
        }
    }

    /// Writes the files into `folder`.
    ///
    /// # Errors
    /// The error of the file that could not be written.
    pub(crate) fn write(&self, folder: &Path, unix_seconds: u64, host: Host, reader: Option<u32>) -> io::Result<()> {
        if self.modules.is_empty() {
            return Ok(());
        }
        make_folder(folder, reader)?;
        for ((build_id, path), ModuleCounts { text, counts }) in &self.modules {
            let (Some((first, _)), Some((last, _))) = (counts.first_key_value(), counts.last_key_value()) else {
                continue;
            };
            // A hostile process may name a module and addresses outside of it.
            let (start, end) = (text.start.min(*first), text.end.max(last.saturating_add(1)));
            let name = sanitized_name(path.rsplit('/').next().unwrap_or_default().as_bytes());
            let identity = if build_id.is_empty() {
                format!("{:016x}", crc32fast::hash(path.as_bytes()))
            } else {
                build_id.clone()
            };
            let line = path.trim_start().replace('\n', " ");
            for (event, column) in EVENTS.iter().zip(0..) {
                if counts.values().all(|row| row[column] == 0) {
                    continue;
                }
                let head = HeaderFields {
                    image: &identity,
                    unix_seconds,
                    platform: host.name,
                    event,
                    tstart: start,
                    tsize: end - start,
                    cpuspeed: host.megahertz,
                    path: (!line.is_empty()).then_some(&line),
                    ..HeaderFields::default()
                };
                let mut builder = Builder::new(&head).map_err(io::Error::other)?;
                counts
                    .iter()
                    .filter(|(at, _)| *at - start < 1 << 32)
                    .for_each(|(at, row)| builder.add(*at, row[column]));
                let built = builder.finish().map_err(io::Error::other)?;
                let short = &identity[..identity.len().min(12)];
                replace_file(
                    &folder.join(format!("{name}.{short}.{event}")),
                    &built.bytes,
                    reader,
                    Durability::BeforeRename,
                )?;
            }
        }
        Ok(())
    }
}
