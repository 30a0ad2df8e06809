//! The daemon on a full disk: all that ends meanwhile is written as soon as there is space again.

use heaptape_tests::daemon::{Daemon, Running};
use heaptape_tests::disk::SmallDisk;
use heaptape_tests::target;
use heaptape_tests::wait::until;
use std::path::PathBuf;

/// Events of one round of `leaks_slowly`: eight allocations and seven frees.
const EVENTS_OF_A_ROUND: u64 = 15;

/// A daemon whose state folder is on a small disk.
struct OnSmallDisk {
    // Dropped before the disk on which it writes.
    daemon: Daemon,
    disk: SmallDisk,
}

impl OnSmallDisk {
    /// Starts the daemon. Returns `None` if mounting is not permitted.
    fn start() -> Option<OnSmallDisk> {
        let disk = SmallDisk::mount("8m")?;
        let daemon = Daemon::start_in(&disk.at(), &["--mode", "trace", "--keep-free", "0"]);
        Some(OnSmallDisk { daemon, disk })
    }

    fn filler(&self) -> PathBuf {
        self.disk.at().join("filler")
    }

    /// Fills the disk to the last byte, also that of the log's last page.
    fn fill(&self) {
        self.disk.fill(&self.filler());
        self.disk.fill(&self.disk.at().join("log"));
    }

    fn free(&self) {
        std::fs::remove_file(self.filler()).expect("the file that fills the disk");
    }

    /// Ends the epochs, of which not everything can be written.
    fn epoch_fails(&self) {
        let failed = self.daemon.ctl(&["epoch"]).exits(2);
        assert!(failed.error().contains("No space left on device"), "{failed}");
    }

    fn starts(&self, rounds: u64) -> Running {
        self.daemon.spawn(&target::c("leaks_slowly"), &[&rounds.to_string(), "1"], None)
    }

    /// Asserts that each process emitted the events of its rounds, and that all are accounted for.
    #[track_caller]
    fn assert_accounted(&self, processes: &[(u32, u64)]) {
        let report = self.daemon.report(&self.daemon.epochs(&["--each"]));
        for (pid, rounds) in processes {
            let of_pid = || report.processes.iter().filter(|process| process.pid == *pid);
            let emitted: u64 = of_pid().map(|process| process.emitted_events).sum();
            let accounted: u64 = of_pid().map(|process| process.recorded_events + process.lost_events).sum();
            let expected = rounds * EVENTS_OF_A_ROUND;
            assert_eq!((emitted, accounted), (expected, expected), "{pid}\n{}", self.daemon.log());
        }
    }
}

/// Processes that start and end on a full disk, and segments that do.
#[test]
fn events_of_a_full_disk_are_all_accounted_for() {
    let Some(mut test) = OnSmallDisk::start() else { return };
    let mut before = test.starts(1500);
    until("it is served", || test.daemon.list("leaks_slowly").len() == 1);
    test.fill();
    let mut short = test.starts(100);
    let mut long = test.starts(1500);
    until("all are served", || test.daemon.list("leaks_slowly").len() >= 2);
    test.epoch_fails();
    short.0.wait().expect("the short one ends");
    until("it is over", || test.daemon.list("leaks_slowly").len() == 2);
    test.epoch_fails();
    test.free();
    for process in [&mut before, &mut long] {
        process.0.wait().expect("the program ends");
    }
    until("all are over", || test.daemon.list("leaks_slowly").is_empty());
    test.daemon.stop();
    let all = [(before.0.id(), 1500), (short.0.id(), 100), (long.0.id(), 1500)];
    test.assert_accounted(&all);
}

/// What could not be written is written as soon as there is space, also while the daemon runs on,
/// and the epochs are complete folders.
#[test]
fn epochs_of_a_full_disk_are_sealed_when_there_is_space() {
    let Some(test) = OnSmallDisk::start() else { return };
    test.fill();
    let mut short = test.starts(100);
    short.0.wait().expect("the program ends");
    until("it is over", || test.daemon.list("leaks_slowly").is_empty());
    test.epoch_fails();
    let name = test.daemon.epochs(&[]);
    assert!(name.is_empty(), "an epoch without a description is not listed: {name:?}");
    test.free();
    until("the epoch is sealed", || {
        let read = test.daemon.epochs(&[]).first().map(|epoch| std::fs::read_to_string(epoch.join("recording.json")));
        read.is_some_and(|read| read.is_ok_and(|text| text.contains("\"ended_unix_ns\"")))
    });
    test.assert_accounted(&[(short.0.id(), 100)]);
}
