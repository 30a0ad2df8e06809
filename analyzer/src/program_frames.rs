//! Assigns roles to frames: code of the program, functions that only pass a request for memory on
//! (allocator wrappers, containers, language runtimes), and internals of an interpreter. All
//! reports, thresholds and exports use [`blamed`] to choose the frames that they blame.

use crate::frame::Frame;
pub use crate::frame::Role;
use crate::system_libraries::is_system_library;
use heaptape_formats::pattern::Pattern;

/// Number of ranks below those of wrappers.
const RANKS: usize = Role::Wrapper.rank() as usize;
/// Number of frames outside of the blamed ones among which an allocation function is looked for. A
/// pool that logs its growth is about that deep.
const BEHIND: usize = 16;

/// The innermost frames of each rank.
type Ranked = [Vec<usize>; RANKS];

/// Returns the positions of the frames of a stack that are blamed for its allocations, innermost
/// first: the innermost `count` frames of the lowest [`Role::rank`] in the stack. Frames inner to
/// an allocation function do not count if there is another one outside of it. If all frames are
/// wrappers, only the innermost is blamed. The result is empty only for an empty stack.
///
/// Reads `roles` only as far as necessary.
pub fn blamed(roles: impl IntoIterator<Item = Role>, count: usize) -> Vec<usize> {
    let most = count.max(1);
    // Frames since the last allocation function, and those that it hides.
    let (mut found, mut behind) = (Ranked::default(), Ranked::default());
    let (mut frames, mut enough_at) = (0, usize::MAX);
    for (position, role) in roles.into_iter().enumerate() {
        if position - enough_at.min(position) > BEHIND {
            break;
        }
        frames += 1;
        let rank = usize::from(role.rank());
        if role == Role::Allocator && found.iter().any(|positions| !positions.is_empty()) {
            (behind, found, enough_at) = (found, Ranked::default(), usize::MAX);
        } else if rank < RANKS && found[rank].len() < most {
            found[rank].push(position);
            if rank == 0 && found[0].len() == most {
                enough_at = position;
            }
        }
    }
    let best = |ranked: &Ranked| ranked.iter().position(|positions| !positions.is_empty());
    // Generated code outside of an allocation function tells less than the function's own code.
    let is_caller = best(&found).is_some_and(|rank| rank < usize::from(Role::Nameless.rank()));
    let mut ranked = if is_caller || best(&behind).is_none() { found } else { behind };
    match best(&ranked) {
        Some(rank) => std::mem::take(&mut ranked[rank]),
        None => (0..frames.min(1)).collect(),
    }
}

/// Returns the position of the function of a library by which the code at `blamed` allocates: of
/// the frames of the library that are inner to it, the one that it calls.
pub(crate) fn library_call(
    roles: impl DoubleEndedIterator<Item = Role> + ExactSizeIterator,
    blamed: usize,
) -> Option<usize> {
    let outside = roles.len().saturating_sub(blamed);
    let mut inner = roles.enumerate().rev().skip(outside);
    inner.find(|(_, role)| role.is_library()).map(|(position, _)| position)
}

/// Prefixes of the file names of modules whose functions only pass requests for memory on.
#[rustfmt::skip]
const MODULES: &[&str] = &[
    "libc.so", "libc-", "libc++", "libstdc++", "libgcc_s", "libpthread", "libm.so", "libdl.so", "librt.so", "ld-linux", "ld-2",
    "ld-musl", "ld.so", "libheaptape", "libasan", "libtsan", "libubsan", "libjemalloc", "libtcmalloc", "libmimalloc", "linux-vdso",
    "[vdso]", "linux-gate", "libffi.so", "libffi-",
];

/// Substrings of the paths of source files of the C++ and Rust standard libraries, and of crates
/// with Rust's allocators. Debug information has inlined functions and lambdas without their
/// namespace, but with their file.
const FILES: &[&str] = &[
    "/include/c++/",
    "/rustlib/src/rust/library/",
    "/tikv-jemallocator-0.",
    "/jemallocator-0.",
    "/mimalloc-0.",
    "/snmalloc-rs-0.",
];

/// Prefixes of the paths by which the Rust compiler refers to the source of its library.
const FILE_STARTS: &[&str] = &["/rustc/", "/rust/deps/"];

