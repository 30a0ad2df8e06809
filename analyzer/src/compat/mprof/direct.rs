//! DIRECT ALLOCATIONS: what each function (or call site) allocated itself.

use super::Totals;
use super::cells::{Figures, percent, percent_or_zero};
use super::sites::Sites;
use heaptape_formats::mptl::Site;
use std::io::{self, Write};

/// A row for each run of neighbors that are one function. (A function whose sites are not neighbors, in a file with mixed-up
/// symbols, makes several.)
fn rows<'a>(sites: &Sites<'a>) -> Vec<(&'a Site, Figures)> {
    let runs = sites.runs();
    let mut rows: Vec<(usize, Figures)> = Vec::new();
    for (place, figures) in sites.allocating() {
        match rows.last_mut() {
            Some((last, sum)) if runs[*last] == runs[place] => *sum += &figures,
            _ => rows.push((place, figures)),
        }
    }
    rows.into_iter().map(|(place, figures)| (sites.site(place), figures)).collect()
}

pub fn print(sites: &Sites, counts: bool, totals: &Totals, out: &mut dyn Write) -> io::Result<()> {
    let [small, medium, large] = sites.profile.bounds;
    write!(
        out,
        "                               DIRECT ALLOCATIONS\n\n\
        \x20                   (0 < s <= {small} < m <= {medium} < l <= {large} < x)\n\n"
    )?;
    out.write_all(if counts {
        b"         allocated                     unfreed\n\
        ---------------------------  ---------------------------\n \
        count       %   s  m  l  x   count       %   s  m  l  x     bytes  function\n\n"
    } else {
        b"          allocated                       unfreed\n\
        -----------------------------  -----------------------------\n   \
        bytes       %   s  m  l  x     bytes       %   s  m  l  x   count  function\n\n"
    })?;
    let mut rows = rows(sites);
    let mut all = Figures::default();
    rows.iter().for_each(|(_, figures)| all += figures);
    rows.sort_by_key(|(_, figures)| figures.allocated.all().get(counts));
    let (width, other_width) = if counts { (6, 8) } else { (8, 6) };
    let (total, total_unfreed) = (totals.allocated.get(counts), totals.unfreed.get(counts));
    for (site, figures) in rows.iter().rev() {
        let (allocated, unfreed) = (figures.allocated.all(), figures.unfreed.all());
        writeln!(
            out,
            "{:width$}  {:6.2} {}  {:width$}  {:6.2} {}  {:other_width$}  {}",
            allocated.get(counts),
            percent(allocated.get(counts), total),
            figures.allocated.columns(counts, total),
            unfreed.get(counts),
            percent_or_zero(unfreed.get(counts), total_unfreed),
            figures.unfreed.columns(counts, total_unfreed),
            allocated.get(!counts),
            sites.name(site)
        )?;
    }
    if !rows.is_empty() {
        writeln!(out)?;
    }
    writeln!(
        out,
        "{total:width$}         {}  {total_unfreed:width$}         {}  {:other_width$}  total",
        all.allocated.columns(counts, total),
        all.unfreed.columns(counts, total_unfreed),
        totals.allocated.get(!counts)
    )
}
