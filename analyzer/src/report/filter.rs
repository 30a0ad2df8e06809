//! Filters of blocks as the command line states them, and the replay of the selected blocks.

use crate::annotations;
use crate::event::{Position, Span};
use crate::load::Process;
use crate::model::block_filter::{AgeFilter, BlockFilter};
use crate::pattern::FunctionPattern;
use crate::progress::Progress;
use crate::replay::replay;
use crate::similar::hint;
use crate::stacks::Stacks;
use crate::symbols::{Frame, Symbolizer};
use crate::text::clean;
use heaptape_formats::pattern::Pattern;
use heaptape_formats::tape::{LABEL_PREFIX, Thread};
use rustc_hash::{FxHashMap, FxHashSet};
use std::rc::Rc;

/// Message of the error for a report on events when the file holds only sums.
pub(crate) const NEEDS_EVENTS: &str = "this needs events, and there are none: the file holds only sums by stack";

/// Why a filter cannot select blocks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// The range of sizes is empty.
    #[error("--min-size is greater than --max-size")]
    NoSizes,
    /// The range of lifetimes is empty.
    #[error("--min-age is greater than --max-age")]
    NoAges,
    /// The filter needs events, and there are none.
    #[error("{NEEDS_EVENTS}")]
    NeedsEvents,
    /// No stack passes through a function that matches.
    #[error("no stack passes through a function {}{}", clean(&.0.pattern), clean(&.0.hint))]
    NoFunction(NoMatch),
    #[error("no module {} allocates{}", clean(&.0.pattern), clean(&.0.hint))]
    NoModule(NoMatch),
    /// No thread had a label that matches.
    #[error("no label {} in the recording{}", clean(&.0.pattern), clean(&.0.hint))]
    NoLabel(NoMatch),
    /// No allocator or heap has a name that matches.
    #[error("no allocator {} in the recording{}", clean(&.0.pattern), clean(&.0.hint))]
    NoAllocator(NoMatch),
    /// No thread has a number or name that matches.
    #[error("no thread {} in the recording{}", clean(&.0.pattern), clean(&.0.hint))]
    NoThread(NoMatch),
}

/// A pattern that matches no name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoMatch {
    /// The pattern as the user wrote it.
    pub pattern: String,
    /// End of the message: similar names.
    pub hint: String,
}

impl NoMatch {
    fn new<'a>(pattern: &str, names: impl IntoIterator<Item = &'a str> + Clone) -> NoMatch {
        NoMatch { pattern: pattern.to_string(), hint: hint(pattern, names) }
    }
}

/// Conditions on blocks. All of them must hold; of several patterns or threads, one must match.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Minimum size in bytes.
    pub min_size: Option<u64>,
    /// Maximum size in bytes.
    pub max_size: Option<u64>,
    /// Minimum lifetime of a block in nanoseconds; in events for recordings without times.
    pub min_age: Option<u64>,
    /// Maximum lifetime of a block, in the unit of `min_age`.
    pub max_age: Option<u64>,
    /// Threads, each by its number, its kernel thread id, or a pattern of its name.
    pub threads: Vec<String>,
    /// Patterns of the path of the allocating module, which is that of the innermost program frame.
    pub modules: Vec<String>,
    /// Patterns of functions that the stack passes through.
    pub functions: Vec<String>,
    /// Patterns of labels that the thread had at the allocation.
    pub labels: Vec<String>,
    /// Patterns of the name of the allocator: `malloc`, one inside the program, or a heap that the
    /// program names.
    pub allocators: Vec<String>,
}

impl Filter {
    /// Returns whether the filter selects every block.
    pub const fn is_all(&self) -> bool {
        self.min_size.is_none()
            && self.max_size.is_none()
            && self.min_age.is_none()
            && self.max_age.is_none()
            && self.threads.is_empty()
            && self.modules.is_empty()
            && self.functions.is_empty()
            && self.labels.is_empty()
            && self.allocators.is_empty()
    }