/// Prefixes of the file names of scripts that are part of an interpreter.
const NODE_FILE: &str = "node:";
const PYTHON_FILE: &str = "<frozen ";

/// Crates of executors of asynchronous and parallel Rust, with the name to show. Between `main` and
/// a task there are often thirty of their frames.
#[rustfmt::skip]
const EXECUTORS: &[(&str, &str)] = &[
    ("tokio", "tokio"), ("futures-util", "futures"), ("futures-executor", "futures"), ("async-std", "async-std"), ("async-executor", "async-executor"),
    ("async-task", "async-task"), ("smol", "smol"), ("actix-rt", "actix"), ("rayon-core", "rayon"), ("rayon", "rayon"),
];

/// Returns the executor that a function belongs to: by its name, `tokio::runtime::…`, or by its
/// file, since with line tables alone (`debug = "line-tables-only"`) an inlined function has no
/// path.
fn executor(function: &str, file: Option<&str>) -> Option<&'static str> {
    let inner = function.trim_start_matches(['<', '&', '*', '[', '(']).trim_start_matches("mut ");
    let crate_name = inner.split_once("::").map(|(name, _)| name.replace('_', "-"));
    // In Cargo's registry: …/tokio-1.48.0/src/runtime/mod.rs.
    let folders = || file.into_iter().flat_map(|file| file.split('/'));
    let is_version =
        |rest: &str| rest.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    let is_of = |name: &str| {
        crate_name.as_deref() == Some(name) || folders().any(|folder| folder.strip_prefix(name).is_some_and(is_version))
    };
    EXECUTORS.iter().find(|(name, _)| is_of(name)).map(|(_, shown)| *shown)
}

/// Prefixes of the names of V8's functions, in its symbols and its perf map.
const V8: &[&str] = &["v8::", "Builtins_", "Builtin:", "BytecodeHandler:", "Handler:", "Stub:", "RegExp:"];

/// Primitive types of Rust. Their implementations of traits are in the standard library.
#[rustfmt::skip]
const PRIMITIVES: &[&str] = &[
    "u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "i128", "isize", "f32", "f64", "bool", "char", "str",
];

/// Prefixes of names in containers and language runtimes, after `<`, `&`, `*`, `[` and `(`.
#[rustfmt::skip]
const NAME_SPACES: &[&str] = &[
    // C++
    "std::", "__gnu_cxx::", "__cxxabiv1::", "__cxx11::", "operator new", "operator delete", "boost::container::",
    // Rust
    "alloc::", "core::", "hashbrown::", "indexmap::", "smallvec::", "std_detect::", "rustc_std_workspace", "__rust_", "__rustc::", "__rdl_",
    "__rg_", "_RNvCs", "dyn core::", "dyn alloc::", "dyn std::",
];

/// The trait of an allocator of a Rust program, as implementations of its functions name it.
const GLOBAL_ALLOC: &str = " as core::alloc::global::GlobalAlloc>::";

