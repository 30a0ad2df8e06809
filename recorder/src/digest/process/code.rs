//! Names of code that no file describes, for the tape and for live views.

use super::ProcessRecording;
use crate::os::aside;
use crate::target::jit_names::{MapVersion, NamedRange};
use crate::target::vdso;
use formats::perf_map::UnnamedAddresses;
use formats::tape::{Code, CodeRange, Record as TapeRecord, is_virtual};
use std::sync::Arc;
use std::time::Duration;

/// Time in which a perf map must be read: it may be large.
const MAP_TIME: Duration = Duration::from_secs(2);
/// Number of ranges in a record: 4 MiB with the longest names.
const RANGES_PER_RECORD: usize = 4096;
/// Maximum number of ranges of a process; further sites stay without names.
const MAX_RANGES: usize = 1 << 17;

/// The names at the last check, those with the highest priority first.
#[derive(Debug, Default)]
pub(super) struct Names {
    named: Vec<NamedRange>,
    /// Version of the maps at the last check.
    version: MapVersion,
    /// Number of sites without a file at the last check, and when the names were last stored in the
    /// tape.
    unplaced: usize,
    stored: usize,
}

impl Names {
    /// Returns the names of the last check.
    pub(super) fn named(&self) -> &[NamedRange] {
        &self.named
    }
}

impl ProcessRecording {
    /// Returns the current names of the sites that no file names.
    pub(super) fn named_code(&mut self) -> &[NamedRange] {
        let unplaced = self.stacks.instructions_without_file();
        let version = if unplaced.is_empty() { MapVersion::new() } else { self.map_version() };
        if self.names.unplaced == unplaced.len() && self.names.version == version {
            return &self.names.named;
        }
        let (mut unnamed, mut named): (UnnamedAddresses, _) = (unplaced.iter().copied().collect(), Vec::new());
        let modules = self.stacks.announced().iter().filter_map(|(_, record)| match record {
            TapeRecord::Module(module) if is_virtual(&module.path.0) => Some(module.bias),
            _ => None,
        });
        modules.for_each(|bias| vdso::name(bias, &mut unnamed, &mut named));
        (unnamed, named) = self.named_by_map(unnamed, named);
        for (range, name) in self.annotations.names() {
            let (start, length) = (range.start, range.end - range.start);
            let instructions = unnamed.take(start, length);
            if !instructions.is_empty() {
                named.push(NamedRange { range: CodeRange { start, length, name: name.to_vec().into() }, instructions });
            }
        }
        named.truncate(MAX_RANGES);
        let (unplaced, stored) = (unplaced.len(), self.names.stored);
        self.names = Names { named, version, unplaced, stored };
        &self.names.named
    }

    /// Returns the version of the perf map; none if it does not answer.
    fn map_version(&self) -> MapVersion {
        let code = Arc::clone(&self.session.code);
        aside::call(self.session.owner(), move || code.version()).unwrap_or_default()
    }

    /// Adds the names of the perf map, if it answers.
    fn named_by_map(&self, unnamed: UnnamedAddresses, named: Vec<NamedRange>) -> (UnnamedAddresses, Vec<NamedRange>) {
        if unnamed.is_empty() {
            return (unnamed, named);
        }
        let (mut unnamed_then, mut named_then) = (unnamed.clone(), named.clone());
        let code = Arc::clone(&self.session.code);
        let read = move || {
            code.name(&mut unnamed_then, &mut named_then);
            (unnamed_then, named_then)
        };
        aside::call_for(MAP_TIME, self.session.owner(), read).unwrap_or((unnamed, named))
    }

    /// Returns the names as records of the tape, where later ranges override earlier ones.
    pub(super) fn code(&mut self) -> Vec<TapeRecord> {
        let ranges: Vec<_> = self.named_code().iter().rev().map(|named| named.range.clone()).collect();
        self.names.stored = self.names.unplaced;
        ranges.chunks(RANGES_PER_RECORD).map(|ranges| TapeRecord::Code(Code { ranges: ranges.to_vec() })).collect()
    }

    /// Returns the names to store before the end, in case that is never reached: whenever the
    /// number of such sites has grown by an eighth.
    pub(super) fn code_so_far(&mut self) -> Vec<TapeRecord> {
        let is_due = self.stacks.instructions_without_file().len() > self.names.stored + self.names.stored / 8;
        if is_due { self.code() } else { Vec::new() }
    }
}
