//! Exports of recordings made in code: sums against the plain truth, files against golden dumps,
//! conversions back and forth. `BLESS=1 cargo test -p heaptape-analyzer export_recording`
//! accepts the dumps that are made now.

use crate::made;
use crate::misread;

use heaptape_analyzer::convert::{self, ConvertOptions};
use heaptape_analyzer::event::{Bound, Range};
use heaptape_analyzer::export::{self, EXPORTERS, Error, Measure, Options, Written, verify};
use heaptape_formats::dcpi::{self, Header};
use heaptape_formats::mptl::Profile;
use heaptape_formats::mtrc::{self, Record};
use heaptape_formats::tape::{self, Codec};
use heaptape_formats::{Abi, gmon, mptl};
use made::Step;
use std::path::{Path, PathBuf};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/export")
}

/// Two objects, of which only the tape knows: their files are nowhere.
fn modules() -> Vec<tape::Module> {
    let module = |number, start, end, bias, path: &str, build_id: &[u8]| tape::Module {
        number,
        start,
        end,
        bias,
        path: path.into(),
        build_id: tape::field::Text(build_id.to_vec()),
        ..tape::Module::default()
    };
    vec![
        module(1, 0x800, 0x5800, 0, "/nowhere/program", &[0xab, 0xcd, 0, 1, 2, 3]),
        module(2, 0x5800, 0xa000, 0x4000, "/nowhere/library.so", &[0x12, 0x34, 5, 6, 7, 8]),
    ]
}

/// Allocations at every site and without a stack, resizes, frees, a block of 0 bytes and a large
/// one.
fn steps() -> Vec<Step> {
    let rolls: Vec<(u8, u16, u8, u8, u8)> = (0..240u32)
        .map(|n| ((n * 7 % 13) as u8, (n * n % 3000) as u16, (n % 9) as u8, (n % 3) as u8, (n * 11 % 17) as u8))
        .collect();
    let mut steps = made::program(&rolls);
    let tick = steps.last().map_or(100, Step::tick);
    steps.push(Step::Alloc { index: 9001, size: 0, site: 8, thread: 1, tick });
    steps.push(Step::Alloc { index: 9002, size: 5 << 30, site: 5, thread: 2, tick });
    steps
}

fn options() -> made::Options {
    made::Options { modules: modules(), chunk_events: 50, codec: Codec::Zstd, ..made::Options::default() }
}

fn exported(to: &str, from: &Path, options: &Options, out: &Path) -> Written {
    export::run(export::exporter(to).unwrap(), &[from.to_path_buf()], options, Some(out), true).unwrap()
}

fn sum(written: &Written, name: &str) -> u128 {
    let verdict = written.verdicts.iter().find(|verdict| verdict.name == name);
    verdict.unwrap_or_else(|| panic!("no {name} in {:?}", written.verdicts)).held
}

