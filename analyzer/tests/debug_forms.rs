//! The forms in which people have debug information. Programs print their own return addresses,
//! functions and lines, which the symbolizer must find in each form. Where a part of the debug
//! information is missing, it must say so, and pair no function with a line of another one.

use heaptape_analyzer::symbols::{Detail, Frame, Origin, Symbolizer, save};
use heaptape_analyzer::{Module, Site, Stacks};
use heaptape_formats::tape::SymbolQuery;
use heaptape_formats::tape::field::Text;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

const FIRST: &str = r#"
#define _GNU_SOURCE
#include <link.h>
#include <stdio.h>
static int first(struct dl_phdr_info *info, size_t, void *bias) { *(unsigned long *)bias = info->dlpi_addr; return 1; }
extern "C" __attribute__((noinline, noipa)) void tell(const char *function, int line, const char *caller, int called) {
    unsigned long bias = 0;
    dl_iterate_phdr(first, &bias);
    printf("%p|%#lx|%s|%d|%s|%d\n", __builtin_return_address(0), bias, function, line, caller, called);
}
#define INLINED inline __attribute__((always_inline))
namespace beta {
namespace {
INLINED void make_row(const char *caller, int called) { tell("beta::(anonymous namespace)::make_row", __LINE__, caller, called); asm(""); }
struct Box { INLINED void fill(const char *caller, int called) { tell("beta::(anonymous namespace)::Box::fill", __LINE__, caller, called); asm(""); } };
}
__attribute__((noinline, noclone)) void parse_row() { make_row("beta::parse_row", __LINE__); asm(""); }
__attribute__((noinline, noclone)) void drain() { Box box; box.fill("beta::drain", __LINE__); asm(""); }
}
namespace alpha { void parse_row(); }
int main() { beta::parse_row(); beta::drain(); alpha::parse_row(); }
"#;

const SECOND: &str = r#"
extern "C" void tell(const char *function, int line, const char *caller, int called);
namespace alpha {
namespace {
inline __attribute__((always_inline)) void make_row(const char *caller, int called) {
    tell("alpha::(anonymous namespace)::make_row", __LINE__, caller, called); asm("");
}
}
__attribute__((noinline, noclone)) void parse_row() {
    make_row("alpha::parse_row", __LINE__); asm("");
}
}
"#;

/// A call in an inlined function, as the program itself printed it.
#[derive(Debug)]
struct Call {
    address: u64,
    bias: u64,
    /// The inlined function, and the line of the call in it.
    inner: (String, u32),
    /// The function into which it was inlined, and the line at which.
    outer: (String, u32),
}

fn calls(program: &Path) -> Vec<Call> {
    let output = Command::new(program).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
    let call = |line: &str| {
        let columns: Vec<&str> = line.split('|').collect();
        let [address, bias, inner, line, outer, called] = columns[..] else { panic!("{line}") };
        let of = |name: &str, line: &str| (name.to_string(), line.parse().unwrap());
        Call { address: hex(address), bias: hex(bias), inner: of(inner, line), outer: of(outer, called) }
    };
    let calls: Vec<Call> = text.lines().map(call).collect();
    assert!(!calls.is_empty(), "{program:?}");
    calls
}

/// Runs shell commands in a folder. Returns whether the tools that are named first are installed;
/// prints what is not.
fn make(folder: &Path, tools: &[&str], commands: &str) -> bool {
    for tool in tools {
        let found = Command::new("sh").args(["-c", &format!("command -v {tool}")]).output().unwrap();
        if !found.status.success() {
            println!("skipped: {tool} is not installed");
            return false;
        }
    }
    let output = Command::new("sh").args(["-ec", commands]).current_dir(folder).output().unwrap();
    assert!(output.status.success(), "{commands}: {}", String::from_utf8_lossy(&output.stderr));
    true
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("first.cpp"), FIRST).unwrap();
    std::fs::write(folder.path().join("second.cpp"), SECOND).unwrap();
    let path = folder.path().canonicalize().unwrap();
    (folder, path)
}

const BUILD_ID: [u8; 8] = [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef];
const FLAGS: &str = "-O1 -g -Wl,--build-id=0x0123456789abcdef first.cpp second.cpp";

fn frames_with(program: &Path, call: &Call, origin: Origin) -> (Rc<[Frame]>, Vec<String>) {
    let mut stacks = Stacks::default();
    let path = program.as_os_str().as_encoded_bytes().to_vec();
    stacks.modules.push(Module {
        start: 0,
        end: u64::MAX,
        bias: call.bias,
        path,
        build_id: BUILD_ID.to_vec(),
        ..Module::default()
    });
    stacks.push(Site { module: 1, address: call.address, ..Site::default() });
    let mut symbols = Symbolizer::from(Detail::Full, origin);
    let frames = symbols.frames(&stacks, &stacks.site(1));
    (frames, symbols.take_notes())
}

