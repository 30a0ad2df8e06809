//! From gmon.out.

use super::{ConvertOptions, Converted, addresses, failed};
use crate::export::{self, Error};
use crate::missing::Missing;
use crate::unpack::OpenedFile;
use heaptape_formats::Flavour;
use heaptape_formats::gmon::{self, Form, Hints, Union};
use std::collections::BTreeMap;

/// All files together, and the flavour and form of the first.
fn read(files: &[OpenedFile], made: &mut Converted) -> Result<(Union, Flavour, Form), Error> {
    let mut union = Union::default();
    let mut first = None;
    for file in files {
        let gmon = gmon::read(&file.bytes, Hints::default()).map_err(failed(file))?;
        made.missing.extend(gmon.cut().map(|error| Missing::Cut { name: file.name.clone(), at: error.to_string() }));
        made.notes.extend(gmon.notes.iter().map(|note| format!("{}: {note}", file.name)));
        union.add(&gmon).map_err(failed(file))?;
        first.get_or_insert((gmon.flavour, gmon.form));
    }
    for sum in &union.sums {
        made.totals.add("samples", sum.bins.iter().map(|&bin| u128::from(bin)).sum());
    }
    let (flavour, form) = first.unwrap_or((Flavour::LE64, Form::Magic));
    Ok((union, flavour, form))
}

/// The sum, in another form or flavour.
///
/// # Errors
/// When a file cannot be read, does not fit the others, or the form has no place for what they hold.
pub fn to_gmon(files: &[OpenedFile], options: &ConvertOptions) -> Result<Converted, Error> {
    let mut made = Converted::default();
    let (union, flavour, form) = read(files, &mut made)?;
    let wanted = options.form.unwrap_or(if form == Form::LdProfile { Form::Magic } else { form });
    let flavour = options.export.flavour.unwrap_or(flavour);
    if flavour.word == 4 && is_wide(&union) {
        return Err(Error::Impossible("addresses of more than 32 bits have no place in a 32-bit file".into()));
    }
    if wanted == Form::Bsd && union.rate() != gmon::layout::BSD_RATE {
        made.notes.push(format!("the old BSD form does not say its rate, {}", union.rate()));
    }
    let is_bsd = matches!(wanted, Form::Bsd | Form::Bsd44);
    if is_bsd && union.unit.is_some_and(|unit| unit.dimension() != b"seconds") {
        made.notes.push(format!("the {} form does not say its dimension", wanted.name()));
    }
    if !is_bsd {
        export::gmon::fits(std::iter::empty(), union.arcs.iter().map(|arc| arc.count))
            .map_err(|error| Error::Format(format!("{} form", wanted.name()), error))?;
    }
    let written = union.to_gmon(wanted, flavour).and_then(|gmon| gmon::write(&gmon));
    let bytes = written.map_err(|error| Error::Format(format!("{} form", wanted.name()), error))?;
    made.files.push(("gmon.out".into(), bytes));
    Ok(made)
}

fn is_wide(union: &Union) -> bool {
    let wide = |address: u64| address > u64::from(u32::MAX);
    union.sums.iter().any(|sum| wide(sum.high)) || union.arcs.iter().any(|arc| wide(arc.from) || wide(arc.to))
}

/// Counts at the first address of each bin.
///
/// # Errors
/// When a file cannot be read, or there is no histogram.
pub fn to_dcpi(files: &[OpenedFile], options: &ConvertOptions) -> Result<Converted, Error> {
    let mut made = Converted::default();
    let (union, ..) = read(files, &mut made)?;
    let Some(unit) = union.unit else {
        return Err(Error::Impossible("there is no histogram, and DCPI holds nothing else".into()));
    };
    let mut amounts: BTreeMap<u64, u64> = BTreeMap::new();
    for sum in &union.sums {
        let (span, bins) = (u128::from(sum.high.saturating_sub(sum.low)), sum.bins.len().max(1) as u128);
        for (place, &amount) in sum.bins.iter().enumerate().filter(|(_, amount)| **amount > 0) {
            let address = sum.low.saturating_add((place as u128 * span / bins) as u64);
            let count = amounts.entry(address).or_default();
            *count = count.saturating_add(amount);
        }
    }
    let text = String::from_utf8_lossy(unit.dimension()).into_owned();
    let event = if text.trim().is_empty() { "samples".to_string() } else { text.trim().replace('\n', " ") };
    let samples = std::mem::take(&mut made.totals).get("samples");
    made.totals.add(&event, samples);
    let rate = union.rate().to_string();
    let further = [("heaptape-rate", rate.as_str())];
    addresses::profiles(
        &event,
        &amounts,
        if union.rate() == 1 { &[] } else { &further },
        options.stride.unwrap_or(1),
        &mut made,
    )?;
    if made.files.is_empty() {
        return Err(Error::Impossible("the histograms are empty".into()));
    }
    if !union.arcs.is_empty() {
        made.notes.push(format!("{} arcs of the call graph have no place in DCPI", union.arcs.len()));
    }
    if !union.blocks.is_empty() {
        made.notes.push(format!("{} counts of basic blocks have no place in DCPI", union.blocks.len()));
    }
    Ok(made)
}
