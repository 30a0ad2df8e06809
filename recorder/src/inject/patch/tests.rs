use super::*;
#[cfg(target_arch = "x86_64")]
use crate::os::processor::moved;
use crate::target::kept_file;
#[cfg(target_arch = "x86_64")]
use families::Shape;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::SystemTime;

fn role(is_program: bool) -> Role {
    Role { is_program, reach: Reach::FromStart }
}

fn found(path: &Path, is_program: bool) -> Result<FileFunctions, Fault> {
    let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    functions(&file, &Names::new(&[]), role(is_program), Instant::now() + Duration::from_secs(60))
}

fn functions(file: &File, names: &Names, role: Role, deadline: Instant) -> Result<FileFunctions, Fault> {
    let found = file::find_symbols(file, &symbols::headers(file)?, names, deadline)?;
    Ok(file::functions(file, found.elf, names, role))
}

/// Every function of the allocators of the distribution can be hooked.
#[cfg(target_arch = "x86_64")]
#[test]
fn functions_of_common_allocators_are_movable() {
    let mut allocators = 0;
    for (library, at_least) in [("libjemalloc.so.2", 30), ("libmimalloc.so.2", 80), ("libtcmalloc_minimal.so.4", 40)] {
        let path = Path::new("/usr/lib/x86_64-linux-gnu").join(library);
        if !path.exists() {
            continue;
        }
        allocators += 1;
        let functions = found(&path, true).unwrap_or_else(|fault| panic!("{library}: {fault:?}")).functions;
        let names: usize = functions.iter().map(|function| function.names.len()).sum();
        assert!(names >= at_least, "{library}: {names} names");
        let refused: Vec<_> = functions.iter().filter(|function| function.refusal.is_some()).collect();
        assert!(refused.is_empty(), "{library}: {refused:?}");
        for (number, function) in functions.iter().enumerate() {
            let start = moved::start(&function.code, 0x7f00_0000_0000 + function.address, 0);
            let start = start.unwrap_or_else(|why| panic!("{}: {why:?}", function.names[0]));
            let trampoline = start.trampoline(0x7eff_f000_0000 + 128 * number as u64);
            let trampoline = trampoline.unwrap_or_else(|why| panic!("{}: {why:?}", function.names[0]));
            assert!(trampoline.code.len() < 80, "{}: {} bytes", function.names[0], trampoline.code.len());
        }
        // The calls of a library's `malloc` are recorded by the exported functions.
        let library_functions = found(&path, false).unwrap_or_default();
        let imported = |names: &[&'static str]| {
            let functions = library_functions.imported(&names.iter().copied().collect()).functions;
            (functions.len(), functions.iter().filter(|function| function.refusal.is_some()).count())
        };
        assert_eq!(imported(&[]), (0, 0), "{library}");
        // Its other names are hooked where a file imports them, unless one of them is `malloc`.
        let expected = match library {
            "libjemalloc.so.2" => [(2, 0), (0, 0), (0, 0)],
            "libmimalloc.so.2" => [(0, 0), (1, 0), (2, 2)],
            _ => [(0, 0); 3],
        };
        let names: [&[&str]; 3] = [&["mallocx", "dallocx"], &["mi_zalloc"], &["mi_zalloc", "mi_free"]];
        assert_eq!(names.map(imported), expected, "{library}");
    }
    assert!(allocators > 0, "no allocator is installed: scripts/install-tools");
}

