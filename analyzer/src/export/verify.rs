//! Verification of exports: the written files are read again, and their sums compared with those of
//! the recording.

use super::Error;
use crate::export::Impossible;
use crate::load::{Events, Process};
use crate::unpack;
use heaptape_formats::mptl::Profile;
use heaptape_formats::mtrc::Record;
use heaptape_formats::tape::SiteSums;
use heaptape_formats::{Format, dcpi, gmon, mtrc, pprof};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Named sums of a file or of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals(BTreeMap<String, u128>);

/// The comparison of one sum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub name: String,
    pub source: u128,
    /// Sum of the written files.
    pub held: u128,
}

impl Verdict {
    /// Returns whether both sums are equal.
    pub const fn holds(&self) -> bool {
        self.source == self.held
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Verdict { name, source, held } = self;
        if source == held {
            write!(f, "{name}: {held}, conserved")
        } else if held < source {
            write!(f, "{name}: {held} of {source}; {} cannot be held", source - held)
        } else {
            write!(f, "{name}: {held} for {source}; {} more than there were", held - source)
        }
    }
}

/// Compares sums, each name of either side once.
pub fn compare(source: &Totals, held: &Totals) -> Vec<Verdict> {
    let mut names: Vec<&String> = source.0.keys().chain(held.0.keys()).collect();
    names.sort();
    names.dedup();
    let of = |totals: &Totals, name: &String| totals.0.get(name).copied().unwrap_or(0);
    names
        .into_iter()
        .map(|name| Verdict { name: name.clone(), source: of(source, name), held: of(held, name) })
        .collect()
}

impl Totals {
    pub fn add(&mut self, name: &str, amount: u128) {
        match self.0.get_mut(name) {
            Some(sum) => *sum += amount,
            None => drop(self.0.insert(name.to_string(), amount)),
        }
    }

    /// Keeps only the sums of these names.
    #[must_use]
    pub fn only(mut self, names: &[&str]) -> Totals {
        self.0.retain(|name, _| names.contains(&&**name));
        self
    }

    /// Returns a sum; 0 if there is none.
    pub fn get(&self, name: &str) -> u128 {
        self.0.get(name).copied().unwrap_or(0)
    }

    /// Adds a record of an mpatrol trace.
    pub fn record(&mut self, record: &Record) {
        match *record {
            Record::Alloc { size, .. } => {
                self.add("allocations", 1);
                self.add("bytes allocated", size.into());
            }
            Record::Resize { size, .. } => {
                self.add("resizes", 1);
                self.add("bytes allocated", size.into());
            }
            Record::Free { .. } => self.add("frees", 1),
            Record::Heap { size, .. } => self.add("bytes of heap", size.into()),
            Record::Internal { size, .. } => self.add("bytes of the library", size.into()),
        }
    }

    /// Adds the bins of an mpatrol profile and the sums of its sites.
    pub fn profile(&mut self, profile: &Profile) {
        let bins = &profile.bins;
        for (what, counts, big) in
            [("alloc", &bins.allocated, bins.allocated_big), ("free", &bins.freed, bins.freed_big)]
        {
            let count: u128 = counts.iter().map(|&count| u128::from(count)).sum();
            let exact = counts.split_last().map_or(&[][..], |(_, exact)| exact);
            let bytes: u128 = exact.iter().zip(1u128..).map(|(&count, size)| u128::from(count) * size).sum();
            self.add(&format!("{what}-count"), count);
            self.add(&format!("{what}-bytes"), bytes + u128::from(big));
        }
        for data in &profile.data {
            for (what, sums) in [("alloc", &data.allocated), ("free", &data.freed)] {
                self.add(&format!("{what}-count by stack"), sums.counts.iter().map(|&n| u128::from(n)).sum());
                self.add(&format!("{what}-bytes by stack"), sums.totals.iter().map(|&n| u128::from(n)).sum());
            }
        }
    }

    /// Adds the histograms of a gmon.out file. In heaptape's files in KiB or MiB, each count is one
    /// of these units.
    pub fn gmon(&mut self, gmon: &gmon::Gmon) {
        for histogram in gmon.histograms() {
            let scale = match histogram.unit.dimension() {
                b"KiB" | b"1024 blocks" => 1 << 10,
                b"MiB" => 1 << 20,
                _ => 1,
            };
            let sum: u128 = histogram.bins.iter().map(|&bin| u128::from(bin)).sum();
            self.add("samples", sum * scale);
        }
    }

