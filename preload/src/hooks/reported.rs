//! What the program reports through `heaptape.h`: one exported function with a description of the
//! report, and the functions of heaptrack's header.

use super::alloc_rarely;
use crate::caller::Caller;
use crate::record::{annotate, resize_begins, resize_ends, set_stopped};
use core::ffi::c_char;
use heaptape_wire::Op;

/// A report. `heaptape.h` has the same structure, and the numbers of the kinds.
#[repr(C)]
pub(crate) struct Report {
    kind: u32,
    text: *const c_char,
    address: *mut u8,
    size: usize,
    old: *mut u8,
}

/// The body of `heaptape_report`.
pub(crate) unsafe extern "C" fn report(report: *const Report, caller: Caller) {
    // SAFETY: the description is the program's, made by an inline function of the header.
    let Report { kind, text, address, size, old } = unsafe { report.read() };
    let annotation = match kind {
        1 | 2 => Op::HEAP,
        4 => Op::FREE_RANGE,
        5 => Op::RESET,
        6 => Op::POOL,
        7 => Op::MARK,
        8 | 9 => Op::LABEL,
        10 | 11 => return set_stopped(kind == 11, caller),
        _ => Op::TEXT,
    };
    // SAFETY: the program's text; `caller` is the stub's.
    unsafe {
        if annotation != Op::TEXT && (annotation != Op::HEAP || !text.is_null()) {
            let text = if kind == 9 { core::ptr::null() } else { text };
            annotate(annotation, address as u64, size as u64, text, caller);
        }
        match kind {
            1 => report_alloc(address, size, caller),
            2 => report_realloc(old, size, address, caller),
            3 => report_free(address, caller),
            _ => {}
        }
    }
}

/// The body of `heaptrack_report_alloc`.
pub(crate) unsafe extern "C" fn report_alloc(block: *mut u8, size: usize, caller: Caller) {
    alloc_rarely(Op::ALLOC_REPORTED, size, caller, &|| block);
}

/// The body of `heaptrack_report_realloc`.
pub(crate) unsafe extern "C" fn report_realloc(old: *mut u8, size: usize, new: *mut u8, caller: Caller) {
    if old.is_null() {
        alloc_rarely(Op::ALLOC_REPORTED, size, caller, &|| new);
    } else if let Some(begun) = resize_begins(old, size, caller) {
        resize_ends(begun, Op::RESIZE_REPORTED, old, new, size, caller);
    }
}

/// The body of `heaptrack_report_free`.
pub(crate) unsafe extern "C" fn report_free(block: *mut u8, caller: Caller) {
    if !block.is_null() {
        super::freed_rarely(Op::FREE_REPORTED, block, caller);
    }
}

#[cfg(not(any(test, feature = "standalone")))]
pub(crate) mod exported_reports {
    /// What `heaptape.h` looks for.
    static REPORT: unsafe extern "C" fn() = heaptape_report;
    // A note of the ELF file: the sizes of its name and of its text, a type, the name, and how far behind
    // this word the address of the function is.
    core::arch::global_asm!(
        ".pushsection .note.heaptape, \"a\", @note",
        ".balign 4",
        ".long 9, 4, 1",
        ".asciz \"heaptape\"",
        ".balign 4",
        ".long {report} - .",
        ".popsection",
        report = sym REPORT,
    );
    #[unsafe(no_mangle)]
    #[unsafe(link_section = "heaptape_stubs")]
    #[unsafe(naked)]
    pub(crate) unsafe extern "C" fn heaptape_report() {
        crate::arch::report_stub!(1, super::report)
    }
    #[unsafe(no_mangle)]
    #[unsafe(link_section = "heaptape_stubs")]
    #[unsafe(naked)]
    pub(crate) unsafe extern "C" fn heaptrack_report_alloc() {
        crate::arch::report_stub!(2, super::report_alloc)
    }
    #[unsafe(no_mangle)]
    #[unsafe(link_section = "heaptape_stubs")]
    #[unsafe(naked)]
    pub(crate) unsafe extern "C" fn heaptrack_report_realloc() {
        crate::arch::report_stub!(3, super::report_realloc)
    }
    #[unsafe(no_mangle)]
    #[unsafe(link_section = "heaptape_stubs")]
    #[unsafe(naked)]
    pub(crate) unsafe extern "C" fn heaptrack_report_free() {
        crate::arch::report_stub!(1, super::report_free)
    }
}
