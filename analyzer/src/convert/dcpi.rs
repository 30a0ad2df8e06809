//! Converts DCPI profiles.

use super::{ConvertOptions, Converted, format_error};
use crate::export::Impossible;
use crate::export::{self, Error};
use crate::missing::Missing;
use crate::unpack::OpenedFile;
use heaptape_formats::Abi;
use heaptape_formats::dcpi::{self, Builder, Header, HeaderFields, Profile};
use heaptape_formats::gmon::{self, Unit};
use std::collections::BTreeMap;

/// The files of one image and event, which are summed.
struct Group<'f> {
    profiles: Vec<Profile<'f>>,
    event: String,
}

/// Reads all files and groups them by image and event.
fn read<'f>(
    files: &'f [OpenedFile],
    options: &ConvertOptions,
    converted: &mut Converted,
) -> Result<Vec<Group<'f>>, Error> {
    let mut groups: Vec<Group<'f>> = Vec::new();
    for file in files {
        let profile = dcpi::read_at(&file.bytes, options.stride).map_err(format_error(file))?;
        if !profile.is_documented() {
            return Err(Impossible::UndocumentedVersion(file.name.clone()).into());
        }
        let faults =
            profile.faults.iter().map(|fault| Missing::File { name: file.name.clone(), why: fault.to_string() });
        converted.missing.extend(faults);
        converted.totals.dcpi(&profile);
        let is_same = |other: &Profile<'_>| {
            let (a, b) = (&other.header, &profile.header);
            (a.image, a.event, a.path, a.tstart) == (b.image, b.event, b.path, b.tstart)
        };
        match groups.iter_mut().find(|group| group.profiles.first().is_some_and(is_same)) {
            Some(group) => group.profiles.push(profile),
            None => {
                let event = Header::text(profile.header.event).into_owned();
                groups.push(Group { profiles: vec![profile], event });
            }
        }
    }
    Ok(groups)
}

/// Converts to one histogram for each image and event.
///
/// # Errors
/// Returns an error if a file cannot be read, or if an address or sum is too large for the format.
pub(super) fn to_gmon(files: &[OpenedFile], options: &ConvertOptions) -> Result<Converted, Error> {
    let mut converted = Converted::default();
    let groups = read(files, options, &mut converted)?;
    let totals = std::mem::take(&mut converted.totals);
    for group in &groups {
        let mut amounts: BTreeMap<u64, u64> = BTreeMap::new();
        for profile in &group.profiles {
            for (address, count) in profile.samples() {
                let sum = amounts.entry(address).or_default();
                *sum = sum.saturating_add(u64::from(count).saturating_mul(profile.header.period));
            }
        }
        let wide = amounts.keys().next_back().is_some_and(|&last| last > u64::from(u32::MAX) - 2);
        let flavour = options.export.flavour.unwrap_or(Abi::LE64);
        if wide && flavour.word_size == 4 {
            return Err(Impossible::WideAddresses.into());
        }
        let abbreviation = group.event.bytes().next().unwrap_or(b'e');
        let mut builder = gmon::Builder::new(flavour, Unit::counted(&group.event, abbreviation));
        amounts.iter().for_each(|(&address, &amount)| builder.sample(address, 0, amount));
        export::object_table::fits(amounts.values().copied(), std::iter::empty())
            .map_err(|error| Error::Format(group.event.clone(), error))?;
        let written = builder.finish().and_then(|gmon| gmon::write(&gmon));
        let bytes = written.map_err(|error| Error::Format(group.event.clone(), error))?;
        converted.files.push((format!("{}.gmon", group.name()), bytes));
    }
    let mut events: Vec<&str> = groups.iter().map(|group| group.event.as_str()).collect();
    events.sort_unstable();
    events.dedup();
    events.into_iter().for_each(|event| converted.totals.add("samples", totals.get(event)));
    Ok(converted)
}

