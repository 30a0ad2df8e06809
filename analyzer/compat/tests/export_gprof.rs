//! Against the machine's real gprof, where there is one: exports of recordings whose stacks lie in
//! a real position-independent C++ program and in a real shared library, which g++ and gcc make
//! here. Totals, every line of the flat profile and every inclusive sum are those of the stacks.

use crate::made;

use heaptape_analyzer::export::{self, Measure, Options};
use heaptape_compat::gprof;
use heaptape_formats::tape;
use made::Step;
use object::{Object, ObjectSymbol};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAM: &str = r#"
#include <cstdlib>
#include <string>
#include <vector>
extern "C" void *library_outer(int);
namespace shapes {
struct Tree { Tree *left, *right; };
template <typename T> __attribute__((noinline)) T *grow(int n) { return static_cast<T *>(std::malloc(n * sizeof(T))); }
__attribute__((noinline)) void *ping(int n);
__attribute__((noinline)) void *pong(int n) { return n ? ping(n - 1) : grow<char>(1); }
__attribute__((noinline)) void *ping(int n) { return n ? pong(n - 1) : grow<long>(1); }
__attribute__((noinline)) void fill(std::vector<std::string> &v) { v.push_back("a text that is long enough for the heap"); }
}
int main(int argc, char **) {
  std::vector<std::string> v;
  shapes::fill(v);
  return shapes::ping(argc) == shapes::pong(argc) || library_outer(argc) == nullptr;
}
"#;

const LIBRARY: &str = r"
#include <stdlib.h>
static __attribute__((noinline)) void *hidden(int n) { return malloc(n); }
__attribute__((noinline)) void *library_inner(int n) { return hidden(n + 1); }
void *library_outer(int n) { return n ? library_inner(n) : hidden(3); }
";

/// A compiled object, mapped at some address.
struct Built {
    path: PathBuf,
    build_id: Vec<u8>,
    bias: u64,
    end: u64,
    /// Link-time start, size and symbol of its own functions.
    functions: Vec<(u64, u64, String)>,
    /// Indexes of the functions by name; constructors have several.
    indexes: HashMap<String, usize>,
}

fn built(path: &Path, bias: u64) -> Built {
    let bytes = std::fs::read(path).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let function = |symbol: object::Symbol<'_, '_>| {
        let own = symbol.kind() == object::SymbolKind::Text && symbol.is_definition() && symbol.size() > 6;
        let name = symbol.name().unwrap_or_default().to_string();
        // Functions that the linker adds are not those of the program.
        let start_code = ["_start", "_init", "_fini", "__do_global_dtors_aux", "frame_dummy", "register_tm_clones"];
        (own && !start_code.contains(&&*name)).then_some((symbol.address(), symbol.size(), name))
    };
    let mut functions: Vec<_> = file.symbols().filter_map(function).collect();
    functions.sort();
    let all = functions.clone();
    functions.dedup_by_key(|function| function.0);
    let index_of = |start: u64| functions.binary_search_by_key(&start, |function| function.0).unwrap();
    let indexes = all.into_iter().map(|(start, _, name)| (name, index_of(start))).collect();
    let end = functions.iter().map(|function| function.0 + function.1).max().unwrap();
    let build_id = file.build_id().unwrap().unwrap().to_vec();
    Built { path: path.to_path_buf(), build_id, bias, end, functions, indexes }
}

/// Compiles both programs. Returns `None` if there is no compiler or no gprof.
fn compiled(dir: &Path) -> Option<[Built; 2]> {
    let has = |tool: &str| Command::new(tool).arg("--version").output().is_ok();
    if !["g++", "gcc", "gprof"].iter().all(|tool| has(tool)) {
        eprintln!("g++, gcc or gprof is not installed: nothing was compared");
        return None;
    }
    let run = |tool: &str, arguments: &[&str]| {
        let status = Command::new(tool).args(arguments).current_dir(dir).status().unwrap();
        assert!(status.success(), "{tool} {arguments:?}");
    };
    std::fs::write(dir.join("program.cc"), PROGRAM).unwrap();
    std::fs::write(dir.join("library.c"), LIBRARY).unwrap();
    let id = "-Wl,--build-id=sha1";
    run("gcc", &["-g", "-O0", "-shared", "-fPIC", id, "library.c", "-o", "liblibrary.so"]);
    run("g++", &["-g", "-O0", "-fPIE", "-pie", id, "program.cc", "./liblibrary.so", "-o", "program"]);
    Some([built(&dir.join("program"), 0x5555_5555_4000), built(&dir.join("liblibrary.so"), 0x7fff_f7a0_0000)])
}

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit.max(1)
    }
}

