//! Reads profiles and sums them by image, address and event.

use super::elf::{Elf, Procedure};
use super::{Error, Result};
use crate::input::{self, RecordingInput};
use heaptape_analyzer::ProcessFilter;
use heaptape_analyzer::export;
use heaptape_analyzer::text::with_causes;
use heaptape_analyzer::unpack;
use heaptape_formats::dcpi::{self, Header};
use heaptape_formats::{Format, sniff};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Maximum depth to which the directories of a profile database are searched.
const DATABASE_DEPTH: usize = 8;

#[derive(Clone, Debug, Default)]
pub struct Inputs {
    /// Profiles, directories of profiles, recordings, and ELF files. Their kind is detected from
    /// the content; `-` is standard input.
    pub files: Vec<PathBuf>,
    /// ELF files that provide the procedures and lines of the images.
    pub images: Vec<PathBuf>,
    /// Number of bytes between successive counts. It overrides the number in each file.
    pub stride: Option<u32>,
    /// The processes of a recording to include.
    pub processes: ProcessFilter,
    /// Shows events (samples times period) even if all files have the same period.
    pub in_events: bool,
}

/// An event that was counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub name: String,
    /// The periods (events per sample) in the files of this event.
    pub periods: BTreeSet<u64>,
    /// Whether the counts are events (samples times period). This is the case if requested, or if
    /// the periods differ, because samples of different weight cannot be summed.
    pub is_scaled: bool,
    /// Sum of the counts over all images.
    pub total: u64,
}

/// An executable or library with its samples.
#[derive(Default)]
pub struct Image {
    pub identity: String,
    pub path: Option<String>,
    /// Address of the first byte of the text.
    pub tstart: u64,
    /// Size of the text in bytes.
    pub tsize: u64,
    /// The epochs in the headers, verbatim.
    pub epochs: BTreeSet<String>,
    pub platforms: BTreeSet<String>,
    /// The values of the header field `label`.
    pub labels: BTreeSet<String>,
    /// The events of the image, as indexes in [`Set::events`].
    pub events: BTreeSet<usize>,
    /// The ELF file of the image, if one was found.
    pub elf: Option<Rc<Elf>>,
    /// Sorted by address and event.
    counts: Vec<Count>,
}

#[derive(Clone, Copy, Debug)]
struct Count {
    address: u64,
    event: usize,
    count: u64,
}

/// A set of profiles, summed.
#[derive(Default)]
pub struct Set {
    /// The events, in the order of their first appearance.
    pub events: Vec<Event>,
    /// The images, in the order of their first appearance.
    pub images: Vec<Image>,
    /// Faults of the files, for standard error.
    pub faults: Vec<String>,
    /// Notes for the user that are not faults.
    pub notes: Vec<String>,
}

/// The counts of one file, before their weight is known.
struct FileCounts {
    image: usize,
    event: usize,
    period: u64,
    counts: Vec<(u64, u32)>,
}

impl Set {
    /// Reads and sums all files. A file that cannot be read adds a fault.
    ///
    /// # Errors
    /// Returns an error if a file of `inputs.images` cannot be opened, or if no profile can be
    /// read.
    pub fn load(inputs: &Inputs) -> Result<Set> {
        let mut set = Set::default();
        let mut file_counts = Vec::new();
        let mut elfs = Vec::new();
        for path in &inputs.images {
            let opened = unpack::open(path)?;
            match Elf::parse(path, &opened.bytes) {
                Ok(elf) => elfs.push(Rc::new(elf)),
                Err(error) => set.faults.push(format!("{}: not an ELF file: {error}", opened.name)),
            }
        }
        for path in &inputs.files {
            if heaptape_analyzer::is_recording(path) {
                set.read_recording(path, &inputs.processes, &mut file_counts);
            } else {
                set.read(path, inputs.stride, &mut file_counts, &mut elfs);
            }
        }
        if file_counts.is_empty() {
            return Err(Error::NoProfile { faults: set.faults });
        }
        set.sum(file_counts, inputs.in_events);
        set.find_elfs(&elfs);
        Ok(set)
    }

