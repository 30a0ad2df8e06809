//! The command on files of every format: as they are, packed in anything, and from standard input.

use heaptape_formats::tape::Codec;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden").join(name)
}

fn heaptape(args: &[&str], input: Option<&[u8]>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_heaptape"));
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    let bytes = input.unwrap_or_default().to_vec();
    let writer = std::thread::spawn(move || drop(pipe.write_all(&bytes)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

fn packed(bytes: &[u8]) -> Vec<(&'static str, Vec<u8>)> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(bytes).unwrap();
    let with = |codec: Codec| {
        let mut out = Vec::new();
        codec.pack(bytes, 1, &mut out).unwrap();
        out
    };
    vec![
        ("plain", bytes.to_vec()),
        ("gzip", gzip.finish().unwrap()),
        ("zstd", with(Codec::Zstd)),
        ("lz4", with(Codec::Lz4)),
    ]
}

const SAMPLES: [(&str, &str); 4] = [
    ("mpatrol/usedebug.mtrc", "mtrc LE64 version 10501"),
    ("mpatrol/recursion.mpt", "mptl LE64 version 10501"),
    ("dcpi/good/v007-unknown-lines.dcpi", "required version pdb-0.07"),
    ("gmon/hand/arcs-only.gmon", "endian little ptr 8"),
];

#[test]
fn dump_is_the_same_for_every_compression_and_for_standard_input() {
    let dir = tempfile::tempdir().unwrap();
    for (sample, first_line) in SAMPLES {
        let bytes = std::fs::read(golden(sample)).unwrap();
        let mut plain = None;
        for (packing, bytes) in packed(&bytes) {
            let path = dir.path().join(packing);
            std::fs::write(&path, &bytes).unwrap();
            let from_file = heaptape(&["dump", path.to_str().unwrap()], None);
            let from_input = heaptape(&["dump", "-"], Some(&bytes));
            assert_eq!(from_file.status.code(), Some(0), "{sample} {packing}");
            assert_eq!(from_file.stdout, from_input.stdout, "{sample} {packing}");
            let plain = plain.get_or_insert_with(|| from_file.stdout.clone());
            assert!(*plain == from_file.stdout, "{sample} {packing}");
        }
        let text = String::from_utf8(plain.unwrap()).unwrap();
        assert!(text.starts_with(first_line), "{sample}: {}", text.lines().next().unwrap_or_default());
        assert!(text.lines().count() > 3);
    }
}

#[test]
fn conversions_report_what_they_verified_and_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let profile = golden("mpatrol/recursion.mpt").display().to_string();
    let done = heaptape(&["convert", "--to", "gmon", "--verify", "-o", &at("g"), &profile], None);
    let errors = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(0), "{errors}");
    assert!(errors.contains("samples: ") && errors.contains("conserved"), "{errors}");
    // A trace's bytes by stack have no place in bins.
    let trace = golden("mpatrol/usedebug.mtrc").display().to_string();
    let lossy = heaptape(&["convert", "--to", "mptl", "--verify", "-o", &at("m"), &trace], None);
    let errors = String::from_utf8_lossy(&lossy.stderr).into_owned();
    assert_eq!(lossy.status.code(), Some(1), "{errors}");
    assert!(
        errors.contains("bins only") && errors.contains("alloc-bytes: ") && errors.contains("cannot be held"),
        "{errors}"
    );
    let refused = heaptape(&["convert", "--to", "mtrc", &profile], None);
    assert_eq!(refused.status.code(), Some(2));
    // One file goes to standard output when nothing else is said, and comes from standard input.
    let bytes = std::fs::read(golden("mpatrol/recursion.mpt")).unwrap();
    let copy = heaptape(&["convert", "--to", "mptl", "-"], Some(&bytes));
    assert!(copy.status.success() && copy.stdout == bytes);
}

/// What each file of another tool answers, or why it cannot.
#[test]
fn imports_answer_or_name_what_they_lack() {
    const EVENTS: &str = "this needs events, and there are none: the file holds only sums by stack";
    const PEAK: &str = "the peak needs events, and there are none: a profile holds only sums";
    const BLOCKS: &str = "the file counts no allocations: it holds the live bytes at some points in time";
    let files = ["go-heap.pb", "heaptrack.txt", "valgrind-dhat.json", "valgrind-massif.out"];
    // What the answer holds of each file: text on standard output, or the refusal.
    /// The arguments of a command, and for each of the four files its answer or its refusal.
    type Row<'a> = (&'a [&'a str], [Result<&'a str, &'a str>; 4]);
    let commands: [Row<'_>; 8] = [
        (&["report"], [Ok("main.keeps"), Ok("1001 B in 1 block"), Ok("1001 B in 1 block"), Ok("peak 9.77 KiB")]),
        (&["leaks"], [Ok("main.keeps main.go:11"), Ok("leaf t.c:4"), Ok("leaf t.c:4"), Err(BLOCKS)]),
        (&["peak"], [Err(PEAK), Ok("main t.c:9"), Ok("main t.c:9"), Ok("main t.c:9")]),
        (&["sites"], [Ok("main.drops main.go:12"), Ok("main t.c:9"), Ok("main t.c:9"), Err(BLOCKS)]),
        (&["sizes"], [Err(EVENTS); 4]),
        (&["lifetimes"], [Err(EVENTS); 4]),
        (&["timeline"], [Err(EVENTS); 4]),
        (&["sites", "--from", "10%"], [Err(EVENTS); 4]),
    ];
    let dir = tempfile::tempdir().unwrap();
    for (index, name) in files.into_iter().enumerate() {
        let file = golden("import").join(name).display().to_string();
        for (args, wanted) in &commands {
            let output = heaptape(&[args, &[&file[..]][..]].concat(), None);
            let (out, errors) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
            match wanted[index] {
                Ok(text) => {
                    assert!(output.status.code() == Some(0) && out.contains(text), "{name} {args:?}: {out}{errors}")
                }
                Err(why) => {
                    assert!(output.status.code() == Some(2) && errors.contains(why), "{name} {args:?}: {out}{errors}");
                }
            }
        }
        let same = heaptape(&["diff", &file, &file], None);
        let text = String::from_utf8(same.stdout).unwrap();
        assert!(same.status.code() == Some(0) && text.contains("nothing changed"), "{name}: {text}");
        let page = dir.path().join(name).display().to_string();
        let made = heaptape(&["export", "--to", "html", "-o", &page, &file], None);
        let errors = String::from_utf8_lossy(&made.stderr).into_owned();
        assert_eq!(made.status.code(), Some(0), "{name}: {errors}");
        assert!(std::fs::read_to_string(&page).unwrap().contains("</html>"), "{name}");
    }
}

#[test]
fn help_names_every_format() {
    let help = heaptape(&["export", "--help"], None);
    let text = String::from_utf8(help.stdout).unwrap();
    for (name, summary) in [("mtrc", "mptrace"), ("mptl", "mprof"), ("gmon", "gprof"), ("dcpi", "DCPI")] {
        assert!(text.lines().any(|line| line.contains(&format!("- {name}:")) && line.contains(summary)), "{text}");
    }
}

#[test]
fn a_view_of_the_wrong_format_names_the_right_command() {
    let views = [("mprof", "mpatrol/usedebug.mtrc", "mptrace"), ("mptrace", "mpatrol/recursion.mpt", "mprof")];
    let logs =
        [("mleak", "gmon/hand/arcs-only.gmon", "gprof"), ("mleak", "dcpi/good/v007-unknown-lines.dcpi", "dcpiprof")];
    for (view, sample, shows) in views.into_iter().chain(logs) {
        let output = heaptape(&[view, golden(sample).to_str().unwrap()], None);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        let takes_it = view == "mprof";
        assert_eq!(errors.contains(&format!("`heaptape {shows}` shows it")), !takes_it, "{view} {sample}: {errors}");
        assert_eq!(output.status.success(), takes_it, "{view} {sample}");
    }
}
