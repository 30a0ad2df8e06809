//! What the recorder tells the library that it maps into a program: one without a loader, or one
//! that runs already. The library's file has names for the recorder, which are here.

/// Name of the library's first instruction.
pub const ENTRY_SYMBOL: &str = "heaptape_program_entry";
/// Name of the library's [`LoadedProgram`].
pub const PROGRAM_SYMBOL: &str = "heaptape_program";
/// Name of the first instruction in a program that runs already. It attaches the process as the
/// [`AttachRequest`] says, makes the system call [`ATTACHED_CALL`], and returns by `rt_sigreturn`
/// to where the signal frame at the address in r12 (x20 on aarch64) says.
pub const ATTACH_SYMBOL: &str = "heaptape_attach_entry";
/// Name of the first instruction that unmaps the shared area and the private memory. It continues
/// as the other one.
pub const LEAVE_SYMBOL: &str = "heaptape_leave_entry";
/// Name of the library's [`AttachRequest`].
pub const REQUEST_SYMBOL: &str = "heaptape_attach_request";
/// The number of the system call that says that the library is done: `getppid`, which the library
/// does not call elsewhere.
pub const ATTACHED_CALL: u32 = if cfg!(target_arch = "aarch64") { 173 } else { 110 };

/// The most entries of the auxiliary vector that are passed on, besides the last one.
pub const AUXILIARY_ENTRIES: usize = 31;

/// How a process attaches that runs already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct AttachRequest {
    /// Descriptor of the shared area in the process.
    pub descriptor: u64,
    /// Size of the area in bytes.
    pub area_bytes: u64,
    /// Address of the loader's `_dl_find_object`; 0 if there is none.
    pub finder: u64,
    /// The kernel's auxiliary vector of the process, with zeros at its end.
    pub auxiliary: [[u64; 2]; AUXILIARY_ENTRIES + 1],
}

impl AttachRequest {
    /// No request.
    pub const NONE: AttachRequest =
        AttachRequest { descriptor: 0, area_bytes: 0, finder: 0, auxiliary: [[0; 2]; AUXILIARY_ENTRIES + 1] };

    /// Encodes the request as it is in memory.
    pub fn encode(&self) -> [u8; size_of::<AttachRequest>()] {
        let mut out = [0; size_of::<AttachRequest>()];
        let fields = [self.descriptor, self.area_bytes, self.finder].into_iter();
        let fields = fields.chain(self.auxiliary.into_iter().flatten());
        out.chunks_exact_mut(8).zip(fields).for_each(|(target, field)| target.copy_from_slice(&field.to_le_bytes()));
        out
    }
}

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
