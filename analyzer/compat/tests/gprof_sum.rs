//! Tests `-s` and `-y`, which write files into the working directory. This is one test, because the
//! working directory is a property of the process.

use heaptape_compat::gprof::{self, Options};
use heaptape_formats::gmon::{self, Hints, Union};
use std::path::Path;

fn run(arguments: &[&str]) -> String {
    let arguments: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    let mut out = Vec::new();
    gprof::run(&Options::parse(&arguments).unwrap(), &mut out, &mut std::io::sink()).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn files_are_written() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/gmon").canonicalize().unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::env::set_current_dir(folder.path()).unwrap();
    let path = |name: &str| golden.join(name).to_str().unwrap().to_owned();
    let image = path("exe/calls64");

    // The sum of three runs equals that of `gprof -s`, except for 12 bytes of uninitialized memory.
    let out = run(&["-s", &image, &path("real/run1.gmon"), &path("real/run2.gmon"), &path("real/run3.gmon")]);
    assert_eq!(out, "");
    let mut want = std::fs::read(path("real/sum.gmon")).unwrap();
    want[8..20].fill(0);
    assert!(std::fs::read("gmon.sum").unwrap() == want, "gmon.sum is not real/sum.gmon");

    // A sum above 16 and 32 bits keeps its value.
    run(&["-s", &image, &path("hand/same3.gmon")]);
    let read = |bytes: &[u8]| {
        let mut union = Union::default();
        union.add(&gmon::read(bytes, Hints::default()).unwrap()).unwrap();
        union
    };
    let (sum, source) =
        (read(&std::fs::read("gmon.sum").unwrap()), read(&std::fs::read(path("hand/same3.gmon")).unwrap()));
    assert_eq!(sum.sums, source.sums);
    assert_eq!(sum.arcs.iter().map(|arc| arc.count).sum::<u64>(), 8_000_000_000);

    // The BSD forms equal those of the real tool.
    for (form, file, want) in [
        ("bsd", "bsd/old-64.gmon", "bsd/gprof-written-bsd-64.gmon"),
        ("4.4bsd", "bsd/bsd44-64.gmon", "bsd/gprof-written-4.4bsd-64.gmon"),
    ] {
        run(&["-s", "-O", form, &image, &path(file)]);
        let (mut ours, mut theirs) = (std::fs::read("gmon.sum").unwrap(), std::fs::read(path(want)).unwrap());
        if form == "4.4bsd" {
            ours[28..40].fill(0);
            theirs[28..40].fill(0);
        }
        assert!(ours == theirs, "{form}");
    }

    // The annotated source goes into a separate file.
    let out = run(&["-b", "-A", "-y", "-I", &path("src"), &image, &path("real/calls64.gmon")]);
    assert_eq!(out, "");
    let annotated = std::fs::read_to_string("calls.c-ann").unwrap();
    assert!(annotated.contains("        2100 -> int leaf(int x)"), "{annotated}");
    assert!(annotated.contains("     5215   Total number of line executions\n"));
}
