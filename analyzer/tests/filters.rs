//! Questions about some of the blocks, against a plain filter of the same steps; and the questions
//! about resizes.

use crate::made;

use heaptape_analyzer::event::Bound;
use heaptape_analyzer::report::{Filter, GroupBy, Grouping, Query, View, leaks};
use heaptape_analyzer::text::Style;
use heaptape_reports::{peak, realloc, sites, sizes};
use made::{Options, Step, program};
use proptest::prelude::*;
use serde_json::Value;
use std::collections::HashMap;
use std::path::Path;

fn query(path: &Path, filter: Filter) -> Query {
    let mut query = Query::of(path, View::json(1000));
    query.scope.filter = filter;
    query
}

fn value(out: &[u8]) -> Value {
    let value: Value = serde_json::from_slice(out).unwrap();
    value["processes"][0].clone()
}

fn sum(rows: &Value, field: &str) -> u64 {
    rows.as_array().unwrap().iter().map(|row| row[field].as_u64().unwrap()).sum()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    /// Allocations and bytes of the blocks of a size and a thread.
    #[test]
    fn by_size_and_thread(
        rolls in prop::collection::vec(any::<(u8, u16, u8, u8, u8)>(), 0..300),
        least in 0u64..40_000,
        width in 0u64..40_000,
        thread in 1u32..4,
    ) {
        let steps = program(&rolls);
        let (_dir, path) = made::recording(&steps, &Options::default());
        let filter = Filter {
            min_size: Some(least),
            max_size: Some(least + width),
            threads: vec![thread.to_string()],
            ..Filter::default()
        };
        let mut out = Vec::new();
        let answer = sites::run(&query(&path, filter.clone()), &mut out, Style::PLAIN);
        if !steps.iter().any(|step| step.thread() == thread) {
            // A thread that the recording does not know is an error: an empty table would look like
            // an answer.
            let refusal = format!("no thread {thread} in the recording");
            prop_assert!(answer.is_err_and(|error| error.to_string().contains(&refusal)));
            return Ok(());
        }
        answer.unwrap();
        let found = value(&out);
        let wanted = steps.iter().filter_map(|step| match step {
            Step::Alloc { size, thread: by, .. } | Step::Resize { size, thread: by, .. } => Some((*size, *by)),
            _ => None,
        });
        let wanted: Vec<u64> = wanted.filter(|&(size, by)| by == thread && (least..=least + width).contains(&size)).map(|(size, _)| size).collect();
        // Sites that allocated nothing but bytes of size 0 are not listed among places.
        let listed = sum(&found["sites"], "bytes");
        prop_assert_eq!(listed, wanted.iter().sum::<u64>());
        let mut out = Vec::new();
        sizes::run(&query(&path, filter), &mut out, Style::PLAIN).unwrap();
        prop_assert_eq!(value(&out)["allocs"].as_u64(), Some(wanted.len() as u64));
    }

    /// The live bytes of blocks that live for long, at their peak, by brute force over all steps.
    #[test]
    fn by_age(rolls in prop::collection::vec(any::<(u8, u16, u8, u8, u8)>(), 1..200), least in 1u64..3000) {
        let steps = program(&rolls);
        let (_dir, path) = made::recording(&steps, &Options::default());
        let end = steps.last().map_or(0, Step::tick);
        let mut lives: HashMap<u64, (u64, u64)> = HashMap::new();
        for step in &steps {
            match *step {
                Step::Alloc { index, tick, .. } | Step::Inherited { index, tick, .. } => drop(lives.insert(index, (tick, end))),
                Step::Free { index, tick, .. } | Step::Implied { index, tick, .. } => {
                    if let Some(life) = lives.get_mut(&index) {
                        life.1 = tick;
                    }
                }
                _ => {}
            }
        }
        let chosen = |index: &u64| lives.get(index).is_some_and(|(birth, death)| death - birth >= least);
        let (mut live, mut most): (HashMap<u64, u64>, u64) = (HashMap::new(), 0);
        for step in &steps {
            match step {
                Step::Alloc { index, size, .. } | Step::Resize { index, size, .. } if chosen(index) => drop(live.insert(*index, *size)),
                Step::Free { index, .. } | Step::Implied { index, .. } => drop(live.remove(index)),
                _ => {}
            }
            most = most.max(live.values().sum());
        }
        let filter = Filter { min_age: Some(least), ..Filter::default() };
        let mut out = Vec::new();
        peak::run(&query(&path, filter), &mut out, Style::PLAIN).unwrap();
        // The time of an implied free is not known, so no filter selects its block.
        let implied = steps.iter().any(|step| matches!(step, Step::Implied { .. }));
        if !implied {
            prop_assert_eq!(value(&out)["peak_bytes"].as_u64(), Some(most));
        }
    }

    /// Resizes, moves and copied bytes.
    #[test]
    fn resizes(rolls in prop::collection::vec(any::<(u8, u16, u8, u8, u8)>(), 0..300)) {
        let steps = program(&rolls);
        let (_dir, path) = made::recording(&steps, &Options::default());
        let (mut sizes, mut resizes, mut copied): (HashMap<u64, (u64, bool)>, u64, u64) = (HashMap::new(), 0, 0);
        let mut moved = 0;
        for step in &steps {
            match *step {
                Step::Alloc { index, size, .. } => drop(sizes.insert(index, (size, false))),
                Step::Resize { index, size, .. } => {
                    resizes += 1;
                    // What is made here moves with its first resize and then stays.
                    if let Some((old, false)) = sizes.insert(index, (size, true)) {
                        moved += 1;
                        copied += old.min(size);
                    }
                }
                _ => {}
            }
        }
        let mut out = Vec::new();
        realloc::run(&query(&path, Filter::default()), &mut out, Style::PLAIN).unwrap();
        let found = value(&out);
        prop_assert_eq!(found["resizes"].as_u64(), Some(resizes));
        prop_assert_eq!(found["moved"].as_u64(), Some(moved));
        prop_assert_eq!(found["copied_bytes"].as_u64(), Some(copied));
    }
}

