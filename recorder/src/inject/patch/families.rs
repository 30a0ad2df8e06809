//! The names of allocators' functions, with what each function does and which of its arguments say
//! so. Names are compared exactly: a compiler's clone of a function (`.cold`, `.part`, `.isra`) is
//! no call.

use wire::patches::{Action, NO_ARGUMENT};

/// The longest name that is searched for, in bytes.
pub(crate) const MAX_NAME: usize = 256;

/// What a function does, and the indexes of the arguments that say so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// What the function does.
    pub action: Action,
    /// Index of the argument with the size.
    pub size: u8,
    /// Index of the argument that the size is multiplied with, or [`NO_ARGUMENT`].
    pub count: u8,
    /// Index of the argument with the block, or with the address to store it at.
    pub pointer: u8,
}

/// A function that allocates: its size is this argument.
const fn alloc(size: u8) -> Shape {
    Shape { action: Action::Alloc, size, count: NO_ARGUMENT, pointer: NO_ARGUMENT }
}

/// A function that allocates an array: number and size of its elements.
const fn array(count: u8, size: u8) -> Shape {
    Shape { count, ..alloc(size) }
}

/// A function that frees this argument.
const fn free(pointer: u8) -> Shape {
    Shape { action: Action::Free, size: NO_ARGUMENT, count: NO_ARGUMENT, pointer }
}

/// A function that resizes a block, and returns the new one.
const fn resize(pointer: u8, size: u8) -> Shape {
    Shape { action: Action::Resize, size, count: NO_ARGUMENT, pointer }
}

/// A function that resizes an array, and returns the new one.
const fn resize_array(pointer: u8, count: u8, size: u8) -> Shape {
    Shape { count, ..resize(pointer, size) }
}

/// The shape of `posix_memalign`.
const ALLOC_AT: Shape = Shape { action: Action::AllocAt, size: 2, count: NO_ARGUMENT, pointer: 0 };
/// The shape of jemalloc's `xallocx`.
const RESIZE_FIXED: Shape = Shape { action: Action::ResizeFixed, size: 1, count: NO_ARGUMENT, pointer: 0 };

/// Functions of the C library and of jemalloc, which many allocators have with a prefix.
pub(crate) const COMMON: &[(&str, Shape)] = &[
    ("malloc", alloc(0)),
    ("calloc", array(0, 1)),
    ("realloc", resize(0, 1)),
    ("reallocarray", resize_array(0, 1, 2)),
    ("posix_memalign", ALLOC_AT),
    ("aligned_alloc", alloc(1)),
    ("memalign", alloc(1)),
    ("valloc", alloc(0)),
    ("pvalloc", alloc(0)),
    ("free", free(0)),
    ("cfree", free(0)),
    ("free_sized", free(0)),
    ("free_aligned_sized", free(0)),
    ("mallocx", alloc(0)),
    ("rallocx", resize(0, 1)),
    ("xallocx", RESIZE_FIXED),
    ("dallocx", free(0)),
    ("sdallocx", free(0)),
    // of the jemalloc in Redis 8: they store the usable size, too
    ("malloc_with_usize", alloc(0)),
    ("calloc_with_usize", array(0, 1)),
    ("realloc_with_usize", resize(0, 1)),
    ("free_with_usize", free(0)),
];

/// Functions of [`COMMON`] that heaptape does not export, since they are jemalloc's only.
pub(crate) const UNREPLACED: &[&[u8]] = &[
    b"mallocx",
    b"rallocx",
    b"xallocx",
    b"dallocx",
    b"sdallocx",
    b"malloc_with_usize",
    b"calloc_with_usize",
    b"realloc_with_usize",
    b"free_with_usize",
];

/// The prefixes of known allocators: of jemalloc those of its own builds, of its Rust crate, of
/// Apache Arrow and of DuckDB.
pub(super) const PREFIXES: &[(&str, &str)] = &[
    ("je_", "jemalloc"),
    ("_rjem_", "jemalloc"),
    ("je_arrow_", "jemalloc"),
    ("duckdb_je_", "jemalloc"),
    ("mi_", "mimalloc"),
    ("tc_", "tcmalloc"),
    ("sn_", "snmalloc"),
];

/// glibc functions whose inner `free` calls are not events. At the end of a thread glibc returns the
/// tcache to the arenas by calling `free` on blocks that the program has freed already.
pub(crate) const GLIBC_INTERNAL: &[(&str, Shape)] = &[("__malloc_arena_thread_freeres", INTERNAL)];

/// A function that is no event, and neither are its calls.
pub(super) const INTERNAL: Shape =
    Shape { action: Action::Internal, size: NO_ARGUMENT, count: NO_ARGUMENT, pointer: NO_ARGUMENT };

