//! What a question is about: recordings, processes, times and blocks.

use super::filter::Filter;
use super::mapping_filter::MappingFilter;
use super::{Error, core_references, coverage};
use crate::event::{Range, Span};
use crate::load::{self, Process, Recording, StartPoint};
use crate::model::Model;
use crate::model::block_filter::Filtered;
use crate::processes::ProcessFilter;
use crate::progress::Progress;
use crate::replay::{self, Replay, replay};
use crate::sums::{Models, Sums, sums_of_replay};
use crate::symbols::Symbolizer;
use std::path::PathBuf;

/// Which recordings, processes, times and blocks a report is about.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// Recordings and files to read.
    pub paths: Vec<PathBuf>,
    pub processes: ProcessFilter,
    /// Time range of the run.
    pub range: Range,
    /// Which blocks are selected.
    pub filter: Filter,
    /// Whether mappings, or blocks, are left out.
    pub mappings: MappingFilter,
    /// The core that one of the processes left.
    pub core: Option<PathBuf>,
}

impl Scope {
    /// Opens the recordings and files in scope.
    ///
    /// # Errors
    /// Returns an error when one of the paths cannot be read.
    pub fn open(&self) -> Result<Vec<Recording>, Error> {
        let mut recordings = load::open_all(&self.paths)?;
        self.processes.leave_out_unrecorded(&mut recordings);
        coverage::note_unseen(&mut recordings, &self.processes);
        if let Some(path) = &self.core {
            let process = core_references::attach(&mut recordings, path)?;
            process.core_span = self.range.to.as_ref().map(|_| process.span(&self.range).with_history());
        }
        Ok(recordings)
    }

    /// Returns the selected processes.
    ///
    /// # Errors
    /// Returns [`Error::Unanswerable`] when the report would be about nothing: when nothing was
    /// recorded, when no process, thread, module or function has a given name, or when the time
    /// range is empty.
    pub fn processes<'a>(
        &self,
        recordings: &'a [Recording],
        symbols: &mut Symbolizer,
    ) -> Result<Vec<&'a Process>, Error> {
        let chosen = self.processes.select(recordings)?;
        self.range.check(&chosen)?;
        self.filter.check(&chosen, symbols)?;
        Ok(chosen)
    }

    /// Replays the selected blocks in scope. The live set at the end holds only these.
    pub fn replay(
        &self,
        process: &Process,
        span: Span,
        symbols: &mut Symbolizer,
        progress: &Progress,
        model: &mut impl Replay,
    ) -> replay::Outcome {
        self.replay_from(process, None, span, symbols, progress, model)
    }

    /// Returns the sums of the blocks and the time range in scope.
    pub fn sums(&self, process: &Process, symbols: &mut Symbolizer, progress: &Progress) -> Sums {
        let span = process.span(&self.range);
        sums_of_replay(process, &mut |Models { totals, sites, peak }| {
            self.replay(process, span, symbols, progress, &mut (totals, sites, peak))
        })
    }

    /// Returns where a pass may begin that needs what was live at the start of the span. With a
    /// filter there is none, because summaries do not divide live blocks by it.
    pub fn replay_start(&self, process: &Process, span: Span, by_site: bool) -> Option<StartPoint> {
        if self.filter.is_all() { process.start_before(span, by_site) } else { None }
    }

    /// Replays the selected blocks in scope from a start on.
    pub fn replay_from(
        &self,
        process: &Process,
        start: Option<&StartPoint>,
        span: Span,
        symbols: &mut Symbolizer,
        progress: &Progress,
        model: &mut impl Replay,
    ) -> replay::Outcome {
        if self.filter.is_all() {
            return model.replay_from(process, start, span, progress);
        }
        self.replay_filtered(process, span, symbols, progress, model)
    }

    /// Replays the selected blocks of a scope with a filter.
    fn replay_filtered(
        &self,
        process: &Process,
        span: Span,
        symbols: &mut Symbolizer,
        progress: &Progress,
        model: &mut dyn Model,
    ) -> replay::Outcome {
        let chosen = self.filter.resolve(process, symbols, progress);
        let mut outcome = replay(process, span, progress, &mut Filtered { filter: &chosen, model });
        outcome.live.retain(|index, block| chosen.matches(index, block));
        outcome
    }

    /// Returns whether it is about all blocks, and about the time until a core of one that ran on.
    pub(crate) fn is_until_core(&self) -> bool {
        self.core.is_some() && self.range.from.is_none() && self.filter.is_all()
    }

    /// Returns whether it is about the whole run and all blocks, so that ready sums answer
    /// it.
    pub const fn is_all(&self) -> bool {
        self.range.is_all() && self.filter.is_all()
    }
}
