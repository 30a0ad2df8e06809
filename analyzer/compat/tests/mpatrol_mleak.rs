//! Compares mleak's view with the output of mleak 1.3.
//!
//! The original log does not exist any more. `basic.log` was made from mleak's output. It has an
//! `ALLOC:` entry for each block, followed by another block that is freed.

use heaptape_compat::mleak::{Options, view};
use std::fs;
use std::path::Path;

fn golden(name: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/mpatrol").join(name)).unwrap()
}

#[test]
fn unfreed_blocks_equal_mleaks() {
    let log = golden("basic.log");
    let (entries, _) = log.split_once("unfreed allocations: ").unwrap();
    let (_, list) = log.split_once("total errors:      0\n").unwrap();
    // From the entries, from the list at the end of the log, and from both.
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
