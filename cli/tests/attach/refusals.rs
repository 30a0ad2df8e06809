//! Processes that cannot be attached.

use crate::programs::{Attach, Running, RunsOn, binary, build, build_with, heaptape, wait_until};
use std::process::Command;

/// Each refusal is one line that names the cause.
#[test]
fn refusals_name_the_cause() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = build("runs_on", folder.path());
    let refused = |mut command: Command, why: &str| {
        let output = command.output().expect("it starts");
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(text.contains(why) && text.lines().count() == 1, "{why}: {text}");
        assert_eq!(output.status.code(), Some(2), "{text}");
    };
    let dry = |pid: &str| {
        let mut command = Command::new(binary());
        command.args(["attach", "--dry-run", pid]);
        command
    };
    let ends = |mut running: RunsOn| {
        running.child.kill().expect("it runs");
        running.child.wait().expect("its end");
    };
    let sandboxed = RunsOn::start(Command::new(&program).arg("sandbox"));
    refused(dry(&sandboxed.pid()), "it is in a sandbox (seccomp)");
    ends(sandboxed);
    let others = folder.path().join("others");
    std::fs::create_dir(&others).expect("a folder");
    let sanitized = build_with("runs_on", &others, &["-fsanitize=address"]);
    let sanitized = RunsOn::start(Command::new(sanitized).arg("sleeps"));
    refused(dry(&sanitized.pid()), "it was built with a sanitizer");
    ends(sanitized);
    let stripped = build_with("runs_on", &others, &["-static", "-s"]);
    let stripped = RunsOn::start(Command::new(stripped).arg("sleeps"));
    refused(dry(&stripped.pid()), "it has no symbols");
    ends(stripped);
    let running = RunsOn::start(Command::new(&program).arg("sleeps"));
    let pid = running.pid();
    let mut tracer = Command::new("strace").args(["-q", "-o", "/dev/null", "-p", &pid]).spawn().expect("strace");
    let status = format!("/proc/{pid}/status");
    wait_until(|| std::fs::read_to_string(&status).is_ok_and(|status| !status.contains("TracerPid:\t0\n")));
    refused(dry(&pid), &format!("strace (pid {}) traces it already: end that first", tracer.id()));
    tracer.kill().expect("it runs");
    tracer.wait().expect("its end");
    wait_until(|| std::fs::read_to_string(&status).is_ok_and(|status| status.contains("TracerPid:\t0\n")));
    if nix::unistd::geteuid().is_root() {
        let mut other = Command::new("setpriv");
        other.args(["--reuid", "65534", "--clear-groups", "--", binary(), "attach"]);
        other.args(["--dry-run", &pid]);
        refused(other, "it belongs to another user: run this as root");
        let mut powerless = Command::new("setpriv");
        powerless.args(["--bounding-set", "-sys_ptrace", "--", binary(), "attach"]);
        powerless.args(["--dry-run", &pid]);
        refused(powerless, "root has no CAP_SYS_PTRACE here");
    }
    ends(running);
}

/// What cannot be attached is refused in one line, and `--dry-run` changes nothing.
#[test]
fn refusals_say_what_to_do() {
    let mut running = Running::start(1);
    let pid = running.pid();
    let dry = heaptape(&["attach", "--dry-run", &pid], 0);
    assert!(dry.contains("can be attached; nothing was changed") && dry.contains(" malloc: "), "{dry}");
    let refused = |pid: &str, why: &str| {
        let text = heaptape(&["attach", "--dry-run", pid], 2);
        assert!(text.contains(why) && text.lines().count() == 1, "{why}: {text}");
    };
    refused("2147483647", "there is no such process");
    refused("no-program-has-this-name", "no process has the name");
    let mut attach = Attach::start(&running, "recording");
    refused(&pid, "heaptape did and was killed");
    attach.end();
    let library = heaptape(&["library"], 0);
    let mut preloaded = Command::new("sleep").arg("60").env("LD_PRELOAD", library.trim_end()).spawn().expect("sleep");
    let sleeping = preloaded.id().to_string();
    let maps = format!("/proc/{sleeping}/maps");
    wait_until(|| std::fs::read_to_string(&maps).is_ok_and(|maps| maps.contains("libheaptape")));
    refused(&sleeping, "it has heaptape's library already");
    preloaded.kill().expect("it sleeps");
    preloaded.wait().expect("its end");
    running.work();
    running.ends_unharmed();
}
