//! Which frames belong to the program, which only pass a request for memory on (allocator wrappers,
//! containers, the language's run-time), and which are internals of an interpreter. The table, and
//! the rule that picks the frames that a report blames: every report, threshold and export that
//! names a place asks [`blamed`].

use crate::pattern::Pattern;
use crate::symbols::Frame;

/// What a frame is to a reader who looks for the cause of an allocation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Role {
    /// Code of the program; functions of scripts, too.
    #[default]
    Program,
    /// Code of the interpreter that runs the program, by its name: passed over where a frame of the
    /// program is known.
    Interpreter(&'static str),
    /// An address without function and module, as that of generated code is.
    Nameless,
    /// Passes a request for memory on.
    Wrapper,
    /// Outside of the program's or thread's own first function.
    Outermost,
}

impl Role {
    /// Order in which frames are blamed: lowest first. Where the program has no frame in a stack,
    /// the interpreter is blamed.
    pub const fn rank(self) -> u8 {
        match self {
            Role::Program => 0,
            Role::Interpreter(_) => 1,
            Role::Nameless => 2,
            Role::Wrapper => 3,
            Role::Outermost => 4,
        }
    }
}

/// Positions of the innermost `count` frames of a stack that are to blame for its allocations,
/// innermost first: those of the lowest [`Role::rank`] in the stack. Where all frames are wrappers,
/// the innermost alone. Empty only for an empty stack.
///
/// Reads no more of `roles` than it needs.
pub fn blamed(roles: impl IntoIterator<Item = Role>, count: usize) -> Vec<usize> {
    const RANKS: usize = Role::Wrapper.rank() as usize;
    let mut found: [Vec<usize>; RANKS] = Default::default();
    let mut frames = 0;
    for (position, role) in roles.into_iter().enumerate() {
        frames += 1;
        let rank = usize::from(role.rank());
        if rank < RANKS && found[rank].len() < count.max(1) {
            found[rank].push(position);
            if rank == 0 && found[0].len() == count.max(1) {
                break;
            }
        }
    }
    let best = found.into_iter().find(|positions| !positions.is_empty());
    best.unwrap_or_else(|| (0..frames.min(1)).collect())
}

/// Modules whose functions only pass memory on: file names that start so.
#[rustfmt::skip]
const MODULES: &[&str] = &[
    "libc.so", "libc-", "libc++", "libstdc++", "libgcc_s", "libpthread", "libm.so", "libdl.so", "librt.so", "ld-linux", "ld-2",
    "ld-musl", "ld.so", "libheaptape", "libasan", "libtsan", "libubsan", "libjemalloc", "libtcmalloc", "libmimalloc", "linux-vdso",
    "[vdso]", "linux-gate", "libffi.so", "libffi-",
];

/// Source files of the C++ and Rust standard libraries: paths that contain this. Debug information
/// gives inlined functions and lambdas without their namespace; the file still shows whose they
/// are.
const FILES: &[&str] = &["/include/c++/", "/rustlib/src/rust/library/"];

/// The same, by how the path starts: what the Rust compiler calls the source of its library, and of
/// that one's own parts.
const FILE_STARTS: &[&str] = &["/rustc/", "/rust/deps/"];

/// Files of scripts that an interpreter brings itself: how they start.
const NODE_FILE: &str = "node:";
const PYTHON_FILE: &str = "<frozen ";

/// Functions of V8, and what its perf map calls pieces of its own code: names that start so.
const V8: &[&str] = &["v8::", "Builtins_", "Builtin:", "BytecodeHandler:", "Handler:", "Stub:", "RegExp:"];

/// Types of Rust's language itself: their implementations of traits are the standard library's.
#[rustfmt::skip]
const PRIMITIVES: &[&str] = &[
    "u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "i128", "isize", "f32", "f64", "bool", "char", "str",
];

/// Name spaces of containers and run-times: names that start so, behind `<`, `&`, `*`, `[` and `(`.
#[rustfmt::skip]
const NAME_SPACES: &[&str] = &[
    // C++
    "std::", "__gnu_cxx::", "__cxxabiv1::", "__cxx11::", "operator new", "operator delete", "boost::container::",
    // Rust
    "alloc::", "core::", "hashbrown::", "indexmap::", "smallvec::", "std_detect::", "rustc_std_workspace", "__rust_", "__rdl_",
    "__rg_", "_RNvCs", "dyn core::", "dyn alloc::", "dyn std::",
];

