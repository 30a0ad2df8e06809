//! DCPI profile files: the sample files' ground truth, round trips, hostile bytes.

#[path = "../../tests/src/random.rs"]
mod random;

use heaptape_formats::dcpi::{self, Builder, Epoch, HeaderFields};
use heaptape_formats::{Ending, Kind};
use random::Random;
use std::path::{Path, PathBuf};

fn golden(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/dcpi").join(folder);
    let mut paths: Vec<PathBuf> = std::fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("a readable folder").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "dcpi"))
        .collect();
    paths.sort();
    assert!(!paths.is_empty());
    paths
}

fn bytes(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn dumped(bytes: &[u8], stride: Option<u32>) -> String {
    let mut out = Vec::new();
    dcpi::dump(bytes, stride, &mut out).expect("a vector takes all");
    String::from_utf8(out).expect("a dump is text")
}

#[test]
fn good_and_unusual_files_match_their_ground_truth() {
    for path in golden("good").into_iter().chain(golden("unusual")) {
        let file = bytes(&path);
        for stride in [1, 4] {
            let expected =
                std::fs::read_to_string(path.with_extension(format!("stride{stride}.txt"))).expect("its dump");
            assert_eq!(dumped(&file, Some(stride)), expected, "{} stride {stride}", path.display());
        }
        assert_eq!(dumped(&file, None), dumped(&file, Some(4)));
        let profile =
            dcpi::read(&file).and_then(dcpi::Profile::strict).unwrap_or_else(|error| panic!("{path:?}: {error}"));
        assert_eq!(profile.ending, Ending::Complete);
    }
}

#[test]
fn warnings_appear_only_for_unusual_content() {
    for path in golden("good") {
        let (file, name) = (bytes(&path), path.display());
        let profile = dcpi::read(&file).expect("a good file");
        let beyond_text =
            |warning: &heaptape_formats::Error| matches!(warning.kind, Kind::Bad(_, what) if what.contains("tsize"));
        assert!(profile.warnings.iter().all(beyond_text), "{name}: {:?}", profile.warnings);
    }
    for (name, field) in [
        ("v007-period-twice", "period"),
        ("v007-path-twice", "path"),
        ("v007-beyond-text", "offset"),
        ("v007-stride4-overlap", "offset"),
        ("v007-misaligned-offset", "offset"),
    ] {
        let file = bytes(
            &golden("unusual").into_iter().find(|path| path.file_stem().is_some_and(|stem| stem == name)).expect(name),
        );
        let profile = dcpi::read(&file).expect("a readable file");
        assert!(profile.warnings.iter().any(|warning| warning.field == field), "{name}: {:?}", profile.warnings);
    }
}

#[test]
fn read_written_and_read_again_is_the_same() {
    for path in golden("good").into_iter().chain(golden("unusual")) {
        let file = bytes(&path);
        let written = dcpi::write(&dcpi::read(&file).expect("a readable file"));
        assert_eq!(written, file, "{}", path.display());
    }
    let undocumented = bytes(&golden("bad").into_iter().find(|path| path.ends_with("v101-major1.dcpi")).expect("it"));
    assert_eq!(dcpi::write(&dcpi::read(&undocumented).expect("its header")), undocumented);
}

#[test]
fn a_header_that_is_copied_keeps_its_unknown_lines() {
    for path in golden("good") {
        let file = bytes(&path);
        let profile = dcpi::read(&file).expect("a good file");
        let mut builder = Builder::like(&profile.header);
        builder.lines().set("event", b"imiss");
        for (address, count) in profile.samples() {
            builder.add(address, u64::from(count));
        }
        let built = builder.finish().expect("it was built before");
        let again = dcpi::read(&built.bytes).and_then(dcpi::Profile::strict).expect("a file of ours");
        assert!(again.header.is_aligned());
        assert_eq!(again.header.event, b"imiss");
        assert_eq!(again.samples().collect::<Vec<_>>(), profile.samples().collect::<Vec<_>>(), "{}", path.display());
        assert_eq!(again.header.period, profile.header.period);
        let others = |header: &dcpi::Header<'_>| {
            let kept = header.lines().filter(|line| line.word() != b"event" && !line.is_terminator());
            kept.map(|line| line.raw.to_vec()).collect::<Vec<_>>()
        };
        assert_eq!(others(&again.header), others(&profile.header));
    }
}

