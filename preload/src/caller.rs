//! The caller of a hook, as its entry stub passes it.

/// The stack pointer and the frame pointer at the call of a hook. It is passed in two registers,
/// like two numbers, which could be swapped.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Caller {
    /// The stack pointer at the first instruction of the entry: the address of the return address.
    pub sp: usize,
    /// The frame pointer of the caller.
    pub bp: usize,
}

impl Caller {
    /// Returns the return address, which is in the calling object.
    ///
    /// # Safety
    /// `sp` must be that of a hook that has not returned.
    #[inline(always)]
    pub(crate) unsafe fn return_address(self) -> usize {
        // SAFETY: the word is in the frame of the hook's caller, which is live.
        unsafe { (self.sp as *const usize).read() }
    }
}
