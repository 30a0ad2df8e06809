//! `METRIC OPERATOR VALUE`: what a threshold says.

use std::str::FromStr;

/// In what a metric is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Things.
    Count,
    /// Per cent of the old side; of what a threshold says, never of a metric by itself.
    Percent,
}

/// THE list of metrics: name, unit, meaning.
#[rustfmt::skip]
pub const METRICS: &[(&str, Unit, &str)] = &[
    ("leaked", Unit::Bytes, "bytes never freed, without what is suppressed or kept by the run-time on purpose"),
    ("leaked.blocks", Unit::Count, "blocks never freed, likewise"),
    ("leaked.stacks", Unit::Count, "stacks with such blocks"),
    ("leaked.growing", Unit::Bytes, "bytes of leaks that grow"),
    ("leaked.slow", Unit::Bytes, "bytes of leaks that grow slowly"),
    ("leaked.container-growth", Unit::Bytes, "bytes of containers that grew and live"),
    ("leaked.one-time", Unit::Bytes, "bytes allocated in one part of the run and kept"),
    ("leaked.too-little", Unit::Bytes, "bytes of leaks that grow, in too short a run or too few to tell"),
    ("leaked.uncertain", Unit::Bytes, "bytes whose frees may be missing from the recording"),
    (FREED_AT_EXIT, Unit::Bytes, "bytes that grew through the run and were freed only when it ended: in no leaked metric"),
    ("live", Unit::Bytes, "bytes live at the end"),
    ("live.blocks", Unit::Count, "blocks live at the end"),
    ("peak", Unit::Bytes, "the most live bytes at any moment; of several processes the greatest"),
    ("peak.blocks", Unit::Count, "the most live blocks at any moment"),
    ("allocated", Unit::Bytes, "bytes ever allocated"),
    ("allocs", Unit::Count, "allocations"),
    ("resizes", Unit::Count, "resizes"),
    ("frees", Unit::Count, "frees"),
    ("unknown-frees", Unit::Count, "frees of addresses that were not known to be allocated"),
    ("lost", Unit::Count, "events that found no room"),
    ("diff.live", Unit::Bytes, "change of live bytes"),
    ("diff.live.blocks", Unit::Count, "change of live blocks"),
    ("diff.peak", Unit::Bytes, "change of the peak"),
    ("diff.allocated", Unit::Bytes, "change of allocated bytes"),
    ("diff.allocs", Unit::Count, "change of allocations"),
    ("diff.sites", Unit::Count, "sites that changed beyond the noise"),
];

/// The metric of what grew and was freed only at exit.
pub const FREED_AT_EXIT: &str = "freed-at-exit";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operator {
    Greater,
    AtLeast,
    Less,
    AtMost,
    Equal,
    Other,
}

/// Spellings, longer ones first.
const OPERATORS: &[(&str, Operator)] = &[
    (">=", Operator::AtLeast),
    ("<=", Operator::AtMost),
    ("==", Operator::Equal),
    ("!=", Operator::Other),
    (">", Operator::Greater),
    ("<", Operator::Less),
    ("=", Operator::Equal),
];

/// A threshold.
#[derive(Clone, Debug, PartialEq)]
pub struct Expression {
    /// As it was written.
    pub text: String,
    /// Name in [`METRICS`].
    pub metric: &'static str,
    /// In what its value is.
    pub unit: Unit,
    operator: Operator,
    value: f64,
}

impl Expression {
    /// Whether the threshold fails on a value.
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

    /// The condition alone, as it was written.
    pub fn limit(&self) -> String {
        self.text.find(['<', '>', '=', '!']).map_or_else(String::new, |at| self.text[at..].to_string())
    }

    /// Whether it needs two sides.
    pub fn is_of_diff(&self) -> bool {
        self.metric.starts_with("diff.")
    }

    /// Whether it needs leaks.
    pub fn is_of_leaks(&self) -> bool {
        self.metric.starts_with("leaked") || self.metric == FREED_AT_EXIT
    }

    /// Whether it needs totals.
    pub fn is_of_sums(&self) -> bool {
        !self.is_of_diff() && !self.is_of_leaks()
    }
}

impl FromStr for Expression {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form =
            || format!("'{text}' is not a condition: use METRIC > VALUE, such as 'leaked > 0' or 'peak > 200MiB'");
        let at = text.find(['<', '>', '=', '!']).ok_or_else(form)?;
        let (name, rest) = (text[..at].trim(), &text[at..]);
        let (spelling, operator) =
            OPERATORS.iter().find(|(spelling, _)| rest.starts_with(spelling)).ok_or_else(form)?;
        let value = rest[spelling.len()..].trim();
        let plain = name.replace('_', "-");
        let &(metric, unit, _) = METRICS.iter().find(|(known, ..)| *known == plain).ok_or_else(|| {
            let names: Vec<&str> = METRICS.iter().map(|(name, ..)| *name).collect();
            format!("'{name}' is not measured; these are: {}", names.join(", "))
        })?;
        let wrong = || format!("'{value}' is no value of {metric}");
        let percent = value.strip_suffix('%').map(|number| number.trim().parse::<f64>());
        let (unit, value) = match (percent, unit) {
            (Some(number), _) if metric.starts_with("diff.") && metric != "diff.sites" => {
                (Unit::Percent, number.map_err(|_| wrong())?)
            }
            (Some(_), _) => return Err(format!("{metric} has nothing that it could be a share of")),
            (None, Unit::Bytes) => (unit, bytes(value).ok_or_else(wrong)? as f64),
            (None, _) => (unit, value.parse::<f64>().ok().filter(|value| value.is_finite()).ok_or_else(wrong)?),
        };
        Ok(Expression { text: text.trim().into(), metric, unit, operator: *operator, value })
    }
}

/// Bytes as people write them: `4096`, `64KiB`, `1.5MiB`, `200M` (binary), `10MB` (decimal).
pub fn bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let scale: f64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "k" | "kib" => 1024.0,
        "m" | "mib" => 1024.0 * 1024.0,
        "g" | "gib" => 1024.0 * 1024.0 * 1024.0,
        "t" | "tib" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "tb" => 1e12,
        _ => return None,
    };
    if scale == 1.0 {
        return number.parse().ok();
    }
    let value = number.parse::<f64>().ok()? * scale;
    (value < u64::MAX as f64).then_some(value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_read_as_people_write_them() {
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
