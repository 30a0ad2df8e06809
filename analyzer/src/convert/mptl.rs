//! From MPTL: its sites are addresses in the memory of the process, so the results are, too.

use super::{ConvertOptions, Converted, addresses, cut, failed, merge};
use crate::export::objects::Frame;
use crate::export::stack_tree::{Gathering, Tree};
use crate::export::{Error, Measure, Totals};
use crate::unpack::OpenedFile;
use heaptape_formats::Flavour;
use heaptape_formats::gmon;
use heaptape_formats::mptl::{Data, Profile, Site};
use std::collections::BTreeMap;

fn read(files: &[OpenedFile], made: &mut Converted) -> Result<(Profile, Totals), Error> {
    let mut profiles = Vec::new();
    let mut totals = Totals::default();
    for file in files {
        let (profile, ending) = Profile::read(&file.bytes).map_err(failed(file))?;
        made.missing.extend(cut(&file.name, ending));
        totals.profile(&profile);
        profiles.push(profile);
    }
    Ok((merge::profiles(profiles)?, totals))
}

/// Another flavour, or the sum.
///
/// # Errors
/// When a file cannot be read or does not fit the others.
pub fn to_mptl(files: &[OpenedFile], options: &ConvertOptions) -> Result<Converted, Error> {
    let mut made = Converted::default();
    let (mut profile, totals) = read(files, &mut made)?;
    made.totals = totals;
    profile.flavour = options.export.flavour.unwrap_or(profile.flavour);
    profile.version = options.export.version.unwrap_or(profile.version);
    if profile.flavour.word == 4 && merge::is_wide(&profile) {
        made.notes.push("numbers of more than 32 bits lost their high bits".into());
    }
    let mut bytes = Vec::new();
    profile.write(&mut bytes);
    made.files.push(("profile.mptl".into(), bytes));
    Ok(made)
}

/// What of a measure a site's record holds; a profile does not know peaks, nor whether the process ended.
fn amount(measure: Measure, data: &Data) -> Result<u64, Error> {
    let (allocated, freed) = (&data.allocated, &data.freed);
    Ok(match measure {
        Measure::AllocBytes => allocated.total(),
        Measure::AllocCount => allocated.count(),
        Measure::FreeBytes => freed.total(),
        Measure::FreeCount => freed.count(),
        // mpatrol writes its profile when the process ends.
        Measure::LiveBytes | Measure::LeakBytes => allocated.total().saturating_sub(freed.total()),
        Measure::LiveCount | Measure::LeakCount => allocated.count().saturating_sub(freed.count()),
        Measure::PeakBytes | Measure::PeakCount => {
            return Err(Error::Impossible("MPTL knows nothing of the peak".into()));
        }
    })
}

/// Each site that allocated, with its sums.
fn allocating(profile: &Profile) -> impl Iterator<Item = (&Site, &Data)> {
    let data = profile.data_places();
    let row =
        move |site: &Site| usize::try_from(site.data).ok().and_then(|index| data.get(index.wrapping_sub(1)).copied());
    profile.sites.iter().filter_map(move |site| Some((site, profile.data.get(row(site)?)?)))
}

/// The sites as a tree with callers first, and each site's node by its index less one.
fn tree(profile: &Profile) -> (Tree, Vec<u32>) {
    let places = profile.site_places();
    let parent_of = |index: usize| {
        let site = places.get(index.wrapping_sub(1)).and_then(|&place| profile.sites.get(place));
        site.map(|site| (site, usize::try_from(site.parent).unwrap_or(0)))
    };
    let (mut tree, mut nodes) = (Tree::default(), vec![0u32; places.len()]);
    for index in 1..=places.len() {
        // Outwards to what has a node, then back. Callers form no loop: the reader has seen to it.
        let mut path = vec![];
        let mut at = index;
        while let Some((site, parent)) = parent_of(at).filter(|_| nodes[at - 1] == 0) {
            path.push((at, site));
            at = parent;
        }
        for (at, site) in path.into_iter().rev() {
            let address = site.address.wrapping_sub(1);
            let start = profile.symbol(site.symbol).filter(|&start| start != 0).unwrap_or(address);
            let parent = usize::try_from(site.parent).ok().and_then(|parent| nodes.get(parent.wrapping_sub(1)));
            tree.parents.push(parent.copied().unwrap_or(0));
            tree.frames.push(Some(Frame { object: 0, address, start, end: 0 }));
            nodes[at - 1] = tree.frames.len() as u32;
        }
    }
    (tree, nodes)
}

/// Samples and arcs at the addresses of the process: right for programs that are not position-independent.
///
/// # Errors
/// When a file cannot be read, or sums are too large.
pub fn to_gmon(files: &[OpenedFile], options: &ConvertOptions) -> Result<Converted, Error> {
    let mut made = Converted::default();
    let (profile, _) = read(files, &mut made)?;
    let measures = if options.export.what.is_empty() { vec![Measure::AllocBytes] } else { options.export.what.clone() };
    let flavour = options.export.flavour.unwrap_or(profile.flavour);
    let (tree, nodes) = tree(&profile);
    for measure in measures {
        let mut amounts = Vec::new();
        for (site, data) in allocating(&profile) {
            let amount = amount(measure, data)?;
            let node = usize::try_from(site.index).ok().and_then(|index| nodes.get(index.wrapping_sub(1)));
            made.totals.add("samples", amount.into());
            amounts.push((node.copied().unwrap_or(0), amount));
        }
        let mut gathering = Gathering::default();
        gathering.add(&tree, amounts.into_iter());
        let table = gathering.finish().pop().unwrap_or_default();
        let (made_of, unit) = table.gmon(measure, "MPTL", flavour)?;
        made.notes.extend(unit.map(|unit| format!("sums of 2^32 and more; counted in {unit}")));
        let bytes = gmon::write(&made_of).map_err(|error| Error::Format("gmon".into(), error))?;
        made.files.push((format!("{}.gmon", measure.name()), bytes));
    }
    if flavour != Flavour::LE64 {
        made.notes.push(format!("pointers are written as {}", flavour.name()));
    }
    Ok(made)
}

/// Counts at the addresses of the process, without stacks.
///
/// # Errors
/// When a file cannot be read.
pub fn to_dcpi(files: &[OpenedFile], options: &ConvertOptions) -> Result<Converted, Error> {
    /// What a profile knows.
    const USUAL: [Measure; 6] = [
        Measure::AllocBytes,
        Measure::AllocCount,
        Measure::FreeBytes,
        Measure::FreeCount,
        Measure::LiveBytes,
        Measure::LiveCount,
    ];
    let mut made = Converted::default();
    let (profile, _) = read(files, &mut made)?;
    let measures = if options.export.what.is_empty() { USUAL.to_vec() } else { options.export.what.clone() };
    for measure in measures {
        let mut amounts: BTreeMap<u64, u64> = BTreeMap::new();
        for (site, data) in allocating(&profile) {
            let sum = amounts.entry(site.address.wrapping_sub(1)).or_default();
            *sum = sum.saturating_add(amount(measure, data)?);
        }
        amounts.retain(|_, amount| *amount > 0);
        for &amount in amounts.values() {
            made.totals.add(measure.name(), amount.into());
        }
        addresses::profiles(measure.name(), &amounts, &[], options.stride.unwrap_or(1), &mut made)?;
    }
    if made.files.is_empty() {
        return Err(Error::Impossible("the profile counts nothing of that".into()));
    }
    made.notes.push("a DCPI profile holds no callers".into());
    Ok(made)
}
