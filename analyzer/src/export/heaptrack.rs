//! heaptrack's data file: every allocation and free, for `heaptrack_print` and `heaptrack_gui`.
//! The suffix of the name (`.gz`, `.zst`) selects the compression, as in heaptrack.
//!
//! A resize is a free and an allocation there. Blocks are distinguished by size and stack only, so
//! that lifetimes of single blocks are not in such a file.

use super::{Error, Exporter, Needs, Out, Shape, Source, Totals, target::Stream, verify};
use crate::event::Event;
use crate::load::Process;
use crate::model::Model;
use crate::model::live_set::Block;
use crate::replay::replay;
use crate::symbols::{Symbolizer, module_of};
use crate::text::clean;
use heaptape_formats::heaptrack::layout::{HEAPTRACK, VERSION};
use heaptape_formats::heaptrack::{FrameName, Line, put};
use heaptape_formats::tape::Origin;
use rustc_hash::FxHashMap;
use std::io::{self, Write};
use std::path::PathBuf;

/// The exporter of heaptrack data files.
pub struct Export;

/// Size in bytes of the write buffer.
const GATHERED: usize = 1 << 16;
/// Compression level of zstd. heaptrack uses zstd's default.
const LEVEL: i32 = 3;

impl Exporter for Export {
    fn name(&self) -> &'static str {
        "heaptrack"
    }

    fn extension(&self) -> &'static str {
        "heaptrack.zst"
    }

    fn summary(&self) -> &'static str {
        "heaptrack's data file, for heaptrack_print and heaptrack_gui"
    }

    fn needs(&self) -> Needs {
        Needs { events: true, shape: Shape::OnePerProcess }
    }

    fn write(&self, source: &mut Source<'_>, out: &mut Out) -> Result<(), Error> {
        let Some(&process) = source.processes.first() else { return Ok(()) };
        let stream = out.stream()?;
        let to = Packed::of(stream).map_err(|error| Error::Write("heaptrack".into(), error))?;
        let span = process.span(&source.range());
        let progress = crate::Progress::new("exporting events");
        let mut file = File {
            process,
            symbols: &mut source.symbols,
            out: Vec::new(),
            to,
            failed: None,
            texts: FxHashMap::default(),
            stacks: vec![0; process.stacks().len() + 1],
            numbers: [0; 3],
            infos: FxHashMap::default(),
            time: 0,
        };
        file.begin();
        let outcome = replay(process, span, &progress, &mut file);
        file.time(process.tape.last_tick);
        file.flush();
        let File { to, failed, .. } = file;
        match failed {
            Some(error) => return Err(Error::Write("heaptrack".into(), error)),
            None => to.finish()?,
        }
        source.found(&outcome.missing);
        Ok(())
    }

    fn totals(&self, source: &mut Source<'_>) -> Result<Totals, Error> {
        let mut totals = Totals::default();
        for process in source.processes.clone() {
            let sums = source.sums(process);
            let add = |of: fn(&heaptape_formats::tape::SiteSums) -> u64| {
                sums.sites.iter().map(|row| u128::from(of(row))).sum::<u128>()
            };
            totals.add("alloc-count", add(|row| row.allocs));
            totals.add("alloc-bytes", add(|row| row.bytes));
            totals.add("free-count", add(|row| row.frees));
            totals.add("free-bytes", add(|row| row.freed_bytes));
        }
        Ok(totals)
    }

    fn held(&self, _: &Source<'_>, files: &[PathBuf]) -> Result<Totals, Error> {
        Ok(verify::read(files)?.only(&["alloc-count", "alloc-bytes", "free-count", "free-bytes"]))
    }
}

/// Output of the lines, compressed or not.
enum Packed {
    Plain(Stream),
    Gzip(flate2::write::GzEncoder<Stream>),
    Zstd(zstd::Encoder<'static, Stream>),
}

impl Packed {
    fn of(stream: Stream) -> io::Result<Packed> {
        Ok(match stream.name().rsplit('.').next() {
            Some("gz") => Packed::Gzip(flate2::write::GzEncoder::new(stream, flate2::Compression::default())),
            Some("zst") => Packed::Zstd(zstd::Encoder::new(stream, LEVEL)?),
            _ => Packed::Plain(stream),
        })
    }

    fn finish(self) -> Result<(), Error> {
        let stream = match self {
            Packed::Plain(stream) => Ok(stream),
            Packed::Gzip(encoder) => encoder.finish(),
            Packed::Zstd(encoder) => encoder.finish(),
        };
        stream.map_err(|error| Error::Write("heaptrack".into(), error))?.finish()
    }
}

impl Write for Packed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Packed::Plain(to) => to.write(bytes),
            Packed::Gzip(to) => to.write(bytes),
            Packed::Zstd(to) => to.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Packed::Plain(to) => to.flush(),
            Packed::Gzip(to) => to.flush(),
            Packed::Zstd(to) => to.flush(),
        }
    }
}

