//! A file system of a program that does not answer, and memory that is locked for ever: only that
//! program suffers.

use heaptape_tests::daemon::Running;
use heaptape_tests::wait::until;
use heaptape_tests::{Daemon, Program, is_root, target, test_env};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A mount whose server answers some requests only.
struct StalledMount {
    folder: tempfile::TempDir,
    server: Child,
}

impl StalledMount {
    /// Mounts it; `None` if mounting is not permitted.
    fn new() -> Option<StalledMount> {
        if !is_root() {
            return None;
        }
        let folder = test_env::folder();
        std::fs::create_dir(folder.path().join("mount")).expect("a folder");
        let mut command = Command::new(target::c("stalled_mount"));
        command.arg(folder.path().join("mount")).arg(target::c("far_symbols")).stdout(Stdio::piped());
        let mut server = command.spawn().expect("it starts");
        let mut line = String::new();
        BufReader::new(server.stdout.take().expect("a pipe")).read_line(&mut line).expect("a line");
        let mount = StalledMount { folder, server };
        (line == "mounted\n").then_some(mount)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join("mount").join(name)
    }

    /// Ends the server: requests fail from now on.
    fn end(&mut self) {
        self.server.kill().ok();
        self.server.wait().ok();
    }
}

impl Drop for StalledMount {
    fn drop(&mut self) {
        self.end();
        Program::new("umount").arg("-l").arg(self.file("")).plain();
    }
}

fn own(daemon: &Daemon, key: &str) -> f64 {
    daemon.query(&["status"])["own"][key].as_f64().expect("a number")
}

#[test]
fn program_whose_file_system_does_not_answer_costs_nobody_else_anything() {
    let Some(mut mount) = StalledMount::new() else { return };
    let mut daemon = Daemon::start(&["--mode", "trace"]);
    let before = daemon.spawn(&target::c("leaks_slowly"), &["1000000", "5"], None);
    until("it is served", || daemon.list("leaks_slowly").len() == 1);
    let start = || {
        let mut command = daemon.command(&mount.file("program"));
        command.env_remove("HEAPTAPE_ATTACH_MS").args(["1000000", "5"]);
        Running(command.spawn().expect("it starts"))
    };
    let stalled = [start(), start(), start()];
    until("all of them are named", || {
        let status = daemon.query(&["status"]);
        let late = status["late"].as_array().cloned().unwrap_or_default();
        late.iter().filter(|one| one["reason"] == "stalled" && one["name"] == "program").count() == stalled.len()
    });
    assert!(own(&daemon, "stuck_reads") >= 3.0);
    let text = daemon.ctl(&["status"]).success().text();
    assert!(text.contains("a file system that it uses did not answer"), "{text}");
    let metrics = daemon.ctl(&["metrics"]).text();
    assert!(metrics.contains("heaptape_unrecorded_total{reason=\"stalled\"} 3\n"), "{metrics}");
    // Others are admitted, recorded to their ends, and answered.
    let after = daemon.spawn(&target::c("leaks_slowly"), &["1000000", "5"], None);
    until("others are admitted", || daemon.list("leaks_slowly").len() == 2);
    daemon.run(&target::c("small"), &[]).success();
    daemon.query(&["snapshot"]);
    until("others are drained", || daemon.list("leaks_slowly").iter().all(|one| one["allocs"].as_u64() > Some(100)));
    // Its thread waits for ever, so the daemon does not end, and the next one serves instead of it.
    daemon.restart_stuck();
    until("the others go on", || daemon.list("leaks_slowly").len() == 2);
    mount.end();
    until("nothing is read any more", || own(&daemon, "stuck_reads") == 0.0);
    assert!(!daemon.log().contains("panic"), "{}", daemon.log());
    drop((before, after, stalled));
}

