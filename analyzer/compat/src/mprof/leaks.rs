//! The table MEMORY LEAKS: call stacks with unfreed memory, distinguished by their innermost
//! frames.

use super::cells::{Figures, percent, percent_or_zero};
use super::sites::{Identity, Sites};
use super::{Options, Totals};
use std::collections::HashMap;
use std::io::{self, Write};

/// Returns for each site the number of its group. Sites whose innermost `depth` frames are equal
/// have the same group.
///
/// A group of `n` frames is identified by the innermost frame and the caller's group of `n - 1`
/// frames. So each level takes one pass over the sites instead of one walk for each site.
fn groups(sites: &Sites, depth: usize) -> Vec<u32> {
    let all = &sites.profile.sites;
    let deepest = depths(sites).into_iter().max().unwrap_or(0);
    if depth == 0 || depth >= deepest {
        return whole_stacks(sites);
    }
    let mut shorter = vec![0; all.len()];
    for level in 0..depth {
        let mut numbers: HashMap<(Identity, u32), u32> = HashMap::new();
        shorter = all
            .iter()
            .enumerate()
            .map(|(index, site)| {
                // mprof doesn't look beyond the last frame: whether that has a caller is all the
                // same.
                let caller = sites.caller(index).filter(|_| level > 0).map_or(u32::MAX, |caller| shorter[caller]);
                let next = numbers.len() as u32;
                *numbers.entry((sites.identity(site), caller)).or_insert(next)
            })
            .collect();
    }
    shorter
}

/// Returns the indexes of all sites, callers before callees.
fn callers_first(sites: &Sites) -> Vec<usize> {
    let all = &sites.profile.sites;
    let (mut order, mut done, mut path) = (Vec::with_capacity(all.len()), vec![false; all.len()], Vec::new());
    for start in 0..all.len() {
        let mut next = Some(start);
        while let Some(index) = next.filter(|&index| !done[index]) {
            done[index] = true;
            path.push(index);
            next = sites.caller(index);
        }
        order.extend(path.drain(..).rev());
    }
    order
}

/// Returns the number of frames of each site's stack.
fn depths(sites: &Sites) -> Vec<usize> {
    let mut depths = vec![0; sites.profile.sites.len()];
    for index in callers_first(sites) {
        depths[index] = 1 + sites.caller(index).map_or(0, |caller| depths[caller]);
    }
    depths
}

/// Returns for each site the number of the group of all sites with an equal call stack.
fn whole_stacks(sites: &Sites) -> Vec<u32> {
    let mut groups = vec![0; sites.profile.sites.len()];
    let mut numbers: HashMap<(Identity, u32), u32> = HashMap::new();
    for index in callers_first(sites) {
        let caller = sites.caller(index).map_or(u32::MAX, |caller| groups[caller]);
        let next = numbers.len() as u32;
        groups[index] = *numbers.entry((sites.identity(sites.site(index)), caller)).or_insert(next);
    }
    groups
}

/// Returns the rows of the table: the index of the first site of each group and run, and the sums
/// of all of them.
fn rows(sites: &Sites, depth: usize) -> Vec<(usize, Figures)> {
    let (groups, runs) = (groups(sites, depth), sites.runs());
    let mut rows: Vec<(usize, Figures)> = Vec::new();
    let mut row_of: HashMap<(u32, usize), usize> = HashMap::new();
    for (index, figures) in sites.allocating() {
        let row = *row_of.entry((groups[index], runs[index])).or_insert(rows.len());
        match rows.get_mut(row) {
            Some((_, sum)) => *sum += &figures,
            None => rows.push((index, figures)),
        }
    }
    rows
}

/// Prints the memory leak table.
///
/// # Errors
/// Returns an error if writing to `out` fails.
pub(super) fn print(sites: &Sites, options: &Options, totals: &Totals, out: &mut dyn Write) -> io::Result<()> {
    let (counts, depth) = (options.counts, options.stack_depth);
    write!(
        out,
        "                                  MEMORY LEAKS\n\n\
        \x20                           (maximum stack depth: {depth})\n\n\
        \x20               unfreed                      allocated\n\
        ----------------------------------------  ----------------\n"
    )?;
    out.write_all(if counts {
        b"     %   count       %     bytes       %   count     bytes  function\n\n"
    } else {
        b"     %     bytes       %   count       %     bytes   count  function\n\n"
    })?;
    let mut rows = rows(sites, depth);
    rows.retain(|(_, figures)| figures.unfreed.all().get(counts) != 0);
    rows.sort_by_key(|(_, figures)| figures.unfreed.all().get(counts));
    let (width, other_width) = if counts { (6, 8) } else { (8, 6) };
    for &(index, ref figures) in rows.iter().rev() {
        let (allocated, unfreed) = (figures.allocated.all(), figures.unfreed.all());
        write!(out, "{:6.2}", percent(unfreed.get(counts), totals.unfreed.get(counts)))?;
        for (counts, width) in [(counts, width), (!counts, other_width)] {
            let (amount, all) = (unfreed.get(counts), allocated.get(counts));
            write!(out, "  {amount:width$}  {:6.2}", percent(amount, all))?;
        }
        write!(out, "  {:width$}  {:other_width$}", allocated.get(counts), allocated.get(!counts))?;
        writeln!(out, "  {}", sites.name(sites.site(index)))?;
        let max_frames = if depth == 0 { usize::MAX } else { depth };
        for frame in sites.stack(index).take(max_frames).skip(1) {
            writeln!(out, "{:60}{}", "", sites.name(sites.site(frame)))?;
        }
    }
    if !rows.is_empty() {
        writeln!(out)?;
    }
    let Totals { allocated, unfreed } = totals;
    write!(out, "      ")?;
    for (counts, width) in [(counts, width), (!counts, other_width)] {
        let (amount, all) = (unfreed.get(counts), allocated.get(counts));
        write!(out, "  {amount:width$}  {:6.2}", percent_or_zero(amount, all))?;
    }
    writeln!(out, "  {:width$}  {:other_width$}  total", allocated.get(counts), allocated.get(!counts))
}

#[cfg(test)]
mod tests;
