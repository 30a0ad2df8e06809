//! Forwarded calls: `operator new` calls `malloc`, and both are hooked.

/// A forwarded call, whose inner calls are not events of their own.
#[derive(Clone, Copy)]
pub struct Forwarded {
    /// The stack pointer of the hook that forwards the call.
    pub sp: usize,
    /// The bytes that an inner allocation of the same call requests.
    pub size: usize,
    /// The most bytes by which the inner request may be larger, because the size may be rounded up
    /// to an alignment.
    pub slack: usize,
    /// The block that an inner free of the same call frees; 0 for an allocation.
    pub address: usize,
    /// The return address at `sp`, which is there until the forwarded call ends.
    pub return_address: u64,
}

impl Forwarded {
    /// Returns whether a call for `size` bytes, or of the block at `address` if that is not 0, is
    /// the inner one of this call.
    pub fn contains(&self, size: usize, address: usize) -> bool {
        if address != 0 {
            return address == self.address;
        }
        self.address == 0 && size.max(1).wrapping_sub(self.size.max(1)) <= self.slack
    }
}
