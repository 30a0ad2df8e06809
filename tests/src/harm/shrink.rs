//! Shrinks a case that shows a difference: removes steps, replaces blocks by their contents, and
//! reduces numbers, as long as the difference remains.

use super::{Case, Step};
use std::time::{Duration, Instant};

/// Returns the smallest case found within `longest` for which `differs` holds, as for `case`.
pub fn shrink(case: &Case, longest: Duration, mut differs: impl FnMut(&Case) -> bool) -> Case {
    let end = Instant::now() + longest;
    let mut best = case.clone();
    let mut size = best.steps.len() / 2;
    if best.ignored.is_some() {
        let tried = Case { ignored: None, ..best.clone() };
        best = if differs(&tried) { tried } else { best };
    }
    // Long runs of steps are removed first.
    while size > 0 {
        let mut at = 0;
        while at < best.steps.len() && Instant::now() < end {
            let mut tried = best.clone();
            tried.steps.drain(at..(at + size).min(tried.steps.len()));
            if differs(&tried) { best = tried } else { at += size }
        }
        size /= 2;
    }
    loop {
        let mut is_smaller = false;
        let mut number = 0;
        while number < count(&best.steps) {
            let mut found = false;
            for change in [Change::Remove, Change::Unwrap, Change::Lower, Change::Halve] {
                if Instant::now() > end {
                    return best;
                }
                let mut tried = best.clone();
                let mut left = number;
                if change_step(&mut tried.steps, &mut left, change) && differs(&tried) {
                    best = tried;
                    found = true;
                    break;
                }
            }
            is_smaller |= found;
            number += usize::from(!found);
        }
        if !is_smaller {
            return best;
        }
    }
}

#[derive(Clone, Copy)]
enum Change {
    Remove,
    Unwrap,
    Lower,
    Halve,
}

fn count(steps: &[Step]) -> usize {
    steps.iter().map(|step| 1 + count(step.body.as_deref().unwrap_or_default())).sum()
}

/// Changes the step of this number, counted from the outside in. Returns whether it changed.
fn change_step(steps: &mut Vec<Step>, number: &mut usize, change: Change) -> bool {
    for at in 0..steps.len() {
        if *number == 0 {
            return match change {
                Change::Remove => {
                    steps.remove(at);
                    true
                }
                Change::Unwrap => {
                    let Some(body) = steps[at].body.take() else { return false };
                    steps.splice(at..=at, body);
                    true
                }
                Change::Lower => lower(&mut steps[at], |_| 1),
                Change::Halve => lower(&mut steps[at], |number| number / 2),
            };
        }
        *number -= 1;
        if let Some(body) = &mut steps[at].body
            && *number < count(body)
        {
            return change_step(body, number, change);
        }
        *number -= count(steps[at].body.as_deref().unwrap_or_default());
    }
    false
}

/// Lowers the arguments of a step that are counts. Returns whether one changed.
fn lower(step: &mut Step, to: impl Fn(i64) -> i64) -> bool {
    let counts: &[usize] = match step.name.as_str() {
        "pairs" | "deep" => &[0, 1],
        "stacks" | "threads" | "coroutines" | "jumps" | "rawforks" | "cancel" | "churn" => &[0],
        "malloc" | "calloc" | "realloc" => &[1],
        "plugin" => &[2],
        _ => &[],
    };
    let mut is_changed = false;
    for &index in counts {
        if let Some(number) = step.numbers.get_mut(index)
            && *number > 1
        {
            *number = to(*number).max(1);
            is_changed = true;
        }
    }
    is_changed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_only_what_the_difference_needs() {
        let text = "pairs:900:20 threads:3:0{ malloc:1:5 fork:0:1{ float:1:0 pairs:500:7 } } look";
        let case = Case::parse(text).expect("a case");
        assert_eq!(case.to_string(), text);
        let small = shrink(&case, Duration::from_secs(10), |case| {
            case.any(|step| step.name == "fork" && step.body.iter().flatten().any(|step| step.name == "float"))
        });
        assert_eq!(small.to_string(), "fork:0:1{ float:1:0 }");
    }

    #[test]
    fn texts_replay_any_case() {
        for seed in 0..500 {
            let case = super::super::generate(seed);
            assert_eq!(Case::parse(&case.to_string()), Ok(case));
        }
    }
}
