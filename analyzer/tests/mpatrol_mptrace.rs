//! Compares mptrace's view with the output of mptrace 1.4.
//!
//! The real 64-bit mptrace misreads numbers from 2^31 on. Its output is reproduced from records in
//! which every number is replaced by the number that it reads ([`misread::record`]). The output for
//! the original records is compared with the same text, in which only those numbers may differ.

use heaptape_analyzer::mptrace::{Hatf, Options, Simulation, View};
use heaptape_formats::mtrc::Reader;
use std::fs;
use std::path::{Path, PathBuf};

use crate::misread;

const NAMES: [&str; 11] = [
    "basic",
    "basic32",
    "basic32-be",
    "deep",
    "names",
    "realloc",
    "recursion",
    "recursion-be64",
    "sizes",
    "threads",
    "usedebug",
];

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/mpatrol")
}

struct Printed {
    out: String,
    warnings: String,
    hatf: String,
    simulation: String,
}

fn print(file: &str, verbose: bool, as_misread: bool) -> Printed {
    let bytes = fs::read(golden().join(file)).unwrap();
    let mut reader = Reader::new(&bytes).unwrap();
    let word = reader.header().abi.word_size;
    let (mut out, mut warnings, mut hatf, mut simulation) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut view =
        View::new(Options { verbose, source: verbose, address_bytes: word }, &mut out, &mut warnings).unwrap();
    view.hatf(Hatf::new(&file.replace(".mtrc", ".hatf"), &mut hatf).unwrap());
    view.simulation(Simulation::new(file, &mut simulation).unwrap());
    loop {
        match reader.next() {
            Ok(Some(record)) if as_misread && word == 8 => view.record(&misread::record(&record)).unwrap(),
            Ok(Some(record)) => view.record(&record).unwrap(),
            Ok(None) => break,
            Err(error) => panic!("{file}: {error}"),
        }
    }
    view.finish().unwrap();
    let [out, warnings, hatf, simulation] =
        [out, warnings, hatf, simulation].map(|text| String::from_utf8(text).unwrap());
    Printed { out, warnings, hatf, simulation }
}

fn assert_same(name: &str, ours: &str, theirs: &str) {
    for (number, (our, their)) in ours.lines().zip(theirs.lines()).enumerate() {
        assert_eq!(our, their, "{name} line {}", number + 1);
    }
    assert_eq!(ours, theirs, "{name}");
}

fn text(file: &str) -> String {
    fs::read_to_string(golden().join(file)).unwrap()
}

#[test]
fn misread_numbers_of_mptrace_are_reproduced() {
    assert_eq!(misread::number(0x7fff_f7a0_1234), 0xffff_ffff_f7a0_7ffc);
    assert_eq!(misread::number(0x7f69_bb1d_c000), 0xffff_ffff_bb1d_ff68);
    assert_eq!((misread::number(1 << 31), misread::number(1 << 32)), (0xffff_ffff_8000_0000, 0));
    assert_eq!((misread::number(0x7fff_ffff), misread::number(0x1_2345_6789)), (0x7fff_ffff, 0x2345_6789));
}

#[test]
fn events_and_statistics_equal_mptraces() {
    for name in NAMES {
        let file = format!("{name}.mtrc");
        let ours = print(&file, true, true);
        assert_same(&format!("{name} -vs"), &ours.out, &text(&format!("{name}.mptrace-vs.txt")));
        assert_eq!(ours.warnings, "");
        assert_same(name, &print(&file, false, true).out, &text(&format!("{name}.mptrace.txt")));
        assert_same(name, &ours.hatf, &text(&format!("{name}.hatf")));
        let rows: String =
            ours.simulation.lines().filter(|line| line.starts_with("    {")).map(|line| format!("{line}\n")).collect();
        assert_same(name, &rows, &text(&format!("{name}.simrows.txt")));
    }
}

#[test]
fn output_differs_only_in_misread_numbers() {
    let mut differing = 0;
    for name in NAMES {
        let ours = print(&format!("{name}.mtrc"), true, false).out;
        let theirs = text(&format!("{name}.mptrace-vs.txt"));
        assert_eq!(ours.lines().count(), theirs.lines().count());
        for (our, their) in ours.lines().zip(theirs.lines()).filter(|(our, their)| our != their) {
            let (ours, theirs): (Vec<_>, Vec<_>) =
                (our.split_whitespace().collect(), their.split_whitespace().collect());
            assert_eq!(ours.len(), theirs.len());
            for (our, their) in ours.into_iter().zip(theirs).filter(|(our, their)| our != their) {
                let number = |word: &str| match word.strip_prefix("0x") {
                    Some(digits) => u64::from_str_radix(digits, 16).unwrap(),
                    None => word.parse().unwrap(),
                };
                assert_eq!(misread::number(number(our)), number(their), "{name}");
                differing += 1;
            }
        }
    }
    assert!(differing > 200);
}
