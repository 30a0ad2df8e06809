//! The program, where the library is mapped into a program without a loader.

use heaptape_wire::standalone::LoadedProgram;

/// The program, as the recorder has found it. It fills this in before the library runs.
#[unsafe(no_mangle)]
static mut heaptape_program: LoadedProgram = LoadedProgram::NONE;

/// Returns the program that this library is mapped into.
pub fn program() -> &'static LoadedProgram {
    // SAFETY: nothing writes to it after the recorder has let the process run. The compiler does
    // not know that the recorder has written to it.
    unsafe { &*core::hint::black_box(&raw const heaptape_program) }
}