/// Names of allocation functions. What they call is part of the allocation.
#[rustfmt::skip]
const ALLOCATORS: &[&str] = &[
    // C library
    "malloc", "calloc", "realloc", "reallocarray", "free", "cfree", "memalign", "aligned_alloc", "posix_memalign", "valloc",
    "pvalloc", "strdup", "strndup", "wcsdup", "__libc_malloc", "__libc_calloc", "__libc_realloc",
    "_obstack_newchunk", "__cxa_allocate_exception",
    // GNU programs
    "xmalloc", "xcalloc", "xzalloc", "xrealloc", "xreallocarray", "xnmalloc", "xnrealloc", "xcharalloc", "xmemdup", "xmemdupz",
    "xstrdup", "xstrndup", "x2realloc", "x2nrealloc", "ximalloc", "xirealloc", "xicalloc", "xizalloc", "xpalloc", "xpmalloc",
    "xmallocz", "do_xmalloc", "sh_xmalloc", "sh_xrealloc", "safe_malloc", "safe_calloc", "safe_realloc",
    "emalloc", "ecalloc", "erealloc", "estrdup", "checked_malloc", "checked_realloc", "must_malloc",
    // GLib
    "g_malloc", "g_malloc0", "g_malloc_n", "g_malloc0_n", "g_try_malloc", "g_try_malloc0", "g_realloc", "g_realloc_n",
    "g_try_realloc", "g_memdup", "g_memdup2", "g_strdup", "g_strndup", "g_slice_alloc", "g_slice_alloc0",
    "g_aligned_alloc",
    // SQLite
    "sqlite3_malloc", "sqlite3_malloc64", "sqlite3_realloc", "sqlite3_realloc64", "sqlite3Malloc", "sqlite3MallocZero",
    "sqlite3Realloc", "sqlite3MemMalloc", "sqlite3MemRealloc", "mallocWithAlarm", "sqlite3DbMallocRaw", "sqlite3DbMallocRawNN",
    "sqlite3DbMallocZero", "dbMallocRawFinish", "dbReallocFinish", "sqlite3DbRealloc", "sqlite3DbReallocOrFree", "sqlite3DbStrDup",
    "sqlite3DbStrNDup",
    // Python
    "PyMem_Malloc", "PyMem_Calloc", "PyMem_Realloc", "PyMem_RawMalloc", "PyMem_RawCalloc", "PyMem_RawRealloc", "PyObject_Malloc",
    "PyObject_Calloc", "PyObject_Realloc", "_PyMem_RawMalloc", "_PyMem_RawCalloc", "_PyMem_RawRealloc", "_PyObject_Malloc",
    "_PyObject_Calloc", "_PyObject_Realloc", "_PyMem_DebugMalloc", "_PyMem_DebugRawMalloc", "_PyMem_DebugRawAlloc",
    "_PyObject_MallocWithType", "_PyMem_MallocWithType", "pymalloc_alloc", "pymalloc_realloc", "new_arena", "arena_map_get",
    "arena_map_mark_used", "allocate_from_new_pool",
    "_PyMem_Strdup",
    // GCC and binutils
    "ggc_internal_alloc", "ggc_internal_cleared_alloc", "ggc_realloc", "ggc_alloc_atomic", "_objalloc_alloc", "objalloc_create",
    "bfd_alloc", "bfd_zalloc", "bfd_malloc", "bfd_realloc",
    // Others
    "CRYPTO_malloc", "CRYPTO_zalloc", "CRYPTO_realloc", "CRYPTO_strdup", "OPENSSL_malloc", "av_malloc", "av_mallocz", "av_calloc",
    "av_realloc", "av_realloc_f", "av_strdup", "zmalloc", "zcalloc", "zrealloc", "ztrymalloc", "ztrycalloc", "ztryrealloc",
    "ztrymalloc_usable_internal", "ztrycalloc_usable_internal", "ztryrealloc_usable_internal", "zmalloc_with_flags",
    "zmalloc_no_tcache", "zcalloc_num", "zstrdup", "zmalloc_usable", "zcalloc_usable", "zrealloc_usable", "ztrymalloc_usable", "ztrycalloc_usable", "ztryrealloc_usable",
    "RM_Alloc", "RM_TryAlloc", "RM_Calloc", "RM_Realloc", "RM_Strdup", "apr_palloc", "apr_pcalloc", "apr_allocator_alloc", "allocator_alloc", "talloc_named_const", "_talloc_array",
    "Perl_safesysmalloc", "Perl_safesyscalloc", "Perl_safesysrealloc", "Perl_savepvn", "_emalloc", "_ecalloc", "_erealloc",
    "_safe_emalloc", "_estrdup", "_estrndup", "mi_malloc",
    "mi_calloc", "mi_realloc", "mi_zalloc", "je_malloc", "tc_malloc", "tc_new", "scudo_malloc", "xmlMalloc", "xmlStrdup",
];

/// Names of other functions that pass requests for memory on. They may call back into the program:
/// to compare or hash, to format, or to finalize objects during a garbage collection.
#[rustfmt::skip]
const CALLING_BACK: &[&str] = &[
    "asprintf", "vasprintf", "_obstack_begin", "concat", "xstrfmt", "g_strdup_printf", "g_strdup_vprintf", "g_vasprintf",
    // Python
    "PyUnicode_New", "unicode_decode_utf8", "PyUnicode_DecodeUTF8Stateful", "PyUnicode_FromStringAndSize", "PyBytes_FromStringAndSize",
    "_PyBytes_FromSize", "_PyObject_GC_Alloc", "_PyObject_GC_New", "_PyObject_GC_NewVar", "_PyObject_GC_Malloc", "_PyObject_New",
    "_PyObject_NewVar", "PyType_GenericAlloc", "_PyType_AllocNoTrack", "gc_alloc",
    // GCC and binutils
    "htab_create_alloc", "htab_expand", "htab_find_slot", "htab_find_slot_with_hash",
    // Ruby
    "ruby_xmalloc", "ruby_xcalloc", "ruby_xrealloc", "objspace_xmalloc0",
];