    fn read(&mut self, path: &Path, stride: Option<u32>, file_counts: &mut Vec<FileCounts>, elfs: &mut Vec<Rc<Elf>>) {
        if path.is_dir() {
            return self.read_database(path, stride, file_counts, DATABASE_DEPTH);
        }
        let opened = match unpack::open(path) {
            Ok(opened) => opened,
            Err(error) => return self.faults.push(with_causes(&error)),
        };
        if opened.bytes.starts_with(b"\x7fELF") {
            match Elf::parse(path, &opened.bytes) {
                Ok(elf) => elfs.push(Rc::new(elf)),
                Err(error) => self.faults.push(format!("{}: not an ELF file: {error}", opened.name)),
            }
            return;
        }
        match input::convert_to(&opened, Format::Dcpi, &[]) {
            Ok(None) => {}
            Ok(Some(converted)) => {
                self.notes.extend(converted.notes.into_iter().map(|note| format!("{}: {note}", opened.name)));
                for (name, bytes) in &converted.files {
                    self.add(&format!("{} as {name}", opened.name), bytes, stride, file_counts);
                }
                return;
            }
            Err(error) => {
                let format = opened.format.map_or("none", Format::name);
                return self.faults.push(format!(
                    "{}: a file of {format}, not a DCPI profile: {}",
                    opened.name,
                    with_causes(&error)
                ));
            }
        }
        if let Some(damage) = &opened.damage {
            self.faults.push(format!("{}: {damage}", opened.name));
        }
        self.add(&opened.name, &opened.bytes, stride, file_counts);
    }

    /// Adds the profiles that an export of a recording would write.
    fn read_recording(&mut self, path: &Path, processes: &ProcessFilter, file_counts: &mut Vec<FileCounts>) {
        let result = RecordingInput::open(path, processes).and_then(|recording| {
            let mut source = recording.source()?;
            let profiles = export::dcpi::profiles(&mut source)?;
            Ok((profiles, source.missing))
        });
        let (profiles, missing) = match result {
            Ok(result) => result,
            Err(error) => return self.faults.push(with_causes(&error)),
        };
        let name = path.display();
        self.faults.extend(missing.iter().map(|missing| format!("{name}: {missing}")));
        for (measure, amount) in profiles.outside {
            self.notes.push(format!("{name}: {}: {amount} outside all images", measure.name()));
        }
        for profile in &profiles.files {
            self.add(&format!("{name}: {}", profile.object.path), &profile.built.bytes, None, file_counts);
        }
    }

