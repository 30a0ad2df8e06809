//! Models: each computes the numbers of one kind of report from the events that [`crate::replay()`]
//! passes to it. Models do not depend on files.

pub mod block_filter;
pub mod call_sites;
pub mod fragments;
pub mod free_sites;
pub mod leaks;
pub mod lifetimes;
pub mod live_set;
pub mod peak;
pub mod resizes;
pub mod sizes;
pub mod slices;
pub mod snapshots;
pub mod temporary;
pub mod threads;
pub mod timeline;
pub mod totals;
pub mod verdict;

/// Returns the row of a dense number. Adds it, and all before it, on first use.
pub(crate) fn row<T: Default + Clone>(rows: &mut Vec<T>, number: u32) -> &mut T {
    let index = number as usize;
    if index >= rows.len() {
        rows.resize(index + 1, T::default());
    }
    &mut rows[index]
}
