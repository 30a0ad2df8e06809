//! The views of the DCPI tools for profiles of one small program: golden texts, and inputs that
//! must be rejected.

use heaptape_compat::dcpi::{Error, Inputs, Set, cat, diff, graph, list, prof, scan};
use heaptape_formats::dcpi::{Builder, HeaderFields};
use std::path::{Path, PathBuf};

const SMALL: u64 = 0x40_0144;
const LARGE: u64 = 0x40_017a;
const START: u64 = 0x40_019a;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/dcpi/views").join(name)
}

/// Compares the output with a golden text. With BLESS=1 the output becomes the golden text.
fn check(name: &str, print: impl FnOnce(&mut Vec<u8>) -> Result<(), Error>) {
    let mut out = Vec::new();
    print(&mut out).unwrap_or_else(|error| panic!("{name}: {error}"));
    let found = String::from_utf8(out).expect("text");
    let path = golden(name);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &found).expect("a writable golden file");
    }
    let expected = std::fs::read_to_string(&path).expect("BLESS=1 makes it");
    assert_eq!(found, expected, "{name}");
}

struct Profiles(tempfile::TempDir);

impl Profiles {
    fn new() -> Self {
        Profiles(tempfile::tempdir().expect("a folder"))
    }

    fn write(&self, name: &str, event: &str, tstart: u64, counts: &[(u64, u64)]) -> PathBuf {
        let head = HeaderFields {
            image: "b1d0cafe00112233445566778899aabbccddeeff",
            unix_seconds: 1_795_249_800,
            platform: "box",
            event,
            tstart,
            tsize: 0x67,
            cpuspeed: 2800,
            path: Some("/usr/bin/program"),
            ..HeaderFields::default()
        };
        let mut builder = Builder::new(&head).expect("a plain head");
        for &(address, count) in counts {
            builder.add(address, count);
        }
        let path = self.0.path().join(name);
        std::fs::write(&path, builder.finish().expect("all in the text").bytes).expect("a file");
        path
    }

    /// Writes the profiles of bytes and blocks of the first run.
    fn first(&self) -> Vec<PathBuf> {
        let bytes = [(SMALL + 0x1e, 24), (LARGE + 0x7, 1024), (LARGE + 0x15, 512), (START + 0xa, 3)];
        let blocks = [(SMALL + 0x1e, 3), (LARGE + 0x7, 1), (START + 0x100, 1)];
        vec![self.write("a.bytes", "alloc-bytes", SMALL, &bytes), self.write("a.count", "alloc-count", SMALL, &blocks)]
    }

    fn second(&self) -> Vec<PathBuf> {
        let bytes = [(SMALL + 0x1e, 24), (LARGE + 0x7, 3072), (START + 0x5, 40)];
        vec![self.write("b.bytes", "alloc-bytes", SMALL, &bytes)]
    }
}

fn load(files: Vec<PathBuf>) -> Set {
    let inputs = Inputs { files, images: vec![golden("program")], ..Inputs::default() };
    let set = Set::load(&inputs).unwrap_or_else(|error| panic!("{error}"));
    assert!(set.faults.is_empty(), "{:?}", set.faults);
    set
}

#[test]
fn prof_by_procedure_and_image() {
    let profiles = Profiles::new();
    let set = load(profiles.first());
    check("prof.txt", |out| prof::print(&set, &prof::Options::default(), out));
    let full = prof::Options { full: true, no_header: true, sort: Some("alloc-count".into()), ..Default::default() };
    check("prof-full.txt", |out| prof::print(&set, &full, out));
    let images = prof::Options { by_image: true, ..Default::default() };
    check("prof-images.txt", |out| prof::print(&set, &images, out));
    let listed = prof::Options { comma_separated: true, keep: Some(90.0), ..Default::default() };
    check("prof-csl.txt", |out| prof::print(&set, &listed, out));
    let missing = prof::Options { sort: Some("cycles".into()), ..Default::default() };
    let error = prof::print(&set, &missing, &mut Vec::new()).expect_err("no such event");
    assert_eq!(error.to_string(), "no samples of event cycles; there are alloc-bytes, alloc-count");
}

fn bytes_only(form: list::Form, procedure: &str) -> list::Options {
    list::Options { procedure: procedure.into(), form, bytes_only: true, ..Default::default() }
}

#[test]
fn list_in_all_forms() {
    // The program's debug information has the path of its source relative to a crate of the
    // project.
    std::env::set_current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).expect("the folder above");
    let profiles = Profiles::new();
    let set = load(profiles.first());
    check("list-source.txt", |out| list::print(&set, &bytes_only(list::Form::Auto, "large_block"), out));
    check("list-bytes.txt", |out| list::print(&set, &bytes_only(list::Form::Instructions, "0x400190"), out));
    check("list-both.txt", |out| list::print(&set, &bytes_only(list::Form::Both, "large_block"), out));
    for (wanted, message) in
        [("nowhere", "nowhere: no such procedure in the images"), ("0x10", "0x10: no such procedure in the images")]
    {
        let error = list::print(&set, &bytes_only(list::Form::Auto, wanted), &mut Vec::new()).expect_err(wanted);
        assert_eq!(error.to_string(), message);
    }
}

