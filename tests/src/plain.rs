//! A plain reader of recordings: every event in one list, and the names of the frames from
//! binutils. The tests compare the answers of the commands with sums over these lists.

use crate::test_env;
use heaptape_formats::leb128;
use heaptape_formats::mtrc::layout::{ALLOC, FREE, RESIZE};
use heaptape_formats::mtrc::{Record, Stream};
use heaptape_formats::recording::TAPE;
use heaptape_formats::tape::{
    self, COLUMN_ENTRIES, COLUMN_SITES, COLUMN_TICKS, Codec, Entry, Record as TapeRecord, Step,
};
use std::collections::HashMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

/// One event, from the trace and the tape's columns.
#[derive(Clone, Copy, Debug)]
pub struct PlainEvent {
    /// Tag of the record in the trace.
    pub tag: u8,
    pub index: u64,
    /// Address of the block; 0 for frees.
    pub address: u64,
    /// Size of the block in bytes; 0 for frees.
    pub size: u64,
    pub thread: u64,
    /// Site number; 0 for frees, unless their stacks were recorded.
    pub site: u32,
    pub tick: u64,
}

pub fn tape(process_folder: &Path) -> Vec<TapeRecord> {
    let bytes = fs::read(process_folder.join(TAPE)).expect("the tape");
    let mut reader = tape::Reader::new(&bytes).expect("a tape");
    let mut records = Vec::new();
    loop {
        match reader.step() {
            Step::Record(_, record) => records.push(record),
            Step::End(_) => return records,
            other => panic!("a complete tape: {other:?}"),
        }
    }
}

/// Returns the numbers of a chunk's column.
fn column(chunk: &tape::Chunk, kind: u8) -> Vec<u64> {
    let Some(column) = chunk.columns.iter().find(|column| column.kind == kind) else { return Vec::new() };
    let codec = Codec::from_number(column.codec).expect("a codec");
    let plain = codec.unpack(&column.stored.0, column.plain_length as usize).expect("a column");
    let mut rest = &plain[..];
    let mut numbers = Vec::new();
    while !rest.is_empty() {
        let (number, size) = leb128::read(rest).expect("a number");
        numbers.push(number);
        rest = &rest[size..];
    }
    numbers
}

/// Returns the functions that the program called, one for each event.
pub fn functions(process_folder: &Path) -> Vec<Entry> {
    let chunks = tape(process_folder).into_iter().filter_map(|record| match record {
        TapeRecord::Chunk(chunk) => Some(column(&chunk, COLUMN_ENTRIES)),
        _ => None,
    });
    chunks.flatten().map(|entry| Entry::from_number(entry as u8).expect("a function")).collect()
}

/// Returns the times of all events, their sites, and whether frees have a site.
fn columns(process_folder: &Path) -> (Vec<u64>, Vec<u32>, bool) {
    let (mut ticks, mut sites, mut free_sites) = (Vec::new(), Vec::new(), false);
    for record in tape(process_folder) {
        let chunk = match record {
            TapeRecord::Process(process) => {
                free_sites = process.free_sites;
                continue;
            }
            TapeRecord::Chunk(chunk) if chunk.events > 0 => chunk,
            _ => continue,
        };
        sites.extend(column(&chunk, COLUMN_SITES).into_iter().map(|site| site as u32));
        let mut tick = chunk.first_tick;
        ticks.extend(column(&chunk, COLUMN_TICKS).into_iter().map(|since| {
            tick += since;
            tick
        }));
    }
    (ticks, sites, free_sites)
}

/// Returns all events of a process, in order.
pub fn events(process_folder: &Path) -> Vec<PlainEvent> {
    let (ticks, sites, free_sites) = columns(process_folder);
    let (mut ticks, mut sites) = (ticks.into_iter(), sites.into_iter());
    let opened = |codec: Codec| {
        let file = File::open(process_folder.join(format!("trace.mtrc{}", codec.suffix()))).ok()?;
        Some(codec.reader(file).expect("a reader"))
    };
    let trace = [Codec::Columns, Codec::Zstd, Codec::Plain].into_iter().find_map(opened).expect("the trace");
    let mut stream = Stream::new(trace).expect("a trace");
    let mut events = Vec::new();
    while let Some(record) = stream.next().expect("a record") {
        let (tag, index, address, size, location) = match record {
            Record::Alloc { index, address, size, location } => (ALLOC, index, address, size, location),
            Record::Resize { index, address, size, location } => (RESIZE, index, address, size, location),
            Record::Free { index, location } => (FREE, index, 0, 0, location),
            Record::Heap { .. } | Record::Internal { .. } => continue,
        };
        let site = if tag == FREE && !free_sites { 0 } else { sites.next().expect("a site") };
        let tick = ticks.next().expect("a time");
        events.push(PlainEvent { tag, index, address, size, thread: location.thread, site, tick });
    }
    assert!(ticks.next().is_none() && sites.next().is_none(), "as many of each");
    events
}

/// A frame of the program: function and line.
pub type Frame = (String, u32);

/// Returns for each site the frames in `program` itself, innermost first, with the names of
/// addr2line.
pub fn names(process_folder: &Path, program: &Path) -> HashMap<u32, Vec<Frame>> {
    let (mut module, mut sites) = (None, HashMap::new());
    for record in tape(process_folder) {
        match record {
            TapeRecord::Module(one) if one.path.lossy() == program.to_string_lossy() => module = Some(one),
            TapeRecord::Sites(some) => {
                sites.extend((some.first..).zip(some.sites).map(|(number, site)| (number, (site.parent, site.address))))
            }
            _ => {}
        }
    }
    let module = module.expect("the program is a module");
    let own = |address: u64| (module.start..module.end).contains(&address);
    let mut addresses: Vec<u64> = sites.values().map(|&(_, address)| address).filter(|&at| own(at)).collect();
    addresses.sort_unstable();
    addresses.dedup();
    // The call is before the address that it returns to.
    let arguments = addresses.iter().map(|address| format!("{:#x}", address.wrapping_sub(module.bias) - 1));
    let output = Command::new(test_env::need("addr2line")).args(["-f", "-e"]).arg(program).args(arguments).output();
    let output = String::from_utf8(output.expect("addr2line").stdout).expect("text");
    let lines: Vec<&str> = output.lines().collect();
    let named = lines.chunks(2).map(|pair| {
        let line = pair[1].rsplit(':').next().and_then(|line| line.split(' ').next());
        (pair[0].to_string(), line.and_then(|line| line.parse().ok()).unwrap_or(0))
    });
    let named: HashMap<u64, Frame> = addresses.iter().copied().zip(named).collect();
    let stack = |mut site: u32| {
        let mut frames = Vec::new();
        while let Some(&(parent, address)) = sites.get(&site) {
            frames.extend(named.get(&address).filter(|(function, _)| function != "_start").cloned());
            site = parent;
        }
        frames
    };
    sites.keys().map(|&site| (site, stack(site))).collect()
}
