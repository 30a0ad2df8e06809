//! Compares the views of hand-made files, one property each, with the results of the real tools
//! (`edge/RESULTS.txt`).
//!
//! Where the view differs on purpose, the expected text is `edge/NAME.truth.txt`. `docs/mpatrol.md`
//! has the reasons, and so have the comments at each name here.

use heaptape_compat::{mprof, mptrace};
use heaptape_formats::{Ending, mptl::Profile, mtrc};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

#[path = "../../tests/misread/mod.rs"]
mod misread;

fn edge() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/mpatrol/edge")
}

/// The result of a real tool.
#[derive(Default)]
struct Result {
    out: String,
    errors: Vec<String>,
    status: String,
}

/// Parses the results: `### NAME  (command)`, the output, `stderr: ` lines, `exit status N`.
fn results() -> BTreeMap<String, Result> {
    let mut results: BTreeMap<String, Result> = BTreeMap::new();
    let mut name = String::new();
    for line in fs::read_to_string(edge().join("RESULTS.txt")).unwrap().lines() {
        if let Some(rest) = line.strip_prefix("### ") {
            name = rest.split_whitespace().next().unwrap().to_owned();
        }
        let result = results.entry(name.clone()).or_default();
        match line {
            _ if line.starts_with("### ") || !result.status.is_empty() => {}
            _ if line.starts_with("exit status ") => result.status = line["exit status ".len()..].to_owned(),
            _ if line.starts_with("stderr: ") => result.errors.push(line["stderr: ".len()..].to_owned()),
            _ => result.out = result.out.clone() + line + "\n",
        }
    }
    results
}

/// Returns the expected text of a file for which the view prints the correct numbers.
fn truth(name: &str) -> String {
    fs::read_to_string(edge().join(format!("{name}.truth.txt"))).unwrap()
}

#[test]
fn traces() {
    let differ = [
        ("M2.mtrc", "truncated: the real tool requires 5 bytes before a number, and prints no statistics"),
        ("noend.mtrc", "the same"),
        ("unk.mtrc", "an unknown letter: the real tool prints no statistics"),
        ("name1024.mtrc", "the real tool has no room for the name"),
        ("name33.mtrc", "the real tool crashes"),
        ("dblfree.mtrc", "the real tool's counts wrap below zero"),
        ("reallocfreed.mtrc", "the real tool's counts contradict each other"),
    ];
    let mut seen = 0;
    for (name, theirs) in results().into_iter().filter(|(name, _)| name.ends_with(".mtrc")) {
        seen += 1;
        let bytes = fs::read(edge().join(&name)).unwrap();
        let mut reader = match mtrc::Reader::new(&bytes) {
            Ok(reader) => reader,
            Err(error) => {
                assert_eq!([format!("mptrace: {}", mptrace::read_error_message(&error))], theirs.errors[..], "{name}");
                continue;
            }
        };
        let word = reader.header().abi.word_size;
        let (mut out, mut complaints) = (Vec::new(), Vec::new());
        let options = mptrace::Options { verbose: true, source: true, address_bytes: word };
        let mut view = mptrace::View::new(options, &mut out, &mut complaints).unwrap();
        let true_numbers = word == 4 || name == "straddle5.mtrc";
        let failure = loop {
            match reader.next() {
                Ok(Some(record)) if true_numbers => view.record(&record).unwrap(),
                Ok(Some(record)) => view.record(&misread::record(&record)).unwrap(),
                Ok(None) => break None,
                Err(error) => break Some(error),
            }
        };
        view.finish().unwrap();
        let out = String::from_utf8(out).unwrap();
        let mut errors: Vec<_> = String::from_utf8(complaints).unwrap().lines().map(str::to_owned).collect();
        match (&failure, reader.ending()) {
            (Some(error), _) => errors.push(format!("mptrace: {}", mptrace::read_error_message(error))),
            (None, Some(Ending::Truncated { .. })) => errors.push("mptrace: Error reading file".to_owned()),
            _ => {}
        }
        if name.starts_with("straddle") {
            // 2741 filler rows are omitted in the results, and the real tool crashes on straddle5.
            let rows: String =
                out.lines().filter(|row| !row.contains(" reserve ")).map(|row| format!("{row}\n")).collect();
            match name.as_str() {
                "straddle4.mtrc" => assert_eq!(rows, theirs.out),
                _ => assert!(
                    rows.contains("     2  free         1  0x00007FFFF7A01234       100       1       0         0\n")
                ),
            }
        } else if differ.iter().any(|&(differs, _)| differs == name) {
            let truth = truth(name.trim_end_matches(".mtrc"));
            assert_eq!(out, truth, "{name}");
            assert_ne!(out, theirs.out, "{name}");
        } else {
            // The results have at most 160 bytes of each line.
            let out: String = out.lines().map(|line| line[..line.len().min(160)].to_owned() + "\n").collect();
            assert_eq!(out, theirs.out, "{name}");
            assert_eq!(errors, theirs.errors, "{name}");
        }
        let complete = failure.is_none() && reader.ending() == Some(Ending::Complete);
        let crashed = ["name1024.mtrc", "name33.mtrc", "straddle5.mtrc"].contains(&name.as_str());
        assert!(crashed || (theirs.status == "0") == complete, "{name}");
    }
    assert!(seen >= 24, "{seen}");
}

#[test]
fn profiles() {
    let refused = ["pcycle.mpt", "pidx0.mpt", "pname.mpt", "pparent9.mpt"];
    let mut seen = 0;
    for (name, theirs) in results().into_iter().filter(|(name, _)| name.ends_with(".mpt")) {
        seen += 1;
        let (profile, ending) = match Profile::read(&fs::read(edge().join(&name)).unwrap()) {
            Ok(read) => read,
            Err(_) if refused.contains(&name.as_str()) => continue,
            Err(error) => {
                assert_eq!([format!("mprof: {}", mprof::read_error_message(&error))], theirs.errors[..], "{name}");
                continue;
            }
        };
        assert!(!refused.contains(&name.as_str()), "{name}");
        let mut out = Vec::new();
        let options = mprof::Options { call_graph: true, stack_depth: 0, ..mprof::Options::default() };
        mprof::view(&profile, &options, &mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        match name.as_str() {
            // More is freed than allocated, so the real tool's numbers wrap.
            "pneg.mpt" => assert_eq!(out, truth("pneg")),
            // Truncated inside the end mark: all data is there. The real tool shows nothing.
            "ptrunc.mpt" => {
                assert!(!ending.is_complete());
                assert_eq!(out, results()["tiny.mpt"].out);
            }
            _ => assert_eq!(out, theirs.out, "{name}"),
        }
    }
    assert!(seen >= 17, "{seen}");
}
