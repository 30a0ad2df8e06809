//! Stacks in executables and libraries as linkers make them: with gaps between their segments,
//! with huge pages, prelinked, without a table of unwind data, with sections of other names.
//!
//! The program knows its call chains, and libgcc walks the same stacks in the same run. All cases
//! are linked from the same few objects, run in one recording, and reported together.

use heaptape_tests::{Program, Recording, test_env};
use std::collections::HashMap;
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Pie,
    Fixed,
    Static,
    StaticPie,
    /// The flags are those of a library, which the program is linked with.
    Linked,
    /// The same for a library that the program opens.
    Opened,
}
use Kind::{Fixed, Linked, Opened, Pie, Static, StaticPie};

/// What is done with the linked file.
#[derive(Clone, Copy)]
enum Then {
    Nothing,
    /// Runs objcopy with these options.
    Objcopy(&'static [&'static str]),
    /// Removes the table of sections, as small loaders do.
    NoSections,
    /// Runs the program by naming it to the loader.
    ByLoader,
}
use Then::{ByLoader, NoSections, Nothing, Objcopy};

/// What is expected of the stacks.
#[derive(Clone, Copy, PartialEq)]
enum Wanted {
    /// All of them are those of libgcc, and contain the program's chain.
    All,
    /// libgcc has no table. The stacks contain the program's chain.
    Chain,
    /// Nobody finds the unwind data without the table of sections. Stacks may end early, and no
    /// frame is invented.
    Ends,
    /// One object has no unwind data. Stacks through it may end there, and no frame is invented.
    Honest,
}
use Wanted::{All, Chain, Ends, Honest};

struct Case {
    name: &'static str,
    linker: &'static str,
    kind: Kind,
    flags: &'static str,
    then: Then,
    wanted: Wanted,
}

const fn case(name: &'static str, linker: &'static str, kind: Kind, flags: &'static str) -> Case {
    Case { name, linker, kind, flags, then: Nothing, wanted: All }
}

const fn then(then: Then, case: Case) -> Case {
    Case { then, ..case }
}

const fn wants(wanted: Wanted, case: Case) -> Case {
    Case { wanted, ..case }
}

/// Alignments and layouts that each linker has, for each kind.
const LINKERS: [&str; 4] = ["bfd", "gold", "lld", "mold"];
const KINDS: [(&str, Kind); 6] = [
    ("pie", Pie),
    ("fixed", Fixed),
    ("static", Static),
    ("static-pie", StaticPie),
    ("linked", Linked),
    ("opened", Opened),
];

