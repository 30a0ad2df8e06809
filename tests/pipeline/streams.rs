//! A live trace on a pipe: `record -o -` and `heaptape stream`.

use heaptape_formats::mtrc::{Record, Stream};
use heaptape_formats::tape::Codec;
use heaptape_tests::run::finish;
use heaptape_tests::wait::until;
use heaptape_tests::{Outcome, Program, own, target, test_env, torture};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Allocations, resizes and frees of a plain MTRC file, read by the project's reader to its end
/// mark.
fn counts(bytes: &[u8]) -> [u64; 3] {
    let mut stream = Stream::new(bytes).expect("an MTRC header");
    let mut counts = [0; 3];
    while let Some(record) = stream.next().expect("a record") {
        match record {
            Record::Alloc { .. } => counts[0] += 1,
            Record::Resize { .. } => counts[1] += 1,
            Record::Free { .. } => counts[2] += 1,
            Record::Heap { .. } | Record::Internal { .. } => {}
        }
    }
    assert!(bytes.ends_with(b"MTRC"), "the end mark");
    counts
}

/// The plain bytes of a recording's only trace.
fn trace(folder: &Path) -> Vec<u8> {
    let entries = std::fs::read_dir(folder).expect("the recording").flatten();
    let files = entries.flat_map(|entry| std::fs::read_dir(entry.path()).into_iter().flatten().flatten());
    let mut traces =
        files.map(|file| file.path()).filter(|path| path.to_string_lossy().contains("/trace.mtrc")).collect::<Vec<_>>();
    assert_eq!(traces.len(), 1, "{traces:?}");
    let path = traces.remove(0);
    let mut bytes = Vec::new();
    let file = File::open(&path).expect("the trace");
    if path.extension().is_some_and(|extension| extension == "zst") {
        // A killed recorder may leave half a frame after its last commit.
        let _ = zstd::Decoder::new(file).expect("zstd").read_to_end(&mut bytes);
    } else if path.extension().is_some_and(|extension| extension == "columns") {
        let _ = Codec::Columns.reader(file).expect("columns").read_to_end(&mut bytes);
    } else {
        { file }.read_to_end(&mut bytes).expect("reads");
    }
    bytes
}

fn from_python(script: &Path, folder: &Path) -> Command {
    let mut command = Command::new("python3");
    command.args([script, folder]);
    command
}

fn stream(arguments: &[&std::ffi::OsStr]) -> Outcome {
    let mut command = Command::new(test_env::command());
    command.arg("stream").args(arguments);
    finish(command, b"")
}

/// Small and large traces of finished recordings equal `trace.mtrc` byte for byte, compressed or
/// not.
#[test]
fn finished_recording_is_streamed_unchanged() {
    for (rounds, threads, codec) in [("10", "1", "zstd"), ("300000", "2", "zstd"), ("40000", "2", "columns")] {
        let program = Program::new(target::c("pairs")).args([rounds, threads]).option("--compress").option(codec);
        let recording = program.recorded().success().complete();
        let outcome = stream(&[recording.folder.as_os_str()]);
        assert_eq!((outcome.code(), outcome.error().as_str()), (0, ""), "{outcome}");
        assert!(outcome.stdout == trace(&recording.folder), "{rounds}: the plain trace");
        let report = recording.report();
        let process = report.only("pairs");
        assert_eq!(counts(&outcome.stdout), [process.allocs, process.resizes, process.frees]);
        let process_folder = recording.folder.join(&recording.about().processes[0].folder);
        let mtrc = recording.folder.join("again.mtrc");
        let export = recording.heaptape(&["export", "--to", "mtrc", "-o", &mtrc.to_string_lossy()]).success();
        assert!(std::fs::read(&mtrc).expect("a trace").starts_with(b"MTRC"), "{export}");
        std::fs::remove_file(&mtrc).expect("a trace");
        if rounds != "300000" {
            let script = test_env::root().join("tests/tape/read_tape.py");
            let read = finish(from_python(&script, &process_folder), b"").success();
            assert!(read.text().contains(&format!("allocs {}", process.allocs)), "{read}");
        }
        assert!(stream(&[process_folder.as_os_str()]).stdout == outcome.stdout, "by the process's folder");
    }
}

/// A running program is streamed by folder and by pid, until it ends.
#[test]
fn running_program_is_streamed_until_its_end() {
    let folder = test_env::folder();
    let file = folder.path().join("own");
    let program = Program::new(target::c("paces")).args(["100000000", "2", "500"]).env("OWN_FILE", &file);
    let mut streamed = Vec::new();
    let recording = program.recorded_while(|command, folder| {
        until("the program starts", || own::has_begun(&file));
        let pid = heaptape_tests::run::started(command.id()).expect("the program runs").to_string();
        let arguments = [folder.to_owned(), PathBuf::from(&pid)];
        let follow = |word: &PathBuf| {
            let mut command = Command::new(test_env::command());
            command.arg("stream").arg(word).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            command.spawn().expect("starts")
        };
        let by_folder = follow(&arguments[0]);
        until("there is a chunk", || {
            let mut folders = std::fs::read_dir(folder).into_iter().flatten().flatten();
            let has_trace = |name: &str, folder: &Path| folder.join(name).metadata().is_ok_and(|file| file.len() > 0);
            folders.any(|one| ["trace.mtrc", "trace.mtrc.columns"].iter().any(|name| has_trace(name, &one.path())))
        });
        let mut by_pid = follow(&arguments[1]);
        // Events come while the program runs.
        let mut head = [0; 4096];
        let live = by_pid.stdout.as_mut().expect("piped").read_exact(&mut head);
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(pid.parse().expect("a pid")),
            nix::sys::signal::Signal::SIGKILL,
        )
        .expect("it runs");
        live.expect("bytes of a live trace");
        let rest = by_pid.wait_with_output().expect("ends");
        assert!(rest.status.success(), "{}", String::from_utf8_lossy(&rest.stderr));
        let whole = by_folder.wait_with_output().expect("ends");
        assert!(whole.status.success(), "{}", String::from_utf8_lossy(&whole.stderr));
        assert!(whole.stdout == [&head[..], &rest.stdout].concat(), "both are the same trace");
        streamed = whole.stdout;
    });
    let report = recording.report();
    let process = report.only("paces");
    assert_eq!(counts(&streamed), [process.allocs, process.resizes, process.frees]);
    assert!(streamed == trace(&recording.folder));
    torture::passed(4, "traces streamed from a running program", 2);
}