/// A frame: which object, which of its functions.
type Frame = (usize, usize);

/// Stacks by chance, innermost first, with the size of what each allocates. Without recursion a
/// function calls only later ones of its object, so that there are no cycles and every inclusive
/// sum is exact.
fn stacks(random: &mut Random, objects: &[Built], recursion: bool) -> Vec<(Vec<Frame>, u64)> {
    let stack = |random: &mut Random| {
        let mut frames = Vec::new();
        let mut lowest = [0, 0];
        for _ in 0..1 + random.below(7) {
            let object = random.below(2);
            let count = objects[object].functions.len();
            let function = if recursion { random.below(count) } else { lowest[object] + random.below(4) };
            if function < count {
                frames.push((object, function));
                // Direct recursion now and then.
                lowest[object] = function + usize::from(random.below(5) > 0);
            }
        }
        frames.reverse();
        frames
    };
    (0..60)
        .map(|_| (stack(random), 1 + random.below(200_000) as u64))
        .filter(|(frames, _)| !frames.is_empty())
        .collect()
}

/// The recording of a program that allocates at these stacks.
fn recorded(objects: &[Built], stacks: &[(Vec<Frame>, u64)]) -> (tempfile::TempDir, PathBuf) {
    let mut sites: Vec<tape::Site> = Vec::new();
    let mut known: HashMap<(u32, u64), u32> = HashMap::new();
    let mut steps = Vec::new();
    for (index, (frames, size)) in (1..).zip(stacks) {
        let mut parent = 0;
        for &(object, function) in frames.iter().rev() {
            let (start, length, _) = &objects[object].functions[function];
            // A return address that is the function's very end: the call was its last instruction.
            let offset = if index % 3 == 0 { *length } else { 2 + index % (length - 2) };
            let address = objects[object].bias + start + offset;
            parent = *known.entry((parent, address)).or_insert_with(|| {
                sites.push(tape::Site { parent, address, flags: 0 });
                sites.len() as u32
            });
        }
        steps.push(Step::Alloc { index, size: *size, site: parent, thread: 1, tick: 100 + index });
    }
    let module = |(number, object): (u32, &Built)| tape::Module {
        number,
        start: object.bias,
        end: object.bias + object.end + 0x1000,
        bias: object.bias,
        path: object.path.to_str().unwrap().into(),
        build_id: tape::field::Text(object.build_id.clone()),
        ..tape::Module::default()
    };
    let modules = (1..).zip(objects).map(module).collect();
    made::recording(&steps, &made::Options { modules, sites, ..made::Options::default() })
}

/// Self sums, and inclusive sums of the stacks that begin in an object, by function.
fn truth(object: usize, stacks: &[(Vec<Frame>, u64)]) -> (BTreeMap<usize, u64>, BTreeMap<usize, u64>) {
    let (mut own, mut inclusive) = (BTreeMap::new(), BTreeMap::new());
    for (frames, size) in stacks.iter().filter(|(frames, _)| frames[0].0 == object) {
        *own.entry(frames[0].1).or_default() += size;
        let met: BTreeSet<usize> = frames.iter().filter(|frame| frame.0 == object).map(|frame| frame.1).collect();
        met.into_iter().for_each(|function| *inclusive.entry(function).or_default() += size);
    }
    (own, inclusive)
}

fn real(image: &Path, profile: &Path, options: &[&str]) -> String {
    let ran = Command::new("gprof").args(options).arg(image).arg(profile).output().unwrap();
    let complaints = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success() && complaints.is_empty(), "gprof: {complaints}");
    String::from_utf8(ran.stdout).unwrap()
}

fn ours(image: &Path, profile: &Path, options: &[&str]) -> String {
    let mut arguments: Vec<String> = options.iter().map(|option| option.to_string()).collect();
    arguments.extend([image, profile].map(|path| path.display().to_string()));
    let (mut out, mut complaints) = (Vec::new(), Vec::new());
    gprof::run(&gprof::Options::parse(&arguments).unwrap(), &mut out, &mut complaints).unwrap();
    assert!(complaints.is_empty(), "{}", String::from_utf8_lossy(&complaints));
    String::from_utf8(out).unwrap()
}