/// Prefixes of names of allocation functions.
const ALLOCATOR_STARTS: &[&str] =
    &["operator new", "operator delete", "__rust_", "__rustc::__rust_", "__rdl_", "__rg_", "alloc::alloc::"];

/// Ends of names of allocation functions of a class.
const ALLOCATOR_ENDS: &[&str] = &["::operator new", "::operator new[]", "::operator delete", "::operator delete[]"];

/// Names of functions outside of the first function of a program or thread.
const OUTERMOST: &[&str] = &[
    "_start",
    "start_thread",
    "clone",
    "clone3",
    "__clone",
    "__clone3",
    "__libc_start_main",
    "__libc_start_call_main",
];

/// Returns whether a frame is outside of the first function of the program or thread.
pub(crate) fn is_outermost(frame: &Frame) -> bool {
    frame.function.as_deref().is_some_and(|function| OUTERMOST.contains(&function))
}

/// Returns whether a function with this name only passes requests for memory on.
pub(crate) fn is_wrapper(function: &str) -> bool {
    let inner = function.trim_start_matches(['<', '&', '*', '[', '(']).trim_start_matches("mut ");
    NAME_SPACES.iter().any(|space| inner.starts_with(space))
        || is_of_primitive(function)
        || is_allocator(function)
        || CALLING_BACK.contains(&function)
}

/// Returns whether a function with this name allocates or frees memory, and calls nothing of the
/// program for another purpose.
fn is_allocator(function: &str) -> bool {
    ALLOCATOR_STARTS.iter().any(|start| function.starts_with(start))
        || ALLOCATOR_ENDS.iter().any(|end| function.ends_with(end))
        || function.contains(GLOBAL_ALLOC)
        || is_standard_interface(function)
        || ALLOCATORS.contains(&function)
}

/// Returns whether this is the function of the C++ library by which containers call an allocator of
/// the program.
fn is_standard_interface(function: &str) -> bool {
    let of_traits = function.starts_with("std::allocator_traits<") && function.ends_with(">::allocate");
    of_traits || function == "std::pmr::memory_resource::allocate"
}

/// Returns whether a function implements a standard trait for a primitive type, such as `<u8 as
/// alloc::vec::SpecFromElem>::from_elem`.
fn is_of_primitive(function: &str) -> bool {
    let Some((kind, rest)) = function.strip_prefix('<').and_then(|inner| inner.split_once(" as ")) else {
        return false;
    };
    let kind = kind.trim_start_matches(['&', '*', '[', '(']);
    let kind = kind.trim_start_matches("mut ").trim_start_matches("const ").trim_end_matches(']');
    PRIMITIVES.contains(&kind) && NAME_SPACES.iter().any(|space| rest.starts_with(space))
}

/// Returns whether a module with this file name is CPython, as a program or a library.
pub(crate) fn is_cpython(module: &str) -> bool {
    let version = |rest: &str| rest.bytes().all(|byte| byte.is_ascii_digit() || b".dmtu-dbg".contains(&byte));
    module.starts_with("libpython") || module.strip_prefix("python").is_some_and(version)
}

/// Returns the name of the interpreter that a frame belongs to, by its module, file and name.
fn interpreter(frame: &Frame) -> Option<&'static str> {
    let module = frame.module_name();
    let has_file = |start: &str| frame.file.as_deref().is_some_and(|file| file.starts_with(start));
    if is_cpython(module) || frame.module.contains("/lib-dynload/") || has_file(PYTHON_FILE) {
        return Some("CPython");
    }
    if module == "node" || module == "nodejs" || module.starts_with("libnode.so") || has_file(NODE_FILE) {
        return Some("Node.js");
    }
    let function = frame.function.as_deref()?;
    if V8.iter().any(|start| function.starts_with(start)) {
        return Some("V8");
    }
    executor(function, frame.file.as_deref())
}

/// Determines the roles of frames, with the wrappers that the user names (`--wrapper NAME`).
#[derive(Clone, Debug, Default)]
pub struct Roles {
    wrappers: Vec<Pattern>,
}

