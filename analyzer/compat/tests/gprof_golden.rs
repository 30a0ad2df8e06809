//! Compares the view of every sample with the output of GNU gprof 2.40, byte for byte.

use heaptape_compat::gprof::{self, Completeness, Options};
use std::path::{Path, PathBuf};

fn golden() -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/gmon");
    // File names are printed verbatim, so all tests of this file run in the same directory.
    std::env::set_current_dir(&folder).unwrap();
    folder
}

/// Runs the view. Returns the listings, the warnings, and the completeness or the error.
fn view(arguments: &[&str]) -> (String, String, Result<Completeness, String>) {
    golden();
    let arguments: Vec<String> = arguments.iter().map(|word| (*word).to_owned()).collect();
    let options = Options::parse(&arguments).unwrap();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let completeness =
        gprof::run(&options, &mut out, &mut err).map_err(|failure| heaptape_analyzer::text::with_causes(&failure));
    (String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap(), completeness)
}

/// The options with which the texts of a sample were printed.
const KINDS: [(&str, &[&str]); 11] = [
    ("flat", &["-b", "-p"]),
    ("graph", &["-b", "-q"]),
    ("brief", &["-b"]),
    ("info", &["-i"]),
    ("line", &["-b", "-p", "-l"]),
    ("full", &[]),
    ("linegraph", &["-b", "-q", "-l"]),
    ("nodemangle", &["--no-demangle", "-b", "-p"]),
    ("nodemangle-graph", &["--no-demangle", "-b", "-q"]),
    ("exec", &["-b", "-l", "-C"]),
    ("annot", &["-b", "-l", "-A", "-I", "src"]),
];

/// Samples for which the real tool fails or prints no numbers. docs/gmon.md has the list, and the
/// tests below have the output of the view.
const DIFFERENT: [&str; 5] =
    ["hand/arcs-only.graph", "hand/bb-32be.exec", "hand/bb-32be.info", "hand/bb-64be.exec", "hand/bb-64be.info"];

/// Returns the executable of a sample by its name.
fn image(folder: &str, name: &str) -> String {
    if folder == "alloc" {
        return format!("alloc/{}", name.split('.').next().unwrap());
    }
    if name.starts_with("names64") || name == "huge" || name == "wrap" {
        return if name.starts_with("names64") { "exe/names64" } else { "exe/huge64" }.to_owned();
    }
    let target = ["32be", "64be", "64pie", "32pie", "32"].iter().find(|target| name.ends_with(**target));
    format!("exe/calls{}", target.unwrap_or(&"64"))
}

