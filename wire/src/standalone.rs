//! What the recorder tells the library that it maps into a program without a loader. The library's
//! file has two names for the recorder: [`ENTRY_SYMBOL`] and [`PROGRAM_SYMBOL`].

/// Name of the library's first instruction.
pub const ENTRY_SYMBOL: &str = "heaptape_program_entry";
/// Name of the library's [`LoadedProgram`].
pub const PROGRAM_SYMBOL: &str = "heaptape_program";

/// The program, as it is mapped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct LoadedProgram {
    /// The first address of the program.
    pub start: u64,
    /// The first address after its file's mappings.
    pub end: u64,
    /// The difference between its addresses and those in its file.
    pub bias: u64,
    /// The address of `.eh_frame_hdr`: the program's, or one that the recorder has made because the
    /// linker made none; 0 if there is none.
    pub unwind_header: u64,
    /// The first address after that header.
    pub unwind_header_end: u64,
}

impl LoadedProgram {
    /// No program.
    pub const NONE: LoadedProgram = LoadedProgram { start: 0, end: 0, bias: 0, unwind_header: 0, unwind_header_end: 0 };

    /// Encodes the program as it is in memory.
    pub fn encode(&self) -> [u8; size_of::<LoadedProgram>()] {
        let mut out = [0; size_of::<LoadedProgram>()];
        let fields = [self.start, self.end, self.bias, self.unwind_header, self.unwind_header_end];
        out.chunks_exact_mut(8).zip(fields).for_each(|(target, field)| target.copy_from_slice(&field.to_le_bytes()));
        out
    }
}
