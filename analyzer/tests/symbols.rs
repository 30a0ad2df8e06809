//! Names of addresses in real programs, compiled here. The programs print their own return
//! addresses, load bias, functions and lines: that is the truth that the symbolizer must find.

use heaptape_analyzer::symbols::{Detail, Frame, Symbolizer};
use heaptape_analyzer::{Module, Site, Stacks};
use heaptape_formats::tape::SITE_SIGNAL;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;

const C: &str = r#"
#define _GNU_SOURCE
#include <link.h>
#include <stdio.h>
static int first(struct dl_phdr_info *info, size_t size, void *bias) { *(unsigned long *)bias = info->dlpi_addr; return 1; }
__attribute__((noinline)) void tell(const char *function, int line) {
    unsigned long bias = 0;
    dl_iterate_phdr(first, &bias);
    printf("%p %#lx %s %d\n", __builtin_return_address(0), bias, function, line);
}
__attribute__((noinline)) void outer(void) { tell("outer", __LINE__); puts(""); }
static inline __attribute__((always_inline)) void inner(void) {
    tell("inner", __LINE__);
}
__attribute__((noinline)) void around(void) { inner(); puts(""); }
static __attribute__((noinline, used)) void hidden(void) { tell("hidden", __LINE__); puts(""); }
int main(void) { outer(); around(); hidden(); return 0; }
"#;

const CPP: &str = r#"
#define _GNU_SOURCE
#include <link.h>
#include <cstdio>
#include <vector>
static int first(struct dl_phdr_info *info, size_t, void *bias) { *(unsigned long *)bias = info->dlpi_addr; return 1; }
extern "C" __attribute__((noinline)) void tell(const char *function, int line) {
    unsigned long bias = 0;
    dl_iterate_phdr(first, &bias);
    printf("%p %#lx %s %d\n", __builtin_return_address(0), bias, function, line);
}
namespace shop {
template <class T> struct Order { __attribute__((noinline)) void add(T) { tell("shop::Order<int>::add", __LINE__); puts(""); } };
__attribute__((noinline)) static void load(const std::vector<int> &) { tell("shop::load", __LINE__); puts(""); }
}
int main() { shop::Order<int>().add(1); shop::load({1, 2}); }
"#;

const RUST: &str = r#"
use std::arch::asm;
mod shop {
    pub struct Order;
    impl Order {
        #[inline(never)]
        pub fn add(&self) -> (usize, u32) {
            let here: usize;
            let line = line!() + 1;
            unsafe { std::arch::asm!("lea {}, [rip]", out(reg) here) };
            (here, line)
        }
    }
}
fn main() {
    let (here, line) = shop::Order.add();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let base = maps.lines().next().unwrap().split('-').next().unwrap().to_string();
    let _: usize; unsafe { asm!("nop") };
    println!("{here:#x} 0x{base} rust::shop::Order::add {line}");
}
"#;

/// A call, as the program itself printed it.
#[derive(Debug)]
struct Call {
    address: u64,
    bias: u64,
    function: String,
    line: u32,
}

fn run(program: &Path) -> Vec<Call> {
    let output = Command::new(program).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).unwrap();
    let lines = text.lines().filter(|line| !line.is_empty());
    lines
        .map(|line| {
            let columns: Vec<&str> = line.split(' ').collect();
            let [address, bias, function @ .., number] = &columns[..] else { panic!("{line}") };
            let function = function.join(" ");
            Call { address: hex(address), bias: hex(bias), function, line: number.parse().unwrap() }
        })
        .collect()
}

/// Runs a compiler. Returns false, with a printed reason, if it is not installed.
fn compile(compiler: &str, args: &[&str], dir: &Path) -> bool {
    match Command::new(compiler).args(args).current_dir(dir).output() {
        Ok(output) => {
            assert!(output.status.success(), "{compiler}: {}", String::from_utf8_lossy(&output.stderr));
            true
        }
        Err(error) => {
            println!("skipped: {compiler}: {error}");
            false
        }
    }
}

fn source(name: &str, text: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join(name), text).unwrap();
    let path = dir.path().canonicalize().unwrap();
    (dir, path)
}

