//! pprof profiles, compressed: what was allocated and what is in use, in blocks and bytes, by stack
//! and thread.

use super::{Error, Exporter, Measure, Needs, Out, Shape, Source, Totals, measure};
use crate::load::Process;
use crate::stacks::Stacks;
use crate::symbols::{Frame, Symbolizer, link_address, module_of};
use flate2::{Compression, write::GzEncoder};
use heaptape_formats::pprof::{Function, Label, Line, Location, Mapping, Record, Sample, ValueType, Writer, record};
use rustc_hash::FxHashMap;
use std::io::Write;
use std::rc::Rc;

/// The exporter of pprof profiles.
pub struct Export;

/// The default values of each sample: name, unit and measure. Further ones come from `--what`.
pub(crate) const USUAL: [(&str, &str, Measure); 4] = [
    ("alloc_objects", "count", Measure::AllocCount),
    ("alloc_space", "bytes", Measure::AllocBytes),
    ("inuse_objects", "count", Measure::LiveCount),
    ("inuse_space", "bytes", Measure::LiveBytes),
];

/// Maximum number of frames of a stack: more than any recording has, and fewer than a hostile file
/// could contain.
const DEEPEST: usize = 4096;

impl Exporter for Export {
    fn name(&self) -> &'static str {
        "pprof"
    }

    fn extension(&self) -> &'static str {
        "pb.gz"
    }

    fn summary(&self) -> &'static str {
        "pprof's profile, for go tool pprof and profile servers"
    }

    fn needs(&self) -> Needs {
        Needs { events: false, shape: Shape::One }
    }

    fn write(&self, source: &mut Source<'_>, out: &mut Out) -> Result<(), Error> {
        let more = measure::known(source, &[]);
        let mut file = Profile::begin(source, &more);
        let mut to = GzEncoder::new(out.stream()?, Compression::new(4));
        for process in source.processes.clone() {
            let (threads, sums) = source.sums_by_thread(process);
            if process.tape.process.sample_bytes > 0 {
                out.note(format!(
                    "{}: sampled: its bytes are estimates, its blocks are those sampled",
                    process.about.folder
                ));
            }
            let (ended, sites) = (process.has_ended(), process.stacks().len());
            let mut tables = ProcessTables { locations: vec![None; sites + 1], labels: FxHashMap::default(), process };
            for row in &sums.sites {
                let (site, thread) = threads.get(row.site as usize).copied().unwrap_or((row.site, 0));
                let values = USUAL.iter().map(|usual| usual.2).chain(more.iter().copied());
                let value: Vec<i64> = values.map(|what| signed(what.of(row, ended))).collect();
                if value.iter().all(|&value| value == 0) {
                    continue;
                }
                let location = file.stack(&mut tables, &mut source.symbols, site);
                let label = file.labels(&mut tables, thread);
                file.put(&Record::Sample(Sample { location, value, label }));
                file.flush(&mut to)?;
            }
        }
        let exe = source.processes.first().map(|process| process.about.exe.clone()).unwrap_or_default();
        file.end(&exe);
        file.flush_all(&mut to)?;
        to.finish().map_err(|error| Error::Write("profile".into(), error))?.finish()
    }

    fn totals(&self, source: &mut Source<'_>) -> Result<Totals, Error> {
        let mut totals = Totals::default();
        let more = measure::known(source, &[]);
        for process in source.processes.clone() {
            let (sums, ended) = (source.sums(process), process.has_ended());
            let usual = USUAL.iter().map(|&(name, _, what)| (name, what));
            for (name, what) in usual.chain(more.iter().map(|&what| (what.name(), what))) {
                totals.add(name, sums.sites.iter().map(|row| u128::from(what.of(row, ended))).sum());
            }
        }
        Ok(totals)
    }
}

/// Converts a number for pprof, whose numbers are signed.
fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Locations and labels of the sites and threads of a process.
struct ProcessTables<'a> {
    process: &'a Process,
    /// Location of each site.
    locations: Vec<Option<u64>>,
    labels: FxHashMap<u32, Vec<Label>>,
}

