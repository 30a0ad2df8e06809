//! `heaptape holds`: what nobody holds, and why it says so.

use crate::holds::{cache, holds};
use heaptape_tests::{Program, Recording, Target, target};
use std::path::Path;

#[test]
fn cycles_are_proven_by_their_counts_and_lost_blocks_by_a_second_sign() {
    cycles_are_proven(&cache(10));
}

/// Their types are found by addresses behind a gap between the segments of the program.
#[test]
fn cycles_are_proven_in_programs_with_gaps() {
    let program = Target::program("holds_cache.cpp").flag("-Wl,-z,max-page-size=0x200000").flag("-Wl,-z,separate-code");
    let program = Program::new(program.named("holds_cache_gaps").build()).arg("10").option("--references");
    cycles_are_proven(&program.recorded().success());
}

#[track_caller]
fn cycles_are_proven(recording: &Recording) {
    let report = holds(recording, &[]);
    assert_eq!((&report["cycle_blocks"], &report["lacks"]), (&400.into(), &"".into()), "{report:#}");
    // A stale word may hide a few, and must not invent one.
    let lost = report["lost_blocks"].as_u64().expect("blocks") - 400;
    assert!((198..=200).contains(&lost), "{report:#}");
    let rows = report["lost"].as_array().expect("rows");
    assert_eq!(rows.len(), 2, "{report:#}");
    for row in rows {
        let function = row["stack"].to_string();
        if row["is_cycle"] == true {
            assert_eq!(
                (&row["confidence"], &row["times"], &row["what"]),
                (&"proven".into(), &200.into(), &"2 Node of make_shared".into())
            );
            assert!(function.contains("make_cycle"), "{row:#}");
        } else {
            assert_eq!(row["confidence"], "likely", "{row:#}");
            assert!(function.contains("lose"), "{row:#}");
        }
    }
}

/// Of 50 cycles the vector has one, of 60 other blocks ten. What lies behind its last element, and in
/// a text, was once a pointer.
#[test]
fn words_in_unused_memory_of_vectors_and_texts_hold_nothing_for_sure() {
    let program = Program::new(Target::program("holds_stale.cpp").build());
    let recording = program.option("--references").recorded().success();
    let report = holds(&recording, &[]);
    // Their counts prove that nothing else holds them: a stale word on the stack may hide one.
    let cycles = report["cycle_blocks"].as_u64().expect("blocks");
    assert!((96..=98).contains(&cycles), "{report:#}");
    let stale = report["stale_blocks"].as_u64().expect("blocks");
    assert!((48..=50).contains(&stale), "{report:#}");
    let roots = report["roots"].as_array().expect("roots");
    let root =
        |name: &str| roots.iter().find(|root| root["name"] == name).unwrap_or_else(|| panic!("{name}: {report:#}"));
    // The elements and their array.
    assert_eq!(root("global g_plain")["blocks"], 11);
    assert_eq!(root("global g_index")["blocks"], 3);
    let unused = root("unused memory under global g_plain");
    assert_eq!((&unused["kind"], &unused["blocks"]), (&"stale".into(), &30.into()), "{report:#}");
    let text = recording.heaptape(&["holds"]).success().text();
    assert!(text.contains("that only unused memory of blocks leads to"), "{text}");
    let text = recording.heaptape(&["leaks", "--all"]).success().text();
    assert!(text.contains("held by unused memory under global g_plain: 3.52 KiB"), "{text}");
}

/// An allocator gives more than was requested, and what is there is as old.
#[test]
fn words_behind_what_was_requested_hold_nothing_for_sure() {
    let recording = Program::new(target::c("holds_tail")).option("--references").recorded().success();
    let report = holds(&recording, &[]);
    // The stack or a register may have the last one.
    assert!(report["stale_blocks"].as_u64().is_some_and(|blocks| (98..=100).contains(&blocks)), "{report:#}");
    let roots = report["roots"].as_array().expect("roots");
    let root = roots.iter().find(|root| root["name"] == "global holders").expect("the holders");
    assert_eq!((&root["blocks"], &report["lost_blocks"]), (&100.into(), &0.into()), "{report:#}");
}

