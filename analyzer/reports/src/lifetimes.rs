//! `heaptape lifetimes`: how long blocks live, in total and by call site.

use crate::print::{Report, print_reports};
use heaptape_analyzer::charts;
use heaptape_analyzer::model::lifetimes::{CLASSES, Histogram, Lifetimes};
use heaptape_analyzer::report::{Error, Outcome, Query, SiteDescription};
use heaptape_analyzer::text::{Screen, Style, count, counted, duration, percent};
use serde::Serialize;
use std::io::{self, Write};

#[derive(Serialize)]
struct Class {
    below: u64,
    #[serde(rename = "died")]
    freed: u64,
}

#[derive(Serialize)]
struct Row {
    #[serde(rename = "died")]
    freed: u64,
    mean: u64,
    longest: u64,
    #[serde(flatten)]
    site: SiteDescription,
}

#[derive(Serialize)]
struct LifetimesReport {
    unit: &'static str,
    #[serde(rename = "died")]
    freed: u64,
    live: u64,
    mean: u64,
    shortest: u64,
    longest: u64,
    /// Number of blocks whose lifetime is interpolated, and what those may be off by on average.
    interpolated: u64,
    mean_error: u64,
    #[serde(skip)]
    shortest_is_bound: bool,
    classes: Vec<Class>,
    sites: Vec<Row>,
}

/// Runs `heaptape lifetimes`. With a time range, it reports the blocks that were allocated and
/// freed in it.
///
/// # Errors
/// Returns an error when a recording cannot be read, when it does not hold what the report needs,
/// or when `out` fails.
pub fn run(query: &Query, out: &mut dyn Write, style: Style) -> Result<Outcome, Error> {
    print_reports(query, out, style, true, |process, symbols, progress| {
        let mut model = Lifetimes::new(process.clock.ticks_per_second);
        let outcome = query.scope.replay(process, process.span(&query.scope.range), symbols, progress, &mut model);
        let rows = model.sites.iter().zip(0u32..).map(|(lives, site)| (site, [lives.freed, lives.sum, lives.longest]));
        let groups = query.grouping.group(process, symbols, rows);
        let sites = groups.iter().take(query.view.top).map(|group| {
            let ([freed, sum, ..], [_, _, longest, ..]) = (group.values, group.max);
            Row { freed, mean: sum / freed.max(1), longest, site: group.describe(process, symbols) }
        });
        let Histogram { classes, freed, longest, shortest, interpolated, shortest_is_bound, .. } = model.all;
        let used = classes.iter().rposition(|&freed| freed > 0).map_or(0, |last| last + 1);
        let below = |class: usize| if class == CLASSES - 1 { u64::MAX } else { 10u64.pow(class as u32) };
        let report = LifetimesReport {
            unit: model.unit(),
            freed,
            live: outcome.live.iter().count() as u64,
            mean: model.all.mean(),
            shortest,
            longest,
            interpolated,
            mean_error: model.all.mean_error(),
            shortest_is_bound,
            classes: classes[..used].iter().enumerate().map(|(at, &freed)| Class { below: below(at), freed }).collect(),
            sites: sites.collect(),
        };
        Ok((report, outcome.missing))
    })
}

impl Report for LifetimesReport {
    fn print(&self, screen: &mut Screen) -> io::Result<()> {
        let time = |value: u64| if self.unit == "ns" { duration(value) } else { counted(value, "event") };
        screen.line(&format!(
            "{} {} freed after {} on average (shortest {}{}, longest {}); {} {} still live",
            counted(self.freed, "block"),
            if self.freed == 1 { "was" } else { "were" },
            time(self.mean),
            if self.shortest_is_bound { "below " } else { "" },
            time(self.shortest + u64::from(self.shortest_is_bound)),
            time(self.longest),
            count(self.live),
            if self.live == 1 { "is" } else { "are" },
        ))?;
        let style = screen.style;
        let bar = |value, width| charts::bar(style, value, self.freed, width);
        let rows = self
            .classes
            .iter()
            .filter(|class| class.freed > 0)
            .map(|class| {
                let below = match class.below {
                    u64::MAX => "longer".into(),
                    below => time(below),
                };
                (vec![below, count(class.freed), percent(class.freed, self.freed)], class.freed)
            })
            .collect();
        screen.bar_table(&["lived less than", "blocks", "share", ""], rows, bar)?;
        if self.interpolated > 0 {
            screen.line(&format!(
                "{} of these lifetimes {} interpolated between timestamps, within {} on average; each counts as the longest that it may be",
                percent(self.interpolated, self.freed),
                if self.interpolated == 1 { "is" } else { "are" },
                duration(self.mean_error),
            ))?;
        }
        let rows: Vec<Vec<String>> = self
            .sites
            .iter()
            .map(|row| vec![count(row.freed), time(row.mean), time(row.longest), row.site.label.clone()])
            .collect();
        screen.table(&["freed", "lived on average", "at most", "allocated at"], &rows)
    }
}