/// Each broken file: field and offset of the first error, and what is still shown.
#[test]
fn bad_files_say_what_and_where() {
    let mut found = String::new();
    for path in golden("bad") {
        let file = bytes(&path);
        let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let shown = match dcpi::read(&file) {
            Ok(profile) => {
                let addresses = profile.samples().count();
                let fault = profile.faults.iter().next().map_or("no error".to_string(), |fault| fault.to_string());
                format!("{fault}; {addresses} addresses, {} warnings", profile.warnings.total)
            }
            Err(error) => error.to_string(),
        };
        found += &format!("{name}: {shown}\n");
    }
    let expected = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/dcpi/bad.txt");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&expected, &found).expect("a writable golden file");
    }
    assert_eq!(found, std::fs::read_to_string(&expected).expect("BLESS=1 makes it"));
}

/// A file cut anywhere is read as far as it goes, and never shows an address that the whole file
/// does not have.
#[test]
fn cut_at_every_byte() {
    let file = bytes(&golden("good").into_iter().find(|path| path.ends_with("v007-unknown-lines.dcpi")).expect("it"));
    let header = dcpi::read(&file).expect("a good file").header.len();
    let whole = dumped(&file, None);
    for end in 0..file.len() {
        match dcpi::read(&file[..end]) {
            Err(error) => {
                assert!(end < header, "{end}: {error}");
                assert_eq!((error.field, error.offset, &error.kind), ("samples", end as u64, &Kind::Truncated));
            }
            Ok(profile) => {
                assert!(end >= header);
                assert!(!profile.faults.is_empty(), "{end}");
            }
        }
        for line in dumped(&file[..end], None)
            .lines()
            .filter(|line| line.starts_with("required") || line.starts_with("unknown"))
        {
            assert!(whole.contains(line), "{end}: {line}");
        }
    }
    for end in file.len() - 8..file.len() {
        let profile = dcpi::read(&file[..end]).expect("a whole header");
        assert!(matches!(profile.ending, Ending::Truncated { field: "footer", .. }));
        assert_eq!(profile.samples().count(), 5, "only the footer was cut");
    }
}

/// All that a caller may do with bytes; says how much it was given.
fn use_all(bytes: &[u8]) -> u64 {
    let mut seen = 0;
    for stride in [None, Some(1), Some(u32::MAX)] {
        if let Ok(profile) = dcpi::read_at(bytes, stride) {
            seen += profile.chunks().map(|chunk| chunk.counts().len() as u64).sum::<u64>();
            seen += profile.samples().map(|(_, count)| u64::from(count > 0)).sum::<u64>();
            assert_eq!(profile.chunks().count() as u64, profile.chunks);
            let sums = profile.chunks().map(|chunk| chunk.totals()).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
            assert_eq!(sums, (profile.total_offsets, profile.total_samples));
            assert!(profile.faults.iter().count() <= 100 && profile.warnings.iter().count() <= 100);
            let written = dcpi::write(&profile);
            assert!(written.len() <= bytes.len() + 8);
            let _ = profile.header.time();
        }
    }
    let mut out = Vec::new();
    dcpi::dump(bytes, None, &mut out).expect("a vector takes all");
    assert!(out.len() <= 40 * bytes.len() + 400, "{} from {}", out.len(), bytes.len());
    dcpi::sniff(bytes);
    heaptape_formats::sniff::sniff(bytes);
    seen
}

