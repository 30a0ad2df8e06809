//! Reports on a time range that start in the middle of a trace are equal to those of a pass over
//! the whole trace, to the last byte.

use crate::made;

use heaptape_analyzer::TraceRange;
use heaptape_analyzer::event::{Bound, Range};
use heaptape_analyzer::report::{GroupBy, Grouping, Query, View};
use heaptape_analyzer::sums_within;
use heaptape_analyzer::text::Style;
use heaptape_analyzer::{Progress, open};
use heaptape_formats::tape::{Codec, Totals};
use heaptape_reports::{peak, timeline};
use made::{Options, Step, program};
use proptest::prelude::*;
use std::path::Path;

/// Returns all reports that take a time range, as JSON. For an empty range, the error is the
/// result.
fn reports(path: &Path, range: Range) -> Vec<String> {
    let mut query = Query::of(path, View::json(100));
    query.scope.range = range.clone();
    let by = Query { grouping: Grouping(Some(GroupBy::Stack)), ..query.clone() };
    let style = Style::of_stdout();
    let (mut peaks, mut lives, mut groups) = (Vec::new(), Vec::new(), Vec::new());
    let errors = [
        peak::run(&query, &mut peaks, style).err(),
        timeline::run(&query, 7, false, &mut lives, style).err(),
        timeline::run(&by, 5, false, &mut groups, style).err(),
    ];
    let mut texts: Vec<String> =
        [peaks, lives, groups].into_iter().map(|out| String::from_utf8(out).unwrap()).collect();
    texts.extend(errors.into_iter().flatten().map(|error| format!("{error:#}")));
    for until in [range.from, range.to] {
        let recording = open(path).unwrap();
        let until = Range { from: None, to: until };
        let sums = sums_within(&recording.processes[0], &until, &Progress::silent("test"));
        // The steps may introduce an inherited block before the start and free it after that. A
        // recorder writes both at once, so these totals are not compared. Nor is the time of the
        // peak: a summary has it as it was recorded, and those of the events are interpolated.
        let totals = Totals { inherited_blocks: 0, inherited_bytes: 0, peak_tick: 0, ..sums.totals };
        texts.push(format!("{totals:?} {:?} {:?}", sums.sites, sums.missing));
    }
    texts
}

fn recordings(steps: &[Step], chunk: usize, summary_chunks: usize) -> [(tempfile::TempDir, std::path::PathBuf); 2] {
    let with = Options { chunk_events: chunk, summary_chunks, codec: Codec::Zstd, ..Options::default() };
    let without = Options { was: false, summary_chunks: 0, ..with.clone() };
    [with, without].map(|options| made::recording(steps, &options))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn reports_from_a_late_start_equal_those_of_a_full_pass(
        rolls in prop::collection::vec(any::<(u8, u16, u8, u8, u8)>(), 1..400),
        chunk in 1usize..40, summaries in 1usize..5, a in 0u64..400, b in 0u64..400, by_time in any::<bool>(),
    ) {
        let steps = program(&rolls);
        let [with, without] = recordings(&steps, chunk, summaries);
        let bound = |at: u64| match by_time {
            true => Bound::Time(steps.get(at as usize).or(steps.last()).map_or(0, Step::tick).saturating_sub(100)),
            false => Bound::Number(at),
        };
        let range = Range { from: Some(bound(a.min(b))), to: Some(bound(a.max(b))) };
        let named = |path: &Path, texts: Vec<String>| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            texts.into_iter().map(|text| text.replace(&name, "NAME")).collect::<Vec<_>>()
        };
        let (found, wanted) = (named(&with.1, reports(&with.1, range.clone())), named(&without.1, reports(&without.1, range)));
        for (found, wanted) in found.iter().zip(&wanted) {
            for (number, (found, wanted)) in found.lines().zip(wanted.lines()).enumerate() {
                prop_assert_eq!(found, wanted, "line {}", number);
            }
        }
        prop_assert_eq!(found, wanted);
    }
}

#[test]
fn a_late_start_reads_the_range_alone() {
    let rolls: Vec<_> = (0..400u16).map(|n| ((n * 7) as u8, n * 31, (n * 3) as u8, n as u8, (n * 5) as u8)).collect();
    let steps = program(&rolls);
    let [with, without] = recordings(&steps, 10, 2);
    let starts = |path: &Path, range: Range| {
        let recording = open(path).unwrap();
        let process = &recording.processes[0];
        let span = process.span(&range);
        let starts =
            [process.start_before(span, false), process.start_before(span, true), process.start_before_end(span)];
        let before = |index: usize| match process.tape.ranges.get(index) {
            Some(TraceRange::Committed { before, .. }) => *before,
            _ => u64::MAX,
        };
        // Numbers of events before the range with the start, and before the next two.
        starts.map(|start| start.map(|start| [0, 1, 2].map(|more| before(start.range_index + more))))
    };
    let number = |from, to| Range { from: Some(Bound::Number(from)), to: Some(Bound::Number(to)) };
    let [Some(chunk), Some(summary), Some(end)] = starts(&with.1, number(155, 185)) else {
        panic!("all can start late")
    };
    assert!((chunk[0]..=chunk[1]).contains(&155), "the chunk of the first event: {chunk:?}");
    assert!((summary[0]..=summary[2]).contains(&155), "each second chunk is followed by a summary: {summary:?}");
    assert!((end[0]..=end[2]).contains(&185), "{end:?}");
    assert_eq!(starts(&with.1, Range { from: None, ..number(0, 15) }), [None; 3]);
    assert_eq!(starts(&without.1, number(155, 185)), [None; 3]);
}
