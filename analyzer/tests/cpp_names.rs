//! C++ names beside c++filt's answers. `scripts/cpp-names` makes the whole table of some 88,000
//! names and runs this test on it; `tests/golden/names/README.md` tells where the sample is from.

use flate2::read::GzDecoder;
use heaptape_analyzer::symbols::{Style, demangle_in};
use std::io::Read;
use std::path::{Path, PathBuf};

#[test]
fn cpp_names_equal_those_of_cppfilt() {
    let sample = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/names/cpp.txt.gz");
    let path = std::env::var_os("HEAPTAPE_CPP_NAMES").map_or(sample, PathBuf::from);
    let mut table = String::new();
    GzDecoder::new(std::fs::File::open(path).unwrap()).read_to_string(&mut table).unwrap();
    let (mut names, mut differ) = (0, Vec::new());
    for line in table.lines() {
        let (mangled, plain) = line.split_once('\t').unwrap();
        names += 1;
        let ours = demangle_in(Style::Filter, mangled);
        if ours != plain {
            differ.push(format!("{mangled}\n  c++filt {plain}\n  ours    {ours}"));
        }
    }
    println!("{} of {names} names differ", differ.len());
    assert!(names >= 2000);
    assert!(
        differ.len() * 1000 <= names,
        "{} of {names}:\n{}",
        differ.len(),
        differ[..differ.len().min(20)].join("\n")
    );
}
