//! Forwarded calls: `operator new` calls `malloc`, and both are hooked.

/// What a call requests of the allocator.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    /// The requested size in bytes; 0 if there is none.
    pub size: usize,
    /// The most bytes by which the request of an inner call may be larger, because the size may be
    /// rounded up to an alignment.
    pub slack: usize,
    /// The block that the call frees; 0 for an allocation, [`Request::ANY_BLOCK`] for a call that
    /// may free others too.
    pub address: usize,
}

impl Request {
    /// The address of no block: all inner calls that free or resize a block belong to the call.
    pub(crate) const ANY_BLOCK: usize = usize::MAX;

    /// Returns a request for `size` bytes, or of a block that is not null, exactly.
    #[inline(always)]
    pub(crate) fn of_block(size: usize, block: *mut u8) -> Request {
        Request { size, slack: 0, address: block as usize }
    }
}

/// A forwarded call, whose inner calls are not events of their own.
#[derive(Clone, Copy)]
pub(crate) struct Forwarded {
    /// The stack pointer of the hook that forwards the call.
    pub sp: usize,
    pub request: Request,
    /// The return address at `sp`, which is there until the forwarded call ends.
    pub return_address: u64,
}

impl Forwarded {
    /// Returns whether a call with this request is the inner one of this call.
    pub(crate) fn contains(&self, inner: Request) -> bool {
        let outer = self.request;
        if inner.address != 0 {
            return inner.address == outer.address || outer.address == Request::ANY_BLOCK;
        }
        matches!(outer.address, 0 | Request::ANY_BLOCK)
            && inner.size.max(1).wrapping_sub(outer.size.max(1)) <= outer.slack
    }
}
