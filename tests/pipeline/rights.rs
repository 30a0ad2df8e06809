//! Programs that change their user, root or namespaces: their children are recorded where they can
//! reach the recorder, and named where they cannot.

use heaptape_tests::test_env;
use heaptape_tests::{Program, Recording, Target, is_root, same, target, torture};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Returns whether the test can change users.
fn can_change_users() -> bool {
    if !is_root() {
        eprintln!("skipped: only root can change users");
    }
    is_root()
}

/// Asserts that the recording of the program `name` is complete, and that no process is named as
/// not recorded.
fn recorded_as(recording: Recording, name: &str) {
    let recording = recording.complete();
    let (about, report) = (recording.about(), recording.report());
    assert!(about.not_traced.is_empty(), "{about:#?}");
    assert!(report.all(name).any(|process| process.allocs >= 10), "{name}: {report:#?}");
}

/// Returns the children that `changes_rights` printed.
fn children(recording: &Recording) -> Vec<u32> {
    recording.outcome.text().lines().filter_map(|line| line.parse().ok()).collect()
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
    torture::passed(20, "ways to change the user with a recorded program", lines.len() as u64);
}

/// If other users cannot pass the directory for sockets of the caller, another one is used.
#[test]
fn private_directories_for_sockets_are_no_obstacle() {
    if !can_change_users() {
        return;
    }
    let folder = test_env::folder();
    let program = Program::new("setpriv").args(["--reuid", "65534", "--clear-groups", "ls", "/"]);
    let recording = program.env("XDG_RUNTIME_DIR", folder.path()).env("TMPDIR", folder.path()).recorded();
    recorded_as(recording.success(), "ls");
}

#[test]
fn children_of_a_program_that_gave_up_its_rights_are_recorded() {
    if !can_change_users() {
        return;
    }
    let recording = Program::new(target::c("changes_rights")).arg("setuid").recorded().success().complete();
    let (report, about) = (recording.report(), recording.about());
    assert!(about.not_traced.is_empty(), "{about:#?}");
    let pids = children(&recording);
    assert_eq!(pids.len(), 3);
    for pid in pids {
        let child = report.processes.iter().find(|process| process.pid == pid);
        assert_eq!(child.map(|child| child.allocs), Some(10), "{report:#?}");
    }
    torture::passed(20, "recorded children of a program that dropped its privileges", 3);
}

