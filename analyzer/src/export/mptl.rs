//! mpatrol's profile: sums of all processes by size and by call stack, with the names of functions.

use super::{Error, Exporter, Needs, Out, Shape, Source, Totals, merge, verify};
use crate::event::Event;
use crate::export::Impossible;
use crate::load::{self, Events, Process};
use crate::model::Model;
use crate::model::{live_set::Block, row};
use crate::replay::replay;
use crate::report::profile_names;
use crate::unpack;
use heaptape_formats::mptl::layout::{BINS, BOUNDS};
use heaptape_formats::mptl::layout::{FIRST_KNOWN, FIRST_TOO_NEW};
use heaptape_formats::mptl::{Bins, Builder, Profile, Sums, Symbol};
use heaptape_formats::recording::PROFILE;
use rustc_hash::FxHashMap;
use std::path::Path;

/// The exporter of mpatrol profiles.
pub struct Export;

impl Exporter for Export {
    fn name(&self) -> &'static str {
        "mptl"
    }

    fn extension(&self) -> &'static str {
        "mptl"
    }

    fn summary(&self) -> &'static str {
        "mpatrol's profile: sums by size and call stack, for mprof"
    }

    fn needs(&self) -> Needs {
        Needs { events: false, shape: Shape::One }
    }

    fn write(&self, source: &mut Source<'_>, out: &mut Out) -> Result<(), Error> {
        let mut merged = all(source)?;
        merged.abi = source.options.flavour.unwrap_or(merged.abi);
        merged.version = source.options.version.unwrap_or(merged.version);
        if !(FIRST_KNOWN..FIRST_TOO_NEW).contains(&merged.version) {
            let (version, first, last) = (merged.version, FIRST_KNOWN, FIRST_TOO_NEW - 1);
            return Err(Impossible::ProfileVersion { version, first, last }.into());
        }
        for process in &source.processes {
            if process.stacks().is_empty() || matches!(process.events, Events::Trace(_)) && process.sums.is_none() {
                out.note(format!("{}: a trace has no stacks, so its profile has bins only", process.about.folder));
            }
        }
        if merged.abi.word_size == 4 && merge::is_wide(&merged) {
            out.note("numbers of more than 32 bits lost their high bits");
        }
        let mut bytes = Vec::new();
        merged.write(&mut bytes);
        let mut file = out.stream()?;
        file.put(&bytes)?;
        file.finish()
    }

    fn totals(&self, source: &mut Source<'_>) -> Result<Totals, Error> {
        let mut totals = Totals::default();
        for process in source.processes.clone() {
            if verify::is_profile(process) {
                totals.profile(&read(&process.path)?);
                continue;
            }
            let mut counted = Counted::default();
            replay(process, process.span(&source.range()), source.progress(), &mut counted);
            let Counted { of: [alloc, free], with_stack: [by_alloc, by_free] } = counted;
            for (name, (count, bytes)) in
                [("alloc", alloc), ("free", free)].map(|(name, sums)| (name.to_string(), sums))
            {
                totals.add(&format!("{name}-count"), count);
                totals.add(&format!("{name}-bytes"), bytes);
            }
            for (name, (count, bytes)) in [("alloc", by_alloc), ("free", by_free)] {
                if !process.stacks().is_empty() && count > 0 {
                    totals.add(&format!("{name}-count by stack"), count);
                    totals.add(&format!("{name}-bytes by stack"), bytes);
                }
            }
        }
        Ok(totals)
    }
}

/// Returns the profile of all processes together.
///
/// # Errors
/// Returns an error when the profile or the events of a process cannot be read.
pub fn all(source: &mut Source<'_>) -> Result<Profile, Error> {
    let profiles: Vec<Profile> =
        source.processes.clone().into_iter().map(|process| of(source, process)).collect::<Result<_, _>>()?;
    merge::profiles(profiles)
}

fn read(path: &Path) -> Result<Profile, Error> {
    let opened = unpack::open(path)?;
    Ok(Profile::read(&opened.bytes).map_err(|error| Error::Format(opened.name, error))?.0)
}

