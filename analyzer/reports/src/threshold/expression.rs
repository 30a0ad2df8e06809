//! The grammar of thresholds: `METRIC OPERATOR VALUE`.

use heaptape_formats::quantity::{self, Size};
use std::str::FromStr;

/// Unit of a metric or of a threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// The metric counts bytes.
    Bytes,
    /// The metric counts blocks, events or sites.
    Count,
    /// The threshold is a percentage of the value of the old side. No metric has this unit.
    Percent,
}

/// A quantity that a threshold may limit.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    pub name: &'static str,
    pub unit: Unit,
    /// Explanation for the help text.
    pub meaning: &'static str,
}

/// All metrics, in the order of the help text. This is the only list of them.
#[rustfmt::skip]
pub const METRICS: &[Metric] = &[
    Metric { name: "leaked", unit: Unit::Bytes, meaning: "bytes never freed, except what is suppressed or kept by the runtime on purpose" },
    Metric { name: "leaked.blocks", unit: Unit::Count, meaning: "blocks never freed, likewise" },
    Metric { name: "leaked.stacks", unit: Unit::Count, meaning: "stacks with such blocks" },
    Metric { name: "leaked.growing", unit: Unit::Bytes, meaning: "bytes of leaks that grow" },
    Metric { name: "leaked.slow", unit: Unit::Bytes, meaning: "bytes of leaks that grow slowly" },
    Metric { name: "leaked.container-growth", unit: Unit::Bytes, meaning: "bytes of containers that grew and live" },
    Metric { name: "leaked.one-time", unit: Unit::Bytes, meaning: "bytes allocated in one period of the run and kept" },
    Metric { name: "leaked.too-little", unit: Unit::Bytes, meaning: "bytes of leaks that grow, in too short a run or by too few bytes to be certain" },
    Metric { name: "leaked.uncertain", unit: Unit::Bytes, meaning: "bytes whose frees may be missing from the recording" },
    Metric { name: FREED_AT_EXIT, unit: Unit::Bytes, meaning: "bytes that grew through the run and were freed only when it ended: in no leaked metric" },
    Metric { name: CROSSED, unit: Unit::Count, meaning: "blocks that one allocator allocated and another one freed or resized" },
    Metric { name: "live", unit: Unit::Bytes, meaning: "bytes live at the end" },
    Metric { name: "live.blocks", unit: Unit::Count, meaning: "blocks live at the end" },
    Metric { name: "peak", unit: Unit::Bytes, meaning: "the most live bytes at any time; of several processes the largest" },
    Metric { name: "peak.blocks", unit: Unit::Count, meaning: "the most live blocks at any time" },
    Metric { name: "allocated", unit: Unit::Bytes, meaning: "bytes ever allocated" },
    Metric { name: "allocs", unit: Unit::Count, meaning: "allocations" },
    Metric { name: "resizes", unit: Unit::Count, meaning: "resizes" },
    Metric { name: "frees", unit: Unit::Count, meaning: "frees" },
    Metric { name: "unknown-frees", unit: Unit::Count, meaning: "frees of addresses that were not known to be allocated" },
    Metric { name: "lost", unit: Unit::Count, meaning: "events that were dropped" },
    Metric { name: "diff.live", unit: Unit::Bytes, meaning: "change of live bytes" },
    Metric { name: "diff.live.blocks", unit: Unit::Count, meaning: "change of live blocks" },
    Metric { name: "diff.peak", unit: Unit::Bytes, meaning: "change of the peak" },
    Metric { name: "diff.allocated", unit: Unit::Bytes, meaning: "change of allocated bytes" },
    Metric { name: "diff.allocs", unit: Unit::Count, meaning: "change of allocations" },
    Metric { name: "diff.sites", unit: Unit::Count, meaning: "sites that changed beyond the noise" },
];

/// Name of the metric of what grew and was freed only at exit.
pub(super) const FREED_AT_EXIT: &str = "freed-at-exit";
/// Name of the metric of blocks that crossed allocators.
pub(super) const CROSSED: &str = "crossed";

/// An operator that compares a value with the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Greater,
    AtLeast,
    Less,
    AtMost,
    Equal,
    Other,
}

/// Spellings of the operators, longer ones first.
const OPERATORS: &[(&str, Operator)] = &[
    (">=", Operator::AtLeast),
    ("<=", Operator::AtMost),
    ("==", Operator::Equal),
    ("!=", Operator::Other),
    (">", Operator::Greater),
    ("<", Operator::Less),
    ("=", Operator::Equal),
];

/// A condition on a metric. The command fails when it holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Expression {
    /// The condition as it was written.
    pub text: String,
    /// Name of the metric, one of [`METRICS`].
    pub metric: &'static str,
    pub unit: Unit,
    operator: Operator,
    value: f64,
}