    /// Returns which blocks of a process the filter selects. A condition on ages takes one pass
    /// over the events.
    pub fn resolve(&self, process: &Process, symbols: &mut Symbolizer, progress: &Progress) -> BlockFilter {
        let mut chosen = BlockFilter::default();
        if self.min_size.is_some() || self.max_size.is_some() {
            chosen.sizes = Some(self.min_size.unwrap_or(0)..=self.max_size.unwrap_or(u64::MAX));
        }
        if !self.threads.is_empty() {
            let known = process.tape.threads.values();
            let named = known.filter(|thread| self.threads.iter().any(|query| is_thread(thread, query)));
            let mut threads: FxHashSet<u32> = named.map(|thread| thread.number).collect();
            threads.extend(self.threads.iter().filter_map(|query| query.parse::<u32>().ok()));
            chosen.threads = Some(threads);
        }
        if !self.modules.is_empty() || !self.functions.is_empty() || !self.labels.is_empty() {
            chosen.sites = Some(self.matching_sites(process.stacks(), symbols));
        }
        if !self.allocators.is_empty() {
            chosen.allocators = Some(annotations::blocks_of(process, &self.allocators));
        }
        if self.min_age.is_some() || self.max_age.is_some() {
            let unit = |value: u64| match process.has_times() {
                true => process.clock.tick(value).saturating_sub(process.clock.start_tick),
                false => value,
            };
            let ages = self.min_age.map_or(0, unit)..=self.max_age.map_or(u64::MAX, unit);
            let mut model = AgeFilter::new(process.has_times(), ages);
            let outcome = replay(process, Span::ALL, progress, &mut model);
            let end = Position { tick: process.tape.last_tick, number: process.tape.events };
            for (index, block) in outcome.live.iter() {
                model.end(index, &block, end);
            }
            chosen.ages = Some(model.selected);
        }
        chosen
    }

    /// Returns whether the filter selects call sites only, so that sums by site suffice.
    pub(crate) const fn selects_sites_only(&self) -> bool {
        self.min_size.is_none()
            && self.max_size.is_none()
            && self.min_age.is_none()
            && self.max_age.is_none()
            && self.threads.is_empty()
            && self.allocators.is_empty()
    }

    /// Checks that each name matches something in these processes.
    ///
    /// # Errors
    /// Returns an error when a name matches nothing, when a range of sizes or ages is empty, or
    /// when the filter needs events and there are none: a report on nothing would look like a good
    /// one.
    pub fn check(&self, processes: &[&Process], symbols: &mut Symbolizer) -> Result<(), FilterError> {
        if self.min_size > self.max_size && self.max_size.is_some() {
            return Err(FilterError::NoSizes);
        }
        if self.min_age > self.max_age && self.max_age.is_some() {
            return Err(FilterError::NoAges);
        }
        if !self.selects_sites_only() && !processes.iter().any(|process| process.has_events()) {
            return Err(FilterError::NeedsEvents);
        }
        for query in &self.threads {
            check_thread(query, processes)?;
        }
        for text in &self.labels {
            let names: Vec<String> =
                processes.iter().flat_map(|process| annotations::labels(process.stacks())).collect();
            if !names.iter().any(|name| Pattern::whole(text).matches(name)) {
                return Err(FilterError::NoLabel(NoMatch::new(text, names.iter().map(String::as_str))));
            }
        }
        for text in &self.allocators {
            let names: Vec<String> = processes.iter().flat_map(|process| annotations::allocators(process)).collect();
            if !names.iter().any(|name| Pattern::whole(text).matches(name)) {
                return Err(FilterError::NoAllocator(NoMatch::new(text, names.iter().map(String::as_str))));
            }
        }
        if self.modules.is_empty() && self.functions.is_empty() {
            return Ok(());
        }
        let mut names: FxHashMap<String, bool> = FxHashMap::default();
        let mut modules: FxHashSet<Rc<str>> = FxHashSet::default();
        for process in processes {
            let stacks = process.stacks();
            for number in 1..=stacks.len() as u32 {
                if !self.functions.is_empty() {
                    let site = stacks.site(number);
                    let tails = [(site, None), (stacks.site(site.parent), Some(&site))]
                        .map(|(outer, inner)| symbols.tail_frames(stacks, &outer, inner));
                    for frame in symbols.frames(stacks, &site).iter().chain(tails.iter().flat_map(|tails| tails.iter()))
                    {
                        names.entry(frame.title()).or_default();
                    }
                }
            }
            if !self.modules.is_empty() {
                for site in allocating_sites(process) {
                    let call_site = super::call_site(symbols, stacks, site, 1);
                    modules.insert(call_site.frame.module.clone());
                }
            }
        }
        for text in &self.functions {
            let pattern = FunctionPattern::new(text);
            if !names.keys().any(|name| pattern.matches(name)) {
                return Err(FilterError::NoFunction(NoMatch::new(text, names.keys().map(String::as_str))));
            }
        }
        for text in &self.modules {
            let pattern = Pattern::found(text);
            if !modules.iter().any(|module| pattern.matches(&**module)) {
                let names = modules.iter().map(|module| module.rsplit('/').next().unwrap_or(module));
                return Err(FilterError::NoModule(NoMatch::new(text, names)));
            }
        }
        Ok(())
    }