/// Sums the files of each image and event, and changes the stride if requested.
///
/// # Errors
/// Returns an error if a file cannot be read, or if the addresses span more than 4 GiB.
pub(super) fn to_dcpi(files: &[OpenedFile], options: &ConvertOptions) -> Result<Converted, Error> {
    let mut converted = Converted::default();
    for group in read(files, options, &mut converted)? {
        let Some(first) = group.profiles.first() else { continue };
        if let ([profile], None) = (&group.profiles[..], options.stride)
            && profile.faults.is_empty()
        {
            // One file is its own sum, with all its lines, chunks and zeros.
            converted.files.push((format!("{}.dcpi", group.name()), dcpi::write(profile)));
            continue;
        }
        let header = &first.header;
        let same_period = group.profiles.iter().all(|profile| profile.header.period == header.period);
        let samples: u128 = group.profiles.iter().map(|profile| u128::from(profile.total_samples)).sum();
        // Samples of equal weight remain samples if they fit into 32 bits.
        let keeps_samples = same_period && samples <= u128::from(u32::MAX);
        let event_error = |error| Error::Format(group.event.clone(), error);
        let mut builder =
            if keeps_samples { Builder::like(header) } else { builder_from_header(header).map_err(event_error)? };
        builder = builder.stride(options.stride.unwrap_or(first.stride));
        for profile in &group.profiles {
            let weight = if keeps_samples { 1 } else { profile.header.period };
            profile
                .samples()
                .for_each(|(address, count)| builder.add(address, u64::from(count).saturating_mul(weight)));
        }
        let built = builder.finish().map_err(event_error)?;
        if !keeps_samples && built.period > 1 {
            converted.notes.push(format!("{}: in units of {}, because counts have 32 bits", group.event, built.period));
        }
        converted.files.push((format!("{}.dcpi", group.name()), built.bytes));
    }
    Ok(converted)
}

/// Returns a builder with the fields of a header, which chooses the period itself.
fn builder_from_header(header: &Header<'_>) -> heaptape_formats::Result<Builder> {
    let text = |value| Header::text(value).into_owned();
    let (image, platform, event) = (text(header.image), text(header.platform), text(header.event));
    let path = header.path.map(text);
    let is_known =
        |keyword: &[u8]| dcpi::layout::index_of(keyword).is_some() || keyword == dcpi::layout::STRIDE_KEY.as_bytes();
    let lines = header.lines().filter(|line| !line.is_terminator() && !is_known(line.word()));
    let further: Vec<(String, String)> = lines.map(|line| (text(line.word()), text(line.value()))).collect();
    let further: Vec<(&str, &str)> =
        further.iter().map(|(keyword, value)| (keyword.as_str(), value.as_str())).collect();
    let head = HeaderFields {
        image: &image,
        platform: &platform,
        event: &event,
        tstart: header.tstart,
        tsize: header.tsize,
        cpuspeed: header.cpuspeed,
        cpucount: header.cpucount,
        path: path.as_deref(),
        further: &further,
        ..HeaderFields::default()
    };
    let mut builder = Builder::new(&head)?;
    builder.lines().set("epoch", header.epoch);
    Ok(builder)
}

impl Group<'_> {
    /// Returns a file name for the group: image and event.
    fn name(&self) -> String {
        let header = self.profiles.first().map(|profile| &profile.header);
        let path = header.and_then(|header| header.path).map(|path| Header::text(path).into_owned());
        let image = path.as_deref().and_then(|path| path.rsplit('/').next()).unwrap_or("image");
        format!("{image}.{}", self.event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_without_faults_is_copied() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/dcpi");
        let folders = ["good", "unusual"].map(|name| std::fs::read_dir(folder.join(name)).expect("golden files"));
        let mut copied = 0;
        for path in folders.into_iter().flatten().flatten().map(|entry| entry.path()) {
            let bytes = std::fs::read(&path).expect("a file");
            let whole = dcpi::read(&bytes).is_ok_and(|profile| profile.is_documented() && profile.faults.is_empty());
            if !whole {
                continue;
            }
            let unpacked = crate::unpack::unpack("x".into(), bytes.clone(), crate::unpack::Limit::DEFAULT);
            let converted = to_dcpi(&[unpacked.expect("a file")], &ConvertOptions::default()).expect("it converts");
            assert!(converted.files[0].1 == bytes, "{}", path.display());
            copied += 1;
        }
        assert!(copied >= 20, "{copied}");
    }
}