/// Blocks of 0 bytes are allocations of their call site, also where they are the only ones.
#[test]
fn blocks_of_zero_bytes_are_counted_at_their_call_site() {
    let steps: Vec<Step> = [(0, 2), (0, 2), (40, 4), (0, 4), (0, 6)]
        .into_iter()
        .zip(1..)
        .map(|((size, site), index)| Step::Alloc { index, size, site, thread: 1, tick: 100 * index })
        .collect();
    let (_dir, path) = made::recording(&steps, &Options::default());
    for by in [None, Some(GroupBy::Module)] {
        let mut out = Vec::new();
        let query = Query { grouping: Grouping(by), ..query(&path, Filter::default()) };
        sites::run(&query, &mut out, Style::PLAIN).unwrap();
        let rows = &value(&out)["sites"];
        assert_eq!((sum(rows, "allocs"), sum(rows, "bytes")), (5, 40), "{rows:#}");
        assert_eq!(sum(rows, "sites"), 3, "{rows:#}");
    }
}

/// What a range ends in is no exit: a program that ran on freed it as it frees anything else.
#[test]
fn what_is_freed_before_a_range_ends_is_not_freed_at_exit() {
    let cached = (1..=1000).map(|index| Step::Alloc { index, size: 500, site: 2, thread: 1, tick: index * 1_000_000 });
    let cleared = (1..=1000).map(|index| Step::Free { index, thread: 1, tick: 1_000_000_000 + index });
    let others = (1001..=2100).flat_map(|index| {
        let tick = index * 1_000_000 + 300_000;
        let other = Step::Alloc { index, size: 8, site: 3, thread: 1, tick };
        [other, Step::Free { index, thread: 1, tick: tick + 1000 }]
    });
    let steps: Vec<Step> = cached.chain(cleared).chain(others).collect();
    let (_dir, path) = made::recording(&steps, &Options::default());
    let leaks = |view, bound| {
        let mut query = Query { view, ..query(&path, Filter::default()) };
        query.scope.range.to = Some(bound);
        let mut out = Vec::new();
        leaks::run(&query, &leaks::Options::default(), &mut out, Style::PLAIN).unwrap();
        String::from_utf8(out).unwrap()
    };
    // The cache is cleared at 1 s of 2.1 s.
    for bound in [Bound::Share(0.5), Bound::Time(1_050_000_000), Bound::Number(2050)] {
        let answer: Value = serde_json::from_str(&leaks(View::json(1000), bound.clone())).unwrap();
        assert_eq!(answer["freed_at_exit"], Value::Array(Vec::new()), "{bound:?}: {answer:#}");
        let text = leaks(View::text(10), bound);
        assert_eq!(text.lines().next(), Some("nothing leaked"), "{text}");
    }
    // What is freed after the range is live at its end, and nobody asked whether it was freed.
    let text = leaks(View::text(10), Bound::Share(0.4));
    assert!(text.contains(" blocks live at the end of the range"), "{text}");
    assert!(!text.contains("never freed") && !text.contains("exit"), "{text}");
    let text = leaks(View::text(10), Bound::Share(1.0));
    assert_eq!(text.lines().next(), Some("nothing leaked"), "{text}");
}

/// The peak of what was freed at exit may be between two points of the history.
#[test]
fn total_of_what_was_freed_at_exit_is_at_least_its_largest_row() {
    let allocs = (1..=1000).map(|index| Step::Alloc { index, size: 500, site: 2, thread: 1, tick: index * 3_000_000 });
    let frees = (1..=1000).map(|index| Step::Free { index, thread: 1, tick: 3_000_000_000 + index });
    let (_dir, path) = made::recording(&allocs.chain(frees).collect::<Vec<_>>(), &Options::default());
    let mut out = Vec::new();
    leaks::run(&query(&path, Filter::default()), &leaks::Options::default(), &mut out, Style::PLAIN).unwrap();
    let answer: Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(answer["freed_at_exit"][0]["grown_bytes"], 500_000, "{answer:#}");
    assert_eq!(answer["total"]["grown_bytes"], 500_000, "{answer:#}");
}