fn frames(program: &Path, call: &Call) -> (Rc<[Frame]>, Vec<String>) {
    frames_with(program, call, Origin::default())
}

fn shown(frames: &[Frame]) -> Vec<(String, u32)> {
    frames.iter().map(|frame| (frame.function.clone().unwrap_or_default(), frame.line.unwrap_or(0))).collect()
}

/// Compares the names of each call with the truth.
fn assert_whole(program: &Path, calls: &[Call]) {
    for call in calls {
        let (frames, notes) = frames(program, call);
        assert_eq!(shown(&frames), [call.inner.clone(), call.outer.clone()], "{program:?}: {notes:?}");
        assert!(notes.is_empty(), "{notes:?}");
        let file = frames[0].file.as_deref().unwrap_or_default();
        assert!(file.ends_with("first.cpp") || file.ends_with("second.cpp"), "{file}");
    }
}

/// Compares what a recorder keeps of the names with the truth. It asks for those of one call only,
/// by a descriptor of the file.
fn assert_saved(program: &Path, calls: &[Call]) {
    let file = std::fs::File::open(program).unwrap();
    let link = PathBuf::from(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file)));
    for call in calls {
        let query = SymbolQuery {
            path: program.to_str().unwrap().into(),
            build_id: Text(BUILD_ID.to_vec()),
            file: 1,
            addresses: vec![call.address - call.bias - 1],
            ..SymbolQuery::default()
        };
        let mut kept = Vec::new();
        save(&[(&[query], std::slice::from_ref(&link))], &mut |_, bytes| kept = bytes.to_vec());
        let mut text = Vec::new();
        heaptape_formats::tape::dump(&kept[..], &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        for (function, line) in [&call.inner, &call.outer] {
            let plain = function.rsplit("::").next().unwrap();
            let is_named = |row: &str| row.contains(plain) && row.contains(&format!(":{line}"));
            let found = text.lines().any(|row| row.contains("address ") && is_named(row));
            assert!(found, "{program:?}: {call:?}: {text}");
        }
        assert!(!text.contains("missing"), "{program:?}: {text}");
    }
}

/// Compares the lines of each call with those that binutils find, which do not follow the links of
/// each form.
fn assert_same_as_addr2line(program: &Path, calls: &[Call]) {
    for call in calls {
        let address = format!("{:#x}", call.address - call.bias - 1);
        let output = Command::new("addr2line").args(["-i", "-e"]).arg(program).arg(address).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let line = |text: &str| text.split([':', ' ']).nth(1).and_then(|line| line.parse().ok()).unwrap_or(0);
        let lines: Vec<u32> = text.lines().map(line).collect();
        assert_eq!(shown(&frames(program, call).0).iter().map(|(_, line)| *line).collect::<Vec<_>>(), lines, "{text}");
    }
}