/// A killed recorder leaves a trace without an end mark. It is streamed to its last event, and
/// reported as truncated.
#[test]
fn truncated_trace_is_streamed_to_its_last_event() {
    for (codec, suffix, length) in [("zstd", "zst", 3 << 20), ("columns", "columns", 1 << 20)] {
        streams_truncated_trace(codec, suffix, length);
    }
}

/// Kills the recorder when the trace is longer than `length` bytes.
fn streams_truncated_trace(codec: &str, suffix: &str, length: u64) {
    let program = Program::new(target::c("pairs")).args(["700000", "1"]).option("--compress").option(codec);
    let recording = program.recorded_while(|command, folder| {
        let survivor = heaptape_tests::run::survivor(command);
        // Several chunks, so that the first ones are committed.
        let is_long = |path: PathBuf| std::fs::metadata(path).is_ok_and(|about| about.len() > length);
        let has_chunk = || {
            std::fs::read_dir(folder).is_ok_and(|mut entries| {
                entries.any(|entry| entry.is_ok_and(|entry| is_long(entry.path().join(format!("trace.mtrc.{suffix}")))))
            })
        };
        until("chunks are written", has_chunk);
        // In this order: a command that lives replaces a killed recorder.
        command.kill().expect("SIGKILL");
        nix::sys::signal::kill(survivor, nix::sys::signal::Signal::SIGKILL).expect("SIGKILL");
    });
    let outcome = stream(&[recording.folder.as_os_str()]);
    assert!(outcome.code() == 1 && outcome.error().contains("the trace is truncated"), "{outcome}");
    // The file may end in half a frame after its last commit. The stream goes on with the events of
    // the open chunk's journal.
    let file = trace(&recording.folder);
    let shared = file.len().min(outcome.stdout.len());
    assert!(
        shared > 3 << 20 && file[..shared] == outcome.stdout[..shared],
        "one is the beginning of the other: {} and {} bytes",
        outcome.stdout.len(),
        file.len()
    );
}

/// `record -o -` writes the trace alone to standard output.
#[test]
fn record_to_standard_output_endlessly_the_trace() {
    let folder = test_env::folder();
    let line = "echo said by the program; echo complaint >&2; exit 3";
    let mut command = Command::new(test_env::command());
    command.args(["record", "-q", "-o", "-", "--", "bash", "-c", line]).current_dir(folder.path());
    command.env("TMPDIR", folder.path());
    let outcome = finish(command, b"");
    assert_eq!(outcome.code(), 3, "{outcome}");
    assert_eq!(outcome.error(), "said by the program\ncomplaint\n");
    assert!(counts(&outcome.stdout)[0] > 100, "bash allocates");
    assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 0, "nothing stays");
    // The project's own reader at the other end of a pipe, and a program that only starts another
    // one.
    let line = "\"$0\" record -q -o - -- \"$@\" | \"$0\" mptrace -v -";
    let piped = |arguments: &[&str]| {
        let mut command = Command::new("bash");
        command.args(["-c", line]).arg(test_env::command()).args(arguments);
        finish(command, b"").success().text()
    };
    let pairs = target::c("pairs");
    let pairs = pairs.to_str().expect("text");
    assert!(piped(&[pairs, "300000", "1"]).lines().count() > 600_000, "a line an event");
    assert!(piped(&["bash", "-c", "exec \"$@\"", "bash", pairs, "300000", "1"]).lines().count() > 600_000);
}

#[test]
fn streaming_errors_are_reported() {
    let folder = test_env::folder();
    let outcome = stream(&[folder.path().as_os_str()]);
    assert!(outcome.code() == 2 && outcome.error().contains("not a recording"), "{outcome}");
    let outcome = stream(&["4194305".as_ref()]);
    assert!(outcome.code() == 2 && outcome.error().contains("no process with this pid"), "{outcome}");
    let recording = Program::new("true").recorded();
    let outcome = stream(&[recording.folder.as_os_str(), "--process".as_ref(), "1".as_ref()]);
    assert!(outcome.code() == 2 && outcome.error().contains("no process 1"), "{outcome}");
    // Trace and messages in one file, and a program that is not there.
    for (line, status, wanted) in [
        ("\"$0\" record -o - -- true >out 2>&1; s=$?; cat out >&2; exit $s", 2, "would mix"),
        ("\"$0\" record -o - -- nosuchprog >out", 127, "not found in PATH"),
    ] {
        let mut command = Command::new("bash");
        command.args(["-c", line]).arg(test_env::command()).current_dir(folder.path()).env("TMPDIR", folder.path());
        let outcome = finish(command, b"");
        assert!(outcome.code() == status && outcome.error().contains(wanted), "{outcome}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).expect("the folder").count(), 1, "only what the shell made");
}
