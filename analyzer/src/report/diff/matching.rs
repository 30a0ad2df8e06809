//! Matches the sites of one side with those of the other.

use super::Values;
use super::side::{Line, LineSums, Measurement};
use crate::report::frames::FrameJson;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

/// A site with its values on both sides.
#[derive(Clone, Debug)]
pub(super) struct SitePair {
    /// Names of the functions that the site is matched by.
    pub functions: Vec<String>,
    /// Source file of the site.
    pub file: Option<String>,
    pub line: Option<u32>,
    /// Number of source lines in the pair, of the side that has more; 0 if none is known.
    pub lines: usize,
    /// Mean of A's runs.
    pub a: Values,
    /// Mean of B's runs.
    pub b: Values,
    /// Sum of the differences among A's runs and among B's runs.
    pub spread: Values,
    /// A call stack of the site.
    pub stack: Vec<FrameJson>,
}

type Lines<'a> = Option<&'a FxHashMap<Line, LineSums>>;

/// Matches all sites of all runs.
pub(super) fn pairs(a: &[Measurement], b: &[Measurement], scale_a: f64, scale_b: f64) -> Vec<SitePair> {
    let names: BTreeSet<&Vec<String>> = a.iter().chain(b).flat_map(|run| run.sites.keys()).collect();
    let mut pairs = Vec::new();
    for functions in names {
        let of = |runs: &'_ [Measurement]| -> Vec<BTreeSet<Line>> {
            runs.iter()
                .map(|run| run.sites.get(functions).into_iter().flat_map(|m| m.keys().cloned()).collect())
                .collect()
        };
        let (lines_a, lines_b) = (union(&of(a)), union(&of(b)));
        for (line_a, line_b) in lines(&lines_a, &lines_b) {
            let values_a = values(a, functions, &line_a, scale_a);
            let values_b = values(b, functions, &line_b, scale_b);
            let width = |values: &Spread| values.high.zip(&values.low, |high, low| high - low);
            let spread = width(&values_a).zip(&width(&values_b), |a, b| a + b);
            let shown = [(b, &line_b), (a, &line_a)].into_iter().find_map(|(runs, lines)| {
                let at = |run: &Measurement| greatest(run.sites.get(functions), lines);
                runs.iter().find_map(at)
            });
            let (line, at) = shown.unwrap_or_default();
            pairs.push(SitePair {
                functions: functions.clone(),
                file: at.file,
                line: line.map(|(_, line)| line),
                lines: [&line_a, &line_b].map(|lines| lines.iter().flatten().count()).into_iter().max().unwrap_or(0),
                a: values_a.mean,
                b: values_b.mean,
                spread,
                stack: at.stack,
            });
        }
    }
    pairs
}

fn union(runs: &[BTreeSet<Line>]) -> Vec<Line> {
    let all: BTreeSet<&Line> = runs.iter().flatten().collect();
    all.into_iter().cloned().collect()
}

/// Matches lines of A with lines of B: equal ones with each other. If both sides have other lines
/// too, they are matched in order when there are equally many (the code has moved), and as one
/// group otherwise.
fn lines(a: &[Line], b: &[Line]) -> Vec<(Vec<Line>, Vec<Line>)> {
    let one = |line: &Line| vec![line.clone()];
    let only_a: Vec<&Line> = a.iter().filter(|line| !b.contains(line)).collect();
    let only_b: Vec<&Line> = b.iter().filter(|line| !a.contains(line)).collect();
    if a.is_empty() || b.is_empty() || only_a.is_empty() || only_b.is_empty() {
        let all: BTreeSet<&Line> = a.iter().chain(b).collect();
        let in_side = |side: &[Line], line: &Line| if side.contains(line) { one(line) } else { Vec::new() };
        return all.into_iter().map(|line| (in_side(a, line), in_side(b, line))).collect();
    }
    if a.len() == b.len() {
        return a.iter().zip(b).map(|(a, b)| (one(a), one(b))).collect();
    }
    vec![(a.to_vec(), b.to_vec())]
}

/// Returns the wanted line with the most allocated bytes.
fn greatest(lines: Lines, wanted: &[Line]) -> Option<(Line, LineSums)> {
    let found = wanted.iter().filter_map(|line| Some((line, lines?.get(line)?)));
    found.max_by_key(|(_, at)| at.sums.bytes).map(|(line, at)| (line.clone(), at.clone()))
}

/// Values of a site over the runs of a side.
#[derive(Default)]
struct Spread {
    low: Values,
    high: Values,
    mean: Values,
}

/// Returns the minimum, the maximum and the mean of the runs.
fn values(runs: &[Measurement], functions: &[String], lines: &[Line], scale: f64) -> Spread {
    let each = runs.iter().map(|run| {
        let known = run.sites.get(functions);
        let mut sum = [0.0; 4];
        for at in lines.iter().filter_map(|line| known?.get(line)) {
            sum.iter_mut().zip(at.sums.values()).for_each(|(sum, value)| *sum += value * scale);
        }
        Values::of(sum)
    });
    let each: Vec<Values> = each.collect();
    let Some(&first) = each.first() else { return Spread::default() };
    let (mut low, mut high, mut sum) = (first, first, Values::default());
    for one in &each {
        (low, high) = (low.zip(one, f64::min), high.zip(one, f64::max));
        sum.add(one);
    }
    Spread { low, high, mean: sum.zip(&sum, |sum, _| sum / each.len() as f64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(lines: &[u32]) -> Vec<Line> {
        lines.iter().map(|&line| Some(("f.c".to_string(), line))).collect()
    }

    #[test]
    fn lines_are_matched_after_code_moved() {
        let shown = |a: &[u32], b: &[u32]| lines(&at(a), &at(b)).len();
        assert_eq!(lines(&at(&[3, 5]), &at(&[13, 15]))[1], (at(&[5]), at(&[15])), "moved");
        assert_eq!(shown(&[3, 5], &[3, 5]), 2);
        assert_eq!(shown(&[3, 5], &[3, 5, 9]), 3, "a new one");
        assert_eq!(shown(&[3, 5], &[4, 6, 9]), 1, "moved and a new one: which one is new is unknown");
        assert_eq!(lines(&[None], &at(&[3, 5])), [(vec![None], at(&[3, 5]))], "a side without lines");
    }
}
