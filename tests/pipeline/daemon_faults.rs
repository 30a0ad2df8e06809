//! The disk fails while the daemon runs, or somebody removes its folders and sockets: that is said,
//! and it goes on when it can.

use heaptape_tests::disk::SmallDisk;
use heaptape_tests::run::Outcome;
use heaptape_tests::wait::until;
use heaptape_tests::{Daemon, target};
use std::path::Path;

/// Uses up the files of a small disk, also those that were removed since the last call.
fn use_up_files(junk: &Path) {
    std::fs::create_dir_all(junk).expect("a folder");
    let first = std::fs::read_dir(junk).expect("the folder").count();
    for number in first.. {
        if std::fs::write(junk.join(number.to_string()), "").is_err() {
            return;
        }
        assert!(number < 100_000, "the disk has no limit of files");
    }
}

/// While no epoch can be made, the old one goes on; commands say so; afterwards epochs end again.
#[test]
fn epochs_go_on_while_the_next_one_cannot_be_made() {
    let Some(disk) = SmallDisk::mount("16m,nr_inodes=400") else { return };
    let daemon = Daemon::start_in(&disk.at(), &["--mode", "trace", "--epoch", "2s", "--keep-free", "0"]);
    let running = daemon.spawn(&target::c("leaks_slowly"), &["1000000", "2"], None);
    until("it is served", || daemon.list("leaks_slowly").len() == 1);
    let own = |key: &str| daemon.query(&["status"])["own"][key].as_f64().expect("a number");
    let folder = || daemon.list("leaks_slowly")[0]["folder"].as_str().expect("a folder").to_owned();
    until("epochs end", || own("epochs_ended_total") >= 1.0);
    let junk = disk.at().join("junk");
    // What the daemon itself removes leaves room for one more folder now and then.
    until("no epoch can be made, and the old one goes on", || {
        use_up_files(&junk);
        let before = folder();
        let failed = daemon.ctl(&["epoch"]);
        failed.code() == 2 && failed.error().contains("no new epoch can be made") && folder() == before
    });
    assert!(own("epochs_failed_total") >= 1.0);
    for command in ["epoch", "snapshot", "flush"] {
        let fails = |failed: &Outcome| failed.code() == 2 && failed.error().contains("could not write");
        until("it fails", || {
            use_up_files(&junk);
            let failed = daemon.ctl(&[command]);
            fails(&failed) && failed.text().is_empty()
        });
        until("it fails with JSON", || {
            use_up_files(&junk);
            let failed = daemon.ctl(&["--json", command]);
            fails(&failed) && failed.text().contains("No space left on device")
        });
    }
    until("the metrics say so", || {
        use_up_files(&junk);
        daemon.ctl(&["metrics"]).text().contains("\nheaptape_write_failing 1\n")
    });
    let status = daemon.ctl(&["status"]).success().text();
    assert!(status.contains("disk       cannot be written: "), "{status}");
    let (ended, last) = (own("epochs_ended_total"), folder());
    std::fs::remove_dir_all(junk).expect("the files go");
    until("epochs end again", || own("epochs_ended_total") > ended + 1.0);
    until("it is written again", || own("write_failing") == 0.0);
    daemon.query(&["epoch"]);
    daemon.query(&["snapshot"]);
    assert_ne!(folder(), last);
    let log = daemon.log();
    let lines = log.lines().filter(|line| line.contains("no new epoch can be made")).count();
    assert!((1..=4).contains(&lines), "at most one a minute: {log}");
    drop(running);
}

/// The state folder is made again, and what runs goes on in it.
#[test]
fn removed_state_folder_is_made_again() {
    let daemon = Daemon::start(&["--mode", "trace"]);
    let running = daemon.spawn(&target::c("leaks_slowly"), &["1000000", "2"], None);
    until("it is served", || daemon.list("leaks_slowly").len() == 1);
    // The daemon may write into it meanwhile.
    until("the state goes", || std::fs::remove_dir_all(daemon.state()).is_ok());
    let snapshot = daemon.ctl(&["snapshot"]);
    assert!(snapshot.code() == 2 || daemon.state().exists(), "{snapshot}");
    until("the folder is there again", || daemon.state().exists());
    until("new programs are recorded", || {
        daemon.run(&target::c("small"), &[]).success();
        daemon.query(&["status"])["own"]["epochs"].as_f64() > Some(0.0)
            && !daemon.epochs(&["--program", "small"]).is_empty()
    });
    until("the running one goes on", || !daemon.epochs(&["--program", "leaks_slowly"]).is_empty());
    daemon.query(&["snapshot"]);
    drop(running);
}

/// Sockets whose files somebody removed are made again, and the log says so.
#[test]
fn removed_sockets_are_made_again() {
    let daemon = Daemon::start(&["--mode", "trace"]);
    for path in [daemon.socket(), daemon.stream_socket(), daemon.control()] {
        std::fs::remove_file(&path).expect("it was there");
    }
    until("all are there again", || {
        [daemon.socket(), daemon.stream_socket(), daemon.control()].iter().all(|path| path.exists())
    });
    let log = daemon.log();
    assert_eq!(log.lines().filter(|line| line.contains("was removed")).count(), 3, "{log}");
    assert_eq!(daemon.query(&["status"])["own"]["removed_sockets_total"], 2.0);
    let running = daemon.spawn(&target::c("leaks_slowly"), &["1000000", "2"], None);
    until("programs are recorded", || daemon.list("leaks_slowly").len() == 1);
    drop(running);
}