#[test]
fn program_that_holds_the_lock_of_its_memory_costs_nobody_else_anything() {
    let Some(mut mount) = StalledMount::new() else { return };
    let daemon = Daemon::start(&["--mode", "trace"]);
    let mut command = daemon.command(&target::c("locks_memory"));
    command.arg(mount.file("memory")).stdin(Stdio::piped());
    let mut locks = Running(command.spawn().expect("it starts"));
    until("it is served", || daemon.list("locks_memory").len() == 1);
    locks.0.stdin.take().expect("a pipe").write_all(b"\n").expect("it reads");
    let stat = format!("/proc/{}/stat", locks.0.id());
    until("it waits", || std::fs::read_to_string(&stat).is_ok_and(|text| text.contains(") D ")));
    // The snapshot of its pages waits for the lock.
    daemon.query(&["snapshot"]);
    daemon.query(&["snapshot"]);
    let other = daemon.spawn(&target::c("leaks_slowly"), &["1000000", "5"], None);
    until("others are admitted", || daemon.list("leaks_slowly").len() == 1);
    daemon.run(&target::c("small"), &[]).success();
    daemon.query(&["snapshot"]);
    until("others are drained", || daemon.list("leaks_slowly")[0]["allocs"].as_u64() > Some(100));
    until("it is named", || daemon.log().contains("(locks_memory): its memory or a file system that it uses did not"));
    mount.end();
    assert!(locks.0.wait().expect("its end").success());
    until("nothing is read any more", || own(&daemon, "stuck_reads") == 0.0);
    drop(other);
}

fn start_plain(path: &Path, arguments: &[&str]) -> Running {
    Running(Command::new(path).args(arguments).stdout(Stdio::null()).spawn().expect("it starts"))
}

/// The thread that attaches looks into the program's files, and must not wait for them for ever.
#[test]
fn attach_of_a_program_whose_files_do_not_answer_is_given_up() {
    let Some(mut mount) = StalledMount::new() else { return };
    let daemon = Daemon::start(&[]);
    let stalled = start_plain(&mount.file("program"), &["1000000", "5"]);
    let other = start_plain(&target::c("leaks_slowly"), &["1000000", "5"]);
    for _ in 0..2 {
        let refused = daemon.ctl(&["attach", &stalled.0.id().to_string()]).exits(2);
        assert!(refused.error().contains("a mount that does not answer"), "{refused}");
    }
    let pid = other.0.id().to_string();
    daemon.ctl(&["attach", &pid]).success();
    until("the other one is recorded", || daemon.list("leaks_slowly").len() == 1);
    daemon.ctl(&["detach", &pid]).success();
    mount.end();
    until("nothing is read any more", || own(&daemon, "stuck_reads") == 0.0);
    drop((stalled, other));
}

/// A thread that nothing interrupts cannot be stopped, and all others must stand still meanwhile.
#[test]
fn attach_of_a_program_that_waits_for_a_file_is_given_up() {
    let Some(mount) = StalledMount::new() else { return };
    let daemon = Daemon::start(&[]);
    let file = mount.file("program").display().to_string();
    let mut waits = start_plain(&target::c("waits_for_a_file"), &[&file]);
    // Ended before the program, which does not end while it waits.
    let mut mount = mount;
    let reads = |thread: std::fs::DirEntry| {
        std::fs::read_to_string(thread.path().join("syscall")).is_ok_and(|text| text.starts_with("17 "))
    };
    let threads = format!("/proc/{}/task", waits.0.id());
    until("a thread reads", || std::fs::read_dir(&threads).is_ok_and(|all| all.flatten().any(reads)));
    let refused = daemon.ctl(&["attach", &waits.0.id().to_string()]).exits(2);
    assert!(refused.error().contains("a thread does not stop (it waits in the kernel"), "{refused}");
    assert!(waits.0.try_wait().expect("its state").is_none(), "it goes on");
    let other = start_plain(&target::c("leaks_slowly"), &["1000000", "5"]);
    daemon.ctl(&["attach", &other.0.id().to_string()]).success();
    mount.end();
    drop((waits, other));
}
