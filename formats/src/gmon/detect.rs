//! Detection of form and ABI. Only the version word shows the byte order. The pointer size shows in
//! a walk over the records: a wrong one leads to bytes that are not a tag, or past the end.

use super::layout::*;
use crate::Abi;

/// Detects form and ABI, and keeps those that are passed in. Returns `None` if no form fits.
pub(super) fn detect(bytes: &[u8], form: Option<Form>, abi: Option<Abi>) -> Option<(Form, Abi)> {
    let candidates: Vec<Abi> = abi.map_or(Abi::ALL.to_vec(), |given| vec![given]);
    if matches!(form, Some(Form::Magic | Form::LdProfile)) || (form.is_none() && bytes.starts_with(COOKIE)) {
        Some(detect_magic(bytes, candidates))
    } else {
        detect_bsd(bytes, form, &candidates)
    }
}

fn detect_magic(bytes: &[u8], mut candidates: Vec<Abi>) -> (Form, Abi) {
    let version = |abi: &Abi| bytes.get(4..8).map_or(u64::MAX, |bytes| abi.number(bytes));
    // A version that is unknown in both byte orders is left to the reader, which reports it.
    if candidates.iter().any(|abi| is_version(version(abi))) {
        candidates.retain(|abi| is_version(version(abi)));
    }
    if let Some(&first) = candidates.iter().find(|abi| version(abi) == u64::from(LD_PROFILE_VERSION)) {
        let word_size = if candidates.len() == 1 { first.word_size } else { ld_profile_word(bytes) };
        return (Form::LdProfile, Abi { word_size, ..first });
    }
    let best = candidates.into_iter().max_by_key(|&f| (walk_magic(bytes, f), f.word_size == 8, !f.big_endian));
    (Form::Magic, best.unwrap_or(Abi::LE64))
}

fn is_version(version: u64) -> bool {
    version <= u64::from(VERSION) || version == u64::from(LD_PROFILE_VERSION)
}

fn detect_bsd(bytes: &[u8], form: Option<Form>, candidates: &[Abi]) -> Option<(Form, Abi)> {
    let forms = [Form::Bsd44, Form::Bsd].into_iter().filter(|&f| form.is_none_or(|form| form == f));
    let fit = |form| candidates.iter().map(move |&abi| (walk_bsd(bytes, form, abi), form, abi));
    let (fit, form_found, found) =
        forms.flat_map(fit).max_by_key(|&(fit, _, f)| (fit, f.word_size == 8, !f.big_endian))?;
    // Without a cookie nearly any bytes could be such a file, so only plausible ones are accepted.
    // If the caller names the form, all are: the reader reports what is wrong.
    let enough = if form.is_none() { PLAUSIBLE } else { 0 };
    (fit >= enough).then_some((form_found, found))
}

/// Returns the pointer size of an `ld.so` profile, whose dimension follows the addresses.
fn ld_profile_word(bytes: &[u8]) -> u8 {
    let dimen = |word: usize| bytes.get(HEADER + 4 + 2 * word + 8..).and_then(|rest| rest.get(..15));
    let fits = |word| dimen(word).is_some_and(is_text);
    if !fits(8) && fits(4) { 4 } else { 8 }
}

/// Returns whether the bytes are printable up to a first zero, and zeros from there.
fn is_text(padded: &[u8]) -> bool {
    let text = text(padded);
    !text.is_empty()
        && text.iter().all(|byte| (0x20..0x7f).contains(byte))
        && padded[text.len()..].iter().all(|&b| b == 0)
}

/// Returns how far the records of the magic form can be walked: 3 to the end of the file, 2 into a
/// truncated record, 1 and 0 into something else. A first record that looks like a histogram has
/// precedence over that.
fn walk_magic(bytes: &[u8], abi: Abi) -> (bool, u8) {
    let sizes = Sizes::of(abi);
    let number = |at: usize| bytes.get(at..at + 4).map(|bytes| abi.number(bytes));
    let plausible = bytes.get(HEADER) == Some(&TAG_HISTOGRAM) && {
        let dimen = HEADER + 1 + 2 * sizes.word + 8;
        bytes.get(dimen..dimen + 15).is_some_and(is_text)
    };
    let mut at = HEADER;
    let mut records = 0u64;
    let quality = loop {
        if at >= bytes.len() {
            break if at == bytes.len() { 3 } else { 2 };
        }
        let body = at + 1;
        let size = match bytes[at] {
            TAG_HISTOGRAM => number(body + 2 * sizes.word).map(|bins| sizes.histogram as u64 + 2 * bins),
            TAG_ARC => Some(sizes.arc as u64),
            TAG_BLOCKS => number(body).map(|blocks| {
                let capacity = ((bytes.len() - body) / sizes.block) as u64;
                let other = blocks.swap_bytes() >> 32;
                4 + sizes.block as u64 * if blocks > capacity && other <= capacity { other } else { blocks }
            }),
            _ => break u8::from(records > 0),
        };
        let Some(size) = size else { break 2 };
        at = body.saturating_add(usize::try_from(size).unwrap_or(usize::MAX));
        records += 1;
    };
    (plausible, quality)
}

/// Result of [`walk_bsd`] from which on bytes without a cookie are accepted as a BSD form.
const PLAUSIBLE: u8 = 5;

/// Returns how well a BSD form fits, from 0 (not at all): the header's length, a possible range of
/// addresses, as many bins as that range can have, bins within the file, complete arcs after them.
fn walk_bsd(bytes: &[u8], form: Form, abi: Abi) -> u8 {
    let sizes = Sizes::of(abi);
    let header = if form == Form::Bsd44 { sizes.bsd44_header } else { sizes.bsd_header };
    let number = |at: usize, size: usize| bytes.get(at..at + size).map(|bytes| abi.number(bytes));
    let (Some(low), Some(high)) = (number(0, sizes.word), number(sizes.word, sizes.word)) else { return 0 };
    let Some(ncnt) = number(2 * sizes.word, 4) else { return 0 };
    if bytes.len() < header || ncnt < header as u64 || low >= high {
        return 0;
    }
    if form == Form::Bsd44 && number(2 * sizes.word + 4, 4) != Some(u64::from(BSD44_VERSION)) {
        return 0;
    }
    let bins = (ncnt - header as u64) / 2;
    let whole = ncnt & !1 <= bytes.len() as u64;
    // C libraries use one bin for 2 to 16 bytes of code.
    let dense = bins > 0 && (1..=1000).contains(&((high - low) / bins));
    let arcs = whole && (bytes.len() as u64 - (ncnt & !1)).is_multiple_of(sizes.bsd_arc as u64);
    1 + 8 * u8::from(form == Form::Bsd44) + 4 * u8::from(dense) + 2 * u8::from(whole) + u8::from(arcs)
}