/// The C++ operators. They belong to an allocator if it also defines `malloc`.
pub(super) const OPERATORS: &[(&str, Shape)] = &[
    ("_Znwm", alloc(0)),
    ("_Znam", alloc(0)),
    ("_ZnwmRKSt9nothrow_t", alloc(0)),
    ("_ZnamRKSt9nothrow_t", alloc(0)),
    ("_ZnwmSt11align_val_t", alloc(0)),
    ("_ZnamSt11align_val_t", alloc(0)),
    ("_ZnwmSt11align_val_tRKSt9nothrow_t", alloc(0)),
    ("_ZnamSt11align_val_tRKSt9nothrow_t", alloc(0)),
    ("_ZdlPv", free(0)),
    ("_ZdaPv", free(0)),
    ("_ZdlPvm", free(0)),
    ("_ZdaPvm", free(0)),
    ("_ZdlPvRKSt9nothrow_t", free(0)),
    ("_ZdaPvRKSt9nothrow_t", free(0)),
    ("_ZdlPvSt11align_val_t", free(0)),
    ("_ZdaPvSt11align_val_t", free(0)),
    ("_ZdlPvmSt11align_val_t", free(0)),
    ("_ZdaPvmSt11align_val_t", free(0)),
    ("_ZdlPvSt11align_val_tRKSt9nothrow_t", free(0)),
    ("_ZdaPvSt11align_val_tRKSt9nothrow_t", free(0)),
];

/// mimalloc's own functions (`mimalloc.h`), besides those of [`COMMON`] with its prefix.
pub(crate) const MIMALLOC: &[(&str, Shape)] = &[
    ("mi_zalloc", alloc(0)),
    ("mi_malloc_small", alloc(0)),
    ("mi_zalloc_small", alloc(0)),
    ("mi_malloc_aligned", alloc(0)),
    ("mi_zalloc_aligned", alloc(0)),
    ("mi_malloc_aligned_at", alloc(0)),
    ("mi_zalloc_aligned_at", alloc(0)),
    ("mi_mallocn", array(0, 1)),
    ("mi_calloc_aligned", array(0, 1)),
    ("mi_calloc_aligned_at", array(0, 1)),
    ("mi_new", alloc(0)),
    ("mi_new_nothrow", alloc(0)),
    ("mi_new_aligned", alloc(0)),
    ("mi_new_aligned_nothrow", alloc(0)),
    ("mi_new_n", array(0, 1)),
    ("mi_heap_malloc", alloc(1)),
    ("mi_heap_zalloc", alloc(1)),
    ("mi_heap_malloc_small", alloc(1)),
    ("mi_heap_malloc_aligned", alloc(1)),
    ("mi_heap_zalloc_aligned", alloc(1)),
    ("mi_heap_malloc_aligned_at", alloc(1)),
    ("mi_heap_zalloc_aligned_at", alloc(1)),
    ("mi_heap_calloc", array(1, 2)),
    ("mi_heap_mallocn", array(1, 2)),
    ("mi_heap_calloc_aligned", array(1, 2)),
    ("mi_heap_calloc_aligned_at", array(1, 2)),
    ("mi_heap_alloc_new", alloc(1)),
    ("mi_heap_alloc_new_n", array(1, 2)),
    ("mi_reallocf", resize(0, 1)),
    ("mi_rezalloc", resize(0, 1)),
    ("mi_expand", resize(0, 1)),
    ("mi_realloc_aligned", resize(0, 1)),
    ("mi_rezalloc_aligned", resize(0, 1)),
    ("mi_realloc_aligned_at", resize(0, 1)),
    ("mi_rezalloc_aligned_at", resize(0, 1)),
    ("mi_new_realloc", resize(0, 1)),
    ("mi_reallocn", resize_array(0, 1, 2)),
    ("mi_recalloc", resize_array(0, 1, 2)),
    ("mi_recalloc_aligned", resize_array(0, 1, 2)),
    ("mi_recalloc_aligned_at", resize_array(0, 1, 2)),
    ("mi_new_reallocn", resize_array(0, 1, 2)),
    ("mi_heap_realloc", resize(1, 2)),
    ("mi_heap_reallocf", resize(1, 2)),
    ("mi_heap_rezalloc", resize(1, 2)),
    ("mi_heap_realloc_aligned", resize(1, 2)),
    ("mi_heap_rezalloc_aligned", resize(1, 2)),
    ("mi_heap_realloc_aligned_at", resize(1, 2)),
    ("mi_heap_rezalloc_aligned_at", resize(1, 2)),
    ("mi_heap_reallocn", resize_array(1, 2, 3)),
    ("mi_heap_recalloc", resize_array(1, 2, 3)),
    ("mi_heap_recalloc_aligned", resize_array(1, 2, 3)),
    ("mi_free_size", free(0)),
    ("mi_free_size_aligned", free(0)),
    ("mi_free_aligned", free(0)),
];