/// In a user namespace a user has the rights of root over its own resources.
#[test]
fn programs_in_other_namespaces_are_recorded() {
    let flags = ["-Ur", "-Urm", "-Urn", "-Uru --fork", "-Urmp --fork"];
    let users: &[&[&str]] =
        if is_root() { &[&[], &["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]] } else { &[&[]] };
    let mut tried = 0;
    for user in users {
        for flag in flags {
            let command: Vec<&str> = std::iter::once("unshare").chain(flag.split(' ')).collect();
            let program = Program::new("ls").arg("/").launched_by(&command);
            if (if user.is_empty() { program.clone() } else { program.clone().launched_by(user) }).plain().code() != 0 {
                eprintln!("skipped: unshare {flag} is not permitted here");
                continue;
            }
            let folder = test_env::folder();
            std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).expect("a way");
            let dir = folder.path().join("r");
            let recorder = Program::new(test_env::command()).args(["record", "-q", "-o"]).arg(&dir).arg("--");
            let recorder = program.as_arguments_of(recorder).env("HOME", folder.path());
            let recorder = if user.is_empty() { recorder } else { recorder.launched_by(user) };
            let outcome = recorder.plain().success();
            recorded_as(Recording { outcome, folder: dir, directory: folder }, "ls");
            tried += 1;
        }
    }
    torture::passed(20, "namespaces with a recorded program", tried);
}

/// A root that holds what `program` needs, named `small`.
fn root_with(program: &Path, folder: &Path) {
    test_env::copy(program, folder.join("small"));
    let needs = Program::new("ldd").arg(program).plain().success().text();
    for path in needs.split_whitespace().filter(|word| word.starts_with('/')).map(PathBuf::from) {
        let copy = folder.join(path.strip_prefix("/").expect("an absolute path"));
        std::fs::create_dir_all(copy.parent().expect("a folder")).expect("its folder");
        test_env::copy(&path, &copy);
    }
}

/// A process that cannot reach the recorder any more is named after its executable file.
#[test]
fn children_in_another_root_are_named() {
    if !can_change_users() {
        return;
    }
    let root = test_env::folder();
    let recording = Program::new(target::c("changes_rights")).arg("chroot").arg(root.path()).recorded().success();
    let about = recording.about();
    let named: Vec<u32> = about.not_traced.iter().map(|process| process.pid).collect();
    assert_eq!(named, children(&recording), "{about:#?}");
    assert!(recording.not_traced("changes_rights").iter().all(|why| why.contains("cannot reach the recorder")));
    let report = recording.heaptape(&["report"]);
    assert!(report.text().contains("changes_rights (pid") && report.text().contains("cannot reach"), "{report}");

    let root = test_env::folder();
    root_with(&target::c("small"), root.path());
    let recording = Program::new(target::c("changes_rights")).arg("exec").arg(root.path()).recorded().success();
    let about = recording.about();
    let named: Vec<u32> = about.not_traced.iter().map(|process| process.pid).collect();
    assert_eq!(named, children(&recording), "{about:#?}");
    assert!(recording.not_traced("small").iter().all(|why| why.contains("cannot reach the recorder")), "{about:#?}");
    torture::passed(22, "named children in another root directory", 4);
}

/// A program in a mount namespace that hides the socket.
#[test]
fn programs_that_do_not_see_the_socket_are_named() {
    if !can_change_users() {
        return;
    }
    let line = "mount -t tmpfs none /tmp && ls / >/dev/null && ls / >/dev/null; exit 5";
    let program = Program::new("unshare").args(["-m", "sh", "-c", line]);
    if program.plain().code() != 5 {
        eprintln!("skipped: mounts are not permitted here");
        return;
    }
    let recording = program.env("XDG_RUNTIME_DIR", "/tmp").env("TMPDIR", "/tmp").recorded();
    assert_eq!(recording.outcome.code(), 5);
    let why = recording.not_traced("ls");
    assert_eq!(why.len(), 2, "{:#?}", recording.about());
    assert!(why.iter().all(|why| why.contains("cannot reach the recorder")), "{why:?}");
}

#[test]
fn children_without_a_descriptor_are_named() {
    let recording = Program::new(target::c("changes_rights")).arg("descriptors").recorded().success();
    let about = recording.about();
    let named: Vec<u32> = about.not_traced.iter().map(|process| process.pid).collect();
    assert_eq!(named, children(&recording), "{about:#?}");
    assert!(recording.not_traced("changes_rights").iter().all(|why| why.contains("descriptor")), "{about:#?}");
}

/// A program that is started with another library to preload instead of ours.
#[test]
fn programs_with_another_library_to_preload_are_named() {
    let other = Target::library("early_library.c").build();
    for (line, is_recorded) in [
        (format!("env LD_PRELOAD={} ls / >/dev/null", other.display()), false),
        (format!("env LD_PRELOAD={}:$LD_PRELOAD ls / >/dev/null", other.display()), true),
        (format!("env LD_PRELOAD=\"$LD_PRELOAD {}\" ls / >/dev/null", other.display()), true),
    ] {
        let recording = Program::shell(&line).recorded().success();
        let (about, report) = (recording.about(), recording.report());
        assert_eq!(report.all("ls").any(|process| process.allocs >= 10), is_recorded, "{line}: {report:#?}");
        let why = recording.not_traced("ls");
        assert_eq!(why.is_empty(), is_recorded, "{line}: {about:#?}");
        assert!(why.iter().all(|why| why.contains("LD_PRELOAD was replaced by")), "{line}: {why:?}");
    }
}
