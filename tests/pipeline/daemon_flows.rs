//! The DCPI profiles of the daemon's epochs.

use heaptape_tests::recording::heaptape;
use heaptape_tests::{Daemon, Program, target, test_env};
use std::fs;
use std::path::{Path, PathBuf};

/// The DCPI files of an epoch have the range of the text, as an export of a recording does: the
/// same in each epoch, independent of the counts.
#[test]
fn dcpi_files_of_epochs_have_the_text_range() {
    /// Text, and counted addresses, of the files of one program and event.
    fn read(folder: &Path) -> Vec<((u64, u64), Vec<u64>)> {
        let files = fs::read_dir(folder).expect("the profiles").flatten().map(|entry| entry.path());
        let own =
            |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("leaks_slowly"));
        let mut found = Vec::new();
        for path in files.filter(own) {
            let bytes = fs::read(&path).expect("a profile");
            let profile = heaptape_formats::dcpi::read(&bytes).expect("a profile");
            if profile.header.event == b"alloc-bytes" {
                let text = (profile.header.tstart, profile.header.tsize);
                let counted: Vec<u64> = profile.samples().filter(|(_, count)| *count > 0).map(|(at, _)| at).collect();
                assert!(counted.iter().all(|at| (text.0..text.0 + text.1).contains(at)), "{text:x?} {counted:x?}");
                assert_eq!(profile.header.cpuspeed > 0, has_even_counter(), "{}", path.display());
                found.push((text, counted));
            }
        }
        found
    }
    fn has_even_counter() -> bool {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").expect("the CPUs");
        ["constant_tsc", "nonstop_tsc"].iter().all(|flag| cpuinfo.contains(flag))
    }
    let mut daemon = Daemon::start(&[]);
    let program = target::c("leaks_slowly");
    daemon.run(&program, &["10", "0", "777"]).success();
    daemon.query(&["epoch"]);
    daemon.run(&program, &["4", "0", "777"]).success();
    daemon.stop();
    for epoch in daemon.epochs(&[]) {
        let text = fs::read_to_string(epoch.join("README")).expect("what the files are, as in any recording");
        assert!(text.contains("heaptape export --format mtrc"), "{text}");
    }
    let epochs: Vec<_> = daemon.epochs(&["--dcpi"]).iter().flat_map(|folder| read(folder)).collect();
    let recording = Program::new(&program).args(["4", "0", "777"]).recorded().success();
    let directory = test_env::folder();
    let out = directory.path().join("dcpi");
    heaptape([
        "export".as_ref(),
        "--to".as_ref(),
        "dcpi".as_ref(),
        "-o".as_ref(),
        out.as_os_str(),
        recording.folder.as_os_str(),
    ])
    .success();
    let exported = read(&out);
    assert_eq!(exported.len(), 1, "{exported:x?}");
    assert_eq!(epochs, [exported.clone(), exported].concat());
}