/// Returns a process's profile with names: the recorded one if it counts everything, else one made
/// from the events.
fn of(source: &mut Source<'_>, process: &Process) -> Result<Profile, Error> {
    let stored = || read(&load::profile_file(&process.path).unwrap_or_else(|| process.path.join(PROFILE)));
    match &process.events {
        Events::Profile if process.path.is_dir() => stored(),
        Events::Profile => read(&process.path),
        Events::Imported { .. } => Err(Impossible::NoSizes(process.about.folder.clone()).into()),
        Events::Sums => Err(Impossible::SeveralSegments(process.about.folder.clone()).into()),
        // The tape of this trace is missing, so that only the profile has stacks.
        Events::Trace(_) if process.sums.is_some() && process.path.is_dir() && source.range().is_all() => stored(),
        Events::Taped { .. } if source.range().is_all() && process.ready_sums().is_some() => match stored() {
            Ok(profile) if profile.sites.len() == process.stacks().len() => {
                Ok(profile_names::named(&profile, process, &mut source.symbols))
            }
            _ => Ok(replayed(source, process)),
        },
        _ => Ok(replayed(source, process)),
    }
}

fn replayed(source: &mut Source<'_>, process: &Process) -> Profile {
    let mut classes = Classes::default();
    let outcome = replay(process, process.span(&source.range()), source.progress(), &mut classes);
    source.found(&outcome.missing);
    let mut builder = Builder::new(BOUNDS, classes.bins);
    let stacks = process.stacks();
    let mut functions: FxHashMap<(u32, u64), Symbol> = FxHashMap::default();
    // Names without addresses cannot be sites, because mprof distinguishes stacks by address.
    let sites = if matches!(process.events, Events::Trace(_)) { 0 } else { stacks.len() as u32 };
    for number in 1..=sites {
        let site = stacks.site(number);
        let symbol = source.symbols.function(stacks, &site).map(|(start, name)| {
            *functions.entry((site.module, start)).or_insert_with(|| builder.symbol(start, name.as_bytes()))
        });
        let parent = if site.parent < number { site.parent } else { 0 };
        builder.site(parent.into(), site.address, symbol);
        if let Some([allocated, freed]) = classes.rows.get(number as usize).filter(|row| row[0].count() > 0) {
            builder.sums(number.into(), *allocated, *freed);
        }
    }
    builder.build()
}

/// Sums by size class and site, as MPTL counts them: a block of 0 bytes counts as one of 1.
struct Classes {
    bins: Bins,
    rows: Vec<[Sums; 2]>,
}

impl Default for Classes {
    fn default() -> Self {
        Classes { bins: Bins::new(BINS), rows: Vec::new() }
    }
}

impl Classes {
    fn add_block(&mut self, block: &Block) {
        self.bins.alloc(block.size.max(1));
        row(&mut self.rows, block.site)[0].add(&BOUNDS, block.size.max(1));
    }

    fn remove_block(&mut self, old: Option<&Block>) {
        if let Some(old) = old {
            self.bins.free(old.size.max(1));
            row(&mut self.rows, old.site)[1].add(&BOUNDS, old.size.max(1));
        }
    }
}

impl Model for Classes {
    fn alloc(&mut self, _: &Event, block: &Block) {
        self.add_block(block);
    }

    fn resize(&mut self, _: &Event, old: Option<&Block>, block: &Block) {
        self.remove_block(old);
        self.add_block(block);
    }

    fn free(&mut self, _: &Event, old: Option<&Block>) {
        self.remove_block(old);
    }
}

/// Plain totals for verification: allocated and freed blocks and bytes.
#[derive(Default)]
struct Counted {
    of: [(u128, u128); 2],
    with_stack: [(u128, u128); 2],
}

impl Counted {
    fn count(&mut self, which: usize, block: &Block) {
        let has_stack = block.site != 0;
        let sums = [Some(&mut self.of[which]), has_stack.then_some(&mut self.with_stack[which])];
        for sum in sums.into_iter().flatten() {
            sum.0 += 1;
            sum.1 += u128::from(block.size.max(1));
        }
    }
}

impl Model for Counted {
    fn alloc(&mut self, _: &Event, block: &Block) {
        self.count(0, block);
    }

    fn resize(&mut self, event: &Event, old: Option<&Block>, block: &Block) {
        self.free(event, old);
        self.count(0, block);
    }

    fn free(&mut self, _: &Event, old: Option<&Block>) {
        if let Some(old) = old {
            self.count(1, old);
        }
    }
}
