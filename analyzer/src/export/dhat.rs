//! DHAT data files: sums by stack with lifetimes, for `dh_view.html`.

use super::{Error, Exporter, Measure, Needs, Out, Shape, Source, Totals, measure, verify};
use crate::event::{Event, Span};
use crate::load::Process;
use crate::model::Model;
use crate::model::live_set::Block;
use crate::model::peak::Peak;
use crate::model::row;
use crate::replay::replay;
use crate::symbols::Symbolizer;
use crate::text::clean;
use heaptape_formats::dhat::layout::VERSION;
use heaptape_formats::dhat::{File, Point};
use rustc_hash::FxHashMap;
use std::path::PathBuf;

/// The exporter of DHAT data files.
pub struct Export;

/// Maximum number of frames of a stack, which are kept in memory: as many as a person can read.
const DEEPEST: usize = 512;
/// Maximum lifetime in microseconds that counts as short.
const SHORT: u64 = 10;

impl Exporter for Export {
    fn name(&self) -> &'static str {
        "dhat"
    }

    fn extension(&self) -> &'static str {
        "dhat.json"
    }

    fn summary(&self) -> &'static str {
        "DHAT's data file, for dh_view.html"
    }

    fn needs(&self) -> Needs {
        Needs { events: false, shape: Shape::OnePerProcess }
    }

    fn write(&self, source: &mut Source<'_>, out: &mut Out) -> Result<(), Error> {
        let Some(&process) = source.processes.first() else { return Ok(()) };
        let sums = source.sums(process);
        let mut file = File {
            version: VERSION,
            mode: "heap".into(),
            verb: "Allocated".into(),
            tu: "µs".into(),
            mtu: "s".into(),
            cmd: clean(&process.about.argv.join(" ")).into_owned(),
            pid: process.about.pid.into(),
            ftbl: vec!["[root]".into()],
            ..File::default()
        };
        let mut frames =
            Frames { process, symbols: &mut source.symbols, known: FxHashMap::default(), table: &mut file.ftbl };
        let mut points: Vec<Point> = Vec::new();
        for row in &sums.sites {
            points.push(Point { tb: row.bytes, tbk: row.allocs, fs: frames.of(row.site), ..Point::default() });
        }
        let span = process.span(&source.range());
        if process.has_events() {
            let time = Time::of(process);
            let (mut lives, mut peak) = (Lives { time, rows: Vec::new() }, Peak::within(Span::ALL));
            let outcome = replay(process, span, source.progress(), &mut (&mut lives, &mut peak));
            let end = if process.has_times() { time.at(process.tape.last_tick, 0) } else { process.tape.events };
            for (_, block) in outcome.live.iter().filter(|(_, block)| !block.inherited) {
                row(&mut lives.rows, block.site).lived += end.saturating_sub(time.at(block.tick, block.number));
            }
            file.bklt = true;
            file.te = end;
            let (_, at) = peak.peak();
            file.tg = Some(time.at(at.tick, at.number));
            file.tuth = Some(SHORT);
            if !process.has_times() {
                (file.tu, file.mtu) = ("events".into(), "Mevent".into());
                out.note(format!("{}: without times; lifetimes are counted in events", process.about.folder));
            }
            for (point, sums) in points.iter_mut().zip(&sums.sites) {
                let held = peak.at_peak(sums.site);
                let life = row(&mut lives.rows, sums.site);
                (point.tl, point.mb, point.mbk) = (Some(life.lived), Some(life.most.1), Some(life.most.0));
                (point.gb, point.gbk) = (Some(held.bytes), Some(held.blocks));
                (point.eb, point.ebk) = (Some(life.live.1), Some(life.live.0));
            }
            source.found(&outcome.missing);
        } else {
            out.note(format!(
                "{}: without events; what was live when, and for how long, is not in the file",
                process.about.folder
            ));
        }
        file.pps = points;
        let mut to = out.stream()?;
        serde_json::to_writer(&mut to, &file).map_err(|error| Error::Write("dhat".into(), error.into()))?;
        to.put(b"\n")?;
        to.finish()
    }

    fn totals(&self, source: &mut Source<'_>) -> Result<Totals, Error> {
        let mut measures = vec![Measure::AllocBytes, Measure::AllocCount];
        if source.processes.iter().all(|process| process.has_events()) {
            measures.extend([Measure::LiveBytes, Measure::LiveCount, Measure::PeakBytes, Measure::PeakCount]);
        }
        measure::totals(source, &measures)
    }

    fn held(&self, source: &Source<'_>, files: &[PathBuf]) -> Result<Totals, Error> {
        let has_events = source.processes.iter().all(|process| process.has_events());
        let names = ["alloc-bytes", "alloc-count", "live-bytes", "live-count", "peak-bytes", "peak-count"];
        Ok(verify::read(files)?.only(if has_events { &names } else { &names[..2] }))
    }
}