/// Returns the names and self sums of the lines of a flat profile, in the same order.
fn flat_lines(listing: &str) -> Vec<(String, u64)> {
    let line = |line: &str| {
        let mut columns = line.split_whitespace();
        columns.next()?.parse::<f64>().ok()?;
        columns.next()?.parse::<f64>().ok()?;
        let own: f64 = columns.next()?.parse().ok()?;
        // Calls and two more columns may be empty. A name is not a number.
        let rest: Vec<&str> = columns.skip_while(|column| column.parse::<f64>().is_ok()).collect();
        Some((rest.join(" "), own as u64))
    };
    listing.lines().filter_map(line).collect()
}

/// Inclusive sums by name, from the own lines of a call graph's entries: self and children.
fn graph_lines(listing: &str) -> Vec<(String, u64)> {
    let line = |line: &str| {
        let rest = line.strip_prefix('[')?;
        let mut columns = rest.split(']').nth(1)?.split_whitespace();
        columns.next()?;
        let own: f64 = columns.next()?.parse().ok()?;
        let children: f64 = columns.next()?.parse().ok()?;
        let name: Vec<&str> = columns.filter(|column| !column.starts_with('[')).collect();
        let name = name
            .into_iter()
            .skip_while(|column| column.trim_end_matches(|c: char| c.is_ascii_digit() || c == '+').is_empty());
        Some((name.collect::<Vec<_>>().join(" "), (own + children) as u64))
    };
    listing.lines().filter_map(line).collect()
}

#[test]
fn the_real_gprof_shows_the_sums_of_the_stacks() {
    let dir = tempfile::tempdir().unwrap();
    let Some(objects) = compiled(dir.path()) else { return };
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut compared = 0;
    for round in 0..6 {
        let stacks = stacks(&mut random, &objects, round % 3 == 2);
        let (_recording, recording) = recorded(&objects, &stacks);
        let out = dir.path().join(format!("out{round}"));
        let exporter = export::exporter("gmon").unwrap();
        let written =
            export::run(exporter, std::slice::from_ref(&recording), &Options::default(), Some(&out), true).unwrap();
        assert!(written.is_whole() && written.notes.is_empty(), "{written:?}");
        for (object, built) in objects.iter().enumerate() {
            let (own, inclusive) = truth(object, &stacks);
            let file = out.join(format!("{}.alloc-bytes.gmon", built.path.file_name().unwrap().display()));
            let by_index = |sums: Vec<(String, u64)>| -> BTreeMap<usize, u64> {
                sums.into_iter().filter_map(|(name, sum)| Some((*built.indexes.get(&name)?, sum))).collect()
            };

            let flat = real(&built.path, &file, &["-b", "-p", "--no-demangle"]);
            assert!(flat.contains("Each sample counts as 1 bytes"));
            let shown: Vec<(String, u64)> = flat_lines(&flat).into_iter().filter(|(_, own)| *own > 0).collect();
            assert_eq!(shown.iter().map(|(_, own)| own).sum::<u64>(), own.values().sum::<u64>());
            assert_eq!(by_index(shown), own, "round {round}");

            // The listings of both are the same, from the file and from the recording itself.
            for options in [["-b", "-p", "--no-demangle"], ["-b", "-q", "--no-demangle"]] {
                let theirs = real(&built.path, &file, &options);
                assert!(theirs == ours(&built.path, &file, &options), "round {round}\n{theirs}");
                assert!(theirs == ours(&built.path, &recording, &options), "round {round}\n{theirs}");
            }

            // In cycles gprof has no inclusive sums of single functions.
            let graph = real(&built.path, &file, &["-b", "-q", "--no-demangle"]);
            if !graph.contains("<cycle") {
                assert_eq!(by_index(graph_lines(&graph)), inclusive, "round {round}\n{graph}");
                compared += 1;
            }
        }
    }
    assert!(compared >= 6, "only {compared} call graphs had no cycle");
}

#[test]
fn live_bytes_are_shown_under_readable_names() {
    let dir = tempfile::tempdir().unwrap();
    let Some(objects) = compiled(dir.path()) else { return };
    let grow = objects[0].functions.iter().position(|function| function.2.contains("grow")).unwrap();
    let (_recording, recording) = recorded(&objects, &[(vec![(0, grow)], 77)]);
    let out = dir.path().join("out");
    let exporter = export::exporter("gmon").unwrap();
    let with = Options { what: vec![Measure::LiveBytes], ..Options::default() };
    let written = export::run(exporter, &[recording], &with, Some(&out), true).unwrap();
    let flat = real(&objects[0].path, &written.files[0], &["-b", "-p"]);
    assert_eq!(flat_lines(&flat), [("char* shapes::grow<char>(int)".to_string(), 77)]);
    assert_eq!(flat, ours(&objects[0].path, &written.files[0], &["-b", "-p"]));
}
