//! Which site of one side is which of the other.

use super::Values;
use super::side::{At, Line, Measured};
use crate::report::frames::FrameJson;
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

/// A site on both sides.
#[derive(Clone, Debug)]
pub struct Pair {
    /// The names that it is matched by.
    pub functions: Vec<String>,
    /// Where it is.
    pub file: Option<String>,
    /// The line there.
    pub line: Option<u32>,
    /// Number of source lines that were put together, of the side that has more; 0 where none is
    /// known.
    pub lines: usize,
    /// Mean of A's runs.
    pub a: Values,
    /// Mean of B's runs.
    pub b: Values,
    /// What A's runs differ by among themselves, and B's: both together.
    pub spread: Values,
    /// A stack.
    pub stack: Vec<FrameJson>,
}

type Lines<'a> = Option<&'a FxHashMap<Line, At>>;

/// Matches all sites of all runs.
pub fn pairs(a: &[Measured], b: &[Measured], scale_a: f64, scale_b: f64) -> Vec<Pair> {
    let names: BTreeSet<&Vec<String>> = a.iter().chain(b).flat_map(|run| run.sites.keys()).collect();
    let mut pairs = Vec::new();
    for functions in names {
        let of = |runs: &'_ [Measured]| -> Vec<BTreeSet<Line>> {
            runs.iter()
                .map(|run| run.sites.get(functions).into_iter().flat_map(|m| m.keys().cloned()).collect())
                .collect()
        };
        let (lines_a, lines_b) = (union(&of(a)), union(&of(b)));
        for (line_a, line_b) in lines(&lines_a, &lines_b) {
            let (low_a, high_a, mean_a) = values(a, functions, &line_a, scale_a);
            let (low_b, high_b, mean_b) = values(b, functions, &line_b, scale_b);
            let spread = high_a.zip(&low_a, |high, low| high - low);
            let spread = spread.zip(&high_b.zip(&low_b, |high, low| high - low), |a, b| a + b);
            let shown = [(b, &line_b), (a, &line_a)].into_iter().find_map(|(runs, lines)| {
                let at = |run: &Measured| greatest(run.sites.get(functions), lines);
                runs.iter().find_map(at)
            });
            let (line, at) = shown.unwrap_or_default();
            pairs.push(Pair {
                functions: functions.clone(),
                file: at.file,
                line: line.map(|(_, line)| line),
                lines: [&line_a, &line_b].map(|lines| lines.iter().flatten().count()).into_iter().max().unwrap_or(0),
                a: mean_a,
                b: mean_b,
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

/// Lines of A beside lines of B: the same ones; where both have equally many but others (code
/// moved), in order; else all of the function together.
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

fn greatest(lines: Lines, wanted: &[Line]) -> Option<(Line, At)> {
    let found = wanted.iter().filter_map(|line| Some((line, lines?.get(line)?)));
    found.max_by_key(|(_, at)| at.sums.bytes).map(|(line, at)| (line.clone(), at.clone()))
}

/// Least, greatest and mean of the runs.
fn values(runs: &[Measured], functions: &[String], lines: &[Line], scale: f64) -> (Values, Values, Values) {
    let each = runs.iter().map(|run| {
        let known = run.sites.get(functions);
        let mut sum = [0.0; 4];
        for at in lines.iter().filter_map(|line| known?.get(line)) {
            sum.iter_mut().zip(at.sums.values()).for_each(|(sum, value)| *sum += value * scale);
        }
        Values::of(sum)
    });
    let each: Vec<Values> = each.collect();
    let Some(&first) = each.first() else { return Default::default() };
    let (mut low, mut high, mut sum) = (first, first, Values::default());
    for one in &each {
        (low, high) = (low.zip(one, f64::min), high.zip(one, f64::max));
        sum.add(one);
    }
    (low, high, sum.zip(&sum, |sum, _| sum / each.len() as f64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(lines: &[u32]) -> Vec<Line> {
        lines.iter().map(|&line| Some(("f.c".to_string(), line))).collect()
    }

    #[test]
    fn lines_are_matched_however_code_moved() {
        let shown = |a: &[u32], b: &[u32]| lines(&at(a), &at(b)).len();
        assert_eq!(lines(&at(&[3, 5]), &at(&[13, 15]))[1], (at(&[5]), at(&[15])), "moved");
        assert_eq!(shown(&[3, 5], &[3, 5]), 2);
        assert_eq!(shown(&[3, 5], &[3, 5, 9]), 3, "a new one");
        assert_eq!(shown(&[3, 5], &[4, 6, 9]), 1, "moved and a new one: nobody can tell which");
        assert_eq!(lines(&[None], &at(&[3, 5])), [(vec![None], at(&[3, 5]))], "a side without lines");
    }
}