fn stacks(program: &Path, call: &Call, build_id: &[u8], flags: u8) -> Stacks {
    let mut stacks = Stacks::default();
    let path = program.as_os_str().as_encoded_bytes().to_vec();
    stacks.modules.push(Module {
        start: 0,
        end: u64::MAX,
        bias: call.bias,
        path,
        build_id: build_id.to_vec(),
        ..Module::default()
    });
    stacks.push(Site { module: 1, address: call.address, flags, ..Site::default() });
    stacks
}

fn frames(program: &Path, call: &Call, build_id: &[u8]) -> (Rc<[Frame]>, Rc<Frame>, Vec<String>) {
    let stacks = stacks(program, call, build_id, 0);
    let mut symbols = Symbolizer::new(Detail::Full);
    let frames = symbols.frames(&stacks, &stacks.site(1));
    let name = symbols.name(&stacks, &stacks.site(1));
    (frames, name, symbols.notes())
}

fn file(frame: &Frame) -> &str {
    frame.file.as_deref().unwrap_or_default().rsplit('/').next().unwrap_or_default()
}

#[test]
fn c_programs_at_fixed_and_random_addresses() {
    let (_dir, dir) = source("made.c", C);
    for flags in [&["-fPIE", "-pie"][..], &["-fno-pie", "-no-pie"], &["-gz=zlib"], &["-gdwarf-4"]] {
        let args = [&["-O1", "-g", "-Wl,--build-id=0x0123456789abcdef", "-o", "made", "made.c"], flags].concat();
        if !compile("gcc", &args, &dir) {
            return;
        }
        let calls = run(&dir.join("made"));
        assert_eq!(calls.len(), 3);
        for call in &calls {
            let (frames, name, notes) = frames(&dir.join("made"), call, &[1, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef]);
            assert!(notes.is_empty(), "{notes:?}");
            let inner = &frames[0];
            assert_eq!(inner.function.as_deref(), Some(&*call.function), "{flags:?}");
            assert_eq!((file(inner), inner.line), ("made.c", Some(call.line)), "{flags:?}");
            if call.function == "inner" {
                assert_eq!(frames.len(), 2);
                assert!(inner.inlined && !frames[1].inlined);
                assert_eq!((frames[1].title(), name.title()), ("around".into(), "around".into()));
            } else {
                assert_eq!((frames.len(), name.title()), (1, call.function.clone()));
            }
        }
    }
}

/// The summary after a recording reads no debug information of libc, whose frames are not blamed.
#[test]
fn quick_names_have_no_lines_of_libraries_that_only_pass_requests_on() {
    let (_dir, dir) = source("made.c", C);
    if !compile("gcc", &["-O1", "-g", "-o", "made", "made.c"], &dir) {
        return;
    }
    let calls = run(&dir.join("made"));
    std::fs::copy(dir.join("made"), dir.join("libc.so.6")).unwrap();
    for (name, has_lines) in [("made", true), ("libc.so.6", false)] {
        let stacks = stacks(&dir.join(name), &calls[1], &[], 0);
        let quick = Symbolizer::new(Detail::Quick).frames(&stacks, &stacks.site(1));
        let full = Symbolizer::new(Detail::Full).frames(&stacks, &stacks.site(1));
        assert_eq!((full.len(), full[0].line), (2, Some(calls[1].line)));
        assert_eq!(quick.last().unwrap().function, full.last().unwrap().function);
        assert_eq!((quick.len() == 2, quick[0].line.is_some()), (has_lines, has_lines), "{name}");
    }
}

#[test]
fn stripped_programs_and_separate_debug_files() {
    let (_dir, dir) = source("made.c", C);
    if !compile("gcc", &["-O1", "-g", "-rdynamic", "-o", "made", "made.c"], &dir) {
        return;
    }
    let calls = run(&dir.join("made"));
    let (outer, hidden) = (&calls[0], &calls[2]);
    std::fs::create_dir(dir.join(".debug")).unwrap();
    assert!(compile("objcopy", &["--only-keep-debug", "made", ".debug/made.debug"], &dir));
    assert!(compile("objcopy", &["--strip-all", "made", "made"], &dir));
    // Only the dynamic symbols are left: exported functions have names, others do not.
    let (named, ..) = frames(&dir.join("made"), outer, &[]);
    assert_eq!((named[0].title(), named[0].line), ("outer".into(), None));
    let (unnamed, ..) = frames(&dir.join("made"), hidden, &[]);
    assert_eq!(unnamed[0].title(), format!("made+{:#x}", hidden.address - hidden.bias));
    assert!(compile("objcopy", &["--add-gnu-debuglink=.debug/made.debug", "made"], &dir));
    let (named, ..) = frames(&dir.join("made"), hidden, &[]);
    assert_eq!((named[0].title(), named[0].line), ("hidden".into(), Some(hidden.line)));
}

