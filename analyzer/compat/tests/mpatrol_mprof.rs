//! Compares mprof's view with the output of mprof 1.3.

use heaptape_compat::mprof::{self, Options};
use heaptape_formats::mptl::Profile;
use std::fs;
use std::path::{Path, PathBuf};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/mpatrol")
}

const NAMES: [&str; 13] = [
    "basic",
    "basic32",
    "basic32-be",
    "deep",
    "names",
    "realloc",
    "recorded-cpp",
    "recorded-ls",
    "recorded-sh",
    "recursion",
    "recursion-be64",
    "sizes",
    "threads",
];

fn profile(name: &str) -> Profile {
    Profile::read(&fs::read(golden().join(name)).unwrap()).unwrap().0
}

fn view(profile: &Profile, options: Options) -> String {
    let mut out = Vec::new();
    mprof::view(profile, &options, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

/// Panics with the first line that differs.
fn assert_same(name: &str, ours: &str, theirs: &str) {
    for (number, (our, their)) in ours.lines().zip(theirs.lines()).enumerate() {
        assert_eq!(our, their, "{name} line {}", number + 1);
    }
    assert_eq!(ours, theirs, "{name}");
}

#[test]
fn tables_equal_mprofs() {
    let usual = Options::default();
    let variants = [
        ("mprof", usual),
        ("mprof-a", Options { addresses: true, ..usual }),
        ("mprof-c", Options { counts: true, ..usual }),
        ("mprof-n3", Options { stack_depth: 3, ..usual }),
        ("mprof-n0a", Options { stack_depth: 0, addresses: true, ..usual }),
        ("mprof-v", Options { call_graph: true, ..usual }),
        ("mprof-vc", Options { call_graph: true, counts: true, ..usual }),
    ];
    for name in NAMES {
        for (suffix, options) in variants {
            let file = format!("{name}.{suffix}.txt");
            let theirs = fs::read_to_string(golden().join(&file)).unwrap();
            assert_same(&file, &view(&profile(&format!("{name}.mpt")), options), &theirs);
        }
    }
}

#[test]
fn graphs_equal_mprofs() {
    for name in NAMES {
        let source = format!("{name}.mpt");
        let variants = [
            ("dot", Options::default()),
            ("leaks-counts.dot", Options { leaks: true, counts: true, ..Options::default() }),
        ];
        for (suffix, options) in variants {
            let file = format!("{name}.{suffix}");
            let mut ours = Vec::new();
            mprof::graph(&profile(&source), &options, &source, &mut ours).unwrap();
            assert_same(&file, std::str::from_utf8(&ours).unwrap(), &fs::read_to_string(golden().join(&file)).unwrap());
        }
    }
}

/// Stacks that break off after the last compared frame are equal to longer ones, as for mprof.
#[test]
fn leaks_of_a_depth_are_equal_whether_or_not_their_last_frame_has_a_caller() {
    let mut out = Vec::new();
    mprof::view(&profile("make-breaks.mpt"), &Options::default(), &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    let leaks: Vec<&str> =
        text.split("MEMORY LEAKS").nth(1).unwrap().lines().filter(|line| line.ends_with("xcalloc")).collect();
    assert_eq!(leaks.len(), 1, "{leaks:?}");
    assert!(leaks[0].contains(" 73.78 ") && leaks[0].contains("112592") && leaks[0].contains("356"), "{leaks:?}");
}
