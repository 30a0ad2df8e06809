//! The table DIRECT ALLOCATIONS: what each function (or call site) allocated itself.

use super::Totals;
use super::cells::{Figures, percent, percent_or_zero};
use super::sites::Sites;
use heaptape_formats::mptl::Site;
use std::io::{self, Write};

/// Returns one row for each run of adjacent sites of the same function. In a file with inconsistent
/// symbols, the sites of a function may not be adjacent. Such a function gets several rows, as in
/// mprof.
fn rows<'a>(sites: &Sites<'a>) -> Vec<(&'a Site, Figures)> {
    let runs = sites.runs();
    let mut rows: Vec<(usize, Figures)> = Vec::new();
    for (index, figures) in sites.allocating() {
        match rows.last_mut() {
            Some((last, sum)) if runs[*last] == runs[index] => *sum += &figures,
            _ => rows.push((index, figures)),
        }
    }
    rows.into_iter().map(|(index, figures)| (sites.site(index), figures)).collect()
}

/// Prints the direct allocation table.
///
/// # Errors
/// Returns an error if writing to `out` fails.
pub(super) fn print(sites: &Sites, counts: bool, totals: &Totals, out: &mut dyn Write) -> io::Result<()> {
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
