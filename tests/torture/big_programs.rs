//! Servers and interpreters under load.

use heaptape_tests::wait::until;
use heaptape_tests::{Daemon, Program, test_env, torture};
use std::time::Duration;

/// A server under its own benchmark, forking for snapshots meanwhile; the answers are checked by
/// the client.
#[test]
fn redis_under_its_benchmark_is_recorded() {
    let (Some(_), Some(_)) = (test_env::find("redis-server"), test_env::find("redis-benchmark")) else { return };
    let folder = test_env::folder();
    let socket = folder.path().join("redis.socket");
    let line = format!(
        "cd {0}; redis-server --port 0 --unixsocket {1} --save '' --dir {0} >/dev/null & server=$!; \
         while ! redis-cli -s {1} ping >/dev/null 2>&1; do sleep 0.05; done; \
         redis-benchmark -s {1} -q -n 20000 -r 5000 -t set,get,lpush,hset >/dev/null || exit 3; \
         for i in 1 2 3 4 5; do redis-cli -s {1} bgsave >/dev/null; sleep 0.2; done; \
         redis-cli -s {1} set answer 42 >/dev/null; redis-cli -s {1} get answer; \
         redis-cli -s {1} shutdown nosave; wait $server; echo $?",
        folder.path().display(),
        socket.display()
    );
    let recording = Program::shell(&line).recorded().success();
    assert_eq!(recording.outcome.text(), "42\n0\n", "{}", recording.outcome);
    let report = recording.report();
    report.processes.iter().for_each(heaptape_tests::Process::assert_accounting);
    let servers = report.processes.iter().filter(|process| process.name().starts_with("redis-")).count();
    assert!(servers >= 6, "the server, its children for snapshots, the clients: {report:#?}");
    torture::passed(18, "snapshots of Redis under load", 5);
}

/// Each of 1,000 short processes is recorded as a process of its own.
#[test]
fn thousand_short_processes_are_recorded() {
    let recording = Program::shell("for i in $(seq 1000); do /bin/true; done; echo done").recorded().success();
    let report = recording.report();
    // `true` allocates a little before its main; each is a process of its own.
    assert_eq!(report.all("true").count(), 1_000);
    report.processes.iter().for_each(heaptape_tests::Process::assert_accounting);
    torture::passed(19, "short processes in one recording", 1_000);
}

/// make -j with a real compiler.
#[test]
fn parallel_build_is_recorded() {
    let folder = test_env::folder();
    for index in 0..12 {
        let text = format!(
            "#include <map>\n#include <string>\nstd::map<std::string, int> m{index};\nint f{index}() {{ return m{index}[\"x\"]++; }}\n"
        );
        std::fs::write(folder.path().join(format!("f{index}.cpp")), text).expect("a source");
    }
    std::fs::write(
        folder.path().join("Makefile"),
        "all: $(patsubst %.cpp,%.o,$(wildcard *.cpp))\n%.o: %.cpp\n\tg++ -O1 -c $< -o $@\n",
    )
    .expect("a makefile");
    let recording = Program::new("make").args(["-s", "-j2"]).folder(folder.path()).recorded().success().complete();
    let report = recording.report();
    assert_eq!(report.all("cc1plus").count(), 12, "{report:#?}");
    torture::passed(1, "compilers of a parallel build", 12);
}

/// The live bytes that Redis reports equal those of the daemon, except for the rounding of the
/// allocator.
#[test]
fn live_bytes_of_redis_match_its_own_figures() {
    let (Some(server), Some(_)) = (test_env::find("redis-server"), test_env::find("redis-benchmark")) else { return };
    let daemon = Daemon::start(&[]);
    let directory = test_env::folder();
    let socket = directory.path().join("socket").display().to_string();
    let arguments = ["--port", "0", "--unixsocket", &socket, "--save", "", "--dir", "/"];
    let _server = daemon.spawn(&server, &arguments, Some("profile"));
    let output = |args: &[&str]| Program::new("redis-cli").args(["-s", &socket]).args(args).plain();
    until("redis answers", || output(&["ping"]).code() == 0);
    let own = || {
        let text = output(&["info", "memory"]).success().text();
        let line =
            text.lines().find_map(|line| line.strip_prefix("used_memory:")).expect("its figure").trim().to_owned();
        line.parse::<f64>().expect("a number")
    };
    let ours = || {
        // The count is the same twice: all events are drained.
        let look = || daemon.list("redis-server")[0].clone();
        let mut last = look();
        loop {
            std::thread::sleep(Duration::from_millis(1200));
            let now = look();
            if now["live_bytes"] == last["live_bytes"] {
                assert_eq!(now["lost"], 0, "{now}");
                return now["live_bytes"].as_f64().expect("bytes");
            }
            last = now;
        }
    };
    let (own_before, before) = (own(), ours());
    for _ in 0..4 {
        let load = Program::new("redis-benchmark").args(["-s", &socket, "-q", "-c", "2", "-n", "3000", "-r", "100000"]);
        load.args(["-d", "300", "-t", "set,lpush,hset"]).plain().success();
        std::thread::sleep(Duration::from_millis(300));
    }
    let (own_grown, grown) = (own() - own_before, ours() - before);
    println!("grown by {own_grown} by its own figure, {grown} by ours");
    // jemalloc's classes are at most a quarter apart.
    assert!(
        own_grown > 4e6 && (own_grown * 0.78..own_grown * 1.02).contains(&grown),
        "{own_grown} by its own, {grown} by ours"
    );
    output(&["flushall"]).success();
    let (own_left, left) = (own() - own_before, ours() - before);
    assert!((left - own_left).abs() < own_grown / 20.0, "after all went: {own_left} by its own, {left} by ours");
    torture::passed(18, "servers whose own counts match the daemon's", 1);
}

/// What a build with many jobs, or the start of a machine, does.
#[test]
fn programs_that_start_all_at_once_on_a_busy_machine_are_recorded() {
    heaptape_tests::all_at_once::all_are_recorded(250, 20);
}
