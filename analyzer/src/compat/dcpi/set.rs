//! Profiles summed by image, address and event.

use super::elf::{Elf, Procedure};
use super::{Error, Result};
use crate::compat::input::{self, RecordingInput};
use crate::export;
use crate::processes::Processes;
use crate::unpack;
use heaptape_formats::dcpi::{self, Header};
use heaptape_formats::{Format, sniff};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// Folders within folders of a profile database that are looked through.
const DATABASE_DEPTH: usize = 8;

/// Where the samples come from.
#[derive(Clone, Debug, Default)]
pub struct Inputs {
    /// Profiles, directories with profiles, and ELF files, told apart by content; `-` is standard input.
    pub files: Vec<PathBuf>,
    /// ELF files in which the images' procedures and lines are looked up.
    pub images: Vec<PathBuf>,
    /// Bytes between successive counts, instead of what each file says.
    pub stride: Option<u32>,
    /// Of a recording, only these processes.
    pub processes: Processes,
    /// Show events (samples times period) even where all files have one period.
    pub in_events: bool,
}

/// What was counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its name.
    pub name: String,
    /// Events a sample, in the files of this event.
    pub periods: BTreeSet<u64>,
    /// Whether the counts here are events (samples times period): where asked for, and where the periods differ, since
    /// samples of different weight have no sum.
    pub is_scaled: bool,
    /// Sum over all images.
    pub total: u64,
}

/// One image's samples.
#[derive(Default)]
pub struct Image {
    /// The identity that the headers state.
    pub identity: String,
    /// Where the image lay.
    pub path: Option<String>,
    /// Address of the first byte of the text.
    pub tstart: u64,
    /// Bytes of the text.
    pub tsize: u64,
    /// The epochs of the files, as their digits stand.
    pub epochs: BTreeSet<String>,
    /// The machines.
    pub platforms: BTreeSet<String>,
    /// Values of lines `label`.
    pub labels: BTreeSet<String>,
    /// The events of its files, by their place in [`Set::events`].
    pub events: BTreeSet<usize>,
    /// The ELF file.
    pub elf: Option<Rc<Elf>>,
    /// By rising address and event.
    counts: Vec<Count>,
}

#[derive(Clone, Copy, Debug)]
struct Count {
    address: u64,
    event: usize,
    count: u64,
}

/// Profiles, summed.
#[derive(Default)]
pub struct Set {
    /// The events, in the order in which the files bring them.
    pub events: Vec<Event>,
    /// The images, in the order in which the files bring them.
    pub images: Vec<Image>,
    /// What was wrong with the files, for standard error.
    pub faults: Vec<String>,
    /// What is worth knowing and no fault.
    pub notes: Vec<String>,
}

/// The counts of one file, before it is known how they are weighed.
struct Part {
    image: usize,
    event: usize,
    period: u64,
    counts: Vec<(u64, u32)>,
}

impl Set {
    /// Reads and sums all files. A file that cannot be read is a fault; none that can is an error.
    pub fn load(inputs: &Inputs) -> Result<Set> {
        let mut set = Set::default();
        let mut parts = Vec::new();
        let mut elfs = Vec::new();
        for path in &inputs.images {
            let opened = unpack::open(path)?;
            match Elf::parse(path, &opened.bytes) {
                Ok(elf) => elfs.push(Rc::new(elf)),
                Err(error) => set.faults.push(format!("{}: no ELF image: {error}", opened.name)),
            }
        }
        for path in &inputs.files {
            if input::is_recording(path) {
                set.read_recording(path, &inputs.processes, &mut parts);
            } else {
                set.read(path, inputs.stride, &mut parts, &mut elfs);
            }
        }
        if parts.is_empty() {
            return Err(Error::Nothing(set.faults.iter().map(|fault| format!("\n  {fault}")).collect()));
        }
        set.sum(parts, inputs.in_events);
        set.find_elfs(&elfs);
        Ok(set)
    }

