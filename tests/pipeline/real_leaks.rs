//! Leaks that were added to real programs: the first line of `heaptape leaks` names the function
//! that allocated the leaked blocks. The programs run for more than a second, since growth in a
//! shorter run is too little evidence.

use heaptape_tests::wait::until;
use heaptape_tests::{Program, Recording, Target, run, test_env};
use std::process::Command;
use std::time::Duration;

/// The system's interpreter, whose headers `scripts/install-tools` installs.
const PYTHON: &str = "/usr/bin/python3";

#[track_caller]
fn guilty(recording: &Recording, function: &str) {
    let output = recording.heaptape(&["leaks"]).success().text();
    let first = output.lines().next().expect("a line");
    assert!(first.contains(function) && first.contains("growing"), "{output}");
    let output = recording.heaptape(&["leaks", "--fail-if", "leaked.growing > 0"]);
    assert_eq!(output.code(), 1);
    assert!(output.text().lines().nth(1).is_some_and(|line| line.contains(function)), "{output}");
}

#[test]
fn leak_in_a_sqlite_extension_is_found() {
    let extension = Target::library("leaks/sqlite_keys.c").build();
    let fill = "INSERT INTO t SELECT search_key('Customer ' || x), stored_key('Order ' || x) FROM
         (WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c WHERE x<2000) SELECT x FROM c);
         SELECT count(DISTINCT substr(k, 1, 10)) FROM t;\n.shell sleep 0.15\n";
    let script = format!(
        ".load {}
         CREATE TABLE t(k TEXT, s TEXT);
         {}",
        extension.display(),
        fill.repeat(10)
    );
    let recording = Program::new("sqlite3").arg(":memory:").stdin(script).recorded().success().complete();
    guilty(&recording, "fold_key");
}

#[test]
fn leak_in_a_python_module_is_found() {
    const WHERE: &str = "import sysconfig; print(sysconfig.get_paths()['include'])";
    let output = Command::new(PYTHON).args(["-c", WHERE]).output().expect("the system's Python");
    let headers = format!("-I{}", String::from_utf8_lossy(&output.stdout).trim());
    let module = Target::library("leaks/wordcount.c").named("wordcount.so").flag(headers).build();
    let script = "
import json, time, wordcount
size = 0
for i in range(20000):
    if i % 1000 == 0:
        time.sleep(0.06)
    word = wordcount.longest('request %d of customer %d in the morning' % (i, i * 7))
    size += len(json.dumps({'n': i, 'w': word}))
print(size)
";
    let folder = module.parent().expect("a folder");
    let program = Program::new(PYTHON).args(["-s", "-c", script]).env("PYTHONPATH", folder);
    let recording = program.env("PYTHONDONTWRITEBYTECODE", "1").recorded().success().complete();
    guilty(&recording, "copy_word");
}

#[test]
fn leak_in_a_redis_module_is_found() {
    if test_env::find("redis-server").is_none() {
        eprintln!("redis-server is not installed: run scripts/install-tools");
        return;
    }
    let module = Target::library("leaks/redis_sessions.c").build();
    let directory = test_env::folder();
    let socket = directory.path().join("s");
    let client = |lines: String| {
        let mut command = Command::new("redis-cli");
        command.arg("-s").arg(&socket);
        run::finish(command, lines.as_bytes())
    };
    let server = Program::new("redis-server").args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]);
    let server = server.arg(&socket).arg("--loadmodule").arg(&module).arg("--dir").arg(directory.path());
    let recording = server.recorded_while(|_, _| {
        until("the server listens", || socket.exists());
        let user = |round: usize| {
            format!(
                "SESSION.TOUCH user{}\nSET key{0} {round}\nSESSION.WORDS \"a text of number {round}\"\n",
                round % 50
            )
        };
        let mut output = String::new();
        for start in (0..4000).step_by(400) {
            output += &client((start..start + 400).map(user).collect()).success().text();
            std::thread::sleep(Duration::from_millis(150));
        }
        assert!(output.contains("user49-") && output.lines().filter(|line| *line == "5").count() >= 4000, "{output}");
        client("SHUTDOWN NOSAVE\n".into());
    });
    guilty(&recording.success().complete(), "make_token");
}
