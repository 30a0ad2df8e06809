//! Converts MPTL profiles. Their call sites are addresses in the memory of the process, and so are
//! the addresses of the results.

use super::{ConvertOptions, Converted, addresses, format_error, truncation};
use crate::export::Impossible;
use crate::export::objects::Frame;
use crate::export::stack_tree::{Gathering, Tree};
use crate::export::{Error, Measure, Totals, merge};
use crate::unpack::OpenedFile;
use heaptape_formats::Abi;
use heaptape_formats::gmon;
use heaptape_formats::mptl::{Data, Profile, Site};
use std::collections::BTreeMap;

/// Reads and merges all files.
fn read(files: &[OpenedFile], converted: &mut Converted) -> Result<(Profile, Totals), Error> {
    let mut profiles = Vec::new();
    let mut totals = Totals::default();
    for file in files {
        let (profile, ending) = Profile::read(&file.bytes).map_err(format_error(file))?;
        converted.missing.extend(truncation(&file.name, ending));
        totals.profile(&profile);
        profiles.push(profile);
    }
    Ok((merge::profiles(profiles)?, totals))
}

/// Merges the files, and changes the flavour if requested.
///
/// # Errors
/// Returns an error if a file cannot be read, or if the size classes of the files differ.
pub(super) fn to_mptl(files: &[OpenedFile], options: &ConvertOptions) -> Result<Converted, Error> {
    let mut converted = Converted::default();
    let (mut profile, totals) = read(files, &mut converted)?;
    converted.totals = totals;
    profile.abi = options.export.flavour.unwrap_or(profile.abi);
    profile.version = options.export.version.unwrap_or(profile.version);
    if profile.abi.word_size == 4 && merge::is_wide(&profile) {
        converted.notes.push("numbers of more than 32 bits are truncated to 32 bits".into());
    }
    let mut bytes = Vec::new();
    profile.write(&mut bytes);
    converted.files.push(("profile.mptl".into(), bytes));
    Ok(converted)
}

/// Returns the amount of a measure in the record of a site. A profile has no peaks. As it does not
/// store whether the process ended, leaked means live.
fn amount(measure: Measure, data: &Data) -> Result<u64, Error> {
    let (allocated, freed) = (&data.allocated, &data.freed);
    Ok(match measure {
        Measure::AllocBytes => allocated.total(),
        Measure::AllocCount => allocated.count(),
        Measure::FreeBytes => freed.total(),
        Measure::FreeCount => freed.count(),
        // mpatrol writes its profile when the process ends, so live memory is leaked memory.
        Measure::LiveBytes | Measure::LeakBytes => allocated.total().saturating_sub(freed.total()),
        Measure::LiveCount | Measure::LeakCount => allocated.count().saturating_sub(freed.count()),
        Measure::PeakBytes | Measure::PeakCount => {
            return Err(Impossible::PeakOfProfile.into());
        }
    })
}

/// Iterates over the sites that allocated, with their sums.
fn allocating(profile: &Profile) -> impl Iterator<Item = (&Site, &Data)> {
    let data = profile.data_positions();
    let row =
        move |site: &Site| usize::try_from(site.data).ok().and_then(|index| data.get(index.wrapping_sub(1)).copied());
    profile.sites.iter().filter_map(move |site| Some((site, profile.data.get(row(site)?)?)))
}