impl Expression {
    /// Returns whether the condition holds for a value.
    pub fn holds(&self, value: f64) -> bool {
        match self.operator {
            Operator::Greater => value > self.value,
            Operator::AtLeast => value >= self.value,
            Operator::Less => value < self.value,
            Operator::AtMost => value <= self.value,
            Operator::Equal => value == self.value,
            Operator::Other => value != self.value,
        }
    }

    /// Returns the operator and the limit as they were written.
    pub fn limit(&self) -> String {
        self.text.find(['<', '>', '=', '!']).map_or_else(String::new, |at| self.text[at..].to_string())
    }

    /// Returns whether the metric is the change between two sides.
    pub(crate) fn is_of_diff(&self) -> bool {
        self.metric.starts_with("diff.")
    }

    /// Returns whether the metric is about leaks.
    pub(crate) fn is_of_leaks(&self) -> bool {
        self.metric.starts_with("leaked") || self.metric == FREED_AT_EXIT || self.metric == CROSSED
    }

    /// Returns whether the metric is about totals.
    pub(crate) fn is_of_sums(&self) -> bool {
        !self.is_of_diff() && !self.is_of_leaks()
    }
}

/// Why a text is not an [`Expression`].
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ExpressionError {
    /// The text is not a metric, an operator and a value.
    #[error("'{0}' is not a condition: use METRIC > VALUE, such as 'leaked > 0' or 'peak > 200MiB'")]
    Syntax(String),
    /// No metric has this name.
    #[error("'{0}' is not a metric; the metrics are: {names}", names = METRICS.iter().map(|metric| metric.name).collect::<Vec<_>>().join(", "))]
    UnknownMetric(String),
    /// The value is not a number.
    #[error("'{value}' is not a value of {metric}")]
    NotANumber {
        /// The value as it was written.
        value: String,
        metric: &'static str,
    },
    /// The value is not a size.
    #[error("invalid value '{value}' of {metric}: {error}")]
    NotASize {
        /// The value as it was written.
        value: String,
        metric: &'static str,
        /// Why it is not a size. The message contains it.
        error: quantity::Error,
    },
    /// A percentage is the limit of a metric that is not a change.
    #[error("{0} has no old value for a percentage to refer to")]
    NoOldValue(&'static str),
}

impl FromStr for Expression {
    type Err = ExpressionError;

    fn from_str(text: &str) -> Result<Self, ExpressionError> {
        let syntax = || ExpressionError::Syntax(text.to_string());
        let at = text.find(['<', '>', '=', '!']).ok_or_else(syntax)?;
        let (name, rest) = (text[..at].trim(), &text[at..]);
        let (spelling, operator) =
            OPERATORS.iter().find(|(spelling, _)| rest.starts_with(spelling)).ok_or_else(syntax)?;
        let value = rest[spelling.len()..].trim();
        let plain = name.replace('_', "-");
        let &Metric { name: metric, unit, .. } = METRICS
            .iter()
            .find(|known| known.name == plain)
            .ok_or_else(|| ExpressionError::UnknownMetric(name.to_string()))?;
        let not_a_number = || ExpressionError::NotANumber { value: value.to_string(), metric };
        let percent = value.strip_suffix('%').map(|number| number.trim().parse::<f64>());
        let (unit, value) = match (percent, unit) {
            (Some(number), _) if metric.starts_with("diff.") && metric != "diff.sites" => {
                (Unit::Percent, number.map_err(|_| not_a_number())?)
            }
            (Some(_), _) => return Err(ExpressionError::NoOldValue(metric)),
            (None, Unit::Bytes) => {
                let Size(bytes) = value.parse().map_err(|error| ExpressionError::NotASize {
                    value: value.to_string(),
                    metric,
                    error,
                })?;
                (unit, bytes as f64)
            }
            (None, _) => (unit, value.parse::<f64>().ok().filter(|value| value.is_finite()).ok_or_else(not_a_number)?),
        };
        Ok(Expression { text: text.trim().into(), metric, unit, operator: *operator, value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_are_parsed_and_evaluated() {
        let threshold = |text: &str| text.parse::<Expression>().unwrap();
        for (text, value, fails) in [
            ("leaked > 0", 1.0, true),
            ("leaked>0", 0.0, false),
            ("peak > 200MiB", 200.0 * 1024.0 * 1024.0, false),
            ("peak >= 200MiB", 200.0 * 1024.0 * 1024.0, true),
            ("allocs > 1e6", 1_000_001.0, true),
            ("diff.live > 5%", 5.1, true),
            ("diff.live > +5%", 4.9, false),
            ("diff.allocs < -10", -11.0, true),
            ("unknown_frees != 0", 3.0, true),
        ] {
            assert_eq!(threshold(text).holds(value), fails, "{text}");
        }
        for bad in
            ["leaked", "leak > 0", "leaked > ", "leaked > 5%", "peak > 3 parsecs", "> 5", "peak ~ 5", "allocs > nan"]
        {
            assert!(bad.parse::<Expression>().is_err(), "{bad}");
        }
        assert_eq!(threshold("diff.live > 5%").unit, Unit::Percent);
    }
}