/// Functions that hand memory on under their own name.
#[rustfmt::skip]
const FUNCTIONS: &[&str] = &[
    // C library
    "malloc", "calloc", "realloc", "reallocarray", "free", "cfree", "memalign", "aligned_alloc", "posix_memalign", "valloc",
    "pvalloc", "strdup", "strndup", "wcsdup", "asprintf", "vasprintf", "__libc_malloc", "__libc_calloc", "__libc_realloc",
    "_obstack_begin", "_obstack_newchunk", "__cxa_allocate_exception",
    // GNU programs
    "xmalloc", "xcalloc", "xzalloc", "xrealloc", "xreallocarray", "xnmalloc", "xnrealloc", "xcharalloc", "xmemdup", "xmemdupz",
    "xstrdup", "xstrndup", "x2realloc", "x2nrealloc", "ximalloc", "xirealloc", "xicalloc", "xizalloc", "xpalloc", "xpmalloc",
    "xmallocz", "xstrfmt", "do_xmalloc", "sh_xmalloc", "sh_xrealloc", "concat", "safe_malloc", "safe_calloc", "safe_realloc",
    "emalloc", "ecalloc", "erealloc", "estrdup", "checked_malloc", "checked_realloc", "must_malloc",
    // GLib
    "g_malloc", "g_malloc0", "g_malloc_n", "g_malloc0_n", "g_try_malloc", "g_try_malloc0", "g_realloc", "g_realloc_n",
    "g_try_realloc", "g_memdup", "g_memdup2", "g_strdup", "g_strndup", "g_slice_alloc", "g_slice_alloc0", "g_strdup_printf",
    "g_strdup_vprintf", "g_vasprintf", "g_aligned_alloc",
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
    "arena_map_mark_used", "allocate_from_new_pool", "PyUnicode_New", "unicode_decode_utf8", "PyUnicode_DecodeUTF8Stateful",
    "PyUnicode_FromStringAndSize", "PyBytes_FromStringAndSize", "_PyBytes_FromSize", "_PyObject_GC_Alloc", "_PyObject_GC_New", "_PyObject_GC_NewVar", "_PyObject_GC_Malloc",
    "_PyObject_New", "_PyObject_NewVar", "PyType_GenericAlloc", "_PyType_AllocNoTrack", "gc_alloc", "_PyMem_Strdup",
    // GCC and binutils
    "ggc_internal_alloc", "ggc_internal_cleared_alloc", "ggc_realloc", "ggc_alloc_atomic", "_objalloc_alloc", "objalloc_create",
    "bfd_alloc", "bfd_zalloc", "bfd_malloc", "bfd_realloc", "htab_create_alloc", "htab_expand", "htab_find_slot",
    "htab_find_slot_with_hash",
    // Others
    "CRYPTO_malloc", "CRYPTO_zalloc", "CRYPTO_realloc", "CRYPTO_strdup", "OPENSSL_malloc", "av_malloc", "av_mallocz", "av_calloc",
    "av_realloc", "av_realloc_f", "av_strdup", "zmalloc", "zcalloc", "zrealloc", "ztrymalloc", "ztrycalloc", "ztryrealloc",
    "zstrdup", "zmalloc_usable", "zcalloc_usable", "zrealloc_usable", "ztrymalloc_usable", "ztrycalloc_usable", "ztryrealloc_usable",
    "RM_Alloc", "RM_TryAlloc", "RM_Calloc", "RM_Realloc", "RM_Strdup", "apr_palloc", "apr_pcalloc", "apr_allocator_alloc", "allocator_alloc", "talloc_named_const", "_talloc_array",
    "Perl_safesysmalloc", "Perl_safesyscalloc", "Perl_safesysrealloc", "Perl_savepvn", "_emalloc", "_ecalloc", "_erealloc",
    "_safe_emalloc", "_estrdup", "_estrndup", "ruby_xmalloc", "ruby_xcalloc", "ruby_xrealloc", "objspace_xmalloc0", "mi_malloc",
    "mi_calloc", "mi_realloc", "mi_zalloc", "je_malloc", "tc_malloc", "tc_new", "scudo_malloc", "xmlMalloc", "xmlStrdup",
];

/// Frames outside of a program's or thread's own first function.
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

/// Whether a frame lies outside of the program's or thread's own first function.
pub fn is_outermost(frame: &Frame) -> bool {
    frame.function.as_deref().is_some_and(|function| OUTERMOST.contains(&function))
}

/// Whether a function of that name only passes memory on.
pub fn is_wrapper(function: &str) -> bool {
    let inner = function.trim_start_matches(['<', '&', '*', '[', '(']).trim_start_matches("mut ");
    NAME_SPACES.iter().any(|space| inner.starts_with(space))
        || is_of_primitive(function)
        || FUNCTIONS.contains(&function)
}

/// Whether it is a standard trait's function for a type of the language: `<u8 as
/// alloc::vec::SpecFromElem>::from_elem`.
fn is_of_primitive(function: &str) -> bool {
    let Some((kind, rest)) = function.strip_prefix('<').and_then(|inner| inner.split_once(" as ")) else {
        return false;
    };
    let kind = kind.trim_start_matches(['&', '*', '[', '(']);
    let kind = kind.trim_start_matches("mut ").trim_start_matches("const ").trim_end_matches(']');
    PRIMITIVES.contains(&kind) && NAME_SPACES.iter().any(|space| rest.starts_with(space))
}