impl Roles {
    /// Creates roles with patterns of the user's wrappers. A pattern matches the complete name of a
    /// function or the file name of a module, and may contain `*` and `?`.
    pub fn new(wrappers: &[String]) -> Roles {
        Roles { wrappers: wrappers.iter().map(|name| Pattern::whole(name)).collect() }
    }

    /// Returns whether all functions of a frame's module only pass requests for memory on.
    pub(crate) fn is_wrapper_module(&self, frame: &Frame) -> bool {
        let module = frame.module_name();
        MODULES.iter().any(|name| module.starts_with(name))
            || self.wrappers.iter().any(|pattern| pattern.matches(module))
    }

    pub fn of(&self, frame: &Frame) -> Role {
        let by_name = self.by_name(frame.function.as_deref());
        if self.is_wrapper_module(frame) {
            return if by_name == Role::Allocator { by_name } else { Role::Wrapper };
        }
        let is_named = frame.function.is_some() || frame.file.is_some();
        let of_library = |file: &str| {
            FILES.iter().any(|part| file.contains(part)) || FILE_STARTS.iter().any(|start| file.starts_with(start))
        };
        match by_name {
            Role::Program | Role::Nameless if frame.file.as_deref().is_some_and(of_library) => Role::Wrapper,
            Role::Program | Role::Nameless => match interpreter(frame) {
                Some(name) => Role::Interpreter(name),
                None if frame.module.is_empty() => by_name,
                None => match (is_named, is_system_library(&frame.module)) {
                    (true, false) => Role::Program,
                    (true, true) => Role::Library,
                    (false, false) => Role::Unnamed,
                    (false, true) => Role::UnnamedLibrary,
                },
            },
            role => role,
        }
    }