/// gperftools' own functions (`tcmalloc.h`), besides those of [`COMMON`] with its prefix.
pub(crate) const TCMALLOC: &[(&str, Shape)] = &[
    ("tc_malloc_skip_new_handler", alloc(0)),
    ("tc_new", alloc(0)),
    ("tc_new_nothrow", alloc(0)),
    ("tc_newarray", alloc(0)),
    ("tc_newarray_nothrow", alloc(0)),
    ("tc_new_aligned", alloc(0)),
    ("tc_new_aligned_nothrow", alloc(0)),
    ("tc_newarray_aligned", alloc(0)),
    ("tc_newarray_aligned_nothrow", alloc(0)),
    ("tc_delete", free(0)),
    ("tc_delete_sized", free(0)),
    ("tc_delete_nothrow", free(0)),
    ("tc_deletearray", free(0)),
    ("tc_deletearray_sized", free(0)),
    ("tc_deletearray_nothrow", free(0)),
    ("tc_delete_aligned", free(0)),
    ("tc_delete_sized_aligned", free(0)),
    ("tc_delete_aligned_nothrow", free(0)),
    ("tc_deletearray_aligned", free(0)),
    ("tc_deletearray_sized_aligned", free(0)),
    ("tc_deletearray_aligned_nothrow", free(0)),
];

/// The functions that snmalloc has for Rust.
pub(crate) const SNMALLOC: &[(&str, Shape)] = &[
    ("sn_rust_alloc", alloc(1)),
    ("sn_rust_alloc_zeroed", alloc(1)),
    ("sn_rust_dealloc", free(0)),
    ("sn_rust_realloc", resize(0, 3)),
];

/// Name of the allocator of functions without a prefix, if no mark says which one it is.
pub(crate) const OWN_MALLOC: &str = "malloc of the program";

pub(crate) const LIBRARY_MALLOC: &str = "malloc of the library";

/// In place of an allocator's name: the function changes the process.
pub(crate) const NO_ALLOCATOR: &str = "";

/// Symbols that say which allocator defines functions without a prefix.
pub(super) const MARKS: &[(&str, &str)] =
    &[("mallctl", "jemalloc"), ("tc_malloc", "tcmalloc"), ("mi_malloc", "mimalloc")];

/// Prefixes of jemalloc's internal functions, in the builds of [`PREFIXES`].
pub(crate) const JEMALLOC_INTERNAL: &[&str] = &["_rjem_je_", "je_", "je_arrow_private_je_", "duckdb_je_"];

/// Internal functions of jemalloc that map memory or return it, without their prefix.
pub(crate) const JEMALLOC_GROWTH: &[&str] = &[
    "pages_map",
    "pages_commit",
    "pages_decommit",
    "pages_purge_lazy",
    "pages_purge_forced",
    "extent_alloc_mmap",
    "ehooks_default_alloc_impl",
    "base_new",
    "base_boot",
    "tsd_cleanup",
];

/// Functions by which other allocators map memory or return it, and functions that call these from
/// outside of any request: when the program starts, when a thread ends, and in a thread of the
/// allocator's own. Memory that is mapped below them is the allocator's.
pub(super) const GROWTH: &[&str] = &[
    "jemalloc_constructor",
    "malloc_init_hard",
    "malloc_init_hard_a0_locked",
    "background_thread_entry",
    "_mi_auto_process_init",
    "_mi_process_init",
    "_mi_process_load",
    "mi_process_attach",
    "mi_process_init",
    "mi_process_init_once",
    "mi_process_load",
    "_mi_thread_done",
    "mi_pthread_done",
    "_mi_os_alloc",
    "_mi_os_alloc_aligned",
    "_mi_os_commit_ex",
    "_mi_os_purge",
    "_mi_os_purge_ex",
    "_mi_os_reset",
    "_mi_os_zalloc",
    "_mi_prim_alloc",
    "_mi_prim_commit",
    "_mi_prim_decommit",
    "_mi_prim_reset",
    "mi_os_prim_alloc",
    "mi_os_prim_alloc_aligned",
    "mi_os_prim_alloc_at",
    "unix_mmap",
    "unix_mmap_prim",
    "_Z20TCMalloc_SystemAllocmPmm",
    "_Z22TCMalloc_SystemReleasePvm",
];

/// A function that a program must not define itself: its calls would not come to the library's.
pub(crate) const MAPS_MEMORY: &str = "mmap";

/// Returns whether a name is that of a C++ operator.
pub(super) fn is_operator(name: &[u8]) -> bool {
    OPERATORS.iter().any(|(operator, _)| operator.as_bytes() == name)
}

/// Returns which allocator the functions without a prefix belong to, by the names that a file
/// defines.
pub(super) fn own_allocator<'a>(has: impl Fn(&[u8]) -> bool) -> &'a str {
    MARKS.iter().find(|(mark, _)| has(mark.as_bytes())).map_or(OWN_MALLOC, |(_, allocator)| allocator)
}
