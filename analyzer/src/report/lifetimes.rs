//! `heaptape lifetimes`: how long blocks live, in all and by site.

use super::questions::{Answer, Query, Shown, ask, group};
use super::{Error, Outcome};
use crate::charts;
use crate::model::lifetimes::{CLASSES, Histogram, Lifetimes};
use crate::text::{Screen, Style, count, duration, percent};
use serde::Serialize;
use std::io::{self, Write};

#[derive(Serialize)]
struct Class {
    below: u64,
    died: u64,
}

#[derive(Serialize)]
struct Row {
    died: u64,
    mean: u64,
    longest: u64,
    #[serde(flatten)]
    shown: Shown,
}

#[derive(Serialize)]
struct LifetimesAnswer {
    unit: &'static str,
    died: u64,
    live: u64,
    mean: u64,
    shortest: u64,
    longest: u64,
    classes: Vec<Class>,
    sites: Vec<Row>,
}

/// `heaptape lifetimes`. In a range: of blocks born in it, as far as they died in it.
///
/// # Errors
/// When nothing can be read, or `out` fails.
pub fn run(query: &Query, out: &mut dyn Write, style: Style) -> Result<Outcome, Error> {
    ask(query, out, style, true, |image, symbols, progress| {
        let mut model = Lifetimes::new(image.clock.ticks_per_second);
        let outcome = query.replay(image, image.span(&query.range), symbols, progress, &mut model);
        let rows = model.sites.iter().zip(0u32..).map(|(lives, site)| (site, [lives.freed, lives.sum, lives.longest]));
        let groups = group(query, image, symbols, rows);
        let sites = groups.iter().take(query.top).map(|group| {
            let ([died, sum, _], [.., longest]) = (group.values, group.most);
            Row { died, mean: sum / died.max(1), longest, shown: group.shown(image, symbols) }
        });
        let Histogram { classes, freed: died, longest, shortest, .. } = model.all;
        let used = classes.iter().rposition(|&died| died > 0).map_or(0, |last| last + 1);
        let below = |class: usize| if class == CLASSES - 1 { u64::MAX } else { 10u64.pow(class as u32) };
        let answer = LifetimesAnswer {
            unit: model.unit(),
            died,
            live: outcome.live.iter().count() as u64,
            mean: model.all.mean(),
            shortest,
            longest,
            classes: classes[..used].iter().enumerate().map(|(at, &died)| Class { below: below(at), died }).collect(),
            sites: sites.collect(),
        };
        Ok((answer, outcome.missing))
    })
}

impl Answer for LifetimesAnswer {
    fn print(&self, screen: &mut Screen) -> io::Result<()> {
        let time = |value: u64| if self.unit == "ns" { duration(value) } else { format!("{} events", count(value)) };
        screen.line(&format!(
            "{} blocks died after {} on average (shortest {}, longest {}); {} live on",
            count(self.died),
            time(self.mean),
            time(self.shortest),
            time(self.longest),
            count(self.live),
        ))?;
        let style = screen.style;
        let bar = |died: u64| charts::bar(style, died, self.died, 40);
        let rows: Vec<Vec<String>> = self
            .classes
            .iter()
            .filter(|class| class.died > 0)
            .map(|class| {
                let below = match class.below {
                    1 if self.unit == "ns" => "(no stamp)".into(),
                    u64::MAX => "longer".into(),
                    below => time(below),
                };
                vec![below, count(class.died), percent(class.died, self.died), bar(class.died)]
            })
            .collect();
        screen.table(&["lived less than", "blocks", "share", ""], &rows)?;
        if self.unit == "ns" && self.classes.first().is_some_and(|class| class.died > 0) {
            screen
                .line("no stamp between birth and death: one event in 16 has one while the program has one thread")?;
        }
        let rows: Vec<Vec<String>> = self
            .sites
            .iter()
            .map(|row| vec![count(row.died), time(row.mean), time(row.longest), row.shown.place.clone()])
            .collect();
        screen.table(&["died", "mean", "longest", "allocated at"], &rows)
    }
}
