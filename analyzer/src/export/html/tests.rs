//! Tests that folding keeps sums, and that packed data can be read back.

use super::gather::{command, gather};
use super::pack::{Columns, json, markup};
use super::read::read;
use super::rows::{FOLDED, Part, Row, bound};
use super::{FRAME, SCRIPTS, STYLE};
use crate::event::Range;
use crate::load;
use crate::model::slices::{Cell, FEW_SLOTS, Sums};
use crate::progress::Progress;
use crate::symbols::{Detail, Symbolizer};

/// Sites 0..count, each with cells in some of 256 slots; site n weighs n.
fn part(count: u32, shift: u32) -> Part {
    let mut part = Part { shift, ..Part::default() };
    for site in 0..count {
        let mut sums = Sums::default();
        for slot in (site % 3..256).step_by(16 + 16 * (site as usize % 4)) {
            let own = Sums { allocs: u64::from(site + slot), bytes: u64::from(site * 100), left: 1, ..Sums::default() };
            part.cells.push(Cell { site, slot, sums: own });
            sums.add(&own);
        }
        part.rows.push(Row { site, sums, peak_bytes: u64::from(site), ..Row::default() });
    }
    part
}

fn totals(parts: &[Part]) -> (Sums, Sums, u64) {
    let (mut rows, mut cells, mut peak) = (Sums::default(), Sums::default(), 0);
    for part in parts {
        part.rows.iter().for_each(|row| rows.add(&row.sums));
        part.rows.iter().for_each(|row| peak += row.peak_bytes);
        part.cells.iter().for_each(|cell| cells.add(&cell.sums));
    }
    (rows, cells, peak)
}

#[test]
fn folded_rows_are_still_counted() {
    let mut parts = [part(50, 2), part(200, 3), part(3, 2)];
    let before = totals(&parts);
    bound(&mut parts, 100, 500, |_, site| site / 2);
    assert_eq!(totals(&parts), before);
    let rows: usize = parts.iter().map(|part| part.rows.len()).sum();
    assert!(rows <= 100, "{rows}");
    // Small stacks are shown with their callers, not all as one.
    assert!(parts[1].rows.iter().any(|row| row.site > FOLDED), "{:?}", parts[1].rows);
    assert!(parts.iter().map(|part| part.cells.len()).sum::<usize>() <= 500);
    assert!(parts.iter().all(|part| part.shift == parts[0].shift && part.shift > 3));
    // There are enough slots for ranges to be useful.
    let last = parts.iter().flat_map(|part| &part.cells).map(|cell| cell.slot as usize).max();
    assert!(last >= Some(FEW_SLOTS / 2), "{last:?}");
    // The largest rows stay separate.
    assert!(parts[1].rows.iter().any(|row| row.site == 196));
    let folded: u64 = parts.iter().map(|part| part.folded).sum();
    // A second time: rows that are folded already are not counted again.
    bound(&mut parts, 20, 100, |_, site| site / 2);
    assert_eq!(totals(&parts), before);
    let again: u64 = parts.iter().map(|part| part.folded).sum();
    let left: usize = parts.iter().flat_map(|part| &part.rows).filter(|row| row.site & FOLDED == 0).count();
    assert!(folded < again && again + left as u64 == 253, "{folded} {again} {left}");
}

#[test]
fn widening_ends_at_one_slot_and_at_no_cells() {
    let mut parts = [part(300, 0)];
    bound(&mut parts, 1000, 10, |_, _| 0);
    assert!(parts[0].cells.len() <= 10, "{:?}", parts[0].cells);
    bound(&mut [], 10, 10, |_, _| 7);
    bound(&mut [Part::default()], 0, 0, |_, _| 7);
    // A loop of callers, which no valid file has, ends.
    bound(&mut [part(9, 0)], 2, 10, |_, site| site + 1);
}

#[test]
fn columns_round_trip() {
    let numbers = [0, 1, 127, 128, 300, 1 << 53, u64::MAX];
    for length in 0..numbers.len() {
        let mut columns = Columns::default();
        columns.put("a", numbers[..length].iter().copied());
        columns.put("b", [7, 8].into_iter());
        let page = format!(
            "<x id=\"data\">{{\"columns\":[[\"a\",{length}],[\"b\",2]]}}</script><x id=\"strings\">{}</script>\
             <x id=\"columns\">{}</script>",
            super::pack::packed(b"[\"\",\"x\"]"),
            columns.packed()
        );
        let held = read(&page).unwrap();
        assert_eq!((&held.columns["a"][..], &held.columns["b"][..]), (&numbers[..length], &[7, 8][..]));
        assert_eq!(held.strings, ["", "x"]);
    }
}

#[test]
fn strings_of_a_recording_are_never_markup() {
    let hostile = "</script><script>alert(1)</script><!--\u{202e}&\"'";
    let text = json(&[hostile]).unwrap();
    assert!(!text.contains('<') && !text.contains('\u{202e}'), "{text}");
    let back: Vec<String> = serde_json::from_str(&text).unwrap();
    assert_eq!(back[0], hostile.replace('\u{202e}', "\u{fffd}"));
    assert!(!markup(hostile).contains(['<', '>', '"', '\'', '\u{202e}']));
    assert_eq!(command(&["x".repeat(5000)]).chars().count(), 2001);
}

/// The script shows data as text only, and asks for nothing from outside.
#[test]
fn the_script_can_neither_make_markup_nor_fetch() {
    for script in SCRIPTS {
        for forbidden in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "Function(",
            "fetch(",
            "XMLHttpRequest",
            "WebSocket",
            "import(",
            "</script",
            "<!--",
            "http:",
            "https:",
            ".src",
            "EventSource",
        ] {
            let found = script.find(forbidden).map(|at| &script[at..script.len().min(at + 60)]);
            assert!(found.is_none_or(|line| line.starts_with("http://www.w3.org/2000/svg")), "{found:?}");
        }
    }
    assert!(!STYLE.contains("url(") && !STYLE.contains("@import") && !STYLE.contains("</"));
    assert!(FRAME.contains("default-src 'none'") && !FRAME.contains("unsafe-inline"));
}

#[test]
fn line_of_mapped_memory_ends_with_what_is_mapped() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/tape/v1/mappings");
    let recording = load::open(path.as_ref()).expect("the recording");
    let processes: Vec<&load::Process> = recording.processes.iter().collect();
    let (mut symbols, progress) = (Symbolizer::new(Detail::Quick), Progress::new("reading"));
    let page = gather(std::slice::from_ref(&recording), &processes, &Range::default(), &mut symbols, &progress);
    let [parent, child] = &page.processes[..] else { panic!("{:?}", page.processes) };
    // The program's own count of pages. The child maps after most of the run.
    assert_eq!((parent.mapped.len(), parent.mapped.last()), (256, Some(&(111 * 4096))), "{:?}", parent.mapped);
    assert!(child.mapped[0] == 0 && child.mapped.contains(&(13 * 4096)), "{:?}", child.mapped);
}
