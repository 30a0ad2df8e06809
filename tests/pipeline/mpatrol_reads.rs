//! Whether mpatrol's own mptrace can read the plain trace of a recording. The tool is not installed
//! where the tests run, so this is a model of its buffer, which is where it fails: it holds 8192
//! bytes, is refilled only if fewer than 5 are left before a number, and a longer number is read
//! from beyond its end.

use heaptape_formats::tape::Codec;
use heaptape_tests::recording::{Recording, heaptape};
use heaptape_tests::run::started;
use heaptape_tests::wait::{until, until_some};
use heaptape_tests::{Program, target, test_env};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::signal::{Signal, kill};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io::Read;
use std::path::Path;

/// The buffer of mptrace: the file, the offset of the next byte, and the end of the buffer.
struct Mptrace<'a> {
    file: &'a [u8],
    at: usize,
    edge: usize,
}

impl Mptrace<'_> {
    fn want(&mut self, bytes: usize) {
        if self.edge - self.at < bytes {
            self.edge = self.file.len().min(self.at + 8192);
        }
        assert!(self.edge - self.at >= bytes, "the file ends at {}", self.at);
    }

    fn take(&mut self, bytes: usize) -> &[u8] {
        self.want(bytes);
        self.at += bytes;
        &self.file[self.at - bytes..self.at]
    }

    fn number(&mut self) -> u64 {
        self.want(5);
        let mut value = 0;
        for index in 0.. {
            assert!(self.at < self.edge, "mptrace reads past its buffer at {}: Invalid file format", self.at);
            let byte = self.file[self.at];
            self.at += 1;
            value |= u64::from(byte & 0x7f) << (7 * index);
            if byte & 0x80 == 0 {
                break;
            }
        }
        value
    }

    /// Reads a whole trace whose records name no function and no file.
    fn read(file: &[u8]) -> Tally {
        let mut reader = Mptrace { file, at: 0, edge: 0 };
        assert_eq!(reader.take(4), b"MTRC");
        assert_eq!(reader.take(8), 1u64.to_le_bytes());
        reader.take(8);
        let mut tally = Tally::default();
        loop {
            let location = |reader: &mut Mptrace| {
                reader.number();
                assert_eq!(reader.take(1), [0]);
                assert_eq!(reader.take(1), [0]);
                reader.number();
            };
            match reader.take(1)[0] {
                b'A' | b'R' => {
                    let [_, _, size] = [reader.number(), reader.number(), reader.number()];
                    location(&mut reader);
                    tally.allocated += 1;
                    tally.bytes += size;
                }
                b'F' => {
                    reader.number();
                    location(&mut reader);
                    tally.freed += 1;
                }
                b'I' | b'H' => {
                    let [_, size] = [reader.number(), reader.number()];
                    tally.reserved += size;
                }
                tag => {
                    reader.at -= 1;
                    let at = reader.at;
                    assert_eq!(reader.take(4), b"MTRC", "{tag:?} at {at}: Invalid file format");
                    return tally;
                }
            }
        }
    }
}

/// What mptrace counts.
#[derive(Debug, Default)]
struct Tally {
    allocated: u64,
    bytes: u64,
    freed: u64,
    reserved: u64,
}

/// Returns the plain bytes of a trace, compressed or not.
fn plain(trace: &Path) -> Vec<u8> {
    let stored = fs::read(trace).expect("the trace");
    let codec = match trace.extension().and_then(|suffix| suffix.to_str()) {
        Some("zst") => Codec::Zstd,
        Some("columns") => Codec::Columns,
        _ => Codec::Plain,
    };
    let mut bytes = Vec::new();
    codec.reader(&stored[..]).and_then(|mut reader| reader.read_to_end(&mut bytes)).expect("a complete file");
    bytes
}

#[test]
fn mptrace_reads_plain_traces_of_any_size() {
    // A position-independent program: its addresses take 7 bytes, and a number crosses the edge
    // about once in eight buffers.
    let program = target::c("threads");
    for codec in ["zstd", "plain", "columns"] {
        let run = Program::new(&program).args(["4", "60000"]).option("--compress").option(codec);
        let recording = run.recorded().success().complete();
        let process = recording.report().only("threads").clone();
        let bytes = plain(&recording.files("trace.mtrc")[0]);
        assert!(bytes.len() > 2 << 20, "{} bytes", bytes.len());
        let tally = Mptrace::read(&bytes);
        assert_eq!(
            (tally.allocated, tally.bytes),
            (process.allocs + process.resizes, process.bytes_allocated),
            "{codec}"
        );
    }
}