/// objdump may be missing, or may not support x86-64. If it works, every count must be at an
/// instruction.
#[test]
fn list_with_objdump_loses_no_count() {
    let profiles = Profiles::new();
    let set = load(profiles.first());
    for (procedure, sum) in [("small_blocks", 24), ("large_block", 1536), ("_start", 3)] {
        for form in [list::Form::Instructions, list::Form::Both] {
            let options = list::Options { procedure: procedure.into(), form, no_header: true, bytes_only: false };
            let mut out = Vec::new();
            list::print(&set, &options, &mut out).expect("a procedure");
            let text = String::from_utf8(out).expect("text");
            let counts = text.lines().filter_map(|line| line.split_whitespace().next()?.parse::<u64>().ok());
            assert_eq!(counts.sum::<u64>(), sum, "{procedure}:\n{text}");
        }
    }
}

#[test]
fn cat_shows_each_image_once() {
    let profiles = Profiles::new();
    let files = [profiles.first(), profiles.first()].concat();
    let set = load(files.clone());
    check("cat.txt", |out| cat::print(&set, out));
    check("cat-raw.txt", |out| cat::print_raw(&files[..1], None, out).map(|faults| assert!(faults.is_empty())));
}

#[test]
fn diff_sorts_by_normalized_range() {
    let profiles = Profiles::new();
    let (first, second) = (load(profiles.first()), load(profiles.second()));
    check("diff.txt", |out| diff::print(&first, &second, &diff::Options::default(), out));
    let inside = diff::Options { procedure: Some("large_block".into()), no_header: true, ..Default::default() };
    check("diff-inside.txt", |out| diff::print(&first, &second, &inside, out));
    let lines = diff::Options { by: diff::By::Lines, event: Some("alloc-bytes".into()), ..Default::default() };
    check("diff-lines.txt", |out| diff::print(&first, &second, &lines, out));
    let images = diff::Options { by: diff::By::Images, comma_separated: true, range: Some(30.0), ..Default::default() };
    check("diff-images.txt", |out| diff::print(&first, &second, &images, out));
    let missing = diff::Options { procedure: Some("nowhere".into()), ..Default::default() };
    assert!(matches!(diff::print(&first, &second, &missing, &mut Vec::new()), Err(Error::NoProcedure(_))));
    let same = load(profiles.first());
    let mut out = Vec::new();
    let differing = diff::Options { range: Some(0.01), comma_separated: true, no_header: true, ..Default::default() };
    diff::print(&first, &same, &differing, &mut out).expect("two sets");
    assert!(!String::from_utf8(out).expect("text").contains('%'), "nothing differs");
}

/// Text that was mapped at another address is found by its offset in the page.
#[test]
fn text_at_another_address_is_found() {
    let profiles = Profiles::new();
    let moved = 0x5555_5555_4000;
    let file = profiles.write("moved", "cycles", moved + 0x144, &[(moved + 0x17a, 7), (moved + 0x144, 2)]);
    let set = load(vec![file]);
    let mut out = Vec::new();
    let options = prof::Options { comma_separated: true, no_header: true, ..Default::default() };
    prof::print(&set, &options, &mut out).expect("a set");
    let text = String::from_utf8(out).expect("text");
    assert_eq!(text, "7,77.78%,77.78%,large_block,/usr/bin/program\n2,22.22%,100.00%,small_blocks,/usr/bin/program\n");
}

#[test]
fn samples_are_weighed_by_their_period() {
    let profiles = Profiles::new();
    let light = profiles.write("light", "live-bytes", SMALL, &[(SMALL, 100)]);
    let heavy = profiles.write("heavy", "live-bytes", SMALL, &[(SMALL, 1 << 40), (LARGE, 1 << 63)]);
    let set = load(vec![light, heavy]);
    let event = &set.events[0];
    assert!(event.is_scaled && event.periods.len() == 2 && event.periods.contains(&1));
    let counts: Vec<(u64, u64)> = set.images[0].rows(1).map(|(address, row)| (address, row[0])).collect();
    let period = *event.periods.last().expect("two");
    assert_eq!(counts[0].0, SMALL);
    assert!(counts[0].1.abs_diff((1 << 40) + 100) <= period, "{counts:?}");
    assert!(counts[1].1.abs_diff(1 << 63) <= period, "{counts:?}");
}

