//! Which frames belong to the program, and which only hand memory on: allocator wrappers, containers, the language's
//! run-time. THE table; reports name the innermost frames that are in none of its rows.

use crate::symbols::Frame;

/// Modules whose functions are never the program's: file names that start so.
#[rustfmt::skip]
const MODULES: &[&str] = &[
    "libc.so", "libc-", "libc++", "libstdc++", "libgcc_s", "libpthread", "libm.so", "libdl.so", "librt.so", "ld-linux", "ld-2",
    "ld-musl", "ld.so", "libheaptape", "libasan", "libtsan", "libubsan", "libjemalloc", "libtcmalloc", "libmimalloc", "linux-vdso",
    "[vdso]", "linux-gate",
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
    "pymalloc_alloc", "new_arena", "_PyObject_GC_Alloc", "_PyObject_GC_New", "_PyObject_GC_NewVar", "_PyObject_GC_Malloc",
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

/// Whether a function of that name only hands memory on.
pub fn is_wrapper(function: &str) -> bool {
    let inner = function.trim_start_matches(['<', '&', '*', '[', '(']).trim_start_matches("mut ");
    NAME_SPACES.iter().any(|space| inner.starts_with(space)) || FUNCTIONS.contains(&function)
}

/// Whether a frame belongs to the program.
pub fn is_program(frame: &Frame) -> bool {
    let module = frame.module_name();
    if MODULES.iter().any(|name| module.starts_with(name)) {
        return false;
    }
    frame.function.as_deref().is_none_or(|function| !is_wrapper(function) && !OUTERMOST.contains(&function))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrappers_are_told_from_the_program() {
        for wrapper in [
            "xmalloc",
            "std::vector<int, std::allocator<int> >::_M_realloc_insert",
            "__gnu_cxx::new_allocator<char>::allocate",
            "operator new",
            "alloc::raw_vec::RawVec<T,A>::grow_one",
            "<alloc::vec::Vec<T> as core::clone::Clone>::clone",
            "<&mut core::iter::Map<I,F>>::next",
            "__rust_alloc",
        ] {
            assert!(is_wrapper(wrapper), "{wrapper}");
        }
        for program in
            ["main", "stdio_buffer", "allocate_orders", "<shop::Order as core::clone::Clone>::clone", "mallocator"]
        {
            assert!(!is_wrapper(program), "{program}");
        }
        let frame = |function: Option<&str>, module: &str| Frame {
            function: function.map(str::to_string),
            module: module.into(),
            ..Frame::default()
        };
        assert!(!is_program(&frame(Some("getdelim"), "/lib/x86_64-linux-gnu/libc.so.6")));
        assert!(is_program(&frame(None, "/usr/bin/sqlite3")));
        assert!(is_program(&frame(Some("main"), "")));
    }
}