    /// Adds the samples of a DCPI profile, by the name of its event.
    pub fn dcpi(&mut self, profile: &dcpi::Profile<'_>) {
        let samples: u128 = profile.samples().map(|(_, count)| u128::from(count)).sum();
        let event = dcpi::Header::text(profile.header.event).into_owned();
        self.add(&event, samples * u128::from(profile.header.period));
    }
}

impl Totals {
    /// Adds the sums of an imported file, without those that the file does not contain.
    pub fn imported(&mut self, process: &Process) {
        let Some((totals, sums)) = &process.sums else { return };
        let add = |of: fn(&SiteSums) -> u64| sums.iter().map(|row| u128::from(of(row))).sum::<u128>();
        let mut put = |name: &str, amount: u128| {
            if amount > 0 {
                self.add(name, amount);
            }
        };
        put("alloc-count", add(|row| row.allocs));
        put("alloc-bytes", add(|row| row.bytes));
        put("free-count", add(|row| row.frees));
        put("free-bytes", add(|row| row.freed_bytes));
        put("live-count", add(|row| row.allocs.saturating_sub(row.frees)));
        put("live-bytes", add(|row| row.bytes.saturating_sub(row.freed_bytes)));
        put("peak-count", add(|row| row.peak_blocks));
        put("peak-bytes", add(|row| row.peak_bytes).max(totals.peak_bytes.into()));
    }

    /// Adds a pprof profile: each value of its samples by name.
    ///
    /// # Errors
    /// Returns an error when the bytes are not a profile.
    pub fn pprof(&mut self, bytes: &[u8]) -> heaptape_formats::Result<()> {
        let (mut types, mut texts, mut sums) = (Vec::new(), Vec::new(), Vec::<u128>::new());
        let mut reader = pprof::Reader::new(bytes);
        while let Some(record) = reader.next()? {
            match record {
                pprof::Record::SampleType(kind) => types.push(kind.kind),
                pprof::Record::Text(text) => texts.push(text),
                pprof::Record::Sample(sample) => {
                    sums.resize(sums.len().max(sample.value.len()), 0);
                    for (sum, value) in sums.iter_mut().zip(sample.value) {
                        *sum += u128::try_from(value).unwrap_or(0);
                    }
                }
                _ => {}
            }
        }
        for (kind, sum) in types.into_iter().zip(sums) {
            let name = usize::try_from(kind).ok().and_then(|index| texts.get(index));
            self.add(&String::from_utf8_lossy(name.map_or(&[][..], |name| name)), sum);
        }
        Ok(())
    }
}

/// Adds up files of any supported format.
///
/// # Errors
/// Returns an error when a file cannot be read.
pub fn read(files: &[PathBuf]) -> Result<Totals, Error> {
    let mut totals = Totals::default();
    for path in files {
        let opened = unpack::open(path)?;
        let failed = |error| Error::Format(opened.name.clone(), error);
        match opened.format {
            Some(Format::Mtrc) => {
                let mut reader = mtrc::Reader::new(&opened.bytes).map_err(failed)?;
                while let Some(record) = reader.next().map_err(failed)? {
                    totals.record(&record);
                }
            }
            Some(Format::Mptl) => totals.profile(&Profile::read(&opened.bytes).map_err(failed)?.0),
            Some(Format::Gmon) => {
                totals.gmon(&gmon::read(&opened.bytes, gmon::Hints::default()).map_err(failed)?);
            }
            Some(Format::Dcpi) => {
                totals.dcpi(&dcpi::read(&opened.bytes).and_then(dcpi::Profile::strict).map_err(failed)?)
            }
            Some(Format::Pprof) => totals.pprof(&opened.bytes).map_err(failed)?,
            Some(format) if crate::import::is_supported(format) => {
                totals.imported(&crate::load::imported::open(path, format)?)
            }
            other => {
                let found = other.map_or("no known format", Format::name);
                return Err(Impossible::ReadBackAs { name: opened.name, found }.into());
            }
        }
    }
    Ok(totals)
}

/// Returns whether a process has only a profile, without events.
pub(crate) fn is_profile(process: &Process) -> bool {
    matches!(process.events, Events::Profile)
}

/// Reads a file that was written as JSON.
///
/// # Errors
/// The file cannot be read, or is no JSON.
pub(super) fn read_json(path: &Path) -> Result<serde_json::Value, Error> {
    let opened = unpack::open(path)?;
    serde_json::from_slice(&opened.bytes).map_err(|error| Error::Json(opened.name, error))
}