#[test]
fn what_is_written_adds_up_to_what_was_recorded() {
    let truth = made::truth(&steps());
    let (_dir, recording) = made::recording(&steps(), &options());
    let out = tempfile::tempdir().unwrap();
    let to = |name: &str| out.path().join(name);

    let trace = exported("mtrc", &recording, &Options::default(), &to("t.mtrc"));
    assert!(trace.is_whole(), "{trace:?}");
    let count = |kind: fn(&Step) -> bool| steps().iter().filter(|step| kind(step)).count() as u128;
    assert_eq!(sum(&trace, "allocations"), count(|step| matches!(step, Step::Alloc { .. } | Step::Inherited { .. })));
    assert_eq!(sum(&trace, "resizes"), count(|step| matches!(step, Step::Resize { .. })));
    assert_eq!(sum(&trace, "frees"), count(|step| matches!(step, Step::Free { .. } | Step::Implied { .. })));

    let profile = exported("mptl", &recording, &Options::default(), &to("p.mptl"));
    assert!(profile.is_whole(), "{profile:?}");
    assert_eq!(sum(&profile, "alloc-count"), u128::from(truth.totals.allocs + truth.totals.resizes));

    for what in [Measure::AllocBytes, Measure::LiveBytes, Measure::LeakCount, Measure::FreeCount] {
        let folder = to(what.name());
        let with = Options { what: vec![what], ..Options::default() };
        let written = exported("gmon", &recording, &with, &folder);
        let of = |site: fn(u32) -> bool| {
            truth.sites.iter().filter(|row| site(row.site)).map(|row| u128::from(what.of(row, true))).sum::<u128>()
        };
        // Large sums are counted in KiB, each place rounded to the nearest.
        let (held, slack) = (sum(&written, "samples"), if what.is_bytes() { 512 * 9 } else { 0 });
        assert!(held.abs_diff(of(|site| site != 0)) <= slack, "{}: {held} {}", what.name(), of(|site| site != 0));
        assert_eq!(written.notes.iter().any(|note| note.contains("no stack")), of(|site| site == 0) > 0);
    }

    let counts = exported("dcpi", &recording, &Options::default(), &to("dcpi"));
    for what in [Measure::AllocCount, Measure::FreeBytes, Measure::LeakCount] {
        let of: u128 = truth.sites.iter().filter(|row| row.site != 0).map(|row| u128::from(what.of(row, true))).sum();
        assert_eq!(sum(&counts, what.name()), of, "{}", what.name());
    }
    // Events without a stack belong to no image: the check reports them.
    assert!(!counts.is_whole());
    let lost = counts.verdicts.iter().find(|verdict| verdict.name == "alloc-count").unwrap();
    let none = truth.sites.iter().find(|row| row.site == 0).unwrap().allocs;
    assert_eq!(lost.source - lost.held, none.into());
    for file in &counts.files {
        let bytes = std::fs::read(file).unwrap();
        let read = dcpi::read(&bytes).unwrap().strict().unwrap();
        assert!(read.warnings.is_empty(), "{:?}", read.warnings);
        assert_eq!(read.stride, 1);
        let is_program = read.header.path == Some(b"/nowhere/program");
        assert_eq!(read.header.image, if is_program { &b"abcd00010203"[..] } else { b"123405060708" });
    }
}

#[test]
fn a_profile_made_of_events_is_the_recorders() {
    let (_dir, recording) = made::recording(&steps(), &options());
    let out = tempfile::tempdir().unwrap();
    let folder = recording.join("4711.made");
    let stored = Profile::read(&std::fs::read(folder.join("profile.mptl")).unwrap()).unwrap().0;
    std::fs::remove_file(folder.join("profile.mptl")).unwrap();
    let written = exported("mptl", &recording, &Options::default(), &out.path().join("p"));
    let made = Profile::read(&std::fs::read(&written.files[0]).unwrap()).unwrap().0;
    assert_eq!(made.bins, stored.bins);
    assert_eq!(made.sites.len(), stored.sites.len());
    let rows = |profile: &Profile| {
        let (sites, data) = (profile.site_positions(), profile.data_positions());
        sites
            .iter()
            .map(|&index| profile.sites[index])
            .map(|site| (site.address, site.data.checked_sub(1).map(|at| profile.data[data[at as usize]].allocated)))
            .collect::<Vec<_>>()
    };
    assert_eq!(rows(&made), rows(&stored));
}

#[test]
fn a_part_of_the_run_alone_is_exported() {
    let (_dir, recording) = made::recording(&steps(), &options());
    let out = tempfile::tempdir().unwrap();
    let range = Range { from: Some(Bound::Number(20)), to: Some(Bound::Number(70)) };
    let part = Options { range: Some(range), ..Options::default() };
    let written = exported("mtrc", &recording, &part, &out.path().join("t"));
    assert!(written.verdicts.iter().all(verify::Verdict::holds));
    let bytes = std::fs::read(&written.files[0]).unwrap();
    let mut reader = mtrc::Reader::new(&bytes).unwrap();
    let mut events = 0;
    while reader.next().unwrap().is_some() {
        events += 1;
    }
    assert_eq!(events, 50);
    let profile = exported("mptl", &recording, &part, &out.path().join("p"));
    assert!(profile.verdicts.iter().all(verify::Verdict::holds), "{:?}", profile.verdicts);
    let taken = |step: &&Step| matches!(step, Step::Alloc { .. } | Step::Resize { .. });
    let in_part: Vec<Step> = steps().into_iter().filter(|step| !matches!(step, Step::Unmatched { .. })).collect();
    assert_eq!(sum(&profile, "alloc-count"), in_part[20..70].iter().filter(taken).count() as u128);
}