/// What not each linker can do, or not for each kind.
const SPECIAL: &[Case] = &[
    case("bfd-64K", "bfd", Pie, "-z,max-page-size=0x10000"),
    case("lld-64K", "lld", Fixed, "-z,max-page-size=0x10000"),
    case("mold-64K", "mold", Opened, "-z,max-page-size=0x10000"),
    case("gold-64K", "gold", Linked, "-z,max-page-size=0x10000"),
    case("bfd-noseparate", "bfd", Pie, "-z,noseparate-code"),
    case("bfd-noseparate-2M", "bfd", Fixed, "-z,noseparate-code,-z,max-page-size=0x200000"),
    case("bfd-noseparate-library-2M", "bfd", Opened, "-z,noseparate-code,-z,max-page-size=0x200000"),
    case("mold-noseparate", "mold", Pie, "-z,noseparate-code"),
    case("lld-separate-2M", "lld", Pie, "-z,separate-loadable-segments,-z,max-page-size=0x200000"),
    case("lld-one-segment", "lld", Pie, "--no-rosegment"),
    case("lld-one-segment-2M", "lld", Fixed, "--no-rosegment,-z,max-page-size=0x200000"),
    case("lld-one-segment-static", "lld", Static, "--no-rosegment"),
    case("gold-rosegment", "gold", Pie, "--rosegment,-z,max-page-size=0x200000"),
    case("bfd-huge-pages", "bfd", Pie, "-z,common-page-size=0x200000,-z,max-page-size=0x200000"),
    case("bfd-huge-pages-static", "bfd", Static, "-z,common-page-size=0x200000,-z,max-page-size=0x200000"),
    case("gold-huge-pages", "gold", Fixed, "-z,common-page-size=0x200000,-z,max-page-size=0x200000"),
    case("bfd-prelinked-pie", "bfd", Pie, "-Ttext-segment=0x10000000"),
    case("bfd-prelinked-fixed", "bfd", Fixed, "-Ttext-segment=0x10000000,-z,max-page-size=0x200000"),
    case("bfd-prelinked-static", "bfd", Static, "-Ttext-segment=0x20000000"),
    case("bfd-prelinked-library", "bfd", Linked, "-Ttext-segment=0x30000000"),
    case("gold-prelinked-fixed", "gold", Fixed, "-Ttext=0x10000000"),
    case("lld-prelinked-pie", "lld", Pie, "--image-base=0x10000000"),
    case("mold-prelinked-fixed", "mold", Fixed, "--image-base=0x10000000"),
    case("bfd-far-text", "bfd", Fixed, "--section-start=.text_far=0x40000000"),
    case("bfd-far-text-static", "bfd", Static, "--section-start=.text_far=0x40000000"),
    case(
        "bfd-tables-apart",
        "bfd",
        Fixed,
        "--section-start=.eh_frame_hdr=0x8000000,--section-start=.eh_frame=0x9000000",
    ),
    case(
        "bfd-tables-apart-pie",
        "bfd",
        Pie,
        "--section-start=.eh_frame_hdr=0x8000000,--section-start=.eh_frame=0x9000000",
    ),
    case(
        "bfd-scattered",
        "bfd",
        Fixed,
        "--section-start=.text_far=0x40000000,--section-start=.rodata=0x50000000,--section-start=.eh_frame_hdr=0x8000000,\
         --section-start=.eh_frame=0x9000000,--section-start=.data=0x60000000,--section-start=.init=0x20000000",
    ),
    case("bfd-128M", "bfd", Pie, "-z,max-page-size=0x8000000"),
    case("lld-128M", "lld", Fixed, "-z,max-page-size=0x8000000"),
    case("lld-folded", "lld", Pie, "--icf=all,--gc-sections"),
    case("gold-folded", "gold", Opened, "--icf=all,--gc-sections"),
    case("bfd-packed-relocations", "bfd", Pie, "-z,pack-relative-relocs,--build-id=none,--hash-style=gnu"),
    wants(Chain, case("bfd-no-table", "bfd", Pie, "--no-eh-frame-hdr")),
    wants(Chain, case("bfd-no-table-library", "bfd", Linked, "--no-eh-frame-hdr")),
    wants(Chain, case("gold-no-table", "gold", Fixed, "--no-eh-frame-hdr")),
    wants(Chain, case("lld-no-table", "lld", Pie, "--no-eh-frame-hdr")),
    wants(Chain, case("mold-no-table", "mold", Fixed, "--no-eh-frame-hdr")),
    wants(Ends, case("bfd-no-table-plugin", "bfd", Opened, "--no-eh-frame-hdr")),
    wants(Chain, case("bfd-no-table-static", "bfd", Static, "--no-eh-frame-hdr")),
    wants(Chain, case("lld-no-table-static", "lld", Static, "--no-eh-frame-hdr")),
    wants(Honest, case("bfd-quiet", "bfd", Pie, "")),
    wants(Honest, case("lld-quiet-2M", "lld", Fixed, "-z,max-page-size=0x200000")),
    wants(Honest, case("gold-quiet-static", "gold", Static, "")),
    then(
        Objcopy(&[
            "--rename-section=.eh_frame=.rules",
            "--rename-section=.eh_frame_hdr=.index",
            "--rename-section=.text=.code",
        ]),
        case("bfd-renamed", "bfd", Pie, ""),
    ),
    then(
        Objcopy(&["--rename-section=.eh_frame=.rules", "--rename-section=.eh_frame_hdr=.index"]),
        case("lld-renamed-static", "lld", Static, ""),
    ),
    then(Objcopy(&["--strip-all"]), case("bfd-stripped-2M", "bfd", Pie, "-z,max-page-size=0x200000")),
    then(NoSections, case("bfd-no-sections-2M", "bfd", Fixed, "-z,max-page-size=0x200000")),
    then(ByLoader, case("bfd-by-loader", "bfd", Pie, "")),
    then(ByLoader, case("bfd-by-loader-2M", "bfd", Fixed, "-z,max-page-size=0x200000")),
];

/// A case to be run.
struct Runnable {
    name: String,
    wanted: Wanted,
    /// What is run, in the shell.
    line: String,
}

fn run(program: &str, arguments: &[&str], folder: &Path) -> Result<(), String> {
    let result = Command::new(program).args(arguments).current_dir(folder).output();
    let result = result.map_err(|error| format!("{program}: {error}"))?;
    let text = || format!("{program} {arguments:?}: {}", String::from_utf8_lossy(&result.stderr));
    result.status.success().then_some(()).ok_or_else(text)
}

