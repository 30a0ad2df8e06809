//! The program itself, as the kernel has mapped it.
//!
//! A linker leaves gaps between load segments where it aligns them to more than a page, for example
//! with `-z max-page-size=0x200000`. The kernel maps nothing there, and anything else may be: a
//! library, generated code, our own hooks. So the program counts as one object for each run of
//! adjacent segments. Its unwind tables may be in any of them. glibc's `_dl_find_object` describes
//! one segment of such a program, and nothing about the others.
//!
//! Other objects have no gaps: loaders reserve the whole range of a library.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
#[cfg(feature = "standalone")]
use heaptape_wire::standalone::LoadedProgram;

/// The most runs of segments. The last one also holds all segments after it.
pub(crate) const MAX_RUNS: usize = 8;

/// What is known of the program; all zeros if nothing is.
#[derive(Default)]
pub(crate) struct Program {
    /// What its addresses in memory exceed those in its file by.
    pub bias: u64,
    /// The address of `.eh_frame_hdr`; 0 if there is none.
    pub unwind_header: u64,
    /// The first address of each run and the first one after it; zeros if the entry is unused.
    pub runs: [[u64; 2]; MAX_RUNS],
    /// The same for its code. The last entry also holds all code after it.
    pub code: [[u64; 2]; MAX_RUNS],
}

static IS_KNOWN: AtomicBool = AtomicBool::new(false);
static BIAS: AtomicU64 = AtomicU64::new(0);
static UNWIND_HEADER: AtomicU64 = AtomicU64::new(0);
static RUNS: [[AtomicU64; 2]; MAX_RUNS] = [const { [const { AtomicU64::new(0) }; 2] }; MAX_RUNS];
static CODE: [[AtomicU64; 2]; MAX_RUNS] = [const { [const { AtomicU64::new(0) }; 2] }; MAX_RUNS];

/// Returns whether the program's headers were read.
pub(crate) fn is_known() -> bool {
    IS_KNOWN.load(Acquire)
}

/// Stores what the headers say. Several threads may do so at once, each with the same values.
pub(crate) fn store(program: &Program) {
    BIAS.store(program.bias, Relaxed);
    UNWIND_HEADER.store(program.unwind_header, Relaxed);
    let targets = RUNS.iter().chain(&CODE).flatten();
    targets
        .zip(program.runs.iter().chain(&program.code).flatten())
        .for_each(|(target, value)| target.store(*value, Relaxed));
    IS_KNOWN.store(true, Release);
}

/// Returns the range of a list that holds an address. It is not inlined, since the compiler unrolls
/// the loop.
#[inline(never)]
fn range_in(list: &[[AtomicU64; 2]; MAX_RUNS], address: u64) -> Option<(u64, u64)> {
    let mut ranges = list.iter().map(|[start, end]| (start.load(Relaxed), end.load(Relaxed)));
    ranges.find(|(start, end)| (*start..*end).contains(&address))
}

/// Returns the run of segments that holds an address: its first address and the first one after it.
pub(crate) fn run_of(address: u64) -> Option<(u64, u64)> {
    range_in(&RUNS, address)
}

/// Returns whether an address is in the program's code.
pub(crate) fn is_code(address: u64) -> bool {
    range_in(&CODE, address).is_some()
}

/// Returns the program's lowest address and the first one after it.
#[inline(never)]
pub(crate) fn bounds() -> (u64, u64) {
    (RUNS[0][0].load(Relaxed), RUNS.iter().fold(0, |last, [_, end]| last.max(end.load(Relaxed))))
}

/// Returns the load bias.
pub(crate) fn bias() -> u64 {
    BIAS.load(Relaxed)
}

/// Returns the address of `.eh_frame_hdr`; 0 if there is none.
pub(crate) fn unwind_header() -> u64 {
    UNWIND_HEADER.load(Relaxed)
}

/// The program, as the recorder has found it. It fills this in before the library runs.
#[cfg(feature = "standalone")]
#[unsafe(no_mangle)]
static mut heaptape_program: LoadedProgram = LoadedProgram::NONE;

/// Returns the program that this library is mapped into, as the recorder has found it.
#[cfg(feature = "standalone")]
pub(crate) fn loaded() -> &'static LoadedProgram {
    // SAFETY: nothing writes to it after the recorder has let the process run. The compiler does
    // not know that the recorder has written to it.
    unsafe { &*core::hint::black_box(&raw const heaptape_program) }
}