#[test]
fn functions_and_lines_are_found_in_each_form() {
    let (_folder, folder) = folder();
    let forms: [(&str, &[&str], &str, bool); 16] = [
        ("plain", &["g++"], "g++ FLAGS -o PROGRAM", true),
        ("zlib", &["g++"], "g++ FLAGS -gz=zlib -o PROGRAM", true),
        ("zlib_gnu", &["g++"], "g++ FLAGS -gz=zlib-gnu -o PROGRAM && readelf -SW PROGRAM | grep -q zdebug_info", true),
        ("eu_gnu", &["g++", "eu-elfcompress"], "g++ FLAGS -o PROGRAM && eu-elfcompress -t gnu PROGRAM", true),
        ("split_4", &["g++"], "g++ -gdwarf-4 -gsplit-dwarf FLAGS -o PROGRAM", false),
        ("split_5", &["g++"], "g++ -gsplit-dwarf FLAGS -o PROGRAM", false),
        (
            "clang_split",
            &["clang++"],
            "for f in first second; do clang++ -O1 -g -gsplit-dwarf -c $f.cpp -o cl-$f.o; done; \
            clang++ -Wl,--build-id=0x0123456789abcdef cl-first.o cl-second.o -o PROGRAM",
            false,
        ),
        (
            "packed_4",
            &["g++", "dwp"],
            "g++ -gdwarf-4 -gsplit-dwarf FLAGS -o PROGRAM && dwp -e PROGRAM && rm PROGRAM-*.dwo",
            false,
        ),
        (
            "packed_5",
            &["clang++", "llvm-dwp"],
            "for f in first second; do clang++ -O1 -g -gsplit-dwarf -c $f.cpp -o pk-$f.o; done; \
            clang++ -Wl,--build-id=0x0123456789abcdef pk-first.o pk-second.o -o PROGRAM; llvm-dwp -e PROGRAM -o PROGRAM.dwp; rm pk-*.dwo",
            false,
        ),
        ("lto", &["g++"], "g++ -flto FLAGS -o PROGRAM", false),
        ("dwz_one", &["g++", "dwz"], "g++ FLAGS -o PROGRAM && dwz PROGRAM", false),
        (
            "dwz_common",
            &["g++", "dwz"],
            "g++ FLAGS -o PROGRAM && cp PROGRAM other && dwz -m common.dwz PROGRAM other",
            false,
        ),
        (
            "one_unlisted",
            &["g++", "clang++"],
            "g++ -O1 -g -c first.cpp -o un-first.o; clang++ -O1 -g -c second.cpp -o un-second.o; \
            g++ -Wl,--build-id=0x0123456789abcdef un-first.o un-second.o -o PROGRAM; \
            readelf --debug-dump=aranges PROGRAM | grep -c 'Length: ' | grep -x 1",
            false,
        ),
        (
            "other_unlisted",
            &["g++", "clang++"],
            "clang++ -O1 -g -c first.cpp -o other-first.o; g++ -O1 -g -c second.cpp -o other-second.o; \
            g++ -Wl,--build-id=0x0123456789abcdef other-first.o other-second.o -o PROGRAM",
            false,
        ),
        ("types", &["g++"], "g++ -fdebug-types-section FLAGS -o PROGRAM", false),
        (
            "split_in_folder",
            &["g++"],
            "mkdir sub && cd sub && g++ -gsplit-dwarf -O1 -g -Wl,--build-id=0x0123456789abcdef \
            ../first.cpp ../second.cpp -o ../PROGRAM",
            false,
        ),
    ];
    for (name, tools, commands, has_oracle) in forms {
        let commands = commands.replace("FLAGS", FLAGS).replace("PROGRAM", name);
        if make(&folder, tools, &commands) {
            let program = folder.join(name);
            let calls = calls(&program);
            assert_whole(&program, &calls);
            assert_saved(&program, &calls);
            if has_oracle {
                assert_same_as_addr2line(&program, &calls);
            }
        }
    }
}

/// A folder of split units may be moved with its program.
#[test]
fn split_units_beside_a_program_that_was_moved_are_found() {
    let (_folder, folder) = folder();
    let commands = format!("mkdir a && cp *.cpp a && cd a && g++ -gsplit-dwarf {FLAGS} -o program && cd .. && mv a b");
    if make(&folder, &["g++"], &commands) {
        let program = folder.join("b/program");
        assert_whole(&program, &calls(&program));
    }
}

#[test]
fn missing_part_is_named_and_gives_no_wrong_line() {
    let (_folder, folder) = folder();
    let forms: [(&str, &[&str], &str, &str); 6] = [
        (
            "split_4",
            &["g++"],
            "g++ -gdwarf-4 -gsplit-dwarf FLAGS -o PROGRAM && rm PROGRAM-first.dwo",
            "split_4-first.dwo",
        ),
        ("split_5", &["g++"], "g++ -gsplit-dwarf FLAGS -o PROGRAM && rm PROGRAM-first.dwo", "split_5-first.dwo"),
        // The file is there, and has the unit of another one.
        (
            "other",
            &["g++"],
            "g++ -gsplit-dwarf FLAGS -o PROGRAM && cp PROGRAM-second.dwo PROGRAM-first.dwo",
            "other-first.dwo",
        ),
        (
            "damaged",
            &["g++"],
            "g++ -gsplit-dwarf FLAGS -o PROGRAM && head -c 300 PROGRAM-first.dwo > cut && mv cut PROGRAM-first.dwo",
            "damaged-first.dwo",
        ),
        (
            "packed",
            &["g++", "dwp"],
            "g++ -gsplit-dwarf -gdwarf-4 FLAGS -o PROGRAM && dwp -e PROGRAM && rm PROGRAM.dwp PROGRAM-*.dwo",
            "packed-first.dwo",
        ),
        (
            "dwz",
            &["g++", "dwz"],
            "g++ FLAGS -o PROGRAM && cp PROGRAM other && dwz -m common.dwz PROGRAM other && mv common.dwz lost",
            "common.dwz",
        ),
    ];
    for (name, tools, commands, missing) in forms {
        if !make(&folder, tools, &commands.replace("FLAGS", FLAGS).replace("PROGRAM", name)) {
            continue;
        }
        let program = folder.join(name);
        for call in calls(&program).iter().filter(|call| call.outer.0.starts_with("beta")) {
            let (frames, notes) = frames(&program, call);
            let unknown = (call.outer.0.clone(), 0);
            let shown = shown(&frames);
            assert!(shown == [call.outer.clone()] || shown == [unknown], "{name}: {shown:?}");
            let path = folder.join(missing).display().to_string();
            let expected = format!("part of the debug information of {} is missing: {path}", program.display());
            assert!(notes.iter().any(|note| note.starts_with(&expected)), "{name}: {notes:?}");
        }
    }
}