#[test]
fn every_listing_equals_gprofs() {
    let (mut compared, mut wrong) = (0, Vec::new());
    for folder in ["real", "hand", "bsd", "alloc"] {
        for entry in std::fs::read_dir(golden().join(folder)).unwrap() {
            let file = entry.unwrap().file_name().into_string().unwrap();
            let Some(name) = file.strip_suffix(".gmon") else { continue };
            for (kind, arguments) in KINDS {
                let path = format!("{folder}/{name}.{kind}");
                let Ok(want) = std::fs::read_to_string(golden().join(format!("{path}.txt"))) else { continue };
                if DIFFERENT.contains(&&*path) {
                    continue;
                }
                let (image, profile) = (image(folder, name), format!("{folder}/{file}"));
                let form = if name.starts_with("bsd44") { "-O4.4bsd" } else { "-Obsd" };
                let mut arguments = arguments.to_vec();
                arguments.extend((folder == "bsd").then_some(form));
                arguments.extend([&*image, &*profile]);
                let (out, err, completeness) = view(&arguments);
                // The text is empty where the real tool failed too.
                if out != want {
                    wrong.push(format!("{path}: {completeness:?} {err}\n--- gprof\n{want}\n--- ours\n{out}"));
                }
                compared += 1;
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {compared} differ:\n{}", wrong.len(), wrong.join("\n"));
    assert!(compared >= 175, "only {compared} listings");
}

#[test]
fn arcs_without_histogram_take_no_time() {
    let (out, _, completeness) = view(&["-b", "-q", "exe/calls64", "hand/arcs-only.gmon"]);
    assert_eq!(completeness, Ok(Completeness::Complete));
    let real = std::fs::read_to_string(golden().join("hand/arcs-only.graph.txt")).unwrap();
    assert_eq!(out, real.replace("-nan", "0.00"));
}

#[test]
fn basic_blocks_of_big_endian_files_are_read() {
    let (out, ..) = view(&["-b", "-l", "-C", "exe/calls64be", "hand/bb-64be.gmon"]);
    let same = view(&["-b", "-l", "-C", "exe/calls64pie", "hand/bb-64pie.gmon"]).0;
    let counts = |text: &str| text.lines().map(|line| line.rsplit(") ").next().unwrap().to_owned()).collect::<Vec<_>>();
    assert_eq!(counts(&out), counts(&same));
    assert_eq!(counts(&out), ["70000 executions", "3 executions", "5 executions"]);
    let (info, ..) = view(&["-i", "exe/calls32be", "hand/bb-32be.gmon"]);
    assert!(info.contains("\t1 basic-block count record\n"), "{info}");
}

#[test]
fn small_counts_can_be_omitted() {
    let arguments = ["-b", "-l", "-C", "-m", "5", "exe/calls64", "hand/bb-hist-arc.gmon"];
    let counts: Vec<String> =
        view(&arguments).0.lines().map(|line| line.rsplit(") ").next().unwrap().to_owned()).collect();
    assert_eq!(counts, ["77 executions", "5 executions", "5 executions"]);
}

#[test]
fn missing_data_is_reported() {
    let message = |arguments: &[&str]| view(arguments).2.unwrap_err();
    assert_eq!(message(&["-p", "exe/calls64", "hand/arcs-only.gmon"]), "gmon.out file is missing histogram");
    assert_eq!(message(&["-q", "exe/calls64", "hand/hist-only.gmon"]), "gmon.out file is missing call-graph data");
    assert!(message(&["exe/none", "hand/hist-only.gmon"]).starts_with("exe/none: "));
    assert!(message(&["exe/calls64", "hand/none.gmon"]).starts_with("hand/none.gmon: "));
    assert!(message(&["README.md", "hand/hist-only.gmon"]).contains("not a program"));
    let mixed = message(&["exe/calls64", "hand/bytes.gmon", "real/calls64.gmon"]);
    assert!(
        mixed.contains("dimen: dimension unit changed between histogram records, from 'bytes' to 'seconds'"),
        "{mixed}"
    );
    let order = message(&["exe/calls64", "real/calls32be.gmon"]);
    assert!(order.contains("it reads as BE32, and exe/calls64 is LE64"), "{order}");
}

#[test]
fn truncated_file_is_shown_to_the_truncation() {
    let (out, err, completeness) = view(&["-b", "-p", "exe/calls64", "bad/cut-at-116.gmon"]);
    assert_eq!(completeness, Ok(Completeness::Truncated));
    assert!(out.contains(" hot\n"), "{out}");
    assert!(err.contains("gmon.out: offset 116: bins: the file ends here"), "{err}");
}

#[test]
fn corrupt_files_are_rejected_by_name() {
    let mut seen = 0;
    for entry in std::fs::read_dir(golden().join("bad")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let profile = format!("bad/{name}");
        for arguments in [&["-b"][..], &["-i"], &["-b", "-l", "-C"], &["-z"]] {
            let arguments: Vec<&str> = arguments.iter().copied().chain(["exe/calls64", &profile]).collect();
            match view(&arguments).2 {
                Ok(_) => {}
                Err(message) if message.starts_with("gmon.out file is missing") => {}
                Err(message) => assert!(message.contains(": gmon.out: offset "), "{name}: {message}"),
            }
        }
        seen += 1;
    }
    assert!(seen >= 48);
}

#[test]
fn corrupt_executable_is_reported() {
    let completeness = std::fs::read(golden().join("exe/calls32be")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    let run = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let (path, profile) = (path.to_str().unwrap(), "real/calls32be.gmon");
        let _ = view(&["-l", path, profile]);
        let _ = view(&["-b", "-z", path, profile]);
    };
    for length in (0..completeness.len()).step_by(611) {
        run(&completeness[..length]);
    }
    let mut random = 88_172_645_463_325_252u64;
    for _ in 0..150 {
        let mut bytes = completeness.clone();
        for _ in 0..20 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let index = (random >> 8) as usize % bytes.len();
            bytes[index] = random as u8;
        }
        run(&bytes);
    }
}

#[test]
fn names_select_symbols() {
    let listed = |arguments: &[&str]| -> Vec<String> {
        let arguments: Vec<&str> =
            ["-b"].iter().chain(arguments).copied().chain(["exe/calls64", "real/calls64.gmon"]).collect();
        view(&arguments).0.lines().skip(5).map(|line| line.rsplit(' ').next().unwrap().to_owned()).collect()
    };
    assert_eq!(listed(&["-phot"]), ["hot"]);
    assert_eq!(listed(&["-pcalls.c:15"]), ["hot"]);
    assert_eq!(listed(&["-p15", "-pfa"]), ["hot", "fa"]);
    assert!(!listed(&["-p", "-Pcalls.c", "-z"]).iter().any(|name| ["hot", "fa", "main"].contains(&&**name)));
    assert!(!listed(&["-p", "-P:hot"]).contains(&"hot".to_owned()));
    assert_eq!(listed(&["-p", "-k", "main/"])[0], "hot");
}

#[test]
fn options_are_parsed_as_by_gprof() {
    let parse =
        |arguments: &[&str]| Options::parse(&arguments.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>());
    let options = parse(&["-bpmain", "a", "-w", "40", "b", "--graph=x", "--bri", "c", "--", "-d"]).unwrap();
    assert_eq!(
        (options.image.as_str(), options.profiles, options.width),
        ("a", vec!["b".into(), "c".into(), "-d".into()], 40)
    );
    assert_eq!((options.names.flat, options.names.graph), (vec!["main".to_owned()], vec!["x".to_owned()]));
    for (arguments, message) in [
        (&["-X"][..], "invalid option -- 'X'"),
        (&["--no"], "option '--no' is ambiguous"),
        (&["--nothing"], "unrecognized option '--nothing'"),
        (&["-k"], "option '-k' requires an argument"),
        (&["-wx"], "option '--width' takes a number, not 'x'"),
        (&["-Oprof"], "sorry, file format `prof' is not yet supported"),
        (&["--sum=3"], "option '--sum' doesn't allow an argument"),
    ] {
        assert_eq!(parse(arguments).unwrap_err().to_string(), message);
    }
    assert!(view(&["--help"]).0.contains("-p, --flat-profile[=SYMSPEC]"));
}

/// `a/b` is an arc for `-q`, `-Q` and `-k`, and the function `a` for all other options. Without
/// arcs functions have no index.
#[test]
fn symspecs_and_traditional_style_equal_gprofs() {
    let specs = ["-pfact/cold", "-phot/", "-pcalls.c:hot/x", "-nhot/cold", "-Nhot/cold", "-kping/pong"];
    let calls = ["-qping/pong", "-Qping/pong", "-qtwice/leaf", "-Qmain/twice", "-q/fact"];
    let samples = specs.iter().chain(&calls).map(|option| ("real", "calls64", *option));
    for (folder, sample, option) in samples.chain([("hand", "hist-only", "-T")]) {
        let file = golden().join("specs").join(format!("{sample}{}.txt", option.replace(['/', ':'], "_")));
        let theirs = std::fs::read_to_string(&file).unwrap();
        let (ours, _, completeness) = view(&["-b", option, "exe/calls64", &format!("{folder}/{sample}.gmon")]);
        assert_eq!((ours, completeness), (theirs, Ok(Completeness::Complete)), "{option}");
    }
}