/// The unit of time: microseconds, or events without a clock.
#[derive(Clone, Copy)]
struct Time {
    clock: Option<crate::load::Clock>,
}

impl Time {
    fn of(process: &Process) -> Time {
        Time { clock: process.has_times().then_some(process.clock) }
    }

    fn at(&self, tick: u64, number: u64) -> u64 {
        self.clock.map_or(number, |clock| clock.nanos(tick) / 1000)
    }
}

/// Blocks of a stack: live now, live at their peak, and the sum of their lifetimes.
#[derive(Clone, Copy, Default)]
struct Life {
    live: (u64, u64),
    most: (u64, u64),
    lived: u64,
}

struct Lives {
    time: Time,
    rows: Vec<Life>,
}

impl Lives {
    fn add(&mut self, block: &Block) {
        let life = row(&mut self.rows, block.site);
        life.live = (life.live.0 + 1, life.live.1.saturating_add(block.size));
        if life.live.1 > life.most.1 || life.live.1 == life.most.1 && life.live.0 > life.most.0 {
            life.most = life.live;
        }
    }

    fn remove(&mut self, old: &Block) {
        let life = row(&mut self.rows, old.site);
        life.live = (life.live.0.saturating_sub(1), life.live.1.saturating_sub(old.size));
    }
}

impl Model for Lives {
    fn alloc(&mut self, _: &Event, block: &Block) {
        self.add(block);
    }

    fn resize(&mut self, _: &Event, old: Option<&Block>, block: &Block) {
        if let Some(old) = old {
            self.remove(old);
        }
        self.add(block);
    }

    fn free(&mut self, event: &Event, old: Option<&Block>) {
        if let Some(old) = old {
            self.remove(old);
            let born = self.time.at(old.tick, old.number);
            let lived = self.time.at(event.tick, event.number).saturating_sub(born);
            row(&mut self.rows, old.site).lived += lived;
        }
    }
}

/// The table of frames that is being built.
struct Frames<'a> {
    process: &'a Process,
    symbols: &'a mut Symbolizer,
    /// Indexes of the frames of each site.
    known: FxHashMap<u32, Vec<u32>>,
    table: &'a mut Vec<String>,
}

impl Frames<'_> {
    fn of(&mut self, site: u32) -> Vec<u32> {
        let stacks = self.process.stacks();
        let mut stack = Vec::new();
        for (number, site) in stacks.stack(site).take(DEEPEST) {
            if !self.known.contains_key(&number) {
                let frames = self.symbols.frames(stacks, &site);
                let mut indexes = Vec::new();
                for frame in frames.iter() {
                    indexes.push(self.table.len() as u32);
                    self.table.push(frame_text(site.address, frame));
                }
                self.known.insert(number, indexes);
            }
            stack.extend(&self.known[&number]);
        }
        if stack.is_empty() {
            stack.push(0);
        }
        stack
    }
}

/// Formats a frame as Valgrind's tools do: `0x109180: leaf (t.c:4)`.
pub(crate) fn frame_text(address: u64, frame: &crate::symbols::Frame) -> String {
    let title = frame.function.clone().unwrap_or_else(|| "???".into());
    let location = match (&frame.file, frame.line) {
        (Some(file), Some(line)) => format!(" ({file}:{line})"),
        (Some(file), None) => format!(" ({file})"),
        (None, _) if !frame.module.is_empty() => format!(" (in {})", frame.module),
        (None, _) => String::new(),
    };
    clean(&format!("{address:#X}: {title}{location}").replacen("0X", "0x", 1)).into_owned()
}