    fn read(&mut self, path: &Path, stride: Option<u32>, parts: &mut Vec<Part>, elfs: &mut Vec<Rc<Elf>>) {
        if path.is_dir() {
            return self.read_database(path, stride, parts, DATABASE_DEPTH);
        }
        let opened = match unpack::open(path) {
            Ok(opened) => opened,
            Err(error) => return self.faults.push(chain(&error)),
        };
        if opened.bytes.starts_with(b"\x7fELF") {
            match Elf::parse(path, &opened.bytes) {
                Ok(elf) => elfs.push(Rc::new(elf)),
                Err(error) => self.faults.push(format!("{}: no ELF image: {error}", opened.name)),
            }
            return;
        }
        match input::convert_to(&opened, Format::Dcpi, &[]) {
            Ok(None) => {}
            Ok(Some(made)) => {
                self.notes.extend(made.notes.into_iter().map(|note| format!("{}: {note}", opened.name)));
                for (name, bytes) in &made.files {
                    self.add(&format!("{} as {name}", opened.name), bytes, stride, parts);
                }
                return;
            }
            Err(error) => {
                let format = opened.format.map_or("none", Format::name);
                return self.faults.push(format!(
                    "{}: a file of {format}, not a DCPI profile: {}",
                    opened.name,
                    chain(&error)
                ));
            }
        }
        if let Some(damage) = &opened.damage {
            self.faults.push(format!("{}: {damage}", opened.name));
        }
        self.add(&opened.name, &opened.bytes, stride, parts);
    }

    /// The profiles that an export of a recording would write.
    fn read_recording(&mut self, path: &Path, processes: &Processes, parts: &mut Vec<Part>) {
        let made = RecordingInput::open(path, processes).and_then(|recorded| {
            let mut source = recorded.source()?;
            let profiles = export::dcpi::profiles(&mut source)?;
            Ok((profiles, source.missing))
        });
        let (profiles, missing) = match made {
            Ok(made) => made,
            Err(error) => return self.faults.push(chain(&error)),
        };
        let name = path.display();
        self.faults.extend(missing.iter().map(|missing| format!("{name}: {missing}")));
        for (measure, amount) in profiles.outside {
            self.notes.push(format!("{name}: {}: {amount} begin in no image", measure.name()));
        }
        for profile in &profiles.files {
            self.add(&format!("{name}: {}", profile.object.path), &profile.built.bytes, None, parts);
        }
    }

