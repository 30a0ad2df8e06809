//! MPTL: files of the real library come back byte for byte, and their numbering is reproduced;
//! hostile bytes end in an ending or an error, and what is read keeps what `Profile` promises.

use heaptape_formats::mptl::{self, Bins, Builder, Profile, Sums};
use heaptape_formats::{Abi, Ending};
use proptest::prelude::*;
use std::fs;
use std::path::PathBuf;

fn samples() -> Vec<(String, Vec<u8>)> {
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/mpatrol");
    let mut found = Vec::new();
    for folder in [golden.clone(), golden.join("edge")] {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "mpt") {
                found.push((path.file_name().unwrap().to_string_lossy().into_owned(), fs::read(&path).unwrap()));
            }
        }
    }
    found.sort();
    assert!(found.len() > 25);
    found
}

fn sample(name: &str) -> Vec<u8> {
    samples().into_iter().find(|(found, _)| found == name).unwrap().1
}

/// What is promised of every profile that was read.
fn promised(profile: &Profile) {
    let (sites, data) = (profile.site_positions(), profile.data_positions());
    for site in &profile.sites {
        assert_eq!(profile.sites[sites[site.index as usize - 1]].index, site.index);
        assert!(site.data == 0 || profile.data[data[site.data as usize - 1]].index == site.data);
        assert_eq!(site.name != 0, profile.name(site.name).is_some());
        assert_eq!(site.symbol != 0, profile.symbol(site.symbol).is_some());
        let (mut steps, mut parent) = (0, site.parent);
        while parent != 0 {
            parent = profile.sites[sites[parent as usize - 1]].parent;
            steps += 1;
            assert!(steps <= profile.sites.len());
        }
    }
    assert_eq!(profile.bins.allocated.len(), profile.bins.freed.len());
}

#[test]
fn every_sample_is_rewritten_byte_for_byte() {
    let refused = ["pbadend", "pcycle", "pidx0", "pname", "pparent9", "pver10299", "pver10600"];
    for (name, bytes) in samples() {
        match Profile::read(&bytes) {
            Ok((profile, ending)) => {
                assert_eq!(ending.is_complete(), name != "ptrunc.mpt", "{name}");
                promised(&profile);
                let mut out = Vec::new();
                profile.write(&mut out);
                assert!(out == bytes || !ending.is_complete(), "{name}");
            }
            Err(error) => assert!(refused.iter().any(|bad| name.starts_with(bad)), "{name}: {error}"),
        }
        assert!(Profile::read(&bytes).is_ok() || refused.iter().any(|bad| name.starts_with(bad)));
    }
}

#[test]
fn errors_name_offset_and_field() {
    let error = |name: &str| Profile::read(&sample(name)).unwrap_err().to_string();
    assert_eq!(
        error("pname.mpt"),
        "MPTL: offset 452: name offset: 999999 (0xf423f) where no name of the string table starts there"
    );
    assert_eq!(error("pcycle.mpt"), "MPTL: offset 428: parent index: 1 (0x1) where the callers form a loop");
    assert_eq!(error("pidx0.mpt"), "MPTL: offset 420: site index: 0 (0x0) where indexes go from 1 to the count");
    assert_eq!(error("pbadend.mpt"), "MPTL: offset 604: end mark: not the expected magic bytes");
}

#[test]
fn the_builder_numbers_as_the_real_library_did() {
    let samples = samples().into_iter().filter(|(name, _)| !name.starts_with('p') && !name.starts_with("no"));
    for (name, bytes) in samples {
        let (profile, _) = Profile::read(&bytes).unwrap();
        let mut builder = Builder::new(profile.bounds, profile.bins.clone());
        let name_of = |number: u64| profile.sites.iter().find(|site| site.symbol == number).map(|site| site.name);
        // Symbols are declared backwards: their numbers must come from use, not from declaration.
        let mut symbols: Vec<_> = (1..=profile.symbols.len() as u64)
            .rev()
            .map(|number| {
                let text = profile.name(name_of(number).unwrap()).unwrap();
                builder.symbol(profile.symbol(number).unwrap(), text)
            })
            .collect();
        symbols.reverse();
        let positions = profile.site_positions();
        for &position in &positions {
            let site = profile.sites[position];
            let symbol = (site.symbol != 0).then(|| symbols[site.symbol as usize - 1]);
            assert_eq!(builder.site(site.parent, site.address, symbol), site.index);
        }
        let mut with_data: Vec<_> = profile.sites.iter().filter(|site| site.data != 0).collect();
        with_data.sort_by_key(|site| site.data);
        for site in with_data {
            let data = profile.data[site.data as usize - 1];
            builder.sums(site.index, data.allocated, data.freed);
        }
        let built = Profile { abi: profile.abi, version: profile.version, ..builder.build() };
        let mut out = Vec::new();
        built.write(&mut out);
        assert!(out == bytes, "{name}");
    }
}

#[test]
fn the_worked_example_is_built_from_its_events() {
    let mut builder = Builder::new(mptl::layout::BOUNDS, Bins::new(4));
    let (f, main) = (builder.symbol(0x401100, b"f"), builder.symbol(0x401120, b"main"));
    let caller = builder.site(0, 0x401130, Some(main));
    let inner = builder.site(caller, 0x401110, Some(f));
    let direct = builder.site(0, 0x401140, Some(main));
    for (site, size) in [(inner, 3), (inner, 3), (direct, 100)] {
        builder.alloc(site, size);
    }
    builder.free(inner, 3);
    let mut out = Vec::new();
    builder.build().write(&mut out);
    assert!(out == sample("tiny.mpt"));
    for (abi, name) in [(Abi::LE32, "tiny32.mpt"), (Abi::BE32, "tiny32be.mpt"), (Abi::BE64, "tinybe.mpt")] {
        let mut out = Vec::new();
        Profile { abi, ..builder.build() }.write(&mut out);
        assert!(out == sample(name), "{name}");
    }
}