/// The real 64-bit mptrace misreads numbers from 2^31 on: with `--for mptrace` it reads what is
/// there.
#[test]
fn the_real_mptrace_would_show_rebased_addresses_rightly() {
    let (_dir, recording) = made::recording(&steps()[..steps().len() - 2], &options());
    let out = tempfile::tempdir().unwrap();
    let records = |bytes: &[u8]| {
        let (mut reader, mut all) = (mtrc::Reader::new(bytes).unwrap(), Vec::new());
        while let Some(record) = reader.next().unwrap() {
            let shown = misread::record(&record) == record;
            let address = match record {
                Record::Alloc { address, .. } | Record::Resize { address, .. } => Some(address),
                _ => None,
            };
            all.push((shown, address));
        }
        all
    };
    let plain = exported("mtrc", &recording, &Options::default(), &out.path().join("plain"));
    let moved = Options { for_mptrace: true, names: true, ..Options::default() };
    let moved = exported("mtrc", &recording, &moved, &out.path().join("moved"));
    assert!(moved.is_whole(), "{moved:?}");
    let plain = records(&std::fs::read(&plain.files[0]).unwrap());
    let moved = records(&std::fs::read(&moved.files[0]).unwrap());
    assert!(plain.iter().any(|(shown, _)| !shown) && moved.iter().all(|(shown, _)| *shown));
    // All lie within a few pages of each other: their distances stay.
    let distances = |all: &[(bool, Option<u64>)]| {
        let addresses: Vec<u64> = all.iter().filter_map(|(_, address)| *address).collect();
        addresses.iter().map(|address| address.wrapping_sub(addresses[0])).collect::<Vec<_>>()
    };
    assert_eq!(distances(&plain), distances(&moved));
}

#[test]
fn exports_are_word_for_word() {
    let (_dir, recording) = made::recording(&steps()[..60], &options());
    let out = tempfile::tempdir().unwrap();
    let mut seen = Vec::new();
    // The page names the folder, which is another each time; its own tests read its data.
    for exporter in EXPORTERS.iter().filter(|exporter| exporter.is_read_back() && exporter.name() != "html") {
        let target = out.path().join(exporter.name());
        let names = Options { names: true, ..Options::default() };
        let written = exported(exporter.name(), &recording, &names, &target);
        for file in written.files {
            let name = file.strip_prefix(out.path()).unwrap().display().to_string().replace('/', ".");
            seen.push((name, dump(&file)));
        }
    }
    let bless = std::env::var_os("BLESS").is_some();
    if bless {
        std::fs::create_dir_all(golden()).unwrap();
    }
    for (name, text) in &seen {
        let path = golden().join(format!("{name}.txt"));
        if bless {
            std::fs::write(&path, text).unwrap();
        }
        let expected = std::fs::read_to_string(&path).unwrap_or_else(|error| {
            panic!("{}: {error}; BLESS=1 cargo test -p heaptape-analyzer export_recording", path.display())
        });
        assert!(expected == *text, "{name} differs from its golden dump:\n{text}");
    }
    let dumps = std::fs::read_dir(golden()).unwrap().filter_map(Result::ok);
    let dumps = dumps.filter(|entry| entry.path().extension().is_some_and(|extension| extension == "txt"));
    assert_eq!(dumps.count(), seen.len(), "a golden dump is of no export");
}

