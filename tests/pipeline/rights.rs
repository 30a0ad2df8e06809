//! Programs that change their user or namespaces are recorded on.

use heaptape_tests::{Program, Recording, is_root, same, target, torture, workshop};
use std::os::unix::fs::PermissionsExt;

/// Whether a test that changes users can be made here.
fn can_change_users() -> bool {
    if !is_root() {
        eprintln!("skipped: only root can change users");
    }
    is_root()
}

/// Insists on a recording of the program `name` that is complete, with nobody named as not recorded.
fn recorded_as(recording: Recording, name: &str) {
    let recording = recording.whole();
    let (about, report) = (recording.about(), recording.report());
    assert!(about.not_traced.is_empty(), "{about:#?}");
    assert!(report.all(name).any(|process| process.allocs >= 10), "{name}: {report:#?}");
}

/// The children of `changes_rights`, by what it printed.
fn children(recording: &Recording) -> Vec<u32> {
    recording.outcome.text().lines().map(|line| line.parse().expect("a process id")).collect()
}

#[test]
fn programs_of_other_users_are_recorded() {
    if !can_change_users() {
        return;
    }
    let lines = [
        "runuser -u nobody -- ls /",
        "su -s /bin/sh nobody -c 'ls /'",
        "setpriv --reuid 65534 --clear-groups ls /",
        "setpriv --reuid 65534 --regid 65534 --clear-groups sh -c 'ls / && ls /; ls /'",
    ];
    for line in lines {
        let program = Program::shell(line);
        let plain = program.plain().success();
        let recording = program.recorded();
        same(&plain, &recording.outcome);
        recorded_as(recording, "ls");
    }
    torture::passed(20, "ways to go on as another user, recorded", lines.len() as u64);
}

/// Where the caller's own directory for sockets can be passed by nobody else, another one is taken.
#[test]
fn private_directories_for_sockets_are_no_obstacle() {
    if !can_change_users() {
        return;
    }
    let folder = workshop::folder();
    let program = Program::new("setpriv").args(["--reuid", "65534", "--clear-groups", "ls", "/"]);
    let recording = program.env("XDG_RUNTIME_DIR", folder.path()).env("TMPDIR", folder.path()).recorded();
    recorded_as(recording.success(), "ls");
}

#[test]
fn children_of_a_program_that_gave_up_its_rights_are_recorded() {
    if !can_change_users() {
        return;
    }
    let recording = Program::new(target::c("changes_rights")).arg("setuid").recorded().success().whole();
    let (report, about) = (recording.report(), recording.about());
    assert!(about.not_traced.is_empty(), "{about:#?}");
    let pids = children(&recording);
    assert_eq!(pids.len(), 3);
    for pid in pids {
        let child = report.processes.iter().find(|process| process.pid == pid);
        assert_eq!(child.map(|child| child.allocs), Some(10), "{report:#?}");
    }
    torture::passed(20, "children of a program that gave up its rights, recorded", 3);
}

/// The same without root: a user's namespaces give him a root's rights over what is his.
#[test]
fn programs_in_other_namespaces_are_recorded() {
    let flags = ["-Ur", "-Urm", "-Urn", "-Uru --fork", "-Urmp --fork"];
    let users: &[&[&str]] =
        if is_root() { &[&[], &["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]] } else { &[&[]] };
    let mut tried = 0;
    for user in users {
        for flag in flags {
            let words: Vec<&str> = std::iter::once("unshare").chain(flag.split(' ')).collect();
            let program = Program::new("ls").arg("/").behind(&words);
            if (if user.is_empty() { program.clone() } else { program.clone().behind(user) }).plain().code() != 0 {
                eprintln!("skipped: unshare {flag} is not permitted here");
                continue;
            }
            let folder = workshop::folder();
            std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).expect("a way");
            let place = folder.path().join("r");
            let recorder = Program::new(workshop::command()).args(["record", "-q", "-o"]).arg(&place).arg("--");
            let recorder = program.behind_command(recorder).env("HOME", folder.path());
            let recorder = if user.is_empty() { recorder } else { recorder.behind(user) };
            let outcome = recorder.plain().success();
            recorded_as(Recording { outcome, folder: place, place: folder }, "ls");
            tried += 1;
        }
    }
    torture::passed(20, "namespaces, with a program that is recorded in them", tried);
}