#[test]
fn one_flipped_byte() {
    let good = golden("good").into_iter().map(|path| (path, &[0x01, 0x80, 0xff][..]));
    let bad = golden("bad").into_iter().map(|path| (path, &[0x20][..]));
    for (path, flips) in good.chain(bad).filter(|(path, _)| !path.ends_with("v007-many.dcpi")) {
        let mut file = bytes(&path);
        for index in 0..file.len() {
            for &bits in flips {
                file[index] ^= bits;
                use_all(&file);
                file[index] ^= bits;
            }
        }
    }
}

#[test]
fn random_bodies_and_headers() {
    let file = bytes(&golden("good").into_iter().find(|path| path.ends_with("v007-all-lines.dcpi")).expect("it"));
    let header = dcpi::read(&file).expect("a good file").header.len();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for round in 0..3000 {
        let mut bytes = file[..header].to_vec();
        let small = random.below(3) > 0;
        for _ in 0..random.below(400) {
            bytes.push(if small && random.below(4) > 0 { 0 } else { random.next() as u8 });
        }
        use_all(&bytes);
        let mut text = Vec::new();
        for _ in 0..random.below(60) {
            let line = file[..header].split_inclusive(|&byte| byte == b'\n').nth(random.below(14) as usize);
            text.extend_from_slice(line.unwrap_or(b"\n"));
            if round % 3 == 0 {
                text.push(random.next() as u8);
            }
        }
        use_all(&text);
    }
}

/// Chunks that all overlap, a footer's worth of zero numbers, a header of a million empty lines:
/// linear time, few remarks.
#[test]
fn hostile_files_take_linear_time() {
    let file = bytes(&golden("good").into_iter().find(|path| path.ends_with("v007-required-only.dcpi")).expect("it"));
    let header = &file[..dcpi::read(&file).expect("a good file").header.len()];
    let started = std::time::Instant::now();
    let overlapping = [header, &[0, 0, 0, 0, 1, 0, 0, 0, 255, 255, 255, 255].repeat(400_000)].concat();
    assert!(use_all(&overlapping) > 400_000);
    assert!(dcpi::read(&overlapping).expect("a whole header").faults.total >= 399_999);
    let zeros = [header, &vec![0; 4_000_000]].concat();
    use_all(&zeros);
    let empty_lines = [&b"\n".repeat(1_000_000), header].concat();
    use_all(&empty_lines);
    let no_terminator = b"version pdb-0.07\n".repeat(200_000);
    use_all(&no_terminator);
    assert!(started.elapsed().as_secs() < 60, "quadratic");
}

fn head<'a>() -> HeaderFields<'a> {
    HeaderFields {
        image: "b1d0cafe00112233445566778899aabbccddeeff",
        unix_seconds: 1_795_249_800,
        platform: "box",
        event: "alloc-bytes",
        tstart: 0x40_1000,
        tsize: 0x1_0000,
        cpuspeed: 2800,
        cpucount: Some(2),
        path: Some("/usr/bin/some thing"),
        further: &[("label", "nightly")],
    }
}

#[test]
fn a_file_of_ours_says_stride_one() {
    let mut builder = Builder::new(&head()).expect("a plain head");
    for (address, count) in
        [(0x40_1007, 3), (0x40_1005, 1), (0x40_1007, 4), (0x40_2000, 9), (0x40_1030, 0), (0x40_100b, 2)]
    {
        builder.add(address, count);
    }
    let built = builder.finish().expect("all in the text");
    let profile = dcpi::read(&built.bytes).and_then(dcpi::Profile::strict).expect("a file of ours");
    assert!(profile.warnings.is_empty() && profile.header.is_aligned());
    assert_eq!(profile.samples().collect::<Vec<_>>(), [(0x40_1005, 1), (0x40_1007, 7), (0x40_100b, 2), (0x40_2000, 9)]);
    // Three zeros between 7 and b: a chunk of its own is smaller.
    assert_eq!(profile.chunks, 3);
    assert_eq!((built.period, built.exact, built.samples, built.vanished, built.saturated), (1, 19, 19, 0, 0));
    assert_eq!((profile.stride, profile.header.period, profile.header.cpucount), (1, 1, Some(2)));
    assert_eq!(profile.header.get("label"), Some(&b"nightly"[..]));
    assert_eq!(profile.header.path, Some(&b"/usr/bin/some thing"[..]));
    assert_eq!(profile.header.time(), Some(Epoch { second: 0, ..Epoch::from_unix(1_795_249_800) }));
    assert!(built.bytes.starts_with(b"version pdb-0.07\nimage b1d0"));
}

