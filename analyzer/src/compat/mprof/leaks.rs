//! MEMORY LEAKS: call stacks, told apart by their innermost frames, that left something unfreed.

use super::cells::{Figures, percent, percent_or_zero};
use super::sites::{Identity, Sites};
use super::{Options, Totals};
use std::collections::HashMap;
use std::io::{self, Write};

/// For each site (by place) the number of the group that its innermost `depth` frames make; equal frames, equal number.
///
/// A stack's group is that of its innermost frame and of its caller's group one frame shorter, so each level takes one pass
/// over the sites instead of a walk for each of them.
fn groups(sites: &Sites, depth: usize) -> Vec<u32> {
    let all = &sites.profile.sites;
    let deepest = depths(sites).into_iter().max().unwrap_or(0);
    if depth == 0 || depth >= deepest {
        return whole_stacks(sites);
    }
    let mut shorter = vec![0; all.len()];
    for _ in 0..depth {
        let mut numbers: HashMap<(Identity, u32), u32> = HashMap::new();
        shorter = all
            .iter()
            .enumerate()
            .map(|(place, site)| {
                let caller = sites.caller(place).map_or(u32::MAX, |caller| shorter[caller]);
                let next = numbers.len() as u32;
                *numbers.entry((sites.identity(site), caller)).or_insert(next)
            })
            .collect();
    }
    shorter
}

/// Places with callers before callees.
fn callers_first(sites: &Sites) -> Vec<usize> {
    let all = &sites.profile.sites;
    let (mut order, mut done, mut path) = (Vec::with_capacity(all.len()), vec![false; all.len()], Vec::new());
    for start in 0..all.len() {
        let mut place = Some(start);
        while let Some(at) = place.filter(|&at| !done[at]) {
            done[at] = true;
            path.push(at);
            place = sites.caller(at);
        }
        order.extend(path.drain(..).rev());
    }
    order
}

/// Frames of each site's stack.
fn depths(sites: &Sites) -> Vec<usize> {
    let mut depths = vec![0; sites.profile.sites.len()];
    for place in callers_first(sites) {
        depths[place] = 1 + sites.caller(place).map_or(0, |caller| depths[caller]);
    }
    depths
}

fn whole_stacks(sites: &Sites) -> Vec<u32> {
    let mut groups = vec![0; sites.profile.sites.len()];
    let mut numbers: HashMap<(Identity, u32), u32> = HashMap::new();
    for place in callers_first(sites) {
        let caller = sites.caller(place).map_or(u32::MAX, |caller| groups[caller]);
        let next = numbers.len() as u32;
        groups[place] = *numbers.entry((sites.identity(sites.site(place)), caller)).or_insert(next);
    }
    groups
}

fn rows(sites: &Sites, depth: usize) -> Vec<(usize, Figures)> {
    let (groups, runs) = (groups(sites, depth), sites.runs());
    let mut rows: Vec<(usize, Figures)> = Vec::new();
    let mut row_of: HashMap<(u32, usize), usize> = HashMap::new();
    for (place, figures) in sites.allocating() {
        let row = *row_of.entry((groups[place], runs[place])).or_insert(rows.len());
        match rows.get_mut(row) {
            Some((_, sum)) => *sum += &figures,
            None => rows.push((place, figures)),
        }
    }
    rows
}

pub fn print(sites: &Sites, options: &Options, totals: &Totals, out: &mut dyn Write) -> io::Result<()> {
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
    for &(place, ref figures) in rows.iter().rev() {
        let (allocated, unfreed) = (figures.allocated.all(), figures.unfreed.all());
        write!(out, "{:6.2}", percent(unfreed.get(counts), totals.unfreed.get(counts)))?;
        for (counts, width) in [(counts, width), (!counts, other_width)] {
            let (part, all) = (unfreed.get(counts), allocated.get(counts));
            write!(out, "  {part:width$}  {:6.2}", percent(part, all))?;
        }
        write!(out, "  {:width$}  {:other_width$}", allocated.get(counts), allocated.get(!counts))?;
        writeln!(out, "  {}", sites.name(sites.site(place)))?;
        let most = if depth == 0 { usize::MAX } else { depth };
        for frame in sites.stack(place).take(most).skip(1) {
            writeln!(out, "{:60}{}", "", sites.name(sites.site(frame)))?;
        }
    }
    if !rows.is_empty() {
        writeln!(out)?;
    }
    let Totals { allocated, unfreed } = totals;
    write!(out, "      ")?;
    for (counts, width) in [(counts, width), (!counts, other_width)] {
        let (part, all) = (unfreed.get(counts), allocated.get(counts));
        write!(out, "  {part:width$}  {:6.2}", percent_or_zero(part, all))?;
    }
    writeln!(out, "  {:width$}  {:other_width$}  total", allocated.get(counts), allocated.get(!counts))
}
