//! mleak's view against what mleak 1.3 printed.
//!
//! The log that it read was not kept; `basic.log` was made from its output: each block once as an `ALLOC:` entry, with
//! another one beside it that is freed.

use heaptape_analyzer::compat::mleak::{Options, view};
use std::fs;
use std::path::Path;

fn golden(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/mpatrol").join(name)).unwrap()
}

#[test]
fn unfreed_blocks_are_as_printed() {
    let log = golden("basic.log");
    let (entries, _) = log.split_once("unfreed allocations: ").unwrap();
    let (_, list) = log.split_once("total errors:      0\n").unwrap();
    // From the entries, from the library's own list, and from both.
    for (log, ignore) in [(log.as_str(), false), (&log, true), (entries, false), (list, false)] {
        for (name, max_stack) in
            [("basic.mleak.txt", None), ("basic.mleak-n1.txt", Some(1)), ("basic.mleak-n0.txt", Some(0))]
        {
            let mut out = Vec::new();
            view(log.as_bytes(), &Options { ignore, max_stack }, &mut out).unwrap();
            assert_eq!(String::from_utf8(out).unwrap(), golden(name));
        }
    }
}