/// A file that is being written.
struct File<'a> {
    process: &'a Process,
    symbols: &'a mut Symbolizer,
    out: Vec<u8>,
    to: Packed,
    failed: Option<io::Error>,
    texts: FxHashMap<String, u64>,
    /// For each site, the number of its stack; 0 if it has none yet.
    stacks: Vec<u64>,
    /// Numbers of texts, addresses and stacks that have been written.
    numbers: [u64; 3],
    /// Allocation infos by size and site.
    infos: FxHashMap<(u64, u32), u64>,
    /// Time in milliseconds that was last written.
    time: u64,
}

impl File<'_> {
    fn begin(&mut self) {
        self.put(&Line::Version { heaptrack: HEAPTRACK, file: VERSION });
        let command = clean(&self.process.about.argv.join(" ")).into_owned();
        self.put(&Line::Command(command.into_bytes()));
        self.put(&Line::System { page_size: 4096, pages: 0 });
        if self.process.about.origin == Origin::Attach.name() {
            self.put(&Line::Attached);
        }
        // heaptrack uses the first text as the path of the program.
        self.text(&self.process.about.exe.clone());
    }

    fn put(&mut self, line: &Line) {
        put(&mut self.out, line);
        if self.out.len() >= GATHERED {
            self.flush();
        }
    }

    fn flush(&mut self) {
        if self.failed.is_none() {
            self.failed = self.to.write_all(&self.out).err();
        }
        self.out.clear();
    }

    fn text(&mut self, text: &str) -> u64 {
        if let Some(&known) = self.texts.get(text) {
            return known;
        }
        self.numbers[0] += 1;
        self.texts.insert(text.to_string(), self.numbers[0]);
        // A line feed inside would be read correctly, but not by every tool.
        self.put(&Line::Text(clean(text).into_owned().into_bytes()));
        self.numbers[0]
    }

    fn time(&mut self, tick: u64) {
        let now = self.process.clock.nanos(tick) / 1_000_000;
        if now > self.time {
            self.time = now;
            self.put(&Line::Milliseconds(now));
        }
    }

    /// Returns the number of the stack of a site, after writing those of its callers.
    fn stack(&mut self, number: u32) -> u64 {
        let stacks = self.process.stacks();
        let path: Vec<u32> = stacks
            .stack(number)
            .map(|(number, _)| number)
            .take_while(|&number| self.stacks.get(number as usize).is_none_or(|&known| known == 0))
            .collect();
        let callers = path.last().map(|&outermost| stacks.site(outermost).parent).filter(|&parent| parent < number);
        let mut parent = callers.and_then(|parent| self.stacks.get(parent as usize).copied()).unwrap_or(0);
        for &site in path.iter().rev() {
            let at = stacks.site(site);
            let module = module_of(stacks, &at).map(|module| String::from_utf8_lossy(&module.path).into_owned());
            let module = module.map_or(0, |path| self.text(&path));
            let frames = self.symbols.frames(stacks, &at);
            let is_named = frames.iter().any(|frame| frame.function.is_some());
            let mut names = Vec::new();
            for frame in frames.iter().filter(|_| is_named) {
                let function = self.text(&frame.title());
                let file = frame.file.as_deref().map_or(0, |file| self.text(file));
                names.push(FrameName { function, file, line: frame.line.unwrap_or(0).into() });
            }
            self.put(&Line::Address { address: at.address, module, names });
            self.numbers[1] += 1;
            self.put(&Line::Stack { address: self.numbers[1], parent });
            self.numbers[2] += 1;
            parent = self.numbers[2];
            if let Some(number_of_site) = self.stacks.get_mut(site as usize) {
                *number_of_site = parent;
            }
        }
        if path.is_empty() { self.stacks.get(number as usize).copied().unwrap_or(0) } else { parent }
    }

    fn info(&mut self, block: &Block) -> u64 {
        let key = (block.size, block.site);
        if let Some(&known) = self.infos.get(&key) {
            return known;
        }
        let stack = if block.site == 0 { 0 } else { self.stack(block.site) };
        let info = self.infos.len() as u64;
        self.infos.insert(key, info);
        self.put(&Line::Info { size: block.size, stack });
        info
    }
}

impl Model for File<'_> {
    fn alloc(&mut self, event: &Event, block: &Block) {
        self.time(event.tick);
        let info = self.info(block);
        self.put(&Line::Alloc(info));
    }

    fn resize(&mut self, event: &Event, old: Option<&Block>, block: &Block) {
        self.free(event, old);
        self.alloc(event, block);
    }

    fn free(&mut self, event: &Event, old: Option<&Block>) {
        self.time(event.tick);
        if let Some(old) = old {
            let info = self.info(old);
            self.put(&Line::Free(info));
        }
    }
}