/// Offsets lead to blocks, and the same number in many blocks is none.
#[test]
fn blocks_behind_offsets_are_not_lost() {
    let recording = Program::new(target::c("holds_offsets")).option("--references").recorded().success();
    let report = holds(&recording, &[]);
    // A stack or a register may have some of them.
    assert!(report["hidden_blocks"].as_u64().is_some_and(|blocks| (43..=45).contains(&blocks)), "{report:#}");
    assert!(report["lost_blocks"].as_u64().is_some_and(|blocks| (38..=40).contains(&blocks)), "{report:#}");
    let rows = report["lost"].as_array().expect("rows");
    assert!(rows.iter().all(|row| row["stack"].to_string().contains("of_nothing")), "{report:#}");
    let text = recording.heaptape(&["holds"]).success().text();
    assert!(text.contains("behind pointers in a disguise (offsets in place of addresses)"), "{text}");
}

/// Of very many blocks to which no address leads, offsets are looked for of some.
#[test]
fn very_many_blocks_without_an_address_are_judged() {
    let program = Program::new(target::c("holds_offsets")).args(["50000", "40000"]);
    let recording = program.option("--references").recorded().success();
    let report = holds(&recording, &[]);
    let counts = [("hidden_blocks", 50_003..=50_005), ("lost_blocks", 40_037..=40_040)];
    for (key, count) in counts {
        assert!(report[key].as_u64().is_some_and(|blocks| count.contains(&blocks)), "{key}: {report:#}");
    }
}

/// A compiler makes several call sites of one when it unrolls a loop.
#[test]
fn lost_blocks_of_one_line_are_one_group() {
    let recording = Program::new(target::c("unrolled")).option("--references").recorded().success();
    let report = holds(&recording, &[]);
    let lost = report["lost"].as_array().expect("rows");
    // A register may have the last one.
    let times = lost.first().and_then(|row| row["times"].as_u64()).unwrap_or(0);
    assert!(lost.len() == 1 && (11..=12).contains(&times), "{report:#}");
}

#[test]
fn a_cut_file_calls_nothing_lost() {
    let recording = cache(10);
    let path = &recording.files("references.tape")[0];
    let bytes = std::fs::read(path).expect("the file");
    std::fs::write(path, &bytes[..bytes.len() - 3]).expect("cut");
    let report = holds(&recording, &[]);
    assert_ne!(report["lacks"], "", "{report:#}");
    assert_eq!(report["lost_blocks"], 0, "{report:#}");
}

/// What `setenv` has copied is lost by design; arrays that a program loses itself are lost.
#[test]
fn environment_that_setenv_replaced_is_not_lost() {
    // libc's own variable, or a copy of it in the program.
    let indirect = Target::program("moves_environment.c").flag("-fPIC").named("moves_environment_of_libc");
    for program in [target::c("moves_environment"), indirect.build()] {
        for (arguments, replaced) in [(&[][..], 1), (&["1", "2"], 0)] {
            let program = Program::new(&program).args(arguments).option("--references");
            let report = holds(&program.recorded().success(), &[]);
            assert_eq!(report["replaced_blocks"], replaced, "{report:#}");
            assert_eq!(report["lost_blocks"] == 0, replaced == 1, "{report:#}");
        }
    }
}

/// Addresses of lost blocks are in what an allocator notes of its blocks, and on the stack of a thread that
/// has ended.
#[test]
fn old_addresses_in_notes_of_allocators_hold_nothing() {
    let libraries = ["libjemalloc.so.2", "libmimalloc.so.2", "libtcmalloc_minimal.so.4"].map(|name| {
        let library = Path::new(target::LIBRARIES).join(name);
        if !library.exists() {
            eprintln!("skipped: {name} is not installed, run scripts/install-tools");
        }
        library.exists().then_some((name, library))
    });
    for allocator in std::iter::once(None).chain(libraries.into_iter().filter(Option::is_some)) {
        let program = Target::program("holds_old_notes.c");
        let program = match &allocator {
            Some((name, library)) => program.with(library).named(&format!("holds_old_notes.{name}")),
            None => program,
        };
        let recording = Program::new(program.build()).option("--references").recorded().success();
        let report = holds(&recording, &[]);
        let of = |function: &str, rows: &str| -> u64 {
            let rows = report[rows].as_array().expect("rows").iter();
            let own = rows.filter(|row| row["label"].as_str().is_some_and(|label| label.starts_with(function)));
            own.filter_map(|row| row["blocks"].as_u64()).sum()
        };
        let name = allocator.as_ref().map_or("glibc", |(name, _)| name);
        assert!(of("lose ", "lost") >= 4_950, "{name}: {report:#}");
        assert_eq!(of("keep ", "lost"), 0, "{name}: {report:#}");
    }
}