/// Compiles the objects that all cases are linked from.
fn compile(folder: &Path) {
    let source = test_env::programs().join("linked.c");
    let source = source.to_str().expect("a path in UTF-8");
    let common = "-O2 -fomit-frame-pointer -fno-optimize-sibling-calls -fPIC -D_GNU_SOURCE -Wall -Wextra -Werror";
    for (object, flags) in [
        ("main", "-DMAIN"),
        ("linked", "-DMAIN -DLINKED"),
        ("opens", "-DMAIN -DOPENS"),
        ("tables", "-DQUIET"),
        ("quiet", "-DQUIET -fno-asynchronous-unwind-tables"),
        ("library", "-DLIBRARY"),
    ] {
        let output = format!("{object}.o");
        let words = common.split(' ').chain(flags.split(' ')).chain(["-c", source, "-o", &output]);
        run("gcc", &words.collect::<Vec<_>>(), folder).unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Links a case, and returns how it is run.
fn link(case: &Case, name: &str, folder: &Path) -> Result<Runnable, String> {
    let linker = format!("-fuse-ld={}", case.linker);
    let flags = if case.flags.is_empty() { "-Wl,--as-needed".to_owned() } else { format!("-Wl,{}", case.flags) };
    let quiet = if case.wanted == Honest { "quiet.o" } else { "tables.o" };
    let library = format!("./lib{name}.so");
    let mut line = format!("./{name}");
    let program: &[&str] = match case.kind {
        Pie => &["-pie", "main.o", quiet],
        Fixed => &["-no-pie", "main.o", quiet],
        Static => &["-static", "main.o", quiet],
        StaticPie => &["-static-pie", "main.o", quiet],
        Linked | Opened => {
            run("gcc", &[&linker, "-shared", &flags, "library.o", "-o", &library], folder)?;
            if case.kind == Opened {
                let _ = write!(line, " {library}");
                &["opens.o", quiet]
            } else {
                &["linked.o", quiet, &library]
            }
        }
    };
    let of_program: &[&str] = if matches!(case.kind, Linked | Opened) { &[] } else { &[&linker, &flags] };
    run("gcc", &[program, of_program, &["-o", name]].concat(), folder)?;
    match case.then {
        Nothing => {}
        Objcopy(options) => run("objcopy", &[options, &[name]].concat(), folder)?,
        NoSections => {
            let path = folder.join(name);
            let mut bytes = std::fs::read(&path).map_err(|error| error.to_string())?;
            // e_shoff, e_shnum and e_shstrndx
            bytes[0x28..0x30].fill(0);
            bytes[0x3c..0x40].fill(0);
            std::fs::write(&path, bytes).map_err(|error| error.to_string())?;
        }
        ByLoader => line = format!("/lib64/ld-linux-x86-64.so.2 {line}"),
    }
    Ok(Runnable { name: name.to_owned(), wanted: case.wanted, line })
}

/// The return addresses of each allocation by process and size, innermost first.
fn stacks(recording: &Recording) -> HashMap<(u64, u64), Vec<u64>> {
    let output = recording.heaptape(&["export", "--format", "json", "--events"]).text();
    let lines = output.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).expect("a line of JSON"));
    let (mut folders, mut found) = (HashMap::new(), HashMap::new());
    let mut sites: HashMap<u64, HashMap<u64, (u64, u64)>> = HashMap::new();
    for line in lines {
        let number = |key: &str| line[key].as_u64().unwrap_or_default();
        if line["type"] == "process" {
            folders.insert(number("pid"), line["folder"].as_str().unwrap_or_default().to_owned());
        } else if number("size") / 100 == 10_000 {
            let sites = sites
                .entry(number("pid"))
                .or_insert_with(|| sites_of(&recording.folder.join(&folders[&number("pid")])));
            let mut stack = Vec::new();
            let mut site = number("site");
            while let Some((parent, address)) = sites.get(&site) {
                stack.push(*address);
                site = *parent;
            }
            found.insert((number("pid"), number("size")), stack);
        }
    }
    found
}

/// Parent and address of each site of a process.
fn sites_of(folder: &Path) -> HashMap<u64, (u64, u64)> {
    let tape = folder.join("events.tape");
    let text = heaptape_tests::recording::heaptape([std::ffi::OsStr::new("dump"), tape.as_os_str()]).text();
    let site = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let ["site", number, "parent", parent, address, ..] = words[..] else { return None };
        let address = u64::from_str_radix(address.strip_prefix("0x")?, 16).ok()?;
        Some((number.parse().ok()?, (parent.parse().ok()?, address)))
    };
    text.lines().filter_map(site).collect()
}