    /// Returns the role of a function of which only the name is known.
    pub fn by_name(&self, function: Option<&str>) -> Role {
        match function {
            None => Role::Nameless,
            Some(function) if OUTERMOST.contains(&function) => Role::Outermost,
            Some(function) if is_allocator(function) => Role::Allocator,
            Some(function) if is_wrapper(function) => Role::Wrapper,
            Some(function) if self.wrappers.iter().any(|pattern| pattern.matches(function)) => Role::Wrapper,
            Some(_) => Role::Program,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_frame_has_its_role() {
        for wrapper in [
            "xmalloc",
            "std::vector<int, std::allocator<int> >::_M_realloc_insert",
            "__gnu_cxx::new_allocator<char>::allocate",
            "operator new",
            "alloc::raw_vec::RawVec<T,A>::grow_one",
            "<alloc::vec::Vec<T> as core::clone::Clone>::clone",
            "<&mut core::iter::Map<I,F>>::next",
            "__rust_alloc",
            "__rustc::__rust_alloc",
            "<mimalloc::MiMalloc as core::alloc::global::GlobalAlloc>::alloc",
            "<shop::Counting as core::alloc::global::GlobalAlloc>::realloc",
            "<u8 as alloc::vec::spec_from_elem::SpecFromElem>::from_elem",
            "<[u8] as alloc::slice::Concat>::concat",
        ] {
            assert!(is_wrapper(wrapper), "{wrapper}");
        }
        for program in [
            "main",
            "stdio_buffer",
            "allocate_orders",
            "<shop::Order as core::clone::Clone>::clone",
            "mallocator",
            "<u8 as shop::Codec>::encode",
        ] {
            assert!(!is_wrapper(program), "{program}");
        }
        let role = |function: Option<&str>, module: &str, file: Option<&str>| {
            Roles::default().of(&Frame {
                function: function.map(str::to_string),
                module: module.into(),
                file: file.map(str::to_string),
                ..Frame::default()
            })
        };
        let (python, node) = (Role::Interpreter("CPython"), Role::Interpreter("Node.js"));
        for (function, module, file, expected) in [
            (Some("getdelim"), "/lib/x86_64-linux-gnu/libc.so.6", None, Role::Wrapper),
            (Some("ffi_call"), "/lib/x86_64-linux-gnu/libffi.so.8", None, Role::Wrapper),
            (Some("operator new"), "/lib/x86_64-linux-gnu/libstdc++.so.6", None, Role::Allocator),
            (Some("operator new[]"), "/bin/x", Some("/srv/pool.cpp"), Role::Allocator),
            (None, "/usr/bin/sqlite3", None, Role::Unnamed),
            (None, "/usr/bin/x", Some("/srv/x.c"), Role::Program),
            (Some("xmlDictCreate"), "/lib/x86_64-linux-gnu/libxml2.so.2", None, Role::Library),
            (Some("g_malloc"), "/lib/x86_64-linux-gnu/libglib-2.0.so.0", None, Role::Allocator),
            (None, "/lib/x86_64-linux-gnu/libglib-2.0.so.0", None, Role::UnnamedLibrary),
            (Some("import_orders"), "/usr/lib/shop/libshop.so", None, Role::Program),
            (Some("main"), "", None, Role::Program),
            (None, "", None, Role::Nameless),
            (Some("_start"), "/bin/x", None, Role::Outermost),
            (Some("operator()"), "/bin/x", Some("/usr/include/c++/12/bits/std_thread.h"), Role::Wrapper),
            (Some("operator()"), "/bin/x", Some("/srv/server.cpp"), Role::Program),
            (Some("from_elem"), "/bin/x", Some("/rustc/1234/library/alloc/src/vec/mod.rs"), Role::Wrapper),
            (
                Some("<shop::Pool as core::alloc::global::GlobalAlloc>::alloc"),
                "/bin/x",
                Some("/srv/pool.rs"),
                Role::Allocator,
            ),
            (Some("alloc"), "/bin/x", Some("/srv/crates/mimalloc-0.1.52/src/lib.rs"), Role::Wrapper),
            (Some("alloc"), "/bin/x", Some("/srv/mimalloc-bench/src/lib.rs"), Role::Program),
            (Some("PyList_Append"), "/usr/bin/python3.13", None, python),
            (Some("PyUnicode_New"), "/usr/lib/libpython3.13.so.1.0", None, Role::Wrapper),
            (Some("PyMem_Malloc"), "/usr/bin/python3.13", None, Role::Allocator),
            (None, "/usr/lib/python3.13/lib-dynload/_ctypes.cpython-313-x86_64-linux-gnu.so", None, python),
            (Some("dumps"), "/srv/ujson.cpython-313-x86_64-linux-gnu.so", None, Role::Program),
            (Some("load"), "", Some("/srv/shop.py"), Role::Program),
            (Some("_find_and_load"), "", Some("<frozen importlib._bootstrap>"), python),
            (Some("main"), "/usr/bin/python_tool", None, Role::Program),
            (Some("node::Start"), "/usr/bin/node", None, node),
            (Some("allocUnsafeSlow"), "", Some("node:buffer"), node),
            (Some("remember"), "", Some("/srv/leak.js"), Role::Program),
            (Some("v8::internal::Heap::Allocate"), "/opt/app", None, Role::Interpreter("V8")),
            (Some("tokio::runtime::task::core::Cell<T,S>::new"), "/bin/x", None, Role::Interpreter("tokio")),
            (Some("<tokio::task::local::RunUntil<T> as Poll>::poll"), "/bin/x", None, Role::Interpreter("tokio")),
            (Some("rayon_core::registry::WorkerThread::wait_until"), "/bin/x", None, Role::Interpreter("rayon")),
            (Some("with_budget"), "/bin/x", Some("/r/tokio-1.48.0/src/task/coop/mod.rs"), Role::Interpreter("tokio")),
            (Some("tokio_shop::serve"), "/bin/x", None, Role::Program),
            (Some("serve"), "/bin/x", Some("/srv/tokio-shop/src/main.rs"), Role::Program),
        ] {
            assert_eq!(role(function, module, file), expected, "{function:?} {module} {file:?}");
        }
    }

    #[test]
    fn wrappers_of_the_user_match_functions_and_modules() {
        let roles = Roles::new(&["pool_*".into(), "Arena::take".into(), "libpool.so*".into()]);
        let role = |function: &str, module: &str| {
            let function = Some(function.to_string());
            roles.of(&Frame { function, module: module.into(), ..Frame::default() })
        };
        assert_eq!(role("pool_get", "/bin/x"), Role::Wrapper);
        assert_eq!(role("Arena::take", "/bin/x"), Role::Wrapper);
        assert_eq!(role("Arena::take_all", "/bin/x"), Role::Program);
        assert_eq!(role("anything", "/usr/lib/libpool.so.3"), Role::Wrapper);
        assert_eq!(role("my_pool_get", "/bin/x"), Role::Program);
    }

    #[test]
    fn allocation_functions_are_told_from_other_wrappers() {
        for allocator in [
            "operator new",
            "operator delete[]",
            "shop::Order::operator new",
            "shop::Pooled<shop::Order>::operator new[]",
            "std::allocator_traits<shop::Arena<int> >::allocate",
            "std::pmr::memory_resource::allocate",
            "__rust_alloc",
            "__rustc::__rust_alloc_zeroed",
            "alloc::alloc::alloc",
            "<shop::Counting as core::alloc::global::GlobalAlloc>::realloc",
            "xmalloc",
            "g_malloc0",
            "free",
        ] {
            assert!(is_allocator(allocator) && is_wrapper(allocator), "{allocator}");
        }
        // These run code of the program for another purpose: constructors, comparisons, finalizers.
        for other in [
            "std::make_shared<shop::Order>",
            "std::allocator_traits<std::allocator<int> >::construct",
            "alloc::vec::Vec<T>::push",
            "htab_find_slot",
            "_PyObject_GC_New",
            "ruby_xmalloc",
        ] {
            assert!(!is_allocator(other) && is_wrapper(other), "{other}");
        }
        assert!(!is_wrapper("my_operator new_order") && !is_wrapper("shop::operator_new"));
    }

    #[test]
    fn the_innermost_frames_of_the_lowest_rank_are_blamed() {
        const P: Role = Role::Program;
        const I: Role = Role::Interpreter("CPython");
        const N: Role = Role::Nameless;
        const W: Role = Role::Wrapper;
        const O: Role = Role::Outermost;
        const A: Role = Role::Allocator;
        const L: Role = Role::Library;
        const U: Role = Role::Unnamed;
        const UL: Role = Role::UnnamedLibrary;
        for (stack, count, expected) in [
            (&[W, W, P, W, P, O][..], 1, &[2][..]),
            (&[W, W, P, W, P, O], 3, &[2, 4]),
            (&[W, I, P, I], 2, &[2]),
            (&[W, I, N, I, O], 2, &[1, 3]),
            (&[W, N, N], 1, &[1]),
            (&[W, W, O], 3, &[0]),
            (&[O], 1, &[0]),
            (&[], 1, &[]),
            (&[P, P], 0, &[0]),
            // The pool behind an allocation function is blamed only where nothing else can be.
            (&[P, A, P, P], 1, &[2]),
            (&[P, P, W, A, W, P], 2, &[5]),
            (&[P, A, P, W, A, P], 1, &[5]),
            (&[P, A, W, A, W, O], 1, &[0]),
            (&[P, A, N], 1, &[0]),
            (&[P, A, I], 1, &[2]),
            (&[W, A, A, P], 1, &[3]),
            (&[P, P, P, A, P], 1, &[4]),
            // The system's libraries come after the program, and code without a name after both.
            (&[W, L, U, L, P, P], 2, &[4, 5]),
            (&[UL, L, I], 1, &[1]),
            (&[U, L, L], 2, &[1, 2]),
            (&[U, U, P], 1, &[2]),
            (&[W, UL, I], 1, &[1]),
            (&[P, A, L, L], 1, &[2]),
        ] {
            assert_eq!(blamed(stack.iter().copied(), count), expected, "{stack:?} {count}");
        }
        // An allocation function is looked for in the frames nearby only.
        let far = |between: usize| [vec![P; 1 + between], vec![A, P]].concat();
        assert_eq!(blamed(far(BEHIND - 1), 1), [BEHIND + 1]);
        assert_eq!(blamed(far(BEHIND), 1), [0]);
    }

    #[test]
    fn the_call_of_a_library_is_the_one_of_the_blamed_frame() {
        use Role::{Library as L, Program as P, UnnamedLibrary as U, Wrapper as W};
        for (stack, blamed, expected) in
            [(&[W, L, L, P, L, P][..], 3, Some(2)), (&[L, U, W, P], 3, Some(1)), (&[W, P, L], 1, None), (&[P], 0, None)]
        {
            assert_eq!(library_call(stack.iter().copied(), blamed), expected, "{stack:?}");
        }
    }
}
