//! The first lines of the report by themselves: the page of the HTML export begins with them.

use super::text;
use super::{Candidates, LeakReport, Options, Rules, totals};
use crate::missing::Missing;
use crate::symbols::Symbolizer;

/// Collects the leaks of the processes of a page, to say in the end what `heaptape leaks` says
/// first.
pub(crate) struct Headline<'a> {
    found: LeakReport<'a>,
}

impl Default for Headline<'_> {
    fn default() -> Self {
        Headline { found: LeakReport::new(Rules::built_in()) }
    }
}

impl<'a> Headline<'a> {
    /// Adds the leaks of a process, judged by function as in text.
    pub(crate) fn add(&mut self, candidates: &Candidates<'a>, missing: &[Missing], symbols: &mut Symbolizer) {
        let options = Options { by_function: true, ..Options::default() };
        self.found.rules.add_own(candidates.process, symbols);
        self.found.judge(candidates, None, &options, symbols);
        self.found.missing.push((candidates.process, missing.to_vec()));
    }

    pub(crate) fn lines(mut self, symbols: &mut Symbolizer) -> Vec<String> {
        self.found.add_holders(symbols);
        self.found.sort();
        self.found.leaks.retain(|leak| leak.kept.is_none());
        let totals = totals::by_verdict(&self.found);
        text::headline(&self.found, &totals, symbols)
    }
}