/// A line of the program.
struct Printed {
    size: u64,
    is_whole: bool,
    chain: Vec<u64>,
    libgcc: Vec<u64>,
}

fn printed(line: &str) -> Option<Printed> {
    let (head, libgcc) = line.split_once(" libgcc")?;
    let (head, chain) = head.split_once(" chain ")?;
    let (size, kind) = head.split_once(' ')?;
    let addresses = |text: &str| {
        text.split_whitespace().filter_map(|word| u64::from_str_radix(word.strip_prefix("0x")?, 16).ok()).collect()
    };
    Some(Printed {
        size: size.parse().ok()?,
        is_whole: kind == "whole",
        chain: addresses(chain),
        libgcc: addresses(libgcc),
    })
}

fn is_within(chain: &[u64], stack: &[u64]) -> bool {
    let mut rest = stack.iter();
    chain.iter().all(|address| rest.any(|other| other == address))
}

/// The functions without unwind data.
const QUIET: u64 = 1_000_009;

/// Returns what is wrong with a stack.
fn fault(case: &Runnable, line: &Printed, stack: Option<&Vec<u64>>) -> Option<String> {
    let Some([_, stack @ ..]) = stack.map(Vec::as_slice) else { return Some("not recorded".to_owned()) };
    let begins =
        |chain: &[u64], stack: &[u64]| if line.is_whole { stack.starts_with(chain) } else { is_within(chain, stack) };
    let is_right = match case.wanted {
        Honest if line.size == QUIET => line.chain.starts_with(stack) || stack.starts_with(&line.chain),
        All | Honest if !begins(&line.chain, &line.libgcc) => {
            return Some("libgcc itself does not find the chain".to_owned());
        }
        All | Honest => stack == line.libgcc,
        Chain => begins(&line.chain, stack),
        Ends => line.chain.starts_with(stack) || begins(&line.chain, stack),
    };
    let wanted = if case.wanted == Chain { &line.chain } else { &line.libgcc };
    (!is_right).then(|| format!("{} frames {stack:x?} instead of {} {wanted:x?}", stack.len(), wanted.len()))
}

#[test]
fn stacks_are_whole_however_a_program_is_linked() {
    let folder = test_env::folder();
    compile(folder.path());
    let (mut cases, mut faults, mut skipped) = (Vec::new(), Vec::new(), Vec::new());
    let mut add = |name: &str, case: &Case| {
        if test_env::find(&format!("ld.{}", case.linker)).is_none() {
            skipped.push(name.to_owned());
            return;
        }
        match link(case, name, folder.path()) {
            Ok(linked) => cases.push(linked),
            Err(error) => faults.push(format!("{name}: {error}")),
        }
    };
    for linker in LINKERS {
        for (kind_name, kind) in KINDS {
            // gold does not make them.
            if (linker, kind) == ("gold", StaticPie) {
                continue;
            }
            add(&format!("{linker}-{kind_name}"), &case("", linker, kind, ""));
            add(&format!("{linker}-{kind_name}-2M"), &case("", linker, kind, "-z,max-page-size=0x200000"));
        }
    }
    for case in SPECIAL {
        add(case.name, case);
    }
    // A linker that is not installed is no fault, but none at all is.
    eprintln!("skipped, since their linkers are not installed: {skipped:?}");
    assert!(cases.len() > 20, "{faults:#?}");

    let lines: String = cases.iter().map(|case| format!("{} > {}.out 2>&1\n", case.line, case.name)).collect();
    let program = Program::shell(&format!("cd {}\n{lines}true", folder.path().display()));
    let recording = program.recorded().success();
    let stacks = stacks(&recording);
    for case in &cases {
        let text = std::fs::read_to_string(folder.path().join(format!("{}.out", case.name))).unwrap_or_default();
        let pid = text.lines().next().and_then(|line| line.parse::<u64>().ok());
        let lines: Vec<Printed> = text.lines().filter_map(printed).collect();
        let (Some(pid), true) = (pid, lines.len() > 8) else {
            faults.push(format!("{}: the program did not run: {text}", case.name));
            continue;
        };
        let wrong: Vec<(u64, String)> = lines
            .iter()
            .filter_map(|line| Some((line.size, fault(case, line, stacks.get(&(pid, line.size)))?)))
            .collect();
        if let Some((size, first)) = wrong.first() {
            faults.push(format!("{}: {} of {} stacks; {size}: {first}", case.name, wrong.len(), lines.len()));
        }
    }
    assert!(faults.is_empty(), "{} faults in {} cases:\n{}", faults.len(), cases.len(), faults.join("\n"));
}