/// With equal addresses, sites that allocated nothing, and parents that do not exist.
#[test]
fn sites_from_elsewhere_are_written_as_the_builder_writes_them() {
    let mut state = 7u64;
    let mut roll = |sides: u64| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (state >> 33) % sides
    };
    for count in [0, 1, 2, 300] {
        let mut builder = Builder::new(mptl::layout::BOUNDS, Bins::new(4));
        let (mut sites, mut all) = (Vec::new(), Vec::new());
        for number in 1..=count {
            let (parent, address) = (roll(number + 2), 0x1000 + roll(100));
            assert_eq!(builder.site(parent, address, None), number);
            let sums = (roll(3) > 0).then(|| {
                let counts = [0; 4].map(|_| roll(1 << 40));
                (Sums { counts, totals: counts.map(|count| count * 9) }, Sums { counts: [number; 4], totals: [1; 4] })
            });
            if let Some((allocated, freed)) = sums {
                builder.sums(number, allocated, freed);
            }
            sites.push((parent, address));
            all.push(sums);
        }
        let (mut built, mut written) = (Vec::new(), Vec::new());
        builder.build().write(&mut built);
        let profile = Profile { bins: Bins::new(4), ..Profile::default() };
        profile.write_with_sites(sites.len(), |number| sites[number - 1], |number| all[number - 1], &mut written);
        assert!(built == written, "{count} sites");
    }
}

#[test]
fn cut_anywhere_what_is_whole_is_read() {
    for name in ["tiny.mpt", "tiny32be.mpt", "recursion.mpt", "basic32.mpt"] {
        let bytes = sample(name);
        let (whole, _) = Profile::read(&bytes).unwrap();
        let (mut data, mut sites) = (0, 0);
        let header = 4 + 2 * usize::from(whole.abi.word_size);
        for cut in (0..bytes.len()).filter(|cut| bytes.len() < 2000 || cut % 7 == 0 || bytes.len() - cut < 300) {
            match Profile::read(&bytes[..cut]) {
                Ok((profile, ending)) => {
                    assert!(
                        matches!(ending, Ending::Truncated { offset, .. } if offset <= cut as u64),
                        "{name} at {cut}"
                    );
                    promised(&profile);
                    assert!(profile.data.len() >= data && profile.sites.len() >= sites);
                    (data, sites) = (profile.data.len(), profile.sites.len());
                    assert_eq!(profile.data[..], whole.data[..data]);
                }
                Err(_) => assert!(cut < header, "{name} at {cut}"),
            }
        }
        assert_eq!((data, sites), (whole.data.len(), whole.sites.len()));
    }
}

#[test]
fn counts_beyond_any_file_are_refused() {
    for field in [0x2c, 0x84, 0x19c, 0x234, 0x24c] {
        for count in [1u64 << 63, u64::MAX, 1 << 60] {
            let mut bytes = sample("tiny.mpt");
            bytes[field..field + 8].copy_from_slice(&count.to_le_bytes());
            let error = Profile::read(&bytes).unwrap_err();
            assert_eq!(error.offset, field as u64, "{error}");
        }
        let mut bytes = sample("tiny.mpt");
        bytes[field..field + 8].copy_from_slice(&0x1_0000u64.to_le_bytes());
        assert!(matches!(Profile::read(&bytes), Ok((_, Ending::Truncated { .. })) | Err(_)));
    }
}

#[test]
fn a_flipped_byte_breaks_no_promise() {
    for name in ["tiny.mpt", "tiny32.mpt", "tinybe.mpt", "nosym.mpt"] {
        let bytes = sample(name);
        for at in 0..bytes.len() {
            for flip in 1..=255 {
                let mut bytes = bytes.clone();
                bytes[at] ^= flip;
                if let Ok((profile, ending)) = Profile::read(&bytes) {
                    promised(&profile);
                    let mut out = Vec::new();
                    profile.write(&mut out);
                    assert!(out == bytes || !ending.is_complete());
                }
            }
        }
    }
}

#[test]
fn random_tables_break_no_promise() {
    let start = sample("tiny.mpt")[..0x84].to_vec();
    proptest!(ProptestConfig::with_cases(3000), |(numbers in prop::collection::vec(prop_oneof![0..4u64, any::<u64>()], 0..60))| {
        let bytes: Vec<u8> = start.iter().copied().chain(numbers.iter().flat_map(|number| number.to_le_bytes())).collect();
        if let Ok((profile, _)) = Profile::read(&bytes) {
            promised(&profile);
        }
        let mut text = Vec::new();
        mptl::dump(&bytes, &mut text).unwrap();
        prop_assert!(text.is_ascii());
    });
}

/// `HEAPTAPE_BLESS=1` accepts what is printed now.
#[test]
fn dumps_stay_as_they_are() {
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/mpatrol");
    for name in ["edge/tiny.mpt", "edge/tiny32be.mpt", "edge/ptrunc.mpt", "edge/pcycle.mpt", "recursion.mpt"] {
        let mut text = Vec::new();
        mptl::dump(&fs::read(golden.join(name)).unwrap(), &mut text).unwrap();
        let expected = golden.join(format!("{name}.dump"));
        if std::env::var_os("HEAPTAPE_BLESS").is_some() {
            fs::write(&expected, &text).unwrap();
        }
        assert_eq!(String::from_utf8(text).unwrap(), fs::read_to_string(expected).unwrap(), "{name}");
    }
}