fn dump(file: &Path) -> String {
    let bytes = std::fs::read(file).unwrap();
    let mut out = Vec::new();
    match heaptape_formats::sniff::format(&bytes) {
        Some(heaptape_formats::Format::Mtrc) => mtrc::dump(&bytes, &mut out).unwrap(),
        Some(heaptape_formats::Format::Mptl) => mptl::dump(&bytes, &mut out).unwrap(),
        Some(heaptape_formats::Format::Gmon) => {
            gmon::dump(&gmon::read(&bytes, gmon::Hints::default()).unwrap(), &mut out).unwrap();
        }
        Some(heaptape_formats::Format::Dcpi) => drop(dcpi::dump(&bytes, None, &mut out).unwrap()),
        Some(heaptape_formats::Format::Pprof) | None if bytes.starts_with(&[0x1f, 0x8b]) => {
            let opened = heaptape_analyzer::unpack::open(file).unwrap();
            heaptape_formats::pprof::dump(&opened.bytes, &mut out).unwrap();
        }
        // The others are text, or lines of it.
        _ => out = bytes,
    }
    String::from_utf8(out).unwrap()
}

#[test]
fn the_arguments_are_judged() {
    let (_dir, recording) = made::recording(&steps(), &options());
    let out = tempfile::tempdir().unwrap();
    let file = out.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let run = |to: &str, path: &Path, options: &Options, target: &Path| {
        export::run(export::exporter(to).unwrap(), &[path.to_path_buf()], options, Some(target), false)
    };
    let impossible = |result: Result<Written, Error>| match result {
        Err(error @ (Error::Impossible(_) | Error::Select(_))) => error.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(impossible(run("dcpi", &recording, &Options::default(), &file)).contains("not a folder"));
    assert!(impossible(run("dcpi", &recording, &Options::default(), Path::new("-"))).contains("folder"));
    let nobody = Options { processes: Some("1".to_string()).into(), ..Options::default() };
    assert!(impossible(run("mptl", &recording, &nobody, &file)).contains("no process 1 in the recording"));
    let old = Options { names: true, version: Some(10404), ..Options::default() };
    assert!(impossible(run("mtrc", &recording, &old, &file)).contains("hold no names"));
    let profile = recording.join("4711.made/profile.mptl");
    assert!(impossible(run("mtrc", &profile, &Options::default(), &file)).contains("needs events"));
}

fn converted(to: &str, files: &[&Path], options: &ConvertOptions, out: &Path) -> Result<Written, Error> {
    let files: Vec<PathBuf> = files.iter().map(|file| file.to_path_buf()).collect();
    convert::run(to, &files, &ConvertOptions { verify: true, ..options.clone() }, Some(out))
}

#[test]
fn conversions_conserve_what_both_formats_hold() {
    let (_dir, recording) = made::recording(&steps()[..200], &options());
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let options = ConvertOptions::default();
    let all_hold = |written: &Written| assert!(written.verdicts.iter().all(verify::Verdict::holds), "{written:?}");

    // A recording, and a trace alone, which has no stacks.
    all_hold(&converted("mtrc", &[&recording], &options, &at("t.mtrc")).unwrap());
    let bins = converted("mptl", &[&at("t.mtrc")], &options, &at("bins.mptl")).unwrap();
    assert!(bins.notes.iter().any(|note| note.contains("bins only")));
    all_hold(&bins);
    all_hold(&converted("mptl", &[&recording], &options, &at("p.mptl")).unwrap());

    // mpatrol's formats in all flavours, there and back.
    for flavour in Abi::ALL {
        let other =
            ConvertOptions { export: Options { flavour: Some(flavour), ..Options::default() }, ..options.clone() };
        for (to, first) in [("mtrc", "t.mtrc"), ("mptl", "p.mptl")] {
            let (there, back) = (at(&format!("{to}.{}", flavour.name())), at(&format!("{to}.back")));
            all_hold(&converted(to, &[&at(first)], &other, &there).unwrap());
            let le64 = ConvertOptions {
                export: Options { flavour: Some(Abi::LE64), ..Options::default() },
                ..options.clone()
            };
            all_hold(&converted(to, &[&there], &le64, &back).unwrap());
            assert!(std::fs::read(back).unwrap() == std::fs::read(at(first)).unwrap(), "{to} {}", flavour.name());
        }
    }

    // Sums: twice the same is twice as much, of the same stacks.
    let twice = converted("mptl", &[&at("p.mptl"), &at("p.mptl")], &options, &at("2.mptl")).unwrap();
    all_hold(&twice);
    let sites = |name: &str| Profile::read(&std::fs::read(at(name)).unwrap()).unwrap().0.sites.len();
    assert_eq!(sites("2.mptl"), sites("p.mptl"));

    // From stacks to arcs, to addresses, and between those.
    let graph = converted("gmon", &[&at("p.mptl")], &options, &at("g.gmon")).unwrap();
    all_hold(&graph);
    let read = |name: &str| gmon::read(&std::fs::read(at(name)).unwrap(), gmon::Hints::default()).unwrap();
    assert!(read("g.gmon").arcs().count() > 0);
    let addresses = converted("dcpi", &[&at("g.gmon")], &options, &at("d")).unwrap();
    all_hold(&addresses);
    assert!(addresses.notes.iter().any(|note| note.contains("arcs")));
    let back = converted("gmon", &[&addresses.files[0]], &options, &at("back.gmon")).unwrap();
    all_hold(&back);
    let bins = |name: &str| {
        let mut union = gmon::Union::default();
        union.add(&read(name)).unwrap();
        let mut bins: Vec<(u64, Vec<u64>)> = union.sums.into_iter().map(|sum| (sum.low, sum.bins)).collect();
        bins.sort();
        bins
    };
    assert_eq!(bins("g.gmon"), bins("back.gmon"));
    all_hold(&converted("dcpi", &[&at("p.mptl")], &options, &at("d2")).unwrap());
    let summed = converted("dcpi", &[&addresses.files[0], &addresses.files[0]], &options, &at("d3")).unwrap();
    all_hold(&summed);
    let bytes = std::fs::read(&summed.files[0]).unwrap();
    assert_eq!(Header::text(dcpi::read(&bytes).unwrap().header.event), "bytes");

    // Forms and flavours of gmon.out.
    for flavour in Abi::ALL {
        let other =
            ConvertOptions { export: Options { flavour: Some(flavour), ..Options::default() }, ..options.clone() };
        let name = format!("g.{}", flavour.name());
        all_hold(&converted("gmon", &[&at("g.gmon")], &other, &at(&name)).unwrap());
        assert_eq!(read(&name).abi, flavour);
        assert_eq!(bins(&name), bins("g.gmon"));
    }
}

#[test]
fn impossible_conversions_are_rejected_with_the_reason() {
    let (_dir, recording) = made::recording(&steps()[..60], &options());
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let options = ConvertOptions::default();
    converted("mtrc", &[&recording], &options, &at("t.mtrc")).unwrap();
    converted("mptl", &[&recording], &options, &at("p.mptl")).unwrap();
    converted("gmon", &[&at("p.mptl")], &options, &at("g.gmon")).unwrap();
    std::fs::write(at("text"), "a text that is no profile\n").unwrap();
    for (to, files, why) in [
        ("mtrc", vec!["p.mptl"], "consists of events"),
        ("mtrc", vec!["g.gmon"], "consists of events"),
        ("mptl", vec!["g.gmon"], "no block sizes"),
        ("gmon", vec!["t.mtrc"], "no addresses of callers"),
        ("dcpi", vec!["t.mtrc"], "no addresses of callers"),
        ("mtrc", vec!["t.mtrc", "t.mtrc"], "no common order"),
        ("gmon", vec!["p.mptl", "g.gmon"], "only files of the same format"),
        ("mptl", vec!["p.mptl", "t.mtrc"], "only files of the same format"),
        ("mptl", vec!["text"], "not a file of a known format"),
    ] {
        let files: Vec<PathBuf> = files.iter().map(|file| at(file)).collect();
        let files: Vec<&Path> = files.iter().map(PathBuf::as_path).collect();
        let error = converted(to, &files, &options, &at("never")).unwrap_err().to_string();
        assert!(error.contains(why), "{to} of {files:?}: {error}");
    }
    assert!(!at("never").exists());
}

#[test]
fn a_cut_recording_is_exported_as_far_as_it_goes() {
    let (_dir, recording) = made::recording(&steps(), &made::Options { end: false, summary: false, ..options() });
    let out = tempfile::tempdir().unwrap();
    for exporter in EXPORTERS.iter().filter(|exporter| exporter.name() != "parquet") {
        let target = out.path().join(exporter.name());
        let written =
            export::run(*exporter, std::slice::from_ref(&recording), &Options::default(), Some(&target), false)
                .unwrap();
        assert!(!written.is_whole() && !written.missing.is_empty(), "{}", exporter.name());
        assert!(!written.files.is_empty());
    }
}

/// A file may have a stack of all its sites at each of them: 10^10 frames here. The sums are taken
/// from the tree.
#[test]
fn stacks_as_deep_as_the_file_is_long_take_linear_time() {
    const DEPTH: u64 = 100_000;
    let dir = tempfile::tempdir().unwrap();
    let mut builder = mptl::Builder::new(mptl::layout::BOUNDS, mptl::Bins::new(16));
    for number in 1..=DEPTH {
        let symbol = builder.symbol(0x1000 * (number % 1000 + 1), b"f");
        let site = builder.site(number - 1, 0x1000 * (number % 1000 + 1) + 2 + number / 1000, Some(symbol));
        builder.alloc(site, 8);
    }
    let mut bytes = Vec::new();
    builder.build().write(&mut bytes);
    let file = dir.path().join("deep.mptl");
    std::fs::write(&file, bytes).unwrap();
    let written = converted("gmon", &[&file], &ConvertOptions::default(), &dir.path().join("deep.gmon")).unwrap();
    assert_eq!(sum(&written, "samples"), u128::from(8 * DEPTH));
    let read = gmon::read(&std::fs::read(&written.files[0]).unwrap(), gmon::Hints::default()).unwrap();
    // Function 2 calls function 3 and so on, repeatedly. Each pair counts what was allocated below
    // its first occurrence in the stack.
    let most = read.arcs().map(|arc| arc.count).max().unwrap();
    assert_eq!(most, 8 * (DEPTH - 1));
}

/// The same file for the formats that hold whole stacks: they are cut, and the sums are not.
#[test]
fn stacks_without_end_are_cut_in_other_formats() {
    const DEPTH: u64 = 20_000;
    let dir = tempfile::tempdir().unwrap();
    let mut builder = mptl::Builder::new(mptl::layout::BOUNDS, mptl::Bins::new(16));
    for number in 1..=DEPTH {
        let symbol = builder.symbol(0x1000 * (number % 1000 + 1), b"f");
        let site = builder.site(number - 1, 0x1000 * (number % 1000 + 1) + 2 + number / 1000, Some(symbol));
        if number % 1000 == 0 {
            builder.alloc(site, 8);
        }
    }
    let mut bytes = Vec::new();
    builder.build().write(&mut bytes);
    let file = dir.path().join("deep.mptl");
    std::fs::write(&file, bytes).unwrap();
    for exporter in EXPORTERS.iter().filter(|exporter| exporter.is_read_back()) {
        // Some formats write a file for each object, and without modules there are no objects.
        if exporter.needs().events || exporter.needs().shape == export::Shape::Folder {
            continue;
        }
        let target = dir.path().join(exporter.name());
        let written = exported(exporter.name(), &file, &Options::default(), &target);
        assert!(written.is_whole(), "{}: {written:?}", exporter.name());
    }
}

/// A peak in the last millisecond comes before the end.
#[test]
fn last_snapshot_of_massif_is_that_of_the_end() {
    let steps = [
        Step::Alloc { index: 1, size: 1000, site: 1, thread: 1, tick: 100 },
        Step::Alloc { index: 2, size: 5000, site: 2, thread: 1, tick: 200 },
        Step::Free { index: 2, thread: 1, tick: 300 },
    ];
    let (_dir, path) = made::recording(&steps, &made::Options::default());
    let out = tempfile::tempdir().unwrap();
    let written = exported("massif", &path, &Options::default(), &out.path().join("massif.out"));
    let text = std::fs::read_to_string(&written.files[0]).unwrap();
    let sizes: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("mem_heap_B=")).collect();
    assert_eq!(sizes.last(), Some(&"1000"), "{text}");
    assert!(sizes.contains(&"6000"), "{text}");
}