/// Returns the sites as a tree with callers first. The second value has the node of each site, by
/// the site's index minus 1.
fn tree(profile: &Profile) -> (Tree, Vec<u32>) {
    let site_indexes = profile.site_positions();
    let parent_of = |index: usize| {
        let site = site_indexes.get(index.wrapping_sub(1)).and_then(|&index| profile.sites.get(index));
        site.map(|site| (site, usize::try_from(site.parent).unwrap_or(0)))
    };
    let (mut tree, mut nodes) = (Tree::default(), vec![0u32; site_indexes.len()]);
    for index in 1..=site_indexes.len() {
        // Walks outwards to the first caller that has a node, then back. The reader guarantees that
        // callers form no cycle.
        let mut path = vec![];
        let mut current = index;
        while let Some((site, parent)) = parent_of(current).filter(|_| nodes[current - 1] == 0) {
            path.push((current, site));
            current = parent;
        }
        for (index, site) in path.into_iter().rev() {
            let address = site.address.wrapping_sub(1);
            let start = profile.symbol(site.symbol).filter(|&start| start != 0).unwrap_or(address);
            let parent = usize::try_from(site.parent).ok().and_then(|parent| nodes.get(parent.wrapping_sub(1)));
            tree.parents.push(parent.copied().unwrap_or(0));
            tree.frames.push(Some(Frame { object: 0, address, start, end: 0 }));
            nodes[index - 1] = tree.frames.len() as u32;
        }
    }
    (tree, nodes)
}

/// Converts to samples and arcs at the addresses of the process. These are correct for programs
/// that are not position-independent.
///
/// # Errors
/// Returns an error if a file cannot be read, if MPTL lacks the measure, or if the sums are too
/// large.
pub(super) fn to_gmon(files: &[OpenedFile], options: &ConvertOptions) -> Result<Converted, Error> {
    let mut converted = Converted::default();
    let (profile, _) = read(files, &mut converted)?;
    let measures = if options.export.what.is_empty() { vec![Measure::AllocBytes] } else { options.export.what.clone() };
    let flavour = options.export.flavour.unwrap_or(profile.abi);
    let (tree, nodes) = tree(&profile);
    for measure in measures {
        let mut amounts = Vec::new();
        for (site, data) in allocating(&profile) {
            let amount = amount(measure, data)?;
            let node = usize::try_from(site.index).ok().and_then(|index| nodes.get(index.wrapping_sub(1)));
            converted.totals.add("samples", amount.into());
            amounts.push((node.copied().unwrap_or(0), amount));
        }
        let mut gathering = Gathering::default();
        gathering.add(&tree, amounts.into_iter());
        let table = gathering.finish().pop().unwrap_or_default();
        let (gmon_file, unit) = table.gmon(measure, "MPTL", flavour)?;
        converted.notes.extend(unit.map(|unit| format!("sums of 2^32 and more; counted in {unit}")));
        let bytes = gmon::write(&gmon_file).map_err(|error| Error::Format("gmon".into(), error))?;
        converted.files.push((format!("{}.gmon", measure.name()), bytes));
    }
    if flavour != Abi::LE64 {
        converted.notes.push(format!("pointers are written as {}", flavour.name()));
    }
    Ok(converted)
}

/// Converts to counts at the addresses of the process, without call stacks.
///
/// # Errors
/// Returns an error if a file cannot be read, if MPTL lacks the measure, or if all counts are 0.
pub(super) fn to_dcpi(files: &[OpenedFile], options: &ConvertOptions) -> Result<Converted, Error> {
    const ALL_MEASURES: [Measure; 6] = [
        Measure::AllocBytes,
        Measure::AllocCount,
        Measure::FreeBytes,
        Measure::FreeCount,
        Measure::LiveBytes,
        Measure::LiveCount,
    ];
    let mut converted = Converted::default();
    let (profile, _) = read(files, &mut converted)?;
    let measures = if options.export.what.is_empty() { ALL_MEASURES.to_vec() } else { options.export.what.clone() };
    for measure in measures {
        let mut amounts: BTreeMap<u64, u64> = BTreeMap::new();
        for (site, data) in allocating(&profile) {
            let sum = amounts.entry(site.address.wrapping_sub(1)).or_default();
            *sum = sum.saturating_add(amount(measure, data)?);
        }
        amounts.retain(|_, amount| *amount > 0);
        for &amount in amounts.values() {
            converted.totals.add(measure.name(), amount.into());
        }
        addresses::profiles(measure.name(), &amounts, &[], options.stride.unwrap_or(1), &mut converted)?;
    }
    if converted.files.is_empty() {
        return Err(Impossible::NoCounts.into());
    }
    converted.notes.push("a DCPI profile has no callers".into());
    Ok(converted)
}