/// The helper of a recorder has descriptors of the files. Links that are relative to a file mean
/// its folder, not that of the descriptor.
#[test]
fn saved_names_follow_links_that_are_relative_to_a_file() {
    let (_folder, folder) = folder();
    let forms: [(&str, &[&str], &str); 3] = [
        (
            "dwz",
            &["g++", "dwz"],
            "mkdir sub && g++ FLAGS -o sub/PROGRAM && cp sub/PROGRAM other && dwz -r -m common.dwz sub/PROGRAM other",
        ),
        (
            "packed",
            &["g++", "dwp"],
            "g++ -gdwarf-4 -gsplit-dwarf FLAGS -o PROGRAM && dwp -e PROGRAM && rm PROGRAM-*.dwo",
        ),
        ("moved", &["g++"], "mkdir m && cp *.cpp m && cd m && g++ -gsplit-dwarf FLAGS -o PROGRAM && cd .. && mv m n"),
    ];
    for (name, tools, commands) in forms {
        if !make(&folder, tools, &commands.replace("FLAGS", FLAGS).replace("PROGRAM", name)) {
            continue;
        }
        let program = ["", "sub", "n"].map(|part| folder.join(part).join(name)).into_iter().find(|path| path.is_file());
        let program = program.unwrap();
        assert_saved(&program, &calls(&program));
    }
}

/// A hostile size of an old compressed section takes no memory.
#[test]
fn sizes_of_old_compressed_sections_are_bounded() {
    let (_folder, folder) = folder();
    if !make(&folder, &["g++"], &format!("g++ {FLAGS} -gz=zlib-gnu -o program")) {
        return;
    }
    let program = folder.join("program");
    let calls = calls(&program);
    let mut bytes = std::fs::read(&program).unwrap();
    for at in 0..bytes.len() - 12 {
        if &bytes[at..at + 4] == b"ZLIB" {
            bytes[at + 4..at + 12].copy_from_slice(&u64::MAX.to_be_bytes());
        }
    }
    std::fs::write(folder.join("hostile"), bytes).unwrap();
    let (frames, _) = frames(&folder.join("hostile"), &calls[0]);
    assert_eq!(shown(&frames), [(calls[0].outer.0.clone(), 0)]);
}

#[test]
fn unstripped_files_are_found_beside_the_program_and_in_a_sysroot() {
    let (_folder, folder) = folder();
    let commands = format!("g++ {FLAGS} -o whole && objcopy --only-keep-debug whole part && strip -o stripped whole");
    if !make(&folder, &["g++", "objcopy"], &commands) {
        return;
    }
    let calls = calls(&folder.join("whole"));
    let beside = ["program.debug", ".debug/program", ".debug/program.debug", "program.unstripped"];
    let hex = "0123456789abcdef";
    let sysroot = [
        format!(".build-id/01/{}.debug", &hex[2..]),
        format!("01/{}.debug", &hex[2..]),
        format!("usr/lib/debug/.build-id/01/{}.debug", &hex[2..]),
        format!("{hex}.debug"),
        "program".into(),
        "any name at all".into(),
    ];
    for from in ["whole", "part"] {
        let cases = beside.iter().map(|name| (name.to_string(), false));
        for (name, is_sysroot) in cases.chain(sysroot.iter().map(|name| (name.clone(), true))) {
            let moved = tempfile::tempdir().unwrap();
            let (program, root) = (moved.path().join("bin/program"), moved.path().join("symbols"));
            let target = if is_sysroot { root.join(&name) } else { moved.path().join("bin").join(&name) };
            for path in [&program, &target] {
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            }
            std::fs::copy(folder.join("stripped"), &program).unwrap();
            std::fs::copy(folder.join(from), &target).unwrap();
            let sysroot = is_sysroot.then(|| root.clone().into());
            let (frames, notes) = frames_with(&program, &calls[0], Origin { sysroot, ..Origin::default() });
            assert_eq!(shown(&frames), [calls[0].inner.clone(), calls[0].outer.clone()], "{from} at {name}: {notes:?}");
            // The file of another build has no effect.
            let mut other = std::fs::read(folder.join(from)).unwrap();
            let at = other.windows(8).position(|bytes| bytes == BUILD_ID).unwrap();
            other[at] ^= 0xff;
            std::fs::write(&target, other).unwrap();
            let sysroot = is_sysroot.then(|| root.clone().into());
            let (frames, _) = frames_with(&program, &calls[0], Origin { sysroot, ..Origin::default() });
            assert_eq!(frames[0].line, None, "{from} at {name}");
        }
    }
}