/// Whether a module of that file name holds CPython itself: the interpreter's program or its
/// library.
pub fn is_cpython(module: &str) -> bool {
    let version = |rest: &str| rest.bytes().all(|byte| byte.is_ascii_digit() || b".dmtu-dbg".contains(&byte));
    module.starts_with("libpython") || module.strip_prefix("python").is_some_and(version)
}

/// The interpreter whose code a frame is, by its module, file and name.
fn interpreter(frame: &Frame) -> Option<&'static str> {
    let module = frame.module_name();
    let has_file = |start: &str| frame.file.as_deref().is_some_and(|file| file.starts_with(start));
    if is_cpython(module) || frame.module.contains("/lib-dynload/") || has_file(PYTHON_FILE) {
        return Some("CPython");
    }
    if module == "node" || module == "nodejs" || module.starts_with("libnode.so") || has_file(NODE_FILE) {
        return Some("Node.js");
    }
    let v8 = |function: &str| V8.iter().any(|start| function.starts_with(start));
    frame.function.as_deref().is_some_and(v8).then_some("V8")
}

/// The roles of frames: the table's, and what a user calls a wrapper (`--wrapper NAME`).
#[derive(Clone, Debug, Default)]
pub struct Roles {
    wrappers: Vec<Pattern>,
}

impl Roles {
    /// With the names of a user's wrappers: of functions or modules' files, as a whole, with `*`
    /// and `?`.
    pub fn new(wrappers: &[String]) -> Roles {
        Roles { wrappers: wrappers.iter().map(|name| Pattern::whole(name)).collect() }
    }

    /// The role of a frame.
    pub fn of(&self, frame: &Frame) -> Role {
        let module = frame.module_name();
        let matches = |name: &str| self.wrappers.iter().any(|pattern| pattern.matches(name));
        if MODULES.iter().any(|name| module.starts_with(name)) || matches(module) {
            return Role::Wrapper;
        }
        let by_name = self.by_name(frame.function.as_deref());
        let of_library = |file: &str| {
            FILES.iter().any(|part| file.contains(part)) || FILE_STARTS.iter().any(|start| file.starts_with(start))
        };
        match by_name {
            Role::Program | Role::Nameless if frame.file.as_deref().is_some_and(of_library) => Role::Wrapper,
            Role::Program | Role::Nameless => match interpreter(frame) {
                Some(name) => Role::Interpreter(name),
                None if module.is_empty() => by_name,
                None => Role::Program,
            },
            role => role,
        }
    }

    /// The role of a function of which only the name is known.
    pub fn by_name(&self, function: Option<&str>) -> Role {
        match function {
            None => Role::Nameless,
            Some(function) if OUTERMOST.contains(&function) => Role::Outermost,
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
            (None, "/usr/bin/sqlite3", None, Role::Program),
            (Some("main"), "", None, Role::Program),
            (None, "", None, Role::Nameless),
            (Some("_start"), "/bin/x", None, Role::Outermost),
            (Some("operator()"), "/bin/x", Some("/usr/include/c++/12/bits/std_thread.h"), Role::Wrapper),
            (Some("operator()"), "/bin/x", Some("/srv/server.cpp"), Role::Program),
            (Some("from_elem"), "/bin/x", Some("/rustc/1234/library/alloc/src/vec/mod.rs"), Role::Wrapper),
            (Some("PyList_Append"), "/usr/bin/python3.13", None, python),
            (Some("PyUnicode_New"), "/usr/lib/libpython3.13.so.1.0", None, Role::Wrapper),
            (None, "/usr/lib/python3.13/lib-dynload/_ctypes.cpython-313-x86_64-linux-gnu.so", None, python),
            (Some("dumps"), "/srv/ujson.cpython-313-x86_64-linux-gnu.so", None, Role::Program),
            (Some("load"), "", Some("/srv/shop.py"), Role::Program),
            (Some("_find_and_load"), "", Some("<frozen importlib._bootstrap>"), python),
            (Some("main"), "/usr/bin/python_tool", None, Role::Program),
            (Some("node::Start"), "/usr/bin/node", None, node),
            (Some("allocUnsafeSlow"), "", Some("node:buffer"), node),
            (Some("remember"), "", Some("/srv/leak.js"), Role::Program),
            (Some("v8::internal::Heap::Allocate"), "/opt/app", None, Role::Interpreter("V8")),
        ] {
            assert_eq!(role(function, module, file), expected, "{function:?} {module} {file:?}");
        }
    }

    #[test]
    fn wrappers_of_a_user_are_names_and_modules() {
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
    fn the_innermost_frames_of_the_best_kind_are_blamed() {
        const P: Role = Role::Program;
        const I: Role = Role::Interpreter("CPython");
        const N: Role = Role::Nameless;
        const W: Role = Role::Wrapper;
        const O: Role = Role::Outermost;
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
        ] {
            assert_eq!(blamed(stack.iter().copied(), count), expected, "{stack:?} {count}");
        }
    }
}
