//! The number of a thread in its recording.

/// Threads are counted from 1, in the order in which their first records were seen. The kernel's id
/// of a thread is another number, and is used again when the thread has ended. 0 stands for the
/// threads that found no slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThreadNumber(pub u32);

impl ThreadNumber {
    pub const NONE: ThreadNumber = ThreadNumber(0);

    pub(crate) const fn is_some(self) -> bool {
        self.0 != 0
    }
}
