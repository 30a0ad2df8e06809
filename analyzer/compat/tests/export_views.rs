//! The compat views of a recording show the same data as its exports and reports.

use crate::made;

use heaptape_analyzer::export::{self, Options};
use heaptape_analyzer::{ProcessFilter, is_recording};
use heaptape_compat::dcpi::{Inputs, Set};
use heaptape_compat::input::{self, RecordingInput};
use heaptape_compat::mleak::{self, view_recording};
use heaptape_compat::mprof;
use heaptape_formats::mptl::Profile;
use heaptape_formats::tape;
use made::Step;
use std::path::{Path, PathBuf};

fn module() -> tape::Module {
    tape::Module {
        number: 1,
        start: 0x800,
        end: 0xa000,
        bias: 0,
        path: "/nowhere/program".into(),
        build_id: tape::field::Text(vec![0xab, 0xcd]),
        ..tape::Module::default()
    }
}

fn steps() -> Vec<Step> {
    vec![
        Step::Alloc { index: 1, size: 100, site: 4, thread: 1, tick: 101 },
        Step::Alloc { index: 2, size: 1, site: 5, thread: 2, tick: 102 },
        Step::Resize { index: 1, size: 300, site: 6, thread: 1, tick: 103 },
        Step::Alloc { index: 3, size: 50, site: 4, thread: 1, tick: 104 },
        Step::Free { index: 3, thread: 1, tick: 105 },
    ]
}

fn recording() -> (tempfile::TempDir, PathBuf) {
    made::recording(&steps(), &made::Options { modules: vec![module()], ..made::Options::default() })
}

#[test]
fn recordings_are_recognized() {
    let (_dir, recording) = recording();
    let process_folder = recording.join("4711.made");
    for path in [
        recording.clone(),
        process_folder.clone(),
        process_folder.join("events.tape"),
        recording.join("recording.json"),
    ] {
        assert!(is_recording(&path), "{}", path.display());
    }
    let empty = tempfile::tempdir().unwrap();
    for path in [
        process_folder.join("trace.mtrc"),
        process_folder.join("profile.mptl"),
        empty.path().into(),
        "-".into(),
        "/none".into(),
    ] {
        assert!(!is_recording(&path), "{}", path.display());
    }
}

#[test]
fn mleak_shows_live_blocks_in_the_format_of_a_log() {
    let (_dir, recording) = recording();
    let shown = |path: &Path, max_stack| {
        let mut out = Vec::new();
        let options = mleak::Options { max_stack, ..mleak::Options::default() };
        let notes = view_recording(&RecordingInput::open(path, &ProcessFilter::default()).unwrap(), &options, &mut out)
            .unwrap();
        assert!(notes.is_empty(), "{notes:?}");
        String::from_utf8(out).unwrap()
    };
    assert_eq!(
        shown(&recording, Some(2)),
        "unfreed allocations: 2 (301 bytes)\n    \
         0x0000555500000048 (300 bytes) {realloc:1:1} [-|-|-]\n\
         \t0x0000000000006000 program+0x6000\n\t0x0000000000003000 program+0x3000\n\n    \
         0x0000555500000080 (1 byte) {malloc:2:0} [-|-|-]\n\
         \t0x0000000000005000 program+0x5000\n\t0x0000000000002000 program+0x2000\n"
    );
    // A bare trace has neither stacks nor functions.
    let trace = shown(&recording.join("4711.made/trace.mtrc"), None);
    assert!(trace.contains("(300 bytes) {malloc:1:1} [-|-|-]\n\n"), "{trace}");
}

#[test]
fn mprof_shows_the_profile_of_an_export() {
    let (_dir, recording) = recording();
    let out = tempfile::tempdir().unwrap();
    let file = out.path().join("p.mptl");
    let exporter = export::exporter("mptl").unwrap();
    export::run(exporter, std::slice::from_ref(&recording), &Options::default(), Some(&file), true).unwrap();
    let written = Profile::read(&std::fs::read(&file).unwrap()).unwrap().0;
    let view = |profile: &Profile| {
        let mut out = Vec::new();
        mprof::view(profile, &mprof::Options { call_graph: true, ..mprof::Options::default() }, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    let shown = view(&input::profile(&recording, &ProcessFilter::default()).unwrap().unwrap());
    assert_eq!(shown, view(&written));
    assert!(shown.contains("0x0000000000006000"), "{shown}");
    // A trace has bins only. A profile is left to its own reader.
    let bins = input::profile(&recording.join("4711.made/trace.mtrc"), &ProcessFilter::default()).unwrap().unwrap();
    assert_eq!((bins.bins.allocated == written.bins.allocated, bins.sites.len()), (true, 0));
    assert!(input::profile(&file, &ProcessFilter::default()).unwrap().is_none());
    assert!(input::profile(&recording, &Some("4711".to_string()).into()).unwrap().is_some());
    assert!(input::profile(&recording, &Some("4712".to_string()).into()).is_err());
}

#[test]
fn dcpi_views_read_recordings_and_other_formats() {
    let (_dir, recording) = recording();
    let load = |path: &Path| Set::load(&Inputs { files: vec![path.to_path_buf()], ..Inputs::default() }).unwrap();
    let total = |set: &Set, name: &str| set.events.iter().find(|event| event.name == name).map(|event| event.total);
    let set = load(&recording);
    assert!(set.faults.is_empty(), "{:?}", set.faults);
    assert_eq!([total(&set, "alloc-bytes"), total(&set, "leak-bytes")], [Some(451), Some(301)]);
    assert_eq!((set.images.len(), set.images[0].identity.as_str(), set.images[0].name()), (1, "abcd", "program"));
    let rows: Vec<u64> = set.images[0].rows(set.events.len()).map(|(address, _)| address).collect();
    assert_eq!(rows, [0x3fff, 0x4fff, 0x5fff]);
    let profile = load(&recording.join("4711.made/profile.mptl"));
    assert_eq!([total(&profile, "alloc-bytes"), total(&profile, "live-bytes")], [Some(451), Some(301)]);
}
