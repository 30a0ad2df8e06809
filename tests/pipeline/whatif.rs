//! `heaptape whatif`: what a recording takes under an allocator is what the program took under it.

use heaptape_tests::recording::heaptape;
use heaptape_tests::{Program, target, test_env};
use serde_json::Value;
use std::path::Path;

/// Asserts that two sizes differ by a tenth at most.
#[track_caller]
fn assert_near(replayed: &Value, measured: u64, what: &str) {
    let replayed = replayed.as_u64().unwrap_or_else(|| panic!("{what}: {replayed}"));
    assert!(replayed.abs_diff(measured) * 10 <= measured, "{what}: {replayed} replayed, {measured} in the program");
}

fn whatif(recording: &Path, allocators: &str) -> Value {
    let arguments = ["whatif".as_ref(), "--json".as_ref(), "--allocator".as_ref(), allocators.as_ref()];
    let output = heaptape(arguments.into_iter().chain([recording.as_os_str()])).success();
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn replayed_memory_is_that_of_the_program() {
    // With pauses, in which the pages are read.
    let recording = Program::new(target::c("pins_pages")).args(["32", "500"]).recorded().success();
    let numbers: Vec<u64> = recording.outcome.text().split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [peak, end] = numbers[..] else { panic!("{}", recording.outcome) };
    let jemalloc = Path::new(target::LIBRARIES).join("libjemalloc.so.2");
    let has_jemalloc = jemalloc.exists();
    let names = if has_jemalloc { "glibc,glibc:arena_max=1,jemalloc" } else { "glibc,glibc:arena_max=1" };
    let answer = whatif(&recording.folder, names);
    assert!(answer["live_peak_bytes"].as_u64().is_some_and(|bytes| bytes >= 32 << 20), "{answer:#}");
    let rows = answer["allocators"].as_array().expect("rows");
    assert_near(&rows[0]["peak_bytes"], peak, "the peak");
    assert_near(&rows[0]["end_bytes"], end, "the end");
    let recorded = &answer["recorded"];
    assert_eq!(recorded["allocator"], "glibc", "{answer:#}");
    assert_near(&recorded["peak_bytes"], peak, "the recorded peak");
    assert_near(&recorded["end_bytes"], end, "the recorded end");
    let text = heaptape(["whatif".as_ref(), "--allocator=glibc".as_ref(), recording.folder.as_os_str()]).success();
    assert!(text.text().contains("glibc, as recorded"), "{text}");
    assert_eq!((&rows[1]["allocator"], &rows[1]["failed"]), (&"glibc:arena_max=1".into(), &0.into()), "{answer:#}");
    if has_jemalloc {
        // Bare, under the allocator that the recording was replayed with.
        let bare = Program::new(target::c("pins_pages"))
            .arg("32")
            .launched_by(&["env", &format!("LD_PRELOAD={}", jemalloc.display())]);
        let text = bare.plain().success().text();
        let peak = text.split_whitespace().next().and_then(|word| word.parse().ok()).expect("its peak");
        assert_near(&rows[2]["peak_bytes"], peak, "the peak under jemalloc");
    }
}

/// `redis-server` is a link to `redis-check-rdb`.
#[test]
fn program_has_the_name_by_which_it_was_started() {
    let folder = test_env::folder();
    let (file, link) = (folder.path().join("checks-all"), folder.path().join("serves-all"));
    test_env::copy(target::c("small"), &file);
    std::os::unix::fs::symlink(&file, &link).expect("a link");
    let recording = Program::new(&link).recorded().success();
    let text = heaptape(["whatif".as_ref(), "--allocator=glibc".as_ref(), recording.folder.as_os_str()]).success();
    assert!(text.text().starts_with("serves-all (pid "), "{text}");
}

/// Buffers that the program never wrote, as the snapshots of its pages show, are not written by
/// the replay either.
#[test]
fn memory_that_was_never_written_is_not_replayed_as_written() {
    let recording = Program::new(target::c("keeps_pages")).arg("1").recorded().success();
    let answer = whatif(&recording.folder, "glibc");
    let (row, recorded) = (&answer["allocators"][0], &answer["recorded"]);
    // The program has 36 MiB that it never wrote, and takes about as much for the rest.
    let bytes = |value: &Value| value.as_u64().expect("bytes");
    assert!(bytes(&answer["unwritten_end_bytes"]) > 35 << 20, "{answer:#}");
    assert_near(&row["peak_bytes"], bytes(&recorded["peak_bytes"]), "the peak");
    assert_near(&row["end_bytes"], bytes(&recorded["end_bytes"]), "the end");
}

#[test]
fn recordings_without_a_replay_are_refused() {
    let folder = test_env::folder();
    let sampled = Program::new(target::c("pins_pages")).arg("1").option("--sample=4KiB").recorded().success();
    let output = heaptape(["whatif".as_ref(), sampled.folder.as_os_str()]).exits(2);
    assert!(output.error().contains("the recording is sampled"), "{output}");
    let output = heaptape(["whatif", "--allocator", "hoard", "x"]).exits(2);
    assert!(output.error().contains("no allocator is called 'hoard'"), "{output}");
    // A library that the loader refuses is no allocator.
    let library = folder.path().join("libx.so");
    std::fs::write(&library, "no library").expect("a file");
    let recording = Program::new(target::c("pins_pages")).arg("1").recorded().success();
    let output =
        heaptape(["whatif".as_ref(), "--allocator".as_ref(), library.as_os_str(), recording.folder.as_os_str()])
            .exits(1);
    assert!(output.text().contains("libx.so: the replay ended with"), "{output}");
}

/// A recording may need more memory than this machine has.
#[test]
fn replay_that_runs_out_of_memory_is_named() {
    let Some(group) = heaptape_tests::cgroup::Cgroup::limited(64 << 20) else { return };
    let code = "push @big, 'x' x ((16 << 20) + $_) for 1..16";
    let recording = Program::new("perl").args(["-e", code]).recorded().success();
    let line = format!(
        "echo $$ > {} && exec {} whatif --allocator glibc {}",
        group.processes().display(),
        test_env::command().display(),
        recording.folder.display()
    );
    let output = Program::shell(&line).plain().exits(1);
    assert!(output.text().contains("glibc: the replay was killed (SIGKILL)"), "{output}");
}
