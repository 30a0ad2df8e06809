//! Real programs, event for event: allocations, resizes, frees and bytes of each process equal
//! those of a counting preload in the same process. Live blocks and the peak equal those of its
//! map.

use heaptape_tests::oracle::{Counts, Depth};
use heaptape_tests::{Program, Recording, Report, Target, is_full, same, target, test_env};

/// Runs the program plain, and recorded and counted at once; all must agree.
#[track_caller]
fn agrees(program: &Program, depth: Depth) -> (Recording, Report, Vec<Counts>) {
    let plain = program.plain().success();
    let (recording, report, counts) = program.recorded_like_counted(depth);
    same(&plain, &recording.outcome);
    (recording.complete(), report, counts)
}

#[test]
fn ls_matches_the_reference_counts() {
    let folder = if is_full() { "/usr" } else { "/usr/share" };
    let (_, report, _) = agrees(&Program::new("ls").args(["-lR", folder]), Depth::Peak);
    assert!(report.only("ls").allocs > 10_000);
}

#[test]
fn sqlite_bulk_load_matches_the_reference_counts() {
    let rows = if is_full() { 500_000 } else { 50_000 };
    let script = format!(
        "PRAGMA journal_mode=OFF;
         CREATE TABLE t(id INTEGER PRIMARY KEY, k TEXT, v TEXT, n INTEGER);
         WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c WHERE x<{rows})
         INSERT INTO t SELECT x, printf('key-%08x', (x*2654435761)%4294967296), printf('value %d of some text %d', x, x*7), (x*40503)%65536 FROM c;
         CREATE INDEX tk ON t(k);
         CREATE INDEX tn ON t(n, k);
         SELECT n%16, count(*), max(k), group_concat(substr(v,1,3)) IS NULL FROM t GROUP BY n%16;
         SELECT count(DISTINCT substr(k,1,9)) FROM t;
         SELECT sum(length(replace(v,'text','TEXTUAL'))) FROM t;
         UPDATE t SET v = v || '-' || upper(k) WHERE n<20000;
         SELECT count(*) FROM t a JOIN t b ON a.k=b.k WHERE a.n<5000;"
    );
    let (_, report, _) = agrees(&Program::new("sqlite3").arg(":memory:").stdin(script), Depth::Peak);
    assert!(report.only("sqlite3").events() > rows * 10);
}

/// The interpreter of the system, not one that a person put in the search path.
const PYTHON: &str = "/usr/bin/python3";

fn python(objects: u64) -> Program {
    const SCRIPT: &str = "
import json, sys
n = int(sys.argv[1])
data = [{'id': i, 'name': 'user%d' % i, 'v': i * 0.5} for i in range(n)]
s = json.dumps(data)
back = json.loads(s)
print(len(s), len(back))
";
    // Not -I: that would leave PYTHONMALLOC unheard.
    let program = Program::new(PYTHON).args(["-s", "-c", SCRIPT]).arg(objects.to_string());
    program.env("PYTHONMALLOC", "malloc").env("PYTHONHASHSEED", "0").env("PYTHONDONTWRITEBYTECODE", "1")
}

#[test]
fn python_matches_the_reference_counts() {
    let objects = if is_full() { 300_000 } else { 30_000 };
    let (_, report, _) = agrees(&python(objects), Depth::Peak);
    assert!(report.processes.iter().any(|process| process.events() > objects * 20), "{report:#?}");
}

#[test]
fn compiler_and_its_children_match_the_reference_counts() {
    let folder = test_env::folder();
    let program = Program::new("g++").args(["-O1", "-c"]).arg(test_env::programs().join("leaks/containers.cpp"));
    let program = program.arg("-o").arg(folder.path().join("containers.o"));
    let (_, report, counts) = agrees(&program, Depth::Peak);
    assert!(counts.len() >= 3, "{counts:#?}");
    let driver = report.processes.iter().find(|process| process.name().contains("g++")).expect("the driver");
    let compiler = report.only("cc1plus");
    assert_eq!(compiler.ppid, driver.pid, "{report:#?}");
    assert!(compiler.allocs > 100_000, "{compiler:#?}");
    let assembler = report.processes.iter().find(|process| process.name().ends_with("as")).expect("the assembler");
    assert_eq!(assembler.ppid, driver.pid, "{report:#?}");
}

/// Node.js allocates in several threads, and has a compiler at run time.
#[test]
fn node_matches_the_reference_counts() {
    let script = "const kept = []; for (let at = 0; at < 2000; at++) kept.push(Buffer.alloc(9000 + at));
        console.log(kept.length, require('zlib').deflateSync(Buffer.concat(kept)).length)";
    let (_, report, _) = agrees(&Program::new(test_env::need("node")).args(["-e", script]), Depth::Live);
    assert!(report.only("node").events() > 50_000, "{report:#?}");
}

#[test]
fn rust_program_matches_the_reference_counts() {
    let built = Target::program("words.rs").build();
    let (recording, report, _) = agrees(&Program::new(built), Depth::Peak);
    assert!(report.only("words").events() > 50_000);
    let leaks = recording.leaks();
    let leak = leaks.iter().find(|leak| leak.bytes == 4441).expect("the block that was leaked");
    assert!(leak.functions().iter().any(|name| name.contains("leaves_something_behind")), "{:?}", leak.functions());
}

#[test]
fn threads_that_free_on_others_match_the_reference_counts() {
    let rounds = if is_full() { "500000" } else { "20000" };
    let (_, report, _) = agrees(&Program::new(target::c("threads")).args(["8", rounds]), Depth::Live);
    assert!(report.only("threads").events() > 300_000);
}

#[test]
fn shells_and_their_children_match_the_reference_counts() {
    let line = "for i in 1 2 3; do seq 2000 | sort -n | awk '{s+=$1} END {print s}'; (echo sub; ls / | wc -l >/dev/null); done";
    let (_, report, _) = agrees(&Program::new("bash").arg("-c").arg(line), Depth::Live);
    assert!(report.processes.len() > 10, "{report:#?}");
}

/// The library changes nothing in what the program itself does: a run that is counted alone makes
/// the same events as one that is recorded.
#[test]
fn recorded_run_matches_a_separately_counted_run() {
    let program = Program::new("sqlite3")
        .arg(":memory:")
        .stdin("create table t(a); insert into t values (randomblob(100)); select count(*) from t;");
    let folder = test_env::folder();
    let fixed = program.clone().launched_by(&["setarch", "-R"]);
    fixed.clone().counted(folder.path()).plain().success();
    let counted = Counts::read_all(folder.path());
    let counted = counted.iter().find(|counts| counts.name() == "sqlite3").expect("the counts");
    let recording = fixed.recorded().complete();
    let report = recording.report();
    let process = report.only("sqlite3");
    assert_eq!(
        (process.allocs, process.resizes, process.frees),
        (counted.allocs, counted.resizes, counted.frees),
        "{process:#?}"
    );
    assert_eq!(process.bytes_allocated, counted.bytes, "{process:#?}");
}