#[cfg(target_arch = "x86_64")]
#[test]
fn starts_that_something_continues_in_are_refused() {
    use moved::Refusal;
    let refusal = |code: &[u8]| moved::start(code, 0x1000, code.len()).err();
    // push rbx; sub rsp, 16; ret
    assert_eq!(refusal(b"\x53\x48\x83\xec\x10\xc3"), None);
    // call rax; mov eax, 1; ret
    assert_eq!(refusal(b"\xff\xd0\xb8\x01\x00\x00\x00\xc3"), Some(Refusal::Call));
    // push rax; nop; xor eax, eax; inc eax; jmp to the nop
    assert_eq!(refusal(b"\x50\x90\x31\xc0\xff\xc0\xeb\xf9"), Some(Refusal::Branch));
    // xor eax, eax; ret; then another function
    assert_eq!(refusal(b"\x31\xc0\xc3\x55\x53\x55\x53"), Some(Refusal::Short));
    // The same, then padding.
    assert_eq!(moved::start(b"\x31\xc0\xc3\x90\x66\x90\x55", 0x1000, 3).err(), None);
    assert_eq!(refusal(b"\x06\x06\x06\x06\x06"), Some(Refusal::Undecodable));
    assert_eq!(refusal(b"\x53"), Some(Refusal::Short));
    assert_eq!(refusal(b""), Some(Refusal::Short));
    // loop to itself: the encoder writes it as two branches.
    let start = moved::start(b"\xe2\x10\x48\x89\xc8\xc3", 0x1000, 6).unwrap_or_else(|why| panic!("{why:?}"));
    assert!(start.trampoline(0x2000).is_ok());
}

/// A moved instruction means the same as before: operands relative to it, branches, calls.
#[cfg(target_arch = "x86_64")]
#[test]
fn moved_instructions_refer_to_the_same_addresses() {
    // endbr64; mov rax, [rip + 0x100]; then a jump to the rest
    let code = b"\xf3\x0f\x1e\xfa\x48\x8b\x05\x00\x01\x00\x00\xc3";
    let start = moved::start(code, 0x1000, code.len()).unwrap_or_else(|why| panic!("{why:?}"));
    assert_eq!((start.address, &start.bytes[..]), (0x1004, &code[4..11]));
    let trampoline = start.trampoline(0x2000).unwrap_or_else(|why| panic!("{why:?}"));
    assert_eq!(trampoline.offsets, [(0, 0)]);
    // 0x1004 + 7 + 0x100 = 0x2000 + 7 - 0xefc; jmp 0x100b = 0x2000 + 12 - 0x1001
    assert_eq!(trampoline.code, b"\x48\x8b\x05\x04\xf1\xff\xff\xe9\xff\xef\xff\xff");
    // push rax; call 0x3000: the return address is the function's, and is not in the trampoline.
    let start = moved::start(b"\x50\xe8\xfa\x1f\x00\x00\x58\xc3", 0x1000, 8).unwrap_or_else(|why| panic!("{why:?}"));
    let trampoline = start.trampoline(0x2000).unwrap_or_else(|why| panic!("{why:?}"));
    let expected = b"\x50\xff\x35\x05\x00\x00\x00\xe9\xf4\x0f\x00\x00\x06\x10\x00\x00\x00\x00\x00\x00";
    assert_eq!(trampoline.code, expected);
    assert_eq!(trampoline.offsets, [(0, 0), (1, 1)]);
}

/// Builds a shared library from C, and returns its path.
fn library(folder: &Path, source: &str, options: &[&str]) -> PathBuf {
    let (input, output) = (folder.join("a.c"), folder.join("a.so"));
    std::fs::write(&input, source).unwrap_or_else(|error| panic!("{error}"));
    let mut compiler = std::process::Command::new("gcc");
    let status = compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&output).arg(&input).args(options).status();
    assert!(status.is_ok_and(|status| status.success()), "gcc");
    output
}

