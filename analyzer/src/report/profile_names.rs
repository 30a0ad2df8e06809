//! Writes function names into the profiles of a recording, so that mpatrol's own mprof shows them: symbol tables only.

use super::Error;
use crate::load::{self, Image};
use crate::symbols::{Detail, Symbolizer};
use heaptape_formats::mptl::{Builder, Profile, Symbol};
use heaptape_formats::recording::PROFILE;
use rustc_hash::FxHashMap;
use std::io::{self, Write};
use std::path::Path;

/// Names the functions in each image's profile. A profile that cannot be read stays as it is.
///
/// # Errors
/// When the recording cannot be read, or a profile not be written.
pub fn name_profile(dir: &Path) -> Result<(), Error> {
    let recording = load::open(dir)?;
    let mut symbols = Symbolizer::new(Detail::Quick);
    for image in &recording.images {
        let path = image.path.join(PROFILE);
        let Ok(bytes) = std::fs::read(&path) else { continue };
        let Ok((profile, ending)) = Profile::read(&bytes) else { continue };
        if ending.is_complete() {
            let mut out = Vec::new();
            named(&profile, image, &mut symbols).write(&mut out);
            replace(&path, &out)?;
        }
    }
    Ok(())
}

/// The same profile with names. Its sites have the numbers of the tape's.
pub(crate) fn named(profile: &Profile, image: &Image, symbols: &mut Symbolizer) -> Profile {
    let mut builder = Builder::new(profile.bounds, profile.bins.clone());
    let mut functions: FxHashMap<(u32, u64), Symbol> = FxHashMap::default();
    let (places, data) = (profile.site_places(), profile.data_places());
    let mut sums = vec![0; data.len()];
    for (place, number) in places.iter().zip(1u32..) {
        let Some(site) = profile.sites.get(*place) else { continue };
        let known = image.stacks().site(number);
        let function = symbols.function(image.stacks(), &known);
        let symbol = function.map(|(start, name)| {
            *functions.entry((known.module, start)).or_insert_with(|| builder.symbol(start, name.as_bytes()))
        });
        builder.site(site.parent, site.address, symbol);
        if let Some(row) = usize::try_from(site.data).ok().and_then(|index| sums.get_mut(index.wrapping_sub(1))) {
            *row = u64::from(number);
        }
    }
    // Data records keep their numbers: they are handed over in the order of these.
    for (place, site) in data.iter().zip(sums) {
        if let Some(row) = profile.data.get(*place) {
            builder.sums(site, row.allocated, row.freed);
        }
    }
    builder.build()
}

/// Writes beside the file and renames: a reader sees the old one or the new one.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = path.with_extension("mptl.tmp");
    let write = || {
        let mut file = std::fs::File::create(&beside)?;
        // The new file is for the same eyes as the old one.
        file.set_permissions(std::fs::metadata(path)?.permissions())?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&beside, path)
    };
    let written = write();
    if written.is_err() {
        // The old profile stands; the half-written one must not.
        let _ = std::fs::remove_file(&beside);
    }
    written
}