/// A profile that is being written.
struct Profile {
    out: Vec<u8>,
    texts: Writer,
    /// Mappings by build id, or by path without one: identifier, and first known address.
    mappings: FxHashMap<Vec<u8>, Mapping>,
    functions: FxHashMap<(String, String), u64>,
    locations_by_offset: FxHashMap<(u64, u64), u64>,
    /// Locations of frames without an address, by their names.
    named: FxHashMap<Rc<[Frame]>, u64>,
    locations: u64,
}

impl Profile {
    fn begin(source: &Source<'_>, more: &[Measure]) -> Profile {
        let mut out = Vec::new();
        // The value types come first, because heaptape recognizes pprof profiles by them.
        let shown = source.options.what.iter().find_map(|what| USUAL.iter().find(|(_, _, usual)| usual == what));
        // The measure that readers show first.
        let shown = shown.map_or("inuse_space", |(name, ..)| name);
        let texts = ["", "count", "bytes", "space", "process", "pid", "thread", shown];
        let index_of = |text: &str| texts.iter().position(|&known| known == text).unwrap_or(0) as i64;
        let mut late = Vec::new();
        let mut names: Vec<String> = texts.map(str::to_string).into();
        let types = USUAL.iter().map(|&(name, unit, _)| (name, unit));
        let more = more.iter().map(|what| (what.name(), if what.is_bytes() { "bytes" } else { "count" }));
        for (name, unit) in types.chain(more) {
            let at = names.iter().position(|known| known == name).unwrap_or(names.len());
            if at == names.len() {
                names.push(name.to_string());
            }
            record(&mut out, &Record::SampleType(ValueType { kind: at as i64, unit: index_of(unit) }));
        }
        let mut writer = Writer::new(&mut late);
        for name in &names {
            writer.text(&mut late, name.as_bytes());
        }
        out.append(&mut late);
        let kind = ValueType { kind: index_of("space"), unit: index_of("bytes") };
        record(&mut out, &Record::PeriodType(kind));
        let sampled = source.processes.iter().map(|process| process.tape.process.sample_bytes).max().unwrap_or(0);
        record(&mut out, &Record::Period(signed(sampled.max(1))));
        record(&mut out, &Record::DefaultSampleType(index_of(shown)));
        let started =
            source.processes.iter().map(|process| process.clock.start_unix_ns).filter(|&start| start > 0).min();
        record(&mut out, &Record::TimeNanos(signed(started.unwrap_or(0))));
        let longest = source.processes.iter().map(|process| process.clock.nanos(process.tape.last_tick)).max();
        record(&mut out, &Record::DurationNanos(signed(longest.unwrap_or(0))));
        let comment = writer.text(&mut out, measure::title(source).as_bytes());
        record(&mut out, &Record::Comment(comment));
        Profile {
            out,
            texts: writer,
            mappings: FxHashMap::default(),
            functions: FxHashMap::default(),
            locations_by_offset: FxHashMap::default(),
            named: FxHashMap::default(),
            locations: 0,
        }
    }

    fn put(&mut self, one: &Record) {
        record(&mut self.out, one);
    }

    fn flush(&mut self, to: &mut impl Write) -> Result<(), Error> {
        if self.out.len() < 1 << 16 { Ok(()) } else { self.flush_all(to) }
    }

    fn flush_all(&mut self, to: &mut impl Write) -> Result<(), Error> {
        to.write_all(&self.out).map_err(|error| Error::Write("profile".into(), error))?;
        self.out.clear();
        Ok(())
    }

    /// Writes the mappings. Readers assume that the first one is the program itself.
    fn end(&mut self, exe: &str) {
        let exe = self.text(exe);
        let mut mappings: Vec<Mapping> = self.mappings.values().copied().collect();
        mappings.sort_by_key(|mapping| (mapping.file != exe, mapping.id));
        for mapping in mappings {
            self.put(&Record::Mapping(mapping));
        }
    }

    fn text(&mut self, text: &str) -> i64 {
        self.texts.text(&mut self.out, text.as_bytes())
    }