const CLONES: &str = "
#include <stddef.h>
void *next(size_t n);
__attribute__((visibility(\"hidden\"))) void *_rjem_malloc(size_t n) { return next(n + 1); }
void *clone_(size_t n) __asm__(\"_rjem_malloc.cold\");
void *clone_(size_t n) { return next(n + 2); }
void *part(size_t n) __asm__(\"_rjem_calloc.part.0\");
void *part(size_t n) { return next(n + 3); }
static __attribute__((used, noinline)) void *mi_malloc_local(size_t n) { return next(n + 4); }
void *x_malloc(size_t n) { return next(n + 5); }
void free(void *p) { next((size_t)p + 6); }
";

#[test]
fn only_exact_names_are_functions() {
    let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
    let path = library(folder.path(), CLONES, &["-Wl,--unresolved-symbols=ignore-all"]);
    let names = |names: &Names| {
        let file = File::open(&path).unwrap_or_else(|error| panic!("{error}"));
        let found = functions(&file, names, role(true), Instant::now() + Duration::from_secs(60));
        let found = found.unwrap_or_else(|fault| panic!("{fault:?}")).functions;
        found.into_iter().flat_map(|function| function.names).collect::<Vec<_>>()
    };
    // `free` without `malloc` is not an allocator of the program's own.
    assert_eq!(names(&Names::new(&[])), ["_rjem_malloc"]);
    let mut with_prefix = names(&Names::new(&[OwnAllocator::Prefix("x_".into())]));
    with_prefix.sort();
    assert_eq!(with_prefix, ["_rjem_malloc", "x_malloc"]);
}

/// Files with wrong tables are refused or have fewer functions, and nothing panics.
#[test]
fn invalid_files_are_bounded() {
    let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
    let path = library(folder.path(), CLONES, &["-Wl,--unresolved-symbols=ignore-all"]);
    let whole = std::fs::read(&path).unwrap_or_else(|error| panic!("{error}"));
    let search = |bytes: &[u8]| {
        let mut file = tempfile::tempfile().unwrap_or_else(|error| panic!("{error}"));
        file.write_all(bytes).unwrap_or_else(|error| panic!("{error}"));
        let found = functions(&file, &Names::new(&[]), role(true), Instant::now() + Duration::from_secs(60));
        if let Ok(found) = &found {
            assert!(found.functions.len() < 10);
        }
        found
    };
    assert!(search(&whole).is_ok());
    for length in (0..whole.len()).step_by(97) {
        let _ = search(&whole[..length]);
    }
    // Every byte of the header and of the last tables, replaced.
    let tables = whole.len().saturating_sub(3000);
    for at in (0..64).chain((tables..whole.len()).step_by(5)) {
        for byte in [0, 0x7f, 0xff] {
            let mut changed = whole.clone();
            changed[at] = byte;
            let _ = search(&changed);
        }
    }
}

#[test]
fn a_search_ends_at_its_deadline() {
    let file = File::open("/proc/self/exe").unwrap_or_else(|error| panic!("{error}"));
    let now = Instant::now();
    assert_eq!(functions(&file, &Names::new(&[]), role(true), now), Err(Fault::Late));
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_plan_hooks_what_it_wrote() {
    let functions = FileFunctions {
        functions: vec![FileFunction {
            names: vec!["_rjem_malloc".into()],
            allocator: "jemalloc".into(),
            shape: Shape { action: Action::Alloc, size: 0, count: 6, pointer: 6 },
            address: 0x1010,
            code: b"\x53\x48\x83\xec\x10\xc3".to_vec(),
            refusal: None,
        }],
        code: vec![symbols::CodeSegment { offset: 0x1000, address: 0x1000, bytes: 0x1000 }],
        growth: vec![0x1100..0x1140, 0x1150..0x1180],
        ..FileFunctions::default()
    };
    let mapping = CodeMapping {
        start: 0x5555_0000_1000,
        end: 0x5555_0000_2000,
        offset: 0x1000,
        inode: 1,
        path: "/bin/x".into(),
        range: String::new(),
    };
    let (mut plan, mut maps) = (Plan::default(), Maps::parse("555500001000-555500002000 r-xp 1000 0:0 1 /bin/x"));
    plan.add(&functions, &mapping, true, &mut maps);
    let is_growth =
        [0x10ff, 0x1100, 0x113f, 0x1140, 0x117f, 0x1180].map(|address| plan.is_growth(0x5555_0000_0000 + address));
    assert_eq!(is_growth, [false, true, true, false, true, false]);
    let params = wire::Params { ring_bytes: 4096, first_ring_shift: 0, slots: 1, nodes: 1024 };
    let (area, file) = Mapping::create(params).unwrap_or_else(|error| panic!("{error}"));
    plan.write(&area, &file);
    assert_eq!(area.header().patches.load(Relaxed), 1);
    let patch = &area.patches().patches[0];
    let (run, target) = (&area.patches().runs[0], patch.target.load(Relaxed));
    assert_eq!(patch.address.load(Relaxed), 0x5555_0000_1010);
    assert!(target < 0x5555_0000_1010 && 0x5555_0000_1010 - target < 1 << 30);
    let first = FIRST_FUNCTION as u64;
    assert_eq!(target, run.address.load(Relaxed) + first + 16);
    let mut expected = [0; patches::MAX_MOVED];
    assert_eq!((patch.expected(&mut expected), &expected[..5]), (5, &b"\x53\x48\x83\xec\x10"[..]));
    let code: Vec<u8> = area.patches().code[FIRST_FUNCTION..].iter().take(64).map(|byte| byte.load(Relaxed)).collect();
    assert_eq!(code[..8], (target + 18).to_le_bytes());
    // mov [rsp - 8], r11; lea r11, [rip - 28]; jmp [rip - 82]
    assert_eq!(code[16..34], *b"\x4c\x89\x5c\x24\xf8\x4c\x8d\x1d\xe4\xff\xff\xff\xff\x25\xae\xff\xff\xff");
    // mov r11, [rsp - 8]; the moved instructions
    assert_eq!(code[34..44], *b"\x4c\x8b\x5c\x24\xf8\x53\x48\x83\xec\x10");
    let outcome = plan.outcome(&area);
    assert_eq!((outcome[0].found, outcome[0].hooked, outcome[0].refused.len()), (1, 0, 1));
    patch.status.store(WRITTEN, Relaxed);
    let outcome = plan.outcome(&area);
    assert_eq!((outcome[0].hooked, outcome[0].refused.len()), (1, 0));
    // The next recorder knows the same.
    let noted = |plan: &Plan| {
        let text = serde_json::to_vec(&plan.note()).unwrap_or_else(|error| panic!("{error}"));
        Plan::of_note(serde_json::from_slice(&text).unwrap_or_else(|error| panic!("{error}")))
    };
    assert_eq!(noted(&plan).outcome(&area), outcome);
    assert!(noted(&plan).is_growth(0x5555_0000_1100));
    let attached = Plan { unseen_mappings: RAN_ALREADY, ..Plan::default() };
    assert_eq!(noted(&attached).unseen_mappings(), RAN_ALREADY);
}

/// In a process that runs already the functions of its C library are found, with the one that has
/// no name, and can be hooked.
#[test]
fn functions_of_a_running_process_are_found() {
    let maps = Maps::of(std::process::id());
    let Some(libc) = maps.code.iter().find(|code| code.path.ends_with("/libc.so.6")) else { return };
    let file = File::open(&libc.path).unwrap_or_else(|error| panic!("{error}"));
    let of = |reach| {
        let role = Role { is_program: false, reach };
        functions(&file, &Names::new(&[]), role, Instant::now() + Duration::from_secs(60)).unwrap_or_default()
    };
    assert_eq!(of(Reach::FromStart).functions, []);
    let found = of(Reach::Running).functions;
    for name in ["malloc", "free", "calloc", "realloc", "posix_memalign", "fork", file::CACHE_FLUSH] {
        let all: Vec<_> = found.iter().filter(|function| function.names.iter().any(|other| other == name)).collect();
        assert!(matches!(&all[..], [one] if one.refusal.is_none()), "{name}: {all:?}");
    }
    assert!(!found.iter().any(|function| function.names.iter().any(|name| name == "execve")));
}

/// The functions of a file if no time is left to search it, with what is stored in a folder.
fn stored(path: &Path, folder: &Path, own: &[OwnAllocator]) -> Option<Arc<FileFunctions>> {
    let mut search = Search::new(Names::new(own));
    search.store_in(folder);
    search.forbid_threads();
    search.functions(opened(path), role(true), Instant::now()).ok()
}

fn opened(path: &Path) -> File {
    File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// No background job starts while a program waits.
#[test]
fn jobs_wait_for_the_plan() {
    let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
    let path = library(folder.path(), CLONES, &["-Wl,--unresolved-symbols=ignore-all"]);
    let search = Search::new(Names::new(&[]));
    search.while_program_waits(|| {
        assert_eq!(search.functions(opened(&path), role(true), Instant::now()), Err(Fault::Late));
        // A file on a mount that may not answer, as one in memory, is searched beside.
        let is_lent = kept_file::is_lent(&OwnedFd::from(opened(&path)));
        assert!(is_lent || !search.is_working());
    });
    search.finish(Duration::from_secs(60));
    assert!(search.functions(opened(&path), role(true), Instant::now()).is_ok_and(|found| !found.functions.is_empty()));
}

/// A file that no program can wait for is searched meanwhile, and known from then on: also to
/// another recorder, which finds the same as by a search.
#[test]
fn late_files_are_stored_for_the_next_start() {
    let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
    let options = ["-Wl,--unresolved-symbols=ignore-all", "-Wl,--build-id=sha1"];
    let path = library(folder.path(), CLONES, &options);
    let entries = folder.path().join("cache").join("symbols");
    let mut first = Search::new(Names::new(&[]));
    first.store_in(&entries);
    assert_eq!(first.functions(opened(&path), role(true), Instant::now()), Err(Fault::Late));
    first.finish(Duration::from_secs(60));
    let expected = found(&path, true).unwrap_or_else(|fault| panic!("{fault:?}"));
    assert!(!expected.functions.is_empty());
    // It has its symbols, so that no allocator is without them.
    expected.nameless.get_or_init(Vec::new);
    let known = first.functions(opened(&path), role(true), Instant::now());
    assert_eq!(known.as_deref(), Ok(&expected));
    let from_disk = || stored(&path, &entries, &[]);
    assert_eq!(from_disk().as_deref(), Some(&expected));
    // Other names were not searched for.
    assert_eq!(stored(&path, &entries, &[OwnAllocator::Prefix("x_".into())]), None);
    let entry = std::fs::read_dir(&entries).ok().and_then(|mut all| all.next()?.ok()).map(|entry| entry.path());
    let entry = entry.unwrap_or_else(|| panic!("no entry"));
    let whole = std::fs::read(&entry).unwrap_or_else(|error| panic!("{error}"));
    let write = |bytes: &[u8]| std::fs::write(&entry, bytes).unwrap_or_else(|error| panic!("{error}"));
    // No other function is found by an entry, with any content.
    let addresses: Vec<u64> = expected.functions.iter().map(|function| function.address).collect();
    let is_bounded = || {
        let found = from_disk().map_or(Vec::new(), |found| found.functions.clone());
        assert!(found.iter().all(|function| addresses.contains(&function.address)), "{found:?}");
    };
    for at in (0..whole.len()).step_by(7) {
        let mut changed = whole.clone();
        changed[at] = changed[at].wrapping_add(1);
        write(&changed);
        is_bounded();
        write(&whole[..at]);
        assert_eq!(from_disk(), None, "{at} bytes");
    }
    write(&vec![b' '; 1 << 20]);
    assert_eq!(from_disk(), None);
    // Neither is what others can write, nor a link.
    let set_mode = |mode| {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&entry, permissions).unwrap_or_else(|error| panic!("{error}"));
    };
    write(&whole);
    set_mode(0o622);
    assert_eq!(from_disk(), None);
    set_mode(0o600);
    assert_eq!(from_disk().as_deref(), Some(&expected));
    let moved = folder.path().join("moved");
    std::fs::rename(&entry, &moved).unwrap_or_else(|error| panic!("{error}"));
    std::os::unix::fs::symlink(&moved, &entry).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(from_disk(), None);
    std::fs::rename(&moved, &entry).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(from_disk().as_deref(), Some(&expected));
    // A file that was changed since is another one, even with the same build-id.
    let since = SystemTime::now() + Duration::from_secs(10);
    File::options()
        .write(true)
        .open(&path)
        .and_then(|file| file.set_modified(since))
        .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(from_disk(), None);
}
