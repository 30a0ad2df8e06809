//! DCPI profiles, one file for each ELF object and event: what was allocated, freed and live at the
//! address of each call.

use super::objects::{Object, Objects};
use super::{Error, Exporter, Measure, Needs, Out, Shape, Source, Totals};
use heaptape_formats::dcpi::{Builder, Built, HeaderFields};
use std::collections::{BTreeMap, BTreeSet};

/// The exporter of DCPI profiles.
pub struct Export;

/// The default events. Bytes that are live at a known end are leaks, and are written as both.
const USUAL: &[Measure] = &[
    Measure::AllocBytes,
    Measure::AllocCount,
    Measure::FreeBytes,
    Measure::FreeCount,
    Measure::LiveBytes,
    Measure::LiveCount,
    Measure::LeakBytes,
    Measure::LeakCount,
];

impl Exporter for Export {
    fn name(&self) -> &'static str {
        "dcpi"
    }

    fn extension(&self) -> &'static str {
        "dcpi"
    }

    fn summary(&self) -> &'static str {
        "DCPI profiles, a file for each program or library and event"
    }

    fn needs(&self) -> Needs {
        Needs { events: false, shape: Shape::Folder }
    }

    fn write(&self, source: &mut Source<'_>, out: &mut Out) -> Result<(), Error> {
        let profiles = profiles(source)?;
        for profile in &profiles.files {
            let Profile { object, label, measure, built } = profile;
            if built.period > 1 {
                let (path, event, period) = (&object.path, measure.name(), built.period);
                out.note(format!(
                    "{path}: {event} in units of {period}, as counts have 32 bits; {} addresses vanished",
                    built.vanished
                ));
            }
            let mut file = out.file(&format!("{label}.{}.{}", measure.name(), self.extension()))?;
            file.put(&built.bytes)?;
            file.finish()?;
        }
        for (measure, amount) in profiles.outside {
            out.note(format!(
                "{}: {amount} have no stack, or one that begins in no object: no file holds them",
                measure.name()
            ));
        }
        Ok(())
    }

    fn totals(&self, source: &mut Source<'_>) -> Result<Totals, Error> {
        let mut totals = Totals::default();
        for process in source.processes.clone() {
            let (sums, ended) = (source.sums(process), process.has_ended());
            for measure in measures(source) {
                let sum: u128 = sums.sites.iter().map(|row| u128::from(measure.of(row, ended))).sum();
                if sum > 0 {
                    totals.add(measure.name(), sum);
                }
            }
        }
        Ok(totals)
    }
}

fn measures(source: &Source<'_>) -> Vec<Measure> {
    if source.options.what.is_empty() { USUAL.to_vec() } else { source.options.what.clone() }
}

/// A profile file of one object and one event.
pub struct Profile {
    /// Object that the profile is about.
    pub object: Object,
    /// Name for the file.
    pub label: String,
    pub measure: Measure,
    /// Content of the file, with the scale of its counts.
    pub built: Built,
}

/// The profile files of all objects.
pub struct Profiles {
    /// Files by object, then by measure.
    pub files: Vec<Profile>,
    /// Amounts that are in no object, by measure.
    pub outside: Vec<(Measure, u64)>,
}

/// Returns the files of all processes together.
///
/// # Errors
/// Returns an error when an object's name cannot be written in a header.
pub fn profiles(source: &mut Source<'_>) -> Result<Profiles, Error> {
    let measures = measures(source);
    let mut objects = Objects::default();
    let mut rows: BTreeMap<(usize, u64), Vec<u64>> = BTreeMap::new();
    let mut outside = vec![0u64; measures.len()];
    for process in source.processes.clone() {
        let (sums, ended) = (source.sums(process), process.has_ended());
        let frames = objects.frames(&mut source.symbols, process);
        for row in &sums.sites {
            let frame = frames.get((row.site as usize).wrapping_sub(1)).copied().flatten();
            let into = match frame {
                Some(frame) => rows.entry((frame.object, frame.address)).or_insert_with(|| vec![0; measures.len()]),
                None => &mut outside,
            };
            for (sum, measure) in into.iter_mut().zip(&measures) {
                *sum = sum.saturating_add(measure.of(row, ended));
            }
        }
    }
    let mut files = Vec::new();
    let labels = objects.labels();
    for (index, object) in objects.list.iter().enumerate() {
        let own = || rows.range((index, 0)..=(index, u64::MAX));
        for (column, &measure) in measures.iter().enumerate() {
            if own().all(|(_, row)| row[column] == 0) {
                continue;
            }
            // The extent of the code is unknown if the file does not exist, and for code outside
            // every segment.
            let first = own().next().map_or(object.code.start, |((_, address), _)| *address);
            let last = own().next_back().map_or(first, |((_, address), _)| *address);
            let start = object.code.start.min(first);
            let failed = |error| Error::Format(object.path.clone(), error);
            let mut builder = builder(source, object, measure, start, object.code.end.max(last + 1)).map_err(failed)?;
            own().for_each(|((_, address), row)| builder.add(*address, row[column]));
            let label = labels.get(index).cloned().unwrap_or_default();
            files.push(Profile { object: object.clone(), label, measure, built: builder.finish().map_err(failed)? });
        }
    }
    let outside = measures.into_iter().zip(outside).filter(|(_, amount)| *amount > 0).collect();
    Ok(Profiles { files, outside })
}

fn builder(
    source: &Source<'_>,
    object: &Object,
    measure: Measure,
    start: u64,
    end: u64,
) -> heaptape_formats::Result<Builder> {
    let first = source.processes.first();
    let clock = first.map(|process| process.clock).unwrap_or_default();
    let started = first.map_or(0, |process| process.about.started_unix_ns).max(clock.start_unix_ns) / 1_000_000_000;
    // The rate of a nanosecond clock is not the frequency of the CPU.
    let megahertz = if clock.ticks_per_second == 1_000_000_000 { 0 } else { clock.ticks_per_second / 1_000_000 };
    let platform = source.about.map(|about| one_line(&about.host)).filter(|host| !host.is_empty());
    let path = one_line(&object.path);
    // What dcpilabel kept apart in DCPI. Processes of several labels have none together.
    let labels: BTreeSet<&[u8]> = source.processes.iter().map(|process| &*process.tape.process.label.0).collect();
    let label = labels.first().filter(|_| labels.len() == 1).map(|label| one_line(&String::from_utf8_lossy(label)));
    let label: Vec<_> = label.iter().filter(|label| !label.is_empty()).map(|label| ("label", &**label)).collect();
    Builder::new(&HeaderFields {
        image: &object.identity(),
        unix_seconds: started,
        platform: platform.as_deref().unwrap_or("unknown"),
        event: measure.name(),
        tstart: start,
        tsize: end - start,
        cpuspeed: megahertz,
        cpucount: None,
        path: (!path.is_empty()).then_some(&path),
        further: &label,
    })
}

/// Returns a text as a header line can hold it.
pub(crate) fn one_line(text: &str) -> String {
    text.trim_start().replace('\n', " ")
}