    fn stack(&mut self, of: &mut ProcessTables<'_>, symbols: &mut Symbolizer, site: u32) -> Vec<u64> {
        let stacks = of.process.stacks();
        let sites: Vec<u32> = stacks.stack(site).take(DEEPEST).map(|(number, _)| number).collect();
        sites
            .into_iter()
            .map(|number| match of.locations.get(number as usize).copied().flatten() {
                Some(known) => known,
                None => {
                    let location = self.location(stacks, symbols, number);
                    if let Some(slot) = of.locations.get_mut(number as usize) {
                        *slot = Some(location);
                    }
                    location
                }
            })
            .collect()
    }

    fn location(&mut self, stacks: &Stacks, symbols: &mut Symbolizer, number: u32) -> u64 {
        let site = stacks.site(number);
        let frames = symbols.frames(stacks, &site);
        let Some(module) = module_of(stacks, &site) else {
            if let Some(&known) = self.named.get(&frames) {
                return known;
            }
            let location = self.put_location(0, site.address, &frames);
            self.named.insert(frames, location);
            return location;
        };
        let key = module.object_key();
        let mapping = match self.mappings.get(&key) {
            Some(known) => *known,
            None => {
                let path = String::from_utf8_lossy(&module.path);
                let id: String = module.build_id.iter().map(|byte| format!("{byte:02x}")).collect();
                let mapping = Mapping {
                    id: self.mappings.len() as u64 + 1,
                    start: module.start,
                    limit: module.end,
                    offset: 0,
                    file: self.text(&path),
                    build_id: self.text(&id),
                    has_functions: true,
                    has_files: true,
                    has_lines: true,
                    has_inlined: true,
                };
                self.mappings.insert(key, mapping);
                mapping
            }
        };
        // The address that it would have at the first known address of its object, so that all
        // processes share the location.
        let offset = link_address(module, &site).wrapping_add(module.bias).wrapping_sub(module.start);
        if let Some(&known) = self.locations_by_offset.get(&(mapping.id, offset)) {
            return known;
        }
        let location = self.put_location(mapping.id, mapping.start.wrapping_add(offset), &frames);
        self.locations_by_offset.insert((mapping.id, offset), location);
        location
    }

    fn put_location(&mut self, mapping: u64, address: u64, frames: &[Frame]) -> u64 {
        let line = frames
            .iter()
            .map(|frame| Line { function: self.function(frame), line: frame.line.unwrap_or(0).into() })
            .collect();
        self.locations += 1;
        let id = self.locations;
        self.put(&Record::Location(Location { id, mapping, address, line, is_folded: false }));
        id
    }

    fn function(&mut self, frame: &Frame) -> u64 {
        let key = (frame.title(), frame.file.clone().unwrap_or_default());
        if let Some(&known) = self.functions.get(&key) {
            return known;
        }
        let (name, file) = (self.text(&key.0), self.text(&key.1));
        let id = self.functions.len() as u64 + 1;
        self.functions.insert(key, id);
        self.put(&Record::Function(Function { id, name, system_name: name, file, start_line: 0 }));
        id
    }

    fn labels(&mut self, of: &mut ProcessTables<'_>, thread: u32) -> Vec<Label> {
        if let Some(known) = of.labels.get(&thread) {
            return known.clone();
        }
        let mut labels = Vec::new();
        let (key, text) = (self.text("process"), self.text(&of.process.name()));
        labels.push(Label { key, text, ..Label::default() });
        if of.process.about.pid != 0 {
            let key = self.text("pid");
            labels.push(Label { key, number: of.process.about.pid.into(), ..Label::default() });
        }
        if thread != 0 {
            let name = of.process.tape.threads.get(&thread).map(|thread| thread.name.lossy().into_owned());
            let name = name.filter(|name| !name.is_empty()).unwrap_or_else(|| "thread".into());
            let (key, text) = (self.text("thread"), self.text(&format!("{name} {thread}")));
            labels.push(Label { key, text, ..Label::default() });
        }
        of.labels.insert(thread, labels.clone());
        labels
    }
}