    /// Adds all profiles below a directory, such as the database of a DCPI daemon, which has a
    /// folder for each epoch and platform.
    fn read_database(&mut self, folder: &Path, stride: Option<u32>, file_counts: &mut Vec<FileCounts>, depth: usize) {
        let entries = match std::fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) => return self.faults.push(format!("{}: {error}", folder.display())),
        };
        let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.sort();
        for path in paths {
            // A symbolic link could form a cycle.
            let is_link = path.is_symlink();
            if path.is_dir() && !is_link && depth > 0 {
                self.read_database(&path, stride, file_counts, depth - 1);
            } else if path.is_file() {
                match unpack::open(&path) {
                    Ok(opened) if opened.format == Some(Format::Dcpi) => {
                        self.add(&opened.name, &opened.bytes, stride, file_counts);
                    }
                    Ok(_) => {}
                    Err(error) => self.faults.push(with_causes(&error)),
                }
            }
        }
    }

    fn add(&mut self, name: &str, bytes: &[u8], stride: Option<u32>, file_counts: &mut Vec<FileCounts>) {
        let profile = match dcpi::read_at(bytes, stride) {
            Ok(profile) => profile,
            Err(_) if sniff::sniff(bytes) == sniff::Detection::Unknown => {
                return self.faults.push(format!("{name}: not a DCPI profile"));
            }
            Err(error) => return self.faults.push(format!("{name}: {error}")),
        };
        self.faults.extend(profile.faults.iter().map(|fault| format!("{name}: {fault}")));
        self.notes.extend(profile.warnings.iter().map(|warning| format!("{name}: {warning}")));
        let image = self.image(&profile.header);
        let event = self.event(&profile.header);
        self.images[image].events.insert(event);
        file_counts.push(FileCounts {
            image,
            event,
            period: profile.header.period,
            counts: profile.samples().collect(),
        });
    }

    /// Returns the index of the image of a header. Adds the image if it is new.
    fn image(&mut self, header: &Header<'_>) -> usize {
        let identity = Header::text(header.image).to_ascii_lowercase();
        let path = header.path.map(|path| Header::text(path).into_owned());
        let known = self
            .images
            .iter()
            .position(|image| image.identity == identity && image.path == path && image.tstart == header.tstart);
        let index = known.unwrap_or_else(|| {
            self.images.push(Image { identity, path, tstart: header.tstart, ..Image::default() });
            self.images.len() - 1
        });
        let image = &mut self.images[index];
        image.tsize = image.tsize.max(header.tsize);
        image.epochs.insert(Header::text(header.epoch).into_owned());
        image.platforms.insert(Header::text(header.platform).into_owned());
        image.labels.extend(header.get("label").map(|label| Header::text(label).into_owned()));
        index
    }

    /// Returns the index of the event of a header. Adds the event if it is new.
    fn event(&mut self, header: &Header<'_>) -> usize {
        let name = Header::text(header.event);
        let index = self.events.iter().position(|event| event.name == name).unwrap_or_else(|| {
            let name = name.into_owned();
            self.events.push(Event { name, periods: BTreeSet::new(), is_scaled: false, total: 0 });
            self.events.len() - 1
        });
        self.events[index].periods.insert(header.period);
        index
    }

    fn sum(&mut self, file_counts: Vec<FileCounts>, in_events: bool) {
        for event in &mut self.events {
            event.is_scaled = event.periods.len() > 1 || in_events;
        }
        for file in file_counts {
            let weight = if self.events[file.event].is_scaled { file.period } else { 1 };
            let weighed = file.counts.into_iter().map(|(address, count)| Count {
                address,
                event: file.event,
                count: u64::from(count).saturating_mul(weight),
            });
            self.images[file.image].counts.extend(weighed);
        }
        for image in &mut self.images {
            image.counts.sort_by_key(|count| (count.address, count.event));
            image.counts.dedup_by(|next, kept| {
                let is_same = (next.address, next.event) == (kept.address, kept.event);
                if is_same {
                    kept.count = kept.count.saturating_add(next.count);
                }
                is_same
            });
            for count in &image.counts {
                let total = &mut self.events[count.event].total;
                *total = total.saturating_add(count.count);
            }
        }
    }

    /// Assigns an ELF file to each image. Of the named files it is that with the image's build ID,
    /// else that with its file name, else the only file if there is only one image. Otherwise it is
    /// the file at the path in the header.
    fn find_elfs(&mut self, elfs: &[Rc<Elf>]) {
        let is_only = self.images.len() == 1 && elfs.len() == 1;
        for image in &mut self.images {
            let by_identity = elfs.iter().position(|elf| elf.build_id.as_ref() == Some(&image.identity));
            let file_name = |path: &Path| path.file_name().map(|name| name.to_os_string());
            let image_name = image.path.as_deref().and_then(|path| file_name(Path::new(path)));
            let by_name = || elfs.iter().position(|elf| image_name.is_some() && file_name(&elf.path) == image_name);
            let index = by_identity.or_else(by_name).or(is_only.then_some(0));
            image.elf = index.map(|index| Rc::clone(&elfs[index])).or_else(|| image.elf_at_path().map(Rc::new));
            if let Some(elf) = &image.elf
                && let Some(id) = &elf.build_id
                && id.len() == image.identity.len()
                && *id != image.identity
            {
                let (path, identity) = (elf.path.display(), &image.identity);
                self.notes.push(format!("{path}: its build ID is {id}, that of the profile {identity}"));
            }
        }
    }

    /// Returns the index of the event to sort by: the requested one, else `cycles`, else the first.
    ///
    /// # Errors
    /// Returns [`Error::NoEvent`] if the requested event does not exist.
    pub(crate) fn sort_event(&self, wanted: Option<&str>) -> Result<usize> {
        let find = |name: &str| self.events.iter().position(|event| event.name == name);
        match wanted {
            None => Ok(find("cycles").unwrap_or(0)),
            Some(wanted) => find(wanted).ok_or_else(|| Error::NoEvent {
                wanted: wanted.to_string(),
                present: self.events.iter().map(|event| event.name.as_str()).collect::<Vec<_>>().join(", "),
            }),
        }
    }
}