#[test]
fn counts_beyond_32_bits_choose_a_period() {
    let mut random = Random(7);
    for round in 0..200u64 {
        let mut builder = Builder::new(&head()).expect("a plain head");
        let mut given = std::collections::BTreeMap::new();
        for _ in 0..1 + random.below(300) {
            let count = random.next() >> random.below(64);
            let count = if round == 0 { 1 << 63 } else { count };
            let address = 0x40_1000 + random.below(0x1_0000);
            given.entry(address).or_insert_with(|| {
                builder.add(address, count);
                count
            });
        }
        let Ok(built) = builder.finish() else { panic!("all in the text") };
        let profile = dcpi::read(&built.bytes).and_then(dcpi::Profile::strict).expect("a file of ours");
        assert_eq!(profile.header.period, built.period);
        assert_eq!(profile.total_samples, built.samples);
        assert!(profile.total_samples <= u64::from(u32::MAX), "no reader needs to know about wrapping");
        assert_eq!(built.saturated, 0);
        if built.exact <= u128::from(u32::MAX) {
            assert_eq!((built.period, u128::from(built.samples), built.vanished), (1, built.exact, 0));
        }
        for (address, count) in profile.samples() {
            let exact = u128::from(given[&address]);
            let estimate = u128::from(count) * u128::from(built.period);
            assert!(estimate.abs_diff(exact) <= u128::from(built.period / 2 + 1));
        }
    }
}

#[test]
fn what_the_format_cannot_hold_is_refused() {
    let field = |head: &HeaderFields<'_>| Builder::new(head).expect_err("not a header line").field;
    assert_eq!(field(&HeaderFields { image: "0x12", ..head() }), "image");
    assert_eq!(field(&HeaderFields { image: "", ..head() }), "image");
    assert_eq!(field(&HeaderFields { path: Some("/a\nsamples"), ..head() }), "path");
    assert_eq!(field(&HeaderFields { event: " x", ..head() }), "event");
    assert_eq!(field(&HeaderFields { platform: "", ..head() }), "platform");
    assert_eq!(field(&HeaderFields { further: &[("two words", "x")], ..head() }), "line");
    for address in [0x40_0fff, 0x40_1000 + (1 << 32), u64::MAX] {
        let mut builder = Builder::new(&head()).expect("a plain head");
        builder.add(address, 1);
        assert_eq!(builder.finish().expect_err("out of reach").field, "offset");
    }
}

#[test]
fn a_kept_period_saturates_and_a_stride_gathers() {
    let file = bytes(&golden("good").into_iter().find(|path| path.ends_with("v007-required-only.dcpi")).expect("it"));
    let header = dcpi::read(&file).expect("a good file").header;
    let mut builder = Builder::like(&header).stride(4);
    builder.add(header.tstart + 5, u64::from(u32::MAX));
    builder.add(header.tstart + 6, 1);
    builder.add(header.tstart + 8, 2);
    let built = builder.finish().expect("all in the text");
    assert_eq!((built.saturated, built.exact), (1, u128::from(u32::MAX) + 3));
    let profile = dcpi::read(&built.bytes).and_then(dcpi::Profile::strict).expect("a file of ours");
    assert_eq!(profile.samples().collect::<Vec<_>>(), [(header.tstart + 4, u32::MAX), (header.tstart + 8, 2)]);
    assert_eq!(profile.header.get("heaptape-stride"), None, "other readers expect a stride of four bytes");
}
