//! A recorder of this version with a library of an earlier one.

use heaptape_tests::{Program, own, same, target, test_env};

/// The library of protocol 8.0 was built before hello and reply named a minor version.
#[test]
fn library_of_the_previous_minor_version_is_recorded() {
    let folder = test_env::folder();
    let library = folder.path().join("libheaptape.so");
    let frozen = std::fs::read(test_env::root().join("tests/golden/library/libheaptape-8.0-x86_64.so.zst"));
    let frozen = zstd::decode_all(&frozen.expect("the library")[..]).expect("it is compressed");
    std::fs::write(&library, frozen).expect("the library");
    // A busy machine starts the recorder late.
    let attach = ("HEAPTAPE_ATTACH_MS", "10000");
    let own_counts = folder.path().join("own");
    let program =
        || Program::new(target::c("pairs")).args(["2000", "2"]).env("OWN_FILE", &own_counts).env(attach.0, attach.1);
    let plain = program().plain().success();
    std::fs::remove_file(&own_counts).expect("own figures");
    let recording = program().env("HEAPTAPE_LIBRARY", &library).recorded();
    same(&plain, &recording.outcome);
    let recording = recording.complete();
    own::equal(&own::read(&own_counts), &own::recorded(&recording));
    // It knows no mappings, and this recorder expects none.
    let report = recording.heaptape(&["report", "--json"]).success().text();
    assert!(!report.contains("\"mappings\""), "{report}");
    let recording = Program::new(target::c("mappings")).env(attach.0, attach.1).env("HEAPTAPE_LIBRARY", &library);
    let report = recording.recorded().success().complete().heaptape(&["leaks", "--mappings", "only"]).success().text();
    assert!(report.contains("mapped nothing itself"), "{report}");
    // It is the frozen library that was loaded.
    let maps = Program::new("/bin/cat").arg("/proc/self/maps").env(attach.0, attach.1);
    let maps = maps.env("HEAPTAPE_LIBRARY", &library).recorded().success().complete();
    let loaded = maps.outcome.text();
    assert!(loaded.contains(library.to_str().expect("UTF-8")) && maps.report().only("cat").allocs > 0, "{loaded}");
}