/// A file without section headers has its build-id in a segment.
#[test]
fn build_id_is_read_without_section_headers() {
    let (_folder, folder) = folder();
    if !make(&folder, &["g++"], &format!("g++ {FLAGS} -o program")) {
        return;
    }
    let program = folder.join("program");
    let calls = calls(&program);
    let mut bytes = std::fs::read(&program).unwrap();
    for (field, size) in [(0x28, 8), (0x3c, 2), (0x3e, 2)] {
        bytes[field..field + size].fill(0);
    }
    let cut = folder.join("cut");
    std::fs::write(&cut, bytes).unwrap();
    std::fs::copy(&program, folder.join("cut.debug")).unwrap();
    let (frames, notes) = frames(&cut, &calls[0]);
    assert_eq!(shown(&frames), [calls[0].inner.clone(), calls[0].outer.clone()], "{notes:?}");
    std::fs::remove_file(folder.join("cut.debug")).unwrap();
    let (frames, notes) = self::frames(&cut, &calls[0]);
    assert_eq!(frames[0].function, None);
    assert!(notes[0].contains("the file is stripped"), "{notes:?}");
}

const FOLDED: &str = r#"
#define _GNU_SOURCE
#include <link.h>
#include <stdio.h>
static int first(struct dl_phdr_info *info, size_t, void *bias) { *(unsigned long *)bias = info->dlpi_addr; return 1; }
extern "C" __attribute__((noinline, noipa)) void tell() {
    unsigned long bias = 0;
    dl_iterate_phdr(first, &bias);
    printf("%p|%#lx||0||0\n", __builtin_return_address(0), bias);
}
namespace shop {
__attribute__((noinline)) void new_invoice() { tell(); asm(""); }
__attribute__((noinline)) void new_customer() { tell(); asm(""); }
struct Order { Order(); };
__attribute__((noinline)) Order::Order() { tell(); asm("nop"); }
}
extern "C" __attribute__((noinline)) void pool_get() { tell(); asm("nop\n nop"); }
extern "C" void weak_get() __attribute__((weak, alias("pool_get")));
extern "C" void __pool_get() __attribute__((alias("pool_get")));
int main() { shop::new_invoice(); shop::new_customer(); shop::Order order; pool_get(); }
"#;

/// Names of one function (constructors of complete and of base objects, weak and internal aliases)
/// are no folded functions.
#[test]
fn folded_functions_have_both_names() {
    let (_folder, folder) = folder();
    std::fs::write(folder.join("folded.cpp"), FOLDED).unwrap();
    for (linker, flags, are_folded) in [("lld", "--icf=all", true), ("gold", "--icf=all", true), ("bfd", "-O1", false)]
    {
        let commands = format!(
            "g++ -O1 -g -ffunction-sections -Wl,--build-id=0x0123456789abcdef -fuse-ld={linker} -Wl,{flags} folded.cpp -o {linker}"
        );
        if !make(&folder, &["g++", &format!("ld.{linker}")], &commands) {
            continue;
        }
        let program = folder.join(linker);
        let titles: Vec<String> = calls(&program).iter().map(|call| frames(&program, call).0[0].title()).collect();
        let invoice = match are_folded {
            true => "shop::new_customer (or shop::new_invoice: same code)",
            false => "shop::new_invoice",
        };
        let customer = if are_folded { invoice } else { "shop::new_customer" };
        let swapped = "shop::new_invoice (or shop::new_customer: same code)";
        let is = |title: &str, expected: &str| title == expected || are_folded && title == swapped;
        assert!(is(&titles[0], invoice) && is(&titles[1], customer), "{linker}: {titles:?}");
        assert_eq!(titles[2..], ["shop::Order::Order", "pool_get"], "{linker}");
    }
}
