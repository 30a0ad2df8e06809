//! Compares the view with the installed gprof, if there is one: random profiles with cycles and
//! ties, and all filters.

use heaptape_compat::gprof::{self, Options};
use heaptape_formats::Abi;
use heaptape_formats::gmon::{self, Arc, Form, Gmon, Histograms, Record, Unit};
use std::path::Path;
use std::process::Command;

/// A random number generator with a fixed seed.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }
}

/// The entries of functions in exe/calls64.
const FUNCTIONS: [u64; 14] = [
    0x4011b6, 0x4011dd, 0x401210, 0x40126e, 0x4012c2, 0x401316, 0x401373, 0x4013d0, 0x401440, 0x40147f, 0x4014c7,
    0x401506, 0x40151f, 0x401547,
];

fn profile(random: &mut Random) -> Gmon {
    let mut gmon = Gmon::new(Abi::LE64);
    let size = random.one(&[340, 339, 333, 100]);
    let bins = (0..size).map(|_| random.one(&[0, 0, 0, 1, 2, 5, 100])).collect();
    let unit = Unit::seconds(Some(random.one(&[100, 1, 250])));
    gmon.records.push(Histograms::one(0x40_11b0, 0x40_16f8, unit, bins).record());
    let functions = &FUNCTIONS[..random.one(&[3, 6, 10, 14])];
    let upwards = random.below(3) > 0;
    let arc = |_| {
        let (mut from, mut to) = (random.one(functions), random.one(functions));
        if upwards && random.below(4) > 0 && from > to {
            std::mem::swap(&mut from, &mut to);
        }
        Arc {
            from: from + random.below(16),
            to: to + random.below(16),
            count: random.one(&[0, 1, 1, 2, 3, 10, 1000, 123_456]),
        }
    };
    let arcs = (0..random_count(upwards, functions.len())).map(arc).collect();
    gmon.records.push(Record::Arcs(arcs));
    gmon
}

fn random_count(upwards: bool, functions: usize) -> usize {
    if upwards { 3 * functions } else { functions + 2 }
}

const OPTIONS: [&[&str]; 24] = [
    &[],
    &[],
    &[],
    &["-z"],
    &["-l"],
    &["-l", "-q"],
    &["-qhot"],
    &["-Qfa"],
    &["-E", "fact"],
    &["-F", "main"],
    &["-f", "ping"],
    &["-n", "twice"],
    &["-N", "hot"],
    &["-k", "main/hot"],
    &["-k", "/leaf"],
    &["-e", "pong"],
    &["-pfa"],
    &["-Phot", "-Nleaf"],
    &["-T"],
    &["-C"],
    &["-l", "-C"],
    &["-a"],
    &["-L", "-w", "50"],
    &["-A", "-I", "src"],
];

#[test]
fn random_profiles_are_printed_as_by_gprof() {
    if Command::new("gprof").arg("--version").output().is_err() {
        eprintln!("no gprof here: nothing compared");
        return;
    }
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/gmon");
    std::env::set_current_dir(golden).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gmon.out").to_str().unwrap().to_owned();
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    for round in 0..240 {
        std::fs::write(&path, gmon::write(&profile(&mut random)).unwrap()).unwrap();
        let mut arguments = vec!["-b"];
        arguments.extend(OPTIONS[round % OPTIONS.len()]);
        arguments.extend(["exe/calls64", &path]);
        let real = Command::new("gprof").args(&arguments).env("LC_ALL", "C").output().unwrap();
        let owned: Vec<String> = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let mut ours = Vec::new();
        gprof::run(&Options::parse(&owned).unwrap(), &mut ours, &mut std::io::sink()).unwrap();
        let (real, ours) = (String::from_utf8(real.stdout).unwrap(), String::from_utf8(ours).unwrap());
        assert!(real == ours, "round {round} {arguments:?}\n--- gprof\n{real}\n--- ours\n{ours}");
    }
}

/// MinGW's 64-bit files have stray bytes in the upper half of each count, so their sums wrap: in
/// gprof, and here.
#[test]
fn counts_of_any_size_sum_up_as_in_gprof() {
    if Command::new("gprof").arg("--version").output().is_err() {
        eprintln!("gprof is not installed: not compared");
        return;
    }
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/gmon");
    std::env::set_current_dir(golden).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("gmon.out").to_str().unwrap().to_owned();
    let mut gmon = Gmon::new(Abi::LE64);
    gmon.form = Form::Bsd44;
    gmon.records.push(Histograms::one(0x40_11b0, 0x40_16f8, Unit::seconds(Some(100)), vec![1; 340]).record());
    let arc = |from: usize, to: usize, count: u64| Arc { from: FUNCTIONS[from] + 4, to: FUNCTIONS[to], count };
    let stray = 0x7fff_ffff_0000_0000;
    let arcs =
        vec![arc(0, 3, stray + 7), arc(1, 3, stray), arc(2, 3, stray + 9), arc(2, 3, u64::MAX), arc(3, 3, stray)];
    gmon.records.push(Record::Arcs(arcs));
    std::fs::write(&path, gmon::write(&gmon).unwrap()).unwrap();
    // The flat profile of such counts is stray memory in gprof, which has no unit for so little time.
    for options in ["-q", "-C", "-T"] {
        let arguments = [options, "exe/calls64", &path];
        let real = Command::new("gprof").args(arguments).env("LC_ALL", "C").output().unwrap();
        let mut ours = Vec::new();
        gprof::run(&Options::parse(&arguments.map(str::to_owned)).unwrap(), &mut ours, &mut std::io::sink()).unwrap();
        let (real, ours) = (String::from_utf8(real.stdout).unwrap(), String::from_utf8(ours).unwrap());
        assert!(!real.is_empty() && real == ours, "{options}\n--- gprof\n{real}\n--- ours\n{ours}");
    }
}
