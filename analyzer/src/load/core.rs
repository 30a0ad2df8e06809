//! A core file as the memory of a process: of one that was recorded, or of one of which nothing else
//! is known. Of that, the blocks of glibc's malloc are found in the memory itself.

use super::{Events, Failure, Process};
use crate::import::link_bias;
use crate::missing::Missing;
use crate::stacks::{FilePart, Module, Named, Site, Stacks};
use crate::text::{clean_name, count};
use heaptape_formats::core_file::CoreFile;
use heaptape_formats::glibc_heap::Heap;
use heaptape_formats::resident::Allocator;
use heaptape_formats::tape::{SiteSums, Totals};
use rustc_hash::FxHashMap;
use std::path::Path;
use std::sync::Arc;

/// Maximum number of modules: as many as a process can map.
const MAX_MODULES: usize = 1 << 16;

/// A core, and the blocks that its memory shows.
#[derive(Debug)]
pub struct Core {
    pub file: CoreFile,
    /// The heap of glibc; `None` if there is none.
    pub heap: Option<Heap>,
}

impl Core {
    /// Opens a core.
    ///
    /// # Errors
    /// It cannot be read, or is no core.
    pub fn open(path: &Path) -> Result<Core, Failure> {
        let failure = |source| Failure::Format { path: path.display().to_string(), source };
        let file = CoreFile::open(path).map_err(failure)?;
        let heap = file.glibc_heap();
        Ok(Core { file, heap })
    }

    /// Returns why its memory does not show the blocks of the program, as the end of a sentence; `None`
    /// if it does.
    pub fn unknown(&self) -> Option<String> {
        const ONLY: &str = "only a recording knows the blocks of another allocator";
        let names = self.file.files.iter().map(|file| String::from_utf8_lossy(&file.path));
        match Allocator::of_process("", names) {
            Allocator::Glibc | Allocator::Unknown => {}
            other => return Some(format!("the program has {}, and {ONLY}", other.name())),
        }
        let Some(heap) = &self.heap else { return Some(format!("no heap of glibc was found in it, and {ONLY}")) };
        let is_empty = heap.live().next().is_none();
        is_empty.then(|| format!("glibc's malloc has none in it, and {ONLY}"))
    }
}

/// Opens a core as a process of which nothing was recorded.
///
/// # Errors
/// It cannot be read, or is no core.
pub(super) fn open(path: &Path) -> Result<Process, Failure> {
    Ok(process(path, Arc::new(Core::open(path)?)))
}

/// Returns a process of which only a core is known.
pub fn process(path: &Path, core: Arc<Core>) -> Process {
    let events = Events::Imported { has_peak: false };
    let mut process = Process { path: path.to_path_buf(), events, ..Process::nothing() };
    process.about.folder = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    process.about.pid = core.file.pid;
    process.about.exe = executable(&core.file);
    process.about.argv = clean_name(&core.file.arguments).split_whitespace().map(str::to_string).collect();
    process.tape.stacks.modules = modules(&core.file);
    process.sums = Some(sums(&core, &mut process.tape.stacks));
    process.import_notes.push("a core has no stacks and no times: blocks are grouped by their sizes".into());
    if let Some(why) = core.unknown() {
        process.import_notes.push(format!("its blocks are not known: {why}"));
    }
    process.import_notes.extend(core.heap.iter().flat_map(|heap| heap.lacks.iter().cloned()));
    if let Some(lacks) = core.file.lacks() {
        process.missing.push(Missing::Truncated { name: process.about.folder.clone(), at: lacks });
    }
    process.core = Some(core);
    process
}

/// Returns the path of the program.
fn executable(file: &CoreFile) -> String {
    let is_it = |path: &[u8]| {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        !file.name.is_empty() && name.starts_with(&file.name)
    };
    let found = file.files.iter().find(|mapped| is_it(&mapped.path)).map_or(&file.name, |mapped| &mapped.path);
    clean_name(found).into_owned()
}

/// Returns the modules of a core: files that are mapped from their start on.
fn modules(file: &CoreFile) -> Vec<Module> {
    let mut modules: Vec<Module> = Vec::new();
    for mapped in &file.files {
        if mapped.offset != 0 {
            let own = modules.last_mut().filter(|last| last.path == mapped.path);
            own.into_iter().for_each(|module| module.end = module.end.max(mapped.end));
        } else if modules.len() < MAX_MODULES {
            let (start, end, path, whole) = (mapped.start, mapped.end, mapped.path.clone(), FilePart::Whole);
            let bias = link_bias(&String::from_utf8_lossy(&path), start, whole);
            let build_id = file.build_id(start);
            modules.push(Module { start, end, bias, path, build_id, mapped: Some(whole), ..Module::default() });
        }
    }
    modules
}

/// Sums up the blocks of each size, which stands for the call site that is not known.
fn sums(core: &Core, stacks: &mut Stacks) -> (Totals, Vec<SiteSums>) {
    let mut of_size: FxHashMap<u64, SiteSums> = FxHashMap::default();
    for chunk in core.heap.iter().flat_map(Heap::live) {
        let bytes = chunk.usable();
        let sums = of_size.entry(bytes).or_insert_with(|| {
            let function = format!("block of {} bytes", count(bytes)).into_bytes();
            stacks.named.push(Named { function, ..Named::default() });
            let named = stacks.named.len() as u32;
            SiteSums { site: stacks.push(Site { named, ..Site::default() }), ..SiteSums::default() }
        });
        sums.allocs += 1;
        sums.bytes += bytes;
    }
    let mut sums: Vec<SiteSums> = of_size.into_values().collect();
    sums.sort_by_key(|row| row.site);
    let (blocks, bytes) = sums.iter().fold((0, 0), |(blocks, bytes), row| (blocks + row.allocs, bytes + row.bytes));
    let totals =
        Totals { allocs: blocks, bytes_allocated: bytes, live_blocks: blocks, live_bytes: bytes, ..Totals::default() };
    (totals, sums)
}