    /// All profiles below a directory, as a daemon's database holds them: a folder for each epoch and platform.
    fn read_database(&mut self, folder: &Path, stride: Option<u32>, parts: &mut Vec<Part>, depth: usize) {
        let entries = match std::fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) => return self.faults.push(format!("{}: {error}", folder.display())),
        };
        let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.sort();
        for path in paths {
            // A link could lead back up.
            let is_link = path.is_symlink();
            if path.is_dir() && !is_link && depth > 0 {
                self.read_database(&path, stride, parts, depth - 1);
            } else if path.is_file() {
                match unpack::open(&path) {
                    Ok(opened) if opened.format == Some(Format::Dcpi) => {
                        self.add(&opened.name, &opened.bytes, stride, parts);
                    }
                    Ok(_) => {}
                    Err(error) => self.faults.push(chain(&error)),
                }
            }
        }
    }

    fn add(&mut self, name: &str, bytes: &[u8], stride: Option<u32>, parts: &mut Vec<Part>) {
        let profile = match dcpi::read_at(bytes, stride) {
            Ok(profile) => profile,
            Err(_) if sniff::sniff(bytes) == sniff::Verdict::Unknown => {
                return self.faults.push(format!("{name}: not a DCPI profile"));
            }
            Err(error) => return self.faults.push(format!("{name}: {error}")),
        };
        self.faults.extend(profile.faults.iter().map(|fault| format!("{name}: {fault}")));
        self.notes.extend(profile.warnings.iter().map(|warning| format!("{name}: {warning}")));
        let image = self.image(&profile.header);
        let event = self.event(&profile.header);
        self.images[image].events.insert(event);
        parts.push(Part { image, event, period: profile.header.period, counts: profile.samples().collect() });
    }

    fn image(&mut self, header: &Header<'_>) -> usize {
        let identity = Header::text(header.image).to_ascii_lowercase();
        let path = header.path.map(|path| Header::text(path).into_owned());
        let known = self
            .images
            .iter()
            .position(|image| image.identity == identity && image.path == path && image.tstart == header.tstart);
        let place = known.unwrap_or_else(|| {
            self.images.push(Image { identity, path, tstart: header.tstart, ..Image::default() });
            self.images.len() - 1
        });
        let image = &mut self.images[place];
        image.tsize = image.tsize.max(header.tsize);
        image.epochs.insert(Header::text(header.epoch).into_owned());
        image.platforms.insert(Header::text(header.platform).into_owned());
        image.labels.extend(header.get("label").map(|label| Header::text(label).into_owned()));
        place
    }

    fn event(&mut self, header: &Header<'_>) -> usize {
        let name = Header::text(header.event);
        let place = self.events.iter().position(|event| event.name == name).unwrap_or_else(|| {
            let name = name.into_owned();
            self.events.push(Event { name, periods: BTreeSet::new(), is_scaled: false, total: 0 });
            self.events.len() - 1
        });
        self.events[place].periods.insert(header.period);
        place
    }

    fn sum(&mut self, parts: Vec<Part>, in_events: bool) {
        for event in &mut self.events {
            event.is_scaled = event.periods.len() > 1 || in_events;
        }
        for part in parts {
            let weight = if self.events[part.event].is_scaled { part.period } else { 1 };
            let weighed = part.counts.into_iter().map(|(address, count)| Count {
                address,
                event: part.event,
                count: u64::from(count).saturating_mul(weight),
            });
            self.images[part.image].counts.extend(weighed);
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

    /// Gives each image its ELF file: of those named, the one with its build-id, else with its file name, else the only
    /// one for the only image; else the file that its header names.
    fn find_elfs(&mut self, elfs: &[Rc<Elf>]) {
        let is_only = self.images.len() == 1 && elfs.len() == 1;
        for image in &mut self.images {
            let by_identity = elfs.iter().position(|elf| elf.build_id.as_ref() == Some(&image.identity));
            let file_name = |path: &Path| path.file_name().map(|name| name.to_os_string());
            let own = image.path.as_deref().and_then(|path| file_name(Path::new(path)));
            let by_name = || elfs.iter().position(|elf| own.is_some() && file_name(&elf.path) == own);
            let place = by_identity.or_else(by_name).or(is_only.then_some(0));
            image.elf = place.map(|place| Rc::clone(&elfs[place])).or_else(|| image.elf_at_path().map(Rc::new));
            if let Some(elf) = &image.elf
                && let Some(id) = &elf.build_id
                && id.len() == image.identity.len()
                && *id != image.identity
            {
                let (path, identity) = (elf.path.display(), &image.identity);
                self.notes.push(format!("{path}: its build-id is {id}, that of the profile {identity}"));
            }
        }
    }

    /// The event to sort by: the one asked for, else `cycles`, else the first.
    pub fn sort_event(&self, wanted: Option<&str>) -> Result<usize> {
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
    /// The file's name, or the identity.
    pub fn name(&self) -> &str {
        let name = self.path.as_deref().and_then(|path| path.rsplit('/').next()).filter(|name| !name.is_empty());
        name.unwrap_or(&self.identity)
    }

    /// The path, or the identity.
    pub fn long_name(&self) -> &str {
        self.path.as_deref().unwrap_or(&self.identity)
    }

    /// Each address that has counts, with one count for each of `events` events.
    pub fn rows(&self, events: usize) -> impl Iterator<Item = (u64, Vec<u64>)> + '_ {
        self.counts.chunk_by(|a, b| a.address == b.address).map(move |counts| {
            let mut row = vec![0; events];
            for count in counts {
                row[count.event] = count.count;
            }
            (counts[0].address, row)
        })
    }

    /// What must be added to an address of the profile to have an address of the ELF file.
    pub fn shift(&self) -> u64 {
        self.elf.as_ref().map_or(0, |elf| elf.shift(self.tstart, self.tsize))
    }

    /// The procedure that holds an address of the profile.
    pub fn procedure(&self, address: u64) -> Option<&Procedure> {
        self.elf.as_ref()?.procedure(address.wrapping_add(self.shift()))
    }

    /// The counts by procedure; `None` for addresses that no procedure holds.
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

    /// The file at the header's path, unless it is another build.
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

fn chain(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