    /// Returns for each site, by its number, whether the filter selects its stack.
    pub(crate) fn matching_sites(&self, stacks: &Stacks, symbols: &mut Symbolizer) -> Vec<bool> {
        let modules: Vec<Pattern> = self.modules.iter().map(|text| Pattern::found(text)).collect();
        let functions: Vec<FunctionPattern> = self.functions.iter().map(|text| FunctionPattern::new(text)).collect();
        let matches_any = |patterns: &[Pattern], text: &str| patterns.iter().any(|pattern| pattern.matches(text));
        // Callers come first: what a caller's stack passes through, its callee's does too.
        let mut selected: Vec<bool> = vec![functions.is_empty(); stacks.len() + 1];
        let mut named: FxHashMap<String, bool> = FxHashMap::default();
        let mut is_named = |frames: &[Frame]| {
            frames.iter().any(|frame| {
                let title = frame.title();
                named.get(&title).copied().unwrap_or_else(|| {
                    let found = functions.iter().any(|pattern| pattern.matches(&title));
                    named.insert(title, found);
                    found
                })
            })
        };
        for number in 1..=stacks.len() as u32 {
            let site = stacks.site(number);
            let parent = if site.parent < number { selected[site.parent as usize] } else { false };
            selected[number as usize] = parent || {
                let tails = symbols.tail_frames(stacks, &stacks.site(site.parent), Some(&site));
                is_named(&tails) || is_named(&symbols.frames(stacks, &site))
            };
        }
        // Functions between a call and the allocation are in no stack that goes on from the call.
        for number in (1..=stacks.len() as u32).filter(|_| !functions.is_empty()) {
            selected[number as usize] |= is_named(&symbols.tail_frames(stacks, &stacks.site(number), None));
        }
        if !self.labels.is_empty() {
            let labeled = annotations::sites_below(stacks, LABEL_PREFIX, &self.labels);
            selected.iter_mut().zip(labeled).for_each(|(selected, labeled)| *selected &= labeled);
        }
        selected[0] &= modules.is_empty();
        if !modules.is_empty() {
            for number in 1..=stacks.len() as u32 {
                if selected[number as usize] {
                    let call_site = super::call_site(symbols, stacks, number, 1);
                    selected[number as usize] = matches_any(&modules, &call_site.frame.module);
                }
            }
        }
        selected
    }
}

/// Returns whether a thread has the queried number, kernel thread id or name.
fn is_thread(thread: &Thread, query: &str) -> bool {
    *query == thread.number.to_string()
        || *query == thread.tid.to_string()
        || Pattern::whole(query).matches(&*thread.name.lossy())
}

/// Checks that one of the processes has the queried thread.
fn check_thread(query: &str, processes: &[&Process]) -> Result<(), FilterError> {
    let mut known = processes.iter().flat_map(|process| process.tape.threads.values());
    if known.any(|thread| is_thread(thread, query)) {
        return Ok(());
    }
    // A trace alone has no list of threads.
    if let Ok(number) = query.parse::<u32>() {
        let mut found = false;
        let bare = processes.iter().filter(|process| process.tape.threads.is_empty() && process.has_events());
        for process in bare {
            let progress = Progress::new("reading threads");
            process.for_each(Span::ALL, &progress, &mut |events| {
                found |= events.iter().any(|event| event.thread == number)
            });
        }
        if found {
            return Ok(());
        }
    }
    let threads = processes.iter().flat_map(|process| process.tape.threads.values());
    let name = |thread: &Thread| Some(thread.name.lossy().into_owned()).filter(|name| !name.is_empty());
    let names: Vec<String> = threads.map(|thread| name(thread).unwrap_or_else(|| thread.number.to_string())).collect();
    Err(FilterError::NoThread(NoMatch::new(query, names.iter().map(String::as_str))))
}

/// Returns the sites that allocated. Where sums by site are known, nodes of the stack table that
/// are only callers are left out.
fn allocating_sites(process: &Process) -> Vec<u32> {
    match process.ready_sums() {
        Some(sums) => sums.sites.iter().map(|row| row.site).collect(),
        None => (1..=process.stacks().len() as u32).collect(),
    }
}