#[test]
fn plain_trace_is_written_on_request() {
    let recording = Program::new(target::c("threads")).args(["4", "60000"]).option("--mtrc").recorded().success();
    let trace = recording.files("trace.mtrc").into_iter().next().expect("a trace");
    assert_eq!(trace.file_name(), Some(OsStr::new("trace.mtrc")));
    let bytes = fs::read(&trace).expect("the trace");
    assert!(bytes.len() > 2 << 20, "{} bytes: smaller ones are plain without the option", bytes.len());
    assert!(Mptrace::read(&bytes).allocated > 60_000);
}

/// mptrace refuses a file without the end mark, so a trace that grows must have it at any moment.
#[test]
fn mptrace_reads_a_plain_trace_while_it_grows() {
    let recording = Program::new(target::c("endless")).option("--mtrc").recorded_while(|command, folder| {
        let mut seen = BTreeSet::new();
        until("the trace has grown several times", || {
            let entries = fs::read_dir(folder).into_iter().flatten().flatten();
            let bytes = entries.filter_map(|entry| fs::read(entry.path().join("trace.mtrc")).ok()).max();
            if let Some(bytes) = bytes {
                seen.insert(Mptrace::read(&bytes).allocated);
            }
            seen.len() >= 5
        });
        let program = started(command.id()).expect("the program");
        kill(program, Signal::SIGKILL).expect("it runs");
    });
    let [trace] = &recording.files("trace.mtrc")[..] else { panic!("{:?}", recording.files("trace")) };
    let tally = Mptrace::read(&fs::read(trace).expect("the trace"));
    let report = recording.report();
    let process = report.only("endless");
    assert_eq!((tally.allocated, tally.freed), (process.allocs + process.resizes, process.frees));
}

/// The name appears with the first events and the mark, in one step.
#[test]
fn plain_trace_has_its_end_mark_from_its_first_moment() {
    let recording = Program::new("sleep").args(["0.5"]).recorded_while(|_, folder| {
        let inside = || fs::read_dir(folder).into_iter().flatten().flatten().find(|entry| entry.path().is_dir());
        let process = until_some("the process has a folder", inside).path();
        let watch = Inotify::init(InitFlags::empty()).expect("a watch");
        watch.add_watch(&process, AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO).expect("it is watched");
        let mut is_seen = process.join("trace.mtrc").exists();
        while !is_seen {
            for event in watch.read_events().expect("what happens") {
                if event.name.as_deref() == Some(OsStr::new("trace.mtrc")) {
                    assert_eq!(event.mask, AddWatchFlags::IN_MOVED_TO, "it is created without its content");
                    is_seen = true;
                }
            }
        }
    });
    Mptrace::read(&fs::read(&recording.files("trace.mtrc")[0]).expect("the trace"));
}

/// A large trace is no file of mptrace's; the summary says how to make one.
#[test]
fn report_says_how_to_get_a_trace_for_mptrace() {
    let line = |recording: &Recording| {
        let text = recording.heaptape(&["report"]).success().text();
        text.lines().find_map(|line| line.strip_prefix("for mptrace: heaptape ").map(str::to_owned))
    };
    let small = Program::new("true").recorded().success();
    assert_eq!(line(&small), None);
    let large = Program::new(target::c("threads")).args(["4", "60000"]).recorded().success();
    let command = line(&large).expect("the way to the trace");
    let folder = test_env::folder();
    let words = command.split(' ').map(|word| match word {
        "trace.mtrc" => folder.path().join(word).into_os_string(),
        word => word.into(),
    });
    heaptape(words).success();
    assert!(Mptrace::read(&fs::read(folder.path().join("trace.mtrc")).expect("the trace")).allocated > 60_000);
}

#[test]
fn exports_refuse_versions_that_no_tool_reads() {
    let recording = Program::new("true").recorded().success();
    let directory = test_env::folder();
    for (format, version, is_read) in [
        ("mptl", "10200", false),
        ("mptl", "10300", true),
        ("mptl", "10599", true),
        ("mptl", "10600", false),
        ("mtrc", "10599", true),
        ("mtrc", "10600", false),
    ] {
        let out = directory.path().join(format!("{version}.{format}"));
        let arguments = ["export", "--to", format, "--version-word", version, "-o"].map(OsStr::new);
        let output = heaptape(arguments.into_iter().chain([out.as_os_str(), recording.folder.as_os_str()]));
        assert_eq!((output.code() == 0, out.exists()), (is_read, is_read), "{format} {version}: {output}");
        if is_read {
            let view = if format == "mptl" { "mprof" } else { "mptrace" };
            heaptape([OsStr::new(view), out.as_os_str()]).success();
        }
    }
}