impl Image {
    /// Returns the file name, or the identity if there is no path.
    pub fn name(&self) -> &str {
        let name = self.path.as_deref().and_then(|path| path.rsplit('/').next()).filter(|name| !name.is_empty());
        name.unwrap_or(&self.identity)
    }

    /// Returns the path, or the identity if there is no path.
    pub(crate) fn long_name(&self) -> &str {
        self.path.as_deref().unwrap_or(&self.identity)
    }

    /// Iterates over the addresses that have counts, with one count for each of `events` events.
    pub fn rows(&self, events: usize) -> impl Iterator<Item = (u64, Vec<u64>)> + '_ {
        self.counts.chunk_by(|a, b| a.address == b.address).map(move |counts| {
            let mut row = vec![0; events];
            for count in counts {
                row[count.event] = count.count;
            }
            (counts[0].address, row)
        })
    }

    /// Returns the number to add to an address of the profile to get the address in the ELF file.
    pub fn shift(&self) -> u64 {
        self.elf.as_ref().map_or(0, |elf| elf.shift(self.tstart, self.tsize))
    }

    /// Returns the procedure that contains an address of the profile.
    pub fn procedure(&self, address: u64) -> Option<&Procedure> {
        self.elf.as_ref()?.procedure(address.wrapping_add(self.shift()))
    }

    /// Returns the counts by the start address of the procedure, or `None` for addresses outside
    /// all procedures.
    pub(super) fn by_procedure(&self, events: usize) -> BTreeMap<Option<u64>, Vec<u64>> {
        let shift = self.shift();
        let mut sums: BTreeMap<Option<u64>, Vec<u64>> = BTreeMap::new();
        for (address, row) in self.rows(events) {
            let elf = self.elf.as_ref();
            let start = elf.and_then(|elf| elf.procedure(address.wrapping_add(shift))).map(|procedure| procedure.start);
            add_row(sums.entry(start).or_insert_with(|| vec![0; events]), &row);
        }
        sums
    }

    /// Reads the ELF file at the path in the header. Returns `None` if it is another build.
    fn elf_at_path(&self) -> Option<Elf> {
        let path = Path::new(self.path.as_deref()?);
        if !path.is_absolute() || !path.is_file() {
            return None;
        }
        let mut file = std::fs::File::open(path).ok()?;
        let mut magic = [0; 4];
        file.read_exact(&mut magic).ok()?;
        let mut bytes = magic.to_vec();
        if magic != *b"\x7fELF" || file.read_to_end(&mut bytes).is_err() {
            return None;
        }
        let elf = Elf::parse(path, &bytes).ok()?;
        let is_other = elf.build_id.as_ref().is_some_and(|id| id.len() == self.identity.len() && *id != self.identity);
        (!is_other).then_some(elf)
    }
}

/// Adds the counts of one row to another.
pub(super) fn add_row(sum: &mut [u64], row: &[u64]) {
    for (sum, count) in sum.iter_mut().zip(row) {
        *sum = sum.saturating_add(*count);
    }
}
