//! Writes function names into the profiles of a recording, so that mpatrol's own mprof shows them.
//! The names come from symbol tables alone. A profile of very many stacks is compressed, as the
//! recorder compresses a long trace.

use super::Error;
use crate::load::{self, Process, Recording};
use crate::stacks::Site;
use crate::symbols::{Symbolizer, demangle};
use heaptape_formats::mptl::{self, Builder, FunctionNames, Profile, Symbol};
use heaptape_formats::recording::PROFILE;
use heaptape_formats::regular;
use heaptape_formats::replace::{Durability, Writers, replace_file};
use heaptape_formats::tape::Codec;
use rustc_hash::FxHashMap;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, ErrorKind, Write};
use std::path::Path;

/// Maximum size in bytes of a profile that stays uncompressed, so that mpatrol's own mprof can read
/// it: 200,000 call sites.
pub const PLAIN_LIMIT: u64 = 16 << 20;

/// Names the functions in the profile of each process. A profile larger than `plain` bytes is
/// compressed if its trace is. A profile that has names already, or that was written on another
/// machine type, is not changed.
///
/// # Errors
/// Returns an error when a profile cannot be written.
pub fn name_profile(recording: &Recording, plain: u64, symbols: &mut Symbolizer) -> Result<(), Error> {
    for process in &recording.processes {
        let path = process.path.join(PROFILE);
        let Ok(file) = regular::open(&path) else { continue };
        let is_large = file.metadata().is_ok_and(|about| about.len() > plain);
        let codec = load::trace_file(&process.path).filter(|_| is_large).map_or(Codec::Plain, |(_, codec)| codec);
        let mut known =
            FunctionLookup { process, symbols: &mut *symbols, names: FxHashMap::default(), last: Default::default() };
        let mut input = BufReader::with_capacity(BUFFER_BYTES, file);
        let written = match codec {
            Codec::Zstd | Codec::Columns => replace(&path, Codec::Zstd.suffix(), |out| {
                let mut out = zstd::Encoder::new(out, ZSTD_LEVEL)?;
                mptl::add_names(&mut input, &mut out, &mut known)?;
                out.finish().map(drop)
            }),
            Codec::Plain | Codec::Lz4 => replace(&path, "", |out| {
                let mut out = BufWriter::with_capacity(BUFFER_BYTES, out);
                mptl::add_names(&mut input, &mut out, &mut known)?;
                out.flush()
            }),
        };
        match written {
            Err(error) if error.kind() == ErrorKind::InvalidData => {}
            written => written?,
        }
    }
    Ok(())
}

/// Compression level of zstd. At this level, a profile shrinks to a thirteenth at 3 ns per byte;
/// higher levels gain little.
const ZSTD_LEVEL: i32 = 1;
/// Size in bytes of the buffers for reading and writing.
const BUFFER_BYTES: usize = 1 << 18;

/// Looks up the functions of the sites of a process. Sites of one address follow each other, so few
/// are looked up.
struct FunctionLookup<'a> {
    process: &'a Process,
    symbols: &'a mut Symbolizer,
    names: FxHashMap<(u32, u64), Vec<u8>>,
    last: (Site, Option<(u32, u64)>),
}

impl FunctionNames for FunctionLookup<'_> {
    /// The module and the start address of the function.
    type Key = (u32, u64);

    fn function(&mut self, number: u64, _: u64) -> Option<Self::Key> {
        let site = Site { parent: 0, ..self.process.stacks().site(u32::try_from(number).ok()?) };
        if self.last.0 != site {
            let found = self.symbols.function_symbol(self.process.stacks(), &site);
            let key = found.map(|(start, symbol)| {
                let key = (site.module, start);
                self.names.entry(key).or_insert_with(|| symbol.to_vec());
                key
            });
            self.last = (site, key);
        }
        self.last.1
    }

    fn name(&mut self, key: Self::Key) -> (u64, Vec<u8>) {
        (key.1, self.names.get(&key).map(|symbol| demangle(symbol).into_bytes()).unwrap_or_default())
    }
}

/// Returns the same profile with function names. Its sites have the numbers that they have on the
/// tape.
pub(crate) fn named(profile: &Profile, process: &Process, symbols: &mut Symbolizer) -> Profile {
    let mut builder = Builder::new(profile.bounds, profile.bins.clone());
    let mut functions: FxHashMap<(u32, u64), Symbol> = FxHashMap::default();
    let (sites, data) = (profile.site_positions(), profile.data_positions());
    let mut sums = vec![0; data.len()];
    for (position, number) in sites.iter().zip(1u32..) {
        let Some(site) = profile.sites.get(*position) else { continue };
        let known = process.stacks().site(number);
        let function = symbols.function(process.stacks(), &known);
        let symbol = function.map(|(start, name)| {
            *functions.entry((known.module, start)).or_insert_with(|| builder.symbol(start, name.as_bytes()))
        });
        builder.site(site.parent, site.address, symbol);
        if let Some(row) = usize::try_from(site.data).ok().and_then(|index| sums.get_mut(index.wrapping_sub(1))) {
            *row = u64::from(number);
        }
    }
    // Data records keep their numbers, because they are passed on in this order.
    for (position, site) in data.iter().zip(sums) {
        if let Some(row) = profile.data.get(*position) {
            builder.sums(site, row.allocated, row.freed);
        }
    }
    builder.build()
}

/// Replaces a profile atomically. A new file whose name has a suffix is read only when the old one
/// has been removed. After an error the old profile stays valid.
fn replace(path: &Path, suffix: &str, write: impl FnOnce(&mut File) -> io::Result<()>) -> io::Result<()> {
    let new = path.with_extension(format!("mptl{suffix}"));
    replace_file(&new, Writers::Several, Durability::BeforeRename, |file| {
        // The new file has the permissions of the old one.
        file.set_permissions(std::fs::metadata(path)?.permissions())?;
        write(file)
    })?;
    if new == path { Ok(()) } else { std::fs::remove_file(path) }
}
