//! gmon.out: the samples' ground truth, byte-identical rewriting, hostile bytes, sums.

#[path = "../../tests/src/random.rs"]
mod random;

use heaptape_formats::gmon::{self, Builder, Form, Gmon, Hints, Record, Union, Unit};
use heaptape_formats::{Abi, Ending, Kind};
use random::Random;
use std::path::{Path, PathBuf};

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/gmon")
}

fn samples(folder: &str) -> Vec<(String, Vec<u8>)> {
    let entries = std::fs::read_dir(golden().join(folder)).expect("the golden folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut found: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|extension| extension == "gmon"))
        .map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), std::fs::read(&path).unwrap()))
        .collect();
    found.sort();
    assert!(!found.is_empty());
    found
}

fn good() -> Vec<(String, Vec<u8>)> {
    ["real", "hand", "bsd", "alloc"].iter().flat_map(|folder| samples(folder)).collect()
}

fn bytes(file: &str) -> Vec<u8> {
    std::fs::read(golden().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

fn read(bytes: &[u8]) -> heaptape_formats::Result<Gmon> {
    gmon::read(bytes, Hints::default())
}

fn dump(gmon: &Gmon) -> String {
    let mut out = Vec::new();
    gmon::dump(gmon, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn every_sample_dumps_as_its_ground_truth() {
    let mut compared = 0;
    for folder in ["real", "hand", "bsd", "alloc"] {
        for (name, bytes) in samples(folder) {
            let Ok(truth) = std::fs::read_to_string(golden().join(folder).join(format!("{name}.dump"))) else {
                continue;
            };
            // The first line has the file's name and size; the rate of old BSD files is explained
            // at length.
            let truth = truth.split_once('\n').unwrap().1;
            let truth = truth.replace("the file; gprof takes its own clock rate, 100 here)", "the file)");
            let found = read(&bytes).unwrap_or_else(|error| panic!("{folder}/{name}: {error}"));
            let dumped = dump(&found);
            let plain: String =
                dumped.lines().filter(|line| !line.starts_with("note")).map(|l| format!("{l}\n")).collect();
            assert_eq!(plain, truth, "{folder}/{name}");
            compared += 1;
        }
    }
    assert!(compared >= 55, "only {compared} dumps");
}

#[test]
fn every_sample_is_written_as_it_was() {
    for (name, bytes) in good() {
        let found = read(&bytes).unwrap();
        assert!(found.ending.is_complete(), "{name}");
        assert_eq!(gmon::write(&found).unwrap(), bytes, "{name}");
    }
    let profile = bytes("so/libwork.so.1.profile");
    let found = read(&profile).unwrap();
    assert_eq!(gmon::write(&found).unwrap(), profile);
}

#[test]
fn profile_of_a_shared_object_has_link_time_addresses() {
    let found = read(&bytes("so/libwork.so.1.profile")).unwrap();
    assert_eq!((found.form, found.abi, found.counts()), (Form::LdProfile, Abi::LE64, [1, 4, 0]));
    let arcs: Vec<_> = found.arcs().map(|arc| (arc.from, arc.to, arc.count)).collect();
    assert_eq!(arcs, [(0, 0x1140, 2000), (0x1155, 0x1109, 2000), (0x1168, 0x1109, 2000), (0, 0x116b, 500)]);
    let histogram = found.histograms().next().unwrap();
    let bins: Vec<_> = histogram.bins.iter().enumerate().filter(|(_, bin)| **bin > 0).map(|(i, b)| (i, *b)).collect();
    assert_eq!(bins, [(70, 3), (72, 1), (73, 1), (76, 2), (77, 7)]);
}

#[test]
fn flavour_given_agrees_with_flavour_found() {
    for (name, bytes) in good() {
        let found = read(&bytes).unwrap();
        let again = gmon::read(&bytes, Hints { form: Some(found.form), abi: Some(found.abi) }).unwrap();
        assert_eq!(found, again, "{name}");
    }
}

/// A readable file is written byte for byte, even if it is truncated.
fn holds(bytes: &[u8], what: &str) -> Option<Gmon> {
    let found = read(bytes).ok()?;
    assert!(gmon::write(&found).unwrap() == bytes, "{what}: not the same bytes");
    let held = |record: &Record| match record {
        Record::Histograms(run) => 2 * run.bins.len() + 8 * run.ranges.len(),
        Record::Arcs(arcs) => 12 * arcs.len(),
        Record::Blocks(blocks) => 8 * blocks.blocks.len(),
    };
    assert!(found.records.iter().map(held).sum::<usize>() <= bytes.len(), "{what}: more than the file holds");
    dump(&found);
    let mut union = Union::default();
    let _ = union.add(&found);
    Some(found)
}

#[test]
fn cut_at_every_byte() {
    let files =
        ["hand/ranges3", "hand/ranges3-32be", "hand/bb-hist-arc", "hand/mixed-order", "bsd/bsd44-64be", "bsd/old-32"];
    for file in files {
        let whole = bytes(&format!("{file}.gmon"));
        let full = read(&whole).unwrap();
        let hints = Hints { form: Some(full.form), abi: Some(full.abi) };
        for length in 0..whole.len() {
            let what = format!("{file} cut at {length}");
            holds(&whole[..length], &what);
            // With its abi known: an error in the header, else everything before the cut.
            match gmon::read(&whole[..length], hints) {
                Err(error) => {
                    assert!(length < 40 && matches!(error.kind, Kind::Truncated | Kind::Magic), "{what}: {error}")
                }
                Ok(part) => {
                    assert_eq!(gmon::write(&part).unwrap(), whole[..length], "{what}");
                    if let Ending::Truncated { offset, .. } = part.ending {
                        assert!(offset <= length as u64, "{what}");
                    }
                    assert!(part.counts().iter().zip(full.counts()).all(|(part, full)| *part <= full), "{what}");
                }
            }
        }
    }
}

#[test]
fn cut_histogram_keeps_its_bins() {
    let part = read(&bytes("bad/cut-at-116.gmon")).unwrap();
    assert_eq!(part.ending, Ending::Truncated { offset: 116, field: "bins" });
    let last = part.histograms().last().unwrap();
    assert_eq!((last.size, last.bins.len()), (5, 2));
    assert_eq!(part.truncation().unwrap().to_string(), "gmon.out: offset 116: bins: the file ends here");
}

#[test]
fn flipped_bytes() {
    for file in ["hand/bb-hist-arc", "hand/ranges3-32be", "bsd/bsd44-32", "hand/bb-64be"] {
        let whole = bytes(&format!("{file}.gmon"));
        for position in 0..whole.len().min(400) {
            for flip in [0x01, 0x80, 0xff, 0x40] {
                let mut flipped = whole.clone();
                flipped[position] ^= flip;
                holds(&flipped, &format!("{file} flipped at {position}"));
            }
        }
    }
    let whole = bytes("so/libwork.so.1.profile");
    for position in (0..64).chain(0x830..0x8a0) {
        let mut flipped = whole.clone();
        flipped[position] ^= 0xff;
        holds(&flipped, &format!("profile flipped at {position}"));
    }
}

#[test]
fn random_bytes() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for round in 0..20_000 {
        let length = random.below(200) as usize;
        let mut bytes: Vec<u8> = (0..length).map(|_| random.next() as u8).collect();
        if round % 2 == 0 && length > 20 {
            bytes[..8].copy_from_slice(b"gmon\x01\0\0\0");
            // Tags more often than chance would have them.
            bytes.iter_mut().skip(20).step_by(7).for_each(|byte| *byte %= 3);
        }
        holds(&bytes, &format!("round {round}"));
        for abi in Abi::ALL {
            for form in [Form::Magic, Form::Bsd, Form::Bsd44, Form::LdProfile] {
                if let Ok(found) = gmon::read(&bytes, Hints { form: Some(form), abi: Some(abi) }) {
                    assert_eq!(gmon::write(&found).unwrap(), bytes, "round {round} {form:?} {abi:?}");
                }
            }
        }
    }
}

#[test]
fn broken_samples() {
    let text = |name: &str| read(&bytes(&format!("bad/{name}.gmon"))).map(|_| ()).unwrap_err().to_string();
    assert_eq!(text("cookie-gmoN"), "gmon.out: offset 0: cookie: not the expected magic bytes");
    assert_eq!(text("cookie-elf"), "gmon.out: offset 0: cookie: not the expected magic bytes");
    assert_eq!(text("version-2"), "gmon.out: offset 4: version: version 2 is not one that can be read");
    assert_eq!(text("version-ffffffff"), "gmon.out: offset 4: version: version 4294967295 is not one that can be read");
    assert_eq!(text("version-10000"), "gmon.out: offset 4: version: version 65536 is not one that can be read");
    assert_eq!(text("cut-at-0"), "gmon.out: offset 0: cookie: the file ends here");
    assert_eq!(text("cut-at-10"), "gmon.out: offset 8: spare: the file ends here");
    let tag = "where 0 (histogram), 1 (arc) or 2 (basic blocks) belongs";
    assert!(text("tag-3").ends_with(&format!("tag: 3 (0x3) {tag}")), "{}", text("tag-3"));
    assert_eq!(text("tag-255-first"), format!("gmon.out: offset 20: tag: 255 (0xff) {tag}"));
    assert!(text("hist-count-is-bytes").contains("tag: "));

    let cut =
        |name: &str| read(&bytes(&format!("bad/{name}.gmon"))).unwrap().truncation().map(|truncation| truncation.field);
    assert_eq!(cut("hist-huge-count"), Some("bins"));
    assert_eq!(cut("bb-cut"), Some("address, count"));
    assert_eq!(cut("bb-count-too-big"), Some("address, count"));
    assert_eq!(cut("bsd44-bins-cut"), Some("bins"));
    assert_eq!(cut("tag-after-arcs-one-byte"), Some("from_pc"));
    assert_eq!(cut("bsd44-arc-cut"), None);

    let note = |name: &str| read(&bytes(&format!("bad/{name}.gmon"))).unwrap().notes.first().map(|note| note.field);
    assert_eq!(note("hist-zero-bins"), Some("hist_size"));
    assert_eq!(note("hist-low-eq-high"), Some("high_pc"));
    assert_eq!(note("hist-low-above-high"), Some("high_pc"));
    assert_eq!(note("hist-rate-0"), Some("prof_rate"));
    assert_eq!(note("hist-1-byte-bins"), Some("hist_size"));
    assert_eq!(note("touching-ok"), None);

    let union = |name: &str| {
        let mut union = Union::default();
        union.add(&read(&bytes(&format!("bad/{name}.gmon"))).unwrap()).map_err(|error| error.to_string())
    };
    assert_eq!(union("touching-ok"), Ok(()));
    for name in ["overlap-shifted", "overlap-inside", "overlap-around"] {
        assert!(union(name).unwrap_err().contains("low_pc: overlapping histogram records"), "{name}");
    }
    for name in ["same-range-other-bins", "scale-differs", "hist-zero-bins-then-good"] {
        assert!(union(name).unwrap_err().contains("different scales in histogram records"), "{name}");
    }
    assert!(union("dim-differs").unwrap_err().contains("from 'seconds' to 'bytes'"));
    assert!(union("abbrev-differs").unwrap_err().contains("from 's' to 'b'"));
}

#[test]
fn bsd_forms_by_name() {
    let named = |file: &str, form| gmon::read(&bytes(file), Hints { form: Some(form), abi: Some(Abi::LE64) });
    let small = named("bad/bsd-old-ncnt-small.gmon", Form::Bsd).unwrap_err().to_string();
    assert_eq!(small, "gmon.out: offset 16: ncnt: 5 (0x5) where at least the length of the header belongs");
    let wrong = named("bsd/old-64.gmon", Form::Bsd44).unwrap_err();
    assert_eq!((wrong.field, wrong.offset), ("version", 20));
    assert_eq!(named("bsd/old-64.gmon", Form::Magic).unwrap_err().field, "cookie");
    let half_bin = named("bad/bsd-old-half-bin.gmon", Form::Bsd).unwrap();
    assert!(half_bin.has_half_bin && half_bin.counts() == [1, 3, 0]);
    let cut = named("bad/bsd44-arc-cut.gmon", Form::Bsd44).unwrap();
    assert_eq!((cut.counts(), cut.tail.len()), ([1, 2, 0], 15));
}

#[test]
fn sum_of_three_runs_is_gprofs() {
    let mut union = Union::default();
    for run in ["run1", "run2", "run3"] {
        union.add(&read(&bytes(&format!("real/{run}.gmon"))).unwrap()).unwrap();
    }
    let sum = read(&bytes("real/sum.gmon")).unwrap();
    let bins: Vec<u64> = sum.histograms().next().unwrap().bins.iter().map(|&bin| u64::from(bin)).collect();
    assert_eq!(union.sums.len(), 1);
    assert_eq!(union.sums[0].bins, bins);
    assert_eq!(union.arcs.iter().map(|arc| arc.count).sum::<u64>(), sum.arcs().map(|arc| arc.count).sum::<u64>());
}

#[test]
fn sums_above_the_fields_are_repeated() {
    let mut union = Union::default();
    union.add(&read(&bytes("hand/same3.gmon")).unwrap()).unwrap();
    assert_eq!(union.arcs.iter().map(|arc| arc.count).collect::<Vec<_>>(), [8_000_000_000]);
    let written = gmon::write(&union.to_gmon(Form::Magic, Abi::LE64).unwrap()).unwrap();
    let mut again = Union::default();
    again.add(&read(&written).unwrap()).unwrap();
    assert_eq!((&again.sums, &again.arcs), (&union.sums, &union.arcs));
    let single = gmon::write(&union.to_gmon(Form::Bsd44, Abi::LE64).unwrap()).unwrap_err();
    assert!(single.to_string().contains("exactly one histogram"), "{single}");
}

#[test]
fn unions_are_written_in_every_form_and_flavour() {
    let source = read(&bytes("bsd/old-64.gmon")).unwrap();
    let mut union = Union::default();
    union.add(&source).unwrap();
    for abi in Abi::ALL {
        for form in [Form::Magic, Form::Bsd, Form::Bsd44] {
            let written = gmon::write(&union.to_gmon(form, abi).unwrap()).unwrap();
            let found = read(&written).unwrap();
            assert_eq!((found.form, found.abi), (form, abi));
            let mut again = Union::default();
            again.add(&found).unwrap();
            assert_eq!((&again.sums, &again.arcs), (&union.sums, &union.arcs), "{form:?} {abi:?}");
        }
    }
}

#[test]
fn builder_holds_any_sum() {
    let mut builder = Builder::new(Abi::LE64, Unit::counted("bytes", b'b'));
    builder.sample(0x1001, 0, 65_535);
    builder.sample(0x1000, 0, 65_536);
    builder.sample(0x2000, 0x2010, 10_000_000_000);
    builder.arc(0x3000, 0x1000, 5_000_000_000);
    builder.arc(0x3000, 0x1000, 5_000_000_000);
    let made = builder.finish().unwrap();
    let again = read(&gmon::write(&made).unwrap()).unwrap();
    let mut union = Union::default();
    union.add(&again).unwrap();
    let sums: Vec<_> = union.sums.iter().map(|sum| (sum.low, sum.high, sum.bins[0])).collect();
    let full = u64::from(u32::MAX);
    let rest = 10_000_000_000 - 2 * full;
    assert_eq!(
        sums,
        [(0x1000, 0x1002, 131_071), (0x2000, 0x2002, full), (0x2002, 0x2004, full), (0x2004, 0x2006, rest)]
    );
    assert_eq!(union.arcs, [gmon::Arc { from: 0x3000, to: 0x1000, count: 10_000_000_000 }]);
    assert_eq!(union.rate(), 1);

    let mut full = Builder::new(Abi::LE64, Unit::counted("bytes", b'b'));
    full.sample(0x2000, 0x2002, 1 << 33);
    assert_eq!(full.finish().unwrap_err().field, "bins");
    let mut narrow = Builder::new(Abi::BE32, Unit::counted("bytes", b'b'));
    narrow.sample(1 << 32, 0, 1);
    assert_eq!(narrow.finish().unwrap_err().field, "low_pc");
    let mut calls = Builder::new(Abi::LE32, Unit::counted("calls", b'1'));
    calls.arc(1, 2, u64::MAX);
    assert_eq!(calls.finish().unwrap_err().field, "count");
}

#[test]
fn builder_makes_the_sample_of_allocated_bytes() {
    let sample = read(&bytes("alloc/allocs.bytes.gmon")).unwrap();
    let mut union = Union::default();
    union.add(&sample).unwrap();
    let mut builder = Builder::new(Abi::LE64, Unit::counted("bytes", b'b'));
    union.sums.iter().for_each(|sum| builder.sample(sum.low, 0, sum.bins[0]));
    union.arcs.iter().for_each(|arc| builder.arc(arc.from, arc.to, arc.count));
    let mut made = Union::default();
    made.add(&builder.finish().unwrap()).unwrap();
    let sorted = |union: &Union| {
        let (mut sums, mut arcs) = (union.sums.clone(), union.arcs.clone());
        sums.sort_by_key(|sum| sum.low);
        arcs.sort_by_key(|arc| (arc.from, arc.to));
        (sums, arcs)
    };
    assert_eq!(sorted(&made), sorted(&union));
    assert_eq!(made.unit, union.unit);
}
