//! Converts gmon.out files.

use super::{ConvertOptions, Converted, addresses, format_error};
use crate::export::Impossible;
use crate::export::{self, Error};
use crate::missing::Missing;
use crate::unpack::OpenedFile;
use heaptape_formats::Abi;
use heaptape_formats::gmon::{self, Form, Hints, Union};
use std::collections::BTreeMap;

/// The flavour and the form of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    flavour: Abi,
    form: Form,
}

/// Returns the sum of all files, and the head of the first one.
fn read(files: &[OpenedFile], converted: &mut Converted) -> Result<(Union, Head), Error> {
    let mut union = Union::default();
    let mut first = None;
    for file in files {
        let gmon = gmon::read(&file.bytes, Hints::default()).map_err(format_error(file))?;
        converted.missing.extend(
            gmon.truncation().map(|error| Missing::Truncated { name: file.name.clone(), at: error.to_string() }),
        );
        converted.notes.extend(gmon.notes.iter().map(|note| format!("{}: {note}", file.name)));
        union.add(&gmon).map_err(format_error(file))?;
        first.get_or_insert(Head { flavour: gmon.abi, form: gmon.form });
    }
    for sum in &union.sums {
        converted.totals.add("samples", sum.bins.iter().map(|&bin| u128::from(bin)).sum());
    }
    Ok((union, first.unwrap_or(Head { flavour: Abi::LE64, form: Form::Magic })))
}

/// Sums the files, and changes form and flavour if requested.
///
/// # Errors
/// Returns an error if a file cannot be read, if the files are incompatible, or if the form cannot
/// represent their data.
pub(super) fn to_gmon(files: &[OpenedFile], options: &ConvertOptions) -> Result<Converted, Error> {
    let mut converted = Converted::default();
    let (union, head) = read(files, &mut converted)?;
    let target_form = options.form.unwrap_or(if head.form == Form::LdProfile { Form::Magic } else { head.form });
    let flavour = options.export.flavour.unwrap_or(head.flavour);
    if flavour.word_size == 4 && is_wide(&union) {
        return Err(Impossible::WideAddresses.into());
    }
    if target_form == Form::Bsd && union.rate() != gmon::layout::BSD_RATE {
        converted.notes.push(format!("the old BSD form does not store the rate, {}", union.rate()));
    }
    let is_bsd = matches!(target_form, Form::Bsd | Form::Bsd44);
    if is_bsd && union.unit.is_some_and(|unit| unit.dimension() != b"seconds") {
        converted.notes.push(format!("the {} form does not store the dimension", target_form.name()));
    }
    if !is_bsd {
        export::object_table::fits(std::iter::empty(), union.arcs.iter().map(|arc| arc.count))
            .map_err(|error| Error::Format(format!("{} form", target_form.name()), error))?;
    }
    // One whole file that stays what it is is copied: the order of its records, and what MinGW
    // leaves in the header from its stack.
    let copied = match files {
        [file] if head == (Head { flavour, form: target_form }) => gmon::read(&file.bytes, Hints::default()).ok(),
        _ => None,
    };
    let written = match copied.filter(|gmon| gmon.truncation().is_none()) {
        Some(gmon) => gmon::write(&gmon),
        None => union.to_gmon(target_form, flavour).and_then(|gmon| gmon::write(&gmon)),
    };
    let bytes = written.map_err(|error| Error::Format(format!("{} form", target_form.name()), error))?;
    converted.files.push(("gmon.out".into(), bytes));
    Ok(converted)
}

/// Returns whether any address has more than 32 bits.
fn is_wide(union: &Union) -> bool {
    let wide = |address: u64| address > u64::from(u32::MAX);
    union.sums.iter().any(|sum| wide(sum.high)) || union.arcs.iter().any(|arc| wide(arc.from) || wide(arc.to))
}

/// Converts the histograms to counts at the first address of each bin.
///
/// # Errors
/// Returns an error if a file cannot be read, or if there is no histogram.
pub(super) fn to_dcpi(files: &[OpenedFile], options: &ConvertOptions) -> Result<Converted, Error> {
    let mut converted = Converted::default();
    let (union, _) = read(files, &mut converted)?;
    let Some(unit) = union.unit else {
        return Err(Impossible::NoHistogram.into());
    };
    let mut amounts: BTreeMap<u64, u64> = BTreeMap::new();
    for sum in &union.sums {
        let (span, bins) = (u128::from(sum.high.saturating_sub(sum.low)), sum.bins.len().max(1) as u128);
        for (index, &amount) in sum.bins.iter().enumerate().filter(|(_, amount)| **amount > 0) {
            let address = sum.low.saturating_add((index as u128 * span / bins) as u64);
            let count = amounts.entry(address).or_default();
            *count = count.saturating_add(amount);
        }
    }
    let text = String::from_utf8_lossy(unit.dimension()).into_owned();
    let event = if text.trim().is_empty() { "samples".to_string() } else { text.trim().replace('\n', " ") };
    let samples = std::mem::take(&mut converted.totals).get("samples");
    converted.totals.add(&event, samples);
    let rate = union.rate().to_string();
    let extra_fields = [("heaptape-rate", rate.as_str())];
    addresses::profiles(
        &event,
        &amounts,
        if union.rate() == 1 { &[] } else { &extra_fields },
        options.stride.unwrap_or(1),
        &mut converted,
    )?;
    if converted.files.is_empty() {
        return Err(Impossible::EmptyHistograms.into());
    }
    if !union.arcs.is_empty() {
        converted.notes.push(format!("{} arcs of the call graph cannot be represented in DCPI", union.arcs.len()));
    }
    if !union.blocks.is_empty() {
        converted.notes.push(format!("{} counts of basic blocks cannot be represented in DCPI", union.blocks.len()));
    }
    Ok(converted)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(bytes: &[u8], options: &ConvertOptions) -> Vec<u8> {
        let unpacked = crate::unpack::unpack("gmon.out".into(), bytes.to_vec(), crate::unpack::Limit::DEFAULT);
        let files = [unpacked.expect("a file")];
        to_gmon(&files, options).expect("it converts").files.remove(0).1
    }

    #[test]
    fn one_file_that_stays_what_it_is_is_copied() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/gmon");
        let folders = ["alloc", "bsd", "hand", "pe", "real"].map(|name| std::fs::read_dir(folder.join(name)));
        let files = folders.into_iter().flat_map(|files| files.expect("golden files").flatten());
        let mut copied = [0; 2];
        for path in files.map(|entry| entry.path()) {
            let bytes = std::fs::read(&path).expect("a file");
            let Some(gmon) = gmon::read(&bytes, Hints::default()).ok().filter(|gmon| gmon.truncation().is_none())
            else {
                continue;
            };
            let spare_at = match gmon.form {
                Form::Magic => Some(8),
                Form::Bsd44 => Some(2 * usize::from(gmon.abi.word_size) + 12),
                Form::LdProfile => continue,
                Form::Bsd => None,
            };
            assert!(converted(&bytes, &ConvertOptions::default()) == bytes, "{}", path.display());
            if let Some(at) = spare_at {
                let mut spare = bytes.clone();
                spare[at..at + 12].copy_from_slice(b"left by MinG");
                assert!(converted(&spare, &ConvertOptions::default()) == spare, "{}", path.display());
            }
            copied[usize::from(gmon.form == Form::Bsd44)] += 1;
        }
        assert!(copied[0] >= 40 && copied[1] >= 4, "{copied:?}");
    }
}
