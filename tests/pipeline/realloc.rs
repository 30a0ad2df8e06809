//! Resizes: in place, moved, by mremap, shrunk, failed, to nothing, from nothing.

use heaptape_tests::oracle::Depth;
use heaptape_tests::{Program, own, same, target, test_env};

#[test]
fn every_kind_of_resize_is_recorded() {
    let folder = test_env::folder();
    let file = folder.path().join("own");
    let program = Program::new(target::c("each_resize")).env("OWN_FILE", &file);
    let plain = program.plain().success();
    std::fs::remove_file(&file).expect("own figures");
    program.recorded_like_counted(Depth::Peak);
    std::fs::remove_file(&file).expect("own figures");
    let recording = program.recorded();
    same(&plain, &recording.outcome);
    let recording = recording.complete();
    let report = recording.report();
    let process = report.only("each_resize");
    assert_eq!((process.live_blocks, process.live_bytes), (3, 503 + 40_009 + 100_003), "{process:#?}");
    let figures = own::read(&file);
    own::equal(&figures, &own::recorded(&recording));
    assert_eq!(figures[0].resizes, process.resizes);
}