#[test]
fn cpp_and_rust_names() {
    let (_dir, dir) = source("made.cc", CPP);
    if compile("g++", &["-O1", "-g", "-o", "made", "made.cc"], &dir) {
        for call in run(&dir.join("made")) {
            let (frames, name, _) = frames(&dir.join("made"), &call, &[]);
            assert_eq!((frames[0].title(), frames[0].line), (call.function.clone(), Some(call.line)));
            assert_eq!(name.title(), call.function);
        }
    }
    let (_dir, dir) = source("rust.rs", RUST);
    for mangling in ["v0", "legacy"] {
        let scheme = format!("-Csymbol-mangling-version={mangling}");
        // The legacy scheme requires unstable options. If the compiler refuses them, only v0 is
        // tested.
        let args = ["-g", "-Copt-level=1", &scheme, "-o", "rust", "rust.rs"];
        if mangling == "legacy"
            && !Command::new("rustc").args(args).current_dir(&dir).output().is_ok_and(|out| out.status.success())
        {
            continue;
        }
        if !compile("rustc", &args, &dir) {
            return;
        }
        let call = &run(&dir.join("rust"))[0];
        // The address is that of the instruction after `lea`. As a return address it belongs to
        // the line of `lea`, as the address of an interrupted instruction to one of the next lines.
        let after_signal = stacks(&dir.join("rust"), call, &[], SITE_SIGNAL);
        let after_signal = Symbolizer::new(Detail::Full).frames(&after_signal, &after_signal.site(1));
        assert!((call.line..call.line + 3).contains(&after_signal[0].line.unwrap()), "{after_signal:?}");
        let (frames, ..) = frames(&dir.join("rust"), call, &[]);
        let outer = frames.last().unwrap();
        // The v0 scheme names methods `<Type>::method`.
        let title = outer.title().replace(['<', '>'], "");
        assert!(title.ends_with(&call.function[4..]), "{title}");
        assert_eq!((file(&frames[0]), frames[0].line), ("rust.rs", Some(call.line)));
    }
}

#[test]
fn names_of_another_file_are_not_used() {
    let (_dir, dir) = source("made.c", C);
    if !compile("gcc", &["-O1", "-g", "-Wl,--build-id=0xaaaa", "-o", "made", "made.c"], &dir) {
        return;
    }
    let call = &run(&dir.join("made"))[0];
    let offset = format!("made+{:#x}", call.address - call.bias);
    let (upgraded, _, notes) = frames(&dir.join("made"), call, &[0xbb, 0xbb]);
    assert_eq!((upgraded[0].title(), notes.len()), (offset.clone(), 1));
    assert!(notes[0].contains("not the file that was recorded"), "{notes:?}");
    std::fs::remove_file(dir.join("made")).unwrap();
    let (deleted, _, notes) = frames(&dir.join("made"), call, &[0xaa, 0xaa]);
    assert_eq!((deleted[0].title(), notes.len()), (offset, 1));
}

#[test]
fn broken_elf_files_name_what_they_can() {
    let (_dir, dir) = source("made.c", C);
    if !compile("gcc", &["-O1", "-g", "-o", "made", "made.c"], &dir) {
        return;
    }
    let call = &run(&dir.join("made"))[1];
    let whole = std::fs::read(dir.join("made")).unwrap();
    for offset in (0..whole.len()).step_by(41) {
        let mut broken = whole.clone();
        broken[offset] ^= 0xff;
        std::fs::write(dir.join("broken"), &broken).unwrap();
        let (found, ..) = frames(&dir.join("broken"), call, &[]);
        assert!(!found.is_empty());
    }
    for cut in (0..whole.len()).step_by(211) {
        std::fs::write(dir.join("broken"), &whole[..cut]).unwrap();
        let (found, ..) = frames(&dir.join("broken"), call, &[]);
        assert!(!found.is_empty());
    }
}
