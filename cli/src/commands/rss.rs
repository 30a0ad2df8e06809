//! `heaptape rss`: what the resident memory of a process consists of.

use super::common::{Common, print};
use super::mappings::MappingOptions;
use crate::Outcome;
use heaptape_analyzer::event::Bound;
use heaptape_reports::rss::{self, When};

/// Options of `heaptape rss`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Point in time: a time since the start (1.5s) or before the end (-1m), a share of the run
    /// (40%), a mark (mark:NAME), or peak for the largest resident memory. The last snapshot until
    /// then is shown [default: the end]
    #[arg(long, value_name = "WHEN", value_parser = at, allow_hyphen_values = true, conflicts_with_all = ["until", "between"])]
    at: Option<At>,
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    mappings: MappingOptions,
}

/// A point in time as the user writes it.
#[derive(Clone, Debug, PartialEq)]
enum At {
    Peak,
    Bound(Bound),
}

/// Parses a point in time.
fn at(text: &str) -> Result<At, String> {
    match text {
        "peak" => Ok(At::Peak),
        text => text.parse().map(At::Bound).map_err(|error| format!("{error}, or peak")),
    }
}

pub(super) fn run(args: Args) -> anyhow::Result<Outcome> {
    let Args { at, common, mappings } = args;
    let strict = common.strict();
    let mut query = common.query(10)?;
    query.scope.mappings = mappings.filter();
    let when = match at {
        Some(At::Peak) => When::Peak,
        Some(At::Bound(bound)) => {
            query.scope.range.to = Some(bound);
            When::End
        }
        None => When::End,
    };
    print(strict, |out, style| rss::run(&query, when, out, style))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_in_time_are_bounds_or_the_peak() {
        assert_eq!(at("peak"), Ok(At::Peak));
        assert_eq!(at("40%"), Ok(At::Bound(Bound::Share(0.4))));
        assert!(at("yesterday").is_err_and(|error| error.ends_with("or peak")));
    }
}