#[test]
fn unreadable_files_are_reported() {
    let profiles = Profiles::new();
    let good = profiles.first();
    let path = |name: &str, bytes: &[u8]| {
        let path = profiles.0.path().join(name);
        std::fs::write(&path, bytes).expect("a file");
        path
    };
    let whole = std::fs::read(&good[0]).expect("a file");
    let truncated = path("truncated", &whole[..whole.len() - 4]);
    let trace = path("trace", b"MTRC\x01\0\0\0\0\0\0\0");
    let none = profiles.0.path().join("none");
    let text = path("text", &[0; 40]);
    let inputs = Inputs { files: vec![truncated, trace, none, text, good[1].clone()], ..Inputs::default() };
    let set = Set::load(&inputs).expect("two profiles");
    let faults = set.faults.join("\n");
    for part in [
        "footer: the file ends here",
        "a file of MTRC, not a DCPI profile",
        "none: No such file",
        "text: not a DCPI profile",
    ] {
        assert!(faults.contains(part), "{part:?} in:\n{faults}");
    }
    assert_eq!(set.events[0].total, 1563, "only the footer is truncated");
    let nothing = Inputs { files: inputs.files[1..4].to_vec(), ..Inputs::default() };
    assert!(Set::load(&nothing).is_err_and(|error| error.to_string().contains("not a DCPI profile")));
    let folder = Inputs { files: vec![profiles.0.path().to_path_buf()], ..Inputs::default() };
    assert_eq!(Set::load(&folder).expect("a database").events.len(), 2);
}

/// With any byte of the image changed, symbols and lines may be nonsense, but the views must not
/// panic.
#[test]
fn hostile_image_does_not_panic() {
    let profiles = Profiles::new();
    let files = profiles.first();
    let mut bytes = std::fs::read(golden("program")).expect("the image");
    let image = profiles.0.path().join("program");
    for index in 0..bytes.len() {
        let value = bytes[index];
        bytes[index] = if index % 2 == 0 { 0xff } else { value ^ 0x41 };
        std::fs::write(&image, &bytes).expect("a file");
        bytes[index] = value;
        let inputs = Inputs { files: files.clone(), images: vec![image.clone()], ..Inputs::default() };
        let set = Set::load(&inputs).expect("good profiles");
        prof::print(&set, &prof::Options::default(), &mut Vec::new()).expect("a set");
        for form in [list::Form::Both, list::Form::Source] {
            let _ = list::print(&set, &bytes_only(form, "0x400181"), &mut Vec::new());
        }
    }
}

#[test]
fn graph_has_images_procedures_and_lines() {
    let profiles = Profiles::new();
    let set = load(profiles.first());
    let drawn = |event| String::from_utf8(graph::draw_event(&set, event).expect("a graph")).expect("text");
    let bytes = drawn(None);
    for part in
        ["alloc-bytes", "1,563 samples", "program (1,563 ", "large_block (1,536 ", "small_blocks (24 ", "program.c:"]
    {
        assert!(bytes.contains(part), "{part}: {bytes}");
    }
    let counts = drawn(Some("alloc-count"));
    assert!(counts.contains("small_blocks (3 ") && counts.contains("(unknown) (1 "), "{counts}");
    let error = graph::draw_event(&set, Some("cycles")).expect_err("no such event");
    assert_eq!(error.to_string(), "no samples of event cycles; there are alloc-bytes, alloc-count");
}

#[test]
fn scan_lists_images_by_identity() {
    let folder = tempfile::tempdir().expect("a folder");
    let below = folder.path().join("bin");
    std::fs::create_dir(&below).expect("a folder");
    std::fs::copy(golden("program"), below.join("program")).expect("a copy");
    std::fs::write(below.join("script"), "#!/bin/sh\n").expect("a script");
    std::fs::write(below.join("damaged"), b"\x7fELF\x02").expect("a file");
    std::os::unix::fs::symlink("..", below.join("up")).expect("a link");
    let list = |path: &Path| {
        let mut out = Vec::new();
        let faults = scan::print(&[path.to_owned()], true, true, &mut out).expect("a list");
        (String::from_utf8(out).expect("text"), faults)
    };
    let set = load(Profiles::new().first());
    let elf = set.images[0].elf.as_ref().expect("the program");
    let identity = elf.build_id.clone().unwrap_or_else(|| "0".into());
    let (rows, faults) = list(folder.path());
    let row = rows.lines().next().expect("a row");
    assert!(row.starts_with(&format!("{identity},0x400144,")) && row.ends_with("/bin/program"), "{rows}");
    assert_eq!(rows.lines().count(), 1, "{rows}");
    assert!(matches!(&faults[..], [fault] if fault.contains("/bin/damaged: ")), "{faults:?}");
    let (rows, faults) = list(&below.join("script"));
    assert!(rows.is_empty() && faults[0].ends_with("script: not an ELF file"), "{rows} {faults:?}");
}
